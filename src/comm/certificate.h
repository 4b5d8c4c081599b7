// How good a plan can be: what no schedule exceeds on the machine that the ranks sit on, and what is expected of the one that runs.
#pragma once

#include "comm/comm.h"
#include "comm/communicator.h"

#include <string>

namespace tutti::comm {

struct Bound {
  double memory_us = 0;     ///< every input read once and every output written once; 0: the memory's rate is not known
  double links_us = 0;      ///< what must cross between NUMA nodes, or hosts; 0: nothing, or not known
  std::uint64_t bytes = 0;  ///< read and written by all ranks; over hosts by those of memory_host
  double memory_gbps = 0;
  bool measured = false;  ///< the memory's rate; else the machine's description has it
  double links_gbps = 0;  ///< algorithm bandwidth that the links allow
  std::string links;      ///< which bind, and why, for people
  bool over_hosts = false;
  std::string memory_host;  ///< over hosts: whose memory binds most

  double us() const { return memory_us > links_us ? memory_us : links_us; }
};
Bound bound_of(Communicator& communicator, const CallArgs& args);

/// What NCCL_DEBUG=INFO prints of bounds and plans, once all ranks are ready. For one rank.
void report_plans(Communicator& communicator);

/// "4 MiB"
std::string bytes_text(std::uint64_t bytes);

/// "memory 62.1 us: ..." in a line each, the one that binds first.
std::string describe(const Bound& bound);

}  // namespace tutti::comm
