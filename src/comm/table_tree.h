// How the tables of all ranks go from the root to ranks on several hosts: down a tree, in which each rank passes them on to a few others. So
// the root sends the tables to kTableChildren ranks, whatever the number of ranks.
//
//   root ---> first ranks of the first hosts ---> first ranks of further hosts ---> ...
//                        |                                    |
//                        v                                    v
//                other ranks of the host              other ranks of the host ---> ...
#pragma once

#include "base/result.h"
#include "comm/mesh.h"
#include "comm/messages.h"

#include <optional>
#include <vector>

namespace tutti::comm {

/// Of the root. Of a rank: so many on other hosts, and as many on its own.
inline constexpr int kTableChildren = 4;

struct TableNode {
  static constexpr int kRoot = -1;
  int parent = kRoot;
  std::vector<int> children;
};
/// By rank.
std::vector<TableNode> table_tree(const std::vector<Peer>& peers);

/// What the root tells a rank of the tree.
struct TablePlace {
  TableNode node;
  std::optional<RankEndpoint> parent;  ///< where it listens; none: the root has the tables
};
/// `parent`: the parent's endpoint as it came; empty if that is the root.
Bytes encode_place(const TableNode& node, const Bytes& parent);
/// Of rank `rank` of `ranks`.
std::optional<TablePlace> decode_place(const Bytes& bytes, int rank, int ranks);

struct Tables {
  Bytes peers;
  Bytes endpoints;
};
/// Gets the tables, and has passed them on when it returns. kRemote: the parent or a child was not reached, or does not answer.
Result<Tables> pass_tables(int rank, const TablePlace& place, Mesh& mesh, const Patience& patience, RootClient& root);

}  // namespace tutti::comm
