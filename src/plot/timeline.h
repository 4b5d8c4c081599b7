// A timeline as SVG text: a row for each of several things, with bars in time. The same input gives the same bytes.
#pragma once

#include "base/result.h"

#include <string>
#include <vector>

namespace tutti::plot {

struct Bar {
  double from = 0;
  double to = 0;
  int colour = 0;       ///< bars of one colour belong together; from 0
  double strength = 1;  ///< 0 to 1: how much of the colour
  std::string title;    ///< shown where the pointer rests; may be empty
};

struct TimelineRow {
  std::string name;  ///< cut where it is too long
  std::vector<Bar> bars;
  int colours =
      1;  ///< more than 1: so many have a part of the row's height each, from the top, as their bars would hide each other
};

struct TimelinePanel {
  std::string title;
  std::vector<TimelineRow> rows;
};

struct Timeline {
  std::string title;
  std::string subtitle;
  std::string axis;                 ///< "time, us"
  double end = 0;                   ///< of the axis, which starts at 0
  std::vector<std::string> legend;  ///< by colour; may be empty
  std::vector<TimelinePanel> panels;
};

/// One document; text is escaped.
std::string svg(const Timeline& timeline);

}  // namespace tutti::plot
