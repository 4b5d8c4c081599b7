// What is drawn of a machine before anything has a place: hosts of which one stands for all that are alike, boxes in boxes,
// switches as bars, and wires between them, parallel ones merged.
#pragma once

#include "drawing/cables.h"

#include <string>
#include <vector>

namespace tutti::drawing {

enum class Role : std::uint8_t {
  kContainer,  ///< host memory, a PCI switch: other boxes may be in it
  kDevice,     ///< a GPU, a NIC, a cache
  kMore,       ///< several that are alike, or that there is no room for
  kBar,        ///< an NVSwitch, a network, or many direct links as one
};

struct Item {
  Role role = Role::kDevice;
  topology::NodeKind kind = topology::NodeKind::kGpu;
  std::vector<std::string> lines;  ///< its name and what is to be said of it
  int parent = topology::kNone;    ///< item
  std::vector<int> children;
  int block = kNoBlock;
  bool computes = false;
  bool left_out = false;  ///< a GPU that was not chosen
  bool on_left = false;   ///< a bar for links between NUMA nodes
};

/// Cables between the same two items, of one kind.
struct Wire {
  int a = topology::kNone;
  int b = topology::kNone;
  topology::LinkKind kind = topology::LinkKind::kPci;
  int cables = 0;
  int count = 1;                  ///< NVLinks or lanes of one cable
  topology::Bandwidth least = 0;  ///< of one cable's wider direction
  topology::Bandwidth most = 0;
  topology::Bandwidth there = 0;  ///< of all
  topology::Bandwidth back = 0;
  bool differs = false;  ///< some cable in its two directions
  bool counted = false;
  bool crossing = false;
};

struct DrawnHost {
  std::string title;
  std::string alike;       ///< "17 more hosts like this: tray1 ... tray17"
  std::vector<int> roots;  ///< items
  std::vector<int> bars;
  std::vector<Wire> wires;   ///< between its own items
  std::vector<Wire> trunks;  ///< a: none; b: the bar outside that they lead to
  int stands_for = 1;
};

struct Scene {
  std::vector<Item> items;
  std::vector<DrawnHost> hosts;
  std::vector<int> bars;  ///< outside the hosts
  std::vector<std::string> remarks;
  Marks marks;
};

Scene make_scene(const Subject& subject);

/// How a wire is drawn, unless it joins a box and the box around it.
bool is_to_bar(const Scene& scene, const Wire& wire);
bool is_processor_arc(const Scene& scene, const Wire& wire);  ///< between NUMA nodes
bool is_arc(const Scene& scene, const Wire& wire);            ///< between whatever else

/// From a wire's end `a` to `b`, and back.
struct Arrows {
  std::string_view there, back;
};
inline constexpr Arrows kUpAndDown{"\xe2\x86\x93", "\xe2\x86\x91"};     ///< where a is above b, or b in a
inline constexpr Arrows kLeftAndRight{"\xe2\x86\x92", "\xe2\x86\x90"};  ///< where b is a bar on the right

/// "NVLink"
std::string_view words_for(topology::LinkKind kind);
/// "NVLinks"
std::string plural_for(topology::LinkKind kind);
/// "12.5"; two decimals below 10, none above 1000.
std::string rate_text(topology::Bandwidth bandwidth);
/// "2x25" or "18x25 GB/s", "8 x 50 GB/s" for several cables; differing directions with an arrow each, of all cables.
std::string wire_text(const Wire& wire, bool with_unit, const Arrows& arrows = kUpAndDown);

}  // namespace tutti::drawing
