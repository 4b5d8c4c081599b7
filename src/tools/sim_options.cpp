#include "tools/sim_options.h"

#include "base/command_line.h"
#include "base/standard_output.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <charconv>
#include <cstdio>

namespace tutti::tools {
namespace {

constexpr const char* kFooter = R"(
A seed chooses calls, sizes, the schedule of the ranks and what loads return; an option pins its part of that, and the rest
stays as it was. Ranks are fibers, memory is simulated (docs/testing.md): the run is the same every time and everywhere.

Examples
  tutti-sim --seed 17                           one run, told operation by operation
  tutti-sim --seeds 1..5000                     search; prints the seeds that fail and how to replay them
  tutti-sim --seeds 1..500 --protocol lines --ranks 3
  tutti-sim --seeds 1..100 --fault tail-without-release
  tutti-sim --seed 3 --protocol direct --collective all_reduce --algorithm ring --count 64
  tutti-sim --seed 3 --die 1@40                 rank 1 dies at its 40th operation
  tutti-sim --list-faults

Exit code: 0 fine, 1 a run failed, 2 a bad command line.)";

struct Words {
  std::string seeds = "1..1000";
  std::string protocol, collective, fault, death;
  bool in_place = false, out_of_place = false, wrong_data = false, list_faults = false;
};

void declare(CLI::App& app, Words& words, SimOptions& options) {
  CLI::Option* seed = app.add_option("--seed", options.seed, "replay one run and print it, without times or addresses")
                          ->check(not_negative());
  app.add_option("--seeds", words.seeds, "search these runs: A..B, both included (default 1..1000)")->excludes(seed);
  app.add_option("--protocol", words.protocol, "slots, lines, direct, single-copy or announce");
  app.add_option("--collective", words.collective, "all_reduce, reduce, broadcast, reduce_scatter, all_gather, ...");
  app.add_option("--algorithm", options.pins.algorithm, "ring, tree, oneshot, ..., pull_chain (the simulator's own)");
  app.add_option("--ranks", options.pins.ranks, "ranks");
  app.add_option("--count", options.pins.count, "elements per block, of 4 bytes")->check(not_negative());
  app.add_option("--calls", options.pins.calls, "calls in a row on the same channels");
  app.add_option("--slots", options.pins.slots, "slots of a channel");
  app.add_option("--slot-bytes", options.pins.slot_bytes, "bytes of a slot, and of a line's data");
  app.add_flag("--in-place", words.in_place, "input and output are the same memory");
  app.add_flag("--out-of-place", words.out_of_place, "they are not");
  app.add_option("--abort-at", options.pins.abort_at, "the watchdog aborts at this operation of the run")
      ->check(not_negative());
  app.add_option("--die", words.death, "R@K: rank R dies at its operation K");
  app.add_flag("--strict-buffers", options.pins.strict_buffers,
               "a rank whose call has failed has its buffers back at once: peers may not touch them any more");
  app.add_flag("--wrong-data", words.wrong_data,
               "do not report data races: let them return old data, see what comes of it");
  app.add_option("--fault", words.fault, "plant this mistake");
  CLI::Option* list =
      app.add_flag("--list-faults", words.list_faults, "print the mistakes that can be planted, and end");
  app.add_flag("--first", options.stop_at_first, "stop a search at the first seed that fails");
  app.add_flag("--json", options.json, "print the result as JSON")->excludes(list);
  app.add_flag("--quiet", options.quiet, "no progress on stderr");
  app.set_version_flag("--version", "Tutti " TUTTI_PROJECT_VERSION, "print Tutti's version and end");
  app.failure_message(mistake_text);
  app.footer(kFooter);
}

template <class Number>
bool read_number(std::string_view text, Number& number) {
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  return problem == std::errc() && end == text.data() + text.size();
}

std::string resolve_seeds(const std::string& text, SimOptions& options) {
  const std::size_t dots = text.find("..");
  const std::string_view whole = text;
  const bool read = dots == std::string::npos ? read_number(whole, options.first) && read_number(whole, options.last)
                                              : read_number(whole.substr(0, dots), options.first) &&
                                                    read_number(whole.substr(dots + 2), options.last);
  if (!read) return fmt::format("--seeds \"{}\" is no range: write 1..1000", text);
  if (options.last < options.first) return fmt::format("--seeds {}: the last comes before the first", text);
  return {};
}

std::string resolve_death(const std::string& text, SimOptions& options) {
  if (text.empty()) return {};
  sim::Death death;
  const std::size_t at = text.find('@');
  const std::string_view whole = text;
  if (at == std::string::npos || !read_number(whole.substr(0, at), death.rank) || death.rank < 0 ||
      !read_number(whole.substr(at + 1), death.operation)) {
    return fmt::format("--die \"{}\" is no death: write 1@40 for rank 1 at its 40th operation", text);
  }
  options.pins.death = death;
  return {};
}

std::string resolve_names(const Words& words, SimOptions& options) {
  if (!words.protocol.empty()) {
    options.pins.protocol = sim::protocol_named(words.protocol);
    if (!options.pins.protocol) {
      return fmt::format("no protocol is called \"{}\": slots, lines, direct, single-copy or announce", words.protocol);
    }
  }
  if (!words.collective.empty()) {
    options.pins.collective = collective_named(words.collective);
    if (!options.pins.collective || *options.pins.collective == Collective::kSend ||
        *options.pins.collective == Collective::kReceive) {
      return fmt::format(
          "\"{}\" is no collective that is simulated: all_reduce, reduce, broadcast, reduce_scatter, "
          "all_gather, all_to_all, gather or scatter",
          words.collective);
    }
  }
  if (!words.fault.empty()) {
    const std::optional<sim::Fault> fault = sim::fault_named(words.fault);
    if (!fault) return fmt::format("no fault is called \"{}\"; --list-faults lists them", words.fault);
    options.pins.fault = *fault;
  }
  if (words.in_place && words.out_of_place) return "--in-place and --out-of-place exclude each other";
  options.pins.report_races = !words.wrong_data;
  if (words.in_place || words.out_of_place) options.pins.in_place = words.in_place;
  return {};
}

std::string protocols_of(const sim::FaultRow& row) {
  std::string names;
  for (int p = 0; p < sim::kProtocols; ++p) {
    if (!sim::applies(row.fault, static_cast<sim::Protocol>(p))) continue;
    names += (names.empty() ? "" : ", ") + std::string(sim::name_of(static_cast<sim::Protocol>(p)));
  }
  return names;
}

void list_faults() {
  for (const sim::FaultRow& row : sim::faults()) {
    say("{:<26}{}\n{:<26}in {}\n", row.name, row.summary, "", protocols_of(row));
  }
  say("{:<26}{}\n{:<26}{}\n", "(--die R@K)", "a rank dies; not a mistake: the others must end", "(--abort-at K)",
      "the watchdog aborts; not a mistake: all must end");
}

/// What pins the run, so that a seed can be replayed with the same words.
std::string pinned_words(int argc, char** argv) {
  std::string text;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const std::string_view name = word.substr(0, word.find('='));
    if (name == "--first" || name == "--json" || name == "--quiet") continue;
    if (name == "--seeds" || name == "--seed") {
      if (name == word) ++i;
      continue;
    }
    text += " " + std::string(word);
  }
  return text;
}

}  // namespace

ParsedSimOptions parse_sim_options(int argc, char** argv) {
  CLI::App app{"Runs the lane protocols under a simulated memory and a seeded scheduler", "tutti-sim"};
  Words words;
  SimOptions options;
  declare(app, words, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    return {std::nullopt, app.exit(problem) == 0 ? 0 : 2};
  }
  if (words.list_faults) {
    list_faults();
    return {std::nullopt, 0};
  }
  const CLI::Option* const empty =
      first_empty(app, {"--seed", "--seeds", "--protocol", "--collective", "--algorithm", "--ranks", "--count",
                        "--calls", "--slots", "--slot-bytes", "--abort-at", "--die", "--fault"});
  std::string problem =
      empty != nullptr ? empty->get_name() + " is empty; leave it out, or see --help for what it may be" : "";
  if (problem.empty()) problem = resolve_names(words, options);
  if (problem.empty()) problem = resolve_seeds(words.seeds, options);
  if (problem.empty()) problem = resolve_death(words.death, options);
  if (!problem.empty()) {
    complain("tutti-sim: {}\n", problem);
    return {std::nullopt, 2};
  }
  options.pinned_words = pinned_words(argc, argv);
  return {std::move(options), 0};
}

}  // namespace tutti::tools
