#include "graph_questions.h"
#include "networks.h"
#include "shared_folder.h"

#include "topology/gpu_distance.h"
#include "topology/smi_matrix.h"
#include "topology/smi_table.h"

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <queue>
#include <set>
#include <sstream>

using namespace tutti::topology;
using namespace topology_tests;
using Catch::Contains;

namespace {

struct Expected {
  const char* file;
  int gpus, nics;
  int numa_nodes;
  int switches;
  int nvlinks;         ///< one direction each
  int nvlink_cables;   ///< the sum of their counts
  int contradictions;  ///< cells that do not go with the rest
};

// Counts by a script over the text: columns, different NUMA affinities (else CPU affinities) of GPUs, cells with NV#, and a
// switch where a GPU's cells add up to more than 18 links. By hand: NUMA nodes of NICs that are SYS to every GPU, one more
// each; and a range of NUMA nodes, 0-1, told apart by SYS.
constexpr Expected kFiles[] = {
    {"2gpu-dualsocket-4nic", 2, 4, 2, 0, 0, 0, 0},
    {"4gpu-phb-soc-mlx4", 4, 1, 2, 0, 0, 0, 0},
    {"4gpu-pix-phb-1numa", 4, 0, 1, 0, 0, 0, 0},
    {"4gpu-pxb-pix", 4, 0, 2, 0, 0, 0, 0},
    {"6gpu-pix-node-sys", 6, 0, 2, 0, 0, 0, 0},
    {"a100-4gpu-nvlinkmesh-1nic", 4, 1, 2, 0, 12, 48, 0},
    {"a100-8gpu-10nic-dgx-like", 8, 10, 4 + 2, 1, 16, 192, 0},
    {"a100-8gpu-4nic-bm", 8, 4, 2, 1, 16, 192, 12},
    {"a100-8gpu-nv12-stas", 8, 0, 2, 1, 16, 192, 0},
    {"a100pcie-2gpu-2nic", 2, 2, 2, 0, 0, 0, 0},
    {"a100pcie-4gpu-nv12pairs-4numa", 4, 0, 4, 0, 4, 48, 0},
    {"a100pcie-4gpu-nv12pairs", 4, 0, 2, 0, 4, 48, 0},
    {"a4000-4gpu-node", 4, 0, 1, 0, 0, 0, 0},
    {"a6000-3gpu-onebridge", 3, 0, 1, 0, 2, 8, 0},
    {"aws-p3-4v100", 4, 0, 1, 0, 12, 18, 0},
    {"b200-8gpu-onebroken", 8, 12, 2, 1, 14, 252, 0},
    {"dgx1v-8v100-4ib", 8, 4, 2, 0, 32, 48, 0},
    {"gb10-spark-4nic", 1, 4, 1, 0, 0, 0, 0},
    {"h100-1gpu-6nic", 1, 6, 1 + 3, 0, 0, 0, 0},
    {"h100-4gpu-nv6-4nic", 4, 4, 4, 0, 12, 72, 0},
    {"h100-8gpu-9nic-ibmvm", 8, 9, 2 + 1, 1, 16, 288, 0},
    {"h20-8gpu-8nic", 8, 8, 2, 1, 16, 288, 0},
    {"h200-8gpu-8nic-gcp-a3ultra", 8, 8, 2, 1, 16, 288, 0},
    {"l40s-4gpu-2nic", 4, 2, 2, 0, 0, 0, 0},
    {"l40s-8gpu-node-1nic", 8, 1, 2 + 1, 0, 0, 0, 0},
    {"power9-traverse-4v100-4ib", 4, 4, 2, 0, 4, 12, 0},
    {"rtx3060ti-3gpu-numarange", 3, 0, 2, 0, 0, 0, 0},
    {"rtx3090-2gpu-nv4", 2, 0, 1, 0, 2, 8, 0},
    {"rtx3090-2gpu-phb", 2, 0, 1, 0, 0, 0, 0},
    {"rtx4090-8gpu-allsys-2nic", 8, 2, 2, 0, 0, 0, 18},
    {"rtx6000-2gpu-evenodd-cpus", 2, 0, 2, 0, 0, 0, 0},
    {"v100-8gpu-cubemesh-1nic", 8, 1, 2, 0, 32, 48, 0},
};

int count_of(const Graph& graph, NodeKind kind) { return static_cast<int>(graph.nodes_of(kind).size()); }

Graph read(const std::string& text, const SmiOptions& options = {}) {
  auto graph = read_smi_matrix(text, options);
  INFO((graph.ok() ? "" : graph.error().message));
  REQUIRE(graph.ok());
  return std::move(graph).value();
}

std::string refusal(const std::string& text, const SmiOptions& options = {}) {
  const auto graph = read_smi_matrix(text, options);
  return graph.ok() ? "" : graph.error().message;
}

/// The kind of the path over PCI and CPU links: what lies on the way with the fewest of them.
std::string path_between(const Graph& graph, int a, int b) {
  std::map<int, int> before = {{a, a}};
  std::queue<int> queue;
  queue.push(a);
  while (!queue.empty() && before.count(b) == 0) {
    const int at = queue.front();
    queue.pop();
    for (const Link& link : graph.links()) {
      const bool fits = link.kind == LinkKind::kPci || link.kind == LinkKind::kCpu;
      if (fits && link.from == at && before.try_emplace(link.to, at).second) queue.push(link.to);
    }
  }
  REQUIRE(before.count(b) == 1);
  int numas = 0, switches = 0, host_bridges = 0;
  for (int at = before[b]; at != a; at = before[at]) {
    const Node& node = graph.node(at);
    numas += node.kind == NodeKind::kNuma ? 1 : 0;
    switches += node.facts.model == "switch" ? 1 : 0;
    host_bridges += node.facts.model == "host bridge" ? 1 : 0;
  }
  if (numas > 1) return "SYS";
  if (numas == 1) return "NODE";
  if (host_bridges > 0) return "PHB";
  return switches > 1 ? "PXB" : "PIX";
}

/// The node of a column: gpu3 of GPU3, else in the order of NICs.
std::map<std::string, int> nodes_by_column(const Graph& graph, const std::vector<std::string>& columns) {
  std::map<std::string, int> nodes;
  std::size_t nic = 0;
  for (const std::string& column : columns) {
    if (column.starts_with("GPU")) {
      nodes[column] = graph.find("gpu" + column.substr(3));
    } else {
      nodes[column] = graph.nodes_of(NodeKind::kNic)[nic++];
    }
  }
  return nodes;
}

bool is_word_of_path(const std::string& word) {
  return word == "PIX" || word == "PXB" || word == "PHB" || word == "NODE" || word == "SYS" || word == "SOC";
}

/// Cells whose path is not the graph's, over all rows that the text has. The first line names the columns.
int cells_that_differ(const std::string& text, const Graph& graph) {
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  while (line.find('\x1b') != std::string::npos) line.erase(line.find('\x1b'), 4);  // ESC [ 4 m, ESC [ 0 m
  std::vector<std::string> columns;
  std::istringstream header(line);
  for (std::string word; header >> word && word != "CPU";) columns.push_back(word);
  auto nodes = nodes_by_column(graph, columns);
  int differ = 0;
  while (std::getline(lines, line)) {
    std::istringstream row(line);
    std::string label, word;
    row >> label;
    if (nodes.count(label) == 0) continue;
    for (std::size_t c = 0; c < columns.size() && row >> word; ++c) {
      const int a = nodes[label];
      const int b = nodes[columns[c]];
      const bool are_gpus = label.starts_with("GPU") && columns[c].starts_with("GPU");
      if (are_gpus && word.starts_with("NV"))
        differ += gpu_distance(graph, a, b) == tutti::GpuDistance::kNvLink ? 0 : 1;
      if (!is_word_of_path(word)) continue;
      const std::string expected = word == "SOC" ? "SYS" : word;
      const bool far = are_gpus && name_of(gpu_distance(graph, a, b)) != (expected == "NODE" ? "PHB" : expected);
      differ += far || path_between(graph, a, b) != expected ? 1 : 0;
    }
  }
  return differ;
}

std::string contents_of_smi(const std::string& name) { return contents_of(shared_folder() / ("smi-" + name + ".txt")); }

const std::string kPair =
    "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\t0-23\t0\nGPU1\tNV4\t X \t0-23\t0\n";

}  // namespace

TEST_CASE("every nvidia-smi matrix has the counts that a script over its text has") {
  if (!has_shared_folder()) return;
  for (const Expected& expected : kFiles) {
    INFO(expected.file);
    const Graph graph = read(contents_of_smi(expected.file));
    CHECK(count_of(graph, NodeKind::kGpu) == expected.gpus);
    CHECK(count_of(graph, NodeKind::kNic) == expected.nics);
    CHECK(count_of(graph, NodeKind::kNuma) == expected.numa_nodes);
    CHECK(count_of(graph, NodeKind::kSwitch) == expected.switches);
    int nvlinks = 0;
    int cables = 0;
    for (const Link& link : graph.links()) {
      if (link.kind != LinkKind::kNvLink) continue;
      ++nvlinks;
      cables += link.count;
    }
    CHECK(nvlinks == expected.nvlinks);
    // Through a switch each cable is one to the switch and back.
    CHECK(cables == expected.nvlink_cables);
    const std::string contradictions = fmt::format(
        "{} a path that does not go",
        expected.contradictions == 1 ? "1 pair has" : fmt::format("{} pairs have", expected.contradictions));
    CHECK((all_warnings(graph).find(contradictions) != std::string::npos) == (expected.contradictions > 0));
  }
}

TEST_CASE("the table of nvidia-smi matrices is complete") {
  if (!has_shared_folder()) return;
  std::set<std::string> known = {"smi-p2p-4gpu-pkb.txt"};
  for (const Expected& expected : kFiles) known.insert(std::string("smi-") + expected.file + ".txt");
  for (const auto& entry : std::filesystem::directory_iterator(shared_folder())) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("smi-")) CHECK(known.count(name) == 1);
  }
  CHECK_THAT(refusal(contents_of_smi("p2p-4gpu-pkb")), Contains("line 2") && Contains("topo -p2p"));
}

TEST_CASE("the graph of a matrix has the matrix's paths") {
  if (!has_shared_folder()) return;
  for (const Expected& expected : kFiles) {
    if (std::string(expected.file).starts_with("b200")) continue;  // no header: below
    INFO(expected.file);
    const std::string text = contents_of_smi(expected.file);
    const Graph graph = read(text);
    // A pair that contradicts the rest differs in each half that the text has.
    const int differ = cells_that_differ(text, graph);
    CHECK(differ >= expected.contradictions);
    CHECK(differ <= 2 * expected.contradictions);
  }
  const std::string header =
      "GPU0 GPU1 GPU2 GPU3 GPU4 GPU5 GPU6 GPU7 NIC0 NIC1 NIC2 NIC3 NIC4 NIC5 NIC6 NIC7 NIC8 NIC9 NIC10 NIC11 CPU\n";
  const std::string b200 = contents_of_smi("b200-8gpu-onebroken");
  const Graph graph = read(b200);
  CHECK(cells_that_differ(header + b200, graph) == 0);
  CHECK(graph.find_link(graph.find("gpu2"), graph.nodes_of(NodeKind::kSwitch)[0], LinkKind::kNvLink) == nullptr);
  CHECK_THAT(all_warnings(graph), Contains("there is no header"));
}

TEST_CASE("NVLinks count by option, by name, or by number with a warning") {
  const auto gbps_of = [](const Graph& graph) {
    return gbps(graph.find_link(graph.find("gpu0"), graph.find("gpu1"), LinkKind::kNvLink)->bandwidth);
  };
  CHECK(gbps_of(read(kPair, {.nvlink_gbps = 25})) == 100);
  CHECK_THAT(all_warnings(read(kPair, {.nvlink_gbps = 25})), !Contains("--nvlink-gbps"));
  const std::string named = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)\nGPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-2)\n";
  const Graph with_names = read(named + kPair);
  CHECK(gbps_of(with_names) == 80);
  CHECK(with_names.node(with_names.find("gpu1")).facts.model == "NVIDIA A100-SXM4-40GB");
  CHECK(with_names.node(with_names.find("gpu1")).facts.sm == 80);
  CHECK(gbps_of(read(kPair)) == 48);  // a pair with four links: a bridge between RTX cards
  CHECK_THAT(all_warnings(read(kPair)), Contains("--nvlink-gbps"));
  CHECK_THAT(refusal(kPair, {.nvlink_gbps = -3}), Contains("--nvlink-gbps -3"));
}

/// All GPUs with this cell to each other; a line for each before it where they have a name.
std::string all_pairs(int gpus, const std::string& cell, const std::string& name = "") {
  std::string text;
  for (int i = 0; i < gpus && !name.empty(); ++i) text += fmt::format("GPU {0}: {1} (UUID: GPU-{0})\n", i, name);
  for (int i = 0; i < gpus; ++i) text += fmt::format("\tGPU{}", i);
  for (int i = 0; i < gpus; ++i) {
    text += fmt::format("\nGPU{}", i);
    for (int j = 0; j < gpus; ++j) text += i == j ? "\t X " : "\t" + cell;
  }
  return text + "\n";
}

TEST_CASE("a switch is there where a GPU has more pairs than links") {
  CHECK(count_of(read(all_pairs(4, "NV6")), NodeKind::kSwitch) == 0);  // 3 x 6 = 18 links
  CHECK(count_of(read(all_pairs(5, "NV6")), NodeKind::kSwitch) == 1);
  CHECK(count_of(read(all_pairs(16, "NV6")), NodeKind::kSwitch) == 1);
  const Graph big = read(all_pairs(16, "NV6"), {.nvlink_gbps = 25});
  CHECK(gbps(big.find_link(big.find("gpu15"), big.nodes_of(NodeKind::kSwitch)[0], LinkKind::kNvLink)->bandwidth) ==
        150);
}

TEST_CASE("GPUs behind NVSwitches that no NVLink joins have a switch for each set") {
  std::string text = "\t";
  for (int gpu = 0; gpu < 8; ++gpu) text += "GPU" + std::to_string(gpu) + "\t";
  for (int gpu = 0; gpu < 8; ++gpu) {
    text += "\nGPU" + std::to_string(gpu) + "\t";
    for (int other = 0; other < 8; ++other) text += gpu == other ? " X \t" : gpu / 4 == other / 4 ? "NV12\t" : "SYS\t";
  }
  const Graph graph = read(text + "\n");
  REQUIRE(count_of(graph, NodeKind::kSwitch) == 2);
  const int first = graph.nodes_of(NodeKind::kSwitch)[0];
  const bool has_gpu0 = graph.find_link(graph.find("gpu0"), first, LinkKind::kNvLink) != nullptr;
  CHECK((graph.find_link(graph.find("gpu4"), first, LinkKind::kNvLink) != nullptr) == !has_gpu0);
  CHECK((graph.find_link(graph.find("gpu3"), first, LinkKind::kNvLink) != nullptr) == has_gpu0);
}

TEST_CASE("what a model cannot have as links of its own is behind a switch; without a model there is a note") {
  const auto to_switch = [](const Graph& graph) {
    REQUIRE(count_of(graph, NodeKind::kSwitch) == 1);
    return gbps(
        graph.find_link(graph.find("gpu0"), graph.nodes_of(NodeKind::kSwitch)[0], LinkKind::kNvLink)->bandwidth);
  };
  CHECK(to_switch(read(all_pairs(3, "NV6", "Tesla V100-SXM3-32GB"))) == 120);
  CHECK(to_switch(read(all_pairs(3, "NV8", "NVIDIA A800-SXM4-80GB"))) == 160);
  CHECK(to_switch(read(all_pairs(3, "NV8", "NVIDIA H800"))) == Approx(8 * 20.6));
  CHECK(count_of(read(all_pairs(4, "NV4", "NVIDIA A100-SXM4-40GB")), NodeKind::kSwitch) == 0);
  CHECK_THAT(all_warnings(read(all_pairs(4, "NV4", "NVIDIA A100-SXM4-40GB"))), !Contains("behind an NVSwitch"));
  CHECK_THAT(all_warnings(read(all_pairs(3, "NV8"))),
             Contains("NV8 to each other") && Contains("behind an NVSwitch it would be NV8 in all"));
  CHECK_THAT(all_warnings(read(all_pairs(8, "NV12"))), !Contains("behind an NVSwitch"));
}

TEST_CASE("damaged matrices are repaired with a warning that names the cell") {
  if (!has_shared_folder()) return;
  const std::string whole = contents_of_smi("4gpu-pix-phb-1numa");
  SECTION("halves that differ") {
    std::string text = whole;
    text.replace(text.find("GPU3\tPHB"), 8, "GPU3\tSYS");
    const Graph graph = read(text);
    CHECK_THAT(all_warnings(graph), Contains("line 2: GPU0 to GPU3 is PHB, but line 5: GPU3 to GPU0 is SYS"));
    CHECK(path_between(graph, graph.find("gpu0"), graph.find("gpu3")) == "PHB");
  }
  SECTION("a word that is no path") {
    std::string text = whole;
    text.replace(text.find("PIX"), 3, "QPI");
    const Graph graph = read(text);
    CHECK_THAT(all_warnings(graph), Contains("line 2, GPU0: \"QPI\" is no path"));
    CHECK(path_between(graph, graph.find("gpu0"), graph.find("gpu1")) == "PIX");  // the other half has it
  }
  SECTION("rows that a terminal wrapped") {
    std::string text = whole;
    for (const char* row : {"GPU1\tPIX\t X ", "GPU2\tPHB\tPHB"}) text.insert(text.find(row) + 12, "\n");
    CHECK(cells_that_differ(whole, read(text)) == 0);
    CHECK(read(text).warnings().size() == 1);  // that there are no bandwidths
  }
  SECTION("a short row, a row twice, a row without column") {
    std::string text = whole.substr(0, whole.find("GPU3\tPHB")) + "GPU3\tPHB\n" + "GPU1\tPIX\nGPU9\tSYS\tSYS\n";
    const std::string warnings = all_warnings(read(text));
    CHECK_THAT(warnings, Contains("line 5: GPU3 has 1 cells for 4 columns"));
    CHECK_THAT(warnings, Contains("line 6: a second row of GPU1 is left out"));
    CHECK_THAT(warnings, Contains("line 7: GPU9 has no column"));
  }
  SECTION("carriage returns, terminal codes and remarks around it") {
    std::string text = "$ nvidia-smi topo -m\n\x1b[1;32m" + whole;
    for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 2) text.insert(at, "\r");
    CHECK(read(text).links() == read(whole).links());
  }
}

TEST_CASE("NICs are named by the legend") {
  if (!has_shared_folder()) return;
  const Graph graph = read(contents_of_smi("h200-8gpu-8nic-gcp-a3ultra"));
  CHECK(graph.find("rocep145s0") != kNone);
  CHECK(path_between(graph, graph.find("rocep206s0"), graph.find("gpu7")) == "PIX");
  CHECK(path_between(graph, graph.find("rocep206s0"), graph.find("gpu5")) == "NODE");
}

TEST_CASE("what is no matrix is refused with line and reason") {
  CHECK_THAT(refusal(""), Contains("there is no row"));
  CHECK_THAT(refusal("hello\nworld\n"), Contains("there is no row"));
  CHECK_THAT(refusal(std::string("\tGPU0\n\0GPU0\tX", 13)), Contains("binary"));
  CHECK_THAT(refusal("\tNIC0\tNIC1\nNIC0\tX\tPIX\nNIC1\tPIX\tX\n"), Contains("no column is a GPU"));
  CHECK_THAT(refusal("\tGPU0\tGPU0\nGPU0\tX\tPIX\n"), Contains("two columns GPU0"));
}

TEST_CASE("hostile matrices end soon") {
  const double start = cpu_ms();
  std::string wide;
  for (int i = 0; i < 100'000; ++i) wide += fmt::format("\tGPU{}", i);
  CHECK_THAT(refusal(wide + "\nGPU0\tX\tSYS\n"), Contains("100000 columns"));
  std::string row = "GPU0\tX";
  for (int i = 0; i < 100'000; ++i) row += "\tSYS";
  CHECK_THAT(refusal(row), Contains("100002 columns"));
  std::string tall;
  for (int i = 0; i < 100'000; ++i) tall += fmt::format("GPU{}\tX\n", i);
  CHECK_THAT(refusal(tall), Contains("more than 512 rows"));
  CHECK(!refusal(std::string(8 << 20, '\n')).empty());
  CHECK(!refusal(std::string(3 << 20, '\x1b')).empty());
  // The largest that is read: every pair another kind than its neighbours'.
  constexpr int kMost = 512;
  constexpr const char* kPaths[] = {"PIX", "SYS", "NODE", "PHB", "PXB", "NV1", "NV18"};
  std::string large;
  for (int i = 0; i < kMost; ++i) large += fmt::format("\tGPU{}", i);
  for (int i = 0; i < kMost; ++i) {
    large += fmt::format("\nGPU{}", i);
    for (int j = 0; j < kMost; ++j)
      large += i == j ? std::string("\tX") : fmt::format("\t{}", kPaths[(i * 31 + j * 17) % 7]);
  }
  CHECK(count_of(read(large), NodeKind::kGpu) == kMost);
  CHECK((cpu_ms() - start) / kSlowdown < 20'000);
}

TEST_CASE("a matrix cut at any byte is read or refused") {
  if (!has_shared_folder()) return;
  const std::string whole = contents_of_smi("dgx1v-8v100-4ib");
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const auto graph = read_smi_matrix(whole.substr(0, length));
    if (!graph.ok()) CHECK(!graph.error().message.empty());
  }
}
