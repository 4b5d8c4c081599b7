// The reader of NCCL's XML on small files written here: what each element becomes, each kind of damage, and hostile input.
#include "topology/nccl_xml.h"
#include "graph_questions.h"
#include "networks.h"
#include "topology/xml_document.h"

#include <catch2/catch.hpp>

#include <string>

using namespace tutti::topology;
using Catch::Contains;

namespace {

constexpr const char* kPair = R"(<system version="1">
  <cpu host_hash="0x1" numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:06:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="90" rank="0" gdr="1">
        <nvlink target="0000:07:00.0" count="4" tclass="0x030200"/>
      </gpu>
    </pci>
    <pci busid="0000:07:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="90" rank="1" gdr="1">
        <nvlink target="0000:06:00.0" count="4" tclass="0x030200"/>
      </gpu>
    </pci>
  </cpu>
</system>
)";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

Graph loaded(const std::string& text) {
  auto graph = read_nccl_xml(text);
  if (!graph.ok()) FAIL(graph.error().message);
  return std::move(graph).value();
}

std::string refusal_of(const std::string& text) {
  const auto graph = read_nccl_xml(text);
  REQUIRE_FALSE(graph.ok());
  CHECK(graph.error().code == tutti::Code::kInvalidArgument);
  return graph.error().message;
}

std::string warnings_of(const std::string& text) { return all_warnings(loaded(text)); }

}  // namespace

TEST_CASE("GPUs, NUMA nodes and links are those of the file") {
  const Graph graph = loaded(kPair);
  CHECK(graph.warnings().empty());
  CHECK(graph.hosts() == std::vector<std::string>{"0x1"});
  CHECK(graph.nodes().size() == 3);
  CHECK(graph.node(graph.find("gpu1")).facts ==
        Facts{.bus_id = "0000:07:00.0", .numa = 0, .rank = 1, .device = 1, .sm = 90});
  CHECK(graph.node(graph.find("numa0")).facts.model == "GenuineIntel 6/143");
  CHECK(gbps_of(graph, "gpu0", "gpu1", LinkKind::kNvLink) == 82.4);
  CHECK(gbps_of(graph, "gpu1", "gpu0", LinkKind::kNvLink) == 82.4);
  CHECK(gbps_of(graph, "gpu0", "numa0", LinkKind::kPci) == 48);
  CHECK(graph.links().size() == 6);
}

TEST_CASE("a link listed from one side only is a one-way arc, and said so") {
  const std::string text = replaced(kPair, "<nvlink target=\"0000:06:00.0\" count=\"4\" tclass=\"0x030200\"/>", "");
  const Graph graph = loaded(text);
  CHECK(gbps_of(graph, "gpu0", "gpu1", LinkKind::kNvLink) == 82.4);
  CHECK(gbps_of(graph, "gpu1", "gpu0", LinkKind::kNvLink) == 0);
  CHECK_THAT(warnings_of(text),
             Contains("line 5, <nvlink target=\"0000:07:00.0\">: the link is listed from this side only"));
}

TEST_CASE("switch targets are one switch, C2C and POWER's NVLinks go to the NUMA node") {
  std::string text = replaced(kPair, "target=\"0000:07:00.0\" count=\"4\" tclass=\"0x030200\"/>",
                              "target=\"0000:f0:00.0\" count=\"4\" tclass=\"0x068000\"/>"
                              "<nvlink target=\"0000:f1:00.0\" count=\"5\" tclass=\"0x068000\"/>"
                              "<c2c bw=\"45000\" count=\"2\"/>");
  text = replaced(text, "target=\"0000:06:00.0\" count=\"4\" tclass=\"0x030200\"/>",
                  "target=\"0000:f1:00.0\" count=\"9\" tclass=\"0x068000\"/>"
                  "<nvlink target=\"0004:04:00.0\" count=\"3\" tclass=\"0x068001\"/>");
  const Graph graph = loaded(text);
  CHECK(graph.nodes_of(NodeKind::kSwitch).size() == 1);
  CHECK(gbps_of(graph, "gpu0", "switch0", LinkKind::kNvLink) == 185.4);
  CHECK(gbps_of(graph, "switch0", "gpu0", LinkKind::kNvLink) == 185.4);
  CHECK(graph.find_link(graph.find("gpu0"), graph.find("switch0"), LinkKind::kNvLink)->count == 9);
  CHECK(gbps_of(graph, "gpu0", "numa0", LinkKind::kC2c) == 90);
  CHECK(gbps_of(graph, "numa0", "gpu0", LinkKind::kC2c) == 90);
  CHECK(gbps_of(graph, "gpu1", "numa0", LinkKind::kNvLink) == 61.8);
}

TEST_CASE("two hosts in one file stay two, each with its own CPU links and bus ids") {
  std::string first = replaced(kPair, "<system version=\"1\">\n", "");
  first = replaced(first, "</system>\n", "");
  const std::string second = replaced(first, "0x1", "0x2");
  const Graph graph = loaded("<system version=\"1\">\n" + first + second + "</system>");
  CHECK(graph.hosts().size() == 2);
  CHECK(graph.nodes_of(NodeKind::kGpu).size() == 4);
  CHECK(graph.node(graph.find("h1.gpu1")).host == 1);
  CHECK(gbps_of(graph, "h1.gpu0", "h1.gpu1", LinkKind::kNvLink) == 82.4);
  CHECK(gbps_of(graph, "gpu0", "h1.gpu1", LinkKind::kNvLink) == 0);
  CHECK(gbps_of(graph, "numa0", "h1.numa0", LinkKind::kCpu) == 0);
  CHECK(graph.warnings().empty());
  const Graph again = loaded(to_nccl_xml(graph));
  CHECK(again.hosts() == graph.hosts());
  CHECK(again.links() == graph.links());
}

TEST_CASE("several GPUs or ports in one device share its PCI link") {
  const std::string text = R"(<system version="1"><cpu numaid="0">
    <pci busid="0000:06:00.0" class="0x030200" link_speed="16 GT/s" link_width="8">
      <gpu dev="0" sm="100" rank="0"><nvlink target="0000:f0:00.0" count="18" tclass="0x068000"/></gpu>
      <gpu dev="0" sm="100" rank="1"><nvlink target="0000:f0:00.0" count="18" tclass="0x068000"/></gpu>
    </pci>
    <pci busid="0000:07:00.0" class="0x030200" link_speed="16 GT/s" link_width="8">
      <gpu dev="1" sm="100" rank="2"><nvlink target="0000:06:00.0" count="2" tclass="0x030200"/></gpu>
    </pci>
    <pci busid="0000:08:00.0" class="0x020000" link_speed="16 GT/s" link_width="16">
      <nic><net name="a+b" dev="0" speed="200000" latency="1.5"/><net name="c" dev="1" speed="100000"/></nic>
    </pci></cpu></system>)";
  const Graph graph = loaded(text);
  CHECK(graph.nodes_of(NodeKind::kGpu).size() == 3);
  const int gpu = graph.find("gpu0.2");
  REQUIRE(gpu != kNone);
  CHECK(graph.node(gpu).facts.rank == 1);
  const int device = graph.node(gpu).parent;
  CHECK(graph.node(device).kind == NodeKind::kPci);
  CHECK(gbps(graph.find_link(gpu, device, LinkKind::kPci)->bandwidth) == 5000);
  CHECK(gbps(graph.find_link(device, graph.find("numa0"), LinkKind::kPci)->bandwidth) == 12);
  // Both ranks list the device's eighteen NVLinks; a link to it goes to the device, too.
  CHECK(gbps(graph.find_link(device, graph.find("switch0"), LinkKind::kNvLink)->bandwidth) == Approx(721.8));
  CHECK(graph.find_link(gpu, graph.find("switch0"), LinkKind::kNvLink) == nullptr);
  CHECK(graph.find_link(graph.find("gpu1"), device, LinkKind::kNvLink) != nullptr);
  CHECK(graph.nodes_of(NodeKind::kNic).size() == 2);
  CHECK(gbps_of(graph, "a-b", "network", LinkKind::kNetwork) == 25);
  CHECK(graph.find_link(graph.find("a-b"), graph.find("network"), LinkKind::kNetwork)->latency_ns == 1500);
  const Graph again = loaded(to_nccl_xml(graph));
  CHECK(again.links() == graph.links());
}

TEST_CASE("ports that are merged into another NIC count once, as that") {
  const std::string text =
      replaced(kPair, "  </cpu>", R"(<pci busid="0000:08:00.0" class="0x020000" link_width="8"><nic>
      <net name="a" dev="0" speed="100000" net="0"/><net name="b" dev="1" speed="100000" net="0"/>
      <net name="a+b" dev="2" speed="200000" net="1"/></nic></pci></cpu>)");
  const Graph graph = loaded(text);
  REQUIRE(graph.nodes_of(NodeKind::kNic).size() == 1);
  CHECK(gbps_of(graph, "a-b", "network", LinkKind::kNetwork) == 25);
  CHECK(gbps_of(graph, "a-b", "numa0", LinkKind::kPci) == 6);
  CHECK_THAT(warnings_of(text),
             Contains("<net name=\"a\">: the port is part of a merged NIC") && Contains("(and 1 more)"));
}

TEST_CASE("a figure in the file wins over the table, and odd figures survive writing") {
  const std::string text = replaced(kPair, "count=\"4\" tclass", "count=\"4\" gbps=\"81.25\" tclass");
  const Graph graph = loaded(text);
  CHECK(gbps_of(graph, "gpu0", "gpu1", LinkKind::kNvLink) == 81.25);
  CHECK(gbps_of(graph, "gpu1", "gpu0", LinkKind::kNvLink) == 82.4);
  const std::string written = to_nccl_xml(graph);
  CHECK_THAT(written, Contains("gbps=\"81.25\"") && !Contains("gbps=\"82.4\"") && !Contains("\" />"));
  CHECK(loaded(written).links() == graph.links());
}

TEST_CASE("light damage is repaired, and the warning names it") {
  struct Damage {
    const char* what;
    std::string text;
    const char* warning;
  };
  const std::string pair = kPair;
  const std::string body = pair.substr(pair.find('\n') + 1);
  const std::string one_gpu = R"(<pci busid="0000:06:00.0" class="0x030200"><gpu dev="0" sm="90" rank="0"/></pci>)";
  const Damage damages[] = {
      {"the first line lost", body, "line 1: there is no <system> before <cpu>"},
      {"text before", "[0] dump of node 3:\n" + pair, "line 1: 20 bytes before the first element are left out"},
      {"terminal codes", "\x1b[4m\x1b[1;31m" + replaced(pair, "<gpu dev", "\x1b[0m<gpu dev"), "3 terminal codes"},
      {"one bus id twice", replaced(replaced(pair, "busid=\"0000:07", "busid=\"0000:06"), "dev=\"1\"", "dev=\"2\""),
       "line 8, <pci busid=\"0000:06:00.0\">: duplicate bus id, also in line 3; both"},
      {"one GPU twice", replaced(pair, "  </cpu>", one_gpu + "</cpu>"), "the same GPU again is left out"},
      {"no bus id", replaced(pair, "busid=\"0000:06:00.0\" ", ""), "there is no busid"},
      {"no rank", replaced(pair, " rank=\"1\"", ""), "line 9, <gpu dev=\"1\">: the GPU has no rank"},
      {"no sm", replaced(pair, " sm=\"90\"", ""), "line 4, <gpu dev=\"0\">: the GPU has no sm"},
      {"no count", replaced(pair, " count=\"4\"", ""), "line 5, <nvlink target=\"0000:07:00.0\">: there is no count"},
      {"sides that differ", replaced(pair, "count=\"4\"", "count=\"1\""),
       "line 5, <nvlink target=\"0000:07:00.0\">: 20.6 GB/s, but 82.4 GB/s from the other side"},
      {"a NIC's speed below 0", replaced(pair, "</gpu>", "</gpu><nic><net name=\"a\" speed=\"-100\"/></nic>"),
       "line 6, <net name=\"a\">: speed \"-100\" is no number of Mb/s"},
      {"a NIC's speed with a unit", replaced(pair, "</gpu>", "</gpu><nic><net name=\"a\" speed=\"400 Gb/s\"/></nic>"),
       "speed \"400 Gb/s\" is no number of Mb/s"},
      {"no NIC's speed", replaced(pair, "</gpu>", "</gpu><nic><net name=\"a\"/></nic>"), "speed is not in the file"},
      {"a target that is not there", replaced(pair, "target=\"0000:07", "target=\"0000:17"), "the target is no GPU"},
      {"a speed that is none", replaced(pair, "32.0 GT/s PCIe", "fast"), "link_speed \"fast\" is not known"},
      {"a width that cannot be", replaced(pair, "link_width=\"16\"", "link_width=\"999\""), "link_width 999 cannot be"},
      {"an element of somebody", replaced(pair, "</gpu>", "<tpu/></gpu>"), "<tpu> in <gpu> is not known"},
      {"another version", replaced(pair, "version=\"1\"", "version=\"9\""), "version 9 is read as 1"},
  };
  for (const auto& [what, text, warning] : damages) {
    CAPTURE(what);
    CHECK_THAT(warnings_of(text), Contains(warning));
    CHECK(loaded(text).nodes_of(NodeKind::kGpu).size() == 2);
  }
}

TEST_CASE("a machine without GPUs that Tutti wrote is read back, cores and memory included") {
  GraphBuilder builder;
  builder.add_host("host");
  for (int node = 0; node < 2; ++node) {
    Facts facts;
    facts.model = "AuthenticAMD 25/1";
    facts.numa = node;
    facts.cores = 64;
    facts.memory = from_gbps(204.8);
    builder.add_node(NodeKind::kNuma, 0, kNone, "numa" + std::to_string(node), facts);
  }
  builder.connect(0, 1, LinkKind::kCpu, 16 * kGigabyte);
  const auto graph = std::move(builder).finish();
  REQUIRE(graph.ok());
  CHECK(loaded(to_nccl_xml(graph.value())) == graph.value());
}

TEST_CASE("lower or upper case, with or without domain, a bus id is the same") {
  const std::string text = replaced(replaced(kPair, "busid=\"0000:07:00.0\"", "busid=\"0000:AB:00.0\""),
                                    "target=\"0000:07:00.0\"", "target=\"ab:00.0\"");
  CHECK(gbps_of(loaded(text), "gpu0", "gpu1", LinkKind::kNvLink) == 82.4);
}

TEST_CASE("what is beyond use is refused with line, element and reason") {
  const std::string pair = kPair;
  CHECK_THAT(refusal_of("no XML at all"), Contains("no element"));
  CHECK_THAT(refusal_of("<topology/>"), Contains("line 1, <topology>: expected <system>"));
  CHECK_THAT(refusal_of("<system version=\"1\"/>"), Contains("line 1, <system version=\"1\">: no <gpu>"));
  CHECK_THAT(refusal_of(replaced(pair, "</gpu>", "</pci>")),
             Contains("line 6: </pci> where </gpu> was expected, which begins in line 4"));
  CHECK_THAT(refusal_of(replaced(pair, "dev=\"0\"", "dev=0")), Contains("line 4: "));
  CHECK_THAT(refusal_of(pair + "</pci>"), Contains("line 15: </pci> ends what did not begin"));
  CHECK_THAT(refusal_of(replaced(pair, "count=\"4\"", "count=\"100000\"")),
             Contains("line 5, <nvlink target=\"0000:07:00.0\">: count=\"100000\"; expected 0 to 4096"));
  for (const std::string count : {"4.5", "99999999999", "four"})
    CHECK_THAT(refusal_of(replaced(pair, "count=\"4\"", "count=\"" + count + "\"")),
               Contains("line 5, <nvlink target=\"0000:07:00.0\">: count=\"" + count + "\"; expected 0 to 4096"));
  CHECK_THAT(refusal_of(replaced(pair, "</gpu>", "<c2c count=\"9\" bw=\"2000000000\"/></gpu>")),
             Contains("line 6, <c2c count=\"9\">: bw=\"2000000000\"; expected MB/s"));
}

TEST_CASE("a file cut off at any byte is refused, and the message says where and what is open") {
  const std::string text = kPair;
  const std::size_t whole = text.rfind('>') + 1;
  for (std::size_t end = 0; end < whole; ++end) {
    CAPTURE(end);
    CHECK_FALSE(read_nccl_xml(text.substr(0, end)).ok());
  }
  CHECK(read_nccl_xml(text.substr(0, whole)).ok());
  CHECK_THAT(
      refusal_of(text.substr(0, text.find("count"))),
      Contains("line 5: the file is cut off here, inside the tag <nvlink; <system>, <cpu>, <pci>, <gpu> stay open"));
}

TEST_CASE("hostile files end soon, with a reason") {
  CHECK_THAT(refusal_of(std::string("<system>\0</system>", 18)), Contains("binary (a zero byte at offset 8)"));
  CHECK_THAT(refusal_of("<!DOCTYPE a [<!ENTITY x \"y\"><!ENTITY z \"&x;&x;&x;\">]>\n<system>&z;</system>"),
             Contains("line 1: <!ENTITY"));
  CHECK_THAT(refusal_of(std::string(kXmlBytesMax + 1, ' ')), Contains("at most 4194304 are read"));
  std::string deep = "<system>";
  for (int i = 0; i < 100'000; ++i) deep += "<pci busid=\"0000:00:00.0\">";
  CHECK_THAT(refusal_of(deep), Contains("line 1, <pci>: more than 64 elements inside each other"));
  std::string cycle = "<system><cpu numaid=\"0\">";
  for (int i = 0; i < 50; ++i) cycle += "<pci busid=\"0000:01:00.0\">";
  cycle += "<gpu dev=\"0\" sm=\"90\" rank=\"0\"/>";
  for (int i = 0; i < 50; ++i) cycle += "</pci>";
  CHECK_THAT(warnings_of(cycle + "</cpu></system>"), Contains("duplicate bus id"));
  std::string many = "<system><cpu numaid=\"0\">";
  while (many.size() < kXmlBytesMax - 100) many += "<pci/>";
  CHECK_THAT(refusal_of(many + "</cpu></system>"), Contains("no <gpu>"));
  std::string same = "<system><cpu numaid=\"0\">";
  for (int i = 0; i < 60'000; ++i) same += "<nic><net name=\"x\"/></nic>";
  CHECK(loaded(same + "<gpu/><pci><gpu dev=\"0\" sm=\"80\" rank=\"0\"/></pci></cpu></system>").nodes().size() > 60'000);
  std::string cpus = "<system>";
  for (int i = 0; i < 5000; ++i) cpus += "<cpu numaid=\"0\"/>";
  CHECK_THAT(refusal_of(cpus + "</system>"), Contains("more than 1024 <cpu> in one host"));
}

TEST_CASE("a file without anything that may be a GPU is of a machine whose NUMA nodes compute") {
  const std::string text = R"(<system version="1">
  <cpu numaid="0"><pci busid="0000:01:00.0" class="0x020000" link_speed="16.0 GT/s PCIe" link_width="16">
    <nic><net name="mlx5_0" dev="0" speed="200000" port="1"/></nic></pci></cpu>
  <cpu numaid="1"/>
</system>)";
  const Graph graph = loaded(text);
  CHECK(graph.nodes_of(NodeKind::kGpu).empty());
  CHECK(graph.nodes_of(NodeKind::kNuma).size() == 2);
  CHECK(graph.nodes_of(NodeKind::kNic).size() == 1);
  CHECK_THAT(warnings_of(text), Contains("the ranks are the NUMA nodes"));
  // Where some device says no class it may be one.
  CHECK_THAT(refusal_of(replaced(text, "<cpu numaid=\"1\"/>", "<cpu numaid=\"1\"><pci busid=\"0000:02:00.0\"/></cpu>")),
             Contains("nothing tells which are GPUs"));
}

TEST_CASE("a figure of Tutti's own or a width that cannot be is told of") {
  for (const char* bad : {"-1", "nan", "0", "1e3", "300x", "10000000"}) {
    CAPTURE(bad);
    const std::string own = " gbps=\"" + std::string(bad) + "\" ";
    const std::string links = replaced(kPair, "count=\"4\" tclass", "count=\"4\"" + own + "tclass");
    CHECK(gbps_of(loaded(links), "gpu0", "gpu1", LinkKind::kNvLink) == 82.4);
    CHECK_THAT(warnings_of(links), Contains("gbps \"" + std::string(bad) + "\" is no number of GB/s"));
    const std::string memory = replaced(kPair, "<cpu ", "<cpu memory_gbps=\"" + std::string(bad) + "\" ");
    CHECK_THAT(warnings_of(memory), Contains("memory_gbps \"" + std::string(bad) + "\" is no number of GB/s"));
  }
  const std::string width = replaced(kPair, "link_width=\"16\"", "link_width=\"x8\"");
  CHECK_THAT(warnings_of(width), Contains("link_width x8 cannot be; counted as 16"));
  CHECK_THAT(warnings_of(replaced(kPair, "link_width=\"16\"", "link_width=\"\"")), !Contains("link_width"));
}

TEST_CASE("what NCCL's form has no place for is named") {
  const Graph whole = loaded(kPair);
  CHECK(lost_in_nccl_xml(whole, to_nccl_xml(whole)).empty());

  GraphBuilder builder;
  const int host = builder.add_host("a");
  const int numa = builder.add_node(NodeKind::kNuma, host, kNone, "numa0", {.numa = 0});
  std::vector<int> gpus;
  for (int i = 0; i < 3; ++i) {  // partitions of one device
    gpus.push_back(builder.add_node(NodeKind::kGpu, host, numa, "", {.bus_id = "0000:01:00.0", .gcn = "gfx942"}));
    builder.connect(gpus.back(), numa, LinkKind::kPci, 48 * kGigabyte, 16);
  }
  builder.connect(gpus[0], gpus[1], LinkKind::kXgmi, 100 * kGigabyte);
  builder.connect(gpus[1], gpus[2], LinkKind::kXgmi, 100 * kGigabyte);
  const auto graph = std::move(builder).finish();
  REQUIRE(graph.ok());
  const std::vector<std::string> lost = lost_in_nccl_xml(graph.value(), to_nccl_xml(graph.value()));
  REQUIRE_FALSE(lost.empty());
  CAPTURE(lost);
  CHECK_THAT(lost.back(), Contains("4 with 400 GB/s in all links of kind xgmi become none"));
}

// Milliseconds to write `gpus` GPUs that are all connected to each other, and `hosts` hosts without one.
double ms_to_write(int gpus, int hosts) {
  GraphBuilder builder;
  builder.add_host("a");
  for (int gpu = 0; gpu < gpus; ++gpu) {
    builder.add_node(NodeKind::kGpu, 0, kNone, "");
    for (int other = 0; other < gpu; ++other) builder.connect(other, gpu, LinkKind::kNvLink, kGigabyte);
  }
  for (int i = 0; i < hosts; ++i) {
    const int host = builder.add_host("h" + std::to_string(i));
    builder.add_node(NodeKind::kPci, host, builder.add_node(NodeKind::kNuma, host, kNone, ""), "");
  }
  const auto graph = std::move(builder).finish();
  REQUIRE(graph.ok());
  const double start = cpu_ms();
  CHECK(to_nccl_xml(graph.value()).size() > 100'000);
  return cpu_ms() - start;
}

TEST_CASE("a large graph is written in time that grows with its size") {
  // Eight times the links and the hosts: what is linear takes eight times as long, what is quadratic 64 times.
  const double small = ms_to_write(120, 2000);
  CHECK(ms_to_write(340, 16'000) < 24 * small);
}
