#include "rank.h"

#include "check.h"
#include "deadline.h"
#include "explain.h"
#include "measure.h"
#include "nccl_status.h"
#include "report_files.h"
#include "table.h"
#include "tune.h"

#include <unistd.h>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

namespace tutti::bench {
namespace {

constexpr Reduction kNoReduction{"none", ncclSum};

/// Measured so often each where there are two libraries, one after the other.
constexpr int kTurns = 2;

/// What a rank has found of one library.
struct Finding {
  Times times;
  std::int64_t wrong = 0;
};

/// What each rank tells the others about a measurement.
struct Sample {
  bool prints_in_vain = false;        ///< rank 0, of which nobody reads what it prints
  std::array<Finding, 2> by_library;  ///< this one, and the one it is measured against
  std::uint64_t wire_bytes = 0;
};

double averaged(const std::vector<Sample>& samples, std::size_t library, double Times::*member, Average how) {
  const auto of = [&](const Sample& sample) { return sample.by_library[library].times.*member; };
  double sum = 0, low = of(samples[0]), high = low;
  for (const Sample& sample : samples) {
    sum += of(sample);
    low = std::min(low, of(sample));
    high = std::max(high, of(sample));
  }
  switch (how) {
    case Average::kRank0: return of(samples[0]);
    case Average::kMin: return low;
    case Average::kMax: return high;
    case Average::kMean: break;
  }
  return sum / static_cast<double>(samples.size());
}

constexpr std::size_t kMostExchanged = 256;  ///< bytes that a rank tells the others

class Rank {
 public:
  Rank(const Options& options, const Place& place)
      : options_(options), place_(place), table_(options.table_output(), options.percentiles, place.ranks, place.how) {}
  ~Rank() {
    if (stream_) (void)destroy_stream();
    if (other_comm_) (void)other_->ncclCommAbort(other_comm_);
    if (comm_) (void)ncclCommAbort(comm_);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  /// True if all values were right.
  Result<bool> run();

 private:
  Status choose_device();
  Status join();
  Status join_other();
  Status set_plan();
  Status destroy_stream();
  Status leave();
  Status sweep_all(Buffer& send, Buffer& receive);
  Status sweep(const Collective& collective, const ElementType& type, const Reduction& reduction, int root,
               Buffer& send, Buffer& receive);
  Status set_operation(Call& call, const ElementType& type) const;
  Result<Row> measure_size(const Collective& collective, const ElementType& type, const Reduction& reduction,
                           std::vector<Call>& calls, const Trial& trial);
  Result<Measurement> measure_form(const Collective& collective, std::vector<Call>& calls, const Trial& trial,
                                   bool in_place, std::size_t bytes);
  Status take_turn(const Collective& collective, const Call& call, const Trial& trial, bool in_place, std::size_t bytes,
                   Finding& mine);
  Measurement summary(const Collective& collective, const std::vector<Sample>& samples, std::size_t bytes) const;
  Result<std::int64_t> check_form(const Collective& collective, const Call& call, const Trial& trial,
                                  bool in_place) const;
  Result<bool> gpus_are_shared() const;
  Result<std::uint64_t> count_wire_bytes(const Collective& collective, const Call& call) const;
  /// What every rank tells, by rank.
  template <class T>
  Result<std::vector<T>> exchange(const T& mine) const;
  Status write_files() const;
  bool leads() const { return place_.rank == 0; }
  void progress(const std::string& text) const;

  const Options& options_;
  const Place& place_;
  Table table_;
  ncclComm_t comm_ = nullptr;
  std::optional<Library> other_;  ///< --against
  ncclComm_t other_comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  const Gpu* gpu_ = nullptr;
  std::string device_ = "host";
  Gpu::Seat seat_;
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
  seat_ = gpu_->seat(number);
  return nccl(tuttiSetDevice(tuttiDeviceCuda), "tuttiSetDevice");
}

Status Rank::join() {
  TUTTI_TRY(choose_device());
  TUTTI_TRY_ASSIGN(comm_, this_library().join(place_.id, place_.rank, place_.ranks));
  if (gpu_) {
    TUTTI_TRY_ASSIGN(void* const stream, gpu_->make_stream());
    stream_ = static_cast<cudaStream_t>(stream);
    const std::size_t samples = kMostExchanged * (static_cast<std::size_t>(place_.ranks) + 1);
    TUTTI_TRY_ASSIGN(Buffer words, Buffer::make(samples, Buffer::Kind::kPrivate, nullptr, gpu_));
    words_.emplace(std::move(words));
  } else if (options_.stream) {
    TUTTI_TRY(nccl(tuttiStreamCreate(&stream_), "tuttiStreamCreate"));
  }
  if (!options_.against.empty()) TUTTI_TRY(join_other());
  return options_.plan ? set_plan() : Status();
}

/// Whether any two ranks have the same GPU.
Result<bool> Rank::gpus_are_shared() const {
  TUTTI_TRY_ASSIGN(const std::vector<Gpu::Seat> seats, exchange(seat_));
  for (auto seat = seats.begin(); seat != seats.end(); ++seat)
    if (std::find(seat + 1, seats.end(), *seat) != seats.end()) return true;
  return false;
}

/// Rank 0 has an id made by the other library and hands it out by this one.
Status Rank::join_other() {
  TUTTI_TRY_ASSIGN(other_, open_other(options_.against));
  if (other_->set_device) {
    TUTTI_TRY(other_->status(other_->set_device(gpu_ ? tuttiDeviceCuda : tuttiDeviceHost), "tuttiSetDevice"));
  } else if (!gpu_) {
    return error(
        Code::kInvalidUsage,
        fmt::format("--against {}: it is no Tutti, and works on GPU memory only: --device cuda", other_->file));
  }
  // This library has read both by now. The address is its own; and NVIDIA's refuses ranks that share a GPU, unless it takes them for ranks
  // of different hosts.
  unsetenv("NCCL_COMM_ID");
  TUTTI_TRY_ASSIGN(const bool shared, gpus_are_shared());
  if (!other_->set_device && shared) setenv("NCCL_HOSTID", fmt::format("tutti-perf-{}", place_.rank).c_str(), 1);
  struct Invitation {
    ncclUniqueId id{};
    bool made = false;
  } mine;
  Status made;
  if (leads()) made = other_->status(other_->ncclGetUniqueId(&mine.id), "ncclGetUniqueId");
  mine.made = made.ok();
  TUTTI_TRY_ASSIGN(const std::vector<Invitation> all, exchange(mine));
  TUTTI_TRY(std::move(made));
  if (!all[0].made) return error(Code::kRemote, "");  // rank 0 says why
  TUTTI_TRY_ASSIGN(other_comm_, other_->join(all[0].id, place_.rank, place_.ranks));
  return {};
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
    std::fprintf(options_.table_output(), "# Plan %s, proved: out of place %s; in place %s\n", plan.name.c_str(),
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
  if (other_comm_)
    TUTTI_TRY(other_->status(other_->ncclCommDestroy(std::exchange(other_comm_, nullptr)), "ncclCommDestroy"));
  if (stream_) TUTTI_TRY(destroy_stream());
  return nccl(ncclCommDestroy(std::exchange(comm_, nullptr)), "ncclCommDestroy");
}

Result<bool> Rank::run() {
  TUTTI_TRY(join());
  {
    const std::size_t bytes = options_.explain ? 0 : options_.buffer_bytes(place_.ranks);
    const ncclComm_t registered_with = options_.registered ? comm_ : nullptr;
    TUTTI_TRY_ASSIGN(Buffer send, Buffer::make(bytes, options_.memory, registered_with, gpu_));
    TUTTI_TRY_ASSIGN(Buffer receive, Buffer::make(bytes, options_.memory, registered_with, gpu_));
    Status swept = sweep_all(send, receive);
    if (!swept.ok() && leads() && !options_.explain) (void)write_files();  // what is there
    if (!swept.ok() && place_.kept) {
      for (Buffer* buffer : {&send, &receive}) place_.kept->add(std::move(*buffer));
      if (words_) place_.kept->add(std::move(*words_));
    }
    TUTTI_TRY(std::move(swept));
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
  std::vector<Call> calls{call};
  if (other_) {
    calls.push_back(call);
    calls[1].library = &*other_;
    calls[1].comm = other_comm_;
  }
  const bool scaled = reduction.op == kScaledSum;
  for (Call& each : calls)
    if (scaled) TUTTI_TRY(set_operation(each, type));
  const Reference reference(collective, type, reduction, place_.ranks, call.root);
  const Trial trial(collective, type, reference, send, receive);
  const std::size_t blocks = collective.blocks(place_.ranks);
  for (const std::size_t size : options_.sizes()) {
    const std::size_t count =
        size == 0 ? 0 : std::max<std::size_t>(1, size / (static_cast<std::size_t>(type.bytes) * blocks));
    for (Call& each : calls) each.count = count;
    if (options_.explain) {
      if (leads()) TUTTI_TRY(print_plan(calls[0], collective, count * static_cast<std::size_t>(type.bytes) * blocks));
      continue;
    }
    TUTTI_TRY_ASSIGN(Row row, measure_size(collective, type, reduction, calls, trial));
    row.root = root;
    if (!leads()) continue;
    progress("");
    table_.row(row);
    rows_.push_back(std::move(row));
  }
  for (const Call& each : calls)
    if (scaled) TUTTI_TRY(each.library->status(each.library->ncclRedOpDestroy(each.op, each.comm), "ncclRedOpDestroy"));
  return {};
}

/// Each library has one of its own.
Status Rank::set_operation(Call& call, const ElementType& type) const {
  std::uint64_t scalar = bits_of(Reference::scale(place_.rank), type);
  return call.library->status(
      call.library->ncclRedOpCreatePreMulSum(&call.op, &scalar, type.type, ncclScalarHostImmediate, call.comm),
      "ncclRedOpCreatePreMulSum");
}

Result<Row> Rank::measure_size(const Collective& collective, const ElementType& type, const Reduction& reduction,
                               std::vector<Call>& calls, const Trial& trial) {
  Row row;
  row.collective = collective.name;
  row.type = type.name;
  row.reduction = reduction.name;
  row.ranks = place_.ranks;
  row.device = device_;
  row.count = calls[0].count;
  row.bytes = row.count * static_cast<std::size_t>(type.bytes) * collective.blocks(place_.ranks);
  const char* transport = "";
  TUTTI_TRY(nccl(tuttiCommTransport(comm_, &transport), "tuttiCommTransport"));
  row.transport = transport;
  row.iterations = options_.iterations_of(row.bytes);
  row.wire_bound_bytes = collective.wire_factor(place_.ranks) * static_cast<double>(row.bytes);
  progress(fmt::format("{} {} {}, {} bytes ...", row.collective, row.type, row.reduction, row.bytes));
  TUTTI_TRY_ASSIGN(row.out_of_place, measure_form(collective, calls, trial, false, row.bytes));
  if (collective.in_place && (forms_ & (tuttiScheduleInPlace | tuttiScheduleInPlaceDirect)) != 0) {
    TUTTI_TRY_ASSIGN(row.in_place, measure_form(collective, calls, trial, true, row.bytes));
  }
  return row;
}

Result<Measurement> Rank::measure_form(const Collective& collective, std::vector<Call>& calls, const Trial& trial,
                                       bool in_place, std::size_t bytes) {
  for (Call& call : calls) trial.place(call, in_place);
  Sample mine;
  const int turns = calls.size() > 1 ? kTurns : 1;
  for (int turn = 0; turn < turns; ++turn)
    for (std::size_t n = 0; n < calls.size(); ++n)
      TUTTI_TRY(take_turn(collective, calls[n], trial, in_place, bytes, mine.by_library[n]));
  for (Finding& finding : mine.by_library) {
    for (double* time : {&finding.times.time_us, &finding.times.p50_us, &finding.times.p99_us}) *time /= turns;
  }
  TUTTI_TRY_ASSIGN(mine.wire_bytes, count_wire_bytes(collective, calls[0]));
  for (std::size_t n = 0; n < calls.size(); ++n) {
    for (int check = 0; check < options_.check; ++check) {
      TUTTI_TRY_ASSIGN(const std::int64_t wrong, check_form(collective, calls[n], trial, in_place));
      mine.by_library[n].wrong += wrong;
    }
    all_right_ = all_right_ && mine.by_library[n].wrong == 0;
  }
  // Only where the table is all that is asked for: files are worth the rest of the run.
  const bool table_alone = options_.json_file.empty() && options_.plot_file.empty();
  mine.prints_in_vain = leads() && table_alone && std::ferror(stdout) != 0;
  TUTTI_TRY_ASSIGN(const std::vector<Sample> samples, exchange(mine));
  if (samples[0].prints_in_vain) return error(Code::kSuccess, "");  // rank 0 says why in the end; all else is well
  Measurement result = summary(collective, samples, bytes);
  all_right_ = all_right_ && result.wrong.value_or(0) == 0 && (!result.rival || result.rival->wrong.value_or(0) == 0);
  return result;
}

/// Adds what one turn takes to `mine`.
Status Rank::take_turn(const Collective& collective, const Call& call, const Trial& trial, bool in_place,
                       std::size_t bytes, Finding& mine) {
  TUTTI_TRY(trial.fill(call, in_place));
  Deadline deadline(*call.library, call.comm, options_.timeout_s);
  Result<Times> times =
      measure(collective, call, options_, bytes, options_.percentiles || !options_.json_file.empty(), deadline);
  if (deadline.passed()) {
    (other_ && call.comm == other_comm_ ? other_comm_ : comm_) = nullptr;  // aborted, and gone with it
    return error(Code::kRemote,
                 fmt::format("{} of {} bytes took more than {} s (-T){}{}", collective.name, bytes, options_.timeout_s,
                             call.library->file.empty() ? "" : " by ", call.library->file));
  }
  if (!times.ok()) return std::move(times).error();
  mine.times.time_us += times.value().time_us;
  mine.times.p50_us += times.value().p50_us;
  mine.times.p99_us += times.value().p99_us;
  return {};
}

Measurement Rank::summary(const Collective& collective, const std::vector<Sample>& samples, std::size_t bytes) const {
  Measurement result;
  const auto wrong_of = [&](std::size_t library) -> std::optional<std::int64_t> {
    if (options_.check == 0) return std::nullopt;
    std::int64_t wrong = 0;
    for (const Sample& sample : samples) wrong += sample.by_library[library].wrong;
    return wrong;
  };
  result.time_us = averaged(samples, 0, &Times::time_us, options_.average);
  result.p50_us = averaged(samples, 0, &Times::p50_us, options_.average);
  result.p99_us = averaged(samples, 0, &Times::p99_us, options_.average);
  if (result.time_us > 0) result.algbw_gbps = static_cast<double>(bytes) / result.time_us / 1000;
  result.busbw_gbps = result.algbw_gbps * collective.bus_factor(place_.ranks);
  std::uint64_t wire_bytes = 0;
  for (const Sample& sample : samples) wire_bytes += sample.wire_bytes;
  if (wire_bytes != 0) result.wire_bytes = wire_bytes / samples.size();
  result.wrong = wrong_of(0);
  if (other_) {
    Rival& rival = result.rival.emplace();
    rival.time_us = averaged(samples, 1, &Times::time_us, options_.average);
    if (result.time_us > 0) rival.ratio = rival.time_us / result.time_us;
    rival.wrong = wrong_of(1);
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
    std::fprintf(stderr, "tutti-perf: rank %d: %s of %zu elements %s%s: %s\n", place_.rank, collective.name, call.count,
                 in_place ? "in place" : "out of place",
                 call.library->file.empty() ? "" : (" by " + call.library->file).c_str(), result.first.c_str());
  return result.wrong_elements + result.damaged_guard_bytes;
}

/// Of one call more, on communicators over hosts; all ranks are, or none.
Result<std::uint64_t> Rank::count_wire_bytes(const Collective& collective, const Call& call) const {
  const char* transport = "";
  TUTTI_TRY(nccl(tuttiCommTransport(comm_, &transport), "tuttiCommTransport"));
  if (std::string_view(transport) == "local") return std::uint64_t{0};
  std::uint64_t before = 0;
  std::uint64_t after = 0;
  TUTTI_TRY(nccl(tuttiCommWireBytes(comm_, &before), "tuttiCommWireBytes"));
  TUTTI_TRY(run_and_wait(collective, call, 1));
  TUTTI_TRY(nccl(tuttiCommWireBytes(comm_, &after), "tuttiCommWireBytes"));
  return after - before;
}

template <class T>
Result<std::vector<T>> Rank::exchange(const T& mine) const {
  static_assert(sizeof mine <= kMostExchanged && std::is_trivially_copyable_v<T>);
  std::vector<T> all(static_cast<std::size_t>(place_.ranks));
  const void* from = &mine;
  void* to = all.data();
  if (gpu_) {
    from = words_->address();
    to = words_->address() + sizeof mine;
    TUTTI_TRY(gpu_->copy(words_->address(), &mine, sizeof mine));
  }
  TUTTI_TRY(nccl(ncclAllGather(from, to, sizeof mine, ncclInt8, comm_, stream_), "telling the other ranks"));
  TUTTI_TRY(wait({.comm = comm_, .stream = stream_, .gpu = gpu_}));
  if (gpu_) TUTTI_TRY(gpu_->copy(all.data(), to, sizeof mine * all.size()));
  return all;
}

Status Rank::write_files() const {
  if (!options_.json_file.empty()) TUTTI_TRY(write_json(options_.json_file, rows_));
  if (options_.plot_file.empty() || rows_.empty()) return {};
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
  if (right.error().code == Code::kSuccess) return 0;
  if (!right.error().message.empty())
    std::fprintf(stderr, "tutti-perf: rank %d: %s\n", place.rank, right.error().message.c_str());
  return 1;
}

}  // namespace tutti::bench
