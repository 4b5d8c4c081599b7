// Configuration: every environment variable that the library reads, in one immutable struct, read once. The only place
// that calls getenv.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tutti {

enum class LogLevel : std::uint8_t { kNone, kVersion, kWarn, kInfo, kTrace };

struct Config {
  LogLevel log_level = LogLevel::kNone;  ///< NCCL_DEBUG: VERSION, WARN, INFO, TRACE
  std::string log_file;                  ///< NCCL_DEBUG_FILE: %h host, %p process; empty = stderr
  std::string algorithm;                 ///< NCCL_ALGO: "ring,tree;allreduce:^tree"; empty = the planner's choice
  std::string device;                    ///< TUTTI_DEVICE: "host", "cuda" or empty = whatever is usable
  std::string host_id;                   ///< NCCL_HOSTID: overrides host name + boot id
  double timeout_s = 1800;               ///< TUTTI_TIMEOUT_S: 0 = never
  bool reproducible = false;             ///< TUTTI_REPRODUCIBLE
  bool wide_wire = false;                ///< TUTTI_WIRE: true if "float32"
  bool blocking = true;                  ///< NCCL_COMM_BLOCKING (unset: the config struct's)
  bool blocking_set = false;
  bool p2p_disable = false;               ///< NCCL_P2P_DISABLE: ranks do not touch each other's buffers
  bool shm_disable = false;               ///< NCCL_SHM_DISABLE: processes do not map each other's buffers
  bool single_copy = true;                ///< TUTTI_SINGLE_COPY: process_vm_readv/writev between processes
  bool lines = false;                     ///< NCCL_PROTO: it leaves LL or LL128, and not Simple
  std::size_t slot_bytes = 0;             ///< TUTTI_SLOT_BYTES: 0 = by rank count
  std::size_t single_copy_min_bytes = 0;  ///< TUTTI_SINGLE_COPY_MIN_BYTES: single copies from here on; 0 = by cost
  std::size_t carry_bytes = std::size_t{1} << 20;  ///< TUTTI_CARRY_BYTES: longest input carried beside announce lines
  std::size_t stream_min_bytes =
      0;                    ///< TUTTI_STREAM_MIN_BYTES: calls that touch so much write past the caches; 0 = default
  bool calibrate = true;    ///< TUTTI_CALIBRATE: measure what bytes cost between processes when a communicator is made
  std::string tuning_file;  ///< TUTTI_TUNING_FILE: measured crossovers; empty = the cost model's
  std::string hwloc_root;   ///< HWLOC_FSROOT: hwloc and we read /sys below it; empty = this machine's
  std::string simd;         ///< TUTTI_SIMD: "portable", "avx2", "avx512"; empty = the processor's best
};

/// Read from the environment (and nothing else) on first use. Bad values are reported once at WARN, with key, value and what is
/// accepted, and replaced by the default.
const Config& config();

/// A launcher's variable (rank, size, rendezvous), for comm/launch.cpp: nullptr if unset. No configuration goes this way.
const char* launcher_variable(const char* name);

}  // namespace tutti
