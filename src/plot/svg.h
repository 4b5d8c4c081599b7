// Line charts as SVG text: one or several panels below each other. The same input gives the same bytes.
#pragma once

#include "base/result.h"
#include "plot/ticks.h"

#include <span>
#include <string>
#include <vector>

namespace tutti::plot {

struct Point {
  double x = 0;
  double y = 0;
};

/// Points are joined in the order given. Points beyond kLargest or not finite, or not positive on a logarithmic axis, are
/// left out and break the line; a point that no line reaches is a dot in any case.
struct Series {
  std::string name;
  std::vector<Point> points;
  bool markers = false;  ///< a dot at every point
  bool dashed = false;
};

struct Axis {
  std::string title;
  Scale scale = Scale::kLinear;
  Labels labels = Labels::kPlain;
  bool from_zero = false;  ///< linear axes: zero is always in the picture
};

struct Chart {
  std::string title;
  std::string subtitle;
  Axis x;
  Axis y;
  std::vector<Series> series;
};

struct Size {
  int width = 760;
  int panel_height = 380;  ///< with one line of subtitle and one row of names; more of them make a panel higher
};

/// One SVG document; text is escaped. A chart without a point that can be drawn says "no data".
std::string svg(std::span<const Chart> panels, const Size& size = {});

/// Writes the document to a file; kSystem where that fails.
Status write_svg(const std::string& path, std::span<const Chart> panels, const Size& size = {});

}  // namespace tutti::plot
