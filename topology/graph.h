// The machine graph: hosts with their NUMA nodes, CPUs, PCI switches, GPUs, NVSwitches and NICs, and the links between them.
// Every source of facts (a file, the live machine, a line typed by hand) makes one through GraphBuilder; merging, bounds,
// schedules and drawings read it. Nothing changes it once it is built.
//
// A link is directed and counts one direction; a cable is two links. Bandwidths are whole kilobytes per second, so that
// bounds can be exact.
#pragma once

#include "base/result.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace tutti::topology {

/// Bytes per second divided by 1000, in one direction.
using Bandwidth = std::int64_t;
inline constexpr Bandwidth kGigabyte = 1'000'000;
inline double gbps(Bandwidth bandwidth) { return static_cast<double>(bandwidth) / kGigabyte; }
/// GB/s to the nearest kB/s; what is negative, no number or beyond 10^6 GB/s becomes 0.
Bandwidth from_gbps(double gbps);

enum class NodeKind : std::uint8_t {
  kPackage,  ///< a CPU socket, where a source tells it from its NUMA nodes
  kNuma,     ///< a NUMA node: memory and the cores near it (NCCL's <cpu>)
  kCache,    ///< a last-level cache with the cores that share it
  kPci,      ///< a PCI switch or bridge
  kGpu,
  kSwitch,  ///< an NVSwitch, all of a host as one
  kNic,
  kNetwork,  ///< what NICs are plugged into
};
std::string_view name_of(NodeKind kind);  ///< "numa"

enum class LinkKind : std::uint8_t { kPci, kNvLink, kXgmi, kC2c, kCpu, kMemory, kNetwork };
std::string_view name_of(LinkKind kind);  ///< "nvlink"

inline constexpr int kNone = -1;

/// What is known of a node; what is not keeps the value here.
struct Facts {
  std::string bus_id;       ///< of PCI devices, "0000:07:00.0", lower case
  std::string model;        ///< "NVIDIA H100 80GB HBM3", "GenuineIntel 6/207"
  int numa = kNone;         ///< the system's number of the NUMA node it is or is near
  int rank = kNone;         ///< of a GPU: the rank that the file says uses it
  int device = kNone;       ///< of a GPU: the number that CUDA or HIP gives it
  int sm = 0;               ///< of a GPU: compute capability, 90
  std::string gcn;          ///< of a GPU: AMD's name, "gfx942"
  int cores = 0;            ///< of NUMA nodes, packages and caches
  Bandwidth memory = 0;     ///< of NUMA nodes: to its memory
  std::uint64_t bytes = 0;  ///< of NUMA nodes and caches: their size
  int ports = 0;            ///< of a NIC

  friend bool operator==(const Facts&, const Facts&) = default;
};

struct Node {
  NodeKind kind = NodeKind::kNuma;
  int host = 0;
  int parent = kNone;  ///< the node that a drawing puts it in or below, on the same host
  std::string name;    ///< unique in the graph: letters, digits and "_.:-", "h0.gpu3"
  Facts facts;

  friend bool operator==(const Node&, const Node&) = default;
};

/// One direction. Parallel cables of a kind between the same nodes are one link with their sum.
struct Link {
  int from = 0;
  int to = 0;
  LinkKind kind = LinkKind::kPci;
  int count = 1;            ///< NVLinks, or PCI lanes: what is drawn beside it
  Bandwidth bandwidth = 0;  ///< of all of them
  int latency_ns = 0;       ///< 0: unknown

  friend bool operator==(const Link&, const Link&) = default;
};

class Graph {
 public:
  const std::vector<std::string>& hosts() const { return hosts_; }  ///< names, at least one
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<Link>& links() const { return links_; }
  /// What the source had to guess or leave out, a sentence each, for people.
  const std::vector<std::string>& warnings() const { return warnings_; }

  const Node& node(int index) const { return nodes_[static_cast<std::size_t>(index)]; }
  std::vector<int> nodes_of(NodeKind kind) const;  ///< in order
  int find(std::string_view name) const;           ///< kNone if there is none
  /// The link, or nullptr.
  const Link* find_link(int from, int to, LinkKind kind) const;

  friend bool operator==(const Graph&, const Graph&) = default;

 private:
  friend class GraphBuilder;
  std::vector<std::string> hosts_;
  std::vector<Node> nodes_;
  std::vector<Link> links_;
  std::vector<std::string> warnings_;
};

/// Limits that hold for every source, so that a hostile file ends soon.
inline constexpr int kNodesMax = 1 << 16;
inline constexpr int kLinksMax = 1 << 20;
inline constexpr int kDepthMax = 128;     ///< nodes inside each other, so that who walks down may recurse
inline constexpr int kWarningsMax = 100;  ///< of more, the last one says how many
inline constexpr Bandwidth kBandwidthMax = 1'000'000 * kGigabyte;

/// Files may hold anything; a terminal that what comes of them is printed to must not act on it.
std::string printable(std::string text);

/// The same for a message or a warning, without the middle of one that quotes very long words: they go to every rank.
inline constexpr std::size_t kSentenceBytesMax = 1000;
std::string printable_sentence(std::string text);

class GraphBuilder {
 public:
  /// The host's index.
  int add_host(std::string name);
  /// The node's index. A name that is taken gets a suffix; an empty one becomes kind and number, "gpu3", with "h1." before
  /// it from the second host on.
  int add_node(NodeKind kind, int host, int parent, std::string name, Facts facts = {});
  /// A cable: both directions. Adds to a link of the kind that is there already.
  void connect(int a, int b, LinkKind kind, Bandwidth bandwidth, int count = 1, int latency_ns = 0);
  /// One direction.
  void add_link(int from, int to, LinkKind kind, Bandwidth bandwidth, int count = 1, int latency_ns = 0);
  /// A sentence that is there already is not repeated.
  void warn(std::string sentence);

  /// For sources that meet a node before the one it is in.
  void set_parent(int node, int parent) { graph_.nodes_[static_cast<std::size_t>(node)].parent = parent; }
  Facts& facts(int node) { return graph_.nodes_[static_cast<std::size_t>(node)].facts; }
  const Graph& so_far() const { return graph_; }

  /// kInvalidArgument if the graph breaks a rule: more nodes or links than the limits, a link of a node to itself or
  /// without bandwidth, a parent on another host or in a circle, nodes more than kDepthMax deep, no node at all.
  Result<Graph> finish() &&;

 private:
  Graph graph_;
  std::string problem_;                        ///< the first one
  std::map<std::pair<int, int>, int> counts_;  ///< nodes by kind and host
  std::unordered_set<std::string> names_;
  std::unordered_map<std::string, int> suffixes_;  ///< the last given, by name
  int warnings_left_out_ = 0;
  std::string last_warning_;
  std::map<std::tuple<int, int, int>, std::size_t> links_;  ///< by from, to and kind
};

}  // namespace tutti::topology
