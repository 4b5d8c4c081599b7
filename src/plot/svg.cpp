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
constexpr double kCharacterWidth = 6.6;                             // of 12 px text, for the legend's layout

bool drawable(double value, Scale scale) { return std::isfinite(value) && (scale == Scale::kLinear || value > 0); }
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

class Panel {
 public:
  Panel(std::string& out, const Chart& chart, const Size& size, double top)
      : out_(out),
        chart_(chart),
        left_(kLeft),
        right_(size.width - kRight),
        top_(top + kTop),
        bottom_(top + size.panel_height - kBottom) {}

  void draw() {
    text(left_, top_ - 50, chart_.title, "start", 15, kInk, " font-weight=\"600\"");
    text(left_, top_ - 32, chart_.subtitle, "start", 11.5, kFaint);
    if (!has_data()) {
      text((left_ + right_) / 2, (top_ + bottom_) / 2, "no data", "middle", 14, kFaint);
      return;
    }
    x_ = project(chart_, chart_.x, &Point::x, left_, right_);
    y_ = project(chart_, chart_.y, &Point::y, bottom_, top_);
    draw_axes();
    for (std::size_t n = 0; n < chart_.series.size(); ++n)
      draw_series(chart_.series[n], kColours[n % std::size(kColours)]);
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
    text((left_ + right_) / 2, bottom_ + 42, chart_.x.title, "middle", 12, kInk);
    const double middle = (top_ + bottom_) / 2;
    text(20, middle, chart_.y.title, "middle", 12, kInk,
         fmt::format(" transform=\"rotate(-90 20 {})\"", coordinate(middle)));
  }

  void draw_series(const Series& series, const char* colour) {
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
                        path, colour, series.dashed ? " stroke-dasharray=\"6 4\"" : "");
    if (!series.markers) return;
    for (const Point& point : series.points) {
      if (!drawable(point, chart_)) continue;
      out_ += fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"3\" fill=\"{}\"/>\n", coordinate(x_(point.x)),
                          coordinate(y_(point.y)), colour);
    }
  }

  /// A row of names under the title; nothing for a single unnamed series.
  void draw_legend() {
    double x = left_;
    for (std::size_t n = 0; n < chart_.series.size(); ++n) {
      const Series& series = chart_.series[n];
      if (series.name.empty()) continue;
      line(x, top_ - 14, x + 18, top_ - 14, kColours[n % std::size(kColours)],
           series.dashed ? " stroke-width=\"3\" stroke-dasharray=\"6 4\"" : " stroke-width=\"3\"");
      text(x + 24, top_ - 10, series.name, "start", 12, kInk);
      x += 24 + kCharacterWidth * static_cast<double>(series.name.size()) + 22;
    }
  }

  std::string& out_;
  const Chart& chart_;
  double left_, right_, top_, bottom_;
  Projection x_, y_;
};

}  // namespace

std::string svg(std::span<const Chart> panels, const Size& size) {
  const int height = size.panel_height * static_cast<int>(std::max<std::size_t>(panels.size(), 1));
  std::string out = document_head(size.width, height);
  double top = 0;
  for (const Chart& chart : panels) {
    Panel(out, chart, size, top).draw();
    top += size.panel_height;
  }
  return out + "</svg>\n";
}

Status write_svg(const std::string& path, std::span<const Chart> panels, const Size& size) {
  return write_document(path, svg(panels, size));
}

}  // namespace tutti::plot
