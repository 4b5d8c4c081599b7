// Runs a schedule on numbers, at a random pace: every read and every write of a step is a moment of its own. Shares
// nothing with the verifier but the program format, so that the two can be held against each other. Sums are PreMulSum's:
// every rank has a factor of its own.
#pragma once

#include "schedule/schedule.h"

#include <cstdint>
#include <map>
#include <random>
#include <tuple>
#include <vector>

namespace tutti::schedule {

struct RandomRunOptions {
  std::size_t slots = 2;
  bool in_place = false;
  bool direct = false;
  int rounds = 2;
};

class RandomRun {
 public:
  RandomRun(const Schedule& schedule, const RandomRunOptions& options, unsigned seed);

  /// False if ranks wait for ever, or an output is wrong.
  bool is_right();

 private:
  using Number = std::uint64_t;
  using Cell =
      std::tuple<int, Place, std::uint32_t, std::uint32_t, int, int>;  ///< rank, place, block, unit, lane, round

  struct Process {
    int rank = 0;
    int lane = 0;
    int round = 0;
    std::uint32_t step = 0;
    std::uint32_t next_endpoint = 0;  ///< of the step: sources, then sinks
    bool running = false;
    std::vector<Number> sum;
  };
  struct Channel {
    std::vector<std::vector<Number>> messages;
    std::size_t received = 0;
  };

  const LaneProgram& program(const Process& p) const {
    return schedule_.ranks[static_cast<std::size_t>(p.rank)].lanes[static_cast<std::size_t>(p.lane)];
  }
  Channel& channel(int lane, int from, int to) { return channels_[{lane, from, to}]; }
  bool is_direct(const Endpoint& e) const {
    return options_.direct && e.place == Place::kPeer && e.direct != Direct::kNone;
  }
  bool needs_no_word(const Endpoint& e) const;
  Cell cell(int rank, Place place, std::uint32_t block, std::uint32_t unit, int lane, int round) const;
  Number initial(int rank, std::uint32_t block, std::uint32_t unit, int lane, int round) const;
  Number promised(int rank, std::uint32_t block, std::uint32_t unit, int lane, int round) const;

  bool may_start(const Process& p);
  bool advance(Process& p);  ///< one moment; false if it has to wait
  Number factor_of(int rank, const Endpoint& source) const;
  void read_source(Process& p, const Endpoint& e);
  void write_sink(Process& p, const Endpoint& e);
  void end_step(Process& p, const Step& step);
  bool done(const Process& p) const { return p.round == options_.rounds || program(p).steps.empty(); }

  const Schedule& schedule_;
  RandomRunOptions options_;
  std::mt19937 random_;
  std::map<Cell, Number> memory_;
  std::map<std::tuple<int, int, int>, Channel> channels_;
  std::vector<Process> processes_;
};

}  // namespace tutti::schedule
