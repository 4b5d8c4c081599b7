// What a schedule costs: an alpha-beta model on one host, cheap enough to compare algorithms when a call is planned.
//
// A message that rank a sends at the end of a step reaches b `message_us` later. A step starts when its messages are
// there, the slots it needs are free and its rank's thread is free (a rank's lanes share one), and keeps the thread for
//
//   step_us + bytes * ((sources - 1) / reduce + sinks / copy)          bytes = width * unit bytes of one round
//
// A pushed or copied sink costs the sender; a pulled one costs it nothing, nor does having received a push. Where nothing but this rank's
// memory is in a step, its sinks cost 1 / local each, and in place a copy from input to output costs nothing. With more
// ranks than cores all that a thread does takes `ranks_per_core` times as long. The list is run for 1 + s rounds, s =
// slots (4 at most): until the slots hold the sender up. Further rounds take as long as those after the first did:
//
// Where buffers are mapped, an input that is pulled is there from the start, as the announcement of the call says where; but who was
// pulled from waits for the word that it was read, message_us later. A step whose data others move takes no time.
//
// Where ranks are in groups, a message to another group first takes its bytes over far_gbps, one message of a rank after the other,
// and then far_message_us; it keeps the sender's thread and the receiver's for far_work_us each. Where threads move the bytes too
// (far_by_threads) each of the two has half of them, and nothing else is in use.
//
//   T(rounds) = T(1 + s) + (rounds - 1 - s) * (T(1 + s) - T(1)) / s
#pragma once

#include "schedule/schedule.h"

#include <cstdint>

namespace tutti::schedule {

struct CostInputs {
  std::uint64_t count = 0;  ///< elements of a block
  std::uint32_t element_bytes = 1;
  std::uint32_t wide_bytes = 0;          ///< of an element in a wide message; 0: as everywhere
  std::uint32_t slot_bytes = 256 << 10;  ///< the most that one message through slots carries
  int slots = 2;
  bool direct = false;  ///< pull and push messages bypass the slots
  bool mapped = false;  ///< by loads and stores, not by system calls
  bool in_place = false;
  bool lanes_take_turns =
      false;                  ///< of a rank's lanes that could go on the one in the earliest round does; else the first
  double message_us = 0.5;    ///< from the end of a send to the start of its receive
  double step_us = 0.05;      ///< to get a step going
  double copy_gbps = 8;       ///< bytes copied per rank, 10^9 per second
  double local_gbps = 0;      ///< of those, from this rank's memory to its own; 0: as all
  double push_cost = 1;       ///< how many times as long a pushed byte takes as one that is copied
  double reduce_gbps = 6;     ///< bytes of each further source added, 10^9 per second
  double ranks_per_core = 1;  ///< below 1 counts as 1
  const Groups* groups = nullptr;  ///< by rank; nullptr: all are near each other
  double far_message_us = 0;       ///< as message_us, to another group
  double far_work_us = 0;          ///< of the thread, to send or to receive such a message
  double far_gbps = 0;             ///< of one rank to other groups; 0: no limit
  bool far_by_threads = false;
};

/// Time of a call in microseconds. The schedule must be one that verify accepts; 0 for one that cannot end.
double predict_us(const Schedule& schedule, const CostInputs& inputs);

/// Rounds that the list runs: the largest message must fit a slot.
std::uint64_t rounds_of(const Schedule& schedule, const CostInputs& inputs);

}  // namespace tutti::schedule
