#include "plot/svg.h"

#include "plot/canvas.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string_view>

namespace tutti::plot {
namespace {

constexpr const char* kGrid = "#e5e7eb";
constexpr double kLeft = 76, kRight = 24, kTop = 76, kBottom = 58;  // around the drawing area
constexpr double kTitle = 15, kSubtitle = 11.5, kWords = 12;        // sizes of text
constexpr double kSubtitleLine = 15, kLegendRow = 18;               // each but the first makes the panel higher

bool drawable(double value, Scale scale) {
  return std::fabs(value) <= kLargest && (scale == Scale::kLinear || value >= kNearestToZero);
}
bool drawable(const Point& point, const Chart& chart) {
  return drawable(point.x, chart.x.scale) && drawable(point.y, chart.y.scale);
}

/// Maps values of an axis to pixels.
struct Projection {
  Ticks ticks;
  Scale scale = Scale::kLinear;
  double from = 0, to = 1;  // pixels at the range's ends

  double operator()(double value) const {
    const auto bend = [this](double v) { return scale == Scale::kLinear ? v : std::log(v); };
    const double share = (bend(value) - bend(ticks.low)) / (bend(ticks.high) - bend(ticks.low));
    return from + share * (to - from);
  }
};

Projection project(const Chart& chart, const Axis& axis, double Point::*member, double from, double to) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const Series& series : chart.series) {
    for (const Point& point : series.points) {
      if (!drawable(point, chart)) continue;
      low = std::min(low, point.*member);
      high = std::max(high, point.*member);
    }
  }
  if (axis.from_zero && axis.scale == Scale::kLinear) {
    low = std::min(low, 0.0);
    high = std::max(high, 0.0);
  }
  return Projection{ticks_for(low, high, axis.scale, axis.labels), axis.scale, from, to};
}

/// The look of a series. There are more series than colours: each round of colours has dots of its own.
struct Look {
  const char* colour = nullptr;
  std::size_t round = 0;

  explicit Look(std::size_t series)
      : colour(kColours[series % std::size(kColours)]), round(series / std::size(kColours)) {}
};

class Panel {
 public:
  Panel(std::string& out, const Chart& chart, const Size& size, double top)
      : out_(out),
        chart_(chart),
        subtitle_(wrapped(chart.subtitle, kSubtitle, size.width - kLeft - kRight)),
        left_(kLeft),
        right_(size.width - kRight),
        head_(top + kTop) {
    place_legend();
    const double more = kSubtitleLine * (static_cast<double>(std::max<std::size_t>(subtitle_.size(), 1)) - 1);
    legend_top_ = head_ + more - 14;
    top_ = head_ + more + legend_height_;
    bottom_ = top_ + size.panel_height - kTop - kBottom;
  }

  /// Where the next panel begins.
  double end() const { return bottom_ + kBottom; }

  void draw() {
    text(left_, head_ - 50, fitted(chart_.title, kTitle, right_ - left_, true), "start", kTitle, kInk,
         " font-weight=\"600\"");
    double y = head_ - 32;
    for (const std::string& line : subtitle_) {
      text(left_, y, line, "start", kSubtitle, kFaint);
      y += kSubtitleLine;
    }
    if (!has_data()) {
      text((left_ + right_) / 2, (top_ + bottom_) / 2, "no data", "middle", 14, kFaint);
      return;
    }
    x_ = project(chart_, chart_.x, &Point::x, left_, right_);
    y_ = project(chart_, chart_.y, &Point::y, bottom_, top_);
    draw_axes();
    for (std::size_t n = 0; n < chart_.series.size(); ++n) draw_series(chart_.series[n], Look(n));
    draw_legend();
  }

 private:
  bool has_data() const {
    for (const Series& series : chart_.series)
      for (const Point& point : series.points)
        if (drawable(point, chart_)) return true;
    return false;
  }

  void text(double x, double y, std::string_view words, const char* anchor, double size, const char* colour,
            std::string_view more = {}) {
    if (words.empty()) return;
    out_ += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"{}\" font-size=\"{:g}\" fill=\"{}\"{}>{}</text>\n",
                        coordinate(x), coordinate(y), anchor, size, colour, more, escaped(words));
  }

  void line(double x1, double y1, double x2, double y2, const char* colour, std::string_view more = {}) {
    out_ += fmt::format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"{}\"{}/>\n", coordinate(x1),
                        coordinate(y1), coordinate(x2), coordinate(y2), colour, more);
  }

  void draw_axes() {
    for (const Tick& tick : x_.ticks.ticks) {
      line(x_(tick.value), top_, x_(tick.value), bottom_, kGrid);
      text(x_(tick.value), bottom_ + 18, tick.label, "middle", 11.5, kFaint);
    }
    for (const Tick& tick : y_.ticks.ticks) {
      line(left_, y_(tick.value), right_, y_(tick.value), kGrid);
      text(left_ - 8, y_(tick.value) + 4, tick.label, "end", 11.5, kFaint);
    }
    line(left_, bottom_, right_, bottom_, kFaint);
    text((left_ + right_) / 2, bottom_ + 42, fitted(chart_.x.title, kWords, right_ - left_), "middle", kWords, kInk);
    const double middle = (top_ + bottom_) / 2;
    text(20, middle, fitted(chart_.y.title, kWords, bottom_ - top_), "middle", kWords, kInk,
         fmt::format(" transform=\"rotate(-90 20 {})\"", coordinate(middle)));
  }

  void draw_series(const Series& series, const Look& look) {
    std::string path;
    bool pen_down = false;
    for (const Point& point : series.points) {
      if (!drawable(point, chart_)) {
        pen_down = false;
        continue;
      }
      path += fmt::format("{}{} {} ", pen_down ? 'L' : 'M', coordinate(x_(point.x)), coordinate(y_(point.y)));
      pen_down = true;
    }
    if (path.empty()) return;
    path.pop_back();
    out_ += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\" stroke-linejoin=\"round\"{}/>\n",
                        path, look.colour, series.dashed ? " stroke-dasharray=\"6 4\"" : "");
    const auto is_there = [&](std::size_t n) { return n < series.points.size() && drawable(series.points[n], chart_); };
    for (std::size_t n = 0; n < series.points.size(); ++n) {
      const bool alone = !is_there(n + 1) && (n == 0 || !is_there(n - 1));  // no line shows it
      if (is_there(n) && (series.markers || alone)) dot(x_(series.points[n].x), y_(series.points[n].y), look);
    }
  }

  void dot(double x, double y, const Look& look) {
    const bool hollow = look.round % 2 == 1;
    const std::string paint = hollow ? fmt::format("fill=\"#ffffff\" stroke=\"{}\" stroke-width=\"1.5\"", look.colour)
                                     : fmt::format("fill=\"{}\"", look.colour);
    out_ += look.round % 4 < 2
                ? fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"3\" {}/>\n", coordinate(x), coordinate(y), paint)
                : fmt::format("<rect x=\"{}\" y=\"{}\" width=\"6\" height=\"6\" {}/>\n", coordinate(x - 3),
                              coordinate(y - 3), paint);
  }

  /// Names in rows under the subtitle; nothing for a series without a name.
  void place_legend() {
    double x = left_;
    double y = 0;
    for (std::size_t n = 0; n < chart_.series.size(); ++n) {
      if (chart_.series[n].name.empty()) continue;
      std::string name = fitted(chart_.series[n].name, kWords, right_ - left_ - kLegendMark);
      const double width = kLegendMark + text_width(name, kWords);
      if (x > left_ && x + width > right_) {
        x = left_;
        y += kLegendRow;
      }
      legend_.push_back({n, std::move(name), x, y});
      x += width + 22;
    }
    legend_height_ = y;
  }

  void draw_legend() {
    for (const LegendEntry& entry : legend_) {
      const Series& series = chart_.series[entry.series];
      const Look look(entry.series);
      const double y = legend_top_ + entry.y;
      line(entry.x, y, entry.x + 26, y, look.colour,
           series.dashed ? " stroke-width=\"3\" stroke-dasharray=\"6 4\"" : " stroke-width=\"3\"");
      // In place of the middle one of three dashes; where colours suffice, they say it all.
      if (series.markers && chart_.series.size() > std::size(kColours)) dot(entry.x + 13, y, look);
      text(entry.x + kLegendMark, y + 4, entry.name, "start", kWords, kInk);
    }
  }

  static constexpr double kLegendMark = 32;  ///< a line, and what is between it and the name
  struct LegendEntry {
    std::size_t series = 0;
    std::string name;
    double x = 0, y = 0;  ///< y: under the first row
  };

  std::string& out_;
  const Chart& chart_;
  std::vector<std::string> subtitle_;
  std::vector<LegendEntry> legend_;
  double left_, right_, head_;
  double legend_top_ = 0, legend_height_ = 0, top_ = 0, bottom_ = 0;
  Projection x_, y_;
};

}  // namespace

std::string svg(std::span<const Chart> panels, const Size& size) {
  std::string drawn;
  double height = 0;
  for (const Chart& chart : panels) {
    Panel panel(drawn, chart, size, height);
    panel.draw();
    height = panel.end();
  }
  return document_head(size.width, panels.empty() ? size.panel_height : height) + drawn + "</svg>\n";
}

Status write_svg(const std::string& path, std::span<const Chart> panels, const Size& size) {
  return write_document(path, svg(panels, size));
}

}  // namespace tutti::plot
