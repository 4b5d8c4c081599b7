// One simulated call as a picture and as a Chrome trace.
#include "plot/timeline.h"
#include "tools/topo_simulate.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

namespace tutti::tools {
namespace {

using schedule::Endpoint;
using schedule::Place;
using schedule::TracedStep;
using schedule::TracedTransfer;

constexpr std::uint64_t kTracedMax = 200'000;
constexpr std::size_t kRowsMax = 48;

/// "recv 1 2 -> send 0".
std::string step_text(const Simulated& simulated, const TracedRun& traced, const TracedStep& at) {
  const auto& program =
      traced.schedule.ranks[static_cast<std::size_t>(at.rank)].lanes[static_cast<std::size_t>(at.lane)];
  const schedule::Step& step = program.steps[at.step];
  const auto peers = [&](std::span<const Endpoint> side) {
    std::string text;
    for (const Endpoint& e : side) {
      if (e.place == Place::kPeer) text += " " + simulated.names[e.peer];
    }
    return text;
  };
  const std::string from = peers(program.sources(step));
  const std::string to = peers(program.sinks(step));
  if (from.empty() && to.empty()) return "copy";
  return (from.empty() ? "" : "recv" + from) + (from.empty() || to.empty() ? "" : " -> ") +
         (to.empty() ? "" : "send" + to);
}

/// Bars that touch, or nearly so, become one: what no eye can part need not be drawn apart.
void merge(std::vector<plot::Bar>& bars, double least) {
  std::ranges::stable_sort(bars, {}, [](const plot::Bar& bar) { return std::pair(bar.colour, bar.from); });
  std::vector<plot::Bar> merged;
  std::size_t others = 0;  // in the last one, whose title tells of the first
  const auto finish = [&] {
    if (others > 0) merged.back().title += fmt::format("; and {} more to {:.2f} us", others, merged.back().to);
    others = 0;
  };
  for (plot::Bar& bar : bars) {
    const bool near = !merged.empty() && merged.back().colour == bar.colour && bar.from - merged.back().to < least &&
                      bar.to - merged.back().from < 40 * least;
    if (!near) {
      finish();
      merged.push_back(std::move(bar));
      continue;
    }
    ++others;
    merged.back().to = std::max(merged.back().to, bar.to);
  }
  finish();
  bars = std::move(merged);
}

/// Bins that touch and say the same become one.
void add_bin(plot::Bar bin, std::vector<plot::Bar>& bars) {
  if (!bars.empty() && bars.back().to == bin.from && bars.back().title == bin.title) {
    bars.back().to = bin.to;
  } else {
    bars.push_back(std::move(bin));
  }
}

/// A row for each lane of each rank or, where these are too many, for each rank.
plot::TimelinePanel rank_rows(const Simulated& simulated, const TracedRun& traced, double end) {
  const auto lanes = static_cast<std::size_t>(traced.schedule.shape.lanes);
  const std::size_t ranks = traced.schedule.ranks.size();
  const bool by_lane = lanes > 1 && lanes * ranks <= kRowsMax;
  plot::TimelinePanel panel;
  panel.title = by_lane     ? "Ranks and their lanes: steps"
                : lanes > 1 ? "Ranks: steps, a line for each lane"
                            : "Ranks: steps";
  if (!by_lane && ranks > kRowsMax) panel.title += fmt::format(" of the first {} of {}", kRowsMax, ranks);
  const std::size_t rows = by_lane ? lanes * ranks : std::min(ranks, kRowsMax);
  for (std::size_t i = 0; i < rows; ++i) {
    const std::string& name = simulated.names[by_lane ? i / lanes : i];
    panel.rows.push_back(
        {by_lane ? fmt::format("{} lane {}", name, i % lanes) : name, {}, by_lane ? 1 : static_cast<int>(lanes)});
  }
  for (const TracedStep& step : traced.run.trace) {
    const auto rank = static_cast<std::size_t>(step.rank);
    const std::size_t row = by_lane ? rank * lanes + static_cast<std::size_t>(step.lane) : rank;
    if (row >= rows) continue;
    const std::string title =
        fmt::format("{}, step {} of round {}: {:.2f} to {:.2f} us", step_text(simulated, traced, step), step.step,
                    step.round, step.start_us, step.end_us);
    panel.rows[row].bars.push_back({step.start_us, step.end_us, step.lane, 0.8, title});
  }
  for (plot::TimelineRow& row : panel.rows) merge(row.bars, end / 2000);
  return panel;
}

/// The links that carry most, with how much of each is used when.
plot::TimelinePanel link_rows(const Simulated& simulated, const TracedRun& traced, double end) {
  constexpr std::size_t kLinksMax = 24;
  constexpr std::size_t kBins = 240;
  const LinkTable& table = simulated.arena.links().table();
  std::vector<std::vector<double>> bytes(table.size());
  const double width = end / kBins;
  std::map<std::tuple<int, int, int>, LinkPath> paths;
  const int lanes = simulated.candidate(traced.candidate).lanes;
  for (const TracedTransfer& transfer : traced.run.transfers) {
    const double took = std::max(transfer.end_us - transfer.start_us, 1e-9);
    const auto [found, added] = paths.try_emplace({transfer.lane % lanes, transfer.from, transfer.to});
    if (added)
      found->second = simulated.arena.path(traced.candidate, transfer.lane % lanes, transfer.from, transfer.to);
    const auto first = static_cast<std::size_t>(transfer.start_us / width);
    for (std::size_t bin = first; bin < kBins && static_cast<double>(bin) * width < transfer.end_us; ++bin) {
      const double from = std::max(transfer.start_us, static_cast<double>(bin) * width);
      const double to = std::min(transfer.end_us, static_cast<double>(bin + 1) * width);
      for (const LinkPart& part : found->second) {
        auto& bins = bytes[static_cast<std::size_t>(part.link)];
        bins.resize(kBins, 0);
        bins[bin] += transfer.bytes * part.part * std::max(0.0, to - from) / took;
      }
    }
  }
  std::vector<std::pair<double, std::size_t>> busiest;  // by the part of the time that it is full
  for (std::size_t link = 0; link < table.size(); ++link) {
    double sum = 0;
    for (const double amount : bytes[link]) sum += amount;
    if (sum > 0) busiest.emplace_back(-sum / (table[link].gbps * 1e3 * end), link);
  }
  std::ranges::sort(busiest);
  plot::TimelinePanel panel;
  panel.title = "Links: how full they are";
  if (busiest.size() > kLinksMax) panel.title += fmt::format(", the {} fullest of {}", kLinksMax, busiest.size());
  for (std::size_t i = 0; i < std::min(busiest.size(), kLinksMax); ++i) {
    const auto [part, link] = busiest[i];
    plot::TimelineRow row{simulated.links[link], {}};
    for (std::size_t bin = 0; bin < kBins; ++bin) {
      const double full = bytes[link][bin] / (table[link].gbps * 1e3 * width);
      if (full < 0.01) continue;
      add_bin({static_cast<double>(bin) * width, static_cast<double>(bin + 1) * width, 0, full,
               fmt::format("{:.0f}% of {:g} GB/s", 100 * full, table[link].gbps)},
              row.bars);
    }
    panel.rows.push_back(std::move(row));
  }
  return panel;
}

std::string subtitle_of(const TracedRun& traced) {
  const std::uint32_t lanes = traced.schedule.shape.lanes;
  std::string text = fmt::format("{} bytes, {} lane{}, {}: {:.2f} us", traced.point.bytes, lanes, lanes == 1 ? "" : "s",
                                 traced.point.protocol, traced.run.us);
  if (traced.run.rounds_run < traced.run.rounds)
    text += fmt::format("; the first {} of {} rounds", traced.run.rounds_run, traced.run.rounds);
  if (traced.run.steps > kTracedMax) text += fmt::format("; the first {} of {} steps", kTracedMax, traced.run.steps);
  return text;
}

double end_of(const TracedRun& traced) {
  double end = 1e-6;
  for (const TracedStep& step : traced.run.trace) end = std::max(end, step.end_us);
  return end;
}

}  // namespace

Result<TracedRun> trace_smallest(const Simulated& simulated) {
  TracedRun traced;
  traced.candidate = simulated.sweep.fastest.front();
  traced.point = simulated.sweep.algorithms[traced.candidate].points.front();
  const planner::MachineCandidate& candidate = simulated.candidate(traced.candidate);
  const auto protocols = simulated.arena.protocols();
  const auto protocol = std::ranges::find(protocols, traced.point.protocol, &schedule::ProtocolFigures::name);
  traced.schedule = simulated.arena.schedule_at(candidate, *protocol, traced.point.bytes);
  TUTTI_TRY_ASSIGN(traced.run, simulated.arena.run(candidate, *protocol, traced.point.bytes,
                                                   {kTracedMax, kTracedMax, {}}, simulated.held));
  return traced;
}

std::string timeline_svg(const Simulated& simulated, const TracedRun& traced) {
  plot::Timeline timeline;
  timeline.title = fmt::format("{} of {} ranks by {}, simulated", name_of(simulated.arena.collective()),
                               simulated.arena.ranks(), simulated.candidate(traced.candidate).label());
  timeline.subtitle = subtitle_of(traced);
  timeline.axis = "time after the start of the call's first step, us";
  timeline.end = end_of(traced);
  const int lanes = static_cast<int>(traced.schedule.shape.lanes);
  for (int lane = 0; lane < std::min(lanes, 8); ++lane) {
    const bool two = lane + 8 < lanes;  // colours come again
    timeline.legend.push_back(two ? fmt::format("lanes {}, {}{}", lane, lane + 8, lane + 16 < lanes ? " .." : "")
                                  : fmt::format("lane {}", lane));
  }
  timeline.panels.push_back(rank_rows(simulated, traced, timeline.end));
  if (!simulated.links.empty()) timeline.panels.push_back(link_rows(simulated, traced, timeline.end));
  return plot::svg(timeline);
}

std::string chrome_trace(const Simulated& simulated, const TracedRun& traced) {
  nlohmann::ordered_json events = nlohmann::ordered_json::array();
  for (std::size_t rank = 0; rank < simulated.names.size(); ++rank)
    events.push_back(
        {{"name", "process_name"}, {"ph", "M"}, {"pid", rank}, {"args", {{"name", simulated.names[rank]}}}});
  const std::size_t messages = simulated.names.size();  // the process of what is on the links
  events.push_back({{"name", "process_name"}, {"ph", "M"}, {"pid", messages}, {"args", {{"name", "messages"}}}});
  for (const TracedStep& step : traced.run.trace) {
    events.push_back({{"name", step_text(simulated, traced, step)},
                      {"cat", "step"},
                      {"ph", "X"},
                      {"ts", step.start_us},
                      {"dur", step.end_us - step.start_us},
                      {"pid", step.rank},
                      {"tid", step.lane},
                      {"args", {{"step", step.step}, {"round", step.round}}}});
  }
  std::map<std::pair<int, int>, int> threads;
  for (const TracedTransfer& transfer : traced.run.transfers) {
    const auto name = [&](int rank) { return simulated.names[static_cast<std::size_t>(rank)]; };
    const auto [thread, added] = threads.try_emplace({transfer.from, transfer.to}, static_cast<int>(threads.size()));
    const std::string way = fmt::format("{} -> {}", name(transfer.from), name(transfer.to));
    if (added)
      events.push_back({{"name", "thread_name"},
                        {"ph", "M"},
                        {"pid", messages},
                        {"tid", thread->second},
                        {"args", {{"name", way}}}});
    events.push_back({{"name", way},
                      {"cat", "message"},
                      {"ph", "X"},
                      {"ts", transfer.start_us},
                      {"dur", transfer.end_us - transfer.start_us},
                      {"pid", messages},
                      {"tid", thread->second},
                      {"args", {{"bytes", transfer.bytes}, {"lane", transfer.lane}}}});
  }
  const nlohmann::ordered_json document = {
      {"displayTimeUnit", "ns"}, {"otherData", {{"call", subtitle_of(traced)}}}, {"traceEvents", std::move(events)}};
  return document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace tutti::tools
