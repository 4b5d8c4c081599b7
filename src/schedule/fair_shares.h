// Max-min fair rates of transfers that share links: no transfer can get more without taking from one that has no more than
// it, for their weights. Kept as transfers come and go, by component: what shares no link with a change, directly or through others, keeps its
// rate and costs nothing.
//
// By progressive filling (D. Bertsekas, R. Gallager, "Data Networks", 1992, section 6.5.2): all rates of a component rise
// together; the first link that is full holds its transfers, and the others go on. A component of F transfers over P links each
// takes O(F P) and, for each rate that comes up, a look at its links.
#pragma once

#include "base/link_table.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tutti::schedule {

class FairShares {
 public:
  explicit FairShares(const LinkTable& links);

  /// A transfer over the path, which names at least one link, none twice, and outlives it. Its rate is 0 until settle().
  int add(const LinkPath& path, double weight = 1);
  void remove(int transfer);

  /// Works out the rates anew where something has changed. The transfers whose rates are others now; valid until the next call.
  std::span<const int> settle();

  /// Bytes per microsecond.
  double rate(int transfer) const { return transfers_[static_cast<std::size_t>(transfer)].rate; }

  /// Transfers that settle() has looked at so far: what it cost.
  std::uint64_t visits() const { return visits_; }

 private:
  struct Transfer {
    const LinkPath* path = nullptr;
    double weight = 1;
    std::vector<std::uint32_t> places;  ///< by link of the path: its place in that link's list
    double rate = 0;
    double settled = 0;  ///< the rate that is being worked out; below 0: not known yet
    std::uint64_t seen = 0;
  };
  struct User {
    int transfer = 0;
    std::uint32_t hop = 0;  ///< the link's place in the transfer's path
  };
  struct Link {
    double capacity = 0;
    std::vector<User> users;
    double left = 0;    ///< while rates rise
    double demand = 0;  ///< weighted parts of the transfers that still rise
    std::uint64_t seen = 0;
    bool dirty = false;
  };

  void soil(int link);
  void gather(int link);
  void fill();
  void hold(int transfer, double rate);

  std::vector<Link> links_;
  std::vector<Transfer> transfers_;
  std::vector<int> free_;
  std::vector<int> dirty_;
  std::vector<int> component_links_;
  std::vector<int> component_;
  std::vector<int> changed_;
  std::uint64_t turn_ = 0;
  std::uint64_t visits_ = 0;
};

}  // namespace tutti::schedule
