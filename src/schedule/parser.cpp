#include "schedule/builder.h"
#include "schedule/limits.h"
#include "schedule/text.h"
#include "schedule/text_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace tutti::schedule {
namespace {

std::optional<Place> place_named(std::string_view word) {
  if (word == "in") return Place::kInput;
  if (word == "out") return Place::kOutput;
  if (word == "scratch") return Place::kScratch;
  return std::nullopt;
}

/// "[block.unit]" or "[block.unit+width]".
Status parse_units(TextLine& line, Endpoint& e) {
  TUTTI_TRY(line.expect("[", "before the block"));
  TUTTI_TRY_ASSIGN(e.block, line.number("a block", kBlocksMax - 1));
  TUTTI_TRY(line.expect(".", "between block and unit"));
  TUTTI_TRY_ASSIGN(e.unit, line.number("a unit", kUnitsMax - 1));
  e.width = 1;
  if (line.accept("+")) {
    TUTTI_TRY_ASSIGN(e.width, line.number("a width", kUnitsMax));
  }
  return line.expect("]", "after the units");
}

/// What follows "recv" or "send": RANK, then nothing, "partial", "[block.unit+width]", both or "pull in[block.unit]".
Result<Endpoint> parse_message(TextLine& line) {
  Endpoint e;
  e.place = Place::kPeer;
  TUTTI_TRY_ASSIGN(e.peer, line.number("a rank", kRanksMax - 1));
  e.wide = line.accept("partial");
  if (!e.wide && (line.is("pull") || line.is("push"))) {
    e.direct = line.is("pull") ? Direct::kPull : Direct::kPush;
    line.next();
    const std::optional<Place> remote = place_named(line.token());
    if (!remote) return line.expected("the place at the peer (in, out or scratch)");
    e.remote = *remote;
    line.next();
    TUTTI_TRY(parse_units(line, e));
  } else if (line.is("[")) {
    TUTTI_TRY(parse_units(line, e));
  }
  return e;
}

Result<Endpoint> parse_endpoint(TextLine& line, bool source) {
  if (const std::optional<Place> place = place_named(line.token())) {
    line.next();
    Endpoint e;
    e.place = *place;
    TUTTI_TRY(parse_units(line, e));
    return e;
  }
  if (line.accept(source ? "recv" : "send")) return parse_message(line);
  if (line.accept(source ? "wait" : "signal")) {
    Endpoint e;
    e.place = Place::kPeer;
    e.width = 0;
    TUTTI_TRY_ASSIGN(e.peer, line.number("a rank", kRanksMax - 1));
    return e;
  }
  return line.expected(source ? "a source (in[..], out[..], scratch[..], recv RANK or wait RANK)"
                              : "a sink (in[..], out[..], scratch[..], send RANK or signal RANK)");
}

Status parse_step(TextLine& line, LaneProgram& lane) {
  StepBuilder builder = step(lane);
  const bool nothing = line.accept("nothing");
  if (!nothing && !line.is("->")) {
    do {
      TUTTI_TRY_ASSIGN(const Endpoint e, parse_endpoint(line, true));
      builder.from(e);
    } while (line.accept("+"));
  }
  if (!nothing && line.accept("->")) {
    do {
      TUTTI_TRY_ASSIGN(const Endpoint e, parse_endpoint(line, false));
      builder.to(e);
    } while (line.accept(","));
  }
  if (line.accept("finish")) builder.finish();
  if (!line.at_end()) return line.expected("\"+\", \"->\", \",\", \"finish\" or the end of the line");
  return {};
}

/// `name` and a number.
Result<std::uint32_t> parse_field(TextLine& line, std::string_view name, std::uint32_t most) {
  TUTTI_TRY(line.expect(name, "and its number in the schedule line"));
  return line.number(fmt::format("the number after \"{}\"", name), most);
}

Status parse_request(TextLine& line, Request& request) {
  const std::optional<Collective> collective = collective_named(line.token());
  if (!collective) return line.expected("a collective such as all_reduce");
  request.collective = *collective;
  line.next();
  TUTTI_TRY_ASSIGN(const std::uint32_t ranks, parse_field(line, "ranks", kRanksMax));
  request.ranks = static_cast<int>(ranks);
  if (line.is("root")) {
    TUTTI_TRY_ASSIGN(const std::uint32_t root, parse_field(line, "root", kRanksMax - 1));
    request.root = static_cast<int>(root);
  }
  if (line.is("caller")) {
    TUTTI_TRY_ASSIGN(const std::uint32_t rank, parse_field(line, "caller", kRanksMax - 1));
    request.rank = static_cast<int>(rank);
  }
  return {};
}

/// Reads the lines in order; holds what has been read so far.
class Parser {
 public:
  Status read(TextLine line) {
    if (line.at_end()) return {};
    if (line.accept("schedule")) return read_header(line);
    if (!has_header_) return line.expected("\"schedule\" and the schedule's name and sizes");
    if (line.accept("rank")) return read_rank(line);
    if (!lane_open_) return line.expected(next_header());
    return parse_step(line, schedule_.ranks.back().lanes.back());
  }

  Result<Schedule> end(std::size_t last_line) {
    TextLine line("", last_line);
    if (!has_header_) return line.expected("a line that starts with \"schedule\"");
    if (!complete()) return line.expected(next_header());
    return std::move(schedule_);
  }

 private:
  Status read_header(TextLine& line) {
    if (has_header_) return line.wrong("a second \"schedule\" line; expected one schedule per text");
    has_header_ = true;
    if (!line.accept("-")) {
      if (!line.is_word()) return line.expected("the algorithm's name, or \"-\"");
      schedule_.algorithm = std::string(line.token());
      line.next();
    }
    TUTTI_TRY(parse_request(line, schedule_.request));
    Shape& shape = schedule_.shape;
    TUTTI_TRY_ASSIGN(shape.units, parse_field(line, "units", kUnitsMax));
    TUTTI_TRY_ASSIGN(shape.lanes, parse_field(line, "lanes", kLanesMax));
    TUTTI_TRY_ASSIGN(shape.input_blocks, parse_field(line, "input", kBlocksMax));
    TUTTI_TRY_ASSIGN(shape.output_blocks, parse_field(line, "output", kBlocksMax));
    TUTTI_TRY_ASSIGN(shape.scratch_blocks, parse_field(line, "scratch", kBlocksMax));
    if (!line.at_end()) return line.expected("the end of the line");
    return {};
  }

  Status read_rank(TextLine& line) {
    if (complete())
      return line.wrong(fmt::format("more ranks or lanes than declared; expected the end after {}", where()));
    const bool new_rank = starts_rank();
    const std::size_t rank = schedule_.ranks.size() - (new_rank ? 0 : 1);
    const std::size_t lane = new_rank ? 0 : schedule_.ranks.back().lanes.size();
    if (!line.is(std::to_string(rank))) return line.expected(fmt::format("rank number {}", rank));
    line.next();
    if (new_rank && line.accept("idle")) {
      schedule_.ranks.emplace_back();
      lane_open_ = false;
    } else {
      if (!line.accept("lane")) return line.expected(new_rank ? "\"lane\" or \"idle\"" : "\"lane\"");
      if (!line.is(std::to_string(lane))) return line.expected(fmt::format("lane number {}", lane));
      line.next();
      if (new_rank) schedule_.ranks.emplace_back();
      schedule_.ranks.back().lanes.emplace_back();
      lane_open_ = true;
    }
    if (!line.at_end()) return line.expected("the end of the line");
    return {};
  }

  /// The next "rank" line begins a new rank: the last one is idle or has all its lanes.
  bool starts_rank() const {
    if (schedule_.ranks.empty() || !lane_open_) return true;
    return schedule_.ranks.back().lanes.size() == schedule_.shape.lanes;
  }
  bool complete() const {
    return schedule_.ranks.size() == static_cast<std::size_t>(schedule_.request.ranks) && starts_rank();
  }
  std::string next_header() const {
    if (complete()) return "the end of the text";
    if (starts_rank())
      return fmt::format("\"rank {} lane 0\" or \"rank {} idle\"", schedule_.ranks.size(), schedule_.ranks.size());
    return fmt::format("\"rank {} lane {}\"", schedule_.ranks.size() - 1, schedule_.ranks.back().lanes.size());
  }
  std::string where() const { return fmt::format("rank {}", schedule_.ranks.empty() ? 0 : schedule_.ranks.size() - 1); }

  Schedule schedule_;
  bool has_header_ = false;
  bool lane_open_ = false;
};

}  // namespace

Result<Schedule> parse(std::string_view text) {
  if (text.size() > kTextBytesMax) {
    return error(Code::kInvalidArgument, fmt::format("schedule text of {} bytes is too long; expected at most {} bytes",
                                                     text.size(), kTextBytesMax));
  }
  Parser parser;
  std::size_t number = 1;
  for (std::size_t begin = 0; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    TUTTI_TRY(parser.read(TextLine(text.substr(begin, end - begin), number)));
    begin = end + 1;
  }
  return parser.end(number);
}

}  // namespace tutti::schedule
