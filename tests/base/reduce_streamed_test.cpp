// Destinations that are written past the caches: the same bits as without, whatever the alignment, and nothing outside.
#include "base/reduce_variants.h"
#include "reduce_reference.h"
#include "turn.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

using namespace tutti;

namespace {

constexpr std::uint64_t kSeed = 11;
constexpr unsigned char kPoison = 0xa5;
constexpr std::size_t kVector = 64;  // the largest
constexpr std::size_t kAround = 256;

/// Memory whose begin is `misalignment` bytes behind a vector's boundary, with poison around it.
class Area {
 public:
  Area(std::size_t bytes, std::size_t misalignment) : bytes_(bytes), memory_(bytes + 2 * kAround + kVector, kPoison) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    begin_ = kAround + (kVector - address % kVector) % kVector + misalignment;
  }
  unsigned char* begin() { return memory_.data() + begin_; }
  void fill(std::mt19937_64& random) {
    for (std::size_t i = 0; i < bytes_; ++i) begin()[i] = static_cast<unsigned char>(random() >> 20);
  }
  /// The index of the first byte outside that was written, or the size.
  std::size_t first_written_outside() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if ((i < begin_ || i >= begin_ + bytes_) && memory_[i] != kPoison) return i;
    }
    return memory_.size();
  }
  std::size_t size() const { return memory_.size(); }

 private:
  std::size_t bytes_;
  std::vector<unsigned char> memory_;
  std::size_t begin_ = 0;
};

struct Shape {
  int sources;
  int destinations;
  std::size_t count;
  /// How far the destinations start behind a boundary; the last one is for all others.
  std::vector<std::size_t> misalignments;
  bool in_place = false;  ///< the last destination is the first source
};

/// Whether the elements have the same bits, any NaN for any NaN: which of two a sum takes is the compiler's choice.
bool same(DataType type, const unsigned char* a, const unsigned char* b, std::size_t bytes) {
  const reference::Functions functions = reference::functions_of(type);
  for (std::size_t i = 0; i < bytes; i += size_of(type)) {
    if (!functions.same(a + i, b + i)) return false;
  }
  return true;
}

/// Runs one shape with each possible number of streamed destinations, and compares with none.
void check(const Shape& shape, DataType type, ReduceOp op, ReduceVariant variant) {
  std::mt19937_64 random(kSeed);
  const std::size_t bytes = shape.count * size_of(type);
  std::vector<unsigned char> expected(bytes + 1);  // never null
  for (int streamed = 0; streamed <= shape.destinations; ++streamed) {
    random.seed(kSeed);
    std::vector<Area> sources, outputs;
    std::vector<const void*> source_pointers;
    std::vector<void*> output_pointers;
    for (int s = 0; s < shape.sources; ++s) {
      sources.emplace_back(bytes, static_cast<std::size_t>(s) * 5 % 16);
      sources.back().fill(random);
    }
    for (int d = 0; d < shape.destinations; ++d) {
      const std::size_t last = shape.misalignments.size() - 1;
      outputs.emplace_back(bytes, shape.misalignments[std::min(static_cast<std::size_t>(d), last)]);
    }
    for (Area& source : sources) source_pointers.push_back(source.begin());
    for (Area& output : outputs) output_pointers.push_back(output.begin());
    if (shape.in_place) output_pointers.back() = sources[0].begin();
    ReduceArgs args;
    args.sources = source_pointers.data();
    args.source_count = shape.sources;
    args.destinations = output_pointers.data();
    args.destination_count = shape.destinations;
    args.count = shape.count;
    args.streamed_count = streamed;
    reduce_function_of(variant, type, op)(args);
    INFO(name_of(variant) << " " << name_of(type) << " " << name_of(op) << " sources " << shape.sources << " count "
                          << shape.count << " first misalignment " << shape.misalignments[0] << " streamed " << streamed
                          << " of " << shape.destinations << " in place " << shape.in_place);
    if (streamed == 0) std::memcpy(expected.data(), output_pointers[0], bytes);
    for (int d = 0; d < shape.destinations; ++d) {
      INFO("destination " << d);
      if (!same(type, static_cast<unsigned char*>(output_pointers[d]), expected.data(), bytes)) {
        FAIL("other bits than without streams");
      }
    }
    for (const Area& area : outputs) REQUIRE(area.first_written_outside() == area.size());
    for (const Area& area : sources) REQUIRE(area.first_written_outside() == area.size());
  }
}

template <class Visit>
void for_each_usable(Visit visit) {
  for (int v = 0; v < kReduceVariants; ++v) {
    if (is_usable(static_cast<ReduceVariant>(v))) visit(static_cast<ReduceVariant>(v));
  }
}

}  // namespace

TEST_CASE("streamed destinations get the same bits, every data type and alignment", "[reduce][streamed]") {
  std::printf("reduce_streamed_test: seed %llu\n", static_cast<unsigned long long>(kSeed));
  // By turns (turn.h) one in a number that no loop's length has a factor of.
  std::size_t number = 0;
  for_each_usable([&number](ReduceVariant variant) {
    for (int t = 0; t < kDataTypes; ++t) {
      const auto type = static_cast<DataType>(t);
      for (const int sources : {1, 2, 3}) {
        for (const std::size_t count : {0, 1, 5, 16, 64, 777, 4099}) {
          for (const std::size_t misalignment : {0, 1, 8, 16, 32, 48, 63}) {
            for (const int destinations : {1, 2, 3}) {
              if (!test::has_its_turn(number++, 5)) continue;
              check({sources, destinations, count, {misalignment}}, type, ReduceOp::kSum, variant);
            }
          }
        }
      }
    }
  });
}

TEST_CASE("streamed destinations need not be aligned alike", "[reduce][streamed]") {
  for_each_usable([](ReduceVariant variant) {
    for (const DataType type : {DataType::kFloat32, DataType::kBfloat16, DataType::kInt8}) {
      for (const int sources : {1, 2}) {
        check({sources, 4, 3001, {0, 4, 32, 64}}, type, ReduceOp::kMax, variant);
        check({sources, 4, 3001, {20, 0, 52, 1}}, type, ReduceOp::kSum, variant);
        check({sources, 2, 3001, {2, 0}}, type, ReduceOp::kSum, variant);
      }
    }
  });
}

TEST_CASE("a streamed destination may be a source", "[reduce][streamed]") {
  for_each_usable([](ReduceVariant variant) {
    for (const DataType type : {DataType::kFloat32, DataType::kFloat16, DataType::kUint8}) {
      for (const int sources : {1, 2, 3}) {
        for (const int destinations : {1, 2, 3}) {
          check({sources, destinations, 2050, {0}, true}, type, ReduceOp::kSum, variant);
          check({sources, destinations, 2050, {12}, true}, type, ReduceOp::kSum, variant);
        }
      }
    }
  });
}

TEST_CASE("bytes are copied past the caches as memcpy copies them, whatever their alignment", "[reduce][streamed]") {
  std::mt19937_64 random(kSeed);
  std::vector<std::byte> source(70000);
  for (std::byte& b : source) b = static_cast<std::byte>(random());
  for (const std::size_t bytes : {0, 1, 63, 64, 2048, 5000, 65536}) {
    for (const std::size_t from : {0, 1, 40}) {
      for (const std::size_t to : {0, 1, 64}) {
        std::vector<std::byte> destination(70000, std::byte{0xee});
        copy_past_caches(destination.data() + to, source.data() + from, bytes);
        CAPTURE(bytes, from, to);
        CHECK(std::equal(source.begin() + from, source.begin() + from + bytes, destination.begin() + to));
        CHECK(std::all_of(destination.begin(), destination.begin() + to,
                          [](std::byte b) { return b == std::byte{0xee}; }));
        CHECK(std::all_of(destination.begin() + to + bytes, destination.end(),
                          [](std::byte b) { return b == std::byte{0xee}; }));
      }
    }
  }
}

TEST_CASE("a scaled and divided sum may be streamed", "[reduce][streamed]") {
  for_each_usable([](ReduceVariant variant) {
    std::mt19937_64 random(kSeed);
    std::vector<float> sources[2];
    for (auto& source : sources) {
      for (int i = 0; i < 1003; ++i) source.push_back(static_cast<float>(random() % 2001) - 1000);
    }
    const float factor = 0.75F;
    const void* const scales[] = {nullptr, &factor};
    const void* const source_pointers[] = {sources[0].data(), sources[1].data()};
    std::vector<float> outputs[2];
    for (int streamed = 0; streamed < 2; ++streamed) {
      outputs[streamed].assign(1003, -1);
      void* const to = outputs[streamed].data();
      ReduceArgs args;
      args.sources = source_pointers;
      args.source_count = 2;
      args.destinations = &to;
      args.destination_count = 1;
      args.count = 1003;
      args.scales = scales;
      args.divisor = 2;
      args.streamed_count = streamed;
      reduce_function_of(variant, DataType::kFloat32, ReduceOp::kSum)(args);
    }
    INFO(name_of(variant));
    for (std::size_t i = 0; i < 1003; ++i) REQUIRE(outputs[0][i] == (sources[0][i] + sources[1][i] * factor) / 2);
    CHECK(outputs[0] == outputs[1]);
  });
}
