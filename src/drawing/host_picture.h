// One host of a scene, drawn.
#pragma once

#include "drawing/layout.h"
#include "plot/canvas.h"

namespace tutti::drawing {

/// Widths of lines by bandwidth, in pixels; the widest link of the machine has the most.
class WireWidths {
 public:
  explicit WireWidths(const Scene& scene);
  double operator()(topology::Bandwidth bandwidth) const;

 private:
  topology::Bandwidth most_ = 1;
};

/// How a wire is drawn: by its kind; red where it crosses; pale where it does not count.
plot::Stroke stroke_of(const Wire& wire, const WireWidths& widths);

/// The colour of a box.
const char* fill_of(const Scene& scene, const Item& item);

void draw_host(const Scene& scene, const DrawnHost& host, const HostLayout& layout, const WireWidths& widths,
               plot::Canvas& canvas);

/// A bar and its words.
void draw_bar(const Scene& scene, const Item& item, const plot::Box& box, plot::Canvas& canvas);

}  // namespace tutti::drawing
