// LineRoutes: by which ways the announce lines of hosts get to all other hosts. In each round a host sends to one host or to none, and hears
// from one or from none: its own lines, or all that it has.
//
//   kDirect     each host's lines to each other host: h - 1 messages out of each, one way through the network
//   kDoubling   after round k a host has the lines of 2^(k+1) hosts: ceil(log2 h) messages out of each, and as many ways through the network.
//               Pairs of hosts exchange all they have where h is a power of two (recursive doubling); else each sends to the host 2^k
//               ahead (J. Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing systems", 1997)
//   kStar       each host's lines to one of them, the hub, and from there all others' to each: 2 (h - 1) messages in all, two ways. The
//               fewest messages, for hosts that share cores; and a host gets the others' lines whether its own have gone or not
//
// Pure functions of the number of hosts and the hub: all ranks find the same.
#pragma once

#include "planner/rules.h"

#include <cstdint>

namespace tutti::comm {

class LineRoutes {
 public:
  enum class Pattern : std::uint8_t { kDirect, kDoubling, kStar };
  static constexpr int kNone = -1;

  /// `hub`: of kStar.
  LineRoutes(int hosts, Pattern pattern, int hub = 0) : hosts_(hosts), pattern_(pattern), hub_(hub) {}

  Pattern pattern() const { return pattern_; }
  int hub() const { return hub_; }
  int rounds() const;
  /// The host that `host` sends to in a round, and the one that it hears from; kNone: none.
  int to(int host, int round) const;
  int from(int host, int round) const;
  /// In which the lines of host `of` come to `host`, another one: from(host, round) has had them before that round.
  int round_of(int host, int of) const;
  /// Whether one of two hosts sends to the other.
  bool are_next(int a, int b) const;

  /// How often a call goes through the network, one after the other.
  int ways() const;
  /// Messages that some rank sends and takes one after the other, and those of all over the number of hosts.
  double chain() const;
  double per_host() const;

 private:
  bool pairs() const;
  int ahead(int host, int hosts) const { return (host + hosts_ + hosts) % hosts_; }
  /// How many hosts behind the hub.
  int place(int host) const { return ahead(host, -hub_); }

  int hosts_;
  Pattern pattern_;
  int hub_;
};

/// The pattern that takes less time: a message keeps a thread for work_us at each end, and each way waits for message_us besides. `sharers`: hosts
/// that share a core, whose threads wait for each other, and work while another one waits for its way. `may_star`: kStar is one to choose.
/// `adds_up`: sums go on, which double by pairs only.
LineRoutes::Pattern choose_pattern(int hosts, const planner::NetworkCosts& network, int sharers, bool may_star,
                                   bool adds_up = false);

}  // namespace tutti::comm
