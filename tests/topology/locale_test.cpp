// Numbers of the machine's files in a program whose locale has a decimal comma, as setlocale(LC_ALL, "") gives it to many.
#include "topology/source.h"
#include "topology/sysfs.h"

#include <catch2/catch.hpp>

#include <stdlib.h>

#include <clocale>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

using namespace tutti::topology;

namespace {

/// glibc's "C" with another point, made here, as a machine need not have any such locale.
class DecimalComma {
 public:
  DecimalComma() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tutti-locale-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    folder_ = pattern;
    // A mark, the number of facts and where each is: the point, of thousands the separator and groups, both as wide characters, the code set.
    constexpr std::uint32_t kFacts[] = {0x20031114, 6, 32, 34, 35, 36, 40, 44};
    constexpr std::uint32_t kWide[] = {',', 0};
    std::string text(reinterpret_cast<const char*>(kFacts), sizeof kFacts);
    text += std::string_view(",\0\0\0", 4);
    text.append(reinterpret_cast<const char*>(kWide), sizeof kWide);
    text += std::string_view("UTF-8\0", 6);
    write("comma/LC_NUMERIC", text);
    setenv("LOCPATH", folder_.c_str(), 1);
    has_comma_ = std::setlocale(LC_NUMERIC, "comma") != nullptr && std::strtod("2.5", nullptr) == 2;
  }
  ~DecimalComma() {
    std::setlocale(LC_NUMERIC, "C");
    unsetenv("LOCPATH");
    std::error_code none;
    std::filesystem::remove_all(folder_, none);
  }
  DecimalComma(const DecimalComma&) = delete;
  DecimalComma& operator=(const DecimalComma&) = delete;

  bool has_comma() const { return has_comma_; }
  std::string root() const { return folder_.string(); }
  void write(const std::string& name, std::string_view text) const {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }

 private:
  std::filesystem::path folder_;
  bool has_comma_ = false;
};

const Link& first_link(const Graph& graph, const char* from, LinkKind kind) {
  for (const Link& link : graph.links())
    if (graph.node(link.from).name == from && link.kind == kind) return link;
  FAIL("no such link of " << from);
  return graph.links().front();
}

}  // namespace

TEST_CASE("numbers with a point are read as such where the locale has a comma") {
  const DecimalComma here;
  if (!here.has_comma()) {
    WARN("skipped: this C library takes no such locale");
    return;
  }
  here.write("sys/class/infiniband/mlx5_0/ports/1/rate", "2.5 Gb/sec (1X SDR)\n");
  CHECK(gbps(Sysfs(here.root()).fabric_rate("mlx5_0").bandwidth) == 0.3125);

  const auto nccl = read_text(R"(<system version="1"><cpu numaid="0">
    <pci busid="0000:06:00.0" class="0x030200" link_speed="2.5 GT/s" link_width="8"><gpu dev="0" sm="100" rank="0"/></pci>
    <pci busid="0000:08:00.0" class="0x020000" link_speed="16 GT/s" link_width="16">
      <nic><net name="net" dev="0" speed="200000" latency="1.5"/></nic></pci></cpu></system>)");
  REQUIRE(nccl.ok());
  CHECK(first_link(nccl.value(), "net", LinkKind::kNetwork).latency_ns == 1500);

  const auto graph = read_text(R"(<graphs><graph pattern="4" speedintra="20.5" speedinter="12" typeintra="NVL"><channel>
    <gpu dev="0"/><gpu dev="1"/></channel></graph></graphs>)");
  REQUIRE(graph.ok());
  CHECK(gbps(first_link(graph.value(), "gpu0", LinkKind::kNvLink).bandwidth) == 20.5);

  const auto hwloc = read_text(R"(<topology version="2.0"><object type="Machine" os_index="0">
    <object type="Package" os_index="0"><object type="NUMANode" os_index="0" local_memory="1000"/>
      <object type="Core" os_index="0"><object type="PU" os_index="0"/></object></object>
    <object type="Bridge" bridge_type="0-1">
      <object type="PCIDev" pci_busid="0000:03:00.0" pci_type="0302 [10de:2330] [0000:0000] a1" pci_link_speed="15.75">
        <object type="OSDev" name="cuda0" osdev_type="5"/></object></object></object></topology>)");
  REQUIRE(hwloc.ok());
  double pci = 0;
  for (const Link& link : hwloc.value().links())
    if (link.kind == LinkKind::kPci && gbps(link.bandwidth) < 100) pci = gbps(link.bandwidth);
  CHECK(pci == 15.75);
}
