// The plain table of links that the simulator runs on and topology fills: one direction each, numbered from 0. No names, no
// machine: whoever made the table knows what a number stands for.
#pragma once

#include <cstdint>
#include <vector>

namespace tutti {

/// What a message over the link goes by: the later one decides for a path of several.
enum class LinkClass : std::uint8_t { kMemory, kNvLink, kPci, kNetwork };
inline constexpr int kLinkClasses = 4;

struct TableLink {
  double gbps = 0;        ///< 10^9 bytes per second, above 0
  double latency_us = 0;  ///< its own, beside what a protocol's message takes
  LinkClass link_class = LinkClass::kNvLink;
};

/// The part of a transfer's bytes that crosses a link: 1, or less where a path branches.
struct LinkPart {
  int link = 0;
  double part = 1;
};

using LinkTable = std::vector<TableLink>;
using LinkPath = std::vector<LinkPart>;

}  // namespace tutti
