// Bootstrap: from a unique id to a table of all ranks and one shared control segment per host.
//
//   every rank ---hello---> root (in the process that made the id)
//   every rank <---place--- root          where it is in the tree of ranks by which all else goes (bootstrap_tree.h)
//   every rank <---table--- root          hellos of all ranks, or the reason why not
//   on several hosts: ranks connect with each other (mesh.h)
//   lowest rank of each host: creates the control memfd; the others of the host get its descriptor, or open it
#pragma once

#include "base/result.h"
#include "comm/network.h"
#include "comm/private_descriptor.h"
#include "comm/unique_id.h"
#include "transport/byte_stream.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tutti::comm {

/// What a rank says of itself, and every rank knows of every other afterwards.
struct Peer {
  int rank = 0;
  std::int32_t pid = 0;             ///< in this process's pid namespace, from SO_PEERCRED where possible
  std::uint64_t process_token = 0;  ///< random, equal for ranks of one process and only for them
  std::string host;                 ///< name, boot id, namespace of process ids (NCCL_HOSTID overrides): equal = same host
  std::uint64_t probe_address = 0;  ///< of 8 readable bytes holding probe_value, for single-copy tests
  std::uint64_t probe_value = 0;
};

/// A descriptor of a memfd that all local ranks share, `bytes` long, zero-filled at first. Whoever receives it owns it.
struct ControlSegment {
  int fd = -1;
  std::size_t bytes = 0;
};

/// Connections with one other rank (mesh.h).
struct PeerSockets {
  std::vector<PrivateDescriptor> data;  ///< none where MPI carries data, or it is made when it is needed
  PrivateDescriptor watch;
  std::unique_ptr<transport::ByteStream> stream;  ///< in place of data
};

struct LateMeeting;

struct BootstrapResult {
  std::vector<Peer> peers;            ///< [ranks], own entry included
  std::vector<PeerSockets> sockets;   ///< [ranks] if they are on several hosts, own entry empty; else none
  MpiGroup mpi;                       ///< on several hosts: who they are in MPI, if that carries data
  std::shared_ptr<LateMeeting> late;  ///< on several hosts, if it does not: for further connections (late_ties.h)
  ControlSegment control;
};

struct BootstrapArgs {
  std::vector<UniqueId> ids;  ///< several: scalable init; ids[0] is enough for one host
  int ranks = 1;
  int rank = 0;
  /// Bytes of the control segment, given the number of ranks on this host.
  std::function<std::size_t(int local_ranks)> control_bytes;
  /// May be empty. Called with the control segment (-1, 0: this rank shares none) before anybody's call succeeds: an error is told to all.
  std::function<Status(int fd, std::size_t bytes)> take_control;
  /// Polled; true ends the wait with an error (abort of a communicator that is still initialising).
  const std::atomic<bool>* cancelled = nullptr;
  /// The same, for reasons that the caller finds out by asking (the communicator that is being split has failed).
  std::function<bool()> hopeless;
  /// What the others are told where one of these has ended the wait. Empty: that this rank was aborted.
  std::function<Error()> why_cancelled;
  double timeout_s = 1800;  ///< 0 = never
  double heartbeat_s = 10;  ///< of ranks that are there, for a sign of life; 0 = never
};

/// Every rank's call returns the same peers, or an error that says which rank and why (duplicate rank, different rank
/// counts, a rank that died, a timeout naming the missing ranks). Leaves nothing behind.
Result<BootstrapResult> bootstrap(const BootstrapArgs& args);

/// One rank that nobody else can join: without an id, and without a control segment.
BootstrapResult bootstrap_alone();

/// For an id whose ranks have given up, or that nobody needs: its maker stops waiting for those who did not come.
void end_bootstrap(const UniqueId& id);

/// Own facts: pid, process token, host.
Peer self_facts(int rank);

}  // namespace tutti::comm
