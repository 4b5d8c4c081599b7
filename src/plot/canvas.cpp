#include "plot/canvas.h"

#include "base/standard_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace tutti::plot {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";
constexpr std::string_view kEllipsis = "\xe2\x80\xa6";

struct Character {
  std::string_view bytes;  ///< as they are to be written
  char32_t code = 0xFFFD;
};

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

/// What XML 1.0 may hold.
bool is_allowed(char32_t code) {
  return code >= 0x20 && !(code >= 0xD800 && code <= 0xDFFF) && code != 0xFFFE && code != 0xFFFF && code <= 0x10FFFF;
}

/// Takes the first character off the text.
Character next_character(std::string_view& text) {
  const auto first = static_cast<unsigned char>(text.front());
  const std::size_t length = first < 0x80 ? 1 : first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  char32_t code = length == 1 ? first : first & (0x7FU >> length);
  bool good = length == 1 || (first >= 0xC2 && first <= 0xF4 && text.size() >= length);
  for (std::size_t i = 1; good && i < length; ++i) {
    good = is_continuation(text[i]);
    code = (code << 6U) | (static_cast<unsigned char>(text[i]) & 0x3FU);
  }
  constexpr std::array<char32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
  good = good && code >= kLeast[length];
  Character character{text.substr(0, good ? length : 1), good ? code : 0xFFFD};
  text.remove_prefix(character.bytes.size());
  if (good && code < 0x20) return {" ", ' '};
  if (!good || !is_allowed(code)) return {kReplacement, 0xFFFD};
  return character;
}

/// Of a size of 1, in DejaVu Sans or anything narrower.
double width_of(char32_t code) {
  if (code >= 0x1100) return 1.02;
  if (code >= 0x80) return 0.7;
  if (code >= '0' && code <= '9') return 0.637;
  const std::string_view narrow = "ijl,.:;'|!I ";
  const std::string_view middling = "frt()[]/-\"{}";
  const auto is_in = [code](std::string_view set) { return set.find(static_cast<char>(code)) != set.npos; };
  if (is_in(narrow)) return 0.34;
  if (is_in(middling)) return 0.45;
  if (is_in("mwMW@%")) return 1.0;
  if (is_in("+=<>_~#")) return 0.84;
  return code >= 'A' && code <= 'Z' ? 0.76 : 0.64;
}

const char* name_of(Anchor anchor) {
  switch (anchor) {
    case Anchor::kMiddle: return "middle";
    case Anchor::kEnd: return "end";
    case Anchor::kStart: break;
  }
  return "start";
}

std::string attributes(const Stroke& stroke) {
  if (stroke.colour == nullptr) return "";
  std::string text = fmt::format(" stroke=\"{}\" stroke-width=\"{:.4g}\"", stroke.colour, stroke.width);
  if (stroke.dashed) text += " stroke-dasharray=\"5 4\"";
  if (stroke.opacity < 1) text += fmt::format(" stroke-opacity=\"{:.4g}\"", stroke.opacity);
  return text;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const Character character = next_character(text);
    switch (character.code) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      default: result += character.bytes;
    }
  }
  return result;
}

std::string coordinate(double value) { return fmt::format("{:.2f}", value == 0 ? 0.0 : value); }

double text_width(std::string_view words, double size, bool bold) {
  double width = 0;
  while (!words.empty()) width += width_of(next_character(words).code);
  return width * size * (bold ? 1.1 : 1);
}

std::string fitted(std::string_view words, double size, double width, bool bold) {
  if (text_width(words, size, bold) <= width) return std::string(words);
  const double room = width - text_width(kEllipsis, size, bold);
  std::string result;
  double used = 0;
  while (!words.empty()) {
    const Character character = next_character(words);
    used += text_width(character.bytes, size, bold);
    if (used > room) break;
    result += character.bytes;
  }
  return result + std::string(kEllipsis);
}

std::vector<std::string> wrapped(std::string_view words, double size, double width) {
  std::vector<std::string> lines;
  std::string line;
  while (!words.empty()) {
    const std::string_view word = words.substr(0, words.find(' '));
    words.remove_prefix(std::min(word.size() + 1, words.size()));
    if (word.empty()) continue;
    std::string longer = line.empty() ? std::string(word) : fmt::format("{} {}", line, word);
    if (!line.empty() && text_width(longer, size) > width) {
      lines.push_back(std::move(line));
      longer = word;
    }
    line = fitted(longer, size, width);
  }
  if (!line.empty()) lines.push_back(std::move(line));
  return lines;
}

void Canvas::rectangle(const Box& box, const char* fill, const Stroke& stroke, double radius) {
  elements_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"", coordinate(box.left),
                           coordinate(box.top), coordinate(box.width), coordinate(box.height));
  if (radius > 0) elements_ += fmt::format(" rx=\"{:.4g}\"", radius);
  elements_ += fmt::format(" fill=\"{}\"{}/>\n", fill, attributes(stroke));
}

void Canvas::line(double x1, double y1, double x2, double y2, const Stroke& stroke) {
  elements_ += fmt::format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"{}/>\n", coordinate(x1), coordinate(y1),
                           coordinate(x2), coordinate(y2), attributes(stroke));
}

void Canvas::path(std::string_view path, const Stroke& stroke) {
  elements_ += fmt::format("<path d=\"{}\" fill=\"none\"{}/>\n", path, attributes(stroke));
}

void Canvas::circle(double x, double y, double radius, const char* fill, const Stroke& stroke) {
  elements_ += fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"{:.4g}\" fill=\"{}\"{}/>\n", coordinate(x), coordinate(y),
                           radius, fill, attributes(stroke));
}

void Canvas::text(double x, double y, std::string_view words, const TextStyle& style) {
  if (words.empty()) return;
  words_.push_back(extent(x, y, words, style));
  elements_ += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"{}\" font-size=\"{:g}\" fill=\"{}\"{}>{}</text>\n",
                           coordinate(x), coordinate(y), name_of(style.anchor), style.size, style.colour,
                           style.bold ? " font-weight=\"600\"" : "", escaped(words));
}

void Canvas::label(double x, double y, std::string_view words, const TextStyle& style) {
  if (words.empty()) return;
  rectangle(extent(x, y, words, style), "#ffffff", {}, 2);
  text(x, y, words, style);
}

Box Canvas::extent(double x, double y, std::string_view words, const TextStyle& style) {
  const double width = text_width(words, style.size, style.bold);
  const double left = style.anchor == Anchor::kStart ? x : style.anchor == Anchor::kEnd ? x - width : x - width / 2;
  return {left, y - 0.8 * style.size, width, 1.05 * style.size};
}

bool Canvas::is_free(const Box& box) const {
  return std::ranges::none_of(words_, [&](const Box& words) { return words.overlaps(box); });
}

std::string document_head(double width, double height) {
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:g}\" height=\"{1:g}\" viewBox=\"0 0 {0:g} {1:g}\" "
      "font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\">\n"
      "<rect width=\"{0:g}\" height=\"{1:g}\" fill=\"#ffffff\"/>\n",
      width, height);
}

std::string Canvas::document(double width, double height, std::string_view title) const {
  return document_head(width, height) + fmt::format("<title>{}</title>\n", escaped(title)) + elements_ + "</svg>\n";
}

Status write_document(const std::string& path, const std::string& document) {
  const std::string why = why_unwritten(path, document);
  return why.empty() ? Status() : error(Code::kSystem, fmt::format("write {}: {}", path, why));
}

}  // namespace tutti::plot
