#include "comm/bootstrap.h"

#include "base/digest.h"
#include "base/log.h"
#include "base/mapping.h"
#include "comm/carriers.h"
#include "comm/late_ties.h"
#include "comm/mesh.h"
#include "comm/root_address.h"
#include "comm/root_client.h"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>

namespace tutti::comm {
namespace {

Status check(const BootstrapArgs& args) {
  if (args.ids.empty()) return error(Code::kInvalidArgument, "no unique id was given");
  for (const UniqueId& id : args.ids) {
    if (id.magic != kUniqueIdMagic) {
      return error(Code::kInvalidArgument,
                   "the unique id is not one: make it with ncclGetUniqueId and pass all 128 bytes on");
    }
    if (id.version != kProtocolVersion) {
      return error(Code::kInvalidUsage,
                   fmt::format("the unique id was made by a library with version {} of the bootstrap, this one "
                               "has version {}: use the same library everywhere",
                               id.version, kProtocolVersion));
    }
  }
  if (args.ranks < 1 || args.ranks > kRanksMax) {
    return error(Code::kInvalidArgument, fmt::format("{} ranks: 1 to {} can be", args.ranks, kRanksMax));
  }
  if (args.rank < 0 || args.rank >= args.ranks) {
    return error(Code::kInvalidArgument, fmt::format("rank {} is outside 0..{}", args.rank, args.ranks - 1));
  }
  return {};
}

Result<std::vector<Peer>> read_table(RootClient& root, const BootstrapArgs& args, const Bytes& payload) {
  auto peers = decode_table(payload);
  bool good = peers && peers->size() == static_cast<std::size_t>(args.ranks);
  for (int rank = 0; good && rank < args.ranks; ++rank) good = (*peers)[rank].rank == rank;
  if (!good) return root.leave(error(Code::kInternal, "the table of ranks in the bootstrap is malformed"));
  return std::move(*peers);
}

/// The leader's part: makes the segment, and tells the host's other ranks by way of the root.
Result<std::shared_ptr<Descriptor>> make_control(RootClient& root, int rank, std::size_t bytes) {
  auto file = std::make_shared<Descriptor>();
  if (bytes > 0) {
    // Mostly slots, of which few are ever touched.
    auto made = create_memory_file("tutti-control", bytes, Backing::kOnTouch);
    if (!made.ok()) return root.leave(std::move(made).error());
    *file = std::move(made).value();
  }
  const std::vector<ControlFile> control = {{rank, bytes, file->get()}};
  TUTTI_TRY(root.send(FrameType::kControl, encode(control), *file ? file : nullptr));
  TUTTI_TRY(root.expect(FrameType::kControl));
  return file;
}

/// Where the descriptor itself has not come: on several hosts, or by TCP.
Result<Descriptor> open_at_leader(const Peer& leader, std::int32_t fd) {
  const std::string path = fmt::format("/proc/{}/fd/{}", leader.pid, fd);
  Descriptor opened(above_standard(open(path.c_str(), O_RDWR | O_CLOEXEC)));
  if (!opened) {
    return system_error(
        fmt::format("open the control segment of rank {} at {} (ranks of one host must see each other's "
                    "processes and be of one user)",
                    leader.rank, path));
  }
  return opened;
}

Result<std::shared_ptr<Descriptor>> receive_control(RootClient& root, const Peer& leader, std::size_t bytes) {
  TUTTI_TRY_ASSIGN(const Bytes payload, root.expect(FrameType::kControl));
  const auto controls = decode_controls(payload).value_or(std::vector<ControlFile>());
  const auto control = std::ranges::find(controls, leader.rank, &ControlFile::leader);
  std::shared_ptr<Descriptor> file = root.take_file();
  if (!file) file = std::make_shared<Descriptor>();
  if (control == controls.end() || control->bytes != bytes) {
    return root.leave(error(Code::kInvalidUsage,
                            fmt::format("the control segment of rank {} has {} bytes where this rank's library needs {}: "
                                        "use the same library and settings on every rank (TUTTI_SLOT_BYTES, say)",
                                        leader.rank, control == controls.end() ? 0 : control->bytes, bytes)));
  }
  if (bytes == 0) return file;
  if (!*file && root.descriptor_lost())
    return root.leave(error(Code::kSystem, "no file descriptor is left: raise the limit (ulimit -n)"));
  if (!*file) {
    auto opened = open_at_leader(leader, control->fd);
    if (!opened.ok()) {
      // A leader that has gone, or given up, has met a failure, which the root tells everybody.
      TUTTI_TRY(root.hear_failure());
      return root.leave(std::move(opened).error());
    }
    *file = std::move(opened).value();
  }
  struct stat facts = {};
  if (fstat(file->get(), &facts) != 0 || static_cast<std::size_t>(facts.st_size) != bytes) {
    return root.leave(error(
        Code::kSystem, fmt::format("the control segment's file has {} bytes instead of {}", facts.st_size, bytes)));
  }
  return file;
}

/// The same tag for all ranks of one id, and hardly ever for those of two.
int tag_of(const UniqueId& id) {
  std::uint32_t word = 0;
  std::memcpy(&word, sha256(std::span(id.secret)).data(), sizeof(word));
  return static_cast<int>(word & transport::kMpiTagMax);
}

/// TCP or MPI, as all ranks find of all ranks' endpoints.
Result<MpiGroup> choose_network(const BootstrapArgs& args, const std::vector<RankEndpoint>& endpoints) {
  std::vector<MpiOffer> offers;
  for (const RankEndpoint& endpoint : endpoints) offers.push_back(endpoint.mpi);
  TUTTI_TRY_ASSIGN(MpiGroup group, agree_on_mpi(offers));
  group.tag = tag_of(args.ids[0]);
  static std::atomic<bool> told{false};
  if (group.world_ranks.empty() && !told.exchange(true)) log_info("network: TCP; {}", group.why_none);
  return group;
}

/// On several hosts: connects this rank with the others.
Status meet_others(RootClient& root, const BootstrapArgs& args, const Patience& patience, BootstrapResult& result) {
  auto listening = open_mesh_listener();
  if (!listening.ok()) return root.leave(std::move(listening).error());
  TUTTI_TRY(root.send(FrameType::kEndpoint, encode(listening.value().endpoint)));
  TUTTI_TRY_ASSIGN(const Bytes table, root.expect(FrameType::kTable));
  TUTTI_TRY_ASSIGN(const Bytes addresses, root.expect(FrameType::kEndpoints));
  TUTTI_TRY(root.finish_passing_on());
  TUTTI_TRY_ASSIGN(result.peers, read_table(root, args, table));
  auto endpoints = decode_endpoints(addresses, args.ranks);
  if (!endpoints) return root.leave(error(Code::kInternal, "the ranks' addresses in the bootstrap are malformed"));
  take_turns(*endpoints, hosts_of(result.peers));
  auto mpi = choose_network(args, *endpoints);
  if (!mpi.ok()) return root.leave(std::move(mpi).error());
  result.mpi = std::move(mpi).value();
  Mesh mesh(args.rank, args.ranks, secret_of(args.ids[0]), listening.value().listener,
            Meetings::reach_time(args.heartbeat_s, args.timeout_s));
  const std::vector<Ties> ties = ties_of(args.rank, result.peers, !result.mpi.world_ranks.empty());
  auto sockets = connect_ties(mesh, args.rank, *endpoints, ties, patience, root);
  if (!sockets.ok()) return root.leave(std::move(sockets).error());
  result.sockets = std::move(sockets).value();
  // Where all watch each other, and MPI carries data, nothing is left to be made.
  if (result.mpi.world_ranks.empty() || args.ranks > kAllWithAllMax) {
    result.late = std::make_shared<LateMeeting>(
        LateMeeting{std::move(listening.value().listener), mesh.take_meetings(), *std::move(endpoints)});
  }
  return {};
}

Result<ControlSegment> share_control(RootClient& root, const BootstrapArgs& args, const std::vector<Peer>& peers) {
  const std::string& host = peers[args.rank].host;
  const auto is_local = [&host](const Peer& peer) { return peer.host == host; };
  const int local_ranks = static_cast<int>(std::count_if(peers.begin(), peers.end(), is_local));
  const int leader = std::find_if(peers.begin(), peers.end(), is_local)->rank;
  const std::size_t bytes = args.control_bytes ? args.control_bytes(local_ranks) : 0;
  auto file = args.rank == leader ? make_control(root, args.rank, bytes) : receive_control(root, peers[leader], bytes);
  if (!file.ok()) return std::move(file).error();
  if (args.take_control) {
    Status taken = args.take_control(file.value()->get(), bytes);
    if (!taken.ok()) return root.leave(std::move(taken).error());
  }
  TUTTI_TRY(root.send(FrameType::kDone, {}));
  TUTTI_TRY_ASSIGN(const Bytes nothing, root.expect(FrameType::kComplete));
  return ControlSegment{file.value()->release(), bytes};
}

Error reason_of(const std::exception& thrown) {
  const bool no_memory = dynamic_cast<const std::bad_alloc*>(&thrown) != nullptr;
  return error(Code::kSystem, no_memory ? "out of memory" : thrown.what());
}

Result<BootstrapResult> meet_in_place(RootClient& root, const BootstrapArgs& args, const Patience& patience) {
  BootstrapResult result;
  TUTTI_TRY_ASSIGN(const Frame first, root.expect_one_of(FrameType::kTable, FrameType::kListen));
  if (first.type == FrameType::kTable) {
    TUTTI_TRY_ASSIGN(result.peers, read_table(root, args, first.payload));
  } else {
    TUTTI_TRY(meet_others(root, args, patience, result));
  }
  TUTTI_TRY_ASSIGN(result.control, share_control(root, args, result.peers));
  return result;
}

Result<BootstrapResult> meet_all(const BootstrapArgs& args) {
  const Patience patience(args.timeout_s, args.cancelled, &args.hopeless, &args.why_cancelled);
  if (args.hopeless && args.hopeless()) return why_cancelled(patience);
  std::shared_ptr<std::atomic<bool>> unwanted;
  if (args.ids[0].named && args.rank == 0) {
    TUTTI_TRY_ASSIGN(unwanted, start_named_root(args.ids[0], patience));
  }
  auto entered = RootClient::enter(args.ids[0], patience, args.ranks, self_facts(args.rank), args.heartbeat_s);
  if (!entered.ok()) {
    if (unwanted) *unwanted = true;  // at an address that leads elsewhere, say
    return std::move(entered).error();
  }
  RootClient root = std::move(entered).value();
  try {
    return meet_in_place(root, args, patience);
  } catch (const std::exception& thrown) {
    return root.leave(reason_of(thrown));
  }
}

/// Scalable init brings several ids; one root is enough, so the others may end, whatever has come of it. Those who made them may be gone.
void release_other_roots(const BootstrapArgs& args, bool all_came) {
  const Patience patience(1, args.cancelled);
  for (std::size_t i = 1; i < args.ids.size(); ++i) {
    if (all_came) {
      end_bootstrap(args.ids[i]);
    } else {
      (void)RootClient::release(args.ids[i], patience);
    }
  }
}

}  // namespace

void end_bootstrap(const UniqueId& id) {
  const Patience patience(1, nullptr);
  const auto released = RootClient::release(id, patience);
  if (!released.ok()) log_info("bootstrap: an unused root was not released: {}", released.error().message);
}

BootstrapResult bootstrap_alone() {
  BootstrapResult result;
  result.peers.push_back(self_facts(0));
  return result;
}

Result<BootstrapResult> bootstrap(const BootstrapArgs& args) {
  TUTTI_TRY(check(args));
  try {
    auto result = meet_all(args);
    if (args.rank == 0) release_other_roots(args, result.ok());
    return result;
  } catch (const std::exception& thrown) {
    // If this rank has not said its hello, the others would wait for it.
    try {
      (void)RootClient::excuse(args.ids[0], Patience(1, nullptr), args.rank, reason_of(thrown).message);
    } catch (const std::exception&) {
      // There is no memory to say so either.
    }
    throw;
  }
}

}  // namespace tutti::comm
