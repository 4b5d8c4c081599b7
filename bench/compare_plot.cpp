// bench/compare's charts: reads them as text, a word and what belongs to it per line, and writes an SVG file.
//
//   panel TITLE, subtitle TEXT, x TITLE, y TITLE, log-y     a panel and its axes; x is logarithmic, in bytes
//   series NAME, dashed                                     a line of it
//   point X Y
#include "plot/svg.h"

#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace {

using tutti::plot::Chart;

/// Whether the line could be read.
bool add_line(std::vector<Chart>& charts, const std::string& line) {
  const std::size_t space = line.find(' ');
  const std::string word = line.substr(0, space), rest = space == std::string::npos ? "" : line.substr(space + 1);
  if (word == "panel") {
    charts.emplace_back().title = rest;
    charts.back().x.scale = tutti::plot::Scale::kLog2;
    charts.back().x.labels = tutti::plot::Labels::kBytes;
    charts.back().y.from_zero = true;
    return true;
  }
  if (charts.empty()) return false;
  Chart& chart = charts.back();
  if (word == "subtitle") {
    chart.subtitle = rest;
  } else if (word == "x") {
    chart.x.title = rest;
  } else if (word == "y") {
    chart.y.title = rest;
  } else if (word == "log-y") {
    chart.y.scale = tutti::plot::Scale::kLog10;
  } else if (word == "series") {
    chart.series.push_back({rest, {}, true, false});
  } else if (word == "dashed" && !chart.series.empty()) {
    chart.series.back().dashed = true;
  } else if (word == "point" && !chart.series.empty()) {
    tutti::plot::Point point;
    if (!(std::istringstream(rest) >> point.x >> point.y)) return false;
    chart.series.back().points.push_back(point);
  } else {
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: compare-plot FILE.svg < charts\n", stderr);
    return 2;
  }
  std::vector<Chart> charts;
  for (std::string line; std::getline(std::cin, line);) {
    if (!add_line(charts, line)) {
      std::fprintf(stderr, "compare-plot: unreadable line: %s\n", line.c_str());
      return 2;
    }
  }
  const auto written = tutti::plot::write_svg(argv[1], charts, {.width = 860, .panel_height = 430});
  if (!written.ok()) {
    std::fprintf(stderr, "compare-plot: %s\n", written.error().message.c_str());
    return 1;
  }
  return 0;
}
