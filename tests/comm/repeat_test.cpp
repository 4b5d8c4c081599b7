// Calls repeated with one thing changed: what a communicator keeps from the last call must not outlive it. Ranks are processes, then
// threads; SEED and ROUNDS as elsewhere.
#include "crew.h"

#include <tutti/tutti.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using crew::fine;
using crew::Member;

constexpr int kRanks = 4;  // or fewer; averages of small integers are exact
constexpr std::size_t kCounts[] = {0,   5,   26,   78,   79,   128,
                                   129, 300, 1000, 4100, 30000};  // about what announce lines carry, and far beyond
constexpr std::size_t kAreaBytes = kRanks * 30000 * sizeof(float);
enum What { kAllReduce, kReduce, kBroadcast, kReduceScatter, kAllGather, kAllToAll, kGather, kScatter, kRing, kWhats };
enum Op { kSum, kMax, kAverage, kScaled, kOps };

/// A rank's two areas and how it uses them.
struct Memory {
  bool shared = false;
  bool in_place = false;
  unsigned made = 0;  ///< counted up: freed and allocated anew
};

struct Choice {
  int ranks = kRanks;
  int what = kAllReduce;
  int op = kSum;
  int root = 0;
  int factor = 1;
  std::size_t count = 30000;
  Memory memory[kRanks];
  int call = 0;

  /// The same on every rank.
  void change(std::mt19937& random) {
    ++call;
    const auto pick = [&](unsigned below) { return static_cast<int>(random() % below); };
    Memory& some = memory[pick(static_cast<unsigned>(ranks))];
    switch (pick(14)) {
      case 0: what = pick(kWhats); break;
      case 1: op = pick(kOps); break;
      case 2: root = pick(static_cast<unsigned>(ranks)); break;
      case 3:
      case 4: factor = pick(4); break;  // nought is a factor too
      case 5: count = kCounts[pick(std::size(kCounts))]; break;
      case 6: some.in_place = !some.in_place; break;
      case 7: some.shared = !some.shared; break;
      case 8: ++some.made; break;
      case 9:
        for (Memory& m : memory) m.in_place = !m.in_place;
        break;
      case 10:
        for (Memory& m : memory) ++m.made;
        break;
      case 11:
        for (Memory& m : memory) m.shared = true;
        break;
      case 12:
        for (Memory& m : memory) m.shared = m.in_place = false;
        break;
      default: break;  // just the same
    }
  }
  bool has_root() const { return what == kReduce || what == kBroadcast || what == kGather || what == kScatter; }
  std::string text() const {
    return "call " + std::to_string(call) + " (collective " + std::to_string(what) + ", op " + std::to_string(op) +
           ", root " + std::to_string(root) + ", factor " + std::to_string(factor) + ", count " +
           std::to_string(count) + ")";
  }
};

float value(int call, int rank, std::size_t i) {
  return static_cast<float>((static_cast<std::size_t>(call) * 5 + static_cast<std::size_t>(rank) * 37 + i * 11) % 61 +
                            1);
}

/// One rank: memory that it keeps from call to call.
class Caller {
 public:
  Caller(int rank, ncclComm_t comm) : rank_(rank), comm_(comm) {}
  ~Caller() { release(); }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  std::string call(const Choice& c) {
    arrange(c.memory[rank_]);
    CREW_TRY(make_op(c));
    place(c);
    for (std::size_t i = 0; i < c.count * static_cast<std::size_t>(c.ranks); ++i) areas_[1][i] = -77;
    const std::size_t inputs =
        c.what == kReduceScatter || c.what == kAllToAll || c.what == kScatter ? static_cast<std::size_t>(c.ranks) : 1;
    for (std::size_t i = 0; i < c.count * inputs; ++i) in_[i] = value(c.call, rank_, i);
    CREW_TRY(fine(submit(c), c.text().c_str()));
    return check(c);
  }

 private:
  void release() {
    for (float*& area : areas_) {
      if (!area) continue;
      if (held_.shared) {
        ncclMemFree(area);
      } else {
        delete[] area;
      }
      area = nullptr;
    }
  }
  void arrange(const Memory& wanted) {
    if (!areas_[0] || wanted.shared != held_.shared || wanted.made != held_.made) {
      release();
      for (float*& area : areas_) {
        if (!wanted.shared) {
          area = new float[kAreaBytes / sizeof(float)];
        } else if (ncclMemAlloc(reinterpret_cast<void**>(&area), kAreaBytes) != ncclSuccess) {
          abort();
        }
      }
    }
    held_ = wanted;
  }
  std::string make_op(const Choice& c) {
    op_ = c.op == kMax ? ncclMax : c.op == kAverage ? ncclAvg : ncclSum;
    if (c.op != kScaled || factor_ == factor_of(c, rank_)) {
      if (c.op == kScaled) op_ = scaled_;
      return "";
    }
    if (factor_ >= 0) CREW_TRY(fine(ncclRedOpDestroy(scaled_, comm_), "destroy op"));
    factor_ = factor_of(c, rank_);
    CREW_TRY(fine(ncclRedOpCreatePreMulSum(&scaled_, &factor_, ncclFloat, ncclScalarHostImmediate, comm_), "make op"));
    op_ = scaled_;
    return "";
  }
  static float factor_of(const Choice& c, int rank) { return static_cast<float>(c.factor * (rank + 1)); }

  void place(const Choice& c) {
    in_ = areas_[0];
    out_ = areas_[1];
    if (!c.memory[rank_].in_place || (c.has_root() && rank_ != c.root)) return;
    const std::size_t mine = c.count * static_cast<std::size_t>(rank_);
    switch (c.what) {
      case kAllReduce:
      case kReduce:
      case kBroadcast:
      case kAllToAll: in_ = out_; break;
      case kAllGather:
      case kGather: in_ = out_ + mine; break;
      case kReduceScatter:
      case kScatter: out_ = in_ + mine; break;
      default: break;
    }
  }
  ncclResult_t submit(const Choice& c) {
    const std::size_t n = c.count;
    switch (c.what) {
      case kAllReduce: return ncclAllReduce(in_, out_, n, ncclFloat, op_, comm_, nullptr);
      case kReduce: return ncclReduce(in_, out_, n, ncclFloat, op_, c.root, comm_, nullptr);
      case kBroadcast: return ncclBroadcast(in_, out_, n, ncclFloat, c.root, comm_, nullptr);
      case kReduceScatter: return ncclReduceScatter(in_, out_, n, ncclFloat, op_, comm_, nullptr);
      case kAllGather: return ncclAllGather(in_, out_, n, ncclFloat, comm_, nullptr);
      case kAllToAll: return ncclAlltoAll(in_, out_, n, ncclFloat, comm_, nullptr);
      case kGather: return ncclGather(in_, out_, n, ncclFloat, c.root, comm_, nullptr);
      case kScatter: return ncclScatter(in_, out_, n, ncclFloat, c.root, comm_, nullptr);
      default:
        ncclGroupStart();
        ncclSend(in_, n, ncclFloat, (rank_ + 1) % c.ranks, comm_, nullptr);
        ncclRecv(out_, n, ncclFloat, (rank_ + c.ranks - 1) % c.ranks, comm_, nullptr);
        return ncclGroupEnd();
    }
  }

  static float sum(const Choice& c, std::size_t i) {
    float total = 0;
    for (int r = 0; r < c.ranks; ++r) {
      const float own = value(c.call, r, i) * (c.op == kScaled ? factor_of(c, r) : 1);
      total = c.op == kMax ? std::max(total, own) : total + own;
    }
    return c.op == kAverage ? total / static_cast<float>(c.ranks) : total;
  }
  float wanted(const Choice& c, std::size_t i) const {
    const std::size_t mine = c.count * static_cast<std::size_t>(rank_);
    const int block = static_cast<int>(i / c.count);
    switch (c.what) {
      case kBroadcast: return value(c.call, c.root, i);
      case kReduceScatter: return sum(c, mine + i);
      case kAllGather:
      case kGather: return value(c.call, block, i % c.count);
      case kAllToAll: return value(c.call, block, mine + i % c.count);
      case kScatter: return value(c.call, c.root, mine + i);
      case kRing: return value(c.call, (rank_ + c.ranks - 1) % c.ranks, i);
      default: return sum(c, i);
    }
  }
  std::string check(const Choice& c) const {
    if ((c.what == kReduce || c.what == kGather) && rank_ != c.root) return "";
    const std::size_t blocks =
        c.what == kAllGather || c.what == kAllToAll || c.what == kGather ? static_cast<std::size_t>(c.ranks) : 1;
    for (std::size_t i = 0; i < c.count * blocks; ++i) {
      const float right = wanted(c, i);
      if (out_[i] == right) continue;
      return c.text() + ": rank " + std::to_string(rank_) + " element " + std::to_string(i) + " is " +
             std::to_string(out_[i]) + ", should be " + std::to_string(right);
    }
    return "";
  }

  int rank_;
  ncclComm_t comm_;
  Memory held_;
  float* areas_[2] = {};
  float* in_ = nullptr;
  float* out_ = nullptr;
  ncclRedOp_t op_ = ncclSum;
  ncclRedOp_t scaled_ = ncclSum;
  float factor_ = -1;  ///< below 0: no operator yet
};

unsigned number_of(const char* name, unsigned otherwise) {
  const char* text = std::getenv(name);
  return text ? static_cast<unsigned>(std::strtoul(text, nullptr, 10)) : otherwise;
}

std::string many_calls(int ranks, int rank, ncclComm_t comm, unsigned seed) {
  std::mt19937 random(seed);
  Caller caller(rank, comm);
  Choice choice;
  choice.ranks = ranks;
  for (unsigned i = 0; i < 600 * number_of("ROUNDS", 1); ++i) {
    choice.change(random);
    if (std::string wrong = caller.call(choice); !wrong.empty()) return "SEED=" + std::to_string(seed) + " " + wrong;
  }
  return "";
}

void differ_among_processes(int ranks) {
  const unsigned seed = number_of("SEED", 1);
  crew::check(crew::run(ranks, [seed](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "init"));
    CREW_TRY(many_calls(m.ranks, m.rank, comm, seed));
    return fine(ncclCommDestroy(comm), "destroy");
  }));
}

void differ_among_threads(int ranks) {
  const unsigned seed = number_of("SEED", 1);
  crew::check(crew::run(1, [seed, ranks](const Member&) -> std::string {
    std::vector<ncclComm_t> comms(ranks);
    CREW_TRY(fine(ncclCommInitAll(comms.data(), ranks, nullptr), "init"));
    std::vector<std::string> wrong(ranks);
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r) threads.emplace_back([&, r] { wrong[r] = many_calls(ranks, r, comms[r], seed); });
    for (std::thread& thread : threads) thread.join();
    for (const std::string& text : wrong) CREW_TRY(text);
    for (ncclComm_t comm : comms) CREW_TRY(fine(ncclCommDestroy(comm), "destroy"));
    return "";
  }));
}

}  // namespace

// Two ranks make exchanges (protocol/exchange.h) of what more ranks do in steps.
TEST_CASE("calls that differ from the last in one thing: processes") { differ_among_processes(kRanks); }
TEST_CASE("calls that differ from the last in one thing: two processes") { differ_among_processes(2); }
TEST_CASE("calls that differ from the last in one thing: threads") { differ_among_threads(kRanks); }
TEST_CASE("calls that differ from the last in one thing: two threads") { differ_among_threads(2); }

namespace {

/// Ranks as threads of a process of its own; each makes the calls in turn.
void run_calls(const std::vector<Choice>& calls) {
  crew::check(crew::run(1, [&calls](const Member&) -> std::string {
    std::vector<ncclComm_t> comms(kRanks);
    CREW_TRY(fine(ncclCommInitAll(comms.data(), kRanks, nullptr), "init"));
    std::vector<std::string> wrong(kRanks);
    const auto rank = [&](int r) {
      Caller caller(r, comms[r]);
      for (const Choice& choice : calls) {
        if (wrong[r].empty()) wrong[r] = caller.call(choice);
      }
    };
    std::vector<std::thread> threads;
    for (int r = 0; r < kRanks; ++r) threads.emplace_back(rank, r);
    for (std::thread& thread : threads) thread.join();
    for (const std::string& text : wrong) CREW_TRY(text);
    for (ncclComm_t comm : comms) CREW_TRY(fine(ncclCommDestroy(comm), "destroy"));
    return "";
  }));
}

}  // namespace

TEST_CASE("a factor changes, is nought, is gone") {
  std::vector<Choice> calls;
  for (const int factor : {2, 3, -1, 0, -1, 0, 1, -1}) {  // below 0: a plain sum
    Choice choice;
    choice.op = factor < 0 ? kSum : kScaled;
    choice.factor = std::max(factor, 0);
    choice.call = static_cast<int>(calls.size());
    calls.push_back(choice);
  }
  run_calls(calls);
}

TEST_CASE("one rank alone works in place") {
  std::vector<Choice> calls;
  for (int i = 0; i < 60; ++i) {
    Choice choice;
    choice.what = i < 40 ? kAllToAll : kAllReduce;
    choice.memory[i % kRanks].in_place = i % 5 != 4;
    choice.call = i;
    calls.push_back(choice);
  }
  run_calls(calls);
}

// Sends and receives run the last call's lanes again if both ends' buffers are reached as they were then.
TEST_CASE("a ring of sends whose memory changes, at one rank or at all") {
  const unsigned seed = number_of("SEED", 1);
  crew::check(crew::run(kRanks, [seed](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "init"));
    {
      std::mt19937 random(seed);
      Caller caller(m.rank, comm);
      Choice choice;
      for (unsigned i = 0; i < 400 * number_of("ROUNDS", 1); ++i) {
        choice.change(random);
        choice.what = kRing;
        if (i % 3 != 0) choice.count = 30000;
        if (std::string wrong = caller.call(choice); !wrong.empty())
          return "SEED=" + std::to_string(seed) + " " + wrong;
      }
    }
    return fine(ncclCommDestroy(comm), "destroy");
  }));
}

TEST_CASE("a sum meets a scaled one, and a gathering a split: refused on every rank") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "init"));
    float in[2] = {1, 2};
    float out[4] = {-77, -77, -77, -77};
    float factor = 3;
    ncclRedOp_t scaled = ncclSum;
    CREW_TRY(fine(ncclRedOpCreatePreMulSum(&scaled, &factor, ncclFloat, ncclScalarHostImmediate, comm), "make op"));
    const ncclResult_t sums = ncclAllReduce(in, out, 2, ncclFloat, m.rank == 0 ? ncclSum : scaled, comm, nullptr);
    CREW_TRY(crew::refused(sums, ncclInvalidUsage, {"differ", "premulsum"}));
    ncclComm_t child = nullptr;
    const ncclResult_t second = m.rank == 0 ? ncclAllGather(in, out, sizeof in, ncclUint8, comm, nullptr)
                                            : ncclCommSplit(comm, 0, 0, &child, nullptr);
    CREW_TRY(crew::refused(second, ncclInvalidUsage, {"differ", "ncclCommSplit"}));
    if (out[0] != -77 || out[2] != -77) return "a refused call wrote its output";
    CREW_TRY(crew::usable(comm));
    return fine(ncclCommDestroy(comm), "destroy");
  }));
}

// Rank 1 announces its sum, and frees something else before its sends are announced. Rank 0 hears of that by the receives, lets go of what it
// had mapped, and then comes to the sum, whose announcement is the same as the last time.
TEST_CASE("a repeated call does not use mappings that a receive has let go of", "[repeat]") {
  auto* freed = static_cast<std::atomic<int>*>(crew::shared_page());
  crew::check(crew::run(2, [freed](const Member& m) -> std::string {
    constexpr std::size_t kCount = 100000;
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "ncclCommInitRank"));
    void *input = nullptr, *output = nullptr, *other = nullptr, *message = nullptr;
    for (void** buffer : {&input, &output, &other, &message}) {
      CREW_TRY(fine(ncclMemAlloc(buffer, kCount * sizeof(float)), "ncclMemAlloc"));
    }
    auto* const in = static_cast<float*>(input);
    auto* const out = static_cast<float*>(output);
    std::fill_n(in, kCount, static_cast<float>(m.rank + 1));
    const auto sum = [&] { return fine(ncclAllReduce(in, out, kCount, ncclFloat, ncclSum, comm, nullptr), "sum"); };
    for (int i = 0; i < 3; ++i) CREW_TRY(sum());
    if (m.rank == 1) {
      std::thread meanwhile([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        (void)ncclMemFree(other);
        freed->store(1);
      });
      (void)ncclGroupStart();
      (void)sum();
      for (int i = 0; i < 2; ++i) (void)ncclSend(message, kCount, ncclFloat, 0, comm, nullptr);
      const std::string ended = fine(ncclGroupEnd(), "ncclGroupEnd");
      meanwhile.join();
      CREW_TRY(ended);
    } else {
      while (freed->load() == 0) std::this_thread::yield();
      for (int i = 0; i < 2; ++i) CREW_TRY(fine(ncclRecv(message, kCount, ncclFloat, 1, comm, nullptr), "ncclRecv"));
      std::fill_n(out, kCount, -1.0f);
      CREW_TRY(sum());
    }
    for (std::size_t i = 0; i < kCount; ++i) {
      if (out[i] != 3) return "element " + std::to_string(i) + " is " + std::to_string(out[i]) + ", not 3";
    }
    return fine(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

TEST_CASE("a call that is repeated does not answer for a group's call like it that failed in between") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "init"));
    float in[2] = {1, 1};
    float out[2] = {};
    const auto add = [&](std::size_t count) {
      return ncclAllReduce(in, out, count, ncclFloat, ncclSum, comm, nullptr);
    };
    for (int round = 0; round < 3; ++round) {
      for (int call = 0; call < 3; ++call) CREW_TRY(fine(add(1), "repeated"));
      ncclGroupStart();
      add(m.rank == 0 ? 1 : 2);
      if (const ncclResult_t differs = ncclGroupEnd(); differs != ncclInvalidUsage) {
        return "calls that differ ended with " + std::to_string(differs);
      }
      out[0] = 0;
      CREW_TRY(fine(add(1), "the next one like those before"));
      if (out[0] != 2) return "sum " + std::to_string(out[0]);
    }
    return fine(ncclCommDestroy(comm), "destroy");
  }));
}

TEST_CASE("threads of a rank that take turns each repeat a call of their own") {
  crew::check(crew::run(2, [](const Member& m) -> std::string {
    ncclComm_t comm = nullptr;
    CREW_TRY(fine(ncclCommInitRank(&comm, m.ranks, m.ids[0], m.rank), "init"));
    constexpr int kThreads = 3;
    constexpr int kTurns = 300;
    std::atomic<int> turn{0};
    std::string wrong[kThreads];
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        float in[8] = {};
        float out[8] = {};
        const std::size_t count = 3;
        for (int mine = t; mine < kTurns; mine += kThreads) {
          while (turn.load() != mine) std::this_thread::yield();
          std::fill_n(in, 8, static_cast<float>(mine + m.rank));
          // Those of two threads are alike but for their buffers.
          const ncclResult_t made = t == 1 ? ncclAllReduce(in, out, 5, ncclFloat, ncclMax, comm, nullptr)
                                           : ncclAllReduce(in, out, count, ncclFloat, ncclSum, comm, nullptr);
          const float right = static_cast<float>(t == 1 ? mine + 1 : 2 * mine + 1);
          if (wrong[t].empty() && (made != ncclSuccess || out[0] != right)) {
            wrong[t] =
                "turn " + std::to_string(mine) + ": result " + std::to_string(made) + ", " + std::to_string(out[0]);
          }
          turn.store(mine + 1);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& one : wrong) CREW_TRY(one);
    return fine(ncclCommDestroy(comm), "destroy");
  }));
}
