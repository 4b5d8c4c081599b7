// The device's arithmetic, compiled for the host, against the host's reduction kernels: the numbers at which formats differ.
#include "base/reduce.h"
#include "cuda/payload.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <cstring>
#include <vector>

namespace tutti::cuda {
namespace {

/// All threads of a block one after the other: the payload loop has no barriers.
class SerialThread {
 public:
  SerialThread(std::uint32_t index, std::uint32_t count) : index_(index), count_(count) {}
  std::uint32_t index() const { return index_; }
  std::uint32_t count() const { return count_; }
  template <class T>
  T load(const T* from) const {
    REQUIRE(reinterpret_cast<std::uintptr_t>(from) % sizeof(T) == 0);
    return *from;
  }
  template <class T>
  void store(T* to, const T& value) const {
    REQUIRE(reinterpret_cast<std::uintptr_t>(to) % sizeof(T) == 0);
    *to = value;
  }

 private:
  std::uint32_t index_;
  std::uint32_t count_;
};

template <class Type>
void fold_by_threads(ReduceOp op, const ReduceArgs& args) {
  constexpr std::uint32_t kCount = 32;
  constexpr std::uint32_t kWorkers = 2;
  for (std::uint32_t w = 0; w < kWorkers; ++w) {
    for (std::uint32_t i = 0; i < kCount; ++i) {
      SerialThread thread(i, kCount);
      fold<Type>(thread, op, args, Workers{w, kWorkers});
    }
  }
}

bool is_nan(DataType type, const std::byte* at) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, at, size_of(type));
  switch (type) {
    case DataType::kFloat16: return (bits & 0x7fff) > 0x7c00;
    case DataType::kBfloat16: return (bits & 0x7fff) > 0x7f80;
    case DataType::kFloat8e4m3: return (bits & 0x7f) == 0x7f;
    case DataType::kFloat8e5m2: return (bits & 0x7f) > 0x7c;
    case DataType::kFloat32: return (bits & 0x7fffffffu) > 0x7f800000u;
    case DataType::kFloat64: return (bits & 0x7fffffffffffffffu) > 0x7ff0000000000000u;
    default: return false;
  }
}

/// The same bits, any NaN being any other.
void require_same(DataType type, const std::vector<std::byte>& found, const std::vector<std::byte>& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); i += size_of(type)) {
    if (std::memcmp(&found[i], &expected[i], size_of(type)) == 0) continue;
    if (is_nan(type, &found[i]) && is_nan(type, &expected[i])) continue;
    INFO(name_of(type) << " element " << i / size_of(type));
    REQUIRE(std::vector(found.begin() + static_cast<std::ptrdiff_t>(i),
                        found.begin() + static_cast<std::ptrdiff_t>(i + size_of(type))) ==
            std::vector(expected.begin() + static_cast<std::ptrdiff_t>(i),
                        expected.begin() + static_cast<std::ptrdiff_t>(i + size_of(type))));
  }
}

std::uint64_t random_bits(std::uint64_t& state) {
  state += 0x9e3779b97f4a7c15u;
  std::uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// Zeros, infinities, NaNs, subnormals and the largest and smallest numbers among bits of any kind.
std::vector<std::byte> special_values(DataType type, std::size_t count, std::uint64_t seed) {
  const std::size_t size = size_of(type);
  const auto width = static_cast<unsigned>(size * 8);
  std::vector<std::byte> bytes(count * size);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t random = random_bits(seed);
    std::uint64_t bits = random;
    switch (random >> 60) {
      case 0: bits = std::uint64_t{random & 1} << (width - 1); break;                             // zeros
      case 1: bits = random & 0xff; break;                                                        // subnormal
      case 2: bits = ~std::uint64_t{0} << (width - 1) >> 1 | (random & 3); break;                 // around infinity
      case 3: bits = (std::uint64_t{0x3c} << (width < 8 ? 0 : width - 8)) | (random & 7); break;  // around one
      default: break;
    }
    std::memcpy(&bytes[i * size], &bits, size);
  }
  return bytes;
}

struct Sources {
  std::vector<std::vector<std::byte>> values;
  std::vector<const void*> pointers;
};
Sources make_sources(DataType type, std::size_t count, int sources, std::uint64_t seed) {
  Sources made;
  for (int s = 0; s < sources; ++s) made.values.push_back(special_values(type, count, seed + static_cast<unsigned>(s)));
  for (const auto& values : made.values) made.pointers.push_back(values.data());
  return made;
}

template <class Type>
void compare(DataType type) {
  constexpr std::size_t kCount = 3001;
  for (int o = 0; o < kReduceOps; ++o) {
    for (const int count : {1, 2, 3, 8}) {
      const auto op = static_cast<ReduceOp>(o);
      const Sources sources = make_sources(type, kCount, count, 77 + static_cast<unsigned>(o * 100));
      std::vector<std::byte> found(kCount * size_of(type));
      std::vector<std::byte> expected(kCount * size_of(type));
      void* to = found.data();
      ReduceArgs args;
      args.sources = sources.pointers.data();
      args.source_count = count;
      args.destinations = &to;
      args.destination_count = 1;
      args.count = kCount;
      args.divisor = op == ReduceOp::kAverage ? count + 1 : 0;
      fold_by_threads<Type>(op, args);
      to = expected.data();
      reduce_function(type, op)(args);
      INFO(name_of(op) << " of " << count);
      require_same(type, found, expected);
    }
  }
}

/// float32 among narrow sources and destinations.
template <class Type>
void compare_wide(DataType type) {
  constexpr std::size_t kCount = 1111;
  const Sources narrow = make_sources(type, kCount, 2, 5);
  const Sources wide = make_sources(DataType::kFloat32, kCount, 2, 9);
  const void* sources[] = {narrow.pointers[0], wide.pointers[0], narrow.pointers[1], wide.pointers[1]};
  const std::uint8_t wide_sources[] = {0, 1, 0, 1};
  const std::uint8_t wide_destinations[] = {1, 0};
  for (int o = 0; o < kReduceOps; ++o) {
    const auto op = static_cast<ReduceOp>(o);
    std::vector<std::byte> sums[2][2];
    for (auto& of : sums) {
      of[0].resize(kCount * sizeof(float));
      of[1].resize(kCount * size_of(type));
    }
    void* to[2];
    ReduceArgs args;
    args.sources = sources;
    args.source_count = 4;
    args.destinations = to;
    args.destination_count = 2;
    args.count = kCount;
    args.divisor = op == ReduceOp::kAverage ? 4 : 0;
    args.wide_sources = wide_sources;
    args.wide_destinations = wide_destinations;
    for (int side = 0; side < 2; ++side) {
      to[0] = sums[side][0].data();
      to[1] = sums[side][1].data();
      if (side == 0) {
        fold_by_threads<Type>(op, args);
      } else {
        reduce_mixed_function(type, op)(args);
      }
    }
    INFO(name_of(op));
    require_same(DataType::kFloat32, sums[0][0], sums[1][0]);
    require_same(type, sums[0][1], sums[1][1]);
  }
}

}  // namespace

TEST_CASE("special values have the host's bits in every data type and operation", "[kernels][arithmetic]") {
#define TUTTI_DATA_TYPE(enumerator, name) compare<TypeOf<DataType::enumerator>::Type>(DataType::enumerator);
#include "cuda/data_types.def"
#undef TUTTI_DATA_TYPE
}

TEST_CASE("float32 among small floats", "[kernels][arithmetic]") {
  compare_wide<TypeOf<DataType::kFloat16>::Type>(DataType::kFloat16);
  compare_wide<TypeOf<DataType::kBfloat16>::Type>(DataType::kBfloat16);
  compare_wide<TypeOf<DataType::kFloat8e4m3>::Type>(DataType::kFloat8e4m3);
  compare_wide<TypeOf<DataType::kFloat8e5m2>::Type>(DataType::kFloat8e5m2);
}

TEST_CASE("a copy keeps every bit, and leaves a place alone that is copied to itself", "[kernels][arithmetic]") {
  const std::vector<std::byte> values = special_values(DataType::kFloat32, 777, 3);
  std::vector<std::byte> copy(values.size());
  const void* from = values.data();
  void* to[] = {const_cast<std::byte*>(values.data()), copy.data()};
  ReduceArgs args;
  args.sources = &from;
  args.source_count = 1;
  args.destinations = to;
  args.destination_count = 2;
  args.count = 777;
  fold_by_threads<TypeOf<DataType::kFloat32>::Type>(ReduceOp::kMax, args);
  REQUIRE(copy == values);
}

}  // namespace tutti::cuda
