// tutti-sim: replays one simulated run, or searches many for one that fails.
#include "base/standard_output.h"
#include "sim/runner.h"
#include "tools/sim_options.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <cstdio>

namespace {

using tutti::say;
using tutti::sim::Outcome;
using tutti::sim::Scenario;
using tutti::tools::SimOptions;

int cannot(const tutti::Error& problem) {
  tutti::complain("tutti-sim: {}\n", problem.message);
  return 2;
}

std::string verdict(const Outcome& outcome, const Scenario& scenario) {
  if (!outcome.ok) return "FAILED: " + outcome.failure;
  return fmt::format("fine: {} of {} ranks made all their calls, {} operations", outcome.finished, scenario.shape.ranks,
                     outcome.operations);
}

nlohmann::json to_json(std::uint64_t seed, const Outcome& outcome) {
  return {{"seed", seed}, {"ok", outcome.ok}, {"failure", outcome.failure}, {"operations", outcome.operations}};
}

int replay(const SimOptions& options) {
  auto scenario = tutti::sim::choose_scenario(*options.seed, options.pins);
  if (!scenario.ok()) return cannot(scenario.error());
  tutti::sim::Runner runner;
  const Outcome outcome = runner.run(scenario.value(), true);
  if (options.json) {
    nlohmann::json report = to_json(*options.seed, outcome);
    report["scenario"] = describe(scenario.value());
    report["trace"] = outcome.trace;
    say("{}\n", report.dump(2));
  } else {
    say("{}\n{}\n{}\n", describe(scenario.value()), outcome.trace, verdict(outcome, scenario.value()));
  }
  return outcome.ok ? 0 : 1;
}

/// On stderr once a second, if it takes that long.
class ProgressReport {
 public:
  explicit ProgressReport(const SimOptions& options) : options_(options) {}
  void at(std::uint64_t seed, std::uint64_t failed) {
    const auto now = std::chrono::steady_clock::now();
    if (options_.quiet || now - last_ < std::chrono::seconds(1)) return;
    last_ = now;
    tutti::complain("tutti-sim: seed {} of {}..{}, {} failed\n", seed, options_.first, options_.last, failed);
  }

 private:
  const SimOptions& options_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

int search(const SimOptions& options) {
  tutti::sim::Runner runner;
  ProgressReport progress(options);
  nlohmann::json failures = nlohmann::json::array();
  std::uint64_t seed = options.first;
  std::uint64_t operations = 0;
  for (;; ++seed) {
    auto scenario = tutti::sim::choose_scenario(seed, options.pins);
    if (!scenario.ok()) return cannot(scenario.error());
    const Outcome outcome = runner.run(scenario.value());
    operations += outcome.operations;
    if (!outcome.ok) {
      failures.push_back(to_json(seed, outcome));
      if (!options.json) {
        say("seed {}: {}\n    tutti-sim --seed {}{}\n", seed, outcome.failure.substr(0, outcome.failure.find('\n')),
            seed, options.pinned_words);
        std::fflush(stdout);
      }
    }
    if (seed == options.last || (options.stop_at_first && !failures.empty())) break;
    progress.at(seed, failures.size());
  }
  const std::uint64_t runs = seed - options.first + 1;
  if (options.json) {
    const nlohmann::json report = {{"seeds", runs}, {"operations", operations}, {"failures", failures}};
    say("{}\n", report.dump(2));
  } else {
    say("{} seeds, {} operations, {} failed\n", runs, operations, failures.size());
  }
  return failures.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const tutti::tools::ParsedSimOptions parsed = tutti::tools::parse_sim_options(argc, argv);
  const auto run = [&] {
    if (!parsed.options) return parsed.exit_code;
    return parsed.options->seed ? replay(*parsed.options) : search(*parsed.options);
  };
  return tutti::end_output("tutti-sim", run());
}
