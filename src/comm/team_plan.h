// How a call goes by teams (device_teams.h), in parts: what the ranks of a host do by kernels, what goes across, and what they do by kernels
// again. Arithmetic only: the same on every rank.
//
//   h hosts, k ranks each             inside                 across                  inside
//   all_reduce                        reduce_scatter         all_reduce of shares    all_gather
//   reduce                            reduce_scatter         reduce of shares        gather, on the root's host
//   broadcast                         scatter, on the        broadcast of shares     all_gather
//                                     root's host
//   reduce_scatter                    reduce_scatter of h    reduce_scatter
//                                     blocks for each place
//   all_gather                                               all_gather              all_gather of h blocks of each
//
// What kernels would take in another order, or too much of, is copied into scratch memory and out of it: of all_gather and reduce_scatter all
// blocks, of the others the last part, if the host's ranks do not divide it.
//
// Where hosts have different numbers of ranks, k is the smallest. On a host with more, but less than 2 k, kernels do the same as if each of its
// ranks had a share, and nobody looks at those that are too many. On a longer one they do by one call for each share what they do by one for
// all: reduces in place of a reduce_scatter, broadcasts in place of an all_gather or a gather. All ranks' kernels work on each of these. For a
// scatter the root broadcasts to its whole host there.
// The blocks of a host are put one behind the other then, and its k shares are slices of that, as long on each host as the longest one has:
//
//   reduce_scatter                    reduce_scatter of h    reduce_scatter          all_gather of slices, and each
//                                     slices for each share  of slices               takes its block
//   all_gather                        all_gather             all_gather of slices    all_gather of h slices of each
#pragma once

#include "comm/comm.h"
#include "comm/team_layout.h"

#include <cstddef>
#include <vector>

namespace tutti::comm {

struct TeamCopy {
  void* to = nullptr;
  const void* from = nullptr;
  std::size_t bytes = 0;
};

/// On one stream, in order; `calls`: of the team inside, all at once.
struct TeamStep {
  std::vector<TeamCopy> before;
  std::vector<CallArgs> calls;
  std::vector<TeamCopy> after;
};

class TeamPlan {
 public:
  /// Whether such calls go so.
  static bool knows(const CallArgs& call, const TeamLayout& layout, std::size_t part_bytes);

  /// `part_bytes`: most that a buffer has of a part.
  TeamPlan(const CallArgs& call, const TeamLayout& layout, std::size_t part_bytes);

  std::size_t parts() const { return parts_; }
  /// Elements that the longer buffer has of the first part, which is the longest.
  std::size_t part_count() const {
    return by_blocks_ ? layout_.ranks() * most_ : std::min(most_ * shares(), call_.count);
  }
  /// Of a rank that has a share.
  CallArgs across(std::size_t part) const;
  /// Two parts' scratch memory, by turns; before anything else.
  std::size_t scratch_bytes() const { return 2 * half_bytes_; }
  void put_scratch(std::byte* memory) { scratch_ = memory; }

  /// Before a part goes across, and when it has.
  TeamStep first(std::size_t part) const;
  TeamStep last(std::size_t part) const;

 private:
  struct Range {
    std::size_t first = 0;
    std::size_t count = 0;  ///< of each block
    std::size_t share = 0;  ///< of each team across; where the call has a block for each rank: for each host
  };
  Range range(std::size_t part) const;
  std::size_t shares() const { return layout_.shares; }
  /// Shares, or slices, that calls inside have room for.
  std::size_t places() const { return by_shares_ ? shares() : layout_.inside.size(); }
  std::size_t hosts() const { return layout_.hosts.size(); }
  std::size_t place() const { return static_cast<std::size_t>(layout_.place); }
  std::size_t slice_of(std::size_t count) const { return (layout_.longest * count + shares() - 1) / shares(); }
  std::size_t bytes_of(std::size_t elements) const { return elements * size_of(call_.type); }
  std::byte* half(std::size_t part) const { return scratch_ + part % 2 * half_bytes_; }
  std::byte* share(std::size_t part) const;
  std::byte* packed(std::size_t part, std::size_t share, std::size_t host) const;
  std::byte* own_blocks(std::size_t part) const;
  std::byte* own_slice(std::size_t part) const { return own_blocks(part) + bytes_of(place() * range(part).share); }
  const std::byte* input(std::size_t element) const;
  std::byte* output(std::size_t element) const;
  CallArgs inside(Collective collective, std::size_t count) const;
  bool is_on_roots_host() const;
  bool is_root() const;
  TeamStep sum_up(std::size_t part) const;
  TeamStep leave_root(std::size_t part) const;
  TeamStep reach_all(std::size_t part) const;
  TeamStep reach_root(std::size_t part) const;
  TeamStep spread(std::size_t part, Collective collective, bool has_input) const;
  TeamStep collect(std::size_t part, Collective collective, bool has_output) const;
  std::vector<CallArgs> reduce_shares(const std::byte* from, std::byte* to, std::size_t share, std::size_t whole) const;
  std::vector<CallArgs> gather_shares(const std::byte* from, std::byte* to, std::size_t share, std::size_t whole) const;
  template <class Visit>
  void for_each_piece(std::size_t part, Visit&& visit) const;
  TeamStep pack(std::size_t part) const;
  TeamStep unpack(std::size_t part) const;
  TeamStep join_blocks(std::size_t part) const;
  TeamStep take_block(std::size_t part) const;

  const CallArgs call_;
  const TeamLayout& layout_;
  const bool by_blocks_;    ///< all_gather, reduce_scatter
  const bool by_shares_;    ///< inside this host a call for each
  const std::size_t most_;  ///< elements of a share, or of a block in a part
  const std::size_t parts_;
  /// By blocks: what lies in a half of the scratch memory behind each other.
  const std::size_t packed_bytes_;
  const std::size_t crossing_bytes_;
  const std::size_t half_bytes_;
  std::byte* scratch_ = nullptr;
};

}  // namespace tutti::comm
