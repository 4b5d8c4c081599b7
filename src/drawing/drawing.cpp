#include "drawing/drawing.h"

#include "drawing/host_picture.h"
#include "drawing/lanes.h"
#include "drawing/layout.h"
#include "drawing/palette.h"
#include "drawing/scene.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace tutti::drawing {
namespace {

using plot::Anchor;
using plot::Box;
using plot::Canvas;
using plot::TextStyle;
using topology::LinkKind;

constexpr double kMargin = 28;
constexpr double kTop = 88;        ///< of what is below the title
constexpr double kSide = 404;      ///< width of the column beside the machine
constexpr double kSideMax = 1180;  ///< a wider machine has it below
constexpr double kBodySize = 12.5;
constexpr double kLine = 17;
constexpr std::size_t kNotesMax = 3;

std::size_t at(int index) { return static_cast<std::size_t>(index); }

std::string rate(double gbps) { return rate_text(topology::from_gbps(gbps)); }

double capacity(const Subject& subject, const std::vector<int>& set, bool leaving) {
  const std::set<int> inside(set.begin(), set.end());
  double sum = 0;
  for (const topology::Arc& arc : subject.view.network.arcs) {
    const bool from = inside.contains(arc.from);
    const bool to = inside.contains(arc.to);
    if (leaving ? from && !to : to && !from) sum += topology::gbps(arc.capacity);
  }
  return sum;
}

/// Whether there is a bound, and a plan beside it: not for one rank, nor for more than can be planned (rows_alone).
bool is_planned(const planner::MachinePlan& plan) { return !plan.certificate.unlimited && plan.certificate.gbps > 0; }

/// Why no collective is faster.
std::string bound_sentence(const Subject& subject) {
  const planner::MachinePlan& plan = subject.plan;
  const planner::Certificate& certificate = plan.certificate;
  const std::string_view name = name_of(plan.question.collective);
  if (certificate.unlimited) return "One rank: nothing has to move, so there is no bound and nothing to plan.";
  if (!is_planned(plan))
    return fmt::format("More than {} ranks: neither bound nor plan is worked out.", planner::kPlannedRanksMax);
  const bool all_reduce = plan.question.collective == Collective::kAllReduce;
  const std::string memory =
      certificate.by_memory()
          ? fmt::format(" But memory allows {} GB/s only, {} of the slowest.", rate(certificate.gbps),
                        all_reduce ? "half" : fmt::format("{}/{}", plan.ranks, plan.ranks + 1))
          : "";
  if (!all_reduce) {
    const bool leaves = plan.question.collective == Collective::kAllGather;
    const double through = capacity(subject, certificate.cut.nodes, leaves);
    const auto inside = std::ranges::count_if(certificate.cut.nodes, [&](int node) { return node < plan.ranks; });
    return fmt::format(
        "{} of {} ranks are inside the cut. {} of all bytes must {} it, through links of {} GB/s (red): no {} "
        "is faster than {} x {} / {} = {} GB/s.{}",
        inside, plan.ranks, fmt::format("{}/{}", inside, plan.ranks), leaves ? "leave" : "enter", rate(through), name,
        plan.ranks, rate(through), inside, rate(certificate.over_links_gbps()), memory);
  }
  using Form = topology::PartitionBound::Form;
  const topology::PartitionBound& partition = certificate.partition;
  if (partition.form == Form::kCut) {
    return fmt::format("What the first block has must leave it through links of {} GB/s (red): no {} is faster.{}",
                       rate(capacity(subject, partition.sets.front(), true)), name, memory);
  }
  double sum = 0;
  for (const auto& set : partition.sets) sum += capacity(subject, set, partition.form == Form::kOut);
  const std::size_t k = partition.blocks.size();
  const bool single = std::ranges::all_of(partition.blocks, [](const auto& block) { return block.size() == 1; });
  return fmt::format(
      "{}: {} GB/s {} the blocks in all (red), and every byte must do so 2 x ({} \xe2\x88\x92 1) = {} times. No {} "
      "is faster than {} / {} = {} GB/s.{}",
      single ? fmt::format("Each of the {} ranks is a block", k) : fmt::format("The ranks are in {} blocks", k),
      rate(sum), partition.form == Form::kOut ? "leave" : "enter", k, 2 * (k - 1), name, rate(sum), 2 * (k - 1),
      rate(certificate.over_links_gbps()), memory);
}

/// The picture, from its parts.
class Page {
 public:
  explicit Page(const Subject& subject)
      : subject_(subject), scene_(make_scene(subject)), widths_(scene_), lanes_(sample_lanes(subject.plan)) {}

  std::string draw() {
    draw_machine();
    const double machine_right = right_;
    const double machine_bottom = bottom_;
    // Beside the machine where that is narrow, else below it.
    if (machine_right <= kSideMax) {
      double y = draw_certificate(machine_right + kMargin, kTop);
      y = draw_lanes(machine_right + kMargin, y + 22, 2);
      draw_legend(kMargin, machine_bottom + 26, machine_right - kMargin);
    } else {
      const double y = machine_bottom + 34;
      draw_certificate(kMargin, y);
      draw_lanes(kMargin + kSide + 40, y, 3);
      draw_legend(kMargin + kSide + 40 + 3 * kLaneWidth + 40, y, 300);
    }
    draw_notes();
    draw_title();
    return canvas_.document(std::ceil(right_ + kMargin), std::ceil(bottom_ + kMargin),
                            fmt::format("{}: {}", subject_.name, subject_.question));
  }

 private:
  void reach(double x, double y) {
    right_ = std::max(right_, x);
    bottom_ = std::max(bottom_, y);
  }

  void draw_title() {
    const double width = right_ - kMargin;
    canvas_.text(kMargin, 42, plot::fitted(subject_.name, 24, width, true), {24, kInk, Anchor::kStart, true});
    canvas_.text(kMargin, 66, plot::fitted(subject_.contents, 14, width), {14, kFaint, Anchor::kStart, false});
  }

  void draw_machine() {
    std::vector<HostLayout> layouts;
    double x = kMargin;
    double height = 0;
    bool stacked = false;
    for (const DrawnHost& host : scene_.hosts) stacked = stacked || host.stands_for > 1;
    const double top = kTop + (stacked ? 10 : 0);
    for (const DrawnHost& host : scene_.hosts) {
      layouts.push_back(lay_out(scene_, host));
      layouts.back().move(x, top);
      x = layouts.back().frame.right() + 30;
      height = std::max(height, layouts.back().frame.height);
    }
    for (HostLayout& layout : layouts) layout.frame.height = height;
    reach(x - 30 + (stacked ? 10 : 0), top + height);
    draw_trunks(layouts, top + height);
    for (std::size_t i = 0; i < layouts.size(); ++i) draw_host(scene_, scene_.hosts[i], layouts[i], widths_, canvas_);
    for (const std::string& remark : scene_.remarks) {
      for (const std::string& line : plot::wrapped(remark, kBodySize, right_ - kMargin)) {
        bottom_ += kLine;
        canvas_.text(kMargin, bottom_, line, {kBodySize, kInk, Anchor::kStart, false});
      }
    }
  }

  /// From the hosts down to what joins them; several from a host to one bar beside each other.
  void draw_trunks(const std::vector<HostLayout>& layouts, double from) {
    if (scene_.bars.empty()) return;
    std::vector<Box> bars(scene_.items.size());
    double y = from + 46;
    for (const int bar : scene_.bars) {
      bars[at(bar)] = {kMargin, y, right_ - kMargin, 30};
      y += 44;
    }
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      const std::vector<Wire>& trunks = scene_.hosts[i].trunks;
      for (std::size_t k = 0; k < trunks.size(); ++k) {
        const double slot = layouts[i].frame.width / static_cast<double>(trunks.size());
        const double x = layouts[i].frame.left + slot * (static_cast<double>(k) + 0.35);
        Wire wire = trunks[k];
        wire.most = std::max(wire.there, wire.back);
        plot::Stroke stroke = stroke_of(wire, widths_);
        stroke.width = std::max(stroke.width, 3.0);
        canvas_.line(x, from, x, bars[at(wire.b)].top, stroke);
        const std::string words = fmt::format("{} {}", words_for(wire.kind), wire_text(trunks[k], true));
        const TextStyle style{kSmallSize + 1, wire.crossing ? kRed : kInk, Anchor::kStart, wire.crossing};
        canvas_.text(x + 8, from + 27, plot::fitted(words, style.size, slot * 0.98 - 10, style.bold), style);
      }
    }
    for (const int bar : scene_.bars) draw_bar(scene_, scene_.items[at(bar)], bars[at(bar)], canvas_);
    reach(right_, y - 14);
  }

  /// The y below.
  double draw_certificate(double x, double y) {
    const planner::MachinePlan& plan = subject_.plan;
    canvas_.text(x, y + 16, plot::fitted(subject_.question, 17, kSide, true), {17, kInk, Anchor::kStart, true});
    canvas_.text(x, y + 34, plot::fitted(subject_.links, kBodySize, kSide), {kBodySize, kFaint, Anchor::kStart, false});
    y += 46;
    if (is_planned(plan)) {
      const double bound = plan.certificate.gbps;
      y = draw_rate(x, y, "bound", bound, bound, kRed);
      y = draw_rate(x, y, "plan", plan.chosen().gbps, bound, kLanes[0]);
      y = draw_rate(x, y, plan.rings_are_best() ? "best rings" : "rings found", plan.ring_gbps, bound, kFaint);
    }
    for (const std::string& line : plot::wrapped(bound_sentence(subject_), kBodySize, kSide))
      canvas_.text(x, y += kLine, line, {kBodySize, kInk, Anchor::kStart, false});
    reach(x + kSide, y + 4);
    return y + 4;
  }

  double draw_rate(double x, double y, const char* name, double gbps, double bound, const char* colour) {
    constexpr double kBars = 88;
    constexpr double kLongest = 150;
    canvas_.text(x, y + 15, name, {kBodySize, kInk, Anchor::kStart, false});
    const double length = std::max(1.0, kLongest * std::min(1.0, gbps / bound));
    canvas_.rectangle({x + kBars, y + 3, length, 15}, colour, {}, 2);
    std::string words = gbps > 0 ? fmt::format("{} GB/s", rate(gbps)) : "none";
    if (gbps > 0 && gbps < 0.9995 * bound) words += fmt::format(" ({:.1f}%)", 100 * gbps / bound);
    canvas_.text(x + kBars + length + 8, y + 15, words, {kBodySize, kInk, Anchor::kStart, true});
    return y + 24;
  }

  double draw_lanes(double x, double y, int columns) {
    if (lanes_.shapes.empty() || !is_planned(subject_.plan)) return y;
    const planner::MachineCandidate& plan = subject_.plan.chosen();
    canvas_.text(x, y + 16, fmt::format("Plan: {}", plan.algorithm), {17, kInk, Anchor::kStart, true});
    y += 20;
    const double width = std::max(kSide, kLaneWidth * columns);
    const int count = static_cast<int>(lanes_.shapes.size());
    const int ranks = subject_.plan.ranks;
    Box box{0, 0, kLaneWidth - 8, kLaneHeight - 8};
    if (count == 1) box = {0, 0, 2 * kLaneWidth - 8, 1.7 * kLaneHeight};
    std::string caption = lanes_.caption;
    const auto numbered = [&](const LaneShape& shape) { return has_numbers(shape, ranks, box); };
    if (std::ranges::any_of(lanes_.shapes, numbered)) caption += " Numbers are ranks.";
    for (const std::string& line : plot::wrapped(caption, kBodySize, width))
      canvas_.text(x, y += kLine, line, {kBodySize, kInk, Anchor::kStart, false});
    y += 12;
    for (int i = 0; i < count; ++i) {
      box.left = x + kLaneWidth * (i % columns);
      box.top = y + kLaneHeight * (i / columns);
      draw_lane(lanes_.shapes[at(i)], ranks, i, box, canvas_);
    }
    if (count == 1) {
      reach(x + kSide, box.bottom());
      return box.bottom();
    }
    const int rows = (count + columns - 1) / columns;
    y += kLaneHeight * rows - 8;
    reach(x + std::min(width, std::max(kSide, kLaneWidth * std::min(count, columns))) - 8, y);
    return y;
  }

  struct LegendEntry {
    std::string words;
    const char* fill = nullptr;  ///< a box, or
    plot::Stroke stroke;         ///< a line
  };

  std::vector<LegendEntry> legend() const {
    std::vector<LegendEntry> entries;
    std::set<LinkKind> kinds;
    bool crossing = false;
    std::set<LinkKind> counted;
    for (const DrawnHost& host : scene_.hosts) {
      for (const auto& list : {host.wires, host.trunks}) {
        for (const Wire& wire : list) {
          crossing = crossing || wire.crossing;
          if (!wire.crossing) kinds.insert(wire.kind);
          if (!wire.crossing && wire.counted) counted.insert(wire.kind);
        }
      }
    }
    const bool limited = is_planned(subject_.plan);
    for (const LinkKind kind : kinds) {
      const bool pale = !counted.contains(kind);
      entries.push_back({fmt::format("{}{}", words_for(kind), pale && limited ? ", not counted" : ""),
                         nullptr,
                         {colour_of(kind), 3, false, pale ? 0.4 : 1}});
    }
    if (crossing) entries.push_back({"crosses what binds", nullptr, {kRed, 3}});
    const std::vector<int>& sizes = scene_.marks.block_sizes;
    if (scene_.marks.all_single && sizes.size() > 2) {
      entries.push_back({"a rank, a block by itself", kTints[0], {}});
    } else {
      std::set<int> seen;  // those of hosts that are not drawn need no words
      for (const Item& item : scene_.items) {
        if (item.computes && item.block != kNoBlock) seen.insert(item.block);
      }
      std::size_t shown = 0;
      for (const int block : seen) {
        if (at(block) >= subject_.blocks.size() || shown == kTints.size()) break;
        entries.push_back({subject_.blocks[at(block)], tint_of(block), {}});
        ++shown;
      }
      if (subject_.blocks.size() > shown)
        entries.push_back({fmt::format("and {} blocks more", subject_.blocks.size() - shown), nullptr, {}});
    }
    entries.push_back({"numbers: GB/s in one direction", nullptr, {}});
    return entries;
  }

  void draw_legend(double x, double y, double width) {
    double at_x = x;
    for (const LegendEntry& entry : legend()) {
      const double mark = entry.fill != nullptr || entry.stroke.colour != nullptr ? 30 : 0;
      const std::string words = plot::fitted(entry.words, kBodySize, width - mark - 4);
      const double needed = mark + plot::text_width(words, kBodySize);
      if (at_x > x && at_x + needed > x + width) {
        at_x = x;
        y += 22;
      }
      if (entry.fill != nullptr) canvas_.rectangle({at_x, y + 1, 22, 14}, entry.fill, {kFaint}, 3);
      if (entry.stroke.colour != nullptr) canvas_.line(at_x, y + 8, at_x + 22, y + 8, entry.stroke);
      canvas_.text(at_x + mark, y + 12.5, words, {kBodySize, kInk, Anchor::kStart, false});
      at_x += needed + 24;
      reach(at_x - 24, y + 16);
    }
  }

  /// What had to be guessed. The tool prints all of it.
  void draw_notes() {
    const std::vector<std::string>& notes = subject_.view.warnings;
    if (notes.empty()) return;
    bottom_ += 14;
    for (std::size_t i = 0; i < std::min(notes.size(), kNotesMax); ++i) {
      for (const std::string& line : plot::wrapped("note: " + notes[i], kSmallSize, right_ - kMargin))
        canvas_.text(kMargin, bottom_ += 15, line, {kSmallSize, kFaint, Anchor::kStart, false});
    }
    if (notes.size() > kNotesMax)
      canvas_.text(kMargin, bottom_ += 15,
                   fmt::format("and {} more notes, which tutti-topo prints", notes.size() - kNotesMax),
                   {kSmallSize, kFaint, Anchor::kStart, false});
  }

  const Subject& subject_;
  Scene scene_;
  WireWidths widths_;
  LaneSample lanes_;
  Canvas canvas_;
  double right_ = 0;
  double bottom_ = 0;
};

}  // namespace

std::string svg(const Subject& subject) { return Page(subject).draw(); }

}  // namespace tutti::drawing
