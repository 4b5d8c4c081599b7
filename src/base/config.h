// Configuration: every environment variable that the library reads, in one immutable struct, read once. The only place
// that calls getenv. What the environment does not say NCCL's configuration files may (config_files.h).
#pragma once

#include "base/gpu_distance.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace tutti {

/// What a line of the log is about, as NCCL_DEBUG_SUBSYS names it; one bit each.
enum class LogSubject : std::uint8_t { kInit = 1, kGraph = 2, kTuning = 4, kEnvironment = 8 };

/// What NCCL_PROTO leaves: lines are LL and LL128, which have flags in their words, in place of Simple.
enum class Protocols : std::uint64_t { kAny, kLines, kNoLines };

enum class LogLevel : std::uint8_t { kNone, kVersion, kWarn, kInfo, kTrace };

struct Config {
  LogLevel log_level = LogLevel::kNone;  ///< NCCL_DEBUG: VERSION, WARN, INFO, TRACE
  unsigned log_subjects = ~0u;  ///< NCCL_DEBUG_SUBSYS: bits of LogSubject; INFO lines of others are not printed
  std::string log_file;         ///< NCCL_DEBUG_FILE: %h host, %p process; empty = stderr
  std::string algorithm;        ///< NCCL_ALGO: "ring,tree;allreduce:^tree"; empty = the planner's choice
  std::string device;           ///< TUTTI_DEVICE: "host", "cuda" or empty = whatever is usable
  bool multi_rank_gpu = false;  ///< NCCL_MULTI_RANK_GPU_ENABLE: several ranks of a communicator on one GPU
  bool graph_mixing = true;     ///< NCCL_GRAPH_MIXING_SUPPORT: graphs are ordered with calls outside of them
  std::string host_id;          ///< NCCL_HOSTID: overrides name, boot id, namespace
  std::string network;          ///< TUTTI_NET: "tcp", "mpi"; empty or "auto" = MPI where the application has it
  std::string cuda_mpi = "0";   ///< TUTTI_CUDA_MPI: "1": MPI takes GPU memory if it says so; "force": unasked
  std::optional<std::size_t> mpi_direct_bytes;  ///< TUTTI_MPI_DIRECT_BYTES; 0 = never
  int socket_threads = 1;                       ///< NCCL_SOCKET_NTHREADS: times
  int sockets_per_thread = 1;       ///< NCCL_NSOCKS_PERTHREAD: sockets for data between two ranks, 16 at most
  std::size_t zero_copy_bytes = 0;  ///< TUTTI_ZEROCOPY_BYTES: MSG_ZEROCOPY for sends so long; 0 = never
  double heartbeat_timeout_s = 10;  ///< TUTTI_HEARTBEAT_TIMEOUT_S: 0 = never
  double timeout_s = 1800;          ///< TUTTI_TIMEOUT_S: 0 = never
  bool reproducible = false;        ///< TUTTI_REPRODUCIBLE
  bool wide_wire = false;           ///< TUTTI_WIRE: true if "float32"
  bool blocking = true;             ///< NCCL_COMM_BLOCKING (unset: the config struct's)
  bool blocking_set = false;
  bool p2p_disable = false;  ///< NCCL_P2P_DISABLE, or NCCL_P2P_LEVEL=LOC: ranks do not touch each other's buffers
  GpuDistance p2p_level = GpuDistance::kSystem;  ///< NCCL_P2P_LEVEL: GPUs that are farther apart do not either
  bool shm_disable = false;                      ///< NCCL_SHM_DISABLE: processes do not map each other's buffers
  bool single_copy = true;                       ///< TUTTI_SINGLE_COPY: process_vm_readv/writev between processes
  Protocols protocols = Protocols::kAny;         ///< NCCL_PROTO
  std::size_t slot_bytes = 0;                    ///< TUTTI_SLOT_BYTES: 0 = by rank count
  std::size_t single_copy_min_bytes = 0;  ///< TUTTI_SINGLE_COPY_MIN_BYTES: single copies from here on; 0 = by cost
  std::size_t shared_gpu_host_bytes =
      std::size_t{1} << 20;     ///< TUTTI_SHARED_GPU_HOST_BYTES: longest call of GPU ranks by turns through host memory
  bool export_buffers = false;  ///< TUTTI_EXPORT_BUFFERS: other processes may work on unregistered GPU buffers in place
  double in_place_wait_s =
      -1;  ///< TUTTI_IN_PLACE_WAIT_S: for others, so that a GPU's call goes in place; < 0 = by its length
  std::size_t carry_bytes = std::size_t{1} << 20;  ///< TUTTI_CARRY_BYTES: longest input carried beside announce lines
  std::size_t stream_min_bytes =
      0;                    ///< TUTTI_STREAM_MIN_BYTES: calls that touch so much write past the caches; 0 = default
  std::string slot_stores;  ///< TUTTI_SLOT_STORES: "ordinary", "streamed"; empty = what was measured to be faster
  std::size_t staging_bytes =
      0;                    ///< TUTTI_STAGING_BYTES: longest part of a GPU's call through host memory; 0 = default
  bool calibrate = true;    ///< TUTTI_CALIBRATE: measure what bytes cost between processes when a communicator is made
  std::string tuning_file;  ///< TUTTI_TUNING_FILE: measured crossovers; empty = the cost model's
  std::string topology_file;       ///< NCCL_TOPO_FILE: the machine, read instead of looked at
  std::string topology_dump_file;  ///< NCCL_TOPO_DUMP_FILE: where the machine is written to; empty = nowhere
  int topology_dump_rank = 0;      ///< NCCL_TOPO_DUMP_FILE_RANK: who writes it
  std::string topology_library;  ///< TUTTI_TOPOLOGY_LIBRARY: the plug-in's path, or "none"; empty = beside libtutti.so
  std::string hwloc_root;        ///< HWLOC_FSROOT: hwloc and we read /sys below it; empty = this machine's
  std::string simd;              ///< TUTTI_SIMD: a name of base/reduce_variants.h; empty = the processor's best
};

/// Read from the environment and NCCL's configuration files on first use. Bad values are reported once at WARN, with key, value and what is
/// accepted, and replaced by the default.
const Config& config();

/// What whoever makes a unique id reads, each time anew: such a process need not be a rank, and ranks that it forks afterwards may
/// be given another environment, so that the configuration is not read yet.
struct RootVariables {
  std::string comm_id;            ///< NCCL_COMM_ID: address:port of the bootstrap root; empty = the id's maker
  std::string secret;             ///< TUTTI_SECRET: its key
  std::string socket_interfaces;  ///< NCCL_SOCKET_IFNAME: "eth,ib", "=eth0", "^docker"; empty = not lo, docker, virbr
  std::string socket_family;      ///< NCCL_SOCKET_FAMILY: "af_inet" (IPv4), "af_inet6"; empty = both
  double heartbeat_timeout_s =
      10;  ///< TUTTI_HEARTBEAT_TIMEOUT_S: of ranks that have come to the bootstrap root; 0 = never
};
RootVariables root_variables();

/// A launcher's variable (rank, size, rendezvous), for comm/launch.cpp: nullptr if unset. No configuration goes this way.
const char* launcher_variable(const char* name);

}  // namespace tutti
