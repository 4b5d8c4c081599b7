// Bridge: what lets a communicator span hosts. Each rank has a copy of the control segment of its own; the bridge sends what this rank
// writes there to the others' copies, and carries out what they have written. So announce lines, channels and states work as on one
// host, and nothing above the bridge knows of sockets.
//
// It works by looking at what has changed: whoever runs a call has the communicator's turn, and calls progress() between two steps
// of it. No other thread touches the bridge.
//
// Why it is right:
//  B1. Every word of the segment has one writer. Its records go to each other rank by one stream, in the order in which they were made,
//      and a word is stored after the bytes that it stands for: what holds of release and acquire in shared memory holds of a copy.
//  B2. What is sent from the segment itself (slots, inputs beside lines) is not written again before the receiver has told that it
//      is done with it (A2, A3, C2), which it does only after all of it has come. What is sent from a buffer (Way::kLent) is not written
//      by a later step of its lane and round (binding.h), nor by another lane or round, which have no memory in common.
//  B3. A call is over for its rank when all it wrote has been handed to the kernel, and the kernel has let go of what it sends from where it
//      lies (is_sent, zero_copy.h): a rank that is in no call owes nobody anything, and its buffers are its own again. Of a call that fails
//      nothing moves afterwards (give_up). Only messages of lanes go from where they lie: their receivers have announced the same call, so
//      that this waits for no rank that has still to come.
//  B4. A message comes straight to its place in a buffer only while the lane is at the step that waits for it, or the call waits for a hub's
//      sum: what the step or the call may write, it may write.
//  B5. The line of a call that all ranks wait for comes once to each host: from a rank of its host, or of one that has it already
//      (line_routes.h), which has it in its copy, to a rank of the other, from whose copy the others of that host take it
//      (bridge_lines.cpp). All on the way are in the call until they have all lines, and so until they have passed on what they are there
//      for. The copy keeps the line for as long as the others may take it: the line that follows in its place comes after all of them have
//      announced the next call.
//      So does what ranks say of themselves while the communicator is made: each phase of it is such a call.
//  B6. A line can come by two ways then, or overtake one of an earlier call. A line of a rank on another host is stored in a copy by the
//      copy's rank only, and never over the same or a later one. What lies in a line and beside it goes only to ranks that wait for the line, so
//      that none of it comes where a later line's lies already; its signature, which goes to all, has a place for twice as long, and nobody
//      takes one after that (is_line_stale). Of a line that is there nothing more is taken.
//  B7. Inputs that come with the lines of hosts of one rank each (far_inputs.h), sums of them, and parts of rails (rails.h), are sent from
//      memory of their calls, which are over only when all is sent (B3); a call in place writes over its input only then. Parts may go before
//      their receivers have announced the call: if calls differ, these take them nevertheless before they are through (end_refused).
//  B8. A pair of ranks may have no connection yet: its records wait until late_ties.h has made one, and the call with them (B3). None is
//      asked for before there is a record, and none is made after a rank has begun to leave. A rank has left when it says so by the
//      connection; where there is none, or it is at its end, when it has said goodbye.
//  B9. Calls by rails may have other ways for their lines than all others (rail_ways_), where one host adds up for all. Ranks whose calls differ
//      in that, too, wait for lines by different ways: who knows that calls differ carries lines by both, and takes them from any rank of its
//      host, as the one that they come to may be through with its call; it has them all then.
#pragma once

#include "comm/carriers.h"
#include "comm/control.h"
#include "comm/far_inputs.h"
#include "comm/late_ties.h"
#include "comm/line_routes.h"
#include "comm/part_carrier.h"
#include "comm/record_link.h"
#include "protocol/channel.h"
#include "schedule/schedule.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace tutti::comm {

struct Membership;
struct PeerSockets;

/// Whether a part of a line comes too late. `found`: the number of the line that is in its place; `announced`: of this rank's own last one. The
/// line has come by another way, or its place has a later one; or this rank is so far ahead that nobody here has a use for it any more, and
/// all its places may be those of a later line that is coming. The place of a signature stays its own until then: who finds that calls differ
/// looks there.
constexpr bool is_line_stale(std::uint32_t number, std::uint32_t found, std::uint32_t announced, bool is_signature) {
  const auto is_behind = [number](std::uint32_t other) { return static_cast<std::int32_t>(number - other) < 0; };
  if (is_behind(announced - protocol::kAnnounceDepth)) return true;
  return found == number || (is_behind(found) && !is_signature);
}

class Bridge final : public PartCarrier {
 public:
  /// `sockets`: by rank; those for data, or the streams in their place, are taken. `copies`: by rank, those of this host's other ranks;
  /// empty elsewhere.
  /// `hosts`: each rank's. `late`: for those that have neither; nullptr: there are none.
  Bridge(const Control& control, int rank, std::vector<PeerSockets>& sockets,
         const std::vector<std::optional<Control>>& copies, const schedule::Groups& hosts, LateTies* late);

  int host_of(int rank) const { return host_of_[rank]; }
  bool is_here(int rank) const { return host_of_[rank] == host_of_[rank_]; }
  /// The channels with this peer lead through shared memory.
  void leave_channels_alone(int peer);
  /// Once channels can be made.
  void open(Membership& members);
  /// A lane's new channels, by peer: those that lead over the bridge. Lanes come in order.
  void attach(std::uint32_t lane, std::vector<protocol::Channel>& channels);

  /// Which ranks are on this rank's system: theirs is the only network in between (containers). By rank, once.
  void settle_pacing(std::vector<bool> on_this_system);
  bool is_all_on_one_system() const { return std::ranges::all_of(on_this_system_, std::identity()); }
  /// By which ways lines go, by first_routes() at first. Before the first call, on all ranks alike.
  void route_lines(LineRoutes routes) {
    usual_ = ways_by(routes);
    taken_ = usual_.sources.size();
  }
  /// Those of calls by rails (rails.h), if these have others. As above.
  void route_rail_lines(LineRoutes routes) { rail_ways_ = std::make_unique<LineWays>(ways_by(routes)); }

  /// While the communicator is made, which all ranks do together: tells this host's ranks that this rank has come to `phase`, and what it
  /// says of itself then.
  void enter_phase(RankPhase phase);
  /// Takes what has been carried here of who has come to it, and carries on what is there. True: nothing of it waits to be sent.
  bool pass_phase(RankPhase phase);
  /// This rank leaves: no connection is made any more, and those that are there learn of it. The others are told by the watch.
  void share_leaving();

  /// Whether calls may be one-way, with lines that go from rank to rank: where ranks are few.
  bool has_one_way_calls() const { return control_.ranks() <= kAllWithAllMax; }

  /// Who keeps this rank waiting for the line of `rank` in call `number`: of those by whom it would come the nearest one that is not in the
  /// call; else the rank itself.
  int whom_it_waits_for(int rank, std::uint32_t number) const;
  /// The same of a phase.
  int whom_it_waits_for(int rank, RankPhase phase) const;

  const LineRoutes& routes() const { return usual_.routes; }
  /// The hub's rank, where each host has one.
  int hub() const { return hosts_[static_cast<std::size_t>(routes().hub())].front(); }

  /// The input of this rank's call of that number, or a sum: it goes from where it lies, with the lines of that round (Carriage::kAddedUp) or
  /// of all, which wait for it.
  void lend_input(std::uint32_t number, const void* input, std::uint32_t round = 0) {
    usual_.rounds[round].lent = {number, static_cast<const std::byte*>(input)};
  }
  /// That nobody reads any more. A hub sends its own to one host after the other.
  bool is_input_sent(std::uint32_t number) const {
    const auto has_gone = [=](const Round& round) { return round.to == nullptr || round.carried == number; };
    return announced_ == number && std::ranges::all_of(usual_.rounds, has_gone) && is_sent();
  }

  void send_part(int peer, std::uint32_t number, std::uint32_t part, const void* bytes, std::size_t size) override;
  void hold_lines(int peer, std::uint32_t number) override { remote_of(peer).holds_lines_of = number; }
  void await_part(int peer) override { part_source_ = peer; }
  /// FarInputs::kSumOfAll, say.
  void expect_part(std::uint32_t number, std::uint32_t part, std::size_t bytes, void* place) override {
    far_inputs_.expect(number, part, bytes, static_cast<std::byte*>(place));
  }
  /// Of hosts of one rank: what rank `part` has sent, its input or a sum: whatever calls ranks make, no two of them send the same part.
  std::byte* part_of(std::uint32_t number, std::uint32_t part, std::size_t bytes) const override {
    return far_inputs_.of(number, part, bytes);
  }
  bool has_part(std::uint32_t number, std::uint32_t part) const override { return far_inputs_.has(number, part); }
  /// Whether the call that a rank has announced goes by rails.
  bool goes_by_rails(int rank, std::uint32_t number) const;

  /// Who sends to this rank in a round, where each host has one rank.
  int sender_in(std::uint32_t round) const { return usual_.rounds[round].from->peer; }

  /// The number of this rank's last line that the others get.
  std::uint32_t announced() const { return announced_; }

  /// Sends a word of this rank's to one peer, after some bytes of the segment: what no call of progress() looks for.
  void tell(int peer, const std::byte* payload, std::size_t bytes, const std::uint64_t* word);

  /// Looks for what is new, and sends it; takes in what has come. True if anything moved.
  bool progress() {
    const bool sent = send();
    return receive() || sent;
  }
  bool send();
  /// `awaited`: the rank that alone can bring the call under way on, of this host or another; -1: any may.
  bool receive(int awaited = -1);
  /// Of a communicator that has failed: takes in all that has come, from whomever. False: a call that has looked since the last time, and
  /// still waits, waits in vain.
  bool receive_last();
  /// All that progress() has found is in the kernel's hands, and it needs nothing of what was lent.
  bool is_sent() const { return unsent_peer() < 0; }
  /// One for whom there is something that is not; -1: none.
  int unsent_peer() const;
  /// Waits until something comes, or `milliseconds`; shortly where streams cannot be polled.
  void wait(int milliseconds) const;
  /// Whether all that can come comes by streams, so that wait() misses nothing.
  bool carries_all() const;
  /// A little, for who is in no hurry: wait(), or a nap where that would miss something.
  void rest() const;

  /// The communicator has failed: nothing moves any more, so that the buffers of the call that ends now are its caller's again.
  void give_up();

  /// A peer whose stream has ended, though it has not left; -1: none.
  int ended_peer() const;
  std::string why_ended(int peer) const;

  /// When all is sent, and nothing more will be.
  void finish();
  /// After finish(): all that was sent has reached the others' hosts.
  bool has_arrived() const;
  /// Gives the streams up.
  void close();
  std::uint64_t sent_bytes() const;

 private:
  /// What of a pair was sent.
  struct Sent {
    std::uint32_t sends = 0;
    std::uint32_t receives = 0;
    std::uint64_t taken = 0;
  };
  struct SentChannel {
    std::uint64_t messages = 0;
    std::uint64_t acknowledged = 0;
  };
  struct Remote {
    int peer = 0;
    std::unique_ptr<RecordLink> link;
    bool has_channels = true;
    bool asked = false;       ///< for a connection
    bool is_leaving = false;  ///< it says so, and has not left yet
    bool has_left = false;
    const std::uint64_t* farewell = nullptr;
    std::optional<std::uint32_t> goodbye;  ///< the last call of a rank that has said so to the watch
    protocol::Pair to;                     ///< what this rank sends there
    protocol::Pair from;
    PairSignatures signatures_to;
    PairSignatures signatures_from;
    Sent sent;
    std::uint32_t heard = 0;                   ///< the look (receives_) in which its stream was asked last
    std::uint32_t holds_lines_of = 0;          ///< the call whose lines to this peer wait for a part
    std::vector<SentChannel> channels;         ///< by lane
    std::deque<protocol::Crossing> crossings;  ///< by lane; channels point there
  };

  /// A call's input that is sent from the caller's buffer.
  struct LentInput {
    std::uint32_t number = 0;  ///< of the call
    const std::byte* bytes = nullptr;
  };

  /// A round of the lines' routes.
  struct Round {
    Remote* to = nullptr;  ///< nullptr: another rank of this host carries
    Remote* from = nullptr;
    std::vector<int> sent;          ///< whose lines go
    std::vector<int> brought;       ///< whose lines come
    std::uint32_t carried = 0;      ///< the lines of calls up to this one have gone
    std::vector<bool> early;        ///< of `sent`: those whose line of the call after that has gone
    std::vector<RankPhase> phases;  ///< of `sent`: the last that has gone
    LentInput lent;
  };

  /// A rank of another host, and the copy of a rank here in which its lines, and what it says of itself, arrive.
  struct Elsewhere {
    int rank = 0;
    Control copy;
  };

  Remote& remote_of(int peer) { return *std::ranges::find(remotes_, peer, &Remote::peer); }
  /// By which ways lines go, and this rank's part of that.
  struct LineWays {
    LineRoutes routes;
    std::vector<Round> rounds;
    std::vector<Elsewhere>
        sources;  ///< of lines, but for those that come to this rank itself; in the order of the rounds
  };

  LineWays ways_by(LineRoutes routes);
  LineWays& ways_of(std::uint32_t number);
  void connect(Remote& remote, std::unique_ptr<transport::ByteStream> stream);
  void take_news();
  void settle(Remote& remote);
  bool receive_from(Remote& remote);
  RankPhase phase_of(const Control& copy, int rank) const;
  void queue_phase(Remote& remote, int rank, RankPhase phase);
  void take_phase(const Elsewhere& from, RankPhase phase);
  template <class IsThere>
  int who_keeps_it(int rank, const LineRoutes& routes, const IsThere& is_there) const;
  int taker_of(int rank, const LineRoutes& routes) const;
  void collect();
  void collect_announcements();
  static void begin_at(LineWays& ways, std::uint32_t number);
  void carry_lines(LineWays& ways);
  void carry_lines(Round& round);
  bool receive_lines();
  void take_lines();
  void take_lines_from_any();
  bool take_line(const Elsewhere& from);
  void lose_patience();
  void resend_line();
  bool waits_for_carried_lines() const;
  bool crosses_once(int rank, std::uint32_t number) const;
  bool has_line(int rank, std::uint32_t number) const;
  bool has_lines(const std::vector<int>& ranks, std::uint32_t number) const;
  static bool has_line(const Control& copy, int rank, std::uint32_t number);
  bool is_stale(const Record& record) const;
  void queue_announcement(Remote& remote, int rank, std::uint32_t number);
  void collect_pair(Remote& remote);
  void collect_channel(Remote& remote, std::uint32_t lane);
  void queue_part(Remote& remote, const void* payload, std::size_t bytes, std::uint64_t mark);
  bool carry_inputs(Round& round, std::uint32_t number);
  bool knows_that_calls_differ(std::uint32_t number) const;
  void queue(Remote& remote, const void* payload, std::size_t bytes, const std::uint64_t* word = nullptr);
  void queue_line(Remote& remote, const protocol::AnnounceLine& line, std::size_t payload_bytes);
  std::byte* place_of(const Remote& remote, const Record& record);
  std::uint64_t offset_of(const void* address) const;

  const Control control_;
  const std::vector<std::optional<Control>> copies_;  ///< by rank, of this host's others
  const schedule::Groups host_of_;
  const HostRanks hosts_;
  const std::vector<int>& here_;  ///< the ranks of this host
  LateTies* const late_;
  const int rank_;
  Membership* members_ = nullptr;
  std::vector<Remote> remotes_;
  std::size_t streams_ = 0;           ///< of them, connected
  std::vector<bool> on_this_system_;  ///< by rank; empty: not known yet
  LineWays usual_;
  std::unique_ptr<LineWays> rail_ways_;  ///< nullptr: as usual_
  LineWays* ways_ = &usual_;             ///< of this rank's last call
  std::uint32_t announced_ = 0;
  std::size_t taken_ = 0;    ///< of its sources: those whose line of the last call is here
  std::size_t round_ = 0;    ///< the first of its rounds whose lines of the last call are not all here
  std::uint32_t looks_ = 0;  ///< since this rank's last line
  std::chrono::steady_clock::time_point announced_at_;
  std::uint32_t receives_ = 0;
  FarInputs far_inputs_;
  int part_source_ = -1;         ///< await_part()'s
  std::uint32_t impatient_ = 0;  ///< the call in which this rank has waited for long
  std::uint32_t resent_ = 0;     ///< this rank's last line that it has sent to all by itself
  bool given_up_ = false;
  bool has_received_last_ = false;
  std::vector<pollfd> polled_;  ///< kept, as it is needed at each look
  bool is_polled_ = true;       ///< every stream has a descriptor to poll; MPI's have none
};

}  // namespace tutti::comm
