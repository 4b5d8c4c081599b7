// Rails: all-reduces of some length between hosts of equally many ranks. The ranks at one place of all hosts are a
// rail; each rail adds up one part of the buffers.
//
//   within a host    each rank gives the other ranks their parts of its input, in shared memory
//   between hosts    a rank adds up what it was given, and its rail what all hosts have: each to each, by doubling, or
//                    by one of them that adds up for all (LineRoutes, with data); or each of them adds up a share of
//                    the part, which it gets from all, and sends all its sum (RailPlan::shares)
//   within a host    a rank shows the others its part of the result, and takes theirs
//
// Nobody waits for the other hosts' lines before data goes: a call is one way through the network (shares, and a hub:
// two) where a schedule, which begins when all have announced, is one more. The lines come meanwhile, in the same messages where a rank carries
// both, and who has them all writes results. Calls that differ do no harm: what was given, shown or sent carries the
// number of its call, and nobody reads it.
//
// So nothing here may count on what another rank has announced, keep a state that calls that differ would have to take
// back, or write to the caller's buffer before all have announced the same. Sums of shares come straight there: who sends
// one has the lines of all.
//
// What is given or shown lies in one block, which nobody reads any more when its writer is through with a call: it has
// the results of all to whom it gave something, and shows its own next when all have announced the next call. Only a
// call that is refused others may still be in: after one the writer goes to a second block. It left that call with the
// lines of all, so all had left those before. It ends when what was sent in it has been taken (end_refused).
#pragma once

#include "comm/carriers.h"
#include "comm/far_inputs.h"
#include "comm/line_routes.h"
#include "comm/part_carrier.h"
#include "executor/host_machine.h"
#include "planner/rules.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace tutti::comm {

/// The shared memory of a host's ranks for that: zeros at first.
class RailRoom {
 public:
  static constexpr std::size_t kBytesMax = std::size_t{1} << 20;
  /// The longest that are worth it where a network of its own carries parts. Of longer ones some pieces are added up while others are on
  /// their way.
  static constexpr std::size_t kOverNetworkMax = std::size_t{512} << 10;
  /// Shares (RailPlan::shares): a message of MPI's takes the longest with a line; shorter ones are not worth their number.
  static constexpr std::size_t kEarlyShareMax = std::size_t{56} << 10;
  static constexpr std::size_t kEarlyShareMin = std::size_t{36} << 10;
  /// Of hosts of one system without MPI.
  static constexpr std::size_t kStreamedShareMin = std::size_t{128} << 10;

  struct Block {
    std::uint64_t* number;  ///< of the call whose bytes these are, marked: stored after them; 0: none are
    std::byte* bytes;
  };

  static std::size_t bytes_for(int ranks);
  RailRoom(std::span<std::byte> memory, int ranks) : memory_(memory), ranks_(ranks) {}

  int ranks() const { return ranks_; }
  /// What one of the host's ranks gives another one; to itself: the result that it shows.
  Block block(int from, int to, unsigned turn) const;

 private:
  std::span<std::byte> memory_;
  int ranks_;
};

/// How rails add up, and what: the same on every rank.
struct RailPlan {
  LineRoutes::Pattern pattern = LineRoutes::Pattern::kDirect;
  int hub = 0;              ///< the host that adds up, if one does
  std::size_t longest = 0;  ///< bytes of an all-reduce; 0: none goes so
  std::size_t shortest = 0;
  bool shares = false;  ///< each host adds up one share; the pattern is kDirect
};
/// By the prices, at which more bytes are cheaper than further messages. `hosts`: with as many ranks each; `sharers`: ranks that share a core;
/// `one_system`: the hosts are of one system, and their ranks' threads the network. Without the hub.
RailPlan plan_rails(int hosts, int per_host, const planner::NetworkCosts& network, int sharers, bool one_system);
/// Among hosts of one rank each, from three on. Over MPI a share is one message, with a line; else the hosts are of one system.
RailPlan plan_shares(int hosts, bool by_mpi);

/// A rank's end of it; belongs to whoever has the communicator's turn.
class Rails {
 public:
  Rails(PartCarrier& network, RailRoom room, HostRanks hosts, int rank, RailPlan plan);

  const RailPlan& plan() const { return plan_; }
  int parts() const { return room_.ranks(); }
  const LineRoutes& routes() const { return routes_; }

  struct Call {
    std::uint32_t number = 0;
    const void* input = nullptr;
    void* output = nullptr;
    std::size_t count = 0;
    std::size_t element_bytes = 0;
    int divisor = 0;
  };
  /// Before the call is announced. The machine has the call's operation.
  void begin(const Call& call, executor::HostMachine& machine);
  /// Goes on as far as what is there allows; true if that was something. `alike`: all have announced the same: else nothing is written.
  bool advance(executor::HostMachine& machine, bool alike);
  bool is_over() const { return stage_ == Stage::kOver; }
  /// The call of that number is refused, by all ranks. `is_by_rails`: of a rank, whether the one that it made goes by rails. Whoever's does sends
  /// each part that it would have sent, or the word that there is none, and nobody is through before it has those that are sent to it: what
  /// is sent is taken. True: this rank has.
  bool end_refused(std::uint32_t number, const std::function<bool(int)>& is_by_rails);
  /// After that: who owes this rank a part, or the word.
  int owed_by() const { return owed_by_; }
  /// The rank that has to do something first, of this host or another.
  int waiting_for() const;

 private:
  enum class Stage : std::uint8_t { kHost, kAcross, kSums, kShare, kOver };
  /// A part that goes to a host, or comes from one, before all lines are there.
  struct Share {
    int host;
    std::uint32_t part;
  };
  struct Part {
    std::size_t first = 0;  ///< byte
    std::size_t bytes = 0;
  };

  Part part(int place) const;
  Part share(int host) const;
  int rank_on(int host) const { return hosts_[static_cast<std::size_t>(host)][static_cast<std::size_t>(place_)]; }
  bool is_star() const { return plan_.pattern == LineRoutes::Pattern::kStar; }
  bool sums_for_all() const { return is_star() && routes_.hub() == host_; }
  bool gets_sum() const { return is_star() && routes_.hub() != host_; }
  std::uint32_t last_round() const { return static_cast<std::uint32_t>(routes_.rounds() - 1); }
  static constexpr std::uint32_t sum_of(int host) { return FarInputs::kSumOfAll + static_cast<std::uint32_t>(host); }
  bool has_mates() const { return parts() > 1; }
  /// This rank's part of the output, or what it shows of it.
  std::byte* own_output() const { return static_cast<std::byte*>(call_.output) + own_.first; }
  std::byte* own_shown() const { return room_.block(place_, place_, turn_).bytes; }
  std::byte* sums() const { return has_mates() ? own_shown() : own_output(); }
  void find_shares();
  void tell_refused(std::uint32_t number);
  static constexpr std::uint64_t marked(std::uint32_t number) { return std::uint64_t{1} << 32 | number; }
  const std::byte* found(int from, int to) const;
  std::byte* far(std::uint32_t part) const;
  void send(int host, std::uint32_t part, const std::byte* bytes);
  int missing_host() const;

  bool add_up_host(executor::HostMachine& machine);
  bool go_across(executor::HostMachine& machine, bool alike);
  void double_up(executor::HostMachine& machine);
  void add_pair(std::uint32_t round, std::span<void* const> to, int divisor, executor::HostMachine& machine);
  void add_hosts(std::span<void* const> to, executor::HostMachine& machine);
  void add_share(executor::HostMachine& machine);
  bool take_sums(executor::HostMachine& machine);
  bool take_results(executor::HostMachine& machine);

  PartCarrier& network_;
  const RailRoom room_;
  const HostRanks hosts_;
  const RailPlan plan_;
  const int host_;
  const int place_;  ///< among its host's ranks
  const LineRoutes routes_;

  std::vector<Share> shares_out_;  ///< of doubling: round by round
  std::vector<Share> shares_in_;

  Call call_;
  std::uint64_t marked_ = 0;  ///< its number; 0: there was no call
  Stage stage_ = Stage::kOver;
  Part own_;
  std::uint64_t refused_ = 0;  ///< the last call that was, marked
  int owed_by_ = -1;
  unsigned turn_ = 0;
  int next_ = 0;             ///< the first place whose inputs, or results, were not there, or host whose sum was not
  std::uint32_t round_ = 0;  ///< of doubling: the first whose part was not there
  std::unique_ptr<std::byte[]> sum_;     ///< of the host, in this rank's part; from the first call on
  const std::byte* host_sum_ = nullptr;  ///< that, or the input of a rank without mates
  std::vector<const void*> sources_;
};

}  // namespace tutti::comm
