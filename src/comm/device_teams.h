// The communicators that one on GPUs of several hosts works by, where the ranks of each host reach each other's memory by kernels: a team
// inside, of this host's ranks, and a team across, of the ranks at the same place on their hosts, whose data goes through host memory.
// Where a host has more ranks than another one, some of them are in no team across (team_layout.h).
// A call goes within hosts, across, and within hosts again (teamed_call.h), so that a host's ranks share out what crosses.
//
//  T1. All ranks have teams, or none: by what all know, and by an exchange of what came of the teams inside.
//  T2. Their calls are made of the communicator's, in its order, by the thread that makes those. So they match if the communicator's do.
//  T3. What fails in one of the three is the failure of all. A thread passes it on. Users see the communicator's, in its numbers: what the
//      communicator finds itself goes before what a team says, and that is waited for a little.
//  T4. They end with the communicator: they leave before it does, and the thread ends before they leave.
#pragma once

#include "comm/communicator.h"
#include "comm/team_layout.h"

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace tutti::comm {

class DeviceTeams {
 public:
  /// Calls whose longer buffer has fewer bytes go through host memory as a whole. Reckoned, not measured: by teams a call takes two kernels more,
  /// some 20 to 40 us, and saves most of the way of its bytes over PCIe and the host's work on them, about 0.3 ns each.
  static constexpr std::size_t kLeastBytes = 64 << 10;

  /// Once `communicator` can make calls on the host, by all of its ranks. nullptr where the rule does not apply, or some rank's kernels do not
  /// reach the memory of all of its host's. `parent`: as of Communicator::initialise.
  static Result<std::unique_ptr<DeviceTeams>> make(Communicator& communicator, const Communicator* parent);
  ~DeviceTeams();
  DeviceTeams(const DeviceTeams&) = delete;
  DeviceTeams& operator=(const DeviceTeams&) = delete;

  const TeamLayout& layout() const { return layout_; }
  Communicator& inside() const { return *inside_.communicator; }
  /// nullptr: this rank has no share of what crosses.
  Communicator* across() const { return across_.communicator.get(); }
  /// Whether such a call goes by teams: the same on all ranks that make the same call.
  bool takes(const CallArgs& args) const;

  /// What a failure is of: a team, or what else a call has put on streams.
  enum class From : std::uint8_t { kInside, kAcross, kCall };
  /// It becomes the communicator's, and comes back as that.
  Error settle(const Error& failure, From from);

  /// What Communicator's functions of these names do, in the teams.
  bool is_idle() const;
  bool end_calls(const std::string& why);
  void leave();
  /// DeviceRank::close().
  void close();

 private:
  struct Team {
    const char* name = "";   ///< "on its host"
    std::vector<int> ranks;  ///< the communicator's, by the team's; none: there is no such team
    std::shared_ptr<Communicator> communicator;
  };

  DeviceTeams(Communicator& communicator, TeamLayout layout);
  Status make_teams(const Communicator* parent);
  Status make_team(Team& team, const UniqueId& id, const Communicator* parent);
  Result<bool> agree() const;
  Status start();
  void stop();
  void run();
  /// Whether there is nothing more to pass on.
  bool look();
  bool has_own_reason(const Error& failure) const;
  void tell_teams(const Error& failure) const;

  Communicator& comm_;
  const TeamLayout layout_;
  Team inside_;
  Team across_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace tutti::comm
