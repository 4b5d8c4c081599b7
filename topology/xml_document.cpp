#include "topology/xml_document.h"

#include "topology/xml_outline.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti::topology {

namespace {

constexpr std::size_t kNowhere = std::string_view::npos;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

Error wrong(const std::string& what) { return error(Code::kInvalidArgument, "XML: " + what); }

/// The first "<" that can begin an element, a comment or a declaration.
std::size_t first_markup(std::string_view text) {
  for (std::size_t at = text.find('<'); at != kNowhere; at = text.find('<', at + 1)) {
    if (at + 1 < text.size() && (is_letter(text[at + 1]) || text[at + 1] == '!' || text[at + 1] == '?')) return at;
  }
  return kNowhere;
}

/// Behind the terminal code at text[at], which is an escape: ESC [ parameters letter.
std::size_t behind_escape(std::string_view text, std::size_t at) {
  ++at;
  if (at >= text.size() || text[at] != '[') return at;
  ++at;
  while (at < text.size() && (text[at] < '@' || text[at] > '~')) ++at;
  return std::min(at + 1, text.size());
}

/// The text without terminal codes and control characters; `count` of them.
std::string without_codes(std::string_view text, int& count) {
  std::string kept;
  kept.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    const bool is_code = static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' && c != '\r';
    if (!is_code) {
      kept += c;
      ++at;
      continue;
    }
    ++count;
    at = c == '\x1b' ? behind_escape(text, at) : at + 1;
  }
  return kept;
}

std::string names_of(const std::vector<XmlTag>& tags) {
  std::string names;
  for (const XmlTag& tag : tags) names += fmt::format("{}<{}>", names.empty() ? "" : ", ", tag.name);
  return names;
}

/// What would close all that is open.
std::string ends_of(const std::vector<XmlTag>& tags) {
  std::string ends;
  for (auto tag = tags.rbegin(); tag != tags.rend(); ++tag) ends += fmt::format("</{}>", tag->name);
  return ends;
}

}  // namespace

Result<XmlDocument> XmlDocument::parse(std::string_view text, std::string_view root,
                                       const std::vector<std::string_view>& parts) {
  if (text.size() > kXmlBytesMax)
    return wrong(fmt::format("the file has {} bytes; at most {} are read", text.size(), kXmlBytesMax));
  XmlDocument document;
  TUTTI_TRY_ASSIGN(std::string cleaned, document.clean(text));
  TUTTI_TRY(document.give_root(cleaned, root, parts));
  TUTTI_TRY(document.load(cleaned));
  document.root_ = document.document_->child(std::string(root).c_str());
  return document;
}

Result<std::string> XmlDocument::clean(std::string_view text) {
  if (const std::size_t zero = text.find('\0'); zero != kNowhere)
    return wrong(fmt::format("the file is binary (a zero byte at offset {})", zero));
  int codes = 0;
  std::string kept = without_codes(text, codes);
  if (codes == 1) warnings_.push_back("1 terminal code or control character is left out");
  if (codes > 1) warnings_.push_back(fmt::format("{} terminal codes or control characters are left out", codes));
  if (kept.starts_with("\xef\xbb\xbf")) kept.erase(0, 3);
  line_starts_ = {0};
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (kept[i] == '\n') line_starts_.push_back(i + 1);
  }
  const std::size_t start = first_markup(kept);
  if (start == kNowhere) return wrong("there is no element in it");
  const std::size_t stray = kept.find_first_not_of(" \t\r\n");
  if (stray < start) {
    constexpr std::size_t kShown = 40;
    warnings_.push_back(fmt::format("line {}: {} bytes before the first element are left out (\"{}\")", line_at(stray),
                                    start - stray, kept.substr(stray, std::min(start - stray, kShown))));
    // Blanks, so that lines stay what they are.
    for (std::size_t i = stray; i < start; ++i) {
      if (kept[i] != '\n') kept[i] = ' ';
    }
  }
  if (const std::size_t entity = kept.find("<!ENTITY"); entity != kNowhere)
    return wrong(fmt::format("line {}: <!ENTITY: a topology file has no use for entities, so they are not read",
                             line_at(entity)));
  return kept;
}

Status XmlDocument::give_root(std::string& text, std::string_view root, const std::vector<std::string_view>& parts) {
  using Problem = XmlOutline::Problem;
  const XmlOutline outline = outline_of(text, kXmlDepthMax, root);
  const int line = line_at(outline.at.offset);
  switch (outline.problem) {
    case Problem::kNone: break;
    case Problem::kTooDeep:
      return wrong(
          fmt::format("line {}, <{}>: more than {} elements inside each other", line, outline.at.name, kXmlDepthMax));
    case Problem::kStrayEnd: return wrong(fmt::format("line {}: </{}> ends what did not begin", line, outline.at.name));
    case Problem::kMismatch:
      return wrong(fmt::format("line {}: </{}> where </{}> was expected, which begins in line {}", line,
                               outline.at.name, outline.open.back().name, line_at(outline.open.back().offset)));
    case Problem::kCutOff: {
      const std::size_t last = text.find_last_not_of(" \t\r\n");
      std::string where = fmt::format("line {}: the file is cut off here", line_at(last));
      if (outline.at.name.empty() && outline.open.empty()) return wrong(where + ", inside a comment or declaration");
      if (!outline.at.name.empty()) where += fmt::format(", inside the tag <{}", outline.at.name);
      if (outline.open.empty()) return wrong(where);
      return wrong(fmt::format("{}; {} stay{} open. To use what is there, end it after the last whole element with {}",
                               where, names_of(outline.open), outline.open.size() == 1 ? "s" : "",
                               ends_of(outline.open)));
    }
  }
  if (outline.tops.empty()) return wrong("there is no element in it");
  const XmlTag& top = outline.tops.front();
  if (top.name == root) return {};
  if (std::ranges::find(parts, top.name) == parts.end())
    return wrong(fmt::format("line {}, <{}>: expected <{}> at the top", line_at(top.offset), top.name, root));
  warnings_.push_back(fmt::format("line {}: there is no <{}> before <{}>; the file may be an excerpt",
                                  line_at(top.offset), root, top.name));
  // In the place of the blank or on the same line, so that lines stay what they are.
  const std::string begin = fmt::format("<{}>", root);
  const std::string end = fmt::format("</{}>", root);
  text.insert(top.offset, begin);
  for (std::size_t& start : line_starts_) start += start > top.offset ? begin.size() : 0;
  if (text.find(end) == kNowhere) text += end;
  return {};
}

Status XmlDocument::load(const std::string& text) {
  document_ = std::make_unique<pugi::xml_document>();
  const pugi::xml_parse_result parsed =
      document_->load_buffer(text.data(), text.size(), pugi::parse_default, pugi::encoding_utf8);
  if (parsed) return {};
  const auto offset = static_cast<std::size_t>(std::max<std::ptrdiff_t>(parsed.offset, 0));
  std::string near = text.substr(std::min(offset, text.size()), 30);
  std::ranges::replace(near, '\n', ' ');
  return wrong(fmt::format("line {}: {} near \"{}\"", line_at(offset), parsed.description(), near));
}

int XmlDocument::line_at(std::size_t offset) const {
  return static_cast<int>(std::ranges::upper_bound(line_starts_, offset) - line_starts_.begin());
}

int XmlDocument::line_of(const pugi::xml_node& node) const {
  const std::ptrdiff_t offset = node.offset_debug();
  return offset < 0 ? 0 : line_at(static_cast<std::size_t>(offset));
}

std::string XmlDocument::place_of(const pugi::xml_node& node) const {
  constexpr std::size_t kShown = 60;
  const pugi::xml_attribute first = node.first_attribute();
  if (!first) return fmt::format("line {}, <{}>", line_of(node), node.name());
  return fmt::format("line {}, <{} {}=\"{}\">", line_of(node), node.name(), first.name(),
                     std::string_view(first.value()).substr(0, kShown));
}

}  // namespace tutti::topology
