// A call over hosts by teams (device_teams.h), as the thread that makes it puts it on its stream, in the parts of its plan (team_plan.h). A sum:
//
//   the stream                                                      threads of the host
//   ready                                           ------------->  the communicator: do all make this call?
//   reduce 0   kernels of the host's ranks: a share each
//   give 0     share -> pinned memory, a word       ------------->  the team across adds up the hosts' shares
//   reduce 1
//   give 1                                          ------------->
//   wait for all to make this call                  <-------------
//   take 0     waits for a word, pinned memory -> share  <--------
//   gather 0   kernels: everybody's shares -> output
//   reduce 2
//   ...
//
// Of a rank that has no share of what crosses the stream has the rest: it waits for all to make this call, and its kernels for the others'.
// So the network has the next part when it is through with one, and the kernels of two parts go on beside it.
//
// Where the team across goes by two shots of MPI's (two_shot.h), `give` gives the first one, and when those of two parts are given, or of the last,
// `turn` waits for their ends, adds up and gives the second ones, for whose ends `take` waits.
//
//  C1. What ends the wait behind `take n` are the gives of part n at the same place on other hosts, and for these nothing is needed but
//      `reduce n` and what is before it on the streams of their hosts' ranks: of those without a share too, whose kernels of `gather n - 2`
//      wait for `take n - 2` of the others. Calls of one thread go on by turns, a stage each, and where
//      the ranks of a process meet, none is through with `reduce n` before all have it on their streams. So no wait stands before what ends
//      it, whatever queues streams share (S1 of device_staged.h).
//      A turn waits for first shots, which are given before it everywhere, and a take for second ones, which need such turns alone.
//  C2. Nothing is written to the output before all ranks have been seen to make the same call.
//  C3. A part's shares lie in one half of the scratch memory, those of the next in the other: `reduce n + 2` comes behind `gather n`.
#pragma once

#include "comm/device_teams.h"
#include "comm/enqueuing.h"
#include "comm/staged_calls.h"
#include "comm/team_plan.h"

#include <optional>
#include <vector>

namespace tutti::comm {

class TeamedCall {
 public:
  /// `rank`: the communicator's own way through host memory; `submitting`: as of StagedCalls.
  TeamedCall(Communicator& communicator, std::shared_ptr<StagedRank> rank, std::unique_lock<std::mutex> submitting,
             const CallArgs& call);

  /// What keeps the call from being made. Nothing has been done then.
  Status check();
  bool is_done() const { return is_done_; }
  /// Goes on as far as no other rank's thread is needed, by a step at most; once check() has succeeded. False: it cannot. The failure of any fails the
  /// communicator, as others wait for this rank then; of captured calls nobody does.
  Result<bool> step();
  /// Now and then, while step() says false.
  void check_patience();

 private:
  enum class Stage : std::uint8_t { kReduce, kGive, kTurn, kTake, kGather };

  Result<bool> advance();
  Status begin();
  Status do_stage();
  void go_on();
  Status turn_over();
  Status take(std::size_t part);
  Status run(TeamStep step);
  Status copy(const std::vector<TeamCopy>& copies) const;
  Status finish();
  Error break_off(const Error& why);

  std::vector<CallArgs> across_calls() const;

  Communicator& comm_;
  DeviceTeams& teams_;
  const CallArgs call_;
  TeamPlan plan_;
  StagedCalls agreement_;
  std::optional<StagedCalls> across_;  ///< nullopt: this rank has no share of it
  std::vector<CallArgs> calls_;        ///< what kernels are to do
  std::optional<Enqueuing> inside_;    ///< while they wait for it
  std::vector<TeamCopy> after_;        ///< what comes behind that
  bool has_begun_ = false;
  bool is_done_ = false;
  std::size_t turn_ = 0;  ///< part turn_ is reduced and given, and the one before it taken and gathered
  Stage stage_ = Stage::kReduce;
};

}  // namespace tutti::comm
