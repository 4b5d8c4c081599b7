// Runs scenarios, one after the other, each to its end or its first failure.
#pragma once

#include "sim/fiber.h"
#include "sim/machine.h"
#include "sim/scenario.h"
#include "sim/simulation.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tutti::sim {

struct Outcome {
  bool ok = true;
  std::string failure;  ///< several lines; the first says what happened
  std::string trace;    ///< if asked for
  std::uint64_t operations = 0;
  int finished = 0;  ///< ranks that made all their calls
};

class Runner {
 public:
  Runner();
  Outcome run(const Scenario& scenario, bool trace = false);

 private:
  struct Rank {
    Runner* runner = nullptr;
    int number = 0;
    Fiber fiber;
    std::unique_ptr<Machine> machine;
    RankRun<Machine>* run = nullptr;
    bool finished = false;
  };

  static void run_rank(void* rank);
  void resume_all();
  std::string deadlock() const;

  Simulation simulation_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  int rank_count_ = 0;
};

}  // namespace tutti::sim
