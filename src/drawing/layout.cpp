#include "drawing/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace tutti::drawing {
namespace {

using plot::Box;
using topology::kNone;
using topology::NodeKind;

constexpr double kPadding = 7;
constexpr double kHeading = 20;
constexpr double kFramePadding = 14;
constexpr double kLineHeight = 14;
constexpr double kArcsWidthMax = 260;
constexpr double kTextMax = 190;  ///< of one name

std::size_t at(int index) { return static_cast<std::size_t>(index); }

double words(std::string_view text, double size, bool bold = false) { return plot::text_width(text, size, bold); }

class Placer {
 public:
  Placer(const Scene& scene, const DrawnHost& host) : scene_(scene), host_(host) {
    layout_.boxes.resize(scene.items.size());
    layout_.spines.resize(scene.items.size());
    layout_.arc_rows.assign(scene.items.size(), kNone);
  }

  HostLayout place() {
    count_ports();
    for (const int root : host_.roots) measure(root, 0);
    find_columns();
    place_rows();
    place_fabric();
    place_frame();
    return std::move(layout_);
  }

 private:
  const Item& item(int index) const { return scene_.items[at(index)]; }

  /// Stands for containers, so that it is as wide as they.
  bool is_wide_more(const Item& self, std::size_t depth) const {
    return self.role == Role::kMore && self.kind != NodeKind::kGpu && self.kind != NodeKind::kNic &&
           self.kind != NodeKind::kCache && depth < spine_.size();
  }

  void count_ports() {
    ports_.assign(scene_.items.size(), 0);
    for (const Wire& wire : host_.wires) {
      if (is_arc(scene_, wire) || is_to_bar(scene_, wire)) {
        ++ports_[at(wire.a)];
        ++ports_[at(wire.b)];
      }
      if (is_processor_arc(scene_, wire)) has_processor_arcs_ = true;
    }
  }

  /// Beside each other.
  static double width_of_lines(const Item& self) {
    double width = 18;
    for (std::size_t i = 0; i < self.lines.size(); ++i)
      width += std::min(kTextMax, words(self.lines[i], i == 0 ? kNameSize : kSmallSize, i == 0)) + (i > 0 ? 10 : 0);
    return width;
  }

  void need(std::size_t depth, double width) { needed_[depth] = std::max(needed_[depth], width); }

  /// Widths by column.
  void measure(int index, std::size_t depth) {
    const Item& self = item(index);
    if (is_wide_more(self, depth)) {
      need(depth, width_of_lines(self));
      return;
    }
    if (self.role != Role::kContainer) {
      device_width_ = std::max(device_width_, width_of_lines(self));
      has_devices_ = true;
      if (self.parent == kNone) root_devices_ = true;
      return;
    }
    if (spine_.size() <= depth) {
      spine_.resize(depth + 1, 0);
      stub_.resize(depth + 1, 0);
    }
    for (std::size_t i = 0; i < self.lines.size() && !has_heading(self); ++i) {
      const double width = std::min(kTextMax, words(self.lines[i], i == 0 ? kNameSize : kSmallSize, i == 0));
      spine_[depth] = std::max(spine_[depth], width + 16);
    }
    if (has_heading(self)) {
      need(depth, std::min(2 * kTextMax, words(heading_text(self), kSmallSize, true)) + 2 * kPadding + 1);
    } else {
      spine_[depth] = std::max(spine_[depth], 46.0);
    }
    for (const int child : self.children) {
      const std::string text = stub_text(stub_wires(scene_, host_, child));
      stub_[depth] = std::max(stub_[depth], text.empty() ? 14 : words(text, kSmallSize) + 16);
      measure(child, depth + 1);
    }
  }

  void find_columns() {
    left_ = has_processor_arcs_ ? processor_zone() : 0;
    for (const int bar : host_.bars) {
      if (item(bar).on_left) left_ = std::max(left_, bar_width(bar) + 36);
    }
    layout_.processors_left = left_;
    double x = left_;
    for (std::size_t depth = 0; depth < spine_.size(); ++depth) {
      box_left_.push_back(x);
      x += kPadding + spine_[depth] + stub_[depth];
      // The last column of containers may have nothing in it.
      if (stub_[depth] > 0) device_left_ = x;
    }
    if (spine_.empty() || (root_devices_ && device_left_ == 0)) device_left_ = std::max(device_left_, x);
    inner_right_ = has_devices_ ? device_left_ + device_width_ : 0;
    for (std::size_t depth = 0; depth < spine_.size(); ++depth)
      inner_right_ = std::max(inner_right_, box_left_[depth] + kPadding + spine_[depth]);
    for (const auto& [depth, width] : needed_)
      inner_right_ = std::max(inner_right_, inner_right_ + width - (right_of(depth) - box_left_[depth]));
  }

  double right_of(std::size_t depth) const {
    return inner_right_ + kPadding * static_cast<double>(spine_.size() - depth);
  }

  double processor_zone() {
    double label = 0;
    for (const Wire& wire : host_.wires) {
      if (is_processor_arc(scene_, wire)) label = std::max(label, words(wire_text(wire, true), kSmallSize));
    }
    int rows = 0;
    for (const Wire& wire : host_.wires) {
      if (!is_processor_arc(scene_, wire)) continue;
      for (const int end : {wire.a, wire.b}) {
        if (layout_.arc_rows[at(end)] == kNone) layout_.arc_rows[at(end)] = rows++;
      }
    }
    layout_.processor_arcs = {.first = 26, .step = label / 2 + 8};
    return layout_.processor_arcs.bulge(std::max(1, rows - 1)) + label / 2 + 10;
  }

  double device_height(int index) const {
    const Item& self = item(index);
    const double base = self.kind == NodeKind::kGpu ? 30 : 24;
    return std::max(base, 6 + 6.0 * ports_[at(index)]);
  }

  void place_rows() {
    double y = 0;
    for (const int root : host_.roots) {
      if (y > 0) y += item(root).role == Role::kContainer ? 14 : 6;
      y = place_row(root, 0, y);
    }
    bottom_ = y;
    number_arc_rows();
  }

  /// The y below it.
  double place_row(int index, std::size_t depth, double y) {
    const Item& self = item(index);
    Box& box = layout_.boxes[at(index)];
    if (self.role != Role::kContainer) {
      box = {device_left_, y, device_width_, device_height(index)};
      if (is_wide_more(self, depth)) {
        box.left = box_left_[depth];
        box.width = right_of(depth) - box.left;
      }
      return box.bottom();
    }
    double inner = 0;
    for (const int child : self.children) inner += height_of(child) + 6;
    const double height = height_of(index);
    box = {box_left_[depth], y, right_of(depth) - box_left_[depth], height};
    layout_.spines[at(index)] = {box.left + kPadding, y + kPadding, spine_[depth], height - 2 * kPadding};
    if (has_heading(self)) layout_.spines[at(index)] = {box.left + kPadding, y + 3, box.width - 2 * kPadding, kHeading};
    const double heading = has_heading(self) ? kHeading : 0;
    double at_y = y + heading + (height - heading - std::max(inner - 6, 0.0)) / 2;
    for (const int child : self.children) at_y = place_row(child, depth + 1, at_y) + 6;
    return box.bottom();
  }

  double height_of(int index) const {
    const Item& self = item(index);
    if (self.role != Role::kContainer) return device_height(index);
    double inner = 0;
    for (const int child : self.children) inner += height_of(child) + 6;
    const double ports = 6 + 5.0 * ports_[at(index)];
    if (has_heading(self)) return std::max(ports, inner - 6 + kHeading) + 2 * kPadding;
    const double lines = kLineHeight * static_cast<double>(self.lines.size()) + 10;
    return std::max({lines, ports, 30.0, inner - 6}) + 2 * kPadding;
  }

  /// Among those on the same side.
  void number_arc_rows() {
    std::ranges::fill(layout_.arc_rows, kNone);
    for (const bool processors : {false, true}) {
      std::set<int> ends;
      for (const Wire& wire : host_.wires) {
        if (processors ? is_processor_arc(scene_, wire) : is_arc(scene_, wire)) ends.insert({wire.a, wire.b});
      }
      std::vector<int> order(ends.begin(), ends.end());
      std::ranges::stable_sort(order, {}, [&](int index) { return layout_.box(index).middle(); });
      for (std::size_t i = 0; i < order.size(); ++i) layout_.arc_rows[at(order[i])] = static_cast<int>(i);
    }
  }

  double bar_width(int bar) const {
    double width = 60;
    for (std::size_t i = 0; i < item(bar).lines.size(); ++i)
      width =
          std::max(width, std::min(kTextMax, words(item(bar).lines[i], i == 0 ? kNameSize : kSmallSize, i == 0)) + 18);
    return width;
  }

  /// Room for arcs; how wide they are together.
  double arcs_zone() {
    int longest = 0;
    double label = 0;
    std::set<std::string> texts;
    for (const Wire& wire : host_.wires) {
      if (!is_arc(scene_, wire)) continue;
      longest = std::max(longest, std::abs(layout_.arc_rows[at(wire.a)] - layout_.arc_rows[at(wire.b)]));
      texts.insert(wire_text(wire, false));
      label = std::max(label, words(wire_text(wire, false), kSmallSize));
    }
    if (longest == 0) return 0;
    layout_.arcs_alike = texts.size() == 1 && longest > 1;
    if (layout_.arcs_alike) label = 0;
    layout_.arcs.step = std::clamp(kArcsWidthMax / longest, 12.0, 30.0);
    return layout_.arcs.bulge(longest) + label / 2 + 8;
  }

  void place_fabric() {
    layout_.fabric_left = (spine_.empty() ? inner_right_ : right_of(0)) + 6;
    double x = layout_.fabric_left + arcs_zone();
    double label = 0;
    for (const Wire& wire : host_.wires) {
      if (is_to_bar(scene_, wire) && !bar_of(wire).on_left)
        label = std::max(label, words(bar_wire_text(wire), kSmallSize, true));
    }
    if (label > 0) x += label + 18;
    layout_.labels_right = x - 8;
    std::vector<std::vector<int>> columns;
    for (const int bar : host_.bars) {
      span_rows(bar);
      if (item(bar).on_left) {
        layout_.boxes[at(bar)].left = 0;
        layout_.boxes[at(bar)].width = bar_width(bar);
        continue;
      }
      const auto fits = [&](const std::vector<int>& column) {
        return std::ranges::none_of(column, [&](int other) {
          return layout_.box(other).top < layout_.box(bar).bottom() + 6 &&
                 layout_.box(bar).top < layout_.box(other).bottom() + 6;
        });
      };
      const auto column = std::ranges::find_if(columns, fits);
      (column == columns.end() ? columns.emplace_back() : *column).push_back(bar);
    }
    for (const std::vector<int>& column : columns) {
      double width = 0;
      for (const int bar : column) width = std::max(width, bar_width(bar));
      for (const int bar : column) {
        layout_.boxes[at(bar)].left = x;
        layout_.boxes[at(bar)].width = width;
      }
      x += width + 22;
    }
    right_ = columns.empty() ? x : x - 22;
  }

  const Item& bar_of(const Wire& wire) const { return item(item(wire.a).role == Role::kBar ? wire.a : wire.b); }

  void span_rows(int bar) {
    double top = bottom_;
    double end = 0;
    for (const Wire& wire : host_.wires) {
      if (wire.a != bar && wire.b != bar) continue;
      const int other = wire.a == bar ? wire.b : wire.a;
      if (item(other).role == Role::kBar) continue;
      top = std::min(top, layout_.box(other).top);
      end = std::max(end, layout_.box(other).bottom());
    }
    const double least = kLineHeight * static_cast<double>(item(bar).lines.size()) + 14;
    if (end <= top) {  // nothing but other bars
      top = 0;
      end = std::max(bottom_, least);
    }
    const double missing = std::max(0.0, least - (end - top)) / 2;
    layout_.boxes[at(bar)].top = std::max(0.0, top - missing);
    layout_.boxes[at(bar)].height = end - top + 2 * missing;
    bottom_ = std::max(bottom_, layout_.box(bar).bottom());
  }

  bool is_elision(std::ptrdiff_t index) const {
    const Item& self = scene_.items[static_cast<std::size_t>(index)];
    return self.role == Role::kMore && self.kind == NodeKind::kGpu;
  }

  /// All arcs counted, as words beside them may be left out for want of room.
  std::vector<std::string> arc_remarks() const {
    std::map<std::pair<topology::LinkKind, std::string>, int> counts;
    for (const Wire& wire : host_.wires) {
      if (is_arc(scene_, wire)) ++counts[{wire.kind, wire_text(wire, true)}];
    }
    const bool elides = std::ranges::any_of(
        layout_.boxes, [&](const Box& box) { return box.width > 0 && is_elision(&box - layout_.boxes.data()); });
    std::vector<std::string> remarks;
    for (const auto& [what, count] : counts) {
      // Of those between what is not drawn there is no count here.
      const std::string many = elides ? fmt::format("direct {}", plural_for(what.first))
                                      : fmt::format("{} direct {}", count, plural_for(what.first));
      remarks.push_back(count == 1 && !elides ? fmt::format("1 direct {}: {}", words_for(what.first), what.second)
                                              : fmt::format("{}: {} each", many, what.second));
    }
    constexpr std::size_t kRemarksMax = 4;
    if (remarks.size() > kRemarksMax) remarks.resize(kRemarksMax);
    return remarks;
  }

  void place_frame() {
    const double width = std::max({right_, inner_right_ + kPadding * static_cast<double>(spine_.size()), 220.0,
                                   words(host_.title, kTitleSize, true)});
    layout_.title_lines = plot::wrapped(host_.alike, kSmallSize, width);
    for (const std::string& remark : arc_remarks()) {
      for (std::string& line : plot::wrapped(remark, kSmallSize, width)) layout_.remarks.push_back(std::move(line));
    }
    const double top = 32 + kFramePadding / 2 + kLineHeight * static_cast<double>(layout_.title_lines.size());
    layout_.move(kFramePadding, top);
    layout_.remarks_top = top + bottom_ + 8;
    const double below = kLineHeight * static_cast<double>(layout_.remarks.size());
    layout_.frame = {0, 0, width + 2 * kFramePadding, top + bottom_ + (below > 0 ? below + 8 : 0) + kFramePadding};
  }

  const Scene& scene_;
  const DrawnHost& host_;
  HostLayout layout_;
  std::vector<int> ports_;
  std::vector<double> spine_;  ///< widths by depth
  std::vector<double> stub_;
  std::map<std::size_t, double> needed_;  ///< by depth: for words over a container, or for what stands for several
  std::vector<double> box_left_;
  double left_ = 0;
  double device_left_ = 0;
  double device_width_ = 0;
  double inner_right_ = 0;
  double bottom_ = 0;
  double right_ = 0;
  bool has_devices_ = false;
  bool root_devices_ = false;
  bool has_processor_arcs_ = false;
};

}  // namespace

void HostLayout::move(double dx, double dy) {
  const auto shift = [&](Box& box) {
    box.left += dx;
    box.top += dy;
  };
  shift(frame);
  for (Box& box : boxes) shift(box);
  for (Box& box : spines) shift(box);
  fabric_left += dx;
  processors_left += dx;
  labels_right += dx;
  remarks_top += dy;
}

HostLayout lay_out(const Scene& scene, const DrawnHost& host) { return Placer(scene, host).place(); }

std::vector<const Wire*> stub_wires(const Scene& scene, const DrawnHost& host, int item) {
  const int parent = scene.items[at(item)].parent;
  std::vector<const Wire*> wires;
  for (const Wire& wire : host.wires) {
    if (parent != kNone && std::minmax(wire.a, wire.b) == std::minmax(item, parent)) wires.push_back(&wire);
  }
  return wires;
}

std::string bar_wire_text(const Wire& wire) {
  return fmt::format("{} {}", words_for(wire.kind), wire_text(wire, true, kLeftAndRight));
}

std::string stub_text(const std::vector<const Wire*>& wires) {
  std::string text;
  for (const Wire* wire : wires) {
    const bool is_pci = wire->kind == topology::LinkKind::kPci && wires.size() == 1;
    text += fmt::format("{}{}{}{}", text.empty() ? "" : " + ", is_pci ? "" : words_for(wire->kind), is_pci ? "" : " ",
                        wire_text(*wire, wire == wires.back()));
  }
  return text;
}

std::string heading_text(const Item& item) {
  std::string words;
  for (const std::string& line : item.lines) words += (words.empty() ? "" : "  \xc2\xb7  ") + line;
  return words;
}

bool has_heading(const Item& item) {
  return item.kind == NodeKind::kPackage && item.role == Role::kContainer && !item.children.empty();
}

}  // namespace tutti::drawing
