#include "topology/text_form.h"

#include <catch2/catch.hpp>

#include <random>

using namespace tutti::topology;
using Catch::Contains;

namespace {

constexpr const char* kSmall = R"(tutti-topology 1   # two hosts
host a
host "b c"

numa numa0 cores=56 memory=300.5 bytes=549755813888 model="GenuineIntel 6/143"
gpu gpu0 in=pci0 bus=0000:18:00.0 sm=90 rank=3 device=1 numa=0
pci pci0 in=numa0
nic "mlx5 \"0\"" in=pci0 ports=2
gpu h1.gpu0 host=1 gcn=gfx942
switch nvs
link gpu0 <-> nvs nvlink 370.8 count=18
link nvs -> pci0 pci 0.000001
link gpu0 <-> pci0 pci 48 count=16 latency_ns=350
warning "a \\ backslash, a \x01 and\na line end"
)";

std::string refusal_of(const std::string& text) {
  const auto graph = parse_text(text);
  REQUIRE_FALSE(graph.ok());
  CHECK(graph.error().code == tutti::Code::kInvalidArgument);
  return graph.error().message;
}

std::string refusal_of_line(const std::string& line) {
  return refusal_of("tutti-topology 1\ngpu a\ngpu b\n" + line + "\n");
}

}  // namespace

TEST_CASE("the text form says hosts, nodes with facts, links and warnings") {
  const auto parsed = parse_text(kSmall);
  if (!parsed.ok()) FAIL(parsed.error().message);
  const Graph& graph = parsed.value();
  CHECK(graph.hosts() == std::vector<std::string>{"a", "b c"});
  REQUIRE(graph.nodes().size() == 6);
  const Node& gpu = graph.node(graph.find("gpu0"));
  CHECK(graph.node(gpu.parent).name == "pci0");
  CHECK(gpu.facts == Facts{.bus_id = "0000:18:00.0", .numa = 0, .rank = 3, .device = 1, .sm = 90});
  const Facts& numa = graph.node(0).facts;
  CHECK(numa.memory == 300'500'000);
  CHECK(numa.bytes == 549755813888);
  CHECK(numa.model == "GenuineIntel 6/143");
  CHECK(graph.find("mlx5 \"0\"") == 3);
  CHECK(graph.node(graph.find("h1.gpu0")).host == 1);
  REQUIRE(graph.links().size() == 5);
  CHECK(graph.links()[0] == Link{1, 5, LinkKind::kNvLink, 18, 370'800'000, 0});
  CHECK(graph.links()[1] == Link{5, 1, LinkKind::kNvLink, 18, 370'800'000, 0});
  CHECK(graph.links()[2] == Link{5, 2, LinkKind::kPci, 1, 1, 0});
  CHECK(graph.links()[3].latency_ns == 350);
  CHECK(graph.warnings() == std::vector<std::string>{"a \\ backslash, a ? and?a line end"});  // for terminals
}

TEST_CASE("what is written reads back as the same graph") {
  const auto parsed = parse_text(kSmall);
  REQUIRE(parsed.ok());
  const std::string text = to_text(parsed.value());
  const auto again = parse_text(text);
  if (!again.ok()) FAIL(again.error().message);
  CHECK(again.value() == parsed.value());
  CHECK_THAT(text,
             Contains("link gpu0 <-> nvs nvlink 370.8 count=18\n") && Contains("link nvs -> pci0 pci 0.000001\n"));
}

TEST_CASE("any graph reads back: random nodes, names, facts and links") {
  constexpr unsigned kSeed = 20260711;
  constexpr int kGraphs = 200;
  CAPTURE(kSeed);
  std::mt19937 random(kSeed);
  const auto below = [&](int limit) { return static_cast<int>(random() % static_cast<unsigned>(limit)); };
  for (int i = 0; i < kGraphs; ++i) {
    GraphBuilder builder;
    const int hosts = 1 + below(3);
    for (int host = 0; host < hosts; ++host) builder.add_host(host == 0 ? "" : "h \"" + std::to_string(host));
    const int nodes = 2 + below(12);
    for (int node = 0; node < nodes; ++node) {
      std::string name;
      for (int length = 1 + below(6); length > 0; --length) name += static_cast<char>(1 + below(255));
      Facts facts{
          .bus_id = below(2) == 0 ? "" : "x y", .numa = below(3) - 1, .rank = below(5) - 2, .sm = below(2) * 90};
      facts.memory = below(2) * (1 + below(2'000'000'000));
      const int parent = node > 0 && below(2) == 0 ? below(node) : kNone;
      const int host = parent == kNone ? below(hosts) : builder.so_far().node(parent).host;
      builder.add_node(static_cast<NodeKind>(below(8)), host, parent, name, facts);
    }
    for (int link = below(20); link > 0; --link) {
      const int from = below(nodes);
      const int to = (from + 1 + below(nodes - 1)) % nodes;
      const auto kind = static_cast<LinkKind>(below(7));
      const Bandwidth bandwidth = 1 + below(2'000'000'000);
      if (below(2) == 0) builder.connect(from, to, kind, bandwidth, 1 + below(20));
      if (below(2) == 0) builder.add_link(from, to, kind, bandwidth, 1, below(1000));
    }
    for (int warning = below(150); warning > 0; --warning) builder.warn("warning " + std::to_string(warning));
    const auto graph = std::move(builder).finish();
    REQUIRE(graph.ok());
    const std::string text = to_text(graph.value());
    CAPTURE(i, text);
    const auto again = parse_text(text);
    if (!again.ok()) FAIL(again.error().message);
    REQUIRE(again.value() == graph.value());
  }
}

TEST_CASE("a line that is wrong is named, with what stands there and what was expected") {
  CHECK_THAT(refusal_of(""), Contains("line 1") && Contains("expected \"tutti-topology 1\""));
  CHECK_THAT(refusal_of("\n# x\ngpu a\n"), Contains("line 3: \"gpu\" where \"tutti-topology 1\" was expected"));
  CHECK_THAT(refusal_of("tutti-topology 2\n"), Contains("version 2") && Contains("reads version 1"));
  CHECK_THAT(refusal_of("tutti-topology 1 2\n"), Contains("line 1: \"2\" after \"tutti-topology 1\""));
  CHECK_THAT(refusal_of("tutti-topology 1\n"), Contains("there is no node"));
  CHECK_THAT(refusal_of_line("link a <-> b nvlink 1000000\nlink a <-> b nvlink 1000000"),
             Contains("the nvlink links from a to b have more than 1000000 GB/s together"));
  CHECK_THAT(refusal_of_line("gup c"), Contains("line 4: \"gup\" is no kind of line; expected host, link"));
  CHECK_THAT(refusal_of_line("gpu"), Contains("line 4: gpu is followed by nothing; expected the node's name"));
  CHECK_THAT(refusal_of_line("gpu in=a"), Contains("\"in=a\"; expected the node's name"));
  CHECK_THAT(refusal_of_line("gpu a"), Contains("line 4: a second node a; the first is in line 2"));
  CHECK_THAT(refusal_of_line("gpu c sm=ninety"), Contains("sm=ninety of c; expected a whole number"));
  CHECK_THAT(refusal_of_line("gpu c colour=red"), Contains("colour=red of c; expected in, host, bus"));
  CHECK_THAT(refusal_of_line("gpu c in=d"), Contains("line 4: there is no node \"d\""));
  CHECK_THAT(refusal_of_line("gpu c host=1"), Contains("line 4: host=1 of c") && Contains("there are 1"));
  CHECK_THAT(refusal_of_line("gpu c memory=-3"), Contains("memory=-3 of c; expected GB/s"));
  CHECK_THAT(refusal_of_line("gpu \"c"), Contains("column 5: the quotes that open here do not close"));
  CHECK_THAT(refusal_of_line("gpu \"c\\q\""), Contains("a backslash is followed by"));
  CHECK_THAT(refusal_of_line("link a b nvlink 20"), Contains("expected: link NODE <-> NODE KIND GB/s"));
  CHECK_THAT(refusal_of_line("link a -- b nvlink 20"), Contains("\"--\" between two nodes; expected <->"));
  CHECK_THAT(refusal_of_line("link a -> c nvlink 20"), Contains("line 4: there is no node \"c\""));
  CHECK_THAT(refusal_of_line("link a -> a nvlink 20"), Contains("a link of a to itself"));
  CHECK_THAT(refusal_of_line("link a -> b nvlnk 20"),
             Contains("\"nvlnk\" is no kind of link; expected one of pci, nvlink"));
  for (const char* figure : {"0", "-1", "1e3", "nan", "0.0000001", "1000001", "99999999999999999999", "1.", ".5"})
    CHECK_THAT(refusal_of_line(std::string("link a -> b pci ") + figure),
               Contains(std::string("bandwidth \"") + figure));
  CHECK_THAT(refusal_of_line("link a -> b pci 1 count=0"), Contains("\"count=0\" after the bandwidth"));
  CHECK_THAT(refusal_of("tutti-topology 1\nnuma a in=b\nnuma b in=a\n"), Contains("is inside itself"));
}

TEST_CASE("every beginning of a text is read or refused, and never more than the limits") {
  const std::string text = kSmall;
  for (std::size_t end = 0; end < text.size(); ++end) {
    const auto graph = parse_text(text.substr(0, end));
    CHECK((graph.ok() || !graph.error().message.empty()));
  }
  std::string chain = "tutti-topology 1\npci p0\n";
  for (int i = 1; i < 60'000; ++i) chain += "pci p" + std::to_string(i) + " in=p" + std::to_string(i - 1) + "\n";
  CHECK_THAT(refusal_of(chain), Contains("p128 is inside more than 128 nodes"));
  std::string many = "tutti-topology 1\n";
  for (int i = 0; i <= kNodesMax; ++i) many += "gpu g" + std::to_string(i) + "\n";
  CHECK_THAT(refusal_of(many), Contains("line 65538: more than 65536 nodes"));
  std::string wide = "tutti-topology 1\ngpu a\ngpu b\n";
  for (int i = 0; i <= kLinksMax; ++i) wide += "link a <-> b pci 1000000 count=2147483647\n";
  CHECK_THAT(refusal_of(wide), Contains("more than 1048576 links"));
}
