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
#pragma once

#include "comm/comm.h"
#include "comm/team_layout.h"

#include <cstddef>
#include <optional>
#include <vector>

namespace tutti::comm {

struct TeamCopy {
  void* to = nullptr;
  const void* from = nullptr;
  std::size_t bytes = 0;
};

/// On one stream, in order; `call`: of the team inside.
struct TeamStep {
  std::vector<TeamCopy> before;
  std::optional<CallArgs> call;
  std::vector<TeamCopy> after;
};

class TeamPlan {
 public:
  static bool knows(Collective collective);

  /// `part_bytes`: most that a buffer has of a part.
  TeamPlan(const CallArgs& call, const TeamLayout& layout, std::size_t part_bytes);

  std::size_t parts() const { return parts_; }
  /// Elements that the longer buffer has of the first part, which is the longest.
  std::size_t part_count() const { return by_blocks_ ? ranks() * most_ : std::min(most_ * places(), call_.count); }
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
    std::size_t share = 0;  ///< of each of a host's ranks; `count` where the call has a block for each rank
    bool is_ragged = false;
  };
  Range range(std::size_t part) const;
  std::size_t places() const { return layout_.inside.size(); }
  std::size_t hosts() const { return layout_.across.size(); }
  std::size_t ranks() const { return places() * hosts(); }
  std::size_t bytes_of(std::size_t elements) const { return elements * size_of(call_.type); }
  std::byte* half(std::size_t part) const { return scratch_ + part % 2 * half_bytes_; }
  std::byte* share(std::size_t part) const;
  std::byte* packed(std::size_t part, std::size_t place, std::size_t host) const;
  const std::byte* input(std::size_t element) const;
  std::byte* output(std::size_t element) const;
  CallArgs inside(Collective collective, std::size_t count) const;
  bool is_on_roots_host() const;
  bool is_root() const;
  TeamStep spread(std::size_t part, Collective collective, bool has_input) const;
  TeamStep collect(std::size_t part, Collective collective, bool has_output) const;
  TeamStep pack(std::size_t part) const;
  TeamStep unpack(std::size_t part) const;

  const CallArgs call_;
  const TeamLayout& layout_;
  const bool by_blocks_;    ///< all_gather, reduce_scatter
  const std::size_t most_;  ///< elements of a share, or of a block in a part
  const std::size_t parts_;
  const std::size_t half_bytes_;
  std::byte* scratch_ = nullptr;
};

}  // namespace tutti::comm
