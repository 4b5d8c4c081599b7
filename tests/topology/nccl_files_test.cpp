// Every NCCL and RCCL topology file against counts that were not made by the reader: a script over the bare XML counted GPUs
// (<gpu>, <apu>, or PCI devices of class 0x03 and 0x12 in files without), NICs (<net>, PCI devices of class 0x02), <cpu>, PCI
// links, and ordered pairs of GPUs with an NVLink or xGMI with their GB/s by the table of bandwidths. They agree with the
// folder's README where that has counts. By hand: the PCI links of the demo without <pci>, and the NVLinks of the fragment
// with two partitions in one GPU, which list the same links.
#include "graph_questions.h"
#include "shared_folder.h"

#include "topology/nccl_xml.h"

#include <catch2/catch.hpp>

using namespace tutti::topology;
using namespace topology_tests;
using Catch::Contains;

namespace {

struct Expected {
  const char* file;
  int gpus, nics, numa_nodes, switches;
  int pci_cables;
  int nvlinks;  ///< one direction each
  double nvlink_gbps;
  int xgmis;
  double xgmi_gbps;
  int c2cs;
};

constexpr Expected kFiles[] = {
    {"flagcx-topo-demo-8", 8, 2, 0, 0, 10, 0, 0, 0, 0, 0},
    {"flagcx-topo-dump-apu", 8, 3, 2, 0, 31, 0, 0, 0, 0, 0},
    {"nccl-a100pcie-2gpu-host11", 2, 2, 2, 0, 5, 0, 0, 0, 0, 0},
    {"nccl-a100pcie-2gpu-host13", 2, 2, 2, 0, 5, 0, 0, 0, 0, 0},
    {"nccl-a6000-pair-trimmed-onerank", 1, 1, 2, 0, 2, 0, 0, 0, 0, 0},
    {"nccl-alibaba-a100-1gpu-1nic", 1, 2, 1, 1, 8, 2, 480, 0, 0, 0},
    {"nccl-alibaba-a100-2gpu-1nic", 2, 2, 1, 1, 9, 4, 960, 0, 0, 0},
    {"nccl-alibaba-a100-4gpu-2nic", 4, 3, 1, 1, 17, 8, 1920, 0, 0, 0},
    {"nccl-alibaba-a100-8gpu-4nic", 8, 5, 2, 1, 33, 16, 3840, 0, 0, 0},
    {"nccl-aws-p5.48xl-pr1226", 8, 32, 1, 0, 48, 0, 0, 0, 0, 0},
    {"nccl-aws-p5en.48xl-uccl", 8, 16, 2, 0, 28, 0, 0, 0, 0, 0},
    {"nccl-azure-nc48v4", 2, 1, 2, 0, 3, 2, 480, 0, 0, 0},
    {"nccl-azure-ncv4", 4, 1, 4, 0, 5, 0, 0, 0, 0, 0},
    {"nccl-azure-ndv2-2025-04", 8, 1, 2, 0, 9, 0, 0, 0, 0, 0},
    {"nccl-azure-ndv2", 8, 1, 2, 0, 9, 0, 0, 0, 0, 0},
    {"nccl-azure-ndv4-2022-affinity-overlap", 8, 8, 4, 0, 20, 0, 0, 0, 0, 0},
    {"nccl-azure-ndv4-2024", 8, 8, 4, 0, 20, 0, 0, 0, 0, 0},
    {"nccl-azure-ndv4", 8, 8, 4, 0, 20, 0, 0, 0, 0, 0},
    {"nccl-azure-ndv5-2023", 8, 8, 2, 0, 24, 0, 0, 0, 0, 0},
    {"nccl-azure-ndv5-mscclpp", 8, 8, 2, 0, 24, 0, 0, 0, 0, 0},
    {"nccl-azure-ndv5-superbench", 8, 8, 2, 0, 24, 0, 0, 0, 0, 0},
    {"nccl-azure-ndv5", 8, 8, 2, 0, 24, 0, 0, 0, 0, 0},
    {"nccl-dgxa100-nic-affinity-bert", 8, 8, 4, 0, 28, 0, 0, 0, 0, 0},
    {"nccl-dgxa100-nic-affinity-minimal", 8, 8, 4, 0, 28, 0, 0, 0, 0, 0},
    {"nccl-dgxa100-nic-affinity-rnnt", 8, 8, 4, 0, 28, 0, 0, 0, 0, 0},
    {"nccl-ibm-vpc-h100", 8, 8, 2, 1, 24, 16, 5932.8, 0, 0, 0},
    {"nccl-nebius-h100", 8, 8, 2, 0, 24, 0, 0, 0, 0, 0},
    {"nccl-oci-a100-flattened-b4", 8, 8, 4, 0, 20, 0, 0, 0, 0, 0},
    {"nccl-oci-a100-flattened", 8, 8, 4, 0, 20, 0, 0, 0, 0, 0},
    {"nccl-v100-cubemesh-berkeley", 8, 3, 2, 0, 15, 32, 960, 0, 0, 0},
    {"nccl-vr200-mlopart-fragment", 2, 0, 0, 1, 3, 2, 2887.2, 0, 0, 0},
    {"rccl-16p1h", 16, 8, 4, 0, 52, 0, 0, 56, 4032, 0},
    {"rccl-16p_gio-1s-1rp-cascade", 16, 1, 2, 0, 60, 0, 0, 112, 5376, 0},
    {"rccl-2p_c2c_2nic", 2, 2, 1, 0, 6, 0, 0, 2, 768, 4},
    {"rccl-3p_pcie", 3, 1, 2, 0, 7, 0, 0, 0, 0, 0},
    {"rccl-4p1h", 4, 1, 1, 0, 10, 0, 0, 8, 192, 0},
    {"rccl-4p2h", 8, 1, 1, 0, 19, 0, 0, 16, 384, 0},
    {"rccl-4p2h_1", 8, 1, 1, 0, 19, 0, 0, 16, 384, 0},
    {"rccl-4p3l", 4, 2, 1, 0, 12, 0, 0, 12, 288, 0},
    {"rccl-4p3l_2h", 8, 1, 4, 0, 17, 0, 0, 24, 576, 0},
    {"rccl-4p3l_n2", 8, 1, 4, 0, 17, 0, 0, 24, 576, 0},
    {"rccl-4p3l_n2_1", 8, 1, 4, 0, 17, 0, 0, 24, 576, 0},
    {"rccl-4p3l_n4", 8, 1, 7, 0, 17, 0, 0, 24, 576, 0},
    {"rccl-4p_940", 4, 4, 4, 0, 8, 0, 0, 12, 576, 0},
    {"rccl-8p1h", 8, 4, 2, 0, 26, 0, 0, 24, 1872, 0},
    {"rccl-8p1h_1", 8, 4, 2, 0, 30, 0, 0, 24, 1872, 0},
    {"rccl-8p1h_2", 8, 2, 4, 0, 11, 0, 0, 24, 1872, 0},
    {"rccl-8p1h_4", 8, 8, 2, 0, 38, 0, 0, 24, 1872, 0},
    {"rccl-8p1h_n1", 8, 4, 2, 0, 26, 0, 0, 24, 1872, 0},
    {"rccl-8p6l", 8, 1, 2, 0, 17, 0, 0, 48, 1152, 0},
    {"rccl-8p6l_1nic", 8, 1, 2, 0, 17, 0, 0, 48, 1152, 0},
    {"rccl-8p6l_3nic", 8, 3, 2, 0, 19, 0, 0, 48, 1152, 0},
    {"rccl-8p6l_4nic", 8, 4, 2, 0, 20, 0, 0, 48, 1152, 0},
    {"rccl-8p6l_6nic", 8, 6, 2, 0, 22, 0, 0, 48, 1152, 0},
    {"rccl-8p_90a", 8, 1, 1, 0, 10, 0, 0, 24, 864, 0},
    {"rccl-8p_940", 8, 8, 2, 0, 40, 0, 0, 56, 2688, 0},
    {"rccl-8p_940vm", 8, 8, 2, 0, 16, 0, 0, 56, 2688, 0},
    {"rccl-8p_pcie", 8, 1, 1, 0, 19, 0, 0, 0, 0, 0},
    {"rccl-8p_pcie_2nic", 8, 2, 1, 0, 20, 0, 0, 0, 0, 0},
    {"rccl-8p_rome", 8, 1, 2, 0, 17, 0, 0, 16, 384, 0},
    {"rccl-8p_rome_4n_1", 8, 4, 4, 0, 32, 0, 0, 24, 576, 0},
    {"rccl-8p_rome_4nics", 8, 4, 4, 0, 32, 0, 0, 24, 576, 0},
    {"rccl-8p_rome_n2", 8, 1, 4, 0, 17, 0, 0, 16, 384, 0},
    {"rccl-8p_rome_n2_1", 8, 2, 4, 0, 18, 0, 0, 16, 384, 0},
    {"rccl-8p_rome_n2_2", 8, 2, 4, 0, 19, 0, 0, 16, 384, 0},
    {"rccl-8p_rome_n4", 8, 1, 7, 0, 17, 0, 0, 16, 384, 0},
    {"rccl-8p_rome_pcie", 8, 2, 2, 0, 19, 0, 0, 0, 0, 0},
    {"rccl-8p_ts1", 8, 2, 4, 0, 18, 0, 0, 16, 384, 0},
    {"rccl-8p_ts1_1", 8, 2, 4, 0, 18, 0, 0, 16, 384, 0},
    {"rccl-8p_ts1_n4", 8, 2, 8, 0, 18, 0, 0, 16, 384, 0},
    {"rccl-8p_ts1_n4_2", 8, 3, 8, 0, 20, 0, 0, 16, 384, 0},
    {"rccl-collnet_n1", 8, 1, 4, 0, 17, 0, 0, 24, 576, 0},
};

struct Sum {
  int links = 0;
  Bandwidth bandwidth = 0;
};

Sum sum_of(const Graph& graph, LinkKind kind) {
  Sum sum;
  for (const Link& link : graph.links()) {
    if (link.kind != kind) continue;
    ++sum.links;
    sum.bandwidth += link.bandwidth;
  }
  return sum;
}

int count_of(const Graph& graph, NodeKind kind) { return static_cast<int>(graph.nodes_of(kind).size()); }

std::string text_of(const std::string& name) { return contents_of(shared_folder() / (name + ".xml")); }

void check_counts(const Graph& graph, const Expected& expected) {
  CHECK(count_of(graph, NodeKind::kGpu) == expected.gpus);
  CHECK(count_of(graph, NodeKind::kNic) == expected.nics);
  CHECK(count_of(graph, NodeKind::kNuma) == expected.numa_nodes);
  CHECK(count_of(graph, NodeKind::kSwitch) == expected.switches);
  CHECK(sum_of(graph, LinkKind::kPci).links == 2 * expected.pci_cables);
  CHECK(sum_of(graph, LinkKind::kCpu).links == expected.numa_nodes * (expected.numa_nodes - 1));
  CHECK(sum_of(graph, LinkKind::kNvLink).links == expected.nvlinks);
  CHECK(sum_of(graph, LinkKind::kNvLink).bandwidth == from_gbps(expected.nvlink_gbps));
  CHECK(sum_of(graph, LinkKind::kXgmi).links == expected.xgmis);
  CHECK(sum_of(graph, LinkKind::kXgmi).bandwidth == from_gbps(expected.xgmi_gbps));
  CHECK(sum_of(graph, LinkKind::kC2c).links == expected.c2cs);
  CHECK(sum_of(graph, LinkKind::kNetwork).links == 2 * expected.nics);
}

std::string refusal_of(const std::string& name) {
  const auto graph = read_nccl_xml(text_of(name));
  REQUIRE_FALSE(graph.ok());
  CHECK(graph.error().code == tutti::Code::kInvalidArgument);
  return graph.error().message;
}

}  // namespace

TEST_CASE("every NCCL and RCCL file loads with the counts that its XML has") {
  if (!has_shared_folder()) return;
  for (const Expected& expected : kFiles) {
    CAPTURE(expected.file);
    const auto graph = read_nccl_xml(text_of(expected.file));
    if (!graph.ok()) FAIL_CHECK(graph.error().message);
    if (graph.ok()) check_counts(graph.value(), expected);
  }
}

TEST_CASE("no file is forgotten: each is in the table or among those that are refused") {
  if (!has_shared_folder()) return;
  const std::vector<std::string> refused = {"nccl-aws-g5.12xl-minimal", "nccl-aws-g5.48xl", "nccl-aws-p5.48xl-2023",
                                            "nccl-aws-p5.48xl-2025", "nccl-h200-hgx-truncated"};
  for (const auto& entry : std::filesystem::directory_iterator(shared_folder())) {
    const std::string name = entry.path().stem().string();
    const bool of_nccl = name.starts_with("nccl-") && !name.starts_with("nccl-graph-");
    if (entry.path().extension() != ".xml" || !(of_nccl || name.starts_with("rccl-") || name.starts_with("flagcx-")))
      continue;
    CAPTURE(name);
    const bool expected = std::ranges::any_of(kFiles, [&](const Expected& file) { return file.file == name; });
    CHECK((expected || std::ranges::find(refused, name) != refused.end()));
  }
}

TEST_CASE("files that tell too little are refused with line, element and reason") {
  if (!has_shared_folder()) return;
  for (const char* name :
       {"nccl-aws-g5.12xl-minimal", "nccl-aws-g5.48xl", "nccl-aws-p5.48xl-2023", "nccl-aws-p5.48xl-2025"}) {
    CAPTURE(name);
    const std::string refusal = refusal_of(name);
    CHECK_THAT(refusal, Contains("<system version=\"1\">") && Contains("no <gpu>") && Contains("say no class"));
  }
  const std::string truncated = refusal_of("nccl-h200-hgx-truncated");
  CHECK_THAT(truncated, Contains("line 52") && Contains("cut off") &&
                            Contains("<system>, <cpu>, <pci>, <pci>, <nic>") &&
                            Contains("</nic></pci></pci></cpu></system>"));
}

TEST_CASE("the cut-off file is usable once its tags are closed as the refusal says") {
  if (!has_shared_folder()) return;
  const auto graph = read_nccl_xml(text_of("nccl-h200-hgx-truncated") + "</nic></pci></pci></cpu></system>");
  REQUIRE(graph.ok());
  CHECK(count_of(graph.value(), NodeKind::kGpu) == 3);
  CHECK(count_of(graph.value(), NodeKind::kNic) == 4);
  CHECK(count_of(graph.value(), NodeKind::kSwitch) == 1);
  CHECK(sum_of(graph.value(), LinkKind::kNvLink).bandwidth == 6 * from_gbps(18 * 20.6));
}

TEST_CASE("what is odd in a file is named by a warning") {
  if (!has_shared_folder()) return;
  const std::pair<const char*, const char*> odd[] = {
      {"nccl-a6000-pair-trimmed-onerank",
       "line 5, <nvlink target=\"0000:bd:00.0\">: the target is no GPU of this file"},
      {"nccl-azure-ncv4", "line 5, <nvlink target=\"0001:00:00.0\">: the link goes to the GPU that it comes from"},
      {"rccl-8p1h_1", "line 114, <pci busid=\"0000:a1:00.0\">: duplicate bus id, also in line 63"},
      {"nccl-vr200-mlopart-fragment", "line 1: there is no <system> before <pci>"},
      {"flagcx-topo-dump-apu", "line 7, <apu dev=\"0\">: <apu> is no element of NCCL's; taken for <gpu>"},
      {"flagcx-topo-demo-8", "line 2, <gpu dev=\"0\">: the GPU is in no <pci>"},
      {"nccl-azure-ndv4", "there is no <gpu>: PCI devices of class 0x03 and 0x12 are taken for GPUs"},
      {"nccl-azure-nc48v4", "link_speed \"\" is not known; counted as 8 GT/s"},
      {"rccl-4p_940", "a speed of 200000000 Mb/s is more than any NIC has"},
  };
  for (const auto& [name, warning] : odd) {
    CAPTURE(name);
    const auto graph = read_nccl_xml(text_of(name));
    REQUIRE(graph.ok());
    CHECK_THAT(all_warnings(graph.value()), Contains(warning));
  }
}

TEST_CASE("files in good order load without any warning") {
  if (!has_shared_folder()) return;
  for (const char* name : {"nccl-a100pcie-2gpu-host11", "nccl-alibaba-a100-8gpu-4nic", "nccl-ibm-vpc-h100",
                           "nccl-v100-cubemesh-berkeley", "rccl-8p_940", "rccl-16p1h"}) {
    CAPTURE(name);
    const auto graph = read_nccl_xml(text_of(name));
    REQUIRE(graph.ok());
    CHECK(all_warnings(graph.value()).empty());
  }
}

TEST_CASE("what is written for NCCL reads back with the same GPUs, NICs and links") {
  if (!has_shared_folder()) return;
  for (const Expected& expected : kFiles) {
    CAPTURE(expected.file);
    const auto graph = read_nccl_xml(text_of(expected.file));
    REQUIRE(graph.ok());
    for (const std::string& lost : lost_in_nccl_xml(graph.value(), to_nccl_xml(graph.value()))) FAIL_CHECK(lost);
    const auto again = read_nccl_xml(to_nccl_xml(graph.value()));
    if (!again.ok()) FAIL_CHECK(again.error().message);
    if (!again.ok()) continue;
    // NCCL wants every device in a <cpu>: where there is none, one is written, and the root of the excerpt is in it.
    Expected written = expected;
    if (expected.numa_nodes == 0) {
      written.numa_nodes = 1;
      ++written.pci_cables;
    }
    check_counts(again.value(), written);
    if (expected.numa_nodes == 0) continue;
    for (const LinkKind kind : {LinkKind::kPci, LinkKind::kCpu, LinkKind::kNetwork, LinkKind::kC2c})
      CHECK(sum_of(again.value(), kind).bandwidth == sum_of(graph.value(), kind).bandwidth);
  }
}
