#include "plot/timeline.h"

#include "plot/canvas.h"
#include "plot/ticks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace tutti::plot {
namespace {

constexpr double kWidth = 1200, kLeft = 150, kRight = 24, kTop = 84, kBottom = 50;
constexpr double kRow = 16, kBar = 12, kPanelGap = 34;

/// Maps times to pixels.
struct TimeAxis {
  double end = 1;
  double operator()(double time) const { return kLeft + time / end * (kWidth - kLeft - kRight); }
};

void text(std::string& out, double x, double y, std::string_view words, const char* anchor, double size,
          const char* colour) {
  if (words.empty()) return;
  out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"{}\" font-size=\"{:g}\" fill=\"{}\">{}</text>\n",
                     coordinate(x), coordinate(y), anchor, size, colour, escaped(words));
}

const char* colour_of(int number) { return kColours[static_cast<std::size_t>(number) % std::size(kColours)]; }

void draw_bar(std::string& out, const TimeAxis& at, double y, const Bar& bar) {
  // What is too short to be seen is drawn as a hairline.
  const double width = std::max(0.3, at(bar.to) - at(bar.from));
  out += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{:g}\" fill=\"{}\"", coordinate(at(bar.from)),
                     coordinate(y), coordinate(width), kBar, colour_of(bar.colour));
  if (bar.strength < 1) out += fmt::format(" fill-opacity=\"{:.2f}\"", std::clamp(bar.strength, 0.0, 1.0));
  out += bar.title.empty() ? "/>\n" : fmt::format("><title>{}</title></rect>\n", escaped(bar.title));
}

void draw_panel(std::string& out, const TimeAxis& at, double top, const TimelinePanel& panel) {
  text(out, kLeft, top - 8, panel.title, "start", 12.5, kInk);
  double y = top;
  for (const TimelineRow& row : panel.rows) {
    text(out, kLeft - 8, y + kBar - 2, row.name, "end", 11, kFaint);
    out += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{:g}\" fill=\"#f3f4f6\"/>\n", coordinate(kLeft),
                       coordinate(y), coordinate(kWidth - kLeft - kRight), kBar);
    for (const Bar& bar : row.bars) draw_bar(out, at, y, bar);
    y += kRow;
  }
}

void draw_legend(std::string& out, const std::vector<std::string>& legend) {
  constexpr double kCharacter = 6.4;  // of 11 px text
  double x = kLeft;
  for (std::size_t i = 0; i < legend.size(); ++i) {
    out += fmt::format("<rect x=\"{}\" y=\"54\" width=\"10\" height=\"10\" fill=\"{}\"/>\n", coordinate(x),
                       colour_of(static_cast<int>(i)));
    text(out, x + 15, 63, legend[i], "start", 11, kInk);
    x += 30 + kCharacter * static_cast<double>(legend[i].size());
  }
}

double height_of(const TimelinePanel& panel) { return kRow * static_cast<double>(panel.rows.size()); }

}  // namespace

std::string svg(const Timeline& timeline) {
  double height = kTop + kBottom;
  for (const TimelinePanel& panel : timeline.panels) height += height_of(panel) + kPanelGap;
  const Ticks ticks = ticks_for(0, std::max(timeline.end, 1e-6), Scale::kLinear, Labels::kPlain);
  const TimeAxis at{ticks.high};
  std::string out = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:g}\" height=\"{1:g}\" viewBox=\"0 0 {0:g} {1:g}\" "
      "font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\">\n"
      "<rect width=\"{0:g}\" height=\"{1:g}\" fill=\"#ffffff\"/>\n",
      kWidth, height);
  text(out, kLeft, 26, timeline.title, "start", 15, kInk);
  text(out, kLeft, 44, timeline.subtitle, "start", 11.5, kFaint);
  draw_legend(out, timeline.legend);
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
  text(out, (kLeft + kWidth - kRight) / 2, bottom + 34, timeline.axis, "middle", 12, kInk);
  return out + "</svg>\n";
}

}  // namespace tutti::plot
