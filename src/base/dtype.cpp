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

}  // namespace

std::string_view name_of(DataType type) { return kTypeNames[static_cast<int>(type)]; }
std::string_view name_of(ReduceOp op) { return kOpNames[static_cast<int>(op)]; }
std::string_view name_of(Collective c) { return kCollectiveNames[static_cast<int>(c)]; }
std::optional<Collective> collective_named(std::string_view name) {
  for (int c = 0; c < kCollectives; ++c) {
    if (kCollectiveNames[c] == name) return static_cast<Collective>(c);
  }
  return std::nullopt;
}

}  // namespace tutti
