#include "rank.h"

#include "check.h"
#include "deadline.h"
#include "measure.h"
#include "nccl_status.h"
#include "report_files.h"
#include "table.h"
#include "tune.h"

#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

namespace tutti::bench {
namespace {

constexpr Reduction kNoReduction{"none", ncclSum};

/// What each rank tells the others about a measurement.
struct Sample {
  Times times;
  std::int64_t wrong = 0;
  std::uint64_t wire_bytes = 0;
};

double averaged(const std::vector<Sample>& samples, double Times::*member, Average how) {
  double sum = 0, low = samples[0].times.*member, high = low;
  for (const Sample& sample : samples) {
    sum += sample.times.*member;
    low = std::min(low, sample.times.*member);
    high = std::max(high, sample.times.*member);
  }
  switch (how) {
    case Average::kRank0: return samples[0].times.*member;
    case Average::kMin: return low;
    case Average::kMax: return high;
    case Average::kMean: break;
  }
  return sum / static_cast<double>(samples.size());
}

class Rank {
 public:
  Rank(const Options& options, const Place& place)
      : options_(options), place_(place), table_(options.percentiles, place.ranks, place.how) {}
  ~Rank() {
    if (stream_) (void)destroy_stream();
    if (comm_) (void)ncclCommAbort(comm_);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  /// True if all values were right.
  Result<bool> run();

 private:
  Status choose_device();
  Status join();
  Status set_plan();
  Status destroy_stream();
  Status leave();
  Status sweep_all(Buffer& send, Buffer& receive);
  Status sweep(const Collective& collective, const ElementType& type, const Reduction& reduction, int root,
               Buffer& send, Buffer& receive);
  Status explain(const Call& call, const Collective& collective, std::size_t bytes) const;
  Result<Row> measure_size(const Collective& collective, const ElementType& type, const Reduction& reduction, Call call,
                           const Trial& trial);
  Result<Measurement> measure_form(const Collective& collective, Call call, const Trial& trial, bool in_place,
                                   std::size_t bytes);
  Result<std::int64_t> check_form(const Collective& collective, const Call& call, const Trial& trial,
                                  bool in_place) const;
  Result<std::uint64_t> count_wire_bytes(const Collective& collective, const Call& call) const;
  Result<std::vector<Sample>> exchange(const Sample& mine) const;
  Status write_files() const;
  bool leads() const { return place_.rank == 0; }
  void progress(const std::string& text) const;

  const Options& options_;
  const Place& place_;
  Table table_;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  const Gpu* gpu_ = nullptr;
  std::string device_ = "host";
  std::optional<Buffer> words_;  ///< on a GPU: for the barrier, and for what ranks tell each other
  std::vector<Row> rows_;
  int forms_ = ~0;  ///< in which the plan is right; without one, all
  bool all_right_ = true;
};

/// A line that the next one overwrites; for a person at a terminal only.
void Rank::progress(const std::string& text) const {
  static const bool watched = isatty(STDERR_FILENO) == 1;
  if (leads() && watched) std::fprintf(stderr, "\r\033[K%s", text.c_str());
}

Status Rank::choose_device() {
  if (!options_.on_gpu) return nccl(tuttiSetDevice(tuttiDeviceHost), "tuttiSetDevice");
  TUTTI_TRY_ASSIGN(gpu_, Gpu::open());
  const int number = place_.local_rank / options_.ranks_per_gpu % gpu_->count();
  TUTTI_TRY(gpu_->use(number));
  device_ = gpu_->name(number);
  return nccl(tuttiSetDevice(tuttiDeviceCuda), "tuttiSetDevice");
}

Status Rank::join() {
  TUTTI_TRY(choose_device());
  ncclResult_t code = ncclCommInitRank(&comm_, place_.ranks, place_.id, place_.rank);
  // NCCL_COMM_BLOCKING=0 makes the communicator non-blocking behind our back.
  while (code == ncclInProgress) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (const ncclResult_t query = ncclCommGetAsyncError(comm_, &code); query != ncclSuccess) code = query;
  }
  TUTTI_TRY(nccl(code, "ncclCommInitRank"));
  if (gpu_) {
    TUTTI_TRY_ASSIGN(void* const stream, gpu_->make_stream());
    stream_ = static_cast<cudaStream_t>(stream);
  } else if (options_.stream) {
    TUTTI_TRY(nccl(tuttiStreamCreate(&stream_), "tuttiStreamCreate"));
  }
  return options_.plan ? set_plan() : Status();
}

/// Every rank is refused for the same reason; one says so.
Status Rank::set_plan() {
  const PlanFile& plan = *options_.plan;
  Status set = nccl(tuttiCommSetSchedule(comm_, plan.text.c_str(), &forms_), fmt::format("--plan {}", plan.name));
  if (set.ok() && (forms_ & tuttiScheduleOutOfPlace) == 0) {
    set = error(Code::kInvalidUsage,
                fmt::format("--plan {}: not right out of place through slots, which the measurement needs", plan.name));
  }
  if (!set.ok()) return leads() ? std::move(set) : Status(error(Code::kInvalidUsage, ""));
  const auto proved = [&](int slots, int direct) {
    if ((forms_ & (slots | direct)) == 0) return "no";
    if ((forms_ & direct) == 0) return "through slots";
    return (forms_ & slots) == 0 ? "direct only" : "through slots and direct";
  };
  if (leads()) {
    std::printf("# Plan %s, proved: out of place %s; in place %s\n", plan.name.c_str(),
                proved(tuttiScheduleOutOfPlace, tuttiScheduleOutOfPlaceDirect),
                proved(tuttiScheduleInPlace, tuttiScheduleInPlaceDirect));
  }
  return {};
}

Status Rank::destroy_stream() {
  cudaStream_t const stream = std::exchange(stream_, nullptr);
  if (!gpu_) return nccl(tuttiStreamDestroy(stream), "tuttiStreamDestroy");
  gpu_->destroy_stream(stream);
  return {};
}

Status Rank::leave() {
  words_.reset();
  if (stream_) TUTTI_TRY(destroy_stream());
  return nccl(ncclCommDestroy(std::exchange(comm_, nullptr)), "ncclCommDestroy");
}

Result<bool> Rank::run() {
  TUTTI_TRY(join());
  {
    // Small sizes are rounded up to one element per rank.
    const std::size_t bytes =
        options_.explain ? 0
                         : std::max<std::size_t>(options_.sizes().back(), 8 * static_cast<std::size_t>(place_.ranks));
    const ncclComm_t registered_with = options_.registered ? comm_ : nullptr;
    TUTTI_TRY_ASSIGN(Buffer send, Buffer::make(bytes, options_.memory, registered_with, gpu_));
    TUTTI_TRY_ASSIGN(Buffer receive, Buffer::make(bytes, options_.memory, registered_with, gpu_));
    if (gpu_) {
      const std::size_t samples = sizeof(Sample) * (static_cast<std::size_t>(place_.ranks) + 1);
      TUTTI_TRY_ASSIGN(Buffer words, Buffer::make(samples, Buffer::Kind::kPrivate, nullptr, gpu_));
      words_.emplace(std::move(words));
    }
    TUTTI_TRY(sweep_all(send, receive));
  }
  if (leads() && !options_.explain) {
    table_.foot(rows_);
    TUTTI_TRY(write_files());
  }
  TUTTI_TRY(leave());
  return all_right_;
}

Status Rank::sweep_all(Buffer& send, Buffer& receive) {
  for (const Collective* collective : options_.collectives) {
    if (leads() && !options_.explain) table_.head(options_, collective->name, device_);
    const std::vector<const Reduction*> none{&kNoReduction};
    for (const ElementType* type : options_.types) {
      for (const Reduction* reduction : collective->reduces ? options_.reductions : none) {
        const int first = !collective->rooted ? -1 : std::max(options_.root, 0);
        const int last = collective->rooted && options_.root < 0 ? place_.ranks - 1 : first;
        for (int root = first; root <= last; ++root)
          TUTTI_TRY(sweep(*collective, *type, *reduction, root, send, receive));
      }
    }
  }
  return {};
}

Status Rank::sweep(const Collective& collective, const ElementType& type, const Reduction& reduction, int root,
                   Buffer& send, Buffer& receive) {
  Call call;
  call.type = type.type;
  call.op = reduction.op;
  call.root = std::max(root, 0);
  call.rank = place_.rank;
  call.ranks = place_.ranks;
  call.comm = comm_;
  call.stream = stream_;
  call.gpu = gpu_;
  if (words_) call.words = reinterpret_cast<std::int32_t*>(words_->address());
  const bool scaled = reduction.op == kScaledSum;
  if (scaled) {
    std::uint64_t scalar = bits_of(Reference::scale(place_.rank), type);
    TUTTI_TRY(nccl(ncclRedOpCreatePreMulSum(&call.op, &scalar, type.type, ncclScalarHostImmediate, comm_),
                   "ncclRedOpCreatePreMulSum"));
  }
  const Reference reference(collective, type, reduction, place_.ranks, call.root);
  const Trial trial(collective, type, reference, send, receive);
  const std::size_t blocks = collective.blocks(place_.ranks);
  for (const std::size_t size : options_.sizes()) {
    call.count = size == 0 ? 0 : std::max<std::size_t>(1, size / (static_cast<std::size_t>(type.bytes) * blocks));
    if (options_.explain) {
      TUTTI_TRY(explain(call, collective, call.count * static_cast<std::size_t>(type.bytes) * blocks));
      continue;
    }
    TUTTI_TRY_ASSIGN(Row row, measure_size(collective, type, reduction, call, trial));
    row.root = root;
    if (!leads()) continue;
    progress("");
    table_.row(row);
    rows_.push_back(std::move(row));
  }
  return scaled ? nccl(ncclRedOpDestroy(call.op, comm_), "ncclRedOpDestroy") : Status();
}

Status Rank::explain(const Call& call, const Collective& collective, std::size_t bytes) const {
  if (!leads()) return {};
  const int root = collective.plan == tuttiSend ? (call.rank + 1) % call.ranks : call.root;
  std::size_t needed = 0;
  TUTTI_TRY(nccl(tuttiExplain(comm_, collective.plan, call.count, call.type, call.op, root, nullptr, 0, &needed),
                 "tuttiExplain"));
  std::string text(needed, '\0');
  TUTTI_TRY(nccl(
      tuttiExplain(comm_, collective.plan, call.count, call.type, call.op, root, text.data(), text.size(), nullptr),
      "tuttiExplain"));
  std::printf("== %s, %zu bytes, %zu elements, %d ranks\n%s\n", collective.name, bytes, call.count, call.ranks,
              text.c_str());
  TUTTI_TRY(
      nccl(tuttiCommCertificate(comm_, collective.plan, call.count, call.type, call.op, root, nullptr, 0, &needed),
           "tuttiCommCertificate"));
  text.assign(needed, '\0');
  TUTTI_TRY(nccl(tuttiCommCertificate(comm_, collective.plan, call.count, call.type, call.op, root, text.data(),
                                      text.size(), nullptr),
                 "tuttiCommCertificate"));
  // As comments: what is printed is a schedule that --plan reads.
  std::istringstream lines(text.c_str());
  for (std::string line; std::getline(lines, line);) std::printf("# %s\n", line.c_str());
  std::printf("\n");
  return {};
}

Result<Row> Rank::measure_size(const Collective& collective, const ElementType& type, const Reduction& reduction,
                               Call call, const Trial& trial) {
  Row row;
  row.collective = collective.name;
  row.type = type.name;
  row.reduction = reduction.name;
  row.ranks = place_.ranks;
  row.device = device_;
  row.count = call.count;
  row.bytes = call.count * static_cast<std::size_t>(type.bytes) * collective.blocks(place_.ranks);
  const char* transport = "";
  TUTTI_TRY(nccl(tuttiCommTransport(comm_, &transport), "tuttiCommTransport"));
  row.transport = transport;
  row.wire_bound_bytes = collective.bus_factor(place_.ranks) * static_cast<double>(row.bytes);
  progress(fmt::format("{} {} {}, {} bytes ...", row.collective, row.type, row.reduction, row.bytes));
  TUTTI_TRY_ASSIGN(row.out_of_place, measure_form(collective, call, trial, false, row.bytes));
  if (collective.in_place && (forms_ & (tuttiScheduleInPlace | tuttiScheduleInPlaceDirect)) != 0) {
    TUTTI_TRY_ASSIGN(row.in_place, measure_form(collective, call, trial, true, row.bytes));
  }
  return row;
}

Result<Measurement> Rank::measure_form(const Collective& collective, Call call, const Trial& trial, bool in_place,
                                       std::size_t bytes) {
  trial.place(call, in_place);
  TUTTI_TRY(trial.fill(call, in_place));
  Sample mine;
  {
    const Deadline deadline(comm_, options_.timeout_s);
    Result<Times> times = measure(collective, call, options_, options_.percentiles || !options_.json_file.empty());
    if (deadline.passed()) {
      comm_ = nullptr;  // aborted, and gone with it
      return error(Code::kRemote,
                   fmt::format("{} of {} bytes took more than {} s (-T)", collective.name, bytes, options_.timeout_s));
    }
    if (!times.ok()) return std::move(times).error();
    mine.times = times.value();
  }
  TUTTI_TRY_ASSIGN(mine.wire_bytes, count_wire_bytes(collective, call));
  for (int n = 0; n < options_.check; ++n) {
    TUTTI_TRY_ASSIGN(const std::int64_t wrong, check_form(collective, call, trial, in_place));
    mine.wrong += wrong;
  }
  TUTTI_TRY_ASSIGN(const std::vector<Sample> samples, exchange(mine));

  Measurement result;
  result.time_us = averaged(samples, &Times::time_us, options_.average);
  result.p50_us = averaged(samples, &Times::p50_us, options_.average);
  result.p99_us = averaged(samples, &Times::p99_us, options_.average);
  if (result.time_us > 0) result.algbw_gbps = static_cast<double>(bytes) / result.time_us / 1000;
  result.busbw_gbps = result.algbw_gbps * collective.bus_factor(place_.ranks);
  std::uint64_t wire_bytes = 0;
  for (const Sample& sample : samples) wire_bytes += sample.wire_bytes;
  if (wire_bytes != 0) result.wire_bytes = wire_bytes / samples.size();
  if (options_.check > 0) {
    result.wrong = 0;
    for (const Sample& sample : samples) *result.wrong += sample.wrong;
    all_right_ = all_right_ && *result.wrong == 0 && mine.wrong == 0;
  }
  return result;
}

Result<std::int64_t> Rank::check_form(const Collective& collective, const Call& call, const Trial& trial,
                                      bool in_place) const {
  TUTTI_TRY(trial.fill(call, in_place));
  // Nobody may write into a buffer that its owner has yet to poison.
  TUTTI_TRY(barrier(call));
  TUTTI_TRY(run_and_wait(collective, call, 1));
  TUTTI_TRY_ASSIGN(const CheckResult result, trial.check(call, in_place));
  if (!result.first.empty())
    std::fprintf(stderr, "tutti-perf: rank %d: %s of %zu elements %s: %s\n", place_.rank, collective.name, call.count,
                 in_place ? "in place" : "out of place", result.first.c_str());
  return result.wrong_elements + result.damaged_guard_bytes;
}

/// Of one call more, on communicators over hosts; all ranks are, or none.
Result<std::uint64_t> Rank::count_wire_bytes(const Collective& collective, const Call& call) const {
  std::uint64_t before = 0;
  std::uint64_t after = 0;
  TUTTI_TRY(nccl(tuttiCommWireBytes(comm_, &before), "tuttiCommWireBytes"));
  if (before == 0) return before;
  TUTTI_TRY(run_and_wait(collective, call, 1));
  TUTTI_TRY(nccl(tuttiCommWireBytes(comm_, &after), "tuttiCommWireBytes"));
  return after - before;
}

Result<std::vector<Sample>> Rank::exchange(const Sample& mine) const {
  std::vector<Sample> all(static_cast<std::size_t>(place_.ranks));
  const void* from = &mine;
  void* to = all.data();
  if (gpu_) {
    from = words_->address();
    to = words_->address() + sizeof mine;
    TUTTI_TRY(gpu_->copy(words_->address(), &mine, sizeof mine));
  }
  TUTTI_TRY(nccl(ncclAllGather(from, to, sizeof mine, ncclInt8, comm_, stream_), "the exchange of times"));
  TUTTI_TRY(wait({.comm = comm_, .stream = stream_, .gpu = gpu_}));
  if (gpu_) TUTTI_TRY(gpu_->copy(all.data(), to, sizeof mine * all.size()));
  return all;
}

Status Rank::write_files() const {
  if (!options_.json_file.empty()) TUTTI_TRY(write_json(options_.json_file, rows_));
  if (options_.plot_file.empty()) return {};
  std::string title;
  for (const Collective* collective : options_.collectives)
    title += fmt::format("{}{}", title.empty() ? "" : ", ", collective->name);
  return write_plot(
      options_.plot_file, rows_,
      fmt::format("{}: {} ranks, {}, {} buffers{}", title, place_.ranks, place_.how,
                  options_.memory == Buffer::Kind::kShared ? "shared" : "private", gpu_ ? " on " + device_ : ""));
}

}  // namespace

int run_rank(const Options& options, const Place& place) {
  if (!options.tune_file.empty()) return tune_rank(options, place);
  const Result<bool> right = Rank(options, place).run();
  if (right.ok()) return right.value() ? 0 : 1;
  if (!right.error().message.empty())
    std::fprintf(stderr, "tutti-perf: rank %d: %s\n", place.rank, right.error().message.c_str());
  return 1;
}

}  // namespace tutti::bench
