// hwloc's link matrices in the machine graph: NVLinkBandwidth and XGMIBandwidth in MB/s, one direction, 0 where there is
// no direct link; XGMIHops, 1 where there is one (hwloc's documentation, "Topology Attributes: Distances").
#include "topology/bandwidths.h"
#include "topology/device_kinds.h"
#include "topology/hwloc_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace tutti::topology {

using Kind = HwlocObject::Kind;
using MatrixKind = HwlocMatrix::Kind;

namespace {

constexpr std::uint64_t kMegabytesMax = 1'000'000'000;

class Matrices {
 public:
  Matrices(HwlocGraph& graph, int machine) : graph_(graph), machine_(machine) {}

  void add() {
    bool has_nvlink = false;
    const HwlocMatrix* hops = nullptr;
    const HwlocMatrix* xgmi = nullptr;
    for (const HwlocMatrix& matrix : graph_.tree.matrices) {
      if (matrix.objects.empty() || !is_here(matrix.objects[0])) continue;
      if (matrix.kind == MatrixKind::kNvLink) {
        has_nvlink = true;
        add_nvlinks(matrix);
      } else {
        (matrix.kind == MatrixKind::kXgmi ? xgmi : hops) = &matrix;
      }
    }
    if (xgmi != nullptr || hops != nullptr) add_xgmi(xgmi, hops);
    if (!has_nvlink) warn_of_missing_nvlinks();
  }

 private:
  bool is_here(int object) const {
    return object >= machine_ && object < graph_.end[static_cast<std::size_t>(machine_)];
  }
  std::string name_of(int object) const {
    const HwlocObject& it = graph_.object(object);
    if (!it.name.empty()) return it.name;
    return it.has_address ? text_of(it.address) : it.type_text;
  }

  /// The node that a row of the matrix stands for, or kNone.
  int node_for(int object) {
    const HwlocObject& it = graph_.object(object);
    if (is_nv_switch(it)) {
      if (graph_.nv_switch == kNone)
        graph_.nv_switch = graph_.builder.add_node(NodeKind::kSwitch, graph_.host, kNone, "", {});
      return graph_.nv_switch;
    }
    if (it.kind == Kind::kPackage) return graph_.numa_near(object, name_of(object));
    const int node = graph_.node_of_object(object);
    if (node == kNone)
      graph_.builder.warn(fmt::format("{} is in a link matrix, and no GPU: its links are left out", name_of(object)));
    return node;
  }
  std::vector<int> nodes_for(const HwlocMatrix& matrix) {
    std::vector<int> nodes;
    for (const int object : matrix.objects) nodes.push_back(node_for(object));
    return nodes;
  }
  /// Warns once a matrix of what its two halves say differently.
  void check_symmetry(const HwlocMatrix& matrix, std::string_view name) {
    const std::size_t count = matrix.objects.size();
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        const std::uint64_t there = matrix.values[i * count + j];
        const std::uint64_t back = matrix.values[j * count + i];
        if (there == back) continue;
        graph_.builder.warn(fmt::format("{}: {} MB/s from {} to {}, {} back", name, there, name_of(matrix.objects[i]),
                                        name_of(matrix.objects[j]), back));
        return;
      }
    }
  }

  void add_nvlinks(const HwlocMatrix& matrix) {
    check_symmetry(matrix, "NVLinkBandwidth");
    const std::vector<int> nodes = nodes_for(matrix);
    const std::size_t count = nodes.size();
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t j = 0; j < count; ++j) {
        const std::uint64_t value = matrix.values[i * count + j];
        // Links between NVSwitches join what is one node here.
        if (i == j || value == 0 || nodes[i] == kNone || nodes[j] == kNone || nodes[i] == nodes[j]) continue;
        add_link(nodes[i], nodes[j], LinkKind::kNvLink, value, matrix.megabytes_per_link);
      }
    }
  }
  void add_link(int from, int to, LinkKind kind, std::uint64_t megabytes, std::uint64_t per_link) {
    if (megabytes > kMegabytesMax) {
      graph_.builder.warn(fmt::format("{} MB/s from {} to {} is no link: left out", megabytes,
                                      graph_.builder.so_far().node(from).name, graph_.builder.so_far().node(to).name));
      return;
    }
    const bool whole = per_link > 0 && megabytes % per_link == 0;
    graph_.builder.add_link(from, to, kind, static_cast<Bandwidth>(megabytes) * 1000,
                            whole ? static_cast<int>(megabytes / per_link) : 1);
  }

  /// Logical GPUs of one device share its links: theirs are joined to the device's node already.
  int xgmi_end(int object) {
    const int device = graph_.parent_of(object);
    const int node =
        device != kNone && graph_.object(device).kind == Kind::kPci ? graph_.node_of_object(device) : kNone;
    const bool is_shared = node != kNone && graph_.builder.so_far().node(node).kind == NodeKind::kPci;
    return is_shared ? node : node_for(object);
  }
  void add_xgmi(const HwlocMatrix* bandwidths, const HwlocMatrix* hops) {
    if (bandwidths != nullptr) check_symmetry(*bandwidths, "XGMIBandwidth");
    const HwlocMatrix& rows = bandwidths != nullptr ? *bandwidths : *hops;
    std::map<std::pair<int, int>, std::uint64_t> hops_between;
    if (hops != nullptr) {
      for (std::size_t i = 0; i < hops->values.size(); ++i) {
        const std::size_t count = hops->objects.size();
        hops_between[{hops->objects[i / count], hops->objects[i % count]}] = hops->values[i];
      }
    }
    const std::size_t count = rows.objects.size();
    std::vector<int> ends;
    for (const int object : rows.objects) ends.push_back(xgmi_end(object));
    std::map<std::pair<int, int>, std::uint64_t> megabytes;  // the largest: logical GPUs repeat their device's figure
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t j = 0; j < count; ++j) {
        if (ends[i] == kNone || ends[j] == kNone || ends[i] == ends[j]) continue;
        const auto known = hops_between.find({rows.objects[i], rows.objects[j]});
        if (known != hops_between.end() && known->second != 1) continue;
        std::uint64_t value = rows.values[i * count + j];
        if (bandwidths == nullptr) value = static_cast<std::uint64_t>(default_bandwidth(ends[i])) / 1000;
        if (value == 0) continue;
        std::uint64_t& largest = megabytes[{ends[i], ends[j]}];
        largest = std::max(largest, value);
      }
    }
    for (const auto& [pair, value] : megabytes) add_link(pair.first, pair.second, LinkKind::kXgmi, value, 0);
    warn_of_xgmi(megabytes, bandwidths == nullptr);
  }
  Bandwidth default_bandwidth(int node) const { return xgmi_bandwidth(graph_.builder.so_far().node(node).facts.gcn); }
  void warn_of_xgmi(const std::map<std::pair<int, int>, std::uint64_t>& megabytes, bool no_bandwidths) {
    constexpr std::uint64_t kAlways = 100'000;
    if (no_bandwidths)
      graph_.builder.warn("there are XGMIHops without XGMIBandwidth: one link of the usual speed a hop");
    const auto is_always = [](const auto& entry) { return entry.second == kAlways; };
    if (!no_bandwidths && !megabytes.empty() && std::ranges::all_of(megabytes, is_always))
      graph_.builder.warn(
          "every XGMIBandwidth is 100000 MB/s, which hwloc writes for any direct link: the real links may be slower");
  }

  void warn_of_missing_nvlinks() {
    constexpr unsigned kNvidia = 0x10de;
    int gpus = 0;
    int switches = 0;
    for (int i = machine_; i < graph_.end[static_cast<std::size_t>(machine_)]; ++i) {
      const HwlocObject& it = graph_.object(i);
      if (is_nv_switch(it)) ++switches;
      if (it.kind == Kind::kPci && it.vendor == kNvidia && graph_.node_of_object(i) != kNone) ++gpus;
    }
    if (gpus < 2 && switches == 0) return;
    graph_.builder.warn(
        fmt::format("{} NVIDIA GPUs{} and no NVLinkBandwidth matrix (hwloc was built without NVML, or "
                    "format 1): NVLinks, if there are any, are not counted",
                    gpus, switches > 0 ? fmt::format(", {} NVSwitches", switches) : ""));
  }

  HwlocGraph& graph_;
  int machine_;
};

}  // namespace

void add_matrices(HwlocGraph& graph, int machine) { Matrices(graph, machine).add(); }

}  // namespace tutti::topology
