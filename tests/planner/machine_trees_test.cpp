// The trees that communicators get of a machine's plan.
#include "planner/machine_trees.h"
#include "algorithm/planned_trees.h"
#include "planner/machine_plan.h"
#include "planner/plan.h"
#include "planner/planned_schedules.h"
#include "topology/source.h"
#include "topology/view.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

using namespace tutti;
using namespace tutti::planner;
using algorithm::PlannedTrees;

namespace {

topology::Graph graph_of(const std::string& text) {
  auto read = topology::read_text(text, {});
  INFO((read.ok() ? "" : read.error().message));
  REQUIRE(read.ok());
  return std::move(read).value();
}

/// Three NUMA nodes in a line, the system's numbers 4, 2 and 7.
topology::Graph line_of_nodes() {
  return graph_of(
      "tutti-topology 1\nnuma a cores=4 numa=4\nnuma b cores=4 numa=2\nnuma c cores=4 numa=7\n"
      "link a <-> b cpu 20\nlink b <-> c cpu 20\n");
}

std::vector<PlannedTrees> trees_of(const topology::Graph& graph, const std::vector<int>& numas) {
  const auto text = machine_trees(graph, {numas, {}}, 2);
  INFO((text.ok() ? "" : text.error().message));
  REQUIRE(text.ok());
  const auto planned = PlannedSchedules::read(text.value(), static_cast<int>(numas.size()), 2, 4);
  INFO((planned.ok() ? "" : planned.error().message));
  REQUIRE(planned.ok());
  auto read = algorithm::parse_trees(text.value(), static_cast<int>(numas.size()), 2);
  REQUIRE(read.ok());
  for (const PlannedTrees& trees : read.value()) {
    CHECK(planned.value()->of(trees.collective).size() == 1);
    const Status proved = planned.value()->prove(trees.collective, "packed_trees");
    INFO((proved.ok() ? "" : proved.error().message));
    CHECK(proved.ok());
  }
  return std::move(read).value();
}

/// Whether every edge is between ranks that `joined` says are next to each other.
template <class Joined>
void check_edges(const std::vector<PlannedTrees>& plans, const Joined& joined) {
  const auto check = [&](const algorithm::Parents& parents) {
    for (std::size_t rank = 0; rank < parents.size(); ++rank) {
      if (parents[rank] != algorithm::kNoParent) CHECK(joined(static_cast<int>(rank), parents[rank]));
    }
  };
  for (const PlannedTrees& plan : plans) {
    std::ranges::for_each(plan.lanes, check);
    for (const algorithm::RootedTrees& rooted : plan.rooted) std::ranges::for_each(rooted, check);
  }
}

std::string refusal(const topology::Graph& graph, const std::vector<int>& numas) {
  const auto text = machine_trees(graph, {numas, {}}, 2);
  return text.ok() ? "none" : text.error().message;
}

}  // namespace

TEST_CASE("planned trees are the machine's, for all three collectives", "[trees]") {
  const topology::Graph graph = graph_of(
      "tutti-topology 1\ngpu a\ngpu b\ngpu c\ngpu d\nlink a <-> b nvlink 50\nlink b <-> c nvlink 50\n"
      "link c <-> d nvlink 50\n");
  const std::vector<PlannedTrees> plans = trees_of(graph, {-1, -1, 0, 0});
  REQUIRE(plans.size() == 3);
  check_edges(plans, [](int a, int b) { return std::abs(a - b) == 1; });
  const topology::View view = std::move(topology::view_of(graph)).value();
  const MachinePlan plan = std::move(plan_machine(view.network, {.lanes_max = 2})).value();
  CHECK(plans[0].lanes == plan.find("packed_trees")->trees);
}

TEST_CASE("ranks on GPUs are those of their addresses, and some of a machine's", "[trees]") {
  const topology::Graph line = graph_of(
      "tutti-topology 1\ngpu a bus=0000:01:00.0\ngpu b bus=0000:0a:00.0\ngpu c bus=0000:03:00.0\n"
      "gpu d bus=0000:04:00.0\nlink a <-> b nvlink 50\nlink b <-> c nvlink 50\nlink c <-> d nvlink 50\n");
  const RankPlaces last{{-1, -1, -1}, {"0000:03:00.0", "0000:04:00.0", "0000:0A:00.0"}};
  const auto text = machine_trees(line, last, 2);
  REQUIRE(text.ok());
  const auto read = algorithm::parse_trees(text.value(), 3, 2);
  REQUIRE(read.ok());
  check_edges(read.value(), [](int a, int b) { return a == 0 || b == 0; });  // rank 0 is in the middle
  CHECK(gpus_apart(line, last).value());
  CHECK_FALSE(gpus_apart(line, {{-1, -1}, {"0000:0a:00.0", "0000:03:00.0"}}).value());
  CHECK_FALSE(gpus_apart(line, {{-1, -1, -1}, {"0000:01:00.0", "0000:0a:00.0", "0000:99:00.0"}}).ok());
  CHECK_FALSE(gpus_apart(line_of_nodes(), {{4, 2, 7}, {"x", "y", "z"}}).ok());
}

TEST_CASE("a switch in common is as good as a link", "[trees]") {
  const std::string gpus = "tutti-topology 1\ngpu a\ngpu b\ngpu c\n";
  const RankPlaces ranks{{-1, -1, -1}, {"x", "y", "z"}};
  CHECK_FALSE(
      gpus_apart(graph_of(gpus + "switch s\nlink a <-> s nvlink 50\nlink b <-> s nvlink 50\nlink c <-> s nvlink 50\n"),
                 ranks)
          .value());
  CHECK(gpus_apart(graph_of(gpus + "link a <-> b nvlink 50\nlink b <-> c nvlink 50\n"), ranks).value());
  CHECK_FALSE(
      gpus_apart(graph_of(gpus + "link a <-> b nvlink 50\nlink b <-> c nvlink 50\nlink a <-> c nvlink 50\n"), ranks)
          .value());
}

TEST_CASE("the best ring visits GPUs along their links", "[trees]") {
  // A ring of links b - d - a - c, and a thin one across.
  const topology::Graph graph = graph_of(
      "tutti-topology 1\ngpu a\ngpu b\ngpu c\ngpu d\nlink b <-> d nvlink 50\nlink d <-> a nvlink 50\n"
      "link a <-> c nvlink 50\nlink c <-> b nvlink 50\nlink a <-> b nvlink 1\n");
  const auto ring = gpu_ring(graph, {std::vector<int>(4, -1), {"a", "b", "c", "d"}});
  REQUIRE(ring.ok());
  const std::vector<int> forth = {0, 2, 1, 3};
  const std::vector<int> back = {0, 3, 1, 2};
  CHECK((ring.value() == forth || ring.value() == back));
  CHECK_FALSE(gpu_ring(graph, {{-1, -1}, {"x", "y"}}).ok());
}

TEST_CASE("the best ring of a machine that somebody has captured goes from NVLink to NVLink", "[trees]") {
  const std::filesystem::path file = std::filesystem::path(TUTTI_SHARED_TOPOLOGIES) / "nccl-v100-cubemesh-berkeley.xml";
  if (!std::filesystem::exists(file)) {
    WARN("skipped: there is no file " << file);
    return;
  }
  const auto graph = topology::read_file(file.string());
  REQUIRE(graph.ok());
  RankPlaces ranks{std::vector<int>(8, -1), {}};
  for (const int node : topology::compute_nodes(graph.value()).nodes)
    ranks.gpus.push_back(graph.value().node(node).facts.bus_id);
  const auto ring = gpu_ring(graph.value(), ranks);
  REQUIRE(ring.ok());
  REQUIRE(ring.value().size() == 8);
  const auto distances = gpu_distances(graph.value(), ranks);
  REQUIRE(distances.ok());
  int far = 0;
  for (const GpuDistance distance : distances.value()) far += distance > GpuDistance::kNvLink;
  CHECK(far == 8 * 3);  // each has NVLinks to four of seven
  for (std::size_t i = 0; i < 8; ++i) {
    const auto a = static_cast<std::size_t>(ring.value()[i]);
    const auto b = static_cast<std::size_t>(ring.value()[(i + 1) % 8]);
    CAPTURE(a, b);
    CHECK(distances.value()[a * 8 + b] == GpuDistance::kNvLink);
  }
}

TEST_CASE("GPUs are as far from each other as the nearest way between them says", "[trees]") {
  // A switch in a switch, two switches at one NUMA node, a host bridge, and another NUMA node; NVLinks beside them.
  const topology::Graph graph = graph_of(
      "tutti-topology 1\nnuma m cores=4\nnuma n cores=4\npci up in=m\npci down in=up\npci side in=m\n"
      "pci root in=n model=\"host bridge\"\ngpu a bus=0:a\ngpu b bus=0:b\ngpu c bus=0:c\ngpu d bus=0:d\n"
      "gpu e bus=0:e\ngpu f bus=0:f\n"
      "link m <-> n cpu 10\nlink up <-> m pci 10\nlink down <-> up pci 10\nlink side <-> m pci 10\nlink root <-> n pci "
      "10\n"
      "link a <-> down pci 10\nlink b <-> down pci 10\nlink c <-> up pci 10\nlink d <-> side pci 10\n"
      "link e <-> root pci 10\nlink f <-> root pci 10\nlink a <-> e nvlink 50\nlink e <-> c nvlink 50\n");
  const auto table = [&](std::vector<std::string> gpus) -> std::string {
    const std::size_t ranks = gpus.size();
    const auto found = gpu_distances(graph, {std::vector<int>(ranks, -1), std::move(gpus)});
    if (!found.ok()) return found.error().message;
    std::string text;
    for (std::size_t i = 0; i < found.value().size(); ++i)
      text += std::string(name_of(found.value()[i])) + (i % ranks == ranks - 1 ? "\n" : " ");
    return text;
  };
  CHECK(table({"0:a", "0:b", "0:c", "0:d", "0:e", "0:f"}) ==
        "LOC PIX PXB PHB NVL SYS\n"
        "PIX LOC PXB PHB SYS SYS\n"
        "PXB PXB LOC PHB NVL SYS\n"
        "PHB PHB PHB LOC SYS SYS\n"
        "NVL SYS NVL SYS LOC PHB\n"
        "SYS SYS SYS SYS PHB LOC\n");
  // Ranks in another order, and on some of the GPUs.
  CHECK(table({"0:e", "0:c", "0:b", "0:A"}) ==
        "LOC NVL SYS NVL\n"
        "NVL LOC PXB PXB\n"
        "SYS PXB LOC PIX\n"
        "NVL PXB PIX LOC\n");
  // One that the graph does not have, though it has as many.
  CHECK(table({"0:a", "0:b", "0:c", "0:d", "0:e", "1:f"}) ==
        "the machine's graph does not have all of the GPUs 0:a, 0:b, 0:c, 0:d, 0:e, 1:f");
  CHECK_FALSE(gpu_distances(graph, {{-1, -1}, {"x", "y"}}).ok());
}

TEST_CASE("where links differ in their two directions there are pairs of trees", "[trees]") {
  // A ring that is twice as fast one way.
  const topology::Graph graph = graph_of(
      "tutti-topology 1\ngpu a\ngpu b\ngpu c\ngpu d\nlink a -> b nvlink 40\nlink b -> c nvlink 40\nlink c -> d nvlink "
      "40\n"
      "link d -> a nvlink 40\nlink b -> a nvlink 20\nlink c -> b nvlink 20\nlink d -> c nvlink 20\nlink a -> d nvlink "
      "20\n");
  const auto text = machine_trees(graph, {{-1, -1, -1, -1}, {}}, 8);
  REQUIRE(text.ok());
  const auto planned = PlannedSchedules::read(text.value(), 4, 8, 4);
  REQUIRE(planned.ok());
  const topology::View view = std::move(topology::view_of(graph)).value();
  const MachinePlan plan = std::move(plan_machine(view.network, {.lanes_max = 8})).value();
  const MachineCandidate* pairs = plan.find("packed_pairs");
  REQUIRE(pairs != nullptr);
  CHECK(pairs->gbps > plan.find("packed_trees")->gbps);
  const std::vector<schedule::Schedule>& made = planned.value()->of(Collective::kAllReduce);
  const auto found = std::ranges::find(made, "packed_pairs", &schedule::Schedule::algorithm);
  REQUIRE(found != made.end());
  CHECK(found->ranks == full_schedule(*pairs, static_cast<int>(found->shape.units)).ranks);
  CHECK(planned.value()->prove(Collective::kAllReduce, "packed_pairs").ok());
}

TEST_CASE("ranks on NUMA nodes follow the nodes that they sit on", "[trees]") {
  const topology::Graph graph = line_of_nodes();
  // Rank 2 sits in the middle.
  const std::vector<PlannedTrees> plans = trees_of(graph, {7, 4, 2});
  REQUIRE(plans.size() == 3);
  check_edges(plans, [](int a, int b) { return a == 2 || b == 2; });
  // Seats that say nothing, or the same: in the order of the machine's nodes, the second in the middle.
  for (const std::vector<int>& numas : {std::vector{-1, -1, -1}, std::vector{4, 4, 2}})
    check_edges(trees_of(graph, numas), [](int a, int b) { return a == 1 || b == 1; });
  // On two of the nodes.
  CHECK(trees_of(graph, {2, 4}).front().lanes.front().size() == 2);
}

TEST_CASE("no trees where the machine's nodes are not the ranks", "[trees]") {
  CHECK(refusal(line_of_nodes(), {-1, -1}) == "the machine has 3 numas, but there are 2 ranks");
  CHECK(refusal(graph_of("tutti-topology 1\ngpu a\ngpu b\nlink a <-> b nvlink 50\n"), {0, 1, 2}) ==
        "the machine has 2 gpus, but there are 3 ranks");
  CHECK(refusal(line_of_nodes(), std::vector<int>(algorithm::kTreeRanksMax + 1, 0))
            .starts_with("65 ranks: trees are planned"));
}

TEST_CASE("text that other ranks write is proved before it runs", "[trees]") {
  const auto none = PlannedSchedules::read("", 3, 2, 4);
  REQUIRE(none.ok());
  CHECK(none.value()->of(Collective::kAllReduce).empty());
  const Status missing = none.value()->prove(Collective::kAllReduce, "packed_trees");
  REQUIRE_FALSE(missing.ok());
  CHECK(missing.error().message == "no packed_trees is planned for all_reduce");
  CHECK_FALSE(PlannedSchedules::read("trees all_reduce ranks 3 lanes 1\n1 2 0\n", 3, 2, 4).ok());
  CHECK_FALSE(PlannedSchedules::read("nonsense", 3, 2, 4).ok());
}

TEST_CASE("plans of many lanes have messages that fit the short slots, and a price for every round", "[trees]") {
  constexpr int kRanks = 4, kTreeLanes = 24;
  std::string text = "trees all_reduce ranks 4 lanes 24\n";
  for (int lane = 0; lane < kTreeLanes; ++lane) text += lane % 2 == 0 ? "- 0 1 2\n" : "1 2 3 -\n";
  auto read = PlannedSchedules::read(text, kRanks, kTreeLanes, 8);
  REQUIRE(read.ok());
  Rules rules = std::move(make_rules("packed_trees", false)).value();
  rules.slots = {8, 32 << 10};
  rules.planned = read.value();
  Question question{{Collective::kAllReduce, kRanks, 0, 0}, 0, 4};
  const auto price = [&](std::uint64_t count) {
    question.count = count;
    const auto found = candidates(question, rules);
    REQUIRE(found.ok());
    const Plan plan = make_plan(question, rules, found.value().front(), 0);
    CHECK(plan.shape.lanes == kTreeLanes);
    CHECK(plan.tiling.message_bytes_max(1) <= rules.slots.slot_bytes / 4);
    return found.value().front().predicted_us;
  };
  const double least = price(std::uint64_t{16} << 20);
  CHECK(price(std::uint64_t{256} << 20) == Approx(16 * least).epsilon(0.1));
}
