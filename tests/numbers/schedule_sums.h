// Runs a reduction's schedule on numbers: all ranks in one thread, messages by value in order, every step by a kernel of
// src/base. Knows no protocol, so that a thousand ranks fit; the tests hold it against the communicator, bit for bit.
#pragma once

#include "algorithm/algorithm.h"
#include "base/reduce.h"
#include "schedule/tiling.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace tutti::numbers {

/// The programs of all ranks for `count` elements, cut in one round. Steps that no element reaches are left out: with few
/// elements and many ranks these are most.
class CompactSchedule {
 public:
  CompactSchedule(const algorithm::Algorithm& algorithm, const schedule::Request& request, std::uint64_t count,
                  std::size_t element_bytes);

  struct Lane {
    schedule::LaneProgram program;
    std::vector<std::uint64_t> lengths;   ///< elements of each step
    std::vector<std::uint32_t> channels;  ///< of each endpoint that is a peer's: from one rank to another in this lane
  };
  const schedule::Request& request() const { return request_; }
  const schedule::Tiling& tiling() const { return tiling_; }
  const Lane& lane(int rank, std::uint32_t lane) const { return lanes_[index(rank, lane)]; }
  std::size_t channels() const { return channels_.size(); }
  std::size_t scratch_bytes() const { return scratch_blocks_ * tiling_.slab * tiling_.element_bytes; }

 private:
  std::size_t index(int rank, std::uint32_t lane) const {
    return static_cast<std::size_t>(rank) * tiling_.lanes + lane;
  }
  void add(const schedule::LaneProgram& whole, int rank, std::uint32_t lane);
  std::uint32_t channel(std::uint32_t lane, int from, int to);

  schedule::Request request_;
  schedule::Tiling tiling_;
  std::size_t scratch_blocks_ = 0;
  std::vector<Lane> lanes_;
  std::unordered_map<std::uint64_t, std::uint32_t> channels_;
};

/// How a call computes.
struct Arithmetic {
  ReduceFunction reduce = nullptr;
  int divisor = 0;                    ///< of steps that finish
  std::vector<const void*> scales{};  ///< by rank, or empty: an element that the rank's input is multiplied with
  bool wide_wire = false;             ///< partial sums are float32 in messages; `reduce` is for such
};

class ScheduleSums {
 public:
  /// Both live as long as this.
  ScheduleSums(const CompactSchedule& schedule, const Arithmetic& arithmetic);

  /// inputs[r] is read, outputs[r] written; nullptr where the collective has none.
  void run(const std::vector<const std::byte*>& inputs, const std::vector<std::byte*>& outputs);

 private:
  using Data = std::shared_ptr<std::byte[]>;
  struct Queue {
    std::vector<Data> messages;
    std::size_t received = 0;
    std::int64_t waiter = -1;  ///< the process that waits for the next message
  };
  struct Process {
    int rank = 0;
    std::uint32_t lane = 0;
    std::size_t step = 0;
    std::vector<std::byte> scratch;
  };

  bool is_ready(std::size_t process, const schedule::Step& step);
  void run_step(Process& process, const schedule::Step& step, std::uint64_t length);
  std::byte* local(Process& process, const schedule::Endpoint& e);
  void send(std::uint32_t channel, const Data& data);
  bool is_wide(const schedule::Endpoint& e) const { return arithmetic_.wide_wire && e.wide; }

  const CompactSchedule& schedule_;
  const Arithmetic& arithmetic_;
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
  std::vector<Process> processes_;
  std::vector<std::size_t> awake_;
  std::vector<Queue> queues_;  ///< [channel]
};

}  // namespace tutti::numbers
