// What would run for a call, in short: for certificates and tables by size. explain.cpp answers.
#pragma once

#include "comm/comm.h"
#include "comm/communicator.h"

#include <string>

namespace tutti::comm {

struct Chosen {
  std::string what;  ///< "twoshot direct", "announce lines"
  std::string why;   ///< "the lowest expected time ..."
  double expected_us = 0;
};

/// As if every rank's buffers were like this one's. `args.count` is not 0. kInvalidUsage: NCCL_ALGO leaves nothing.
Result<Chosen> chosen_for(Communicator& communicator, const CallArgs& args);

}  // namespace tutti::comm
