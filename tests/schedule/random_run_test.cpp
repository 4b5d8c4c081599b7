// What the verifier accepts must be right at any pace: every algorithm, and every mutant that it lets pass, runs on
// numbers under random timing.
#include "random_run.h"
#include "algorithm/algorithm.h"
#include "schedules.h"

#include <random>
#include <utility>

namespace tutti::schedule {
namespace {

template <class Visitor>
void for_each_row(int ranks_least, int ranks_most, Visitor visit) {
  for (const algorithm::Algorithm& row : algorithm::algorithms()) {
    for (int c = 0; c < kCollectives; ++c) {
      for (int ranks = ranks_least; ranks <= ranks_most; ++ranks) {
        const Request request{static_cast<Collective>(c), ranks, ranks / 2, 0};
        const bool to_itself =
            (request.collective == Collective::kSend || request.collective == Collective::kReceive) && ranks == 1;
        if (row.supports(request) && !to_itself) visit(row, algorithm::make_schedule(row, request));
      }
    }
  }
}

/// Right at `runs` random paces; the verifier has said that it is right at all of them.
void run_often(const Schedule& s, const VerifyOptions& options, unsigned seed, int runs) {
  for (int i = 0; i < runs; ++i, ++seed) {
    RandomRun run(s, {static_cast<std::size_t>(options.slots), options.in_place, options.direct}, seed);
    if (run.is_right()) continue;
    FAIL_CHECK("seed " << seed << (options.in_place ? ", in place" : "") << (options.direct ? ", direct" : "") << ":\n"
                       << to_text(s));
  }
}

TEST_CASE("every algorithm is right at random paces", "[random]") {
  const unsigned seed = std::random_device{}();
  INFO("seed " << seed);
  for_each_row(1, 6, [&](const algorithm::Algorithm& row, const Schedule& s) {
    INFO(row.name);
    for (const bool in_place : {false, true}) {
      for (const bool direct : {false, true}) {
        if (direct && !(in_place ? row.direct_in_place : row.direct)) continue;
        run_often(s, {.in_place = in_place, .direct = direct}, seed, 2);
      }
    }
  });
}

/// Two neighbouring steps of one lane change places; text form and parser rebuild the schedule.
Schedule with_steps_swapped(const Schedule& s, std::size_t rank, std::size_t lane, std::size_t step) {
  Schedule mutant = s;
  std::swap(mutant.ranks[rank].lanes[lane].steps[step], mutant.ranks[rank].lanes[lane].steps[step + 1]);
  return mutant;
}

TEST_CASE("swapped steps that the verifier accepts are right at random paces, in every mode", "[random]") {
  const unsigned seed = std::random_device{}();
  INFO("seed " << seed);
  int accepted = 0;
  int refused = 0;
  int caught = 0;
  for_each_row(2, 5, [&](const algorithm::Algorithm&, const Schedule& s) {
    for (std::size_t rank = 0; rank < s.ranks.size(); ++rank) {
      for (std::size_t lane = 0; lane < s.ranks[rank].lanes.size(); ++lane) {
        for (std::size_t step = 0; step + 1 < s.ranks[rank].lanes[lane].steps.size(); ++step) {
          const Schedule mutant = with_steps_swapped(s, rank, lane, step);
          for (const VerifyOptions& options :
               {VerifyOptions{}, VerifyOptions{.direct = true}, VerifyOptions{.in_place = true, .direct = true}}) {
            if (verify(mutant, options).ok()) {
              ++accepted;
              run_often(mutant, options, seed, 3);
              continue;
            }
            ++refused;
            for (unsigned i = 0; i < 3; ++i) {
              if (RandomRun(mutant, {2, options.in_place, options.direct}, seed + i).is_right()) continue;
              ++caught;
              break;
            }
          }
        }
      }
    }
  });
  // Most of what is refused shows even in three runs; races may need more luck.
  CHECK(accepted > 200);
  CHECK(refused > 1000);
  CHECK(caught > refused * 3 / 4);
}

TEST_CASE("races that the verifier names happen", "[random]") {
  const unsigned seed = std::random_device{}();
  INFO("seed " << seed);
  for_each_row(3, 4, [&](const algorithm::Algorithm& row, const Schedule& s) {
    if (!row.direct || row.direct_in_place) return;
    INFO(row.name);
    bool wrong = false;
    for (unsigned i = 0; i < 200 && !wrong; ++i) wrong = !RandomRun(s, {2, true, true}, seed + i).is_right();
    CHECK(wrong);
  });
}

}  // namespace
}  // namespace tutti::schedule
