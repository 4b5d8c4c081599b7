#include "base/dtype.h"

namespace tutti {
namespace {

constexpr std::string_view kTypeNames[kDataTypes] = {"int8",    "uint8",    "int32",      "uint32",
                                                     "int64",   "uint64",   "float16",    "float32",
                                                     "float64", "bfloat16", "float8e4m3", "float8e5m2"};
constexpr std::string_view kOpNames[kReduceOps] = {"sum", "prod", "max", "min", "avg"};
constexpr std::string_view kCollectiveNames[kCollectives] = {"all_reduce", "reduce",     "broadcast", "reduce_scatter",
                                                             "all_gather", "all_to_all", "gather",    "scatter",
                                                             "send",       "recv"};

template <class T, std::size_t N>
std::optional<T> find_name(const std::string_view (&names)[N], std::string_view name) {
  for (std::size_t i = 0; i < N; ++i) {
    if (names[i] == name) return static_cast<T>(i);
  }
  return std::nullopt;
}

}  // namespace

std::string_view name_of(DataType type) { return kTypeNames[static_cast<int>(type)]; }
std::string_view name_of(ReduceOp op) { return kOpNames[static_cast<int>(op)]; }
std::string_view name_of(Collective c) { return kCollectiveNames[static_cast<int>(c)]; }
std::optional<DataType> data_type_named(std::string_view n) { return find_name<DataType>(kTypeNames, n); }
std::optional<ReduceOp> reduce_op_named(std::string_view n) { return find_name<ReduceOp>(kOpNames, n); }
std::optional<Collective> collective_named(std::string_view n) { return find_name<Collective>(kCollectiveNames, n); }

}  // namespace tutti
