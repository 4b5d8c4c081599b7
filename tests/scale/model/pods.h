// All-reduces on pods of DGX-like hosts, in time: the library's schedules on the simulator.
#pragma once

#include "schedule/schedule.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti::scale {

/// Hosts of GPUs on an NVLink switch, each with a network interface of its own; the network has what the interfaces have.
struct Pod {
  int gpus = 8;
  double nvlink_gbps = 450;  ///< of a GPU, each way
  double nic_gbps = 50;
};

schedule::Groups hosts_of(int hosts, int ranks_per_host);

struct Prediction {
  double us = 0;
  bool is_continued = false;  ///< not simulated: continued from fewer hosts
};

/// Predictions of one algorithm, with as many hosts as can be simulated in a moment and continued beyond.
class PodRuns {
 public:
  /// `work_max`: steps of all ranks of the largest schedule that is simulated.
  PodRuns(const Pod& pod, std::string algorithm, std::uint64_t work_max);

  const std::string& algorithm() const { return algorithm_; }
  /// Of an all-reduce of so many bytes of float32 on a power of two of hosts; nothing where the algorithm has no schedule, or has all
  /// pairs of many ranks talk to each other: what that takes a network the simulator does not know.
  std::optional<Prediction> predict(int hosts, std::uint64_t bytes);

 private:
  bool is_all_pairs() const { return algorithm_.ends_with("shot"); }
  const schedule::Schedule* schedule_of(int hosts);
  std::optional<double> simulated(int hosts, std::uint64_t bytes);
  double beyond(int hosts, std::uint64_t bytes, std::uint64_t subtracted);

  const Pod pod_;
  const std::string algorithm_;
  const std::uint64_t work_max_;
  int hosts_max_ = 0;  ///< of those that are simulated; 0: not known yet
  std::pair<int, schedule::Schedule> last_;
  std::map<std::pair<int, std::uint64_t>, std::optional<double>> known_;
};

}  // namespace tutti::scale
