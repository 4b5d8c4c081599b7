#include "comm/device_messages.h"

#include "base/log.h"
#include "comm/two_shot.h"
#include "comm/watch_graph.h"
#include "cuda/stream_words.h"

#include <set>

namespace tutti::comm {
namespace {

/// Whether every rank is a host of its own: the same on all ranks.
bool has_host_each(const Membership& members) {
  std::set<int> hosts;
  for (int rank = 0; rank < members.control.ranks(); ++rank) hosts.insert(members.bridge->host_of(rank));
  return static_cast<int>(hosts.size()) == members.control.ranks();
}

}  // namespace

Status choose_messages(Membership& members, const std::shared_ptr<cuda::Device>& device) {
  if (!members.bridge) return {};
  const CudaMpi& agreed = members.cuda_mpi;
  if (!agreed.why.empty()) {
    log_info("GPU memory that is copied between hosts {}: {}",
             agreed.is_on ? "is MPI's as it is" : "goes through pinned memory", agreed.why);
  }
  if (!agreed.is_on) return {};
  TUTTI_TRY_ASSIGN(members.mpi_sends.flush, cuda::can_flush(*device));
  members.mpi_sends.are_on = true;
  members.mpi_sends.copy_too = has_host_each(members);
  // It goes on with messages of any thread's.
  prepare_mpi_thread([weak = std::weak_ptr(device)] {
    if (const auto there = weak.lock()) (void)cuda::make_current(*there);
  });
  return {};
}

Result<std::vector<bool>> peers_in_place(const Membership& members, const cuda::Device& device,
                                         std::span<const cuda::StreamHandle> streams) {
  for (const cuda::StreamHandle stream : streams) {
    TUTTI_TRY_ASSIGN(const bool follows, cuda::follows_default_stream(device, stream));
    if (follows) return std::vector<bool>();
  }
  std::vector<bool> peers;
  for (int rank = 0; rank < members.control.ranks(); ++rank) peers.push_back(!members.bridge->is_here(rank));
  return peers;
}

MessageBlocks message_blocks(const CallArgs& args, int ranks, int rank, int peer) {
  if (args.shot != Shot::kNone) return blocks_of_shot(args, {ranks, rank}, peer);
  const std::size_t bytes = args.count * size_of(args.type);
  const std::size_t pitch = args.gpu_pitch != 0 ? args.gpu_pitch : bytes;
  const bool reads_blocks = args.collective == Collective::kAllToAll || args.collective == Collective::kScatter;
  const bool sends = args.collective == Collective::kGather    ? peer == args.root
                     : args.collective == Collective::kScatter ? rank == args.root
                                                               : true;
  const bool receives = args.collective == Collective::kGather    ? rank == args.root
                        : args.collective == Collective::kScatter ? peer == args.root
                                                                  : true;
  auto* const from = static_cast<std::byte*>(const_cast<void*>(args.send));
  auto* const to = static_cast<std::byte*>(args.receive);
  const std::size_t at = pitch * static_cast<std::size_t>(peer);
  return {.sent = sends ? from + (reads_blocks ? at : 0) : nullptr,
          .sent_bytes = bytes,
          .received = receives ? to + (args.collective == Collective::kScatter ? 0 : at) : nullptr,
          .received_bytes = bytes};
}

bool has_death(const Communicator& communicator) {
  for (int rank = 0; rank < communicator.ranks(); ++rank) {
    if (is_death(communicator.life_of(rank))) return true;
  }
  return false;
}

bool is_left(const Communicator& communicator, transport::MpiMessage& message) {
  return has_death(communicator) || !message.give_up();
}

void prepare_for_messages(Communicator& communicator, const cuda::Device& device) {
  const Status current = cuda::make_current(device);
  if (!current.ok()) communicator.fail(current.error().code, communicator.rank(), current.error().message);
}

}  // namespace tutti::comm
