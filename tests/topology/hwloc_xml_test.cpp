#include "topology/hwloc_xml.h"

#include "graph_questions.h"
#include "networks.h"

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <string>

using namespace tutti::topology;
using Catch::Contains;

namespace {

/// Two GPUs below a switch and a NIC beside it on the first of two NUMA nodes; PU 1 is not allowed.
std::string machine_of(int version, const std::string& matrices) {
  const bool old = version == 1;
  const auto numa = [&](int number, const std::string& inside) {
    const std::string open = fmt::format(R"(<object type="NUMANode" os_index="{0}" gp_index="{1}" local_memory="1000")",
                                         number, 10 + number);
    return old ? open + ">" + inside + "</object>" : open + "/>" + inside;
  };
  const auto core = [](int number) {
    return fmt::format(R"(<object type="Core" os_index="{0}"><object type="PU" os_index="{0}"/></object>)", number);
  };
  const std::string cache = old ? R"(<object type="Cache" depth="3" cache_size="4096" cache_type="0">)"
                                : R"(<object type="L3Cache" depth="3" cache_size="4096" cache_type="0">)";
  const std::string devices = R"(
    <object type="Bridge" bridge_type="0-1" gp_index="20">
      <object type="Bridge" bridge_type="1-1" pci_busid="0000:00:01.0" pci_type="0604 [8086:2030] [0000:0000] 04" pci_link_speed="31.507692">
        <object type="Bridge" bridge_type="1-1" pci_busid="0000:01:00.0" pci_type="0604 [10b5:9781] [0000:0000] 04" pci_link_speed="31.507692">
          <object type="Bridge" bridge_type="1-1" pci_busid="0000:02:00.0" pci_type="0604 [10b5:9781] [0000:0000] 04" pci_link_speed="15.753846">
            <object type="PCIDev" pci_busid="0000:03:00.0" pci_type="0302 [10de:2330] [0000:0000] a1" pci_link_speed="15.753846" gp_index="30">
              <object type="OSDev" name="cuda0" osdev_type="5" gp_index="31"/><object type="OSDev" name="nvml0" osdev_type="1" gp_index="32"/>
            </object>
          </object>
          <object type="Bridge" bridge_type="1-1" pci_busid="0000:02:01.0" pci_type="0604 [10b5:9781] [0000:0000] 04" pci_link_speed="15.753846">
            <object type="PCIDev" pci_busid="0000:04:00.0" pci_type="0302 [10de:2330] [0000:0000] a1" pci_link_speed="15.753846" gp_index="40">
              <object type="OSDev" name="nvml1" osdev_type="1" gp_index="42"/>
            </object>
          </object>
        </object>
      </object>
      <object type="Bridge" bridge_type="1-1" pci_busid="0000:00:02.0" pci_type="0604 [8086:2030] [0000:0000] 04" pci_link_speed="7.876923">
        <object type="PCIDev" pci_busid="0000:05:00.0" pci_type="0207 [15b3:1021] [0000:0000] 00" pci_link_speed="0.000000">
          <object type="OSDev" name="ib0" osdev_type="2"/><object type="OSDev" name="mlx5_0" osdev_type="3"/>
        </object>
      </object>
      <object type="PCIDev" pci_busid="0000:00:05.0" pci_type="0300 [1a03:2000] [0000:0000] 41" pci_link_speed="0.000000"/>
    </object>)";
  return fmt::format(
      R"(<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc.dtd">
<topology{}><object type="Machine" os_index="0" allowed_cpuset="0x0000000d">
<info name="HostName" value="box"/>
<object type="{}" os_index="0"><info name="CPUVendor" value="GenuineIntel"/><info name="CPUFamilyNumber" value="6"/><info name="CPUModelNumber" value="143"/>{}</object>
<object type="Package" os_index="1">{}</object></object>
{}
</topology>
)",
      old ? "" : fmt::format(" version=\"{}.0\"", version), old ? "Socket" : "Package",
      numa(0, cache + core(0) + core(1) + "</object>" + devices), numa(1, core(2) + core(3)), matrices);
}

const std::string kMatrix = R"(<distances2 type="OSDev" nbobjs="2" kind="9" name="NVLinkBandwidth" indexing="gp">
<indexes length="6">32 42 </indexes><u64values length="1">1000000 50000 </u64values><u64values length="1">50000 1000000</u64values>
</distances2>)";

Graph read(const std::string& text) {
  auto graph = read_hwloc_xml(text);
  INFO((graph.ok() ? "" : graph.error().message));
  REQUIRE(graph.ok());
  return std::move(graph).value();
}

std::string refusal(const std::string& text) {
  const auto graph = read_hwloc_xml(text);
  return graph.ok() ? "" : graph.error().message;
}

Bandwidth link(const Graph& graph, const char* from, const char* to, LinkKind kind) {
  const Link* found = graph.find_link(graph.find(from), graph.find(to), kind);
  return found == nullptr ? 0 : found->bandwidth;
}

}  // namespace

TEST_CASE("formats 1, 2 and 3 of hwloc XML give the same machine") {
  const int version = GENERATE(1, 2, 3);
  INFO("format " << version);
  std::string text = machine_of(version, kMatrix);
  if (version == 3) {  // format 3 has bits for the types of OS devices
    for (const auto& [from, to] :
         {std::pair("osdev_type=\"3\"", "osdev_type=\"32\""), std::pair("osdev_type=\"2\"", "osdev_type=\"16\"")}) {
      text.replace(text.find(from), std::string(from).size(), to);
    }
  }
  const Graph graph = read(text);
  CHECK(graph.hosts() == std::vector<std::string>{"box"});
  CHECK(graph.nodes_of(NodeKind::kGpu).size() == 2);
  CHECK(graph.nodes_of(NodeKind::kNic).size() == 1);
  CHECK(graph.nodes_of(NodeKind::kPackage).size() == 2);
  CHECK(graph.nodes_of(NodeKind::kCache).size() == 1);
  CHECK(graph.nodes_of(NodeKind::kPci).size() == 2);  // host bridge and switch
  // PU 1 is not allowed, so its core is not there for this process.
  CHECK(graph.node(graph.find("numa0")).facts.cores == 1);
  CHECK(graph.node(graph.find("numa1")).facts.cores == 2);
  CHECK(graph.node(graph.find("numa0")).facts.model == "GenuineIntel 6/143");
  CHECK(gbps(link(graph, "numa0", "numa1", LinkKind::kCpu)) > 0);
  CHECK(gbps(link(graph, "pci1", "gpu0", LinkKind::kPci)) == Approx(15.753846));
  CHECK(gbps(link(graph, "pci0", "pci1", LinkKind::kPci)) == Approx(31.507692));
  CHECK(gbps(link(graph, "pci0", "mlx5_0", LinkKind::kPci)) ==
        Approx(7.876923));  // the port knows what the NIC does not
  CHECK(gbps(link(graph, "gpu1", "gpu0", LinkKind::kNvLink)) == Approx(50));
  CHECK(graph.node(graph.find("gpu0")).facts.bus_id == "0000:03:00.0");
  CHECK(all_warnings(graph).empty());
}

TEST_CASE("XGMIHops of more than one and zeros in XGMIBandwidth are no links") {
  std::string devices;
  for (int i = 0; i < 3; ++i)
    devices += fmt::format(
        R"(<object type="PCIDev" pci_busid="0000:0{}:00.0" pci_type="0380 [1002:7408] [0:0] 00" pci_link_speed="31.5">)"
        R"(<object type="OSDev" name="rsmi{}" gp_index="{}" osdev_type="1"/></object>)",
        i + 1, i, i + 1);
  const auto text = [&](const std::string& bandwidths) {
    return R"(<topology version="2.0"><object type="Machine"><object type="NUMANode" os_index="0"/><object type="Bridge" bridge_type="0-1">)" +
           devices + "</object></object>" + bandwidths +
           R"(<distances2 type="OSDev" nbobjs="3" name="XGMIHops" indexing="gp"><indexes>1 2 3</indexes><u64values>0 1 2 1 0 1 2 1 0</u64values></distances2></topology>)";
  };
  const Graph with = read(text(
      R"(<distances2 type="OSDev" nbobjs="3" name="XGMIBandwidth" indexing="gp"><indexes>1 2 3</indexes><u64values>1000000 50000 99000 50000 1000000 0 99000 0 1000000</u64values></distances2>)"));
  CHECK(gbps(link(with, "gpu0", "gpu1", LinkKind::kXgmi)) == 50);
  CHECK(link(with, "gpu0", "gpu2", LinkKind::kXgmi) == 0);
  CHECK(link(with, "gpu1", "gpu2", LinkKind::kXgmi) == 0);
  const Graph without = read(text(""));
  CHECK(gbps(link(without, "gpu0", "gpu1", LinkKind::kXgmi)) == 36);  // gfx90a, by the table
  CHECK(gbps(link(without, "gpu1", "gpu2", LinkKind::kXgmi)) == 36);
  CHECK(link(without, "gpu0", "gpu2", LinkKind::kXgmi) == 0);
}

TEST_CASE("NVLinks of a POWER machine may end at a package") {
  const Graph graph = read(
      R"(<topology version="2.0"><object type="Machine"><object type="Package" os_index="0" gp_index="5"><object type="NUMANode" os_index="0"/>
<object type="PCIDev" pci_busid="0004:04:00.0" pci_type="0302 [10de:1db1] [0:0] a1" pci_link_speed="1"><object type="OSDev" name="nvml0" gp_index="6"/></object>
</object></object><distances2hetero nbobjs="2" name="NVLinkBandwidth"><indexes>OSDev:6 Package:5</indexes><u64values>1000000 75000 75000 1000000</u64values></distances2hetero></topology>)");
  CHECK(gbps(link(graph, "gpu0", "numa0", LinkKind::kNvLink)) == 75);
}

TEST_CASE("several machines in one file are several hosts") {
  const Graph graph = read(
      R"(<topology><object type="System"><object type="Machine"><object type="Core"/></object><object type="Machine"><info name="HostName" value="b"/><object type="Core"/></object></object></topology>)");
  CHECK(graph.hosts() == std::vector<std::string>{"host0", "b"});
  CHECK(graph.find("numa0") != kNone);
  CHECK(graph.find("h1.numa0") != kNone);
}

TEST_CASE("damaged hwloc XML is repaired with a warning that names the damage") {
  const std::string whole = machine_of(2, kMatrix);
  SECTION("cut inside the matrices") {
    const Graph graph = read(whole.substr(0, whole.find("1000000 50000")));
    CHECK(graph.nodes_of(NodeKind::kGpu).size() == 2);
    CHECK(link(graph, "gpu1", "gpu0", LinkKind::kNvLink) == 0);
    CHECK_THAT(all_warnings(graph), Contains("cut off") && Contains("link matrices"));
  }
  SECTION("a matrix with too few values") {
    std::string text = whole;
    text.replace(text.find("1000000 50000 "), 8, "");
    const auto line =
        std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(text.find("<distances2")), '\n') + 1;
    CHECK_THAT(all_warnings(read(text)),
               Contains(fmt::format("line {}: the matrix NVLinkBandwidth is left out: 3 values for 2 x 2", line)));
  }
  SECTION("a matrix of objects that are not there") {
    std::string text = whole;
    text.replace(text.find("32 42"), 5, "32 43");
    CHECK_THAT(all_warnings(read(text)), Contains("there is no object 43"));
  }
  SECTION("a matrix of what are no numbers") {
    for (const std::string value : {">nan ", ">5e4 ", ">-5 ", ">GPU "}) {
      std::string text = whole;
      text.replace(text.find(">50000 "), 7, value);
      const std::string word = value.substr(1, value.size() - 2);
      CHECK_THAT(all_warnings(read(text)),
                 Contains(fmt::format("the matrix NVLinkBandwidth is left out: value \"{}\" is no number", word)));
      text = whole;
      text.replace(text.find("32 42"), 5, "32 " + word);
      CHECK_THAT(all_warnings(read(text)), Contains(fmt::format("there is no object {}", word)));
    }
  }
  SECTION("the same device twice") {
    std::string text = whole;
    text.replace(text.find("0000:04:00.0"), 12, "0000:03:00.0");
    const Graph graph = read(text);
    CHECK(graph.nodes_of(NodeKind::kGpu).size() == 1);
    CHECK_THAT(all_warnings(graph), Contains("0000:03:00.0 already: the second is left out"));
  }
  SECTION("an address that is none") {
    std::string text = whole;
    text.replace(text.find("0000:04:00.0"), 12, "left-of-gpu0");
    CHECK_THAT(all_warnings(read(text)), Contains("pci_busid \"left-of-gpu0\" is no PCI address"));
  }
  SECTION("a speed that is none") {
    for (const std::string speed : {"nan", "-4", "abc", "1e300"}) {
      std::string text = whole;
      const std::size_t at = text.find("pci_link_speed=\"7.876923\"");
      text.replace(at, 25, "pci_link_speed=\"" + speed + "\"");
      const auto line = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n') + 1;
      CHECK_THAT(all_warnings(read(text)),
                 Contains(fmt::format("line {}: pci_link_speed \"{}\" is no number of GB/s", line, speed)));
    }
  }
  SECTION("a matrix that differs from side to side") {
    std::string text = whole;
    text.replace(text.find(">50000 "), 7, ">25000 ");
    const Graph graph = read(text);
    CHECK_THAT(all_warnings(graph), Contains("25000 MB/s from nvml1 to nvml0, 50000 back"));
    CHECK(gbps(link(graph, "gpu1", "gpu0", LinkKind::kNvLink)) == 25);
    CHECK(gbps(link(graph, "gpu0", "gpu1", LinkKind::kNvLink)) == 50);
  }
}

TEST_CASE("what is no hwloc XML is refused with line and reason") {
  CHECK_THAT(refusal(""), Contains("no element"));
  CHECK_THAT(refusal("<system version=\"1\"><cpu/></system>"), Contains("line 1, <system>"));
  CHECK_THAT(refusal("<topology></topology>"), Contains("there is no <object>"));
  CHECK_THAT(refusal("<topology><object type=\"PU\"/></topology>"), Contains("no object of type Machine"));
  CHECK_THAT(refusal("<topology>\n<object type=\"Machine\">\n<object type=\"PU\">\n</topology>"), Contains("line 4"));
  CHECK_THAT(refusal(std::string("\x7f"
                                 "ELF\0\0\0",
                                 7)),
             Contains("binary"));
}

TEST_CASE("a file cut at any byte is read or refused, and never lacks a device without a word") {
  const std::string whole = machine_of(3, kMatrix);
  int read_count = 0;
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const auto graph = read_hwloc_xml(whole.substr(0, length));
    if (!graph.ok()) {
      CHECK(!graph.error().message.empty());
      continue;
    }
    ++read_count;
    const bool is_whole = graph.value().find_link(0, 0, LinkKind::kPci) == nullptr &&
                          graph.value().nodes_of(NodeKind::kGpu).size() == 2 && length + 1 >= whole.size();
    CHECK((is_whole || !graph.value().warnings().empty()));
    CHECK(graph.value().nodes_of(NodeKind::kGpu).size() == 2);
  }
  CHECK(read_count > 10);
}

TEST_CASE("hostile hwloc XML ends soon") {
  const double start = cpu_ms();
  std::string deep = "<topology>";
  for (int i = 0; i < 100'000; ++i) deep += "<object type=\"Group\">";
  CHECK(!refusal(deep).empty());

  std::string wide = "<topology version=\"2.0\"><object type=\"Machine\">";
  for (int i = 0; i < 300'000; ++i) wide += "<object/>";
  CHECK_THAT(refusal(wide + "</object></topology>"), Contains("more than 262144 objects"));
  CHECK(!refusal(std::string(32 << 20, 'x')).empty());

  std::string million = "<topology version=\"2.0\"><object type=\"Machine\">";
  for (int i = 0; i < 1'000'000; ++i) million += "<object type=\"PU\" os_index=\"1\"/>";
  CHECK(!refusal(million + "</object></topology>").empty());

  CHECK_THAT(refusal("<!DOCTYPE topology [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY b \"&a;&a;&a;&a;&a;&a;&a;&a;\">]>"
                     "<topology><object type=\"Machine\"/></topology>"),
             Contains("ENTITY"));

  std::string numas = "<topology version=\"2.0\"><object type=\"Machine\">";
  for (int i = 0; i < 40'000; ++i)
    numas += "<object type=\"Group\"><object type=\"NUMANode\"/><object type=\"Core\"/></object>";
  static_cast<void>(read_hwloc_xml(numas + "</object></topology>"));

  std::string bridges = "<topology version=\"2.0\"><object type=\"Machine\">";
  for (int i = 0; i < 20'000; ++i)
    bridges +=
        "<object type=\"Bridge\" bridge_type=\"0-1\"><object type=\"PCIDev\" pci_type=\"0200 [15b3:1]\"/></object>";
  CHECK(read(bridges + "</object></topology>").nodes_of(NodeKind::kNic).size() == 20'000);

  std::string machines = "<topology><object type=\"System\">";
  for (int i = 0; i < 60'000; ++i) machines += "<object type=\"Machine\"/>";
  CHECK(read(machines + "</object></topology>").hosts().size() == 60'000);
  // Takes one second; what is quadratic takes minutes.
  CHECK((cpu_ms() - start) / kSlowdown < 20'000);
}

TEST_CASE("PCI addresses") {
  CHECK(text_of(*parse_pci_address("0000:E7:00.1")) == "0000:e7:00.1");
  CHECK(text_of(*parse_pci_address("07:00.0")) == "0000:07:00.0");
  CHECK(text_of(*parse_pci_address("10000:e1:1f.7")) == "10000:e1:1f.7");
  for (const char* bad :
       {"", "x", "0000:07:00", "0000:07:00.0.1", "0000:07:20.0", "0000:107:00.0", "00000000000000000000000:07:00.0"})
    CHECK(!parse_pci_address(bad));
}
