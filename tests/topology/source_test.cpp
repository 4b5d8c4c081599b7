#include "topology/source.h"

#include "shared_folder.h"

#include "topology/nccl_graph_xml.h"
#include "topology/nccl_xml.h"
#include "topology/text_form.h"

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <unistd.h>

#include <fstream>
#include <set>

using namespace tutti::topology;
using namespace topology_tests;
using Catch::Contains;
using Catch::StartsWith;

namespace {

std::string refusal_of(const std::string& content) {
  const auto graph = read_text(content);
  REQUIRE_FALSE(graph.ok());
  CHECK(graph.error().code == tutti::Code::kInvalidArgument);
  return graph.error().message;
}

/// A file that is gone at the end.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content) : path_("topology-source-test-" + std::to_string(::getpid())) {
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

constexpr const char* kGpu = R"(<pci busid="0000:06:00.0" class="0x030200"><gpu dev="0" sm="90" rank="0"/></pci>)";

}  // namespace

TEST_CASE("the form of a text is told by its content") {
  using Form = SourceForm;
  CHECK(form_of("# mine\n\ntutti-topology 1\n") == Form::kText);
  CHECK(form_of("\xef\xbb\xbf<system version=\"1\">") == Form::kNcclXml);
  CHECK(form_of("<!-- <topology> -->\n<system>") == Form::kNcclXml);
  CHECK(form_of("stray 0x1b codes <cpu numaid=\"0\">") == Form::kNcclXml);
  CHECK(form_of("<graphs version=\"1\">") == Form::kNcclGraphXml);
  CHECK(form_of("<?xml version=\"1.0\"?>\n<!DOCTYPE topology SYSTEM \"hwloc.dtd\">\n<topology>") == Form::kHwlocXml);
  CHECK(form_of("\t\x1b[4mGPU0\tGPU1\nGPU0\t X \tNV4\n") == Form::kSmiMatrix);
  CHECK(form_of("        GPU0    GPU1\n GPU0   X       OK\n") == Form::kSmiMatrix);
  CHECK(form_of("gpu:8 switch:1 nvlink:450\n") == Form::kSynthetic);
  CHECK(form_of("") == Form::kUnknown);
  CHECK(form_of("hello: world") == Form::kUnknown);
  CHECK(form_of("<html><body>") == Form::kUnknown);
}

TEST_CASE("each form goes to its reader") {
  CHECK(read_text("tutti-topology 1\ngpu a\n").value().nodes().size() == 1);
  CHECK(read_text("gpu:4 mesh:50").value().nodes().size() == 4);
  CHECK(read_text(fmt::format("<system><cpu numaid=\"0\">{}</cpu></system>", kGpu)).value().nodes().size() == 2);
  CHECK(read_text(R"(<graphs><graph id="0" pattern="4" speedintra="20" speedinter="20" typeintra="NVL"><channel>
                     <gpu dev="0"/><gpu dev="0x1"/></channel></graph></graphs>)")
            .value()
            .nodes()
            .size() == 2);
}

TEST_CASE("a bandwidth of NVLinks is refused where the form has no use for it") {
  CHECK(read_text("\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n", {.nvlink_gbps = 25}).ok());
  for (const std::string& content : {std::string("tutti-topology 1\ngpu a\n"), std::string("gpu:4 mesh:50"),
                                     fmt::format("<system><cpu numaid=\"0\">{}</cpu></system>", kGpu)}) {
    const auto refused = read_text(content, {.nvlink_gbps = 25});
    REQUIRE_FALSE(refused.ok());
    CHECK_THAT(refused.error().message, Contains("--nvlink-gbps 25: only for the output of nvidia-smi topo -m"));
  }
  CHECK_THAT(read_text("hello", {.nvlink_gbps = 25}).error().message, Contains("no form of a topology that is known"));
}

TEST_CASE("what has no known form is refused: what it looks like, and which forms there are") {
  CHECK_THAT(refusal_of(""), Contains("it is empty") && Contains("Known are Tutti's own text"));
  CHECK_THAT(refusal_of("\x1f\x8b\x08"), Contains("gzip"));
  CHECK_THAT(refusal_of("BZh91AY"), Contains("bzip2"));
  CHECK_THAT(refusal_of("{\"gpus\": 8}"), Contains("JSON"));
  CHECK_THAT(refusal_of("<html></html>"), Contains("XML without an element of a topology"));
  CHECK_THAT(refusal_of("a:1:2 [0] NCCL INFO Paths from GPU/0"), Contains("NCCL's log"));
  CHECK_THAT(refusal_of(std::string("a\0b", 3)), Contains("binary"));
  CHECK_THAT(refusal_of("once upon\na time"), Contains("it begins with \"once upon\""));
}

TEST_CASE("a file's errors begin with its path") {
  const TemporaryFile good("tutti-topology 1\ngpu a\n");
  CHECK(read_file(good.path()).ok());
  const TemporaryFile bad("tutti-topology 1\ngup a\n");
  const auto refused = read_file(bad.path());
  REQUIRE_FALSE(refused.ok());
  CHECK_THAT(refused.error().message, Contains(bad.path() + ": line 2: \"gup\""));
  const auto missing = read_file("no-such-file");
  REQUIRE_FALSE(missing.ok());
  CHECK(missing.error().code == tutti::Code::kSystem);
  CHECK_THAT(missing.error().message, Contains("no-such-file: No such file"));
  CHECK_THAT(read_file("/").error().message, Contains("is a folder"));
  CHECK_THAT(read_file("/dev/zero").error().message, Contains("larger than 64 MiB"));
}

TEST_CASE("graph files load with the GPUs, NICs and links of their channels") {
  if (!has_shared_folder()) return;
  struct Expected {
    const char* file;
    int gpus, nics, links;
    double gbps;  ///< of all links between GPUs, each direction for itself
    int nic_links;
    double nic_gbps;
    LinkKind kind;
  };
  // Per direction of a pair the largest sum over a <graph>'s channels, trees with half their speed each way:
  // azure-ncv4: trees have 2 of 12 each way between 0 and 1, 2 and 3; both, as rings, 12 each way between 1 and 2, 3 and 0.
  // uccl-8gpu-b: the tree's 7 hops have 24 each way; the ring goes down them, and from 0 to 7.
  // uccl-8gpu-multinode: each hop of 8 is in 7 channels, down by 24 in rings, both ways by 48 / 2 in trees.
  // user-chain01, user-chain012: a ring of 21 goes to and fro between two; one of 22 goes around three, beside a tree back by 11.
  // v100-8gpu-berkeley: 8 hops with 2 of 6 rings each way and 8 with 1, all of 22.
  const Expected files[] = {{"azure-ncv4", 4, 0, 8, 4 * 24 + 4 * 12, 0, 0, LinkKind::kPci},
                            {"uccl-8gpu-b", 8, 1, 2 * 7 + 1, 15 * 24, 3, 3 * 24, LinkKind::kNvLink},
                            {"uccl-8gpu-multinode", 8, 8, 2 * 8, 16 * 7 * 24, 24, 24 * 24, LinkKind::kNvLink},
                            {"user-chain01", 2, 0, 2, 2 * 21, 0, 0, LinkKind::kNvLink},
                            {"user-chain012", 3, 0, 5, 3 * 22 + 2 * 11, 0, 0, LinkKind::kNvLink},
                            {"v100-8gpu-berkeley", 8, 0, 2 * 16, 2 * 8 * 44 + 2 * 8 * 22, 0, 0, LinkKind::kNvLink}};
  for (const Expected& expected : files) {
    CAPTURE(expected.file);
    const auto graph = read_file(shared_folder() / (std::string("nccl-graph-") + expected.file + ".xml"));
    if (!graph.ok()) FAIL(graph.error().message);
    CHECK(graph.value().nodes_of(NodeKind::kGpu).size() == static_cast<std::size_t>(expected.gpus));
    CHECK(graph.value().nodes_of(NodeKind::kNic).size() == static_cast<std::size_t>(expected.nics));
    int links = 0;
    int nic_links = 0;
    Bandwidth sum = 0;
    Bandwidth nic_sum = 0;
    for (const Link& link : graph.value().links()) {
      const bool of_gpus =
          graph.value().node(link.from).kind == NodeKind::kGpu && graph.value().node(link.to).kind == NodeKind::kGpu;
      if (of_gpus) CHECK(link.kind == expected.kind);
      if (link.kind == LinkKind::kNetwork) continue;
      (of_gpus ? links : nic_links) += 1;
      (of_gpus ? sum : nic_sum) += link.bandwidth;
    }
    CHECK(links == expected.links);
    CHECK(sum == from_gbps(expected.gbps));
    CHECK(nic_links == expected.nic_links);
    CHECK(nic_sum == from_gbps(expected.nic_gbps));
    REQUIRE(graph.value().warnings().size() == 1);
    CHECK_THAT(graph.value().warnings()[0], Contains("only the GPUs and links that its channels use"));
  }
}

TEST_CASE(
    "a ring's channels go one way, a tree's both ways at half their speed, and to the network from where data leaves") {
  const auto links_of = [](const char* pattern, const char* channel) {
    const auto graph = read_text(fmt::format(
        R"(<graphs><graph pattern="{}" speedintra="20" speedinter="12" typeintra="NVL"><channel>{}</channel></graph></graphs>)",
        pattern, channel));
    REQUIRE(graph.ok());
    std::set<std::string> links;
    for (const Link& link : graph.value().links()) {
      if (link.kind == LinkKind::kNetwork) continue;
      links.insert(fmt::format("{} {} {}", graph.value().node(link.from).name, graph.value().node(link.to).name,
                               gbps(link.bandwidth)));
    }
    return links;
  };
  using Links = std::set<std::string>;
  const char* gpus = R"(<gpu dev="0"/><gpu dev="1"/><gpu dev="2"/>)";
  CHECK(links_of("4", gpus) == Links{"gpu0 gpu1 20", "gpu1 gpu2 20", "gpu2 gpu0 20"});
  CHECK(links_of("4", R"(<gpu dev="0"/><gpu dev="1"/>)") == Links{"gpu0 gpu1 20", "gpu1 gpu0 20"});
  const Links tree = {"gpu0 gpu1 10", "gpu1 gpu0 10", "gpu1 gpu2 10", "gpu2 gpu1 10"};
  CHECK(links_of("3", gpus) == tree);
  const std::string across = fmt::format(R"(<net dev="0"/>{}<net dev="0"/>)", gpus);
  CHECK(links_of("4", across.c_str()) == Links{"net0 gpu0 12", "gpu0 gpu1 20", "gpu1 gpu2 20", "gpu2 net0 12"});
  const std::pair<const char*, Links> leaving[] = {
      {"1", {"gpu0 net0 6", "gpu1 net0 6"}}, {"2", {"gpu1 net0 12"}}, {"3", {"gpu0 net0 12"}}};
  for (const auto& [pattern, leaves] : leaving) {
    Links expected = tree;
    expected.insert("net0 gpu0 12");
    expected.insert(leaves.begin(), leaves.end());
    CHECK(links_of(pattern, across.c_str()) == expected);
  }
  const char* one = R"(<net dev="0"/><gpu dev="0"/><net dev="0"/>)";
  for (const char* pattern : {"1", "2", "3"}) CHECK(links_of(pattern, one) == Links{"net0 gpu0 12", "gpu0 net0 12"});
}

TEST_CASE("the channels on a cube mesh use only pairs that have an NVLink in the same machine's topology") {
  if (!has_shared_folder()) return;
  const auto channels = read_file(shared_folder() / "nccl-graph-v100-8gpu-berkeley.xml");
  const auto machine = read_file(shared_folder() / "nccl-v100-cubemesh-berkeley.xml");
  REQUIRE((channels.ok() && machine.ok()));
  for (const Link& link : channels.value().links()) {
    const std::string& from = channels.value().node(link.from).name;
    const std::string& to = channels.value().node(link.to).name;
    CAPTURE(from, to);
    CHECK(machine.value().find_link(machine.value().find(from), machine.value().find(to), LinkKind::kNvLink) !=
          nullptr);
  }
}

TEST_CASE("graph files that hold nothing are refused with line and reason") {
  CHECK_THAT(refusal_of("<graphs version=\"1\"/>"),
             Contains("line 1, <graphs version=\"1\">: no <channel> has a <gpu>"));
  CHECK_THAT(
      refusal_of("<graphs>\n<graph id=\"0\" speedintra=\"0\"><channel><gpu dev=\"0\"/></channel></graph></graphs>"),
      Contains("line 2, <graph id=\"0\">: speedintra=\"0\"; expected GB/s above 0"));
  CHECK_THAT(
      refusal_of(
          "<graphs><graph speedintra=\"1\" speedinter=\"1\">\n<channel><gpu dev=\"x\"/></channel></graph></graphs>"),
      Contains("line 2, <gpu dev=\"x\">: dev=\"x\"; expected a number"));
}

TEST_CASE("what a terminal acts on does not come through, neither by names and warnings nor by refusals") {
  const auto graph = read_text(
      "tutti-topology 1\nhost \"h\\x1b[2J\"\ngpu \"a\\x1b[1m\" gcn=\"\\x1b[1m\" bus=\"\\x07\"\nwarning "
      "\"w\\x1b[31m\"\n");
  REQUIRE(graph.ok());
  const std::string text = to_text(graph.value());
  CHECK_THAT(text, Contains("w?[31m") && !Contains("\\x"));
  for (const char* bad : {"tutti-topology 1\n\"w\\x1b[31m\" x\n", "tutti-topology 1\ngpu a colour=\"\\x1b[31m\"\n"}) {
    const auto refused = read_text(bad);
    REQUIRE_FALSE(refused.ok());
    CHECK_THAT(refused.error().message, Contains("?[31m") && !Contains("\x1b"));
  }
  const auto speed = read_text(
      "<system version=\"1\"><cpu numaid=\"0\"><pci busid=\"0000:01:00.0\" class=\"0x030200\" "
      "link_speed=\"&#27;]0;owned&#7;\" link_width=\"16\"><gpu dev=\"0\" sm=\"80\" rank=\"0\"/></pci></cpu></system>");
  REQUIRE(speed.ok());
  CHECK_THAT(to_text(speed.value()), Contains("?]0;owned?"));
}

TEST_CASE("a refusal or a warning that quotes a word of megabytes is short, and keeps its beginning and its end") {
  const std::string word(4'000'000, 'a');
  const auto refused = read_text("tutti-topology 1\n" + word + "\n");
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().message.size() <= kSentenceBytesMax);
  CHECK_THAT(refused.error().message, StartsWith("line 2: \"aaa") && Contains("is no kind of line; expected"));
  const auto warned = read_text("<system version=\"1\"><cpu numaid=\"0\" cores=\"2\"><" + word + "/></cpu></system>");
  REQUIRE(warned.ok());
  REQUIRE(warned.value().warnings().size() == 1);
  CHECK(warned.value().warnings()[0].size() <= kSentenceBytesMax);
  CHECK_THAT(warned.value().warnings()[0], Contains("in <cpu> is not known and left out"));
}

TEST_CASE("every file of the folder is read or refused with a reason, by whichever reader its form has") {
  if (!has_shared_folder()) return;
  // Archives, consoles of lstopo, a log, and files that tell too little.
  const std::set<std::string> refused = {"README.md",
                                         "nccl-log-a6000-pair-paths.txt",
                                         "nccl-h200-hgx-truncated.xml",
                                         "nccl-aws-g5.12xl-minimal.xml",
                                         "nccl-aws-g5.48xl.xml",
                                         "nccl-aws-p5.48xl-2023.xml",
                                         "nccl-aws-p5.48xl-2025.xml"};
  for (const auto& entry : std::filesystem::directory_iterator(shared_folder())) {
    const std::string name = entry.path().filename();
    CAPTURE(name);
    const auto graph = read_file(entry.path());
    if (graph.ok()) {
      CHECK(graph.value().nodes().size() > 0);
      const auto again = parse_text(to_text(graph.value()));
      CHECK((again.ok() && again.value() == graph.value()));
    } else {
      CHECK_THAT(graph.error().message, Contains(name + ": "));
    }
    const bool is_refused =
        refused.contains(name) || entry.path().extension() == ".bz2" || entry.path().extension() == ".console";
    if (name.starts_with("smi-p2p")) continue;  // its own reader's tests say what becomes of it
    CHECK(graph.ok() == !is_refused);
  }
}
