// One row of the results: a collective, type, operation, root and size, measured out of place and in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace tutti::bench {

/// The same calls by another library, in turn with this one's (--against).
struct Rival {
  double time_us = 0;
  double ratio = 0;                   ///< its time over this library's: above 1, this library is faster
  std::optional<std::int64_t> wrong;  ///< as in Measurement
};

struct Measurement {
  double time_us = 0;
  double p50_us = 0;
  double p99_us = 0;
  double algbw_gbps = 0;  ///< 10^9 bytes per second
  double busbw_gbps = 0;
  std::optional<std::uint64_t> wire_bytes;  ///< by a network, mean over ranks; unset: all ranks are on one host
  std::optional<std::int64_t> wrong;        ///< over all ranks, damaged guard bytes included; unset: not checked
  std::optional<Rival> rival;               ///< unset: there is no other library
};

struct Row {
  std::string collective;
  std::string type;
  std::string device;     ///< "host", or the GPU's name
  std::string transport;  ///< what carries bytes between ranks: mpi, tcp, local
  std::string reduction;  ///< "none" where nothing is reduced
  int root = -1;          ///< -1: not a rooted collective
  int ranks = 1;
  std::size_t bytes = 0;
  std::size_t count = 0;
  int iterations = 0;           ///< timed
  double wire_bound_bytes = 0;  ///< the least that ranks on hosts of their own must send each, on average
  std::optional<Measurement> out_of_place;
  std::optional<Measurement> in_place;  ///< unset: there is no such form
};

}  // namespace tutti::bench
