#include "drawing/host_picture.h"

#include "drawing/palette.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace tutti::drawing {
namespace {

using plot::Anchor;
using plot::Box;
using plot::Canvas;
using plot::coordinate;
using plot::TextStyle;
using topology::kNone;

constexpr double kWidestWire = 5;
/// Sources write this much or more where a link is no limit.
constexpr topology::Bandwidth kNoLimit = 2000 * topology::kGigabyte;

std::size_t at(int index) { return static_cast<std::size_t>(index); }

class HostPainter {
 public:
  HostPainter(const Scene& scene, const DrawnHost& host, const HostLayout& layout, const WireWidths& widths,
              Canvas& canvas)
      : scene_(scene), host_(host), layout_(layout), widths_(widths), canvas_(canvas) {}

  void paint() {
    draw_frame();
    for (const int root : host_.roots) draw_grounds(root);
    assign_ports();
    for (const int root : host_.roots) draw_stubs(root);
    for (const Wire& wire : host_.wires) {
      if (is_arc(scene_, wire)) draw_arc(wire);
      if (is_processor_arc(scene_, wire)) draw_processor_arc(wire);
      if (is_to_bar(scene_, wire)) draw_to_bar(wire);
    }
    draw_bars();
    for (const int root : host_.roots) draw_boxes(root);
    for (const Wire& wire : host_.wires) draw_words(wire);
  }

 private:
  const Item& item(int index) const { return scene_.items[at(index)]; }
  const Box& box(int index) const { return layout_.box(index); }
  static TextStyle small(const Wire& wire, Anchor anchor) {
    return {kSmallSize, wire.crossing ? kRed : wire.counted ? kInk : kFaint, anchor, wire.crossing};
  }

  void draw_frame() {
    const Box& frame = layout_.frame;
    for (int behind = std::min(host_.stands_for - 1, 2); behind > 0; --behind) {
      const double offset = 5.0 * behind;
      canvas_.rectangle({frame.left + offset, frame.top - offset, frame.width, frame.height}, kGround, {kEdge}, 10);
    }
    canvas_.rectangle(frame, kGround, {kEdge, 1.5}, 10);
    double y = frame.top + 23;
    const TextStyle title{kTitleSize, kInk, Anchor::kStart, true};
    canvas_.text(frame.left + 14, y, plot::fitted(host_.title, kTitleSize, frame.width - 28, true), title);
    for (const std::string& line : layout_.title_lines)
      canvas_.text(frame.left + 14, y += 15, line, {kSmallSize, kFaint, Anchor::kStart, false});
    y = layout_.remarks_top;
    for (const std::string& line : layout_.remarks)
      canvas_.text(frame.left + 14, y += 14, line, {kSmallSize, kFaint, Anchor::kStart, false});
  }

  void draw_grounds(int index) {
    const Item& self = item(index);
    if (self.role != Role::kContainer) return;
    canvas_.rectangle(box(index), self.parent == kNone ? kWhite : kGround, {kEdge}, 6);
    for (const int child : self.children) draw_grounds(child);
  }

  /// Lines to the box around.
  void draw_stubs(int index) {
    const Item& self = item(index);
    if (self.parent != kNone) draw_stub(index);
    for (const int child : self.children) draw_stubs(child);
  }

  void draw_stub(int index) {
    const std::vector<const Wire*> wires = stub_wires(scene_, host_, index);
    if (wires.empty()) return;
    const double from = layout_.spines[at(item(index).parent)].right();
    const bool is_container = item(index).role == Role::kContainer;
    const double to = is_container ? layout_.spines[at(index)].left : box(index).left;
    const double y = box(index).middle() + 5;
    for (std::size_t i = 0; i < wires.size(); ++i) {
      const double shift = 5 * (static_cast<double>(i) - static_cast<double>(wires.size() - 1) / 2);
      canvas_.line(from, y + shift, to, y + shift, stroke_of(*wires[i], widths_));
    }
    const double above = 5 + 2.5 * static_cast<double>(wires.size() - 1);
    const TextStyle style = small(*wires.front(), Anchor::kStart);
    canvas_.text(from + 6, y - above, stub_text(wires), {style.size, style.colour, style.anchor, false});
  }

  struct Port {
    std::size_t wire = 0;
    int order = 0;     ///< from the top
    bool is_a = true;  ///< which end
  };

  /// Wires leave a box in an order that lets them not cross at once: short arcs up, long ones, bars, long ones down, short.
  void assign_ports() {
    port_y_.assign(host_.wires.size(), {0, 0});
    port_steps_.assign(scene_.items.size(), 0);
    std::vector<std::vector<Port>> ports(scene_.items.size());
    for (std::size_t i = 0; i < host_.wires.size(); ++i) {
      const Wire& wire = host_.wires[i];
      const bool to_bar = is_to_bar(scene_, wire);
      if (!to_bar && !is_arc(scene_, wire) && !is_processor_arc(scene_, wire)) continue;
      for (const bool is_a : {true, false}) {
        const int end = is_a ? wire.a : wire.b;
        const int other = is_a ? wire.b : wire.a;
        if (item(end).role == Role::kBar) continue;
        const int span = to_bar ? 0 : layout_.arc_rows[at(other)] - layout_.arc_rows[at(end)];
        const int order = span < 0 ? -10000 - span : span > 0 ? 10000 - span : 0;
        ports[at(end)].push_back({i, order, is_a});
      }
    }
    for (std::size_t index = 0; index < ports.size(); ++index) {
      std::ranges::stable_sort(ports[index], {}, &Port::order);
      const double step = box(static_cast<int>(index)).height / static_cast<double>(ports[index].size() + 1);
      port_steps_[index] = step;
      for (std::size_t i = 0; i < ports[index].size(); ++i) {
        const double y = box(static_cast<int>(index)).top + step * static_cast<double>(i + 1);
        (ports[index][i].is_a ? port_y_[ports[index][i].wire].first : port_y_[ports[index][i].wire].second) = y;
      }
    }
  }

  std::size_t place_of(const Wire& wire) const { return static_cast<std::size_t>(&wire - host_.wires.data()); }

  int span_of(const Wire& wire) const {
    return std::max(1, std::abs(layout_.arc_rows[at(wire.a)] - layout_.arc_rows[at(wire.b)]));
  }

  void draw_arc(const Wire& wire) {
    const auto [y1, y2] = port_y_[place_of(wire)];
    const double x = layout_.fabric_left;
    const double control = x + layout_.arcs.bulge(span_of(wire)) / 0.75;
    canvas_.path(
        fmt::format("M{0} {1} H{2} C{3} {1} {3} {4} {2} {4} H{5}", coordinate(box(wire.a).right()), coordinate(y1),
                    coordinate(x), coordinate(control), coordinate(y2), coordinate(box(wire.b).right())),
        arc_stroke(wire));
  }

  /// No wider than half of what is between the ends of two arcs.
  plot::Stroke arc_stroke(const Wire& wire) const {
    plot::Stroke stroke = stroke_of(wire, widths_);
    stroke.width = std::min({stroke.width, 0.55 * port_steps_[at(wire.a)], 0.55 * port_steps_[at(wire.b)]});
    return stroke;
  }

  void draw_processor_arc(const Wire& wire) {
    const auto [y1, y2] = port_y_[place_of(wire)];
    const double x = layout_.processors_left;
    const double control = x - layout_.processor_arcs.bulge(span_of(wire)) / 0.75;
    canvas_.path(
        fmt::format("M{0} {1} H{2} C{3} {1} {3} {4} {2} {4} H{5}", coordinate(box(wire.a).left), coordinate(y1),
                    coordinate(x), coordinate(control), coordinate(y2), coordinate(box(wire.b).left)),
        stroke_of(wire, widths_));
  }

  /// The end that is no bar, the bar, and where the line leaves.
  struct BarLine {
    int item = kNone;
    int bar = kNone;
    double y = 0;
  };
  BarLine bar_line(const Wire& wire) const {
    const bool a_is_bar = item(wire.a).role == Role::kBar;
    const auto [y1, y2] = port_y_[place_of(wire)];
    BarLine line{a_is_bar ? wire.b : wire.a, a_is_bar ? wire.a : wire.b, a_is_bar ? y2 : y1};
    // Beside a container's boxes, not through them.
    if (!item(line.item).children.empty() && !item(line.bar).on_left) line.y = box(line.item).bottom() - 3.5;
    return line;
  }

  void draw_to_bar(const Wire& wire) {
    const BarLine line = bar_line(wire);
    if (item(line.bar).on_left) {
      canvas_.line(box(line.bar).right(), line.y, box(line.item).left, line.y, stroke_of(wire, widths_));
    } else {
      canvas_.line(box(line.item).right(), line.y, box(line.bar).left, line.y, stroke_of(wire, widths_));
    }
  }

  void draw_bars() {
    for (const Wire& wire : host_.wires) {
      if (item(wire.a).role != Role::kBar || item(wire.b).role != Role::kBar) continue;
      const Box& a = box(wire.a);
      const Box& b = box(wire.b);
      canvas_.line(a.left + a.width / 2, a.middle(), b.left + b.width / 2, b.middle(), stroke_of(wire, widths_));
    }
    for (const int bar : host_.bars) draw_bar(scene_, item(bar), box(bar), canvas_);
  }

  void draw_boxes(int index) {
    const Item& self = item(index);
    if (self.role == Role::kContainer) {
      draw_spine(self, layout_.spines[at(index)]);
    } else {
      draw_device(self, box(index));
    }
    for (const int child : self.children) draw_boxes(child);
  }

  void draw_heading(const Item& self, const Box& spine) {
    canvas_.text(spine.left, spine.top + 15, plot::fitted(heading_text(self), kSmallSize, spine.width, true),
                 {kSmallSize, kInk, Anchor::kStart, true});
  }

  void draw_spine(const Item& self, const Box& spine) {
    if (has_heading(self)) return draw_heading(self, spine);
    canvas_.rectangle(spine, fill_of(scene_, self), {self.computes ? kFaint : kEdge, self.computes ? 1.5 : 1}, 4);
    double y = spine.middle() - 7.0 * static_cast<double>(self.lines.size()) + 11;
    for (std::size_t i = 0; i < self.lines.size(); ++i) {
      const TextStyle style{i == 0 ? kNameSize : kSmallSize, i == 0 ? kInk : kFaint, Anchor::kMiddle, i == 0};
      canvas_.text(spine.left + spine.width / 2, y, plot::fitted(self.lines[i], style.size, spine.width - 8, i == 0),
                   style);
      y += 14;
    }
  }

  void draw_device(const Item& self, const Box& box) {
    const bool is_quiet = self.role == Role::kMore || self.left_out;
    canvas_.rectangle(box, self.left_out ? kWhite : fill_of(scene_, self),
                      {self.computes ? kFaint : kEdge, self.computes && !is_quiet ? 1.5 : 1, is_quiet}, 5);
    const double y = box.middle() + 4.5;
    const bool is_bold = self.computes && self.role != Role::kMore;
    // Half the box, or more where the name leaves it.
    const double left = box.width - 22 - plot::text_width(self.lines[0], kNameSize, is_bold);
    const double aside = self.lines.size() > 1
                             ? std::min(plot::text_width(self.lines[1], kSmallSize), std::max(left, box.width / 2))
                             : 0;
    const double room = box.width - 14 - (aside > 0 ? aside + 8 : 0);
    canvas_.text(box.left + 7, y, plot::fitted(self.lines[0], kNameSize, room, is_bold),
                 {kNameSize, self.left_out ? kFaint : kInk, Anchor::kStart, is_bold});
    if (aside > 0)
      canvas_.text(box.right() - 7, y, plot::fitted(self.lines[1], kSmallSize, aside + 0.5),
                   {kSmallSize, kFaint, Anchor::kEnd, false});
  }

  /// Last, where nothing is written yet.
  void draw_words(const Wire& wire) {
    if (is_to_bar(scene_, wire)) {
      const BarLine line = bar_line(wire);
      if (item(line.bar).on_left) return;  // the bar says it
      const TextStyle style = small(wire, Anchor::kEnd);
      const std::string words = bar_wire_text(wire);
      for (const double y : {line.y - 4, line.y + 13}) {
        if (!canvas_.is_free(Canvas::extent(layout_.labels_right, y, words, style))) continue;
        canvas_.text(layout_.labels_right, y, words, style);
        return;
      }
    } else if (is_processor_arc(scene_, wire)) {
      const double x = layout_.processors_left;
      say_on_arc(wire, x, -layout_.processor_arcs.bulge(span_of(wire)), wire_text(wire, true));
    } else if (is_arc(scene_, wire) && !layout_.arcs_alike) {
      say_on_arc(wire, layout_.fabric_left, layout_.arcs.bulge(span_of(wire)), wire_text(wire, false));
    }
  }

  void say_on_arc(const Wire& wire, double x, double bulge, const std::string& words) {
    const auto [y1, y2] = port_y_[place_of(wire)];
    const TextStyle style = small(wire, Anchor::kMiddle);
    constexpr std::array<double, 7> kPlaces = {0.5, 0.42, 0.58, 0.34, 0.66, 0.27, 0.73};
    for (const double t : kPlaces) {
      const double out = 4 * t * (1 - t);  // a cubic with both controls at the same x is a parabola in x
      const double along = t * t * (3 - 2 * t);
      const double at_x = x + bulge * out;
      const double at_y = y1 + (y2 - y1) * along + 4;
      if (!canvas_.is_free(Canvas::extent(at_x, at_y, words, style))) continue;
      canvas_.label(at_x, at_y, words, style);
      return;
    }
  }

  const Scene& scene_;
  const DrawnHost& host_;
  const HostLayout& layout_;
  const WireWidths& widths_;
  Canvas& canvas_;
  std::vector<std::pair<double, double>> port_y_;  ///< by wire: at a, at b
  std::vector<double> port_steps_;                 ///< by item: between its ports
};

}  // namespace

WireWidths::WireWidths(const Scene& scene) {
  for (const Cable& cable : scene.marks.cables) {
    if (cable.widest() < kNoLimit) most_ = std::max(most_, cable.widest());
  }
}

double WireWidths::operator()(topology::Bandwidth bandwidth) const {
  const double share = static_cast<double>(std::min(bandwidth, most_)) / static_cast<double>(most_);
  return std::max(1.0, kWidestWire * std::sqrt(share));
}

plot::Stroke stroke_of(const Wire& wire, const WireWidths& widths) {
  const double width = wire.most >= kNoLimit ? 2 : widths(wire.most);
  if (wire.crossing) return {kRed, std::max(width, 1.6)};
  return {colour_of(wire.kind), width, false, wire.counted ? 1 : 0.4};
}

const char* fill_of(const Scene& scene, const Item& item) {
  if (item.block == kNoBlock) return kPlain;
  if (scene.marks.all_single && scene.marks.block_sizes.size() > 2) return item.computes ? kTints[0] : kPlain;
  return tint_of(item.block);
}

void draw_host(const Scene& scene, const DrawnHost& host, const HostLayout& layout, const WireWidths& widths,
               Canvas& canvas) {
  HostPainter(scene, host, layout, widths, canvas).paint();
}

void draw_bar(const Scene& scene, const Item& item, const Box& box, Canvas& canvas) {
  canvas.rectangle(box, fill_of(scene, item), {kFaint}, 6);
  const bool is_flat = box.width > 4 * box.height;
  if (is_flat) {
    std::string words = item.lines.front();
    for (std::size_t i = 1; i < item.lines.size(); ++i) words += ", " + item.lines[i];
    canvas.text(box.left + box.width / 2, box.middle() + 4.5, plot::fitted(words, kNameSize, box.width - 12, true),
                {kNameSize, kInk, Anchor::kMiddle, true});
    return;
  }
  double y = box.middle() - 7.5 * static_cast<double>(item.lines.size()) + 11;
  for (std::size_t i = 0; i < item.lines.size(); ++i) {
    const TextStyle style{i == 0 ? kNameSize : kSmallSize, i == 0 ? kInk : kFaint, Anchor::kMiddle, i == 0};
    canvas.text(box.left + box.width / 2, y, plot::fitted(item.lines[i], style.size, box.width - 8, i == 0), style);
    y += 15;
  }
}

}  // namespace tutti::drawing
