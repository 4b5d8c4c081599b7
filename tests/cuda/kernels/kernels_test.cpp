// The kernels on the Block machine: every collective, way and data type, in and out of place, over seeds.
#include "kernel_case.h"

#include <catch2/catch.hpp>

#include <functional>
#include <tuple>

namespace tutti::cuda {
namespace {

void require_right(const KernelCase& c, std::uint64_t seeds, bool checks_races = true) {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    INFO(text_of(c) << ", seed " << seed);
    const Outcome outcome = run_case(c, seed, checks_races);
    REQUIRE(outcome.problem == "");
    for (const FailureRecord& failure : outcome.failures) REQUIRE(failure.failure == Failure::kNone);
  }
}

constexpr Collective kAll[] = {Collective::kAllReduce,     Collective::kReduce,    Collective::kBroadcast,
                               Collective::kReduceScatter, Collective::kAllGather, Collective::kAllToAll,
                               Collective::kGather,        Collective::kScatter};

void for_collectives(const std::function<void(KernelCase)>& run, KernelCase base) {
  for (const Collective collective : kAll) {
    for (const bool in_place : {false, true}) {
      if (in_place && collective == Collective::kAllToAll) continue;
      for (const int ranks : {2, 3, 5}) {
        KernelCase c = base;
        c.collective = collective;
        c.in_place = in_place;
        c.ranks = ranks;
        c.root = ranks - 1;
        run(c);
      }
    }
  }
}

}  // namespace

TEST_CASE("fused folds do every collective", "[kernels]") {
  KernelCase base;
  base.fused = true;
  base.count = 333;
  base.blocks = 3;
  base.threads = 32;
  for_collectives([](const KernelCase& c) { require_right(c, 2); }, base);
}

TEST_CASE("several calls in one launch", "[kernels]") {
  for (const std::uint32_t calls : {2u, 3u, kCallsMax}) {
    KernelCase c;
    c.fused = true;
    c.ranks = 4;
    c.count = 1234;
    c.blocks = 2;
    c.threads = 32;
    c.calls_in_launch = calls;
    require_right(c, 2);
  }
}

TEST_CASE("folds of each rank do every collective", "[kernels]") {
  KernelCase base;
  base.count = 333;
  base.blocks = 2;
  base.threads = 32;
  base.calls = 3;
  for_collectives([](const KernelCase& c) { require_right(c, 4); }, base);
}

TEST_CASE("folds for all ranks of a GPU, whose streams meet, do every collective", "[kernels]") {
  KernelCase base;
  base.gpus = GENERATE(1, 2);
  base.count = 333;
  base.blocks = 2;
  base.threads = 32;
  base.calls = 3;
  for_collectives([](const KernelCase& c) { require_right(c, 4); }, base);
}

TEST_CASE("streams that do not meet before or behind a fold are found", "[kernels]") {
  KernelCase c;
  c.gpus = GENERATE(1, 2);
  c.ranks = 3;
  c.threads = 32;
  c.in_place = true;
  c.calls = 3;
  c.unmet = GENERATE(0, 1);
  bool found = false;
  for (std::uint64_t seed = 0; seed < 20 && !found; ++seed) found = !run_case(c, seed).problem.empty();
  CHECK(found);
}

TEST_CASE("lines do every collective", "[kernels]") {
  KernelCase base;
  base.kind = KernelKind::kLines;
  base.count = 99;
  base.blocks = 2;
  base.threads = 32;
  base.calls = 4;
  for_collectives([](const KernelCase& c) { require_right(c, 4); }, base);
}

TEST_CASE("every data type and operation has the host's bits", "[kernels]") {
  for (int t = 0; t < kDataTypes; ++t) {
    for (int o = 0; o < kReduceOps; ++o) {
      KernelCase c;
      c.dtype = static_cast<DataType>(t);
      c.op = static_cast<ReduceOp>(o);
      c.ranks = 4;
      c.threads = 32;
      c.calls = 1;
      c.fused = true;
      c.count = 1999;
      for (const bool scaled : {false, true}) {
        if (scaled && c.op != ReduceOp::kSum) continue;
        c.scaled = scaled;
        c.kind = KernelKind::kFold;
        c.fused = true;
        for (const std::size_t elements : {0, 1, 3}) {
          c.skew = elements * size_of(c.dtype);
          require_right(c, 1);
        }
        c.kind = KernelKind::kLines;
        c.fused = false;
        c.count = 77;
        require_right(c, 1);
        c.two_shot = true;
        require_right(c, 1);
        c.two_shot = false;
      }
    }
  }
}

TEST_CASE("buffers need no alignment", "[kernels]") {
  KernelCase c;
  c.fused = true;
  c.ranks = 3;
  c.threads = 32;
  for (const DataType dtype : {DataType::kFloat32, DataType::kBfloat16, DataType::kInt64}) {
    for (const std::size_t skew : {1, 2, 5, 7}) {
      for (const Collective collective : {Collective::kAllReduce, Collective::kAllGather}) {
        c.dtype = dtype;
        c.skew = skew;
        c.collective = collective;
        c.kind = KernelKind::kFold;
        c.fused = true;
        require_right(c, 1);
        c.kind = KernelKind::kLines;
        c.fused = false;
        require_right(c, 1);
      }
    }
  }
}

TEST_CASE("counts from none to more than a tile", "[kernels]") {
  for (const std::uint64_t count : {0, 1, 2, 3, 7, 8, 31, 64, 65, 511, 512, 513, 1030, 5000}) {
    for (const KernelKind kind : {KernelKind::kFold, KernelKind::kLines}) {
      for (const bool variant : {false, true}) {
        KernelCase c;
        c.kind = kind;
        c.count = count;
        c.ranks = 3;
        c.blocks = 2;
        c.threads = 32;
        c.dtype = DataType::kBfloat16;
        c.fused = kind == KernelKind::kFold && variant;
        c.two_shot = kind == KernelKind::kLines && variant;
        require_right(c, 2);
      }
    }
  }
}

TEST_CASE("two-shot lines, in and out of place, over many calls, in a launch each and in one", "[kernels]") {
  for (const bool in_place : {false, true}) {
    for (const int ranks : {2, 3, 8, 11}) {
      KernelCase c;
      c.kind = KernelKind::kLines;
      c.two_shot = true;
      c.in_place = in_place;
      c.fused = ranks % 2 == 1;
      c.ranks = ranks;
      c.blocks = 2;
      c.threads = 32;
      c.count = 401;
      c.calls = 5;
      require_right(c, 4);
    }
  }
}

// Real launches: the library's block, several of them for each of eight ranks.
TEST_CASE("launches as large as the library's", "[kernels]") {
  KernelCase c;
  c.threads = kThreads;
  c.ranks = 8;
  c.calls = 2;
  c.kind = KernelKind::kLines;
  c.count = 4000;
  c.blocks = lines_blocks(c.count * 4);
  require_right(c, 1);
  c.two_shot = true;
  c.count = 20000;
  c.blocks = 2;
  require_right(c, 1, false);
  c.two_shot = false;
  c.kind = KernelKind::kFold;
  c.count = 20000;
  c.calls = 1;
  require_right(c, 1, false);
  c.fused = true;
  c.blocks = fold_blocks(c.count * 4, 132);
  require_right(c, 1, false);
}

TEST_CASE("lanes run the programs of the table", "[kernels][lanes]") {
  struct Row {
    const char* algorithm;
    Collective collective;
    bool direct;
  };
  constexpr Row kRows[] = {
      {"ring", Collective::kAllReduce, false},
      {"ring", Collective::kAllReduce, true},
      {"tree", Collective::kAllReduce, false},
      {"tree", Collective::kAllReduce, true},
      {"twoshot", Collective::kAllReduce, true},
      {"oneshot", Collective::kAllReduce, false},
      {"ring", Collective::kReduceScatter, false},
      {"ring", Collective::kAllGather, true},
      {"binomial", Collective::kBroadcast, false},
      {"chain", Collective::kReduce, false},
      {"pairwise", Collective::kAllToAll, true},
      {"binomial", Collective::kScatter, false},
      {"halving_doubling", Collective::kAllReduce, false},
  };
  for (const Row& row : kRows) {
    for (const bool fused : {false, true}) {
      for (const std::uint32_t rows : {1, 2}) {
        KernelCase c;
        c.kind = KernelKind::kLanes;
        c.dtype = DataType::kInt32;  // programs sum in orders of their own
        c.algorithm = row.algorithm;
        c.collective = row.collective;
        c.direct = row.direct;
        c.fused = fused;
        c.rows = rows;
        c.ranks = 4;
        c.threads = 32;
        c.count = 450;
        require_right(c, 3);
      }
    }
  }
}

TEST_CASE("lanes: lines, a wide wire, factors, averages", "[kernels][lanes]") {
  KernelCase c;
  c.kind = KernelKind::kLanes;
  c.algorithm = "oneshot";
  c.ranks = 3;
  c.threads = 32;
  c.count = 90;
  c.lines = true;
  require_right(c, 3);
  c.lines = false;
  c.scaled = true;
  require_right(c, 2);
  c.scaled = false;
  c.op = ReduceOp::kAverage;
  c.dtype = DataType::kBfloat16;
  require_right(c, 2);
  // Summed in the order of ranks by a chain, and rounded once.
  c.algorithm = "chain";
  c.collective = Collective::kReduce;
  c.root = 2;
  c.op = ReduceOp::kSum;
  c.wide_wire = true;
  c.count = 700;
  require_right(c, 2);
}

TEST_CASE("lanes: ranks that know their neighbours alone compare calls with these", "[kernels][lanes]") {
  KernelCase c;
  c.kind = KernelKind::kLanes;
  c.dtype = DataType::kInt32;
  c.announces = true;
  c.knows_neighbours = true;
  c.ranks = 4;
  c.rows = 2;
  c.threads = 32;
  c.count = 450;
  c.calls = 3;
  require_right(c, 3);
  c.calls = 1;
  c.odd_rank = 1;
  c.abort_at = 400;  // as the host does when a rank has failed
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const Outcome outcome = run_case(c, seed);
    CAPTURE(seed, outcome.problem);
    REQUIRE(outcome.problem == "");
    for (const int rank : {0, 1, 2}) REQUIRE(outcome.failures[rank].failure == Failure::kMismatch);
    REQUIRE(outcome.failures[3].failure == Failure::kAborted);
  }
}

TEST_CASE("calls that differ are refused before any output is written", "[kernels]") {
  for (const KernelKind kind : {KernelKind::kFold, KernelKind::kLines}) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      KernelCase c;
      c.kind = kind;
      c.ranks = 3;
      c.blocks = 2;
      c.threads = 32;
      c.calls = 1;
      c.odd_rank = 1;
      c.abort_at = 400;  // as the host does when a rank has failed
      const Outcome outcome = run_case(c, seed);
      REQUIRE(outcome.problem == "");
      REQUIRE(outcome.failures[1].failure == Failure::kMismatch);
      int mismatches = 0;
      for (const FailureRecord& failure : outcome.failures) {
        REQUIRE(failure.failure != Failure::kNone);
        mismatches += failure.failure == Failure::kMismatch;
        if (failure.failure == Failure::kMismatch) REQUIRE(failure.ours != failure.theirs);
      }
      REQUIRE(mismatches == 3);
      REQUIRE_FALSE(outcome.output_written);
    }
  }
}

TEST_CASE("a rank that makes a call of another kind is found by those that wait for it, and finds them", "[kernels]") {
  for (const KernelKind kind : {KernelKind::kFold, KernelKind::kLines}) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      KernelCase c;
      c.kind = kind;
      c.odd_kind = kind == KernelKind::kFold ? KernelKind::kLines : KernelKind::kFold;
      c.odd_rank = 1;
      c.ranks = 3;
      c.blocks = 2;
      c.threads = 32;
      c.calls = 1;
      const Outcome outcome = run_case(c, seed);
      CAPTURE(seed, outcome.problem);
      // Nobody waits for ever, and nobody was told to end.
      REQUIRE(outcome.problem == "");
      for (const FailureRecord& failure : outcome.failures) {
        REQUIRE(failure.failure == Failure::kMismatch);
        REQUIRE(failure.ours != failure.theirs);
      }
      REQUIRE_FALSE(outcome.output_written);
    }
  }
}

TEST_CASE("the next call's lines, of a rank that needed nothing of this one in a call of lanes, are no mismatch",
          "[kernels]") {
  KernelCase c;
  c.kind = KernelKind::kLanes;
  c.dtype = DataType::kInt32;
  c.collective = Collective::kBroadcast;
  c.algorithm = "binomial";
  c.announces = true;
  c.overtaken_rank = 1;
  c.count = 50;
  c.threads = 32;
  for (c.ranks = 2; c.ranks <= 3; ++c.ranks) {
    for (c.rows = 1; c.rows <= 2; ++c.rows) require_right(c, 8);
  }
}

TEST_CASE("whoever waits for a rank that never comes ends when told to, and says for whom it waited", "[kernels]") {
  for (const KernelKind kind : {KernelKind::kFold, KernelKind::kLines, KernelKind::kLanes}) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      KernelCase c;
      c.kind = kind;
      c.dtype = DataType::kInt32;
      c.algorithm = "oneshot";
      c.ranks = 3;
      c.blocks = 2;
      c.threads = 32;
      c.calls = 1;
      c.silent_rank = 2;
      c.abort_at = 500;
      const Outcome outcome = run_case(c, seed);
      REQUIRE(outcome.problem == "");
      REQUIRE(outcome.failures[0].failure == Failure::kAborted);
      REQUIRE(outcome.failures[0].peer == 2);
      REQUIRE(outcome.failures[1].failure == Failure::kAborted);
      REQUIRE(outcome.failures[2].failure == Failure::kNone);
    }
  }
}

TEST_CASE("the machine says when nothing moves any more", "[kernels]") {
  KernelCase c;
  c.kind = KernelKind::kLines;
  c.ranks = 2;
  c.threads = 32;
  c.silent_rank = 1;
  for (std::uint64_t seed = 0; seed < 4; ++seed) REQUIRE(run_case(c, seed).problem.find("nothing moves") == 0);
}

TEST_CASE("no flag gets old enough to be taken for a new one", "[kernels]") {
  // Two-shot: the last share is short, or several are empty.
  const auto [two_shot, ranks, count] =
      GENERATE(std::tuple{false, 3, 200}, std::tuple{true, 3, 200}, std::tuple{true, 5, 6});
  KernelCase c;
  c.kind = KernelKind::kLines;
  c.two_shot = two_shot;
  c.ranks = ranks;
  c.threads = 32;
  c.calls = 4;
  c.first_sequence = (std::uint64_t{1} << 31) - 3;  // from 2^31 on every word must be new
  c.count = static_cast<std::uint64_t>(count);
  c.collective = two_shot ? Collective::kAllReduce : Collective::kBroadcast;
  const Outcome outcome = run_case(c, 3);
  REQUIRE(outcome.problem == "");
  REQUIRE(outcome.oldest_flag >= (std::uint64_t{1} << 31));
}

}  // namespace tutti::cuda
