// The file of --plan: a schedule in the text form of docs/schedule.md, as written by hand or printed by --explain.
#pragma once

#include "collective.h"

#include <optional>
#include <string>

namespace tutti::bench {

struct PlanFile {
  std::string name;  ///< for messages
  std::string text;  ///< for tuttiCommSetSchedule; its lines are numbered as the file's
  const Collective* collective = nullptr;
  int ranks = 0;
  std::optional<int> root;
};

/// Reads a file ("-": standard input) and what its "schedule" line says about calls that it fits. What precedes that line is
/// skipped. Returns what is wrong, or nothing. Says nothing about whether the schedule is right: the library does.
std::string read_plan_file(const std::string& path, PlanFile& plan);

}  // namespace tutti::bench
