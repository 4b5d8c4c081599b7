#include "tools/topo_options.h"

#include "base/command_line.h"
#include "base/standard_output.h"
#include "planner/machine_plan.h"
#include "topology/graph.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <charconv>
#include <cstdio>

namespace tutti::tools {
namespace {

constexpr const char* kFooter = R"(
FILE is a machine in any form, told apart by its content: NCCL's topology XML (NCCL_TOPO_DUMP_FILE=FILE writes it) or graph
XML, hwloc's XML (lstopo FILE.xml), the text of nvidia-smi topo -m, or Tutti's own text form; "-" reads standard input.
Without FILE it is this machine. docs/topology.md says how bounds and plans come about.

Examples
  tutti-topo                                          this machine
  tutti-topo dgx.xml                                  what the best all-reduce can reach there, and the plan
  tutti-topo dgx.xml --gpus 0,1,4-7 --compare         the same on six of its GPUs; ring, trees and all pairs beside it
  tutti-topo --synthetic 'switch:1 gpu:8 nvlink:450' --explain
  tutti-topo --synthetic 'gpu:4 line:50' --collective all_gather --json
  nvidia-smi topo -m | tutti-topo - --nvlink-gbps 25
  tutti-topo dgx.xml --simulate -b 8 -e 1G            what each algorithm takes at each size, and where one overtakes another
  tutti-topo dgx.xml --simulate -b 1M -e 1M --timeline call.svg --trace call.json
                                                      one size as a picture, and for chrome://tracing
  tutti-topo --simulate --host-memory 2               the same among two ranks that share a host's memory
  tutti-topo dgx.xml --lanes 2 --schedule | tutti-perf --plan -
                                                      a schedule of no more lanes than communicators have, run on this host's memory

Exit code: 0 fine, 1 no such machine or no plan for it, 2 a bad command line.)";

constexpr int kNumberMax = 1 << 16;  ///< of GPUs, as of nodes

/// The library's own names the limits of floating point.
CLI::Validator bandwidth_validator() {
  const auto problem = [](const std::string& text) -> std::string {
    double gbps = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), gbps);
    const bool good = failure == std::errc() && end == text.data() + text.size() && topology::from_gbps(gbps) > 0;
    return good ? "" : fmt::format("\"{}\" is no bandwidth; write GB/s in one direction, like 25", text);
  };
  return {problem, "GB/s"};
}

constexpr std::uint64_t kLargestSize = std::uint64_t{1} << 44;

/// The library's own takes -1 for the largest number that there is.
CLI::Validator size_validator() {
  const auto convert = [](std::string& text) -> std::string {
    const auto size = size_from(text);
    if (!size) return fmt::format("\"{}\" is no size; write 8, 64K or 1G", text);
    if (*size > kLargestSize) return fmt::format("\"{}\" is more than 16T", text);
    text = std::to_string(*size);
    return "";
  };
  return {convert, "SIZE"};
}

struct Words {
  bool gpus_given = false;
  std::string collective = "all_reduce";
  std::string gpus;
};

void declare_simulate(CLI::App& app, SimulateOptions& options) {
  CLI::Option* simulate = app.add_flag("--simulate", options.wanted, "simulate each algorithm at sizes from -b to -e");
  app.add_option("-b", options.from_bytes, "the smallest size in bytes, 64K and the like (default 8)")
      ->transform(size_validator())
      ->needs(simulate);
  app.add_option("-e", options.to_bytes, "the largest size (default 1G)")->transform(size_validator())->needs(simulate);
  app.add_option("-f", options.factor, "from one size to the next (default 2)")
      ->check(number(1.1, 1e6))
      ->needs(simulate);
  app.add_flag("--held", options.held, "lanes wait until their own data has crossed the links, as threads that copy do")
      ->needs(simulate);
  app.add_option("--timeline", options.timeline, "draw the fastest at size -b: ranks and links in time, as SVG")
      ->needs(simulate);
  app.add_option("--trace", options.trace, "write the same as a Chrome trace")->needs(simulate);
  CLI::Option* host =
      app.add_option("--host-memory", options.host_ranks, "so many ranks on a host's memory, not a machine")
          ->check(CLI::Range(2, 64))
          ->needs(simulate);
  app.add_option("--core-gbps", options.core_gbps, "what one core copies, GB/s (default 60, as in a cache)")
      ->check(bandwidth_validator())
      ->needs(host);
  app.add_option("--memory-gbps", options.memory_gbps,
                 "what all copy together, GB/s (default 120, as in a shared cache)")
      ->check(bandwidth_validator())
      ->needs(host);
}

bool asks_of_machine(const TopoOptions& options) {
  return options.schedule || options.explain || options.compare || !options.svg.empty();
}
bool chooses_of_machine(const TopoOptions& options, const Words& words) {
  return words.gpus_given || options.ranks > 0 || options.all_links || options.lanes_max > 0;
}

/// What is wrong with it, or nothing.
std::string problem_of(const TopoOptions& options, const Words& words) {
  const SimulateOptions& simulate = options.simulate;
  if (!simulate.wanted) return "";
  if (simulate.from_bytes == 0 || simulate.from_bytes > simulate.to_bytes)
    return fmt::format("-b {} -e {}: sizes go from 1 byte or more up to -e", simulate.from_bytes, simulate.to_bytes);
  if (options.schedule) return "--schedule prints the schedule alone and does not go with --simulate";
  if (simulate.timeline == "-" || simulate.trace == "-")
    return "--timeline and --trace: standard output has the table; name a file";
  if (simulate.host_ranks > 0 && !(options.file.empty() && options.synthetic.empty()))
    return "--host-memory takes the place of a machine: leave out FILE and --synthetic";
  if (simulate.host_ranks > 0 && (asks_of_machine(options) || chooses_of_machine(options, words)))
    return "--host-memory takes the place of a machine: there is nothing of one to choose, to explain, to compare or "
           "to draw";
  const std::string& svg = options.svg;
  if (same_file(svg, simulate.timeline) || same_file(svg, simulate.trace) ||
      same_file(simulate.timeline, simulate.trace))
    return "--svg, --timeline and --trace: one file cannot hold two of them";
  return "";
}

void declare(CLI::App& app, Words& words, TopoOptions& options) {
  CLI::Option* file = app.add_option("FILE", options.file, "the machine; without it, this one");
  app.add_option("--synthetic", options.synthetic,
                 "a machine in one line: 'host:2 switch:1 gpu:8 nvlink:450 nic:8x50'");
  app.add_option("--collective", words.collective, "all_reduce (default), all_gather or reduce_scatter");
  app.add_option(
      "--gpus", words.gpus,
      "these GPUs only, by their places in the order of ranks, from 0: 0,1,4-7 (NUMA nodes where there is no GPU)");
  app.add_option("--ranks", options.ranks, "the first N only")->check(CLI::Range(1, kNumberMax));
  app.add_flag("--all-links", options.all_links, "count every link, also where NVLink or xGMI joins all");
  app.add_option("--lanes", options.lanes_max,
                 "the most lanes that a plan may have (default 32, more where it needs them)")
      ->check(CLI::Range(1, planner::kLanesMost));
  app.add_option("--nvlink-gbps", options.nvlink_gbps, "of each NVLink, for nvidia-smi's text, which gives none")
      ->check(bandwidth_validator())
      ->needs(file);
  app.add_flag("--explain", options.explain, "the machine in words, why the bound is what it is, and why this plan");
  app.add_flag("--compare", options.compare, "every algorithm beside the bound");
  CLI::Option* schedule =
      app.add_flag("--schedule", options.schedule,
                   "print the plan's schedule, in the order that communicators' slots allow, and nothing else");
  app.add_option("--units", options.units,
                 "with --schedule: units of a round of packed trees (default: what large messages need)")
      ->check(CLI::Range(1, 4096))
      ->needs(schedule);
  app.add_flag("--json", options.json, "print one JSON object; with --bandwidths, their table as a list");
  app.add_option("--svg", options.svg,
                 "draw the machine, what binds and the plan's lanes to this file; \"-\": standard output");
  app.add_flag("--bandwidths", options.bandwidths, "print the bandwidths that links are counted with, and end");
  declare_simulate(app, options.simulate);
  app.set_version_flag("--version", "Tutti " TUTTI_PROJECT_VERSION, "print Tutti's version and end");
  app.failure_message(mistake_text);
  app.footer(kFooter);
}

bool read_number(std::string_view text, int& number) {
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  return problem == std::errc() && end == text.data() + text.size() && number >= 0;
}

/// "0,1,4-7".
std::string resolve_gpus(std::string_view text, TopoOptions& options) {
  const std::string_view whole = text;
  for (bool more = true; more;) {
    const std::string_view part = text.substr(0, text.find(','));
    more = part.size() < text.size();
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    const std::size_t dash = part.find('-');
    int first = 0;
    int last = 0;
    const bool read = read_number(part.substr(0, dash), first) &&
                      read_number(dash == std::string_view::npos ? part : part.substr(dash + 1), last);
    if (!read || last < first || last > kNumberMax)
      return fmt::format("--gpus \"{}\": \"{}\" is no GPU; write 0,1,4-7", whole, part);
    for (int gpu = first; gpu <= last; ++gpu) options.chosen.push_back(gpu);
  }
  return {};
}

std::string resolve(const Words& words, TopoOptions& options) {
  const auto collective = collective_named(words.collective);
  if (!collective || (*collective != Collective::kAllReduce && *collective != Collective::kAllGather &&
                      *collective != Collective::kReduceScatter)) {
    return fmt::format("--collective \"{}\": all_reduce, all_gather or reduce_scatter", words.collective);
  }
  options.collective = *collective;
  if (!options.file.empty() && !options.synthetic.empty()) return "FILE and --synthetic exclude each other";
  if (words.gpus_given && options.ranks > 0) return "--gpus and --ranks exclude each other";
  const bool names_machine = !options.file.empty() || !options.synthetic.empty();
  if (options.bandwidths &&
      (asks_of_machine(options) || chooses_of_machine(options, words) || names_machine || options.simulate.wanted))
    return "--bandwidths prints its table and nothing of a machine; it goes with --json alone";
  if (options.json && (options.schedule || options.explain || options.compare))
    return "--json prints one object and goes with none of --schedule, --explain and --compare";
  if (options.svg == "-" &&
      (options.json || options.schedule || options.explain || options.compare || options.simulate.wanted))
    return "--svg - prints the drawing alone; give a file's name to have both";
  if (options.schedule && (options.explain || options.compare))
    return "--schedule prints the schedule alone and does not go with --explain or --compare";
  if (std::string problem = problem_of(options, words); !problem.empty()) return problem;
  for (int rank = 0; rank < options.ranks; ++rank) options.chosen.push_back(rank);
  return words.gpus_given ? resolve_gpus(words.gpus, options) : "";
}

}  // namespace

ParsedTopoOptions parse_topo_options(int argc, char** argv) {
  CLI::App app{"What a machine's links allow collectives, and the plan that comes closest", "tutti-topo"};
  Words words;
  TopoOptions options;
  declare(app, words, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    return {std::nullopt, app.exit(problem) == 0 ? 0 : 2};
  }
  words.gpus_given = app.count("--gpus") > 0;
  if (const CLI::Option* machine = first_empty(app, {"FILE", "--synthetic"})) {
    complain("tutti-topo: {} is empty; leave it out to mean this machine\n", machine->get_name());
    return {std::nullopt, 2};
  }
  if (const CLI::Option* file = first_empty(app, {"--svg", "--timeline", "--trace"})) {
    complain("tutti-topo: {} is empty; name a file\n", file->get_name());
    return {std::nullopt, 2};
  }
  if (const std::string problem = resolve(words, options); !problem.empty()) {
    complain("tutti-topo: {}\n", problem);
    return {std::nullopt, 2};
  }
  return {std::move(options), 0};
}

}  // namespace tutti::tools
