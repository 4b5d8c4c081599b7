#include "api/repeated_call.h"

#include "comm/device_memory.h"
#include "executor/stream.h"

#include <atomic>
#include <cstdint>
#include <limits>
#include <string>

#include <fmt/format.h>

namespace tutti::api {
namespace {

Error invalid(std::string message, std::source_location where = std::source_location::current()) {
  return error(Code::kInvalidArgument, std::move(message), where);
}

/// Where the two buffers may coincide.
enum class InPlace : std::uint8_t {
  kNever,
  kSameStart,      ///< recvbuff == sendbuff
  kReceiveInSend,  ///< recvbuff is this rank's block of sendbuff
  kSendInReceive,  ///< sendbuff is this rank's block of recvbuff
};

/// What this rank reads and writes, in blocks of `count` elements; 0: the buffer is not used.
struct Extent {
  std::size_t send_blocks = 1;
  std::size_t receive_blocks = 1;
  InPlace in_place = InPlace::kSameStart;
};

Extent extent_of(Collective collective, std::size_t ranks, bool at_root) {
  switch (collective) {
    case Collective::kAllReduce: return {1, 1, InPlace::kSameStart};
    case Collective::kReduce: return {1, at_root ? 1u : 0u, InPlace::kSameStart};
    case Collective::kBroadcast: return {at_root ? 1u : 0u, 1, InPlace::kSameStart};
    case Collective::kReduceScatter: return {ranks, 1, InPlace::kReceiveInSend};
    case Collective::kAllGather: return {1, ranks, InPlace::kSendInReceive};
    case Collective::kAllToAll: return {ranks, ranks, InPlace::kSameStart};
    case Collective::kGather: return {1, at_root ? ranks : 0, InPlace::kSendInReceive};
    case Collective::kScatter: return {at_root ? ranks : 0, 1, InPlace::kReceiveInSend};
    case Collective::kSend: return {1, 0, InPlace::kNever};
    case Collective::kReceive: return {0, 1, InPlace::kNever};
  }
  return {};
}

bool has_peer(Collective collective) { return collective == Collective::kSend || collective == Collective::kReceive; }

Status check_op(comm::Communicator& communicator, const RawCall& call, comm::CallArgs& args) {
  const int op = static_cast<int>(call.op);
  if (op >= 0 && op < kReduceOps) {
    args.op = static_cast<ReduceOp>(op);
    return {};
  }
  if (op < 0)
    return invalid(
        fmt::format("op is {}; pass ncclSum (0) to ncclAvg (4), or an op made by ncclRedOpCreatePreMulSum", op));
  const Result<comm::ScaledSum> scaled = comm::scaled_sum(communicator, exchanged_op(call.comm, op) - kReduceOps);
  if (!scaled.ok())
    return invalid(
        fmt::format("op {} is none of this communicator's: it was never made by ncclRedOpCreatePreMulSum here, or "
                    "is destroyed already; pass ncclSum (0) to ncclAvg (4), or make one",
                    op));
  if (scaled.value().type != args.type)
    return invalid(fmt::format("op {} was made for {}, but datatype is {}; make one for each data type", op,
                               name_of(scaled.value().type), name_of(args.type)));
  args.op = ReduceOp::kSum;
  args.scaled = true;
  args.scale = scaled.value().scale;
  args.scale_is_address = scaled.value().is_address;
  return {};
}

Status check_root(const RawCall& call, int ranks) {
  const bool peer = has_peer(call.collective);
  if (!peer && !is_rooted(call.collective)) return {};
  if (call.root >= 0 && call.root < ranks) return {};
  return invalid(
      fmt::format("{} is {}, but the communicator's ranks are 0 to {}", peer ? "peer" : "root", call.root, ranks - 1));
}

Status check_count(const RawCall& call, DataType type, int ranks) {
  const Extent extent = extent_of(call.collective, static_cast<std::size_t>(ranks), true);
  const std::size_t blocks = std::max(extent.send_blocks, extent.receive_blocks);
  const std::size_t limit = std::numeric_limits<std::ptrdiff_t>::max() / size_of(type) / blocks;
  if (call.count <= limit) return {};
  return invalid(
      fmt::format("{} is {}: {} block(s) of that many {} elements are more bytes than an address space has (largest "
                  "count: {}); a negative number may have been passed",
                  call.names->count, call.count, blocks, name_of(type), limit));
}

/// Bytes that both ranges have.
std::size_t common_bytes(std::uintptr_t a, std::size_t a_bytes, std::uintptr_t b, std::size_t b_bytes) {
  const std::uintptr_t begin = std::max(a, b);
  const std::uintptr_t end = std::min(a + a_bytes, b + b_bytes);
  return end > begin ? end - begin : 0;
}

std::string in_place_rule(InPlace in_place, int rank, std::size_t block_bytes) {
  const std::size_t offset = static_cast<std::size_t>(rank) * block_bytes;
  switch (in_place) {
    case InPlace::kSameStart: return "pass recvbuff == sendbuff to work in place";
    case InPlace::kReceiveInSend:
      return fmt::format("pass recvbuff == sendbuff + {} bytes (rank {}'s block) to work in place", offset, rank);
    case InPlace::kSendInReceive:
      return fmt::format("pass sendbuff == recvbuff + {} bytes (rank {}'s block) to work in place", offset, rank);
    case InPlace::kNever: break;
  }
  return "this operation does not work in place";
}

Status check_buffers(const Names& names, const comm::CallArgs& args, const Extent& extent, int rank) {
  if (args.count == 0) return {};
  const auto needed = [&](const char* name) {
    const bool root_alone = is_rooted(args.collective) && !names.one_buffer;
    return invalid(fmt::format("{} is NULL, but {} is {}; NULL is for {} 0{}", name, names.count, args.count,
                               names.count, root_alone ? ", and for buffers that only the root needs" : ""));
  };
  if (extent.send_blocks > 0 && !args.send) return needed(names.send);
  if (extent.receive_blocks > 0 && !args.receive) return needed(names.receive);
  if (extent.send_blocks == 0 || extent.receive_blocks == 0) return {};

  const std::size_t block_bytes = args.count * size_of(args.type);
  const std::size_t offset = static_cast<std::size_t>(rank) * block_bytes;
  const auto send = reinterpret_cast<std::uintptr_t>(args.send);
  const auto receive = reinterpret_cast<std::uintptr_t>(args.receive);
  const bool exact = (extent.in_place == InPlace::kSameStart && receive == send) ||
                     (extent.in_place == InPlace::kReceiveInSend && receive == send + offset) ||
                     (extent.in_place == InPlace::kSendInReceive && send == receive + offset);
  const std::size_t common =
      common_bytes(send, extent.send_blocks * block_bytes, receive, extent.receive_blocks * block_bytes);
  if (exact || common == 0) return {};
  return invalid(fmt::format("sendbuff {} and recvbuff {} overlap by {} bytes; {}, or buffers that do not overlap",
                             fmt::ptr(args.send), fmt::ptr(args.receive), common,
                             in_place_rule(extent.in_place, rank, block_bytes)));
}

/// Of the buffers that this rank's call uses.
Status check_memory(const comm::Communicator& communicator, const Names& names, const comm::CallArgs& args,
                    const Extent& extent) {
  if (args.count == 0) return {};
  if (extent.send_blocks > 0) TUTTI_TRY(comm::check_memory(communicator, args.send, names.send));
  if (extent.receive_blocks > 0 && (args.receive != args.send || extent.send_blocks == 0)) {
    TUTTI_TRY(comm::check_memory(communicator, args.receive, names.receive));
  }
  return {};
}

/// On a device, what cudaStream_t's value means is CUDA's to check; but a host stream is certainly none.
Status check_stream(const comm::Communicator& communicator, const void* stream) {
  const bool on_host = comm::device_of(communicator) == comm::kHostMemory;
  if (!on_host) {
    if (!stream || !executor::stream_valid(const_cast<void*>(stream))) return {};
    return invalid(fmt::format("stream {} is a host stream, and this communicator works on a GPU; pass a cudaStream_t",
                               fmt::ptr(stream)));
  }
  if (!stream || executor::stream_valid(const_cast<void*>(stream))) return {};
  return invalid(
      fmt::format("stream {} is not a host stream: this communicator works on host memory; pass one that "
                  "tuttiStreamCreate made and that is not destroyed, or NULL to run in the calling thread",
                  fmt::ptr(stream)));
}

thread_local KnownCall known_of_thread[kKnownCalls];

/// A number that no other call of this process has.
std::uint64_t next_identity() {
  constexpr std::uint64_t kAtATime = 1 << 20;
  static std::atomic<std::uint64_t> taken{1};
  thread_local std::uint64_t next = 0, end = 0;
  if (next == end) {
    next = taken.fetch_add(kAtATime, std::memory_order_relaxed);
    end = next + kAtATime;
  }
  return next++;
}

/// Calls on streams, and PreMulSum's operators, which may be destroyed, are checked anew each time. On device memory buffers
/// have to be looked at.
void remember(const comm::Communicator& communicator, const RawCall& call, const Extent& extent, comm::CallArgs& args) {
  known_calls = known_of_thread;
  KnownCall& known = known_calls[known_index(args.collective)];
  known.call.comm = nullptr;
  if (call.stream || args.scaled) return;
  const auto rank = static_cast<std::size_t>(comm::rank_of(communicator));
  const std::size_t block_bytes = args.count * size_of(args.type);
  args.identity = next_identity();
  known.call = call;
  known.args = args;
  known.send_bytes = extent.send_blocks * block_bytes;
  known.receive_bytes = extent.receive_blocks * block_bytes;
  known.in_place_distance = extent.in_place == InPlace::kReceiveInSend   ? rank * block_bytes
                            : extent.in_place == InPlace::kSendInReceive ? 0 - rank * block_bytes
                                                                         : 0;
}

bool fits(const KnownCall& k, const void* send, const void* receive) {
  if (comm::devices_are_known()) return false;  // they may be a device's
  if ((k.send_bytes != 0 && !send) || (k.receive_bytes != 0 && !receive)) return false;
  if (k.send_bytes == 0 || k.receive_bytes == 0) return true;
  const std::uintptr_t distance = reinterpret_cast<std::uintptr_t>(receive) - reinterpret_cast<std::uintptr_t>(send);
  const bool apart = distance >= k.send_bytes && 0 - distance >= k.receive_bytes;
  return apart || distance == k.in_place_distance;
}

}  // namespace

constinit thread_local KnownCall* known_calls [[gnu::tls_model("initial-exec")]] = nullptr;

bool take_buffers(KnownCall& known, const void* send, void* receive) {
  if (!fits(known, send, receive)) return false;
  known.call.send = known.args.send = send;
  known.call.receive = known.args.receive = receive;
  return true;
}

Result<comm::Communicator*> checked_communicator(ncclComm_t handle) {
  if (!handle) return invalid("comm is NULL; make a communicator by ncclCommInitRank first");
  if (comm::Communicator* found = comm::find(handle)) return found;
  return comm::no_communicator(handle);
}

Result<DataType> checked_type(ncclDataType_t type) {
  const int value = static_cast<int>(type);
  if (value >= 0 && value < kDataTypes) return static_cast<DataType>(value);
  return invalid(fmt::format("datatype is {}; pass ncclInt8 (0) to ncclFloat8e5m2 ({})", value, kDataTypes - 1));
}

int exchanged_op(ncclComm_t comm, int op) {
  const auto bits = reinterpret_cast<std::uintptr_t>(comm);
  const auto mask = static_cast<int>((bits ^ bits >> 32) * 0x9e3779b97f4a7c15 >> 33);
  const int other = op ^ mask;
  return other < kReduceOps ? op : other;  // below are NCCL's own
}

Result<comm::CallArgs> checked_shape(comm::Communicator& communicator, const RawCall& call) {
  if (Status known = comm::check_place(communicator); !known.ok()) return known.error();
  const int ranks = comm::size_of(communicator);
  Result<comm::CallArgs> checked{comm::CallArgs()};  // what is returned
  comm::CallArgs& args = checked.value();
  args.collective = call.collective;
  args.send = call.send;
  args.receive = call.receive;
  args.count = call.count;
  args.root = call.root;
  args.stream = call.stream;
  TUTTI_TRY_ASSIGN(args.type, checked_type(call.type));
  if (reduces(call.collective)) TUTTI_TRY(check_op(communicator, call, args));
  TUTTI_TRY(check_root(call, ranks));
  TUTTI_TRY(check_count(call, args.type, ranks));
  return checked;
}

Result<comm::CallArgs> checked_call(comm::Communicator& communicator, const RawCall& call) {
  Result<comm::CallArgs> checked = checked_shape(communicator, call);
  if (!checked.ok()) return checked;
  comm::CallArgs& args = checked.value();
  const int rank = comm::rank_of(communicator);
  const Extent extent =
      extent_of(args.collective, static_cast<std::size_t>(comm::size_of(communicator)), rank == args.root);
  TUTTI_TRY(check_buffers(*call.names, args, extent, rank));
  TUTTI_TRY(check_stream(communicator, args.stream));
  TUTTI_TRY(check_memory(communicator, *call.names, args, extent));
  if (comm::device_of(communicator) == comm::kHostMemory) remember(communicator, call, extent, args);
  return checked;
}

Status checked_pointer(const void* pointer, const char* name) {
  if (pointer) return {};
  return invalid(fmt::format("{} is NULL; pass the address where the result goes", name));
}

}  // namespace tutti::api
