#include "topology/merge.h"

#include "topology/bandwidths.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

namespace tutti::topology {
namespace {

/// Which node of a host it is, whoever looks: kind, address or number or nothing, and how many such came before.
using Identity = std::tuple<int, NodeKind, std::string, int>;
using Count = std::map<std::tuple<NodeKind, std::string>, int>;

Identity identity_of(const Node& node, int host, Count& count) {
  std::string known;
  if (!node.facts.bus_id.empty()) {
    known = node.facts.bus_id;
  } else if (node.kind == NodeKind::kNuma && node.facts.numa != kNone) {
    known = std::to_string(node.facts.numa);
  } else if (node.kind == NodeKind::kGpu || node.kind == NodeKind::kNic) {
    known = node.name;
  }
  return {node.kind == NodeKind::kNetwork ? kNone : host, node.kind, known, count[{node.kind, known}]++};
}

/// "h1.gpu0" without what says its host.
std::string_view own_name(std::string_view name) {
  if (name.size() < 3 || name[0] != 'h') return name;
  std::size_t digits = 1;
  while (digits < name.size() && std::isdigit(static_cast<unsigned char>(name[digits])) != 0) ++digits;
  return digits > 1 && digits < name.size() && name[digits] == '.' ? name.substr(digits + 1) : name;
}

template <class T>
void fill(T& known, const T& more, const T& unknown) {
  if (known == unknown) known = more;
}

/// What the first look did not know. Of cores each rank may use some only: the most.
void fill(Facts& known, const Facts& more) {
  const Facts unknown;
  fill(known.bus_id, more.bus_id, unknown.bus_id);
  fill(known.model, more.model, unknown.model);
  fill(known.numa, more.numa, unknown.numa);
  fill(known.rank, more.rank, unknown.rank);
  fill(known.device, more.device, unknown.device);
  fill(known.sm, more.sm, unknown.sm);
  fill(known.gcn, more.gcn, unknown.gcn);
  fill(known.memory, more.memory, unknown.memory);
  fill(known.bytes, more.bytes, unknown.bytes);
  fill(known.ports, more.ports, unknown.ports);
  known.cores = std::max(known.cores, more.cores);
}

std::string text_of(const std::vector<int>& ranks) {
  constexpr std::size_t kNamed = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(ranks.size(), kNamed); ++i) text += fmt::format(" {}", ranks[i]);
  if (ranks.size() > kNamed) text += fmt::format(" and {} more", ranks.size() - kNamed);
  return (ranks.size() == 1 ? "rank" : "ranks") + text;
}

class Merge {
 public:
  explicit Merge(std::vector<Look> looks) : looks_(std::move(looks)) {}

  Result<Merged> run() {
    number_hosts();
    for (const Look& look : looks_) {
      if (look.graph) add(look, *look.graph);
    }
    for (const Look& look : looks_) {
      if (!look.problem.empty())
        builder_.warn(fmt::format("what rank {} sees of host \"{}\" is left out: {}", look.rank,
                                  builder_.so_far().hosts()[static_cast<std::size_t>(host_of(look))], look.problem));
    }
    for (std::size_t host = 0; host < hosts_.size(); ++host) add_unseen(static_cast<int>(host));
    if (hosts_.size() > 1) join_hosts();
    for (const Link& link : links_)
      builder_.add_link(link.from, link.to, link.kind, link.bandwidth, link.count, link.latency_ns);
    forget_ambiguous_numbers();
    std::vector<Place> places = place();
    TUTTI_TRY_ASSIGN(Graph graph, std::move(builder_).finish());
    return Merged{std::move(graph), std::move(places)};
  }

 private:
  struct Host {
    std::string identity;
    bool seen = false;
  };

  int host_of(const Look& look) const { return host_numbers_.at(look.host); }

  /// By their lowest ranks. A host is called what the first graph of it says.
  void number_hosts() {
    std::map<std::string, std::string> names;
    for (const Look& look : looks_) {
      if (host_numbers_.try_emplace(look.host, static_cast<int>(hosts_.size())).second) hosts_.push_back({look.host});
      hosts_[static_cast<std::size_t>(host_of(look))].seen |= look.graph.has_value();
    }
    for (const Look& look : looks_) {
      if (look.graph) names.try_emplace(look.host, look.graph->hosts()[chosen_host(look, *look.graph)]);
    }
    std::set<std::string> taken;
    for (const Host& host : hosts_) {
      std::string name = names.contains(host.identity) ? names[host.identity] : host.identity;
      name = name.substr(0, name.find(' '));  // without the boot's id
      const std::string first = name;
      for (int suffix = 2; !taken.insert(name).second; ++suffix) name = fmt::format("{}.{}", first, suffix);
      builder_.add_host(name);
    }
  }

  std::size_t chosen_host(const Look& look, const Graph& graph) const {
    const auto& names = graph.hosts();
    if (names.size() == 1) return 0;
    const auto by_name = std::ranges::find(names, look.host.substr(0, look.host.find(' ')));
    if (by_name != names.end()) return static_cast<std::size_t>(by_name - names.begin());
    const auto place = static_cast<std::size_t>(host_of(look));
    return place < names.size() ? place : 0;
  }

  void add(const Look& look, const Graph& graph) {
    const auto chosen = static_cast<int>(chosen_host(look, graph));
    if (graph.hosts().size() > 1)
      builder_.warn(fmt::format("rank {} describes {} hosts: of these \"{}\" is taken for its own", look.rank,
                                graph.hosts().size(), graph.hosts()[static_cast<std::size_t>(chosen)]));
    const int host = host_of(look);
    Count count;
    std::vector<int> merged(graph.nodes().size(), kNone);
    std::vector<char> is_new(graph.nodes().size(), 0);
    // A node may come before its parent.
    std::vector<std::pair<int, int>> parents;
    for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
      const Node& node = graph.nodes()[i];
      if (node.host != chosen && node.kind != NodeKind::kNetwork) continue;
      const auto [found, added] = nodes_.try_emplace(identity_of(node, host, count), kNone);
      is_new[i] = added;
      if (added) {
        found->second = add_node(node, host);
        if (node.parent != kNone) parents.emplace_back(found->second, node.parent);
      } else {
        fill(builder_.facts(found->second), node.facts);
      }
      merged[i] = found->second;
    }
    for (const auto& [node, parent] : parents) builder_.set_parent(node, merged[static_cast<std::size_t>(parent)]);
    for (const Link& link : graph.links()) {
      const int from = merged[static_cast<std::size_t>(link.from)];
      const int to = merged[static_cast<std::size_t>(link.to)];
      if (from == kNone || to == kNone) continue;
      const bool beside_new = is_new[static_cast<std::size_t>(link.from)] || is_new[static_cast<std::size_t>(link.to)];
      add_link(look, link, from, to, beside_new);
    }
    for (const std::string& warning : graph.warnings()) builder_.warn(warning);
  }

  int add_node(const Node& node, int host) {
    const bool shared = node.kind == NodeKind::kNetwork;
    std::string name(shared ? node.name : own_name(node.name));
    if (host > 0 && !shared) name = fmt::format("h{}.{}", host, name);
    return builder_.add_node(node.kind, shared ? 0 : host, kNone, std::move(name), node.facts);
  }

  /// `beside_new`: one of its ends was not known before. Between known nodes the first look has told the way through PCI, which
  /// others may see shortened.
  void add_link(const Look& look, const Link& link, int from, int to, bool beside_new) {
    const auto key = std::tuple(from, to, link.kind);
    const auto known = link_places_.find(key);
    if (known == link_places_.end()) {
      if (!beside_new && link.kind == LinkKind::kPci) return;
      link_places_[key] = links_.size();
      links_.push_back({from, to, link.kind, link.count, link.bandwidth, link.latency_ns});
      return;
    }
    Link& there = links_[known->second];
    if (there.latency_ns == 0) there.latency_ns = link.latency_ns;
    if (there.bandwidth == link.bandwidth) return;
    builder_.warn(fmt::format("rank {} sees {:.4g} GB/s by {} from {} to {}, others {:.4g}: the larger counts",
                              look.rank, gbps(link.bandwidth), name_of(link.kind), builder_.so_far().node(from).name,
                              builder_.so_far().node(to).name, gbps(there.bandwidth)));
    if (link.bandwidth > there.bandwidth) {
      there.bandwidth = link.bandwidth;
      there.count = link.count;
    }
  }

  /// The NUMA nodes that the ranks of a host name, where nobody has looked at it.
  void add_unseen(int host) {
    if (hosts_[static_cast<std::size_t>(host)].seen) return;
    std::set<int> numbers;
    for (const Look& look : looks_)
      if (host_of(look) == host && look.numa != kNone) numbers.insert(look.numa);
    if (numbers.empty()) numbers.insert(0);
    for (const int number : numbers) {
      Node node;
      node.name = fmt::format("numa{}", number);
      node.facts.numa = number;
      Count count;
      nodes_[identity_of(node, host, count)] = add_node(node, host);
    }
    builder_.warn(fmt::format("no rank of host \"{}\" has looked at it: only where its ranks sit is known",
                              builder_.so_far().hosts()[static_cast<std::size_t>(host)]));
  }

  void join_hosts() {
    std::set<int> joined;
    for (const Link& link : links_) {
      if (link.kind != LinkKind::kNetwork) continue;
      for (const int end : {link.from, link.to}) {
        const Node& node = builder_.so_far().node(end);
        if (node.kind != NodeKind::kNetwork) joined.insert(node.host);
      }
    }
    for (std::size_t host = 0; host < hosts_.size(); ++host) {
      if (joined.contains(static_cast<int>(host))) continue;
      std::map<std::string, Port> ports;  // by interface
      for (const Look& look : looks_) {
        if (!look.port || host_of(look) != static_cast<int>(host)) continue;
        // What goes by the loopback passes no NIC.
        Port& port = ports[look.port->loopback ? "lo" : look.port->interface];
        port.bandwidth = std::max(port.bandwidth, look.port->bandwidth);
        port.loopback |= look.port->loopback;
      }
      for (const auto& [interface, port] : ports) join(static_cast<int>(host), interface, port);
    }
  }

  void join(int host, const std::string& interface, const Port& port) {
    const std::string& host_name = builder_.so_far().hosts()[static_cast<std::size_t>(host)];
    Bandwidth bandwidth = port.bandwidth;
    if (port.loopback) {
      bandwidth = kDeviceBandwidth;
      builder_.warn(
          fmt::format("host \"{}\" is on the same machine as others: what joins them counts as no limit", host_name));
    } else if (bandwidth == 0) {
      bandwidth = kUnknownNetworkBandwidth;
      builder_.warn(fmt::format("nothing tells the speed of interface {} of host \"{}\": it counts as {:.4g} GB/s",
                                interface.empty() ? "?" : interface, host_name, gbps(bandwidth)));
    }
    const int nic = nic_of(host, interface);
    const std::vector<int> networks = builder_.so_far().nodes_of(NodeKind::kNetwork);
    const int network =
        networks.empty() ? builder_.add_node(NodeKind::kNetwork, 0, kNone, "network") : networks.front();
    connect(nic, network, LinkKind::kNetwork, bandwidth);
  }

  /// The one of this name that a look has, without a speed; else a new one. Nothing says where that is plugged in, so that it is as near to
  /// every NUMA node.
  int nic_of(int host, const std::string& interface) {
    std::string name;
    for (const char c : interface) name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
    const auto& nodes = builder_.so_far().nodes();
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i].kind == NodeKind::kNic && nodes[i].host == host && own_name(nodes[i].name) == interface)
        return static_cast<int>(i);
    }
    std::vector<int> near = nodes_on(host, NodeKind::kNuma);
    if (near.empty()) near = nodes_on(host, NodeKind::kGpu);
    Node nic;
    nic.kind = NodeKind::kNic;
    nic.name = name.empty() ? "nic" : name;
    nic.facts.ports = 1;
    const int added = add_node(nic, host);
    if (!near.empty() && builder_.so_far().node(near.front()).kind == NodeKind::kNuma)
      builder_.set_parent(added, near.front());
    for (const int node : near) connect(node, added, LinkKind::kPci, kDeviceBandwidth);
    return added;
  }

  void connect(int a, int b, LinkKind kind, Bandwidth bandwidth) {
    links_.push_back({a, b, kind, 1, bandwidth, 0});
    links_.push_back({b, a, kind, 1, bandwidth, 0});
  }

  std::vector<int> nodes_on(int host, NodeKind kind) const {
    std::vector<int> nodes = builder_.so_far().nodes_of(kind);
    std::erase_if(nodes, [&](int node) { return builder_.so_far().node(node).host != host; });
    return nodes;
  }

  /// Every container numbers its GPUs from 0: numbers that two GPUs of a host have order nothing.
  void forget_ambiguous_numbers() {
    for (std::size_t host = 0; host < hosts_.size(); ++host) {
      std::set<int> numbers;
      std::vector<int> gpus;
      bool twice = false;
      for (const int gpu : builder_.so_far().nodes_of(NodeKind::kGpu)) {
        const Node& node = builder_.so_far().node(gpu);
        if (node.host != static_cast<int>(host)) continue;
        gpus.push_back(gpu);
        if (node.facts.device != kNone) twice |= !numbers.insert(node.facts.device).second;
      }
      if (!twice) continue;
      for (const int gpu : gpus) builder_.facts(gpu).device = kNone;
    }
  }

  int find(int host, NodeKind kind, const std::string& known) const {
    const auto found = nodes_.find({host, kind, known, 0});
    return found == nodes_.end() ? kNone : found->second;
  }

  std::vector<Place> place() {
    std::vector<Place> places;
    std::map<int, std::vector<int>> without_numa, without_gpu;  // ranks by host
    std::set<int> used;
    for (const Look& look : looks_) {
      Place place;
      place.host = host_of(look);
      if (look.numa != kNone) {
        place.numa = find(place.host, NodeKind::kNuma, std::to_string(look.numa));
        if (place.numa == kNone) without_numa[place.host].push_back(look.rank);
      }
      if (!look.gpu.empty()) {
        place.gpu = find(place.host, NodeKind::kGpu, look.gpu);
        if (place.gpu == kNone) without_gpu[place.host].push_back(look.rank);
      }
      if (place.gpu != kNone && used.insert(place.gpu).second) builder_.facts(place.gpu).rank = look.rank;
      places.push_back(place);
    }
    for (const auto& [host, ranks] : without_numa) warn_not_there("NUMA nodes", host, ranks);
    for (const auto& [host, ranks] : without_gpu) warn_not_there("GPUs", host, ranks);
    return places;
  }
  void warn_not_there(std::string_view what, int host, const std::vector<int>& ranks) {
    builder_.warn(fmt::format("the {} of {} are not among those of host \"{}\"", what, text_of(ranks),
                              builder_.so_far().hosts()[static_cast<std::size_t>(host)]));
  }

  std::vector<Look> looks_;
  std::vector<Host> hosts_;
  std::map<std::string, int> host_numbers_;
  GraphBuilder builder_;
  std::map<Identity, int> nodes_;
  std::vector<Link> links_;
  std::map<std::tuple<int, int, LinkKind>, std::size_t> link_places_;
};

}  // namespace

Result<Merged> merge(std::vector<Look> looks) {
  std::ranges::stable_sort(looks, {}, &Look::rank);
  if (looks.empty()) return error(Code::kInvalidArgument, "there is no rank whose look could be merged");
  for (std::size_t i = 0; i < looks.size(); ++i) {
    if (looks[i].rank != static_cast<int>(i))
      return error(Code::kInvalidArgument,
                   fmt::format("looks of ranks 0 to {} are wanted, each once: rank {} is {}", looks.size() - 1,
                               std::min<int>(static_cast<int>(i), looks[i].rank),
                               looks[i].rank < static_cast<int>(i) ? "there twice" : "missing"));
  }
  return Merge(std::move(looks)).run();
}

}  // namespace tutti::topology
