// gpu-conformance: communicators of one process against the host's own sums, bit by bit (any NaN equals any NaN; rings and trees with floats
// that add up without rounding): every data type and
// operation, counts around every boundary, in place, unaligned, on one stream and on one each, eager and in graphs, in one thread and in
// one per rank; all ranks on one GPU, and on all that there are. NCCL_PROTO and NCCL_ALGO force ways through the kernels; the last line
// says how many cases took which. --quick: fewer counts; --facts: no cases, what GPU there is.
#include "base/reduce.h"
#include "gpu.h"
#include "results.h"
#include "tests/turn.h"

#include <fmt/format.h>
#include <nccl.h>
#include <tutti/tutti.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <thread>

namespace tutti::test {
namespace {

using Bytes = std::vector<std::byte>;

struct Case {
  int ranks;
  DataType type;
  int op;  ///< ncclRedOp_t, or kScaled
  std::size_t count;
  std::size_t offset;  ///< in elements, from where CUDA's allocations are aligned
  bool in_place;
  bool one_stream;
  bool graph;
  bool threads;
  int devices;
  bool lanes = false;  ///< sums in another order than that of ranks: floats are such that it makes no difference
};
constexpr int kScaled = 100;

std::string describe(const Case& c) {
  return fmt::format("{} ranks on {} GPUs, {} {}, count {}, offset {}{}{}{}{}", c.ranks, c.devices, name_of(c.type),
                     c.op == kScaled ? "premulsum" : name_of(static_cast<ReduceOp>(c.op)), c.count, c.offset,
                     c.in_place ? ", in place" : "", c.one_stream ? ", one stream" : "", c.graph ? ", in a graph" : "",
                     c.threads ? ", a thread per rank" : "");
}

/// Exponent and mantissa of a float; 0 bits: an integer.
struct Format {
  int exponent;
  int mantissa;
};
Format format_of(DataType type) {
  switch (type) {
    case DataType::kFloat16: return {5, 10};
    case DataType::kBfloat16: return {8, 7};
    case DataType::kFloat32: return {8, 23};
    case DataType::kFloat64: return {11, 52};
    case DataType::kFloat8e4m3: return {4, 3};
    case DataType::kFloat8e5m2: return {5, 2};
    default: return {0, 0};
  }
}
bool is_nan(std::uint64_t bits, DataType type) {
  const Format f = format_of(type);
  if (f.exponent == 0) return false;
  const std::uint64_t mantissa = bits & ((1ull << f.mantissa) - 1);
  const std::uint64_t exponent = bits >> f.mantissa & ((1ull << f.exponent) - 1);
  if (exponent != (1ull << f.exponent) - 1) return false;
  return type == DataType::kFloat8e4m3 ? mantissa == 7 : mantissa != 0;
}

/// The first element that differs, or -1.
std::ptrdiff_t first_difference(const Bytes& found, const Bytes& wanted, DataType type) {
  const std::size_t width = size_of(type);
  for (std::size_t i = 0; i * width < wanted.size(); ++i) {
    std::uint64_t a = 0;
    std::uint64_t b = 0;
    std::memcpy(&a, found.data() + i * width, width);
    std::memcpy(&b, wanted.data() + i * width, width);
    if (a != b && !(is_nan(a, type) && is_nan(b, type))) return static_cast<std::ptrdiff_t>(i);
  }
  return -1;
}

class Ranks {
 public:
  Ranks(int count, int device_count) : comms(static_cast<std::size_t>(count)) {
    for (int r = 0; r < count; ++r) devices.push_back(r % device_count);
    if (ncclCommInitAll(comms.data(), count, devices.data()) != ncclSuccess) {
      fmt::print("{}\n", ncclGetLastError(nullptr));
      std::exit(1);
    }
    for (int r = 0; r < count; ++r) {
      use(static_cast<std::size_t>(r));
      streams.push_back(Gpu::get().make_stream());
    }
  }
  ~Ranks() {
    for (ncclComm_t comm : comms) ncclCommDestroy(comm);
    for (CUstream stream : streams) Gpu::get().destroy(stream);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  /// Makes the rank's GPU the current one.
  void use(std::size_t rank) const { Gpu::get().use(devices[rank]); }
  std::vector<ncclComm_t> comms;
  std::vector<CUstream> streams;
  std::vector<int> devices;
};

class Run {
 public:
  Run(const Case& c, const Ranks& ranks, std::uint64_t seed) : c_(c), ranks_(ranks), random_(seed) {}

  /// What is wrong; empty: nothing.
  std::string operator()() {
    const std::size_t bytes = (c_.count + c_.offset) * size_of(c_.type) + kGuard;
    for (int r = 0; r < c_.ranks; ++r) {
      Bytes random(bytes);
      for (std::size_t i = 0; i < bytes; i += sizeof(std::uint64_t)) {
        const std::uint64_t word = random_();
        std::memcpy(random.data() + i, &word, std::min(sizeof word, bytes - i));
      }
      if (c_.lanes && format_of(c_.type).exponent != 0) make_exact(random, r);
      inputs_.push_back(random);
      ranks_.use(static_cast<std::size_t>(r));
      in_.push_back(std::make_unique<OnGpu<std::byte>>(random));
      out_.push_back(std::make_unique<OnGpu<std::byte>>(Bytes(bytes, std::byte{0x5a})));
      scales_.push_back(scale_of(r));
    }
    if (const std::string problem = make_ops(); !problem.empty()) return problem;
    std::string problem = c_.graph ? replay() : c_.threads ? in_threads() : eager();
    for (CUstream stream : ranks_.streams) Gpu::get().wait(stream);
    for (std::size_t r = 0; r < ops_.size() && c_.op == kScaled; ++r) ncclRedOpDestroy(ops_[r], ranks_.comms[r]);
    return problem.empty() ? check() : problem;
  }

 private:
  static constexpr std::size_t kGuard = 64;

  std::uint64_t scale_of(int rank) const {
    if (c_.type == DataType::kFloat32) {
      const float value = 0.25f * static_cast<float>(rank + 1);
      std::uint64_t bits = 0;
      std::memcpy(&bits, &value, sizeof value);
      return bits;
    }
    if (c_.type == DataType::kBfloat16) return rank % 2 == 0 ? 0x3f80 : 0x4040;  // 1 and 3
    return static_cast<std::uint64_t>(rank + 1);
  }
  /// 0 or 1, so that no sum of 8 is rounded, or 1 and 2 for products; with factors, which small floats have no room for, only one rank has an
  /// element that is not 0.
  void make_exact(Bytes& bytes, int rank) {
    const Format f = format_of(c_.type);
    const std::size_t width = size_of(c_.type);
    const std::uint64_t one = ((1ull << (f.exponent - 1)) - 1) << f.mantissa;
    const std::uint64_t two = one + (1ull << f.mantissa);
    for (std::size_t i = 0; (i + 1) * width <= bytes.size(); ++i) {
      const bool bit = (random_() & 1) != 0;
      std::uint64_t element = bit ? one : 0;
      if (c_.op == ncclProd) element = bit ? two : one;
      if (c_.op == kScaled && static_cast<int>(i % static_cast<std::size_t>(c_.ranks)) != rank) element = 0;
      std::memcpy(bytes.data() + i * width, &element, width);
    }
  }
  std::string make_ops() {
    for (int r = 0; r < c_.ranks; ++r) {
      ncclRedOp_t op = static_cast<ncclRedOp_t>(c_.op);
      if (c_.op == kScaled &&
          ncclRedOpCreatePreMulSum(&op, &scales_[static_cast<std::size_t>(r)], static_cast<ncclDataType_t>(c_.type),
                                   ncclScalarHostImmediate, ranks_.comms[static_cast<std::size_t>(r)]) != ncclSuccess) {
        return ncclGetLastError(nullptr);
      }
      ops_.push_back(op);
    }
    return "";
  }
  CUstream stream(std::size_t r) const { return ranks_.streams[c_.one_stream ? 0 : r]; }
  ncclResult_t call(std::size_t r) const {
    const std::size_t at = c_.offset * size_of(c_.type);
    std::byte* const from = in_[r]->data() + at;
    std::byte* const to = c_.in_place ? from : out_[r]->data() + at;
    return ncclAllReduce(from, to, c_.count, static_cast<ncclDataType_t>(c_.type), ops_[r], ranks_.comms[r], stream(r));
  }
  std::string eager() const {
    ncclGroupStart();
    for (std::size_t r = 0; r < in_.size(); ++r) (void)call(r);
    return ncclGroupEnd() == ncclSuccess ? "" : ncclGetLastError(nullptr);
  }
  std::string in_threads() const {
    std::vector<std::string> problems(in_.size());
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < in_.size(); ++r) {
      threads.emplace_back([&, r] {
        ranks_.use(r);
        if (call(r) != ncclSuccess) problems[r] = ncclGetLastError(nullptr);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& problem : problems) {
      if (!problem.empty()) return problem;
    }
    return "";
  }
  std::string replay() const {
    const Gpu& gpu = Gpu::get();
    gpu.begin_capture(stream(0));
    ranks_.use(0);
    for (std::size_t r = 1; r < in_.size() && !c_.one_stream; ++r) gpu.order(stream(0), stream(r));
    const std::string problem = eager();
    for (std::size_t r = 1; r < in_.size() && !c_.one_stream; ++r) {
      ranks_.use(r);
      gpu.order(stream(r), stream(0));
    }
    ranks_.use(0);
    CUgraph graph = gpu.end_capture(stream(0));
    if (!graph) return problem.empty() ? "the capture was spoilt" : problem;
    CUgraphExec executable = gpu.make_executable(graph);
    gpu.destroy(graph);
    for (int i = 0; i < 3; ++i) {
      // In place the inputs are gone after the first.
      for (std::size_t r = 0; r < in_.size(); ++r) in_[r]->write(inputs_[r]);
      gpu.launch(executable, stream(0));
      gpu.wait(stream(0));
    }
    gpu.destroy(executable);
    return problem;
  }

  Bytes expected() const {
    const std::size_t at = c_.offset * size_of(c_.type);
    Bytes sum(c_.count * size_of(c_.type));
    std::vector<const void*> sources;
    std::vector<const void*> factors;
    for (std::size_t r = 0; r < inputs_.size(); ++r) {
      sources.push_back(inputs_[r].data() + at);
      factors.push_back(&scales_[r]);
    }
    void* destination = sum.data();
    ReduceArgs args;
    args.sources = sources.data();
    args.source_count = c_.ranks;
    args.destinations = &destination;
    args.destination_count = 1;
    args.count = c_.count;
    const auto op = c_.op == kScaled || c_.op == ncclAvg ? ReduceOp::kSum : static_cast<ReduceOp>(c_.op);
    args.scales = c_.op == kScaled ? factors.data() : nullptr;
    args.divisor = c_.op == ncclAvg ? c_.ranks : 0;
    reduce_function(c_.type, op)(args);
    return sum;
  }
  std::string check() const {
    const std::size_t at = c_.offset * size_of(c_.type);
    const Bytes wanted = expected();
    for (std::size_t r = 0; r < in_.size(); ++r) {
      const Bytes all = (c_.in_place ? in_ : out_)[r]->read();
      const Bytes found(all.begin() + static_cast<std::ptrdiff_t>(at),
                        all.begin() + static_cast<std::ptrdiff_t>(at + wanted.size()));
      if (const auto i = first_difference(found, wanted, c_.type); i >= 0) {
        return fmt::format("rank {} is wrong from element {} on", r, i);
      }
      for (std::size_t i = 0; i < all.size(); ++i) {
        const bool outside = i < at || i >= at + wanted.size();
        const std::byte before = c_.in_place ? inputs_[r][i] : std::byte{0x5a};
        if (outside && all[i] != before) return fmt::format("rank {} wrote byte {}, outside its buffer", r, i);
      }
      if (!c_.in_place && in_[r]->read() != inputs_[r]) return fmt::format("rank {}'s input was changed", r);
    }
    return "";
  }

  const Case c_;
  const Ranks& ranks_;
  std::mt19937_64 random_;
  std::vector<Bytes> inputs_;
  std::vector<std::uint64_t> scales_;
  std::vector<std::unique_ptr<OnGpu<std::byte>>> in_;
  std::vector<std::unique_ptr<OnGpu<std::byte>>> out_;
  std::vector<ncclRedOp_t> ops_;
};

/// How kernels do the case: the word after "path: ".
std::string path_of(const Case& c, const Ranks& ranks) {
  char text[8192] = {};
  const auto op = c.op == kScaled ? ncclSum : static_cast<ncclRedOp_t>(c.op);
  if (tuttiExplain(ranks.comms[0], tuttiAllReduce, c.count, static_cast<ncclDataType_t>(c.type), op, 0, text,
                   sizeof text, nullptr) != ncclSuccess) {
    return ncclGetLastError(nullptr);
  }
  const std::string all = text;
  const std::size_t begin = all.find("path: ");
  return begin == std::string::npos ? "unknown" : all.substr(begin + 6, all.find(':', begin + 6) - begin - 6);
}

std::vector<Case> cases(bool quick, int devices) {
  std::vector<Case> all;
  std::size_t number = 0;
  const std::vector<std::size_t> counts =
      quick ? std::vector<std::size_t>{0, 1, 33, 4099}
            : std::vector<std::size_t>{0, 1, 2, 7, 16, 31, 33, 1000, 4099, 65536, 1000003};
  for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8}) {
    const bool common = ranks == 2 || ranks == 4 || ranks == 8;
    for (int type = 0; type < kDataTypes; ++type) {
      for (const int op : {0, 1, 2, 3, 4, kScaled}) {
        for (const std::size_t count : counts) {
          if (quick && count == 33 && ranks == 8) continue;
          if (!common && count != 1 && count != 4099) continue;
          // By turns (turn.h) one in a number that no loop's length has a factor of.
          if (!has_its_turn(number++, 5)) continue;
          const unsigned mix = static_cast<unsigned>(ranks + type + op) + static_cast<unsigned>(count);
          // Each shape often enough, not each with each.
          const bool spread = devices > 1 && mix / 2 % 2 == 0;
          all.push_back({ranks, static_cast<DataType>(type), op, count, mix % 3 == 0 ? 1u : 0u, mix % 2 == 0,
                         mix % 5 == 0 && !spread, mix % 4 == 1, mix % 4 == 3, spread ? devices : 1});
        }
      }
    }
  }
  return all;
}

int run(bool quick, bool facts, const Results& results) {
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  setenv("TUTTI_DEVICE", "cuda", 1);
  if (const std::string reason = Gpu::why_not(); !reason.empty()) {
    fmt::print("skipped: {}\n", reason);
    return 77;
  }
  if (facts) {
    fmt::print("{{{}}}\n", results.place());
    return 0;
  }
  int done = 0;
  int failed = 0;
  std::map<std::pair<int, int>, std::unique_ptr<Ranks>> crews;
  std::map<std::string, int> paths;
  std::vector<Case> all = cases(quick, Gpu::get().devices());
  for (Case& c : all) {
    auto& crew = crews[{c.ranks, c.devices}];
    if (!crew) crew = std::make_unique<Ranks>(c.ranks, c.devices);
    const std::string path = path_of(c, *crew);
    ++paths[path];
    c.lanes = path == "lanes" && !c.graph;
    const auto seed = static_cast<std::uint64_t>(++done);
    const std::string problem = Run(c, *crew, seed)();
    if (problem.empty()) continue;
    if (++failed > 10) continue;
    fmt::print("FAILED {} (seed {}): {}\n", describe(c), seed, problem);
    std::fflush(stdout);
    results.add(fmt::format(R"("conformance":{},"seed":{},"problem":{})", quoted(describe(c)), seed, quoted(problem)));
  }
  std::string by_path;
  for (const auto& [path, count] : paths) by_path += fmt::format("{}{} {}", by_path.empty() ? "" : ", ", path, count);
  fmt::print("gpu-conformance on {}: {} cases ({}), {} failed\n", Gpu::get().name(), done, by_path, failed);
  results.add(fmt::format(R"("conformance":"{}","cases":{},"paths":"{}","failed":{})", quick ? "quick" : "all", done,
                          by_path, failed));
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tutti::test

int main(int argc, char** argv) {
  bool quick = false;
  bool facts = false;
  tutti::test::Results results;
  for (int i = 1; i < argc; ++i) {
    if (results.takes(argc, argv, i)) continue;
    const std::string_view word = argv[i];
    if (word != "--quick" && word != "--facts") {
      fmt::print(stderr, "usage: gpu-conformance [--quick] [--facts] {}\n", tutti::test::Results::kUsage);
      return 2;
    }
    (word == "--quick" ? quick : facts) = true;
  }
  return tutti::test::run(quick, facts, results);
}
