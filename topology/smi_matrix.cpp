#include "topology/smi_matrix.h"

#include "topology/bandwidths.h"
#include "topology/smi_table.h"
#include "topology/text_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <utility>

namespace tutti::topology {

namespace {

/// Disjoint sets of devices.
class Sets {
 public:
  explicit Sets(std::size_t count) : above_(count) { std::iota(above_.begin(), above_.end(), std::size_t{0}); }
  std::size_t of(std::size_t i) {
    while (above_[i] != i) i = above_[i] = above_[above_[i]];
    return i;
  }
  void join(std::size_t a, std::size_t b) { above_[std::max(of(a), of(b))] = std::min(of(a), of(b)); }
  /// The sets of `members`, in the order of their first ones.
  std::vector<std::vector<std::size_t>> groups(const std::vector<std::size_t>& members) {
    std::map<std::size_t, std::vector<std::size_t>> found;
    for (const std::size_t member : members) found[of(member)].push_back(member);
    std::vector<std::vector<std::size_t>> sets;
    for (auto& [root, set] : found) sets.push_back(std::move(set));
    return sets;
  }

 private:
  std::vector<std::size_t> above_;
};

class Builder {
 public:
  Builder(const SmiTable& table, const SmiOptions& options)
      : table_(table), options_(options), nodes_(table.count(), kNone), numas_(table.count(), kNone) {}

  Result<Graph> build() {
    for (const std::string& warning : table_.warnings) graph_.warn(warning);
    graph_.add_host("host0");
    merge_halves();
    place_beside_numa_nodes();
    add_leaves();
    check_paths();
    add_nvlinks();
    graph_.warn(
        fmt::format("the matrix has no bandwidths: PCI links count as 8 GT/s x16, {} GB/s, links between NUMA nodes "
                    "as no limit",
                    gbps(pci_bandwidth(0, ""))));
    return std::move(graph_).finish();
  }

 private:
  using Members = std::vector<std::size_t>;

  const std::string& label(std::size_t device) const { return table_.devices[device].label; }
  SmiCell& cell(std::size_t a, std::size_t b) { return cells_[a * table_.count() + b]; }

  /// One value for each pair: of two that differ, the first row's; of one, that one.
  void merge_halves() {
    cells_ = table_.cells;
    for (std::size_t a = 0; a < table_.count(); ++a) {
      for (std::size_t b = a + 1; b < table_.count(); ++b) {
        const SmiCell& there = table_.cell(a, b);
        const SmiCell& back = table_.cell(b, a);
        const bool known = there.path != SmiPath::kUnknown;
        cell(a, b) = cell(b, a) = known ? there : back;
        if (!known || back.path == SmiPath::kUnknown || there == back) continue;
        graph_.warn(fmt::format("line {}: {} to {} is {}, but line {}: {} to {} is {}; the first counts",
                                table_.devices[a].line, label(a), label(b), text_of(there), table_.devices[b].line,
                                label(b), label(a), text_of(back)));
      }
    }
  }
  bool at_most(std::size_t a, std::size_t b, SmiPath path) {
    const SmiPath here = cell(a, b).path;
    return here >= SmiPath::kPix && here <= path;
  }

  /// What tells a GPU's NUMA node: its number, or where that is no single one its CPUs; "" if neither does.
  std::string affinity(std::size_t device) const {
    const SmiDevice& it = table_.devices[device];
    if (it.numa.find_first_of("-,") != std::string::npos) return "";
    if (!it.numa.empty() && it.numa != "N/A") return "numa " + it.numa;
    return it.cpus.empty() || it.cpus == "N/A" ? "" : "cpus " + it.cpus;
  }

  void place_beside_numa_nodes() {
    const std::size_t count = table_.count();
    Sets sets(count);
    std::map<std::string, std::size_t> first_of;
    std::vector<std::string> key(count);  // of a set's root
    for (std::size_t i = 0; i < count; ++i) {
      const std::string where = affinity(i);
      if (where.empty()) continue;
      const auto [known, is_new] = first_of.try_emplace(where, i);
      if (!is_new) sets.join(known->second, i);
      key[sets.of(i)] = where;
      numbered_ = numbered_ || where.starts_with("numa ");
    }
    join_unknown(sets, first_of);
    // Nearest first, so that a contradiction costs the farthest pair.
    for (const SmiPath path : {SmiPath::kPix, SmiPath::kPxb, SmiPath::kPhb, SmiPath::kNode}) {
      for (std::size_t a = 0; a < count; ++a) {
        for (std::size_t b = 0; b < a; ++b) {
          const std::string& key_a = key[sets.of(a)];
          const std::string& key_b = key[sets.of(b)];
          if (cell(a, b).path != path || (!key_a.empty() && !key_b.empty() && key_a != key_b)) continue;
          const std::string where = key_a.empty() ? key_b : key_a;
          sets.join(a, b);
          key[sets.of(a)] = where;
        }
      }
    }
    Members all(count);
    std::iota(all.begin(), all.end(), std::size_t{0});
    for (const Members& beside : sets.groups(all)) add_numa(beside);
    join_numa_nodes();
  }
  /// GPUs whose rows are missing: beside the first NUMA node that no SYS speaks against.
  void join_unknown(Sets& sets, const std::map<std::string, std::size_t>& first_of) {
    std::string unknown;
    for (std::size_t i = 0; i < table_.count(); ++i) {
      bool nearer = !affinity(i).empty();
      for (std::size_t other = 0; other < table_.count() && !nearer; ++other)
        nearer = at_most(i, other, SmiPath::kNode);
      if (nearer || !table_.devices[i].is_gpu || table_.devices[i].line != 0) continue;
      const auto fits = [&](const auto& entry) {
        for (std::size_t other = 0; other < table_.count(); ++other) {
          if (sets.of(other) == sets.of(entry.second) && cell(i, other).path == SmiPath::kSys) return false;
        }
        return true;
      };
      const auto found = std::ranges::find_if(first_of, fits);
      if (found == first_of.end()) continue;
      sets.join(found->second, i);
      unknown += fmt::format("{}{}", unknown.empty() ? "" : ", ", label(i));
    }
    if (!unknown.empty())
      graph_.warn(unknown + ": no row says where on PCI; put beside the first NUMA node that is possible");
  }
  void add_numa(const Members& beside) {
    Facts facts;
    for (const std::size_t device : beside) {
      const std::string where = affinity(device);
      if (where.starts_with("numa ")) facts.numa = number_in(table_.devices[device].numa);
    }
    const std::string name = facts.numa != kNone ? fmt::format("numa{}", facts.numa)
                             : numbered_         ? "numa-of-" + label(beside[0])
                                                 : "";
    if (facts.numa == kNone && numbered_)
      graph_.warn(fmt::format("{}: in no NUMA node that a GPU is in; counted as one more", label(beside[0])));
    const int numa = graph_.add_node(NodeKind::kNuma, 0, kNone, name, facts);
    numa_nodes_.push_back(numa);
    for (const std::size_t device : beside) numas_[device] = numa;
    const auto bridges = sets_within(beside, SmiPath::kPhb).groups(beside);
    for (const Members& below : bridges) place_below_host_bridge(below, numa);
  }
  void join_numa_nodes() {
    for (std::size_t i = 0; i < numa_nodes_.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j)
        graph_.connect(numa_nodes_[j], numa_nodes_[i], LinkKind::kCpu, cpu_bandwidth({}));
    }
  }
  Sets sets_within(const Members& members, SmiPath path) {
    Sets sets(table_.count());
    for (const std::size_t a : members) {
      for (const std::size_t b : members) {
        if (a != b && at_most(a, b, path)) sets.join(a, b);
      }
    }
    return sets;
  }

  int add_pci(int above, std::string_view what, Bandwidth bandwidth) {
    Facts facts;
    facts.model = what;
    const int node = graph_.add_node(NodeKind::kPci, 0, above, "", std::move(facts));
    graph_.connect(above, node, LinkKind::kPci, bandwidth);
    return node;
  }
  void place_below_host_bridge(const Members& members, int numa) {
    const auto trees = sets_within(members, SmiPath::kPxb).groups(members);
    const int above = trees.size() > 1 ? add_pci(numa, "host bridge", kDeviceBandwidth) : numa;
    for (const Members& tree : trees) place_below_root_port(tree, above);
  }
  void place_below_root_port(const Members& members, int above) {
    if (members.size() == 1) {
      nodes_[members[0]] = above;
      return;
    }
    const auto switches = sets_within(members, SmiPath::kPix).groups(members);
    const int top = add_pci(above, "switch", pci_bandwidth(0, ""));
    for (const Members& below : switches) {
      const int under = switches.size() == 1 ? top : add_pci(top, "switch", pci_bandwidth(0, ""));
      for (const std::size_t device : below) nodes_[device] = under;
    }
  }

  /// nodes_ holds what a device is joined to; then the device itself.
  void add_leaves() {
    for (std::size_t i = 0; i < table_.count(); ++i) {
      const SmiDevice& device = table_.devices[i];
      const int above = nodes_[i];
      Facts facts;
      facts.numa = graph_.so_far().node(numas_[i]).facts.numa;
      facts.model = device.is_gpu ? device.name : "";
      if (device.is_gpu) facts.device = number_in(device.label.substr(3));
      if (device.is_gpu) facts.sm = compute_capability(device.name);
      nodes_[i] = graph_.add_node(device.is_gpu ? NodeKind::kGpu : NodeKind::kNic, 0, above, node_name(device),
                                  std::move(facts));
      graph_.connect(above, nodes_[i], LinkKind::kPci, pci_bandwidth(0, ""));
    }
  }
  static std::string node_name(const SmiDevice& device) {
    if (device.is_gpu) return "gpu" + device.label.substr(3);
    const std::string& name = device.name.empty() ? device.label : device.name;
    const auto is_fine = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == ':' || c == '-';
    };
    return std::ranges::all_of(name, is_fine) ? name : "";
  }

  /// The path that the tree has between two devices.
  SmiPath path_in_tree(std::size_t a, std::size_t b) const {
    const Graph& graph = graph_.so_far();
    const auto up = [&](int node) { return graph.node(node).parent; };
    std::vector<int> above;
    for (int at = up(nodes_[a]); at != kNone; at = up(at)) above.push_back(at);
    int at = up(nodes_[b]);
    while (at != kNone && std::ranges::find(above, at) == above.end()) at = up(at);
    if (at == kNone) return SmiPath::kSys;
    const Node& meet = graph.node(at);
    if (meet.kind == NodeKind::kNuma) return SmiPath::kNode;
    if (meet.facts.model == "host bridge") return SmiPath::kPhb;
    return up(nodes_[a]) == at && up(nodes_[b]) == at ? SmiPath::kPix : SmiPath::kPxb;
  }
  /// Names the first pair whose path no tree can have together with the others'.
  void check_paths() {
    int wrong = 0;
    std::string first;
    for (std::size_t a = 0; a < table_.count(); ++a) {
      for (std::size_t b = a + 1; b < table_.count(); ++b) {
        const SmiCell& said = cell(a, b);
        if (said.path == SmiPath::kUnknown || said.path == SmiPath::kNvLink) continue;
        const SmiPath built = path_in_tree(a, b);
        if (built == said.path) continue;
        if (wrong++ == 0)
          first = fmt::format("{} to {} is {}, and {} by the other cells and columns", label(a), label(b),
                              text_of(said), text_of(SmiCell{built, 0}));
      }
    }
    if (wrong > 0)
      graph_.warn(fmt::format("{} a path that does not go with the rest of the matrix, and {} as nearer or farther: {}",
                              wrong == 1 ? "1 pair has" : fmt::format("{} pairs have", wrong),
                              wrong == 1 ? "counts" : "count", first));
  }

  struct Model {
    std::string_view part;  ///< of its name
    int sm;
    int nvlinks;  ///< the most that one has
  };
  static constexpr int kNvLinksMost = 18;  ///< of any GPU (Hopper, Blackwell)
  static Model model_of(std::string_view name) {
    // NVIDIA, "CUDA GPU Compute Capability" and data sheets.
    constexpr std::array<Model, 18> kModels = {{{"GB200", 100, 18},
                                                {"GB300", 103, 18},
                                                {"B200", 100, 18},
                                                {"B300", 103, 18},
                                                {"B100", 100, 18},
                                                {"GB10", 121, kNvLinksMost},
                                                {"GH200", 90, 18},
                                                {"H100", 90, 18},
                                                {"H200", 90, 18},
                                                {"H800", 90, 8},
                                                {"H20", 90, 18},
                                                {"A100", 80, 12},
                                                {"A800", 80, 8},
                                                {"A30", 80, 4},
                                                {"V100", 70, 6},
                                                {"P100", 60, 4},
                                                {"A6000", 86, 4},
                                                {"3090", 86, 4}}};
    for (const Model& model : kModels) {
      if (name.find(model.part) != std::string_view::npos) return model;
    }
    return {"", 0, kNvLinksMost};
  }
  static int compute_capability(std::string_view name) { return model_of(name).sm; }

  void add_nvlinks() {
    Sets sets(table_.count());
    Members gpus;
    for (std::size_t a = 0; a < table_.count(); ++a) {
      if (table_.devices[a].is_gpu) gpus.push_back(a);
      for (std::size_t b = 0; b < a; ++b) {
        if (cell(a, b).path == SmiPath::kNvLink) sets.join(a, b);
      }
    }
    auto islands = sets.groups(gpus);
    std::erase_if(islands, [](const Members& island) { return island.size() < 2; });
    if (islands.empty()) return;
    const Bandwidth bandwidth = of_one_nvlink(islands);
    for (const Members& island : islands) {
      if (may_have_switch(island))
        graph_.warn(fmt::format(
            "{0} and the others, which have no names, have NV{1} to each other: counted as links of each pair's "
            "own; behind an NVSwitch it would be NV{1} in all",
            label(island[0]), cell(island[0], island[1]).nvlinks));
      if (!needs_switch(island)) {
        join_directly(island, bandwidth);
        continue;
      }
      // One for each: from one to another there is no NVLink.
      join_to_switch(island, graph_.add_node(NodeKind::kSwitch, 0, kNone, "", {}), bandwidth);
    }
  }
  int links_in_row(std::size_t gpu, const Members& island) {
    int links = 0;
    for (const std::size_t peer : island) links += cell(gpu, peer).nvlinks;
    return links;
  }
  int links_of_best_pair(std::size_t gpu, const Members& island) {
    int links = 0;
    for (const std::size_t peer : island) links = std::max(links, cell(gpu, peer).nvlinks);
    return links;
  }
  /// Who has more links in its row than its model has reaches several peers by the same ones.
  bool needs_switch(const Members& island) {
    return std::ranges::any_of(island, [&](std::size_t gpu) {
      return links_in_row(gpu, island) > model_of(table_.devices[gpu].name).nvlinks;
    });
  }
  /// All have one number of links to all others, few enough that they may be each pair's own: so they are taken, which is more.
  bool may_have_switch(const Members& island) {
    if (island.size() < 3 || needs_switch(island)) return false;
    const int links = cell(island[0], island[1]).nvlinks;
    for (const std::size_t a : island) {
      for (const std::size_t b : island) {
        if (a != b && cell(a, b).nvlinks != links) return false;
      }
    }
    return std::ranges::any_of(island,
                               [&](std::size_t gpu) { return compute_capability(table_.devices[gpu].name) == 0; });
  }
  Bandwidth of_one_nvlink(const std::vector<Members>& islands) {
    if (options_.nvlink_gbps > 0) return from_gbps(options_.nvlink_gbps);
    int links = 0;  // of the GPU with the most
    std::size_t largest = 0;
    for (const Members& island : islands) {
      largest = std::max(largest, island.size());
      const bool switched = needs_switch(island);
      for (const std::size_t gpu : island) {
        if (const int sm = compute_capability(table_.devices[gpu].name); sm > 0) return nvlink_bandwidth(sm);
        links = std::max(links, switched ? links_of_best_pair(gpu, island) : links_in_row(gpu, island));
      }
    }
    constexpr int kBridgeLinks = 4, kBridged = 86, kAmpereLinks = 12, kAmpere = 80, kHopper = 90;
    const bool bridged = links == kBridgeLinks && largest == 2;
    const int sm = links > kAmpereLinks ? kHopper : bridged ? kBridged : kAmpere;
    graph_.warn(
        fmt::format("the matrix does not name the GPUs, which have up to {} NVLinks: each counts as {} GB/s, as "
                    "compute capability {}'s do; --nvlink-gbps says it",
                    links, gbps(nvlink_bandwidth(sm)), sm));
    return nvlink_bandwidth(sm);
  }
  /// A GPU of an island with a switch: as many links as its best pair shows.
  void join_to_switch(const Members& island, int switch_node, Bandwidth bandwidth) {
    std::vector<int> links;
    for (const std::size_t gpu : island) {
      const int most = links_of_best_pair(gpu, island);
      links.push_back(most);
      graph_.connect(nodes_[gpu], switch_node, LinkKind::kNvLink, bandwidth * most, most);
    }
    int wrong = 0;
    std::string first;
    for (std::size_t i = 0; i < island.size(); ++i) {
      for (std::size_t j = i + 1; j < island.size(); ++j) {
        const SmiCell& said = cell(island[i], island[j]);
        const int through = std::min(links[i], links[j]);
        if (said.path == SmiPath::kUnknown || said.nvlinks == through) continue;
        if (wrong++ == 0)
          first = fmt::format("{} to {} is {}, not NV{}", label(island[i]), label(island[j]), text_of(said), through);
      }
    }
    if (wrong > 0)
      graph_.warn(fmt::format("{} not have what an NVSwitch would give: {}",
                              wrong == 1 ? "1 pair of GPUs does" : fmt::format("{} pairs of GPUs do", wrong), first));
  }
  void join_directly(const Members& island, Bandwidth bandwidth) {
    for (const std::size_t a : island) {
      for (const std::size_t b : island) {
        const int links = cell(a, b).nvlinks;
        if (b > a && links > 0) graph_.connect(nodes_[a], nodes_[b], LinkKind::kNvLink, bandwidth * links, links);
      }
    }
  }

  const SmiTable& table_;
  const SmiOptions& options_;
  GraphBuilder graph_;
  std::vector<SmiCell> cells_;
  std::vector<int> nodes_;
  std::vector<int> numas_;
  std::vector<int> numa_nodes_;
  bool numbered_ = false;  ///< there are NUMA nodes with a number
};

}  // namespace

Result<Graph> read_smi_matrix(std::string_view content, const SmiOptions& options) {
  if (options.nvlink_gbps != 0 && from_gbps(options.nvlink_gbps) == 0)
    return error(
        Code::kInvalidArgument,
        fmt::format("--nvlink-gbps {}: expected GB/s of one link and direction, like 25", options.nvlink_gbps));
  TUTTI_TRY_ASSIGN(const SmiTable table, read_smi_table(content));
  return Builder(table, options).build();
}

}  // namespace tutti::topology
