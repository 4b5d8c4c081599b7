// The tags of an XML text without its tree: which stay open, which close what was not opened, how deep they nest. Tells what
// is wrong with a damaged file in words that a person can act on, before a parser sees it. Linear in the text.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace tutti::topology {

struct XmlTag {
  std::string_view name;
  std::size_t offset = 0;  ///< of its "<"
};

struct XmlOutline {
  enum class Problem { kNone, kCutOff, kMismatch, kStrayEnd, kTooDeep };

  Problem problem = Problem::kNone;
  XmlTag at;                 ///< where; for kCutOff the tag or comment that does not end, if there is one
  std::vector<XmlTag> open;  ///< at the problem, outermost first
  std::vector<XmlTag> tops;  ///< the elements that are in no other
  std::size_t elements = 0;
};

/// Stops at the first problem. `stray_end` is the one element whose end may come without its beginning: "system".
XmlOutline outline_of(std::string_view text, int depth_max, std::string_view stray_end);

}  // namespace tutti::topology
