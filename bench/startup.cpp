// What a communicator costs before its first call: time, memory, and what making and destroying many leaves behind.
#include "startup_cases.h"
#include "startup_report.h"

#include "base/command_line.h"
#include "base/standard_output.h"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <string>

namespace tutti::bench {
namespace {

constexpr char kExamples[] =
    "Examples:\n"
    "  startup                                all, for 1, 2, 4, 8 and 16 ranks\n"
    "  startup --parts init --ranks 8         how long 8 ranks take to start\n"
    "  startup --parts cycles --cycles 100    a quick look at what is left behind\n"
    "  startup --json startup.json            every sample";

void declare(CLI::App& app, StartupOptions& options) {
  app.footer(kExamples);
  const auto read_ranks = [&options](const std::string& list) {
    options.ranks.clear();
    for (const std::string& part : parts_of(list)) options.ranks.push_back(std::stoi(part, nullptr, 0));
  };
  app.add_option_function<std::string>("--ranks", read_ranks, "rank counts, as 2,4,8 (default 1,2,4,8,16)")
      ->check(each_part(CLI::Range(1, kStartupRanksMax)));
  const auto read_parts = [&options](const std::string& list) { options.parts = parts_of(list); };
  app.add_option_function<std::string>("--parts", read_parts,
                                       "what to measure, of init,memory,cycles,size (default: all)")
      ->check(each_part(CLI::IsMember({"init", "memory", "cycles", "size"})));
  app.add_option("--launches", options.launches, "fresh processes for each row of init")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "communicators in each of them, after the first")
      ->check(CLI::Range(1, kStartupSamplesMax))
      ->capture_default_str();
  app.add_option("--cycles", options.cycles, "communicators made and destroyed one after the other")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app.add_option("--deadline", options.deadline_s, "seconds after which the ranks of one launch are ended")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  app.add_option("--json", options.json,
                 "write all samples to this file (-: standard output; the tables then go to standard error)");
}

int run(const StartupOptions& options) {
  const bool writes = !options.json.empty() && options.json != "-";
  if (const std::string why = writes ? why_unwritable(options.json) : ""; !why.empty()) {
    std::fprintf(stderr, "startup: --json %s: %s\n", options.json.c_str(), why.c_str());
    return 2;
  }
  const auto results = measure_startup(options);
  if (!results.ok()) {
    std::fprintf(stderr, "startup: %s\n", results.error().message.c_str());
    return 1;
  }
  print_startup(options.json == "-" ? stderr : stdout, results.value());
  if (options.json.empty()) return 0;
  const Status written = write_startup_json(options.json, results.value());
  if (written.ok()) return 0;
  std::fprintf(stderr, "startup: %s\n", written.error().message.c_str());
  return 1;
}

}  // namespace
}  // namespace tutti::bench

int main(int argc, char** argv) {
  CLI::App app{
      "Measures what communicators cost before their first call: time to start and end, memory per rank, what is left "
      "behind by many, the library's size.",
      "startup"};
  tutti::bench::StartupOptions options;
  tutti::bench::declare(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return tutti::end_output("startup", 0);
  } catch (const CLI::Error& problem) {
    std::fputs(tutti::mistake_text(&app, problem).c_str(), stderr);
    return 2;
  }
  if (tutti::first_empty(app, {"--json"})) {
    std::fputs("startup: --json is empty; name a file\n", stderr);
    return 2;
  }
  return tutti::end_output("startup", tutti::bench::run(options));
}
