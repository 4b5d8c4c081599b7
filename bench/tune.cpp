#include "tune.h"

#include "base/elapsed.h"
#include "base/standard_output.h"
#include "check.h"
#include "measure.h"
#include "median.h"
#include "nccl_status.h"
#include "tuned.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tutti::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRoundsMin = 3;
constexpr int kRoundsMax = 15;
constexpr double kSampleUs = 1000;   ///< a sample is as many calls as fit
constexpr double kHopelessBy = 1.5;  ///< such a candidate is not tried again after the first round

std::string processor_name() {
  std::ifstream facts("/proc/cpuinfo");
  for (std::string line; std::getline(facts, line);) {
    if (line.rfind("model name", 0) == 0 && line.find(": ") != std::string::npos)
      return line.substr(line.find(": ") + 2);
  }
  return "an unnamed processor";
}

std::string today() {
  char text[16] = {};
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  if (localtime_r(&now, &parts)) (void)std::strftime(text, sizeof text, "%Y-%m-%d", &parts);
  return text;
}

/// One call that is measured in all ways that there are.
struct Case {
  const Collective* collective = nullptr;
  bool in_place = false;
  std::size_t bytes = 0;
};

/// What rank 0 wants of all: a sample of so many calls of a candidate; none: the case is done.
struct Order {
  std::int32_t candidate = -1;
  std::int32_t calls = 0;
};

class Tuner {
 public:
  Tuner(const Options& options, const Place& place) : options_(options), place_(place) {}
  ~Tuner() {
    if (comm_) (void)ncclCommAbort(comm_);
  }
  Tuner(const Tuner&) = delete;
  Tuner& operator=(const Tuner&) = delete;

  Status run();

 private:
  Status join();
  std::vector<Case> cases() const;
  Status tune_memory(Buffer::Kind memory, double share);
  Status tune_case(const Case& which, Call call, double limit_s);
  Status lead_case(const Case& which, const Call& call, const std::vector<CandidateRule>& rules, double limit_s);
  Status follow_case(const Case& which, const Call& call, const std::vector<CandidateRule>& rules);
  Result<std::vector<CandidateRule>> candidates(const Case& which, const Call& call);
  Result<double> sample(const Case& which, const Call& call, const CandidateRule& rule, int calls);
  Status tell(void* what, std::size_t bytes) const;
  bool is_known(const CandidateRule& first) const;
  void keep(const CandidateRule& first, TunedSize size);
  Status write() const;
  bool leads() const { return place_.rank == 0; }
  void progress(const std::string& text) const;

  const Options& options_;
  const Place& place_;
  ncclComm_t comm_ = nullptr;
  Clock::time_point start_ = Clock::now();
  double budget_s_ = 0;
  std::set<std::pair<std::string, std::string>> left_out_;  ///< keys and sizes for which there was no time
  std::vector<TunedCalls> found_;
  std::string last_key_;
};

/// For a terminal a line that the next one overwrites; else a line for each kind of call.
void Tuner::progress(const std::string& text) const {
  static const bool watched = isatty(STDERR_FILENO) == 1;
  if (leads()) std::fprintf(stderr, watched ? "\r\033[K%s" : "%s\n", text.c_str());
}

Status Tuner::join() {
  TUTTI_TRY(nccl(tuttiSetDevice(tuttiDeviceHost), "tuttiSetDevice"));
  ncclResult_t code = ncclCommInitRank(&comm_, place_.ranks, place_.id, place_.rank);
  while (code == ncclInProgress) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (const ncclResult_t query = ncclCommGetAsyncError(comm_, &code); query != ncclSuccess) code = query;
  }
  return nccl(code, "ncclCommInitRank");
}

/// Rank 0's bytes, at every rank.
Status Tuner::tell(void* what, std::size_t bytes) const {
  return nccl(ncclBroadcast(what, what, bytes, ncclInt8, 0, comm_, nullptr), "agreeing on what to measure");
}

std::vector<Case> Tuner::cases() const {
  std::vector<Case> all;
  for (const Collective* collective : options_.collectives) {
    for (const bool in_place : {false, true}) {
      if (in_place && !collective->in_place) continue;
      for (const std::size_t bytes : options_.sizes()) all.push_back({collective, in_place, bytes});
    }
  }
  return all;
}

Status Tuner::run() {
  TUTTI_TRY(join());
  start_ = Clock::now();
  budget_s_ = options_.tune_minutes * 60;
  // Threads reach each other's buffers whatever they are made of.
  if (options_.threads) {
    TUTTI_TRY(tune_memory(Buffer::Kind::kPrivate, 1));
  } else {
    TUTTI_TRY(tune_memory(Buffer::Kind::kPrivate, 0.5));
    TUTTI_TRY(tune_memory(Buffer::Kind::kShared, 1));
  }
  if (leads()) TUTTI_TRY(write());
  return nccl(ncclCommDestroy(std::exchange(comm_, nullptr)), "ncclCommDestroy");
}

/// `share`: of the time that is left.
Status Tuner::tune_memory(Buffer::Kind memory, double share) {
  const double end_s = seconds_since(start_) + share * (budget_s_ - seconds_since(start_));
  const std::size_t bytes = options_.buffer_bytes(place_.ranks);
  TUTTI_TRY_ASSIGN(Buffer send, Buffer::make(bytes, memory, nullptr, nullptr));
  TUTTI_TRY_ASSIGN(Buffer receive, Buffer::make(bytes, memory, nullptr, nullptr));
  const ElementType& type = *options_.types.front();
  const std::vector<Case> all = cases();
  for (std::size_t n = 0; n < all.size(); ++n) {
    const Case& which = all[n];
    Call call;
    call.type = type.type;
    call.op = options_.reductions.front()->op;
    call.rank = place_.rank;
    call.ranks = place_.ranks;
    call.comm = comm_;
    const std::size_t unit = static_cast<std::size_t>(type.bytes) * which.collective->blocks(place_.ranks);
    call.count = std::max<std::size_t>(1, which.bytes / unit);
    const Reference reference(*which.collective, type, *options_.reductions.front(), place_.ranks, 0);
    Trial(*which.collective, type, reference, send, receive).place(call, which.in_place);
    const double limit_s = (end_s - seconds_since(start_)) / static_cast<double>(all.size() - n);
    Status tuned = tune_case(which, call, limit_s);
    if (tuned.ok()) continue;
    if (place_.kept) {
      for (Buffer* buffer : {&send, &receive}) place_.kept->add(std::move(*buffer));
    }
    return tuned;
  }
  return {};
}

/// Rank 0's view counts: in a rooted collective only the root knows whether it works in place.
Result<std::vector<CandidateRule>> Tuner::candidates(const Case& which, const Call& call) {
  TUTTI_TRY(nccl(tuttiCommSetTuning(comm_, "tutti-tuning 1\n"), "the cost model's choice"));
  std::string text;
  std::uint64_t size = 0;
  if (leads()) {
    const auto ask = [&](char* to, std::size_t room, std::size_t* needed) {
      const int root = which.collective->plan == tuttiSend ? (call.rank + 1) % call.ranks : 0;
      return nccl(tuttiCandidateRules(comm_, which.collective->plan, call.send, call.receive, call.count, call.type,
                                      call.op, root, to, room, needed),
                  "tuttiCandidateRules");
    };
    std::size_t needed = 0;
    TUTTI_TRY(ask(nullptr, 0, &needed));
    text.resize(needed);
    TUTTI_TRY(ask(text.data(), text.size(), nullptr));
    size = text.size();
  }
  TUTTI_TRY(tell(&size, sizeof size));
  text.resize(size);
  TUTTI_TRY(tell(text.data(), text.size()));
  return split_rules(text);
}

Status Tuner::tune_case(const Case& which, Call call, double limit_s) {
  TUTTI_TRY_ASSIGN(const std::vector<CandidateRule> rules, candidates(which, call));
  if (rules.empty()) return {};  // nothing to choose
  if (!leads()) return follow_case(which, call, rules);
  return lead_case(which, call, rules, limit_s);
}

Status Tuner::follow_case(const Case& which, const Call& call, const std::vector<CandidateRule>& rules) {
  for (;;) {
    Order order;
    TUTTI_TRY(tell(&order, sizeof order));
    if (order.candidate < 0) return {};
    const Result<double> time = sample(which, call, rules[static_cast<std::size_t>(order.candidate)], order.calls);
    if (!time.ok()) return time.error();
  }
}

/// A B C A B C ...: one candidate's sample after the other, in rounds; those that are far behind drop out after the first. Nothing where the same
/// was measured before: two sizes may be one size of blocks, and where nothing reaches the others' buffers (over hosts) shared memory is as private.
Status Tuner::lead_case(const Case& which, const Call& call, const std::vector<CandidateRule>& rules, double limit_s) {
  if (rules.front().key != last_key_) {
    last_key_ = rules.front().key;
    progress(fmt::format("{:3.0f} s of {:.0f}: {} ...", seconds_since(start_), budget_s_, last_key_));
  }
  const auto measure_one = [&](std::size_t candidate, int calls) -> Result<double> {
    Order order{static_cast<std::int32_t>(candidate), calls};
    TUTTI_TRY(tell(&order, sizeof order));
    return sample(which, call, rules[candidate], calls);
  };
  const Clock::time_point began = Clock::now();
  std::vector<std::vector<double>> times(rules.size());
  std::vector<int> calls(rules.size(), 1);
  std::vector<bool> hopeless(rules.size(), false);
  const CandidateRule& first = rules.front();
  const bool is_wanted = !is_known(first) && limit_s > 0;
  if (!is_known(first) && !is_wanted) left_out_.emplace(first.key, first.size);
  for (int round = 0; is_wanted && round < kRoundsMax; ++round) {
    if (round >= kRoundsMin && seconds_since(began) > limit_s) break;
    for (std::size_t n = 0; n < rules.size(); ++n) {
      const std::size_t c = (n + static_cast<std::size_t>(round)) % rules.size();
      if (hopeless[c]) continue;
      if (round == 0) {
        TUTTI_TRY_ASSIGN(const double once_us, measure_one(c, 1));
        calls[c] = static_cast<int>(std::clamp(kSampleUs / std::max(once_us, 0.1), 1.0, 1000.0));
      }
      TUTTI_TRY_ASSIGN(const double time_us, measure_one(c, calls[c]));
      times[c].push_back(time_us);
    }
    if (round != 0) continue;
    double best = times[0][0];
    for (const std::vector<double>& own : times) best = std::min(best, own[0]);
    for (std::size_t c = 1; c < rules.size(); ++c) hopeless[c] = times[c][0] > kHopelessBy * best;
  }
  Order done;
  TUTTI_TRY(tell(&done, sizeof done));
  if (!is_wanted) return {};
  TunedSize size{first.size, {}};
  for (std::size_t c = 0; c < rules.size(); ++c) size.candidates.push_back({rules[c].choice, median(times[c])});
  keep(first, std::move(size));
  return {};
}

/// Microseconds per call of the slowest rank.
Result<double> Tuner::sample(const Case& which, const Call& call, const CandidateRule& rule, int calls) {
  TUTTI_TRY(nccl(tuttiCommSetTuning(comm_, forcing_text(rule).c_str()), "choosing " + rule.choice));
  TUTTI_TRY(run_and_wait(*which.collective, call, 1));
  TUTTI_TRY(barrier(call));
  const Clock::time_point start = Clock::now();
  for (int n = 0; n < calls; ++n) TUTTI_TRY(run_and_wait(*which.collective, call, 1));
  const double mine = seconds_since(start) * 1e6 / calls;
  std::vector<double> all(static_cast<std::size_t>(place_.ranks));
  TUTTI_TRY(nccl(ncclAllGather(&mine, all.data(), 1, ncclDouble, comm_, nullptr), "the exchange of times"));
  return *std::max_element(all.begin(), all.end());
}

bool Tuner::is_known(const CandidateRule& first) const {
  const auto calls = std::ranges::find(found_, first.key, &TunedCalls::key);
  return calls != found_.end() && calls->has(first.size);
}

void Tuner::keep(const CandidateRule& first, TunedSize size) {
  auto calls = std::ranges::find(found_, first.key, &TunedCalls::key);
  if (calls == found_.end()) calls = found_.insert(found_.end(), {first.key, {}});
  calls->add(std::move(size));
  left_out_.erase({first.key, first.size});
}

Status Tuner::write() const {
  progress(fmt::format("{:3.0f} s: done", seconds_since(start_)));
  if (isatty(STDERR_FILENO) == 1) std::fputc('\n', stderr);
  if (found_.empty()) {
    return error(Code::kInvalidUsage, !left_out_.empty()
                                          ? "--tune: nothing was measured in the time that --tune-minutes gives"
                                          : "--tune: these calls leave nothing to choose");
  }
  const std::string text = tuning_text(
      found_,
      {fmt::format("written by tutti-perf --tune: {} ranks as {}, {}, {}", place_.ranks, place_.how, processor_name(),
                   today()),
       "Sizes are bytes of one block: a call's count times its element's size. model: the cost model's choice."});
  TUTTI_TRY(nccl(tuttiCommSetTuning(comm_, text.c_str()), "the file that was to be written"));
  // The table first: it has been measured, whatever becomes of the file.
  const bool is_output = options_.tune_file == "-";
  std::FILE* const table = is_output ? stderr : stdout;
  std::fprintf(table, "# Microseconds per call, medians; * what runs with the file, m the cost model's choice\n\n");
  for (const TunedCalls& calls : found_) std::fprintf(table, "%s\n", tuning_table(calls).c_str());
  if (!left_out_.empty())
    std::fprintf(table, "# %zu sizes were left out for want of time; give more --tune-minutes\n", left_out_.size());
  if (is_output) {
    (void)std::fputs(text.c_str(), stdout);  // what cannot be written is told at the end
    return {};
  }
  (void)std::fflush(table);  // before what may be said of the file
  if (const std::string why = why_unwritten(options_.tune_file, text); !why.empty())
    return error(Code::kSystem, fmt::format("{}: {}", options_.tune_file, why));
  std::printf("# %s is written. To use it: TUTTI_TUNING_FILE=%s\n", options_.tune_file.c_str(),
              options_.tune_file.c_str());
  return {};
}

}  // namespace

int tune_rank(const Options& options, const Place& place) {
  const Status status = Tuner(options, place).run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "tutti-perf: rank %d: %s\n", place.rank, status.error().message.c_str());
  return 1;
}

}  // namespace tutti::bench
