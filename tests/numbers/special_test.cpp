// The table of special values in docs/numerics.md, one test a row, through the communicator: for every collective that the
// forced algorithm (NCCL_ALGO) serves, in calls that fit an announce line and in longer ones, the same on every rank.
// meson runs it for each algorithm and each instruction set (TUTTI_SIMD). All ranks in one thread.
#include "communicator_call.h"
#include "float_type.h"

#include "algorithm/algorithm.h"

#include <catch2/catch.hpp>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>

using namespace tutti;
using namespace tutti::numbers;
using tutti::test::Ranks;

namespace {

/// Bits of a float type's special values.
struct Special {
  const FloatType* type;
  std::uint64_t one, infinity, nan, smallest, largest, sign;
  bool has_infinity() const { return infinity != largest; }
};
constexpr const FloatType* type_of(int i) { return &kFloatTypes[i]; }
const Special kSpecials[] = {
    {type_of(0), 0x3f80, 0x7f80, 0x7fc1, 1, 0x7f7f, 0x8000},
    {type_of(1), 0x3c00, 0x7c00, 0x7e01, 1, 0x7bff, 0x8000},
    {type_of(2), 0x38, 0x7e, 0x7f, 1, 0x7e, 0x80},
    {type_of(3), 0x3c, 0x7c, 0x7d, 1, 0x7b, 0x80},
    {type_of(4), 0x3f800000, 0x7f800000, 0x7fc00001, 1, 0x7f7fffff, 0x80000000},
    {type_of(5), 0x3ff0000000000000, 0x7ff0000000000000, 0x7ff8000000000001, 1, 0x7fefffffffffffff, 0x8000000000000000},
};

/// A kind of call: what each rank puts in at element i, and what must come out there.
struct Case {
  const char* what = "";
  DataType type = DataType::kFloat32;
  ncclRedOp_t op = ncclSum;
  std::function<std::uint64_t(int rank, std::size_t i)> input;
  std::function<std::uint64_t(std::size_t i)> result;
  std::vector<std::uint64_t> factors{};                        ///< by rank: PreMulSum
  std::function<void(const std::function<void()>&)> around{};  ///< or empty: makes the call
};

std::uint64_t bits_at(const std::vector<std::byte>& buffer, std::size_t i, std::size_t bytes) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &buffer[i * bytes], bytes);
  return bits;
}

/// A NaN equals any NaN.
bool same(DataType type, std::uint64_t a, std::uint64_t b) {
  if (a == b) return true;
  for (const FloatType& f : kFloatTypes) {
    if (f.type == type) return std::isnan(decode(f, a)) && std::isnan(decode(f, b));
  }
  return false;
}

void run(const Ranks& ranks, const schedule::Request& request, const Case& c, std::size_t count) {
  const std::size_t bytes = size_of(c.type);
  const auto type = static_cast<ncclDataType_t>(c.type);
  Buffers inputs;
  for (int r = 0; r < ranks.count(); ++r) {
    // Every block has the same elements, so that all results are those of the case.
    std::vector<std::byte>& input = inputs.emplace_back(schedule::input_blocks(request, r) * count * bytes);
    for (std::size_t i = 0; i < input.size() / bytes; ++i) {
      const std::uint64_t bits = c.input(r, i % count);
      std::memcpy(&input[i * bytes], &bits, bytes);
    }
  }
  Buffers outputs;
  const auto call = [&] {
    outputs = c.factors.empty()
                  ? reduce(ranks, request, type, bytes, count, Operations(ranks, c.op), inputs)
                  : reduce(ranks, request, type, bytes, count, Operations(ranks, type, c.factors), inputs);
  };
  if (c.around) {
    c.around(call);
  } else {
    call();
  }
  for (std::size_t r = 0; r < outputs.size(); ++r) {
    for (std::size_t i = 0; i < outputs[r].size() / bytes; ++i) {
      const std::uint64_t got = bits_at(outputs[r], i, bytes), wanted = c.result(i % count);
      if (same(c.type, got, wanted)) continue;
      FAIL_CHECK(c.what << ": " << name_of(request.collective) << " of " << tutti::name_of(c.type) << ", "
                        << ranks.count() << " ranks, count " << count << ", rank " << r << " element " << i << ": got "
                        << std::hex << got << ", not " << wanted);
      return;
    }
  }
}

const Ranks& communicator(int ranks) {
  static std::map<int, std::unique_ptr<Ranks>> all;
  std::unique_ptr<Ranks>& found = all[ranks];
  if (!found) found = std::make_unique<Ranks>(ranks);
  return *found;
}

/// In every collective that the algorithm serves. The case depends on the number of ranks.
void check(const std::function<Case(int ranks)>& make) {
  const char* name = std::getenv("NCCL_ALGO");
  REQUIRE(name != nullptr);
  int served = 0;
  for (const int ranks : {2, 3, 5, 8}) {
    const Case c = make(ranks);
    for (const Collective collective : {Collective::kAllReduce, Collective::kReduceScatter, Collective::kReduce}) {
      const schedule::Request request{collective, ranks, is_rooted(collective) ? ranks - 1 : 0, 0};
      if (algorithm::find(name, request) == nullptr) continue;
      for (const std::size_t count : {std::size_t{2}, std::size_t{301}}) run(communicator(ranks), request, c, count);
      ++served;
    }
  }
  CHECK(served > 0);
}

/// At element i one rank has `special`, the others `other`: each in its turn.
auto one_of(int ranks, std::uint64_t special, std::uint64_t other) {
  return [=](int rank, std::size_t i) {
    return i % static_cast<std::size_t>(ranks) == static_cast<std::size_t>(rank) ? special : other;
  };
}
auto always(std::uint64_t bits) {
  return [=](std::size_t) { return bits; };
}

constexpr ncclRedOp_t kAllOps[] = {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg};

}  // namespace

TEST_CASE("a NaN at any rank makes the result a NaN, max and min included") {
  for (const Special& s : kSpecials) {
    for (const ncclRedOp_t op : kAllOps) {
      check([&](int n) { return Case{"NaN", s.type->type, op, one_of(n, s.nan, s.one), always(s.nan)}; });
    }
    check([&](int n) {
      return Case{
          "NaN in PreMulSum",      s.type->type,  ncclSum,
          one_of(n, s.nan, s.one), always(s.nan), std::vector<std::uint64_t>(static_cast<std::size_t>(n), s.one)};
    });
  }
}

TEST_CASE("infinities: they stay, and with each other's opposite or with zero they are NaN") {
  for (const Special& s : kSpecials) {
    if (!s.has_infinity()) continue;
    const DataType type = s.type->type;
    for (const ncclRedOp_t op : {ncclSum, ncclProd, ncclMax, ncclAvg}) {
      check([&](int n) { return Case{"infinity", type, op, one_of(n, s.infinity, s.one), always(s.infinity)}; });
    }
    check([&](int n) { return Case{"min with infinity", type, ncclMin, one_of(n, s.infinity, s.one), always(s.one)}; });
    const auto minus = s.infinity | s.sign;
    check([&](int n) { return Case{"min with -infinity", type, ncclMin, one_of(n, minus, s.one), always(minus)}; });
    check([&](int n) {
      return Case{"infinity - infinity", type, ncclSum, one_of(n, s.infinity, minus), always(s.nan)};
    });
    check([&](int n) { return Case{"infinity times 0", type, ncclProd, one_of(n, s.infinity, 0), always(s.nan)}; });
  }
}

TEST_CASE("minus zero: the sum of minus zeros only; less than plus zero") {
  for (const Special& s : kSpecials) {
    const DataType type = s.type->type;
    const std::uint64_t minus = s.sign;
    for (const ncclRedOp_t op : {ncclSum, ncclMax, ncclMin, ncclAvg}) {
      check([&](int n) { return Case{"only -0", type, op, one_of(n, minus, minus), always(minus)}; });
    }
    check([&](int n) { return Case{"-0 + 0", type, ncclSum, one_of(n, 0, minus), always(0)}; });
    check([&](int n) { return Case{"max(-0, 0)", type, ncclMax, one_of(n, 0, minus), always(0)}; });
    check([&](int n) { return Case{"min(-0, 0)", type, ncclMin, one_of(n, minus, 0), always(minus)}; });
    check([&](int n) { return Case{"-0 times 1", type, ncclProd, one_of(n, minus, s.one), always(minus)}; });
  }
}

TEST_CASE("denormals are numbers") {
  for (const Special& s : kSpecials) {
    const DataType type = s.type->type;
    check([&](int n) { return Case{"denormals", type, ncclSum, one_of(n, 1, 1), always(static_cast<unsigned>(n))}; });
    check([&](int n) { return Case{"denormal and zeros", type, ncclSum, one_of(n, 1, 0), always(1)}; });
    check([&](int n) { return Case{"max with a denormal", type, ncclMax, one_of(n, 1, 0), always(1)}; });
    check([&](int n) { return Case{"denormal times 1", type, ncclProd, one_of(n, 3, s.one), always(3)}; });
    check([&](int n) { return Case{"average of denormals", type, ncclAvg, one_of(n, 2, 2), always(2)}; });
  }
}

#if defined(__x86_64__)
TEST_CASE("a caller's flush-to-zero mode and rounding change nothing, and stay as they were") {
  // Flush to zero, rounding towards zero, denormals are zeros; traps stay masked.
  constexpr unsigned kFast = 0xffc0, kModes = 0xffc0;
  for (const Special& s : kSpecials) {
    const DataType type = s.type->type;
    const auto n_smallest = [&](int n) {
      return Case{"denormals", type, ncclSum, one_of(n, 1, 1), always(static_cast<unsigned>(n))};
    };
    const auto third = [&](int n) {
      const double quotient = type == DataType::kFloat64 ? 2.0 / n : static_cast<double>(2.0F / static_cast<float>(n));
      return Case{"average", type, ncclAvg, one_of(n, encode(*s.type, 2), 0), always(encode(*s.type, quotient))};
    };
    for (const std::function<Case(int)>& make :
         {std::function<Case(int)>(n_smallest), std::function<Case(int)>(third)}) {
      check([&](int n) {
        // The expected number is made in the standard mode, the call in the other.
        Case c = make(n);
        c.around = [=](const std::function<void()>& call) {
          const unsigned before = _mm_getcsr();
          _mm_setcsr(kFast);
          call();
          const unsigned after = _mm_getcsr();
          _mm_setcsr(before);
          CHECK((after & kModes) == (kFast & kModes));
        };
        return c;
      });
    }
  }
}
#endif

TEST_CASE("too large: infinity, or the largest number in the 8-bit formats") {
  for (const Special& s : kSpecials) {
    const bool saturates = s.type->bytes == 1;
    const std::uint64_t wanted = saturates ? s.largest : s.infinity;
    check([&](int n) {
      return Case{"too large", s.type->type, ncclSum, one_of(n, s.largest, s.largest), always(wanted)};
    });
    check([&](int n) {
      return Case{"too small", s.type->type, ncclSum, one_of(n, s.largest | s.sign, s.largest | s.sign),
                  always(wanted | s.sign)};
    });
  }
}

TEST_CASE("averages of floats divide the sum, then round to nearest") {
  for (const Special& s : kSpecials) {
    for (const double sign : {1.0, -1.0}) {
      // One 1 among zeros: the sum is exact in any order.
      check([&](int n) {
        const std::uint64_t wanted =
            s.type->narrow() ? encode(*s.type, static_cast<double>(static_cast<float>(sign) / static_cast<float>(n)))
            : s.type->bytes == 4
                ? encode(*s.type, static_cast<double>(static_cast<float>(sign) / static_cast<float>(n)))
                : encode(*s.type, sign / n);
        return Case{"average", s.type->type, ncclAvg, one_of(n, encode(*s.type, sign), 0), always(wanted)};
      });
    }
  }
}

TEST_CASE("integers wrap") {
  for (const DataType type :
       {DataType::kInt8, DataType::kUint8, DataType::kInt32, DataType::kUint32, DataType::kInt64, DataType::kUint64}) {
    const int bits = 8 * static_cast<int>(size_of(type));
    const std::uint64_t mask = bits == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1;
    const bool is_signed = type == DataType::kInt8 || type == DataType::kInt32 || type == DataType::kInt64;
    const std::uint64_t most = is_signed ? mask >> 1 : mask;
    const auto n_of = [](int n) { return static_cast<std::uint64_t>(n); };
    check([&](int n) {
      return Case{"sum wraps", type, ncclSum, one_of(n, most, 1), always((most + n_of(n) - 1) & mask)};
    });
    check([&](int n) {
      std::uint64_t product = 1;
      for (int r = 0; r < n; ++r) product *= most - 2;
      return Case{"product wraps", type, ncclProd, one_of(n, most - 2, most - 2), always(product & mask)};
    });
    check([&](int n) { return Case{"max", type, ncclMax, one_of(n, mask, 1), always(is_signed ? 1 : mask)}; });
    check([&](int n) { return Case{"min", type, ncclMin, one_of(n, mask, 1), always(is_signed ? mask : 1)}; });
  }
}

TEST_CASE("averages of integers wrap first, then truncate towards zero") {
  // 1 more or less than a multiple of the ranks.
  check([](int n) { return Case{"positive", DataType::kInt32, ncclAvg, one_of(n, 6, 5), always(5)}; });
  check([](int n) {
    return Case{"negative", DataType::kInt32, ncclAvg,
                one_of(n, static_cast<std::uint32_t>(-6), static_cast<std::uint32_t>(-5)),
                always(static_cast<std::uint32_t>(-5))};
  });
  check([](int n) {
    return Case{"unsigned", DataType::kUint8, ncclAvg, one_of(n, 200, 200),
                always(static_cast<std::uint64_t>(200 * n % 256 / n))};
  });
  check([](int n) {
    const int wrapped = static_cast<std::int8_t>(static_cast<std::uint8_t>(100 * n));
    return Case{"signed", DataType::kInt8, ncclAvg, one_of(n, 100, 100),
                always(static_cast<std::uint8_t>(wrapped / n))};
  });
  check([](int n) {
    const std::uint64_t sum = (std::uint64_t{1} << 63) * static_cast<std::uint64_t>(n);
    return Case{"64 bits", DataType::kUint64, ncclAvg, one_of(n, std::uint64_t{1} << 63, std::uint64_t{1} << 63),
                always(sum / static_cast<std::uint64_t>(n))};
  });
}

TEST_CASE("PreMulSum multiplies first and rounds to the data type") {
  const auto factors = [](int n, std::uint64_t bits) {
    return std::vector<std::uint64_t>(static_cast<std::size_t>(n), bits);
  };
  // (1 + 25/1024) (1 + 16/1024) = 1 + 41.39/1024: float16 has 1 + 41/1024.
  check([&](int n) {
    return Case{"float16", DataType::kFloat16, ncclSum, one_of(n, 0x3c19, 0), always(0x3c29), factors(n, 0x3c10)};
  });
  check([&](int n) {
    // 2 (3) modulo 2^8 at each rank, then the sum.
    return Case{"uint8",
                DataType::kUint8,
                ncclSum,
                one_of(n, 200, 3),
                always(((400 & 255) + 6 * (static_cast<unsigned>(n) - 1)) & 255),
                factors(n, 2)};
  });
  for (const Special& s : kSpecials) {
    const DataType type = s.type->type;
    check([&](int n) {
      return Case{"by -1", type, ncclSum, one_of(n, s.one, 0), always(s.one | s.sign), factors(n, s.one | s.sign)};
    });
    check([&](int n) { return Case{"by NaN", type, ncclSum, one_of(n, s.one, 0), always(s.nan), factors(n, s.nan)}; });
    if (!s.has_infinity()) continue;
    check([&](int n) {
      return Case{"infinity by 0", type, ncclSum, one_of(n, s.infinity, s.one), always(s.nan), factors(n, 0)};
    });
  }
}

TEST_CASE("max and min keep the bits of what they choose") {
  for (const Special& s : kSpecials) {
    check([&](int n) { return Case{"max", s.type->type, ncclMax, one_of(n, s.largest, s.one), always(s.largest)}; });
    check([&](int n) {
      return Case{"min", s.type->type, ncclMin, one_of(n, s.largest | s.sign, s.one), always(s.largest | s.sign)};
    });
  }
}
