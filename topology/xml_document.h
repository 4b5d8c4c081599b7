// XML text from anywhere as pugixml's tree: the limits that make a hostile file end soon, what can be repaired (stray codes
// before the first element, terminal codes anywhere, a missing root), and messages that name the line and the element.
#pragma once

#include "base/result.h"

#include <pugixml.hpp>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::topology {

inline constexpr std::size_t kXmlBytesMax = std::size_t{4} << 20;
inline constexpr int kXmlDepthMax = 64;

class XmlDocument {
 public:
  /// `root` is the element that is to be at the top. Where one of `parts` is there instead, because the root's line is lost
  /// or the text is an excerpt, a root is put around them, with a warning. kInvalidArgument if the text is larger than
  /// kXmlBytesMax, is binary, declares entities, nests elements deeper than kXmlDepthMax, is cut off (then the message names
  /// the elements that stay open), is not XML or has another root.
  static Result<XmlDocument> parse(std::string_view text, std::string_view root,
                                   const std::vector<std::string_view>& parts);

  pugi::xml_node root() const { return root_; }
  /// What was repaired, a sentence each.
  const std::vector<std::string>& warnings() const { return warnings_; }

  int line_of(const pugi::xml_node& node) const;
  /// `line 12, <pci busid="0000:07:00.0">`: the element with its first attribute.
  std::string place_of(const pugi::xml_node& node) const;

 private:
  XmlDocument() = default;
  Result<std::string> clean(std::string_view text);
  Status give_root(std::string& text, std::string_view root, const std::vector<std::string_view>& parts);
  Status load(const std::string& text);
  int line_at(std::size_t offset) const;

  std::unique_ptr<pugi::xml_document> document_;
  pugi::xml_node root_;
  std::vector<std::size_t> line_starts_;
  std::vector<std::string> warnings_;
};

}  // namespace tutti::topology
