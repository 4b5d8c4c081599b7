#include "startup_report.h"

#include "base/standard_output.h"
#include "median.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>

namespace tutti::bench {
namespace {

using Json = nlohmann::ordered_json;

// The project's goals, on 2 cores.
constexpr double kInitOf8Ms = 50;
#ifdef TUTTI_HAS_CUDA
constexpr char kLibraryGoal[] = "Built with CUDA; the goal of 3 MB is for a build without";
#else
constexpr char kLibraryGoal[] = "Goal: 3 MB";
#endif
double memory_goal_mb(int ranks) { return 4 + ranks - 1; }

double mb(double bytes) { return bytes / 1e6; }

/// "12.3" or "-" where nothing was measured.
std::string ms(const std::vector<double>& times) {
  return times.empty() ? "-" : fmt::format("{:.2f}", median(times) / 1000);
}
std::string most_ms(const std::vector<double>& times) {
  return times.empty() ? "-" : fmt::format("{:.2f}", *std::max_element(times.begin(), times.end()) / 1000);
}

std::string init_text(const std::vector<InitResult>& results) {
  if (results.empty()) return {};
  std::string text;
  text += fmt::format(
      "# milliseconds from the start to the last rank's return, medians; first: of a fresh process. Goal: {} for 8 "
      "ranks\n{:>10} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}\n",
      kInitOf8Ms, "how", "ranks", "first", "init", "init max", "destroy", "split", "split max");
  for (const InitResult& r : results) {
    text += fmt::format("{:>10} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}\n", r.how, r.ranks, ms(r.first), ms(r.init),
                        most_ms(r.init), ms(r.destroy), ms(r.split), most_ms(r.split));
  }
  return text;
}

std::string memory_text(const std::vector<MemoryResult>& results) {
  if (results.empty()) return {};
  std::string text;
  text +=
      "\n# MB per rank, own pages and a share of the segment, more than before the communicator: after init, a first "
      "all-reduce and\n# sends of 1 MB; full: were the whole segment used. Goal: 4 MB and 1 MB per peer\n";
  text += fmt::format("{:>10} {:>6} {:>8} {:>11} {:>8} {:>8} {:>8} {:>8} {:>11} {:>12} {:>8}\n", "how", "ranks", "init",
                      "all-reduce", "sends", "pss", "full", "goal", "segment MB", "descriptors", "threads");
  for (const MemoryResult& r : results) {
    const double untouched =
        static_cast<double>(r.segment.segment_bytes) - static_cast<double>(r.segment.segment_taken_bytes);
    text += fmt::format("{:>10} {:>6} {:>8.2f} {:>11.2f} {:>8.2f} {:>8.2f} {:>8.2f} {:>8.0f} {:>11.2f} {:>12} {:>8}\n",
                        r.how, r.ranks, mb(r.init_bytes), mb(r.all_reduce_bytes), mb(r.sends_bytes), mb(r.pss_bytes),
                        mb(r.sends_bytes + untouched / r.ranks), memory_goal_mb(r.ranks),
                        mb(static_cast<double>(r.segment.segment_bytes)), r.descriptors, r.threads);
  }
  return text;
}

std::string cycles_text(const std::vector<CyclesResult>& results) {
  if (results.empty()) return {};
  std::string text;
  text +=
      "\n# 2 ranks make and destroy a communicator again and again: rank 0's process after the first 10 and after all. "
      "Goal: flat\n";
  text += fmt::format("{:>10} {:>12} {:>7} {:>19} {:>19} {:>13} {:>9}\n", "how", "with", "cycles", "rss MB",
                      "private MB", "descriptors", "threads");
  for (const CyclesResult& r : results) {
    const auto pair = [](std::uint64_t early, std::uint64_t late) {
      return fmt::format("{:.2f} -> {:.2f}", mb(static_cast<double>(early)), mb(static_cast<double>(late)));
    };
    text += fmt::format("{:>10} {:>12} {:>7} {:>19} {:>19} {:>13} {:>9}\n", r.how,
                        r.all_reduce ? "all-reduce" : "nothing", r.cycles, pair(r.early.rss_bytes, r.late.rss_bytes),
                        pair(r.early.private_bytes, r.late.private_bytes),
                        fmt::format("{} -> {}", r.early.descriptors, r.late.descriptors),
                        fmt::format("{} -> {}", r.early.threads, r.late.threads));
  }
  return text;
}

std::string library_text(const std::vector<LibraryResult>& results) {
  std::string text;
  for (const LibraryResult& r : results) {
    text += fmt::format("\n# {}: {:.2f} MB, {}. {}\n", r.path, mb(static_cast<double>(r.file_bytes)),
                        r.stripped_bytes
                            ? fmt::format("{:.2f} MB stripped, as installed", mb(static_cast<double>(r.stripped_bytes)))
                            : "no strip here",
                        kLibraryGoal);
  }
  return text;
}

Json json_of(const Footprint& f) {
  return {{"rss_bytes", f.rss_bytes},         {"pss_bytes", f.pss_bytes},     {"private_bytes", f.private_bytes},
          {"segment_bytes", f.segment_bytes}, {"descriptors", f.descriptors}, {"threads", f.threads}};
}

}  // namespace

void print_startup(std::FILE* output, const StartupResults& results) {
  for (const std::string& text : {init_text(results.init), memory_text(results.memory), cycles_text(results.cycles),
                                  library_text(results.library)})
    (void)std::fputs(text.c_str(), output);
}

Status write_startup_json(const std::string& path, const StartupResults& results) {
  Json all = {
      {"init", Json::array()}, {"memory", Json::array()}, {"cycles", Json::array()}, {"library", Json::array()}};
  for (const InitResult& r : results.init) {
    all["init"].push_back({{"how", r.how},
                           {"ranks", r.ranks},
                           {"first_us", r.first},
                           {"init_us", r.init},
                           {"destroy_us", r.destroy},
                           {"split_us", r.split}});
  }
  for (const MemoryResult& r : results.memory) {
    all["memory"].push_back({{"how", r.how},
                             {"ranks", r.ranks},
                             {"init_bytes", r.init_bytes},
                             {"all_reduce_bytes", r.all_reduce_bytes},
                             {"sends_bytes", r.sends_bytes},
                             {"pss_bytes", r.pss_bytes},
                             {"segment_bytes", r.segment.segment_bytes},
                             {"segment_taken_bytes", r.segment.segment_taken_bytes},
                             {"descriptors", r.descriptors},
                             {"threads", r.threads}});
  }
  for (const CyclesResult& r : results.cycles) {
    all["cycles"].push_back({{"how", r.how},
                             {"all_reduce", r.all_reduce},
                             {"cycles", r.cycles},
                             {"early", json_of(r.early)},
                             {"late", json_of(r.late)}});
  }
  for (const LibraryResult& r : results.library) {
    all["library"].push_back({{"path", r.path}, {"file_bytes", r.file_bytes}, {"stripped_bytes", r.stripped_bytes}});
  }
  const std::string text = all.dump(1) + '\n';
  if (path == "-") {
    (void)std::fputs(text.c_str(), stdout);  // what cannot be written is told at the end
    return {};
  }
  const std::string why = why_unwritten(path, text);
  return why.empty() ? Status() : error(Code::kSystem, fmt::format("write {}: {}", path, why));
}

}  // namespace tutti::bench
