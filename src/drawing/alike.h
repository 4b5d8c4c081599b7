// Which parts of a machine look the same, so that one can stand for many.
#pragma once

#include "drawing/forest.h"

#include <string>
#include <vector>

namespace tutti::drawing {

class Alike {
 public:
  Alike(const Subject& subject, const Marks& marks, const Forest& forest);

  /// The same for nodes that are drawn alike with all that is in them and all cables that leave them.
  const std::string& of_node(int node) const { return signatures_[static_cast<std::size_t>(node)]; }
  /// The same for hosts that are alike in all their cables too.
  std::string of_host(int host) const;

 private:
  std::string facts(int node) const;
  std::string cable_text(const Cable& cable, int from) const;
  void sign(int node);

  const Subject& subject_;
  const Marks& marks_;
  const Forest& forest_;
  std::vector<std::vector<const Cable*>> cables_at_;
  std::vector<std::string> signatures_;
  std::vector<int> hosts_of_block_;  ///< the host of each block; kSeveral
  std::vector<char> outside_;        ///< by node
};

}  // namespace tutti::drawing
