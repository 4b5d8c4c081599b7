#include "plot/timeline.h"

#include "plot/canvas.h"
#include "plot/ticks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace tutti::plot {
namespace {

constexpr double kWidth = 1200, kRight = 24, kTop = 84, kBottom = 50;
constexpr double kLeftMin = 150, kLeftMax = 400;  // of what has the rows' names
constexpr double kGap = 4, kBar = 12, kBarMax = 48, kPanelGap = 34;
constexpr double kTitle = 15, kSubtitle = 11.5, kPanelTitle = 12.5, kWords = 11;  // sizes of text

/// Maps times to pixels.
struct TimeAxis {
  double end = 1;
  double left = kLeftMin;
  double width() const { return kWidth - left - kRight; }
  double operator()(double time) const { return left + time / end * width(); }
};

/// Two pixels for each of many colours.
double height_of(const TimelineRow& row) { return std::clamp(2.0 * row.colours, kBar, kBarMax); }

double height_of(const TimelinePanel& panel) {
  double height = 0;
  for (const TimelineRow& row : panel.rows) height += height_of(row) + kGap;
  return height;
}

double left_of(const Timeline& timeline) {
  double left = kLeftMin;
  for (const TimelinePanel& panel : timeline.panels) {
    for (const TimelineRow& row : panel.rows) left = std::max(left, text_width(row.name, kWords) + 16);
  }
  return std::min(left, kLeftMax);
}

void text(std::string& out, double x, double y, std::string_view words, const char* anchor, double size,
          const char* colour) {
  if (words.empty()) return;
  out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"{}\" font-size=\"{:g}\" fill=\"{}\">{}</text>\n",
                     coordinate(x), coordinate(y), anchor, size, colour, escaped(words));
}

const char* colour_of(int number) { return kColours[static_cast<std::size_t>(number) % std::size(kColours)]; }

void draw_bar(std::string& out, const TimeAxis& at, double y, const TimelineRow& row, const Bar& bar) {
  const double height = height_of(row) / row.colours;
  y += height * (bar.colour % row.colours);
  // What is too short to be seen is drawn as a hairline.
  const double width = std::max(0.3, at(bar.to) - at(bar.from));
  out += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{:.4g}\" fill=\"{}\"", coordinate(at(bar.from)),
                     coordinate(y), coordinate(width), height, colour_of(bar.colour));
  if (bar.strength < 1) out += fmt::format(" fill-opacity=\"{:.2f}\"", std::clamp(bar.strength, 0.0, 1.0));
  out += bar.title.empty() ? "/>\n" : fmt::format("><title>{}</title></rect>\n", escaped(bar.title));
}

void draw_panel(std::string& out, const TimeAxis& at, double top, const TimelinePanel& panel) {
  text(out, at.left, top - 8, fitted(panel.title, kPanelTitle, at.width()), "start", kPanelTitle, kInk);
  double y = top;
  for (const TimelineRow& row : panel.rows) {
    const double height = height_of(row);
    text(out, at.left - 8, y + height / 2 + 4, fitted(row.name, kWords, at.left - 16), "end", kWords, kFaint);
    out += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{:g}\" fill=\"#f3f4f6\"/>\n", coordinate(at.left),
                       coordinate(y), coordinate(at.width()), height);
    for (const Bar& bar : row.bars) draw_bar(out, at, y, row, bar);
    y += height + kGap;
  }
}

/// From x on, or further to the left where there is no room.
void draw_legend(std::string& out, double x, const std::vector<std::string>& legend) {
  constexpr double kMark = 15, kApart = 15;
  double width = 0;
  for (const std::string& words : legend) width += kMark + text_width(words, kWords) + kApart;
  x = std::min(x, kWidth - kRight - width + kApart);
  for (std::size_t i = 0; i < legend.size(); ++i) {
    out += fmt::format("<rect x=\"{}\" y=\"54\" width=\"10\" height=\"10\" fill=\"{}\"/>\n", coordinate(x),
                       colour_of(static_cast<int>(i)));
    text(out, x + kMark, 63, legend[i], "start", kWords, kInk);
    x += kMark + text_width(legend[i], kWords) + kApart;
  }
}

}  // namespace

std::string svg(const Timeline& timeline) {
  double height = kTop + kBottom;
  for (const TimelinePanel& panel : timeline.panels) height += height_of(panel) + kPanelGap;
  const Ticks ticks = ticks_for(0, std::max(timeline.end, 1e-6), Scale::kLinear, Labels::kPlain);
  const TimeAxis at{ticks.high, left_of(timeline)};
  std::string out = document_head(kWidth, height);
  text(out, at.left, 26, fitted(timeline.title, kTitle, at.width()), "start", kTitle, kInk);
  text(out, at.left, 44, fitted(timeline.subtitle, kSubtitle, at.width()), "start", kSubtitle, kFaint);
  draw_legend(out, at.left, timeline.legend);
  double top = kTop + 10;
  for (const TimelinePanel& panel : timeline.panels) {
    draw_panel(out, at, top, panel);
    top += height_of(panel) + kPanelGap;
  }
  const double bottom = top - kPanelGap + 4;
  for (const Tick& tick : ticks.ticks) {
    out += fmt::format("<line x1=\"{0}\" y1=\"{1:g}\" x2=\"{0}\" y2=\"{2}\" stroke=\"{3}\" stroke-opacity=\"0.6\"/>\n",
                       coordinate(at(tick.value)), kTop + 6, coordinate(bottom), kFaint);
    text(out, at(tick.value), bottom + 16, tick.label, "middle", 11, kFaint);
  }
  text(out, at.left + at.width() / 2, bottom + 34, timeline.axis, "middle", 12, kInk);
  return out + "</svg>\n";
}

}  // namespace tutti::plot
