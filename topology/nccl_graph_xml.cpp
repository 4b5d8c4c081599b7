#include "topology/nccl_graph_xml.h"

#include "topology/text_words.h"
#include "topology/xml_document.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace tutti::topology {

namespace {

// NCCL's numbers for patterns.
constexpr int kBalancedTree = 1;
constexpr int kSplitTree = 2;
constexpr int kRing = 4;

/// A device of a channel.
struct Stop {
  bool is_net = false;
  int device = 0;

  friend bool operator==(const Stop&, const Stop&) = default;
  friend bool operator<(const Stop& a, const Stop& b) {
    return std::tie(a.is_net, a.device) < std::tie(b.is_net, b.device);
  }
};

struct Use {
  Bandwidth bandwidth = 0;
  int channels = 0;
};

/// From one stop to another, by links of a kind.
using Uses = std::map<std::tuple<Stop, Stop, LinkKind>, Use>;

/// NCCL writes "7" or "0x7".
std::optional<int> device_of(const pugi::xml_node& element) {
  const std::string_view text = element.attribute("dev").value();
  if (!text.starts_with("0x")) return number_from<int>(text, 0);
  int number = 0;
  const auto [end, failure] = std::from_chars(text.data() + 2, text.data() + text.size(), number, 16);
  if (failure != std::errc{} || end != text.data() + text.size() || number < 0) return {};
  return number;
}

struct Hop {
  Stop from;
  Stop to;
  Bandwidth parts = 1;  ///< it takes one of so many of the channel
};

/// From stop to stop as listed. A ring without <net> goes back to its first GPU; a tree reaches its last <net> from its first GPU,
/// from its second one if it is split, and from both by halves if it is balanced.
std::vector<Hop> hops_of(const std::vector<Stop>& stops, int pattern) {
  std::vector<Hop> hops;
  for (std::size_t i = 1; i < stops.size(); ++i) hops.push_back({stops[i - 1], stops[i]});
  if (hops.empty()) return hops;
  if (pattern == kRing) {
    if (!stops.front().is_net) hops.push_back({stops.back(), stops.front()});
    return hops;
  }
  if (!stops.front().is_net || !stops.back().is_net) return hops;
  const bool has_second = stops.size() > 3;
  hops.back().from = stops[pattern == kSplitTree && has_second ? 2 : 1];
  if (pattern == kBalancedTree && has_second) {
    hops.back().parts = 2;
    hops.push_back({stops[2], stops.back(), 2});
  }
  return hops;
}

class GraphReader {
 public:
  explicit GraphReader(const XmlDocument& xml) : xml_(xml) {}
  Result<Graph> read();

 private:
  Status read_graph(const pugi::xml_node& graph);
  Result<std::vector<Stop>> read_channel(const pugi::xml_node& channel);
  Result<Bandwidth> speed_of(const pugi::xml_node& graph, const char* attribute) const;
  Result<Graph> build();
  Error wrong(const pugi::xml_node& at, const std::string& what) const {
    return error(Code::kInvalidArgument, fmt::format("NCCL graph: {}: {}", xml_.place_of(at), what));
  }

  const XmlDocument& xml_;
  std::map<Stop, int> nodes_;  ///< every device that is in a channel, in order
  Uses uses_;                  ///< the largest over the <graph>s
};

Result<Graph> GraphReader::read() {
  for (const pugi::xml_node& graph : xml_.root().children("graph")) TUTTI_TRY(read_graph(graph));
  const bool has_gpu = std::ranges::any_of(nodes_, [](const auto& entry) { return !entry.first.is_net; });
  if (!has_gpu) return wrong(xml_.root(), "no <channel> has a <gpu>");
  return build();
}

Result<Bandwidth> GraphReader::speed_of(const pugi::xml_node& graph, const char* attribute) const {
  const Bandwidth speed = from_gbps(decimal_in(graph.attribute(attribute).value()));
  if (speed == 0)
    return wrong(graph, fmt::format("{}=\"{}\"; expected GB/s above 0, as there are channels", attribute,
                                    graph.attribute(attribute).value()));
  return speed;
}

Result<std::vector<Stop>> GraphReader::read_channel(const pugi::xml_node& channel) {
  std::vector<Stop> stops;
  for (const pugi::xml_node& child : channel.children()) {
    const std::string_view name = child.name();
    if (name != "gpu" && name != "net") continue;
    const auto device = device_of(child);
    if (!device) return wrong(child, fmt::format("dev=\"{}\"; expected a number", child.attribute("dev").value()));
    stops.push_back({name == "net", *device});
    nodes_.try_emplace(stops.back(), kNone);
    if (nodes_.size() > static_cast<std::size_t>(kNodesMax))
      return wrong(child, fmt::format("more than {} devices", kNodesMax));
  }
  return stops;
}

Status GraphReader::read_graph(const pugi::xml_node& graph) {
  if (!graph.child("channel")) return {};
  TUTTI_TRY_ASSIGN(const Bandwidth intra, speed_of(graph, "speedintra"));
  TUTTI_TRY_ASSIGN(const Bandwidth inter, speed_of(graph, "speedinter"));
  const std::string_view type = graph.attribute("typeintra").value();
  const LinkKind kind = type == "NVL" || type == "NVB" ? LinkKind::kNvLink : LinkKind::kPci;
  const int pattern = number_from<int>(graph.attribute("pattern").value(), 0).value_or(0);
  Uses uses;
  const auto use = [&](const Stop& from, const Stop& to, LinkKind by, Bandwidth bandwidth) {
    Use& found = uses[{from, to, by}];
    // 2^20 channels of the largest bandwidth would still fit.
    found.bandwidth = std::min(found.bandwidth + bandwidth, kBandwidthMax);
    ++found.channels;
  };
  const auto hop = [&](const Stop& from, const Stop& to, Bandwidth parts) {
    if (from == to) return;
    if (from.is_net || to.is_net) return use(from, to, LinkKind::kPci, (inter + parts - 1) / parts);
    if (pattern == kRing) return use(from, to, kind, intra);
    // Sums go up a tree and results down it, and speedintra is for both: NCCL's tuning gives an all-reduce half of it.
    for (const auto& [a, b] : {std::pair(from, to), std::pair(to, from)}) use(a, b, kind, (intra + 1) / 2);
  };
  for (const pugi::xml_node& channel : graph.children("channel")) {
    TUTTI_TRY_ASSIGN(const std::vector<Stop> stops, read_channel(channel));
    for (const auto& [from, to, parts] : hops_of(stops, pattern)) hop(from, to, parts);
  }
  for (const auto& [ends, found] : uses) {
    Use& largest = uses_[ends];
    if (found.bandwidth > largest.bandwidth) largest = found;
  }
  return {};
}

Result<Graph> GraphReader::build() {
  GraphBuilder builder;
  const int host = builder.add_host("host");
  for (const std::string& warning : xml_.warnings()) builder.warn(warning);
  builder.warn(
      "a graph file has only the GPUs and links that its channels use, each as fast as they use it; the machine may "
      "have more: NCCL_TOPO_DUMP_FILE writes it all");
  for (auto& [stop, node] : nodes_) {
    Facts facts;
    facts.device = stop.device;
    node = builder.add_node(stop.is_net ? NodeKind::kNic : NodeKind::kGpu, host, kNone,
                            fmt::format("{}{}", stop.is_net ? "net" : "gpu", stop.device), std::move(facts));
  }
  std::map<int, Bandwidth> nics;
  for (const auto& [ends, found] : uses_) {
    const auto& [from, to, kind] = ends;
    builder.add_link(nodes_[from], nodes_[to], kind, found.bandwidth, found.channels);
    for (const Stop& stop : {from, to}) {
      if (stop.is_net) nics[nodes_[stop]] = std::max(nics[nodes_[stop]], found.bandwidth);
    }
  }
  if (!nics.empty()) {
    const int network = builder.add_node(NodeKind::kNetwork, host, kNone, "network");
    for (const auto& [nic, bandwidth] : nics) builder.connect(nic, network, LinkKind::kNetwork, bandwidth);
  }
  return std::move(builder).finish();
}

}  // namespace

Result<Graph> read_nccl_graph_xml(std::string_view text) {
  TUTTI_TRY_ASSIGN(const XmlDocument xml, XmlDocument::parse(text, "graphs", {"graph"}));
  GraphReader reader(xml);
  return reader.read();
}

}  // namespace tutti::topology
