// The drawing's colours: light grounds, one colour for each kind of link, red for what binds and for nothing else.
#pragma once

#include "topology/graph.h"

#include <array>

namespace tutti::drawing {

inline constexpr const char* kInk = "#1f2937";
inline constexpr const char* kFaint = "#64748b";
inline constexpr const char* kEdge = "#cbd5e1";
inline constexpr const char* kRed = "#dc2626";
inline constexpr const char* kPlain = "#eef2f7";   ///< boxes of no block
inline constexpr const char* kGround = "#f8fafc";  ///< hosts
inline constexpr const char* kWhite = "#ffffff";

/// Blocks, the first two far apart.
inline constexpr std::array<const char*, 6> kTints = {"#cfe3ff", "#ffe2b8", "#cdeed6", "#ecd6fb", "#c5eef2", "#f6efb0"};
/// Lanes.
inline constexpr std::array<const char*, 8> kLanes = {"#2563eb", "#ea8a00", "#059669", "#9333ea",
                                                      "#0891b2", "#a16207", "#4f46e5", "#65a30d"};

inline const char* tint_of(int block) { return kTints[static_cast<std::size_t>(block) % kTints.size()]; }

inline const char* colour_of(topology::LinkKind kind) {
  using topology::LinkKind;
  switch (kind) {
    case LinkKind::kPci: return "#475569";
    case LinkKind::kNvLink: return "#16a34a";
    case LinkKind::kXgmi: return "#d97706";
    case LinkKind::kC2c: return "#0891b2";
    case LinkKind::kCpu: return "#334155";
    case LinkKind::kMemory: return "#94a3b8";
    case LinkKind::kNetwork: return "#7c3aed";
  }
  return kInk;
}

}  // namespace tutti::drawing
