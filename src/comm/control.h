// The control segment: the one piece of shared memory of a communicator. Announce lines, channels, each rank's state, the
// settings that rank 0 decides, and the first failure.
#pragma once

#include "algorithm/planned_trees.h"
#include "base/config.h"
#include "base/dtype.h"
#include "base/result.h"
#include "comm/calibration.h"
#include "comm/comm.h"
#include "comm/device_card.h"
#include "comm/machine_board.h"
#include "comm/unique_id.h"
#include "planner/rules.h"
#include "protocol/announce.h"
#include "protocol/channel.h"
#include "protocol/lines.h"
#include "protocol/pair.h"
#include "transport/freed_list.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tutti::comm {

class RailRoom;

/// The first lane carries send and receive, the others carry collectives.
inline constexpr std::uint32_t kPointToPointLane = 0;
inline constexpr std::uint32_t kFirstCollectiveLane = 1;
/// For as many as a machine's trees may have, where ranks are so few that they are planned.
constexpr std::uint32_t collective_lanes(int ranks) {
  return ranks <= algorithm::kTreeRanksMax ? algorithm::kTreeLanesMax : planner::kTableLanes;
}

enum class RankPhase : std::uint64_t {
  kAbsent,
  kMapped,
  kPlaced,    ///< on GPUs of which NCCL_P2P_LEVEL keeps some apart
  kReached,   ///< on GPUs of one process: each has asked which of the others' memory it reaches
  kLinked,    ///< on GPUs that ranks in several processes map memory of, or whose kernels wait for each other
  kMeasured,  ///< over hosts of which some are one system (containers): the network is measured
  kReady,
  kLeft
};

/// Which way a point-to-point announcement goes.
enum class Direction : std::uint8_t { kSend, kReceive };

/// What a rank calls, in full, next to its announce line: read when fingerprints differ, and by whoever asks where a rank is.
struct Signature {
  std::uint64_t count = 0;
  std::uint32_t sequence = 0;
  std::int32_t root = 0;
  Collective collective = Collective::kAllReduce;
  DataType type = DataType::kInt8;
  ReduceOp op = ReduceOp::kSum;
  std::uint8_t scaled = 0;    ///< PreMulSum
  std::uint8_t internal = 0;  ///< not the user's call: a split's exchange
  std::uint8_t one_way =
      0;  ///< the rank may be through with the call before others have come to it; follows from the rest
  Shot shot = Shot::kNone;  ///< how its data goes, and so what its line has
  std::uint8_t reserved = 0;
  std::uint32_t schedule = 0;     ///< of the schedule that tuttiCommSetSchedule has set for such calls; 0: none
  std::uint32_t tuning = 0;       ///< of the tuning that tuttiCommSetTuning has set; 0: none
  std::uint64_t whole_count = 0;  ///< CallArgs::whole_count

  std::uint32_t fingerprint() const;
  /// "all_reduce count 5 float32 sum"
  std::string describe() const;
  /// ", with a tuning that was set (0a1b2c3d)", or nothing.
  std::string describe_tuning() const;
};

/// Those of calls of all ranks, a cache line each. Twice as many per rank as lines: those of line s - depth and later are there when a
/// rank that has announced s looks for the first call that differs, even if others are ahead.
struct CollectiveSignatures {
  static constexpr std::uint32_t kDepth = 2 * protocol::kAnnounceDepth;
  struct alignas(64) Place {
    Signature signature;
  };
  Place* places = nullptr;
  std::uint32_t ranks = 0;

  Signature& of(int rank, std::uint32_t sequence) const {
    return places[std::size_t{sequence % kDepth} * ranks + static_cast<std::uint32_t>(rank)].signature;
  }
};

/// Those of the sends from one rank to another, beside their lines.
struct PairSignatures {
  Signature* sent = nullptr;
  Signature* received = nullptr;

  Signature& of(Direction direction, std::uint32_t sequence) const {
    return direction == Direction::kSend ? sent[sequence % protocol::kSendDepth]
                                         : received[sequence % protocol::kReceiveDepth];
  }
};

/// As many ranks have kernels that pass data on (cuda::kRanksMax).
inline constexpr std::size_t kGpusInRing = 16;

/// What all ranks must agree on; rank 0's configuration, read by the others once all are there.
struct Settings {
  std::uint64_t single_copy = 0;
  std::uint64_t p2p_disable = 0;
  std::uint64_t shm_disable = 0;
  std::uint64_t single_copy_min_bytes = 0;
  Protocols protocols = Protocols::kAny;  ///< kLines: small messages may go as lines
  std::uint64_t carry_bytes = 0;          ///< longest input that travels beside an announce line ...
  std::uint64_t one_way_carry_bytes = 0;  ///< ... and of a rooted call of one host
  std::uint64_t far_carry_bytes = 0;      ///< ... and of hosts of one rank each, where far_limits() allows as much
  std::uint64_t rail_bytes = 0;           ///< longest all-reduce that goes by rails, where plan_rails() allows as much
  std::uint64_t mpi_direct_bytes = 0;     ///< shortest all-reduce by MpiAllReduce; 0: none
  double timeout_s = 0;
  double crowding = 1;          ///< ranks per core, as rank 0 may use them, where seats do not tell
  std::uint64_t calibrate = 0;  ///< rank 0 wants costs measured
  planner::SlotStores slot_stores = planner::SlotStores::kAsMeasured;  ///< TUTTI_SLOT_STORES
  std::uint64_t staging_bytes = 0;  ///< longest part of a call on device memory that goes through host memory
  planner::MeasuredCosts costs;     ///< there once all ranks are ready
  std::uint64_t last_cache_bytes =
      0;  ///< around the first of rank 0's processors, on one host; 0: not known. There once all are ready
  std::uint32_t tuning_bytes = 0;  ///< of the text behind Control::tuning_text()
  char algorithm[1024] = {};
  double between_groups_gbps =
      0;  ///< what the machine has between groups of ranks; 0: not known. There once all are ready
  GpuDistance p2p_level = GpuDistance::kSystem;  ///< NCCL_P2P_LEVEL
  std::uint64_t shared_gpu_host_bytes = 0;       ///< longest call of processes that share a GPU through host memory
  std::int8_t gpu_ring[kGpusInRing] = {};        ///< rank 0's suggestion of an order; there once all are ready
  std::uint64_t gpus_apart = 0;  ///< 1: some of the ranks' GPUs have no link of their own. There once all are ready
};

/// What a rank holds open until all are ready, for the others to try whether they can map its memory; and what it found itself.
struct MappingProbe {
  std::int32_t fd = -1;
  std::uint32_t works = 0;  ///< it maps the others' memory, or needs not. There once all are ready
  std::uint64_t file = 0;   ///< transport::file_identity()
};

/// The first failure, kept once per communicator: it wins over what follows from it.
struct FailureRecord {
  std::uint64_t word = 0;  ///< 0 none, 1 being written, 2 readable
  std::int32_t code = 0;
  std::int32_t rank = -1;  ///< whose fault it is, or -1
  char text[1008] = {};
};

/// What a rank that is in ncclCommShrink tells those that stay with it (shrink.cpp). Written by that rank alone.
struct ShrinkPlace {
  alignas(64) std::uint64_t word = 0;  ///< how many shrinks the rank has begun << 2 | ShrinkStage of the last
  std::uint64_t gave_up = 0;           ///< number of the last one that came to nothing
  std::uint64_t objected = 0;  ///< and of the last in which others left out other ranks; 0 while what follows changes
  std::uint64_t objected_to = 0;  ///< whose shrink that was about, written before it: rank << 32 | its number there
  UniqueId id;                    ///< of the new communicator, where the rank will be its first
  /// Whom gave_up is due to, written before it: that number << 32 | (kPeerLives * rank + PeerLife). Of an older number: nobody.
  std::uint64_t gone = 0;
};

/// Lists of ranks that a shrink leaves out. The last two are those that differ, by a rank's `objected`: its own and that of objected_to.
enum class ShrinkList : std::uint8_t { kOwn, kObjector, kObjectedTo };
inline constexpr std::size_t kShrinkLists = 3;

/// What a rank says while the network is measured (network_costs.h). Written by that rank alone.
struct NetworkTalk {
  alignas(64) std::uint64_t asked = 0;
  std::uint64_t answered = 0;
};

class Control {
 public:
  /// Slots of so many ranks, by this process's configuration, where they share a host and where they do not.
  static protocol::SlotShape slots_on_host(int ranks);
  static protocol::SlotShape slots_over_hosts(int ranks);
  /// Bytes of the segment for so many ranks on one host, by this process's configuration; 0 for one rank, which shares nothing.
  static std::size_t bytes_for(int ranks);
  /// The same of `ranks` of which so many are on this host: where others are not, this host's own segment and, behind it, the copy that
  /// each of its ranks has of the whole.
  static std::size_t bytes_on_host(int ranks, int local_ranks);

  using Memory = std::shared_ptr<std::byte>;
  /// Maps the segment, once per process, whichever rank asks first; 0 bytes: no segment, but memory of this rank's own, for so many ranks.
  static Result<Memory> map(int fd, std::size_t bytes, int ranks);
  /// In the memory that map() has made of so many bytes. The rank with `leads` writes sizes and settings first; all others may look at them
  /// only after everyone has set its phase.
  static Control open(Memory memory, std::size_t bytes, int ranks, bool leads, protocol::SlotShape slots);

  /// Of a host's segment: the copy of the whole that the rank at this place among the host's ranks has.
  Control copy(int ranks, int place, bool leads) const;
  /// Of a host's segment, behind the copies, in communicators of up to kAllWithAllMax ranks.
  RailRoom rail_room(int ranks) const;

  /// Of memory that is not opened yet.
  static FailureRecord& failure_in(const Memory& memory);

  int ranks() const { return ranks_; }
  Settings& settings() const;
  FailureRecord& failure() const;
  CalibrationBoard& calibration() const;
  const std::uint64_t* abort_word() const { return &failure().word; }
  /// How many shared allocations the ranks' processes have freed, each counted for each of its ranks. In the abort word's cache line,
  /// which all calls look at.
  std::uint64_t* frees() const;
  /// Those of the rank's process.
  transport::FreedList& freed(int rank) const;
  /// Of a plan with one lane, and of send and receive. Lanes of collectives have parts of the same slots (planner::slot_part).
  protocol::SlotShape slot_shape() const;
  protocol::LineShape line_shape() const;

  /// Measured crossovers, for which rank 0 has a text: room for planner::kTuningBytesMax, with more than one rank.
  char* tuning_text() const;

  /// Where ranks sit and what they see.
  MachineBoard machine() const;

  std::uint64_t* phase(int rank) const;
  /// Which processors ranks were last seen waiting on, for executor::Crowding.
  std::span<std::uint32_t> processors() const;
  /// Whether the rank found that it can copy from every other process by system call.
  std::uint64_t* copies(int rank) const;
  MappingProbe& mapping(int rank) const;
  /// Whether the rank asks for sums in rank order.
  std::uint64_t* reproducible(int rank) const;
  /// Whether the rank asks for a float32 wire.
  std::uint64_t* wide_wire(int rank) const;

  /// What the rank has measured with the next host, if it is the first of its own: there once it is ready.
  planner::NetworkCosts& network_costs(int rank) const;
  NetworkTalk& network_talk(int rank) const;

  /// Of a rank of another host that leaves, and that sends no more: kFarewell plus the number of its last line. 0: it does not leave.
  std::uint64_t* farewell(int rank) const;
  static constexpr std::uint64_t kFarewell = std::uint64_t{1} << 32;

  /// What the rank says of its memory, before it is mapped.
  DeviceCard& device_card(int rank) const;
  ShrinkPlace& shrink_place(int rank) const;
  /// The ranks that it leaves out, a bit each: so many words. The lists of a rank lie behind each other.
  std::uint64_t* shrink_list(int rank, ShrinkList which = ShrinkList::kOwn) const;
  std::size_t shrink_list_words() const { return (static_cast<std::size_t>(ranks_) + 63) / 64; }

  /// The announce lines of calls of all ranks.
  protocol::AnnounceBoard board() const;
  CollectiveSignatures signatures() const;
  /// The lines of sends from one rank to another.
  protocol::Pair pair(int from, int to) const;
  PairSignatures pair_signatures(int from, int to) const;
  /// For streams of ranks that share a GPU (device_bells.h): whole pages; empty with too many ranks for GPUs.
  std::span<std::byte> bells() const;
  /// For buffers that ranks in several processes work on in place (device_agreement.h, device_exports.h); empty as well.
  std::span<std::byte> agreement() const;
  std::span<std::byte> exports() const;
  /// The memory itself, for what carries parts of it to other hosts' copies, which are laid out alike.
  std::span<std::byte> memory() const;
  /// What rank 0 writes for all before its phase: sizes and settings, measured crossovers.
  std::vector<std::span<const std::byte>> written_by_leader() const;
  /// What a rank says of itself before it is mapped.
  std::span<const std::byte> abilities(int rank) const;
  /// My end of the channel with `peer`, counts at zero.
  protocol::Channel channel(int me, int peer, std::uint32_t lane) const;

 private:
  struct Layout;
  Control(Memory base, std::size_t bytes, int ranks);
  Layout layout() const;
  void set_up(protocol::SlotShape slots) const;
  /// Of a host's segment with so many copies of the whole behind it.
  static std::size_t bytes_of_copies(int ranks, int local_ranks, int copies);
  template <class T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(base_.get() + offset);
  }

  Memory base_;
  std::size_t bytes_;
  int ranks_;
  std::shared_ptr<const Layout> before_lines_;
};

/// Stores the first failure; later ones are dropped. Returns true if this one was the first.
bool record_failure(FailureRecord& record, Code code, int rank, std::string_view text);

}  // namespace tutti::comm
