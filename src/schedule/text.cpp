#include "schedule/text.h"

#include <fmt/format.h>

#include <iterator>

namespace tutti::schedule {
namespace {

using Text = std::back_insert_iterator<std::string>;

const char* word_of(Place place) {
  switch (place) {
    case Place::kInput: return "in";
    case Place::kOutput: return "out";
    case Place::kScratch: return "scratch";
    case Place::kPeer: return "peer";
  }
  return "?";
}

void write_units(Text text, const Endpoint& e) {
  fmt::format_to(text, "[{}.{}", e.block, e.unit);
  if (e.width != 1) fmt::format_to(text, "+{}", e.width);
  fmt::format_to(text, "]");
}

void write_message(Text text, const Endpoint& e, bool source) {
  const bool at_start = e.block == 0 && e.unit == 0;
  if (e.direct == Direct::kNone && at_start && e.width == 0 && !e.wide) {
    fmt::format_to(text, "{} {}", source ? "wait" : "signal", e.peer);
    return;
  }
  fmt::format_to(text, "{} {}{}", source ? "recv" : "send", e.peer, e.wide ? " partial" : "");
  if (e.direct != Direct::kNone) {
    fmt::format_to(text, " {} {}", e.direct == Direct::kPull ? "pull" : "push", word_of(e.remote));
    write_units(text, e);
  } else if (!at_start || e.width != 1) {
    fmt::format_to(text, " ");
    write_units(text, e);
  }
}

void write_endpoint(Text text, const Endpoint& e, bool source) {
  if (e.place == Place::kPeer) return write_message(text, e, source);
  fmt::format_to(text, "{}", word_of(e.place));
  write_units(text, e);
}

void write_lane(std::string& text, const LaneProgram& lane) {
  for (const Step& step : lane.steps) {
    text += "  ";
    text += to_text(lane, step);
    text += '\n';
  }
}

}  // namespace

std::string to_text(const LaneProgram& lane, const Step& step) {
  if (step.source_count == 0 && step.sink_count == 0) return step.finish ? "nothing finish" : "nothing";
  std::string text;
  const char* between = "";
  for (const Endpoint& e : lane.sources(step)) {
    text += between;
    write_endpoint(std::back_inserter(text), e, true);
    between = " + ";
  }
  if (step.sink_count > 0) text += text.empty() ? "->" : " ->";
  between = " ";
  for (const Endpoint& e : lane.sinks(step)) {
    text += between;
    write_endpoint(std::back_inserter(text), e, false);
    between = ", ";
  }
  if (step.finish) text += " finish";
  return text;
}

std::string to_text(const RankProgram& program, int rank) {
  if (program.lanes.empty()) return fmt::format("rank {} idle\n", rank);
  std::string text;
  for (std::size_t lane = 0; lane < program.lanes.size(); ++lane) {
    fmt::format_to(std::back_inserter(text), "rank {} lane {}\n", rank, lane);
    write_lane(text, program.lanes[lane]);
  }
  return text;
}

std::string to_text(const Schedule& schedule) {
  const Request& request = schedule.request;
  const Shape& shape = schedule.shape;
  const bool point_to_point = request.collective == Collective::kSend || request.collective == Collective::kReceive;
  std::string text = fmt::format("schedule {} {} ranks {}", schedule.algorithm.empty() ? "-" : schedule.algorithm,
                                 name_of(request.collective), request.ranks);
  if (is_rooted(request.collective) || point_to_point || request.root != 0)
    text += fmt::format(" root {}", request.root);
  if (point_to_point || request.rank != 0) text += fmt::format(" caller {}", request.rank);
  fmt::format_to(std::back_inserter(text), " units {} lanes {} input {} output {} scratch {}\n", shape.units,
                 shape.lanes, shape.input_blocks, shape.output_blocks, shape.scratch_blocks);
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    text += to_text(schedule.ranks[rank], static_cast<int>(rank));
  }
  return text;
}

}  // namespace tutti::schedule
