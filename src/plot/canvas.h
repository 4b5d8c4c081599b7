// SVG elements, one after the other, into one document: what charts and drawings are made of. The same calls give the same
// bytes. Text from anywhere is made fit for XML here, and only here.
#pragma once

#include "base/result.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::plot {

struct Box {
  double left = 0;
  double top = 0;
  double width = 0;
  double height = 0;

  double right() const { return left + width; }
  double bottom() const { return top + height; }
  double middle() const { return top + height / 2; }
  bool overlaps(const Box& other) const {
    return left < other.right() && other.left < right() && top < other.bottom() && other.top < bottom();
  }
};

/// Of series, in order; of words; of what is beside the point.
inline constexpr const char* kColours[] = {"#2563eb", "#dc2626", "#059669", "#d97706",
                                           "#7c3aed", "#0891b2", "#be185d", "#4d7c0f"};
inline constexpr const char* kInk = "#1f2937";
inline constexpr const char* kFaint = "#6b7280";

enum class Anchor : std::uint8_t { kStart, kMiddle, kEnd };

struct TextStyle {
  double size = 12;
  const char* colour = kInk;
  Anchor anchor = Anchor::kStart;
  bool bold = false;
};

/// Lines and outlines. Without colour: none.
struct Stroke {
  const char* colour = nullptr;
  double width = 1;
  bool dashed = false;
  double opacity = 1;
};

/// What a viewer needs for the words at most, in whatever sans-serif font it has: widths are those of a wide one.
double text_width(std::string_view words, double size, bool bold = false);
/// The words, cut with an ellipsis where they need more than `width`.
std::string fitted(std::string_view words, double size, double width, bool bold = false);
/// Lines of at most `width`, broken between words; a word that is longer is cut.
std::vector<std::string> wrapped(std::string_view words, double size, double width);

class Canvas {
 public:
  void rectangle(const Box& box, const char* fill, const Stroke& stroke = {}, double radius = 0);
  void line(double x1, double y1, double x2, double y2, const Stroke& stroke);
  /// `path`: an SVG path.
  void path(std::string_view path, const Stroke& stroke);
  void circle(double x, double y, double radius, const char* fill, const Stroke& stroke = {});
  /// y: of the base line.
  void text(double x, double y, std::string_view words, const TextStyle& style);
  /// The same on white, so that lines under it do not cross the words.
  void label(double x, double y, std::string_view words, const TextStyle& style);

  /// Where words would be.
  static Box extent(double x, double y, std::string_view words, const TextStyle& style);
  /// Whether no words are there yet.
  bool is_free(const Box& box) const;

  /// A whole document of this size on white. `title` is what readers of the screen say.
  std::string document(double width, double height, std::string_view title) const;

 private:
  std::string elements_;
  std::vector<Box> words_;
};

/// Fit for XML: &, <, > and quotes escaped; control characters as blanks, what is no UTF-8 as U+FFFD.
std::string escaped(std::string_view text);
/// In pixels; two decimals are a hundredth of one.
std::string coordinate(double value);
/// The beginning of a document, up to its first element.
std::string document_head(double width, double height);
/// Writes a document to a file, all of it or nothing; kSystem where that fails.
Status write_document(const std::string& path, const std::string& document);

}  // namespace tutti::plot
