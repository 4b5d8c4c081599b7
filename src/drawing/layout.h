// Where the boxes of a host are: containers in columns from left to right, what is in a container in rows below each other,
// all devices in one column with room to their right for what joins them.
//
//   +- host --------------------------------------------------+
//   | (arcs) +- numa0 -----------------------------+   arcs   |
//   |   |    | spine |--+- pci0 -----------------+ |    and   |
//   |   |    |       |  | spine |--[gpu0] --------+-+--  bars  |
//   |   |    |       |  |       |--[nic0]        | |          |
#pragma once

#include "drawing/scene.h"
#include "plot/canvas.h"

#include <vector>

namespace tutti::drawing {

inline constexpr double kNameSize = 13;
inline constexpr double kSmallSize = 11;
inline constexpr double kTitleSize = 16;

/// How far an arc over `span` rows bulges.
struct ArcSteps {
  double first = 24;
  double step = 26;
  double bulge(int span) const { return first + step * (span - 1); }
};

struct HostLayout {
  plot::Box frame;
  std::vector<plot::Box> boxes;   ///< by item of the scene; of a bar too
  std::vector<plot::Box> spines;  ///< of containers: the part that has their name
  std::vector<int> arc_rows;      ///< by item: its number among those that arcs join, from the top; kNone
  double processors_left = 0;     ///< left of all containers
  double fabric_left = 0;         ///< right of all containers
  double labels_right = 0;        ///< where the words beside wires to bars end
  ArcSteps arcs;
  ArcSteps processor_arcs;
  bool arcs_alike = false;  ///< all arcs say the same, so that none does
  std::vector<std::string> title_lines;
  std::vector<std::string> remarks;  ///< under the boxes
  double remarks_top = 0;

  const plot::Box& box(int item) const { return boxes[static_cast<std::size_t>(item)]; }
  void move(double dx, double dy);
};

HostLayout lay_out(const Scene& scene, const DrawnHost& host);

/// What the wires between a box and the box around it say.
std::string stub_text(const std::vector<const Wire*>& wires);
/// What a wire to a bar says.
std::string bar_wire_text(const Wire& wire);
/// The wires from an item to the container it is in.
std::vector<const Wire*> stub_wires(const Scene& scene, const DrawnHost& host, int item);

/// A CPU with NUMA nodes in it, which stands over them and not beside them.
bool has_heading(const Item& item);
std::string heading_text(const Item& item);

}  // namespace tutti::drawing
