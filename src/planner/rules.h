// What restricts and guides the planner's choice: NCCL_ALGO, reproducible sums, a float32 wire, measured crossovers, and the
// sizes the communicator was made with. Equal on every rank, so that all plan alike.
#pragma once

#include "base/dtype.h"
#include "base/result.h"
#include "schedule/schedule.h"
#include "schedule/tiling.h"

#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::planner {

struct AlgorithmFilter {
  bool present = false;
  bool exclude = false;  ///< "^a,b": all but these
  std::vector<std::string> names;

  bool admits(std::string_view name) const;
  /// It is one of those that are asked for.
  bool names_it(std::string_view name) const { return present && !exclude && admits(name); }
};

class PlannedSchedules;
class Tuning;

/// Plans of the algorithm table have so many lanes at most.
inline constexpr std::uint32_t kTableLanes = 2;
/// All lanes of collectives share one set of slots, and those of a plan divide them: a call's lanes begin when all ranks are through with
/// the call before, and with all of its slots. What the messages of a plan with so many lanes fit into:
inline schedule::SlotShape slots_of_plan(schedule::SlotShape whole, std::uint32_t lanes) {
  whole.slot_bytes /= std::bit_ceil(lanes);
  return whole;
}
/// Where a lane's part of each slot begins. Parts are as far apart as they can be with so many lanes as there are up to this one (their
/// numbers' bits in reverse), so that they lie where they lie however many follow.
inline std::uint32_t slot_part(schedule::SlotShape whole, std::uint32_t lane) {
  std::uint32_t at = 0;
  for (std::uint32_t bytes = whole.slot_bytes; lane != 0; lane /= 2) {
    bytes /= 2;
    at += lane % 2 * bytes;
  }
  return at;
}

/// What bytes cost between two processes here, measured by comm/calibration.h. Zeros: not measured.
struct MeasuredCosts {
  double slot_gbps = 0;      ///< writing a slot by ordinary stores and reading it, on average, each
  double call_us = 0;        ///< a system call that copies next to nothing
  double call_gbps = 0;      ///< each further byte of it
  double streamed_gbps = 0;  ///< as slot_gbps, written past the caches
};

/// What they would be if the two cores were elsewhere: near each other where they are far apart, and the other way round. Round figures,
/// only to find out which plans win then. Zeros: not known.
MeasuredCosts moved(const MeasuredCosts& costs);

/// In words: "slots 40.1 GB/s or past the caches 17.9, single copies 1.8 us and 12.7 GB/s".
std::string describe(const MeasuredCosts& costs);

/// How what others read of a rank, in slots or beside its lines, is to be written, unless it is short.
enum class SlotStores : std::uint64_t { kAsMeasured, kOrdinary, kStreamed };

/// What bytes cost between hosts, measured by comm/network_costs.h. Zeros: not measured.
struct NetworkCosts {
  double message_us = 0;  ///< of a message on its way
  double work_us = 0;     ///< of the ranks' threads, to send it, and to receive it
  double gbps = 0;        ///< of a host's ranks together
};
/// Where nothing was measured. Round figures for TCP between hosts of 10 Gbit/s and more; the work is that of the system call and what
/// the kernel does in it.
inline constexpr NetworkCosts kUsualNetwork{15, 8, 1.5};

struct Rules {
  AlgorithmFilter everywhere;  ///< "ring,tree": where it leaves nothing, it is ignored
  std::array<AlgorithmFilter, kCollectives>
      special;       ///< "allreduce:ring": where it leaves nothing, the call is an error
  std::string text;  ///< NCCL_ALGO as given
  bool reproducible = false;
  bool wide_wire = false;                   ///< partial sums of 16- and 8-bit floats travel as float32
  schedule::SlotShape slots;                ///< of plans with one lane ...
  bool lanes_share_slots = true;            ///< ... and of each lane of the others, if lanes do not divide them
  std::uint64_t line_bytes = 0;             ///< messages of a plan go as lines if none is longer
  std::uint64_t single_copy_min_bytes = 0;  ///< 0: by cost
  double crowding = 1;                      ///< ranks per core
  MeasuredCosts measured;                   ///< of rank 0 and another process
  SlotStores slot_stores = SlotStores::kAsMeasured;
  std::uint64_t last_cache_bytes =
      0;                           ///< of the last-level cache around the first of rank 0's processors; 0: not known
  schedule::Groups groups;         ///< ranks that sit near each other, or share a host; empty: all do
  double between_groups_gbps = 0;  ///< what the machine has from one group to another; 0: not known
  NetworkCosts network;            ///< groups are hosts; zeros: they are not
  bool network_measured = false;
  bool one_system = false;  ///< groups are hosts of one kernel (containers): its ranks' threads are their network
  /// By trees that the machine's links allow (planned_schedules.h); nullptr: none.
  std::shared_ptr<const PlannedSchedules> planned;
  std::shared_ptr<const Tuning> tuning;  ///< measured crossovers; nullptr: none
};

/// Whether slots are written past the caches, and what they have of bytes per second then; 0: not measured. Where cores share no cache
/// an ordinary store into a line that the other core has read waits for that core, and one past the caches does not; the reader finds it in
/// memory. Between cores that share one, lines wait there.
bool streams_slots(const Rules& rules);
double slot_gbps(const Rules& rules);
/// What an ordinary store, timed by itself, has of bytes per second where stores past the caches would not be better; 0: not known, or an
/// order says how stores are made.
double near_store_gbps(const Rules& rules);

/// Whether groups are hosts.
inline bool over_hosts(const Rules& rules) { return rules.network.gbps > 0; }
/// Messages that a channel holds in any case before its sender waits: over a network acknowledgements come late.
inline int slots_to_count_on(const Rules& rules) {
  const std::uint32_t slots = rules.slots.slots;
  return static_cast<int>(over_hosts(rules) ? slots + 1 - schedule::messages_per_acknowledgement(slots) : slots);
}

/// The same request with the groups and the planned schedules, if there are any: valid as long as the rules are.
schedule::Request in_groups(schedule::Request request, const Rules& rules);

/// Parses NCCL_ALGO: lists of names, "^" in front to exclude, sections split by ";", each for all collectives or, with
/// "allreduce:" and so on in front, for one. Case does not matter. kInvalidUsage names the word that is wrong and the words there are.
Result<Rules> make_rules(std::string_view nccl_algo, bool reproducible);

/// Whether the wide wire is for such a call: a sum, product or average of 16- or 8-bit floats.
bool uses_wide_wire(const Rules& rules, Collective collective, DataType type, ReduceOp op);

}  // namespace tutti::planner
