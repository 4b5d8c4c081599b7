// Mutants: right schedules with one thing changed. The verifier must refuse each, and say where; but for those that mean
// the same, which are told apart here by argument, one rule each:
//
//   duplicated     a step without messages that writes none of its sources: doing it twice changes nothing
//   swapped        two neighbours that touch no common place and no common channel (or are equal): their order means
//                  nothing, unless the swap makes ranks wait in a circle, which must be called a deadlock
//   read from out  a source `in` becomes `out` where an earlier step of the rank has copied that unit of the input there
//   slot for pull  a pull or push taken off both ends: the data then goes through the channel
//
// Nothing else may survive.
#include "algorithm/algorithm.h"
#include "mutants.h"
#include "schedules.h"

#include <algorithm>
#include <functional>
#include <regex>
#include <set>
#include <vector>

namespace tutti::schedule {
namespace {

using Catch::Matchers::Contains;

struct Tally {
  int refused = 0;
  int equivalent = 0;
  int near = 0;  ///< refusals that name the changed step, a neighbour, or a step of a rank it exchanges messages with
};

/// Where a mutant was changed, in words for people and in numbers for the test of the verifier's words.
struct Change {
  std::string what;
  std::size_t rank = 0;
  std::size_t lane = 0;
  std::size_t step = 0;
  std::set<int> peers;  ///< of the step, before and after

  std::string text() const {
    return what + " at rank " + std::to_string(rank) + ", lane " + std::to_string(lane) + ", step " +
           std::to_string(step);
  }
};

void add_peers(std::set<int>& peers, const LooseStep& s) {
  for (const auto* side : {&s.sources, &s.sinks}) {
    for (const Endpoint& e : *side) {
      if (!is_local(e)) peers.insert(static_cast<int>(e.peer));
    }
  }
}

bool names_near(const std::string& message, const Change& change) {
  static const std::regex place("rank ([0-9]+), lane ([0-9]+), step ([0-9]+)");
  for (std::sregex_iterator it(message.begin(), message.end(), place), end; it != end; ++it) {
    const int rank = std::stoi((*it)[1]);
    const int step = std::stoi((*it)[3]);
    const int here = static_cast<int>(change.step);
    if (std::stoul((*it)[2]) != change.lane) continue;
    if (rank == static_cast<int>(change.rank) && std::abs(step - here) <= 1) return true;
    if (change.peers.count(rank) != 0) return true;
  }
  return false;
}

void must_fail(const Schedule& mutant, const Change& change, Tally& tally, const VerifyOptions& options = {}) {
  const std::string message = complaint(mutant, options);
  if (message.empty()) {
    FAIL_CHECK(change.text() << " survived:\n" << to_text(mutant));
    return;
  }
  ++tally.refused;
  tally.near += names_near(message, change);
  // Whatever it finds, it names a rank and a step, and the mutated rank or one that exchanges messages with it.
  INFO(change.text() << ": " << message);
  CHECK(message.find("step ") != std::string::npos);
  CHECK(message.find("rank ") != std::string::npos);
}

Change change_of(const char* what, std::size_t rank, std::size_t lane, std::size_t step, const LooseLane& original) {
  Change change{what, rank, lane, step, {}};
  add_peers(change.peers, original[step]);
  return change;
}

/// Drops, repeats and swaps steps.
void mutate_order(const Schedule& s, std::size_t rank, std::size_t lane, Tally& tally) {
  const LooseLane original = loosen(s.ranks[rank].lanes[lane]);
  const auto change = [&](const char* what, std::size_t i) { return change_of(what, rank, lane, i, original); };
  for (std::size_t i = 0; i < original.size(); ++i) {
    LooseLane dropped = original;
    dropped.erase(dropped.begin() + static_cast<std::ptrdiff_t>(i));
    must_fail(with(s, rank, lane, dropped), change("a step dropped", i), tally);

    LooseLane repeated = original;
    repeated.insert(repeated.begin() + static_cast<std::ptrdiff_t>(i), original[i]);
    if (repeatable(original[i])) {
      CHECK(complaint(with(s, rank, lane, repeated)) == "");
      ++tally.equivalent;
    } else {
      must_fail(with(s, rank, lane, repeated), change("a step repeated", i), tally);
    }

    if (i + 1 == original.size()) continue;
    LooseLane swapped = original;
    std::swap(swapped[i], swapped[i + 1]);
    Change swap = change("steps swapped", i);
    add_peers(swap.peers, original[i + 1]);
    if (exchangeable(original[i], original[i + 1])) {
      const std::string message = complaint(with(s, rank, lane, swapped));
      INFO(swap.text() << ": " << message);
      CHECK((message.empty() || message.find("deadlock") != std::string::npos));
      ++(message.empty() ? tally.equivalent : tally.refused);
      tally.near += !message.empty() && names_near(message, swap);
    } else {
      must_fail(with(s, rank, lane, swapped), swap, tally);
    }
  }
}

/// All schedules that differ from `s` in one endpoint of the lane, as `mutate` changes it (false: not this one).
void mutate_endpoints(const Schedule& s, std::size_t rank, std::size_t lane, const char* what, Tally& tally,
                      const std::function<bool(Endpoint&)>& mutate) {
  const LooseLane original = loosen(s.ranks[rank].lanes[lane]);
  for (std::size_t i = 0; i < original.size(); ++i) {
    for (std::size_t k = 0; k < original[i].sources.size() + original[i].sinks.size(); ++k) {
      LooseLane mutated = original;
      const bool source = k < original[i].sources.size();
      Endpoint& e = source ? mutated[i].sources[k] : mutated[i].sinks[k - original[i].sources.size()];
      const Endpoint before = e;
      if (!mutate(e) || e == before) continue;
      Change change = change_of(what, rank, lane, i, original);
      add_peers(change.peers, mutated[i]);
      if (source && copied_before(original, i, before, e)) {
        CHECK(complaint(with(s, rank, lane, mutated)) == "");
        ++tally.equivalent;
        continue;
      }
      must_fail(with(s, rank, lane, mutated), change, tally);
    }
  }
}

/// Redirected: another peer, another place, an offset a unit or a block further on or back, another width.
void mutate_places(const Schedule& s, std::size_t rank, std::size_t lane, Tally& tally) {
  const auto ranks = static_cast<std::uint32_t>(s.request.ranks);
  const auto mutate = [&](const char* what, const std::function<bool(Endpoint&)>& change) {
    mutate_endpoints(s, rank, lane, what, tally, change);
  };
  for (std::uint32_t distance = 1; distance < ranks; ++distance) {
    mutate("peer redirected", [&](Endpoint& e) {
      e.peer = (e.peer + distance) % ranks;
      return !is_local(e);
    });
  }
  for (const Place place : {Place::kInput, Place::kOutput, Place::kScratch}) {
    mutate("place changed", [&](Endpoint& e) {
      if (is_local(e)) e.place = place;
      return is_local(e);
    });
  }
  for (const std::uint32_t distance : {1u, ~0u}) {  // a place further on, a place back
    mutate("unit moved", [&](Endpoint& e) {
      e.unit += distance;
      return is_local(e);
    });
    mutate("block moved", [&](Endpoint& e) {
      e.block += distance;
      return is_local(e);
    });
    mutate("width changed", [&](Endpoint& e) {
      if (distance == ~0u && e.width == 0) return false;
      e.width += distance;
      return true;
    });
  }
}

/// Pull, push and the place they name, changed at one end only.
void mutate_annotations(const Schedule& s, std::size_t rank, std::size_t lane, Tally& tally) {
  const auto mutate = [&](const char* what, const std::function<void(Endpoint&)>& change) {
    mutate_endpoints(s, rank, lane, what, tally, [&](Endpoint& e) {
      if (is_local(e) || e.width == 0) return false;
      change(e);
      return true;
    });
  };
  for (const Direct direct : {Direct::kPull, Direct::kPush, Direct::kNone}) {
    mutate("annotation changed at one end", [&](Endpoint& e) {
      e.direct = direct;
      if (direct == Direct::kNone) e.remote = Place::kInput;
    });
  }
  for (const Place place : {Place::kInput, Place::kOutput, Place::kScratch}) {
    mutate("direct buffer changed at one end", [&](Endpoint& e) {
      if (e.direct != Direct::kNone) e.remote = place;
    });
  }
  mutate("direct place moved at one end", [&](Endpoint& e) { e.block += e.direct != Direct::kNone; });
}

/// Toggles finish; drops and doubles one source or one sink of a step.
void mutate_steps(const Schedule& s, std::size_t rank, std::size_t lane, Tally& tally) {
  const LooseLane original = loosen(s.ranks[rank].lanes[lane]);
  for (std::size_t i = 0; i < original.size(); ++i) {
    const auto check = [&](const char* what, const std::function<void(LooseStep&)>& mutate) {
      LooseLane mutated = original;
      mutate(mutated[i]);
      must_fail(with(s, rank, lane, mutated), change_of(what, rank, lane, i, original), tally);
    };
    check("finish toggled", [](LooseStep& step) { step.finish = !step.finish; });
    for (std::size_t k = 0; k < original[i].sources.size(); ++k) {
      const auto at = static_cast<std::ptrdiff_t>(k);
      check("a source dropped", [&](LooseStep& step) { step.sources.erase(step.sources.begin() + at); });
      check("a source doubled", [&](LooseStep& step) { step.sources.push_back(original[i].sources[k]); });
    }
    for (std::size_t k = 0; k < original[i].sinks.size(); ++k) {
      const auto at = static_cast<std::ptrdiff_t>(k);
      check("a sink dropped", [&](LooseStep& step) { step.sinks.erase(step.sinks.begin() + at); });
      check("a sink doubled", [&](LooseStep& step) { step.sinks.push_back(original[i].sinks[k]); });
    }
  }
}

template <class Visitor>
void for_each_row(int ranks_least, int ranks_most, Visitor visit) {
  for (const algorithm::Algorithm& row : algorithm::algorithms()) {
    for (int c = 0; c < kCollectives; ++c) {
      for (int ranks = ranks_least; ranks <= ranks_most; ++ranks) {
        const Request request{static_cast<Collective>(c), ranks, ranks - 1, 0};
        if (row.supports(request)) visit(row, algorithm::make_schedule(row, request));
      }
    }
  }
}

TEST_CASE("mutants of every algorithm are refused, but for those that mean the same", "[mutation]") {
  Tally tally;
  for_each_row(2, 6, [&](const algorithm::Algorithm&, const Schedule& s) {
    REQUIRE(complaint(s) == "");
    for (std::size_t rank = 0; rank < s.ranks.size(); ++rank) {
      for (std::size_t lane = 0; lane < s.ranks[rank].lanes.size(); ++lane) {
        mutate_order(s, rank, lane, tally);
        mutate_places(s, rank, lane, tally);
        mutate_annotations(s, rank, lane, tally);
        mutate_steps(s, rank, lane, tally);
      }
    }
  });
  CHECK(tally.refused > 20000);
  CHECK(tally.equivalent > 100);
  CHECK(tally.equivalent < tally.refused / 10);
  // The others show further on: a message too many at the channel's end, a wrong sum where it is completed.
  INFO(tally.near << " of " << tally.refused << " refusals name a step near the change");
  CHECK(tally.near > tally.refused / 100 * 98);
}

TEST_CASE("sums listed in another order are refused in rank order, and where ranks would differ", "[mutation]") {
  Tally tally;
  for_each_row(2, 6, [&](const algorithm::Algorithm& row, const Schedule& s) {
    if (!row.reproducible) return;
    for (std::size_t rank = 0; rank < s.ranks.size(); ++rank) {
      const LooseLane original = loosen(s.ranks[rank].lanes[0]);
      for (std::size_t i = 0; i < original.size(); ++i) {
        if (original[i].sources.size() < 2) continue;
        LooseLane swapped = original;
        std::swap(swapped[i].sources.front(), swapped[i].sources.back());
        const Schedule mutant = with(s, rank, 0, swapped);
        // Where several ranks have the sum, one that adds it up differently may end with other bits.
        const bool several = row.name == "oneshot" && s.request.collective == Collective::kAllReduce;
        CHECK_THAT(complaint(mutant), several ? Contains("added up in different ways") : Contains(""));
        CHECK(complaint(mutant).empty() == !several);
        must_fail(mutant, change_of("order changed", rank, 0, i, original), tally, {.rank_order = true});
      }
    }
  });
  CHECK(tally.refused > 50);
}

/// Another place of the same buffer for a direct message; false where there is none.
bool move_place(const Schedule& s, std::uint32_t owner, Endpoint& e) {
  if (s.shape.units > 1) {
    e.unit = (e.unit + 1) % s.shape.units;
    return true;
  }
  const std::uint32_t blocks = e.remote == Place::kInput ? input_blocks(s.request, static_cast<int>(owner))
                                                         : output_blocks(s.request, static_cast<int>(owner));
  e.block = (e.block + 1) % std::max(blocks, 1u);
  return blocks > 1;
}

TEST_CASE("direct messages whose place is moved at both ends are refused", "[mutation]") {
  Tally tally;
  for_each_row(2, 6, [&](const algorithm::Algorithm& row, const Schedule& s) {
    if (!row.direct) return;
    for (std::uint32_t to = 0; to < s.ranks.size(); ++to) {
      for (std::size_t lane = 0; lane < s.ranks[to].lanes.size(); ++lane) {
        for (const Step& receive : s.ranks[to].lanes[lane].steps) {
          for (std::uint32_t i = receive.first_source; i < receive.first_sink; ++i) {
            const Endpoint original = s.ranks[to].lanes[lane].endpoints[i];
            if (original.direct == Direct::kNone) continue;
            Endpoint moved = original;
            if (!move_place(s, original.direct == Direct::kPull ? original.peer : to, moved)) continue;
            Schedule mutant = s;
            mutant.ranks[to].lanes[lane].endpoints[i] = moved;
            for (Endpoint& sink : mutant.ranks[original.peer].lanes[lane].endpoints) {
              Endpoint expected = original;
              expected.peer = to;
              if (sink != expected) continue;
              sink = moved;
              sink.peer = to;
            }
            must_fail(mutant, {"a direct place moved", to, lane, 0, {}}, tally, {.direct = true});
          }
        }
      }
    }
  });
  CHECK(tally.refused > 500);
}

/// The message of a pull or push, without it: both ends.
Schedule without_annotation(const Schedule& s, std::size_t to, std::size_t lane, std::size_t receive) {
  Schedule mutant = s;
  Endpoint& source = mutant.ranks[to].lanes[lane].endpoints[receive];
  Endpoint expected = source;
  expected.peer = static_cast<std::uint32_t>(to);
  const auto strip = [](Endpoint& e) {
    e.direct = Direct::kNone;
    e.remote = Place::kInput;
    e.block = 0;
  };
  LaneProgram& sender = mutant.ranks[source.peer].lanes[lane];
  for (const Step& step : sender.steps) {
    for (std::uint32_t i = step.first_sink; i < step.first_sink + step.sink_count; ++i) {
      if (sender.endpoints[i] == expected) strip(sender.endpoints[i]);
    }
  }
  strip(source);
  return mutant;
}

TEST_CASE("a pull or push taken off both ends is a message through the channel", "[mutation]") {
  int accepted = 0;
  int deadlocks = 0;
  for_each_row(2, 6, [&](const algorithm::Algorithm& row, const Schedule& s) {
    for (std::size_t to = 0; to < s.ranks.size(); ++to) {
      for (std::size_t lane = 0; lane < s.ranks[to].lanes.size(); ++lane) {
        for (std::size_t i = 0; i < s.ranks[to].lanes[lane].endpoints.size(); ++i) {
          const Endpoint& e = s.ranks[to].lanes[lane].endpoints[i];
          const bool source =
              std::any_of(s.ranks[to].lanes[lane].steps.begin(), s.ranks[to].lanes[lane].steps.end(),
                          [&](const Step& step) { return i >= step.first_source && i < step.first_sink; });
          if (!source || e.direct == Direct::kNone) continue;
          const Schedule mutant = without_annotation(s, to, lane, i);
          CHECK(complaint(mutant) == "");
          if (!row.direct) continue;
          // Among direct messages it needs a slot, which a rank that waits in a circle may not give.
          const std::string message = complaint(mutant, {.direct = true});
          INFO(to_text(mutant) << message);
          CHECK((message.empty() || message.find("deadlock") != std::string::npos));
          ++(message.empty() ? accepted : deadlocks);
        }
      }
    }
  });
  CHECK(accepted > 500);
  CHECK(deadlocks < accepted / 10);
}

TEST_CASE("whether ranks wait for ever does not depend on the number of rounds", "[mutation]") {
  int stuck = 0;
  for_each_row(2, 5, [&](const algorithm::Algorithm&, const Schedule& s) {
    for (std::size_t rank = 0; rank < s.ranks.size(); ++rank) {
      for (std::size_t lane = 0; lane < s.ranks[rank].lanes.size(); ++lane) {
        const LooseLane original = loosen(s.ranks[rank].lanes[lane]);
        for (std::size_t i = 0; i + 1 < original.size(); ++i) {
          LooseLane swapped = original;
          std::swap(swapped[i], swapped[i + 1]);
          const Schedule mutant = with(s, rank, lane, swapped);
          for (const int slots : {1, 2, 3}) {
            for (const bool direct : {false, true}) {
              const std::string once = complaint(mutant, {.slots = slots, .direct = direct});
              CHECK(complaint(mutant, {.slots = slots, .direct = direct, .rounds = 5}) == once);
              stuck += once.find("deadlock") != std::string::npos;
            }
          }
        }
      }
    }
  });
  CHECK(stuck > 100);
}

TEST_CASE("algorithms that do not claim to be right in place with direct messages race there", "[mutation]") {
  int raced = 0;
  for_each_row(3, 6, [&](const algorithm::Algorithm& row, const Schedule& s) {
    if (!row.direct || row.direct_in_place) return;
    const std::string message = complaint(s, {.in_place = true, .direct = true});
    INFO(row.name << " " << name_of(s.request.collective));
    CHECK(message.find("no message orders the two") != std::string::npos);
    ++raced;
  });
  CHECK(raced > 0);
}

}  // namespace
}  // namespace tutti::schedule
