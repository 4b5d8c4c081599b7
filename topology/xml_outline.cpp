#include "topology/xml_outline.h"

namespace tutti::topology {

namespace {

constexpr std::size_t kEnd = std::string_view::npos;

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
         c == ':' || c == '.' || static_cast<unsigned char>(c) >= 0x80;
}

std::string_view name_at(std::string_view text, std::size_t at) {
  std::size_t end = at;
  while (end < text.size() && is_name(text[end])) ++end;
  return text.substr(at, end - at);
}

std::size_t behind(std::string_view text, std::size_t from, std::string_view mark) {
  const std::size_t found = text.find(mark, from);
  return found == kEnd ? kEnd : found + mark.size();
}

/// Behind the ">" that ends the tag at `from`, past quoted values.
std::size_t behind_tag(std::string_view text, std::size_t from) {
  for (std::size_t at = from; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '>') return at + 1;
    if (c != '"' && c != '\'') continue;
    at = text.find(c, at + 1);
    if (at == kEnd) return kEnd;
  }
  return kEnd;
}

/// Behind <!DOCTYPE ... [ ... ]>.
std::size_t behind_doctype(std::string_view text, std::size_t from) {
  int brackets = 0;
  for (std::size_t at = from; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '[') ++brackets;
    if (c == ']') --brackets;
    if (c == '>' && brackets <= 0) return at + 1;
  }
  return kEnd;
}

/// Behind what begins with "<!" or "<?".
std::size_t behind_declaration(std::string_view text, std::size_t at) {
  const std::string_view rest = text.substr(at);
  if (rest.starts_with("<!--")) return behind(text, at + 4, "-->");
  if (rest.starts_with("<![CDATA[")) return behind(text, at + 9, "]]>");
  if (rest.starts_with("<?")) return behind(text, at + 2, "?>");
  return behind_doctype(text, at);
}

XmlOutline& stop(XmlOutline& outline, XmlOutline::Problem problem, XmlTag at) {
  outline.problem = problem;
  outline.at = at;
  return outline;
}

}  // namespace

XmlOutline outline_of(std::string_view text, int depth_max, std::string_view stray_end) {
  using Problem = XmlOutline::Problem;
  XmlOutline outline;
  for (std::size_t at = text.find('<'); at != kEnd; at = text.find('<', at)) {
    const char next = at + 1 < text.size() ? text[at + 1] : '\0';
    const bool is_end = next == '/';
    const XmlTag tag = {name_at(text, at + (is_end ? 2 : 1)), at};
    const bool is_declaration = next == '!' || next == '?';
    const std::size_t after = is_declaration ? behind_declaration(text, at) : behind_tag(text, at + 1);
    if (after == kEnd) return stop(outline, Problem::kCutOff, tag);
    at = after;
    if (is_declaration || tag.name.empty()) continue;
    if (is_end && outline.open.empty() && tag.name != stray_end) return stop(outline, Problem::kStrayEnd, tag);
    if (is_end && !outline.open.empty()) {
      if (outline.open.back().name != tag.name) return stop(outline, Problem::kMismatch, tag);
      outline.open.pop_back();
    }
    if (is_end) continue;
    ++outline.elements;
    if (outline.open.empty()) outline.tops.push_back(tag);
    if (text[after - 2] == '/') continue;
    outline.open.push_back(tag);
    if (outline.open.size() > static_cast<std::size_t>(depth_max)) return stop(outline, Problem::kTooDeep, tag);
  }
  if (!outline.open.empty()) return stop(outline, Problem::kCutOff, {});
  return outline;
}

}  // namespace tutti::topology
