#include "trainer/summary.h"

#include "base/standard_output.h"
#include "trainer/random.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <numbers>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::trainer {
namespace {

constexpr std::size_t kSampleBytes = 400;
constexpr std::size_t kLineBytes = 100;  ///< of a line as it is shown
constexpr double kTemperature = 0.7;

/// In one line, with what a terminal must not get as dots.
std::string for_terminal(std::string_view bytes) {
  std::string shown;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\t') {
      shown += "    ";
    } else if (c == '\n') {
      shown += "\\n";
    } else {
      shown += byte >= 0x20 && byte < 0x7f ? c : '.';
    }
  }
  return shown;
}

/// Its lines, and behind colons what is too long for one: nothing of the text is left out.
std::string paragraphs_for_terminal(std::string_view bytes) {
  std::string shown;
  for (;;) {
    const std::size_t end = bytes.find('\n');
    std::string line = for_terminal(bytes.substr(0, end));
    const char* mark = "  | ";
    while (line.size() > kLineBytes) {
      const std::size_t blank = line.rfind(' ', kLineBytes - 1);
      const std::size_t rest = blank == std::string::npos ? kLineBytes : blank + 1;
      shown += mark + line.substr(0, rest) + "\n";
      line.erase(0, rest);
      mark = "  : ";
    }
    shown += mark + line + "\n";
    if (end == std::string_view::npos) return shown;
    bytes.remove_prefix(end + 1);
  }
}

/// What stands before the first word after the middle of the text.
std::string prompt_from_middle(const std::vector<std::uint8_t>& bytes, std::size_t context) {
  std::size_t end = std::max(bytes.size() / 2, context);
  const auto starts_word = [&](std::size_t at) { return bytes[at - 1] == ' ' && bytes[at] > ' '; };
  while (end + 1 < bytes.size() && !starts_word(end)) ++end;
  return {bytes.begin() + static_cast<std::ptrdiff_t>(end - context), bytes.begin() + static_cast<std::ptrdiff_t>(end)};
}

}  // namespace

void print_image_summary(const HeldOut& held_out, double seconds) {
  say("\ntrained in {:.1f} s\n", seconds);
  if (held_out.samples == 0) {
    say("nothing was held out (--holdout 0, or too few images), so the accuracy on unseen images is unknown\n");
  } else {
    say("held-out loss: {:.4f} on {} images\n", held_out.loss, held_out.samples);
    say("held-out accuracy: {:.4f}\n", held_out.accuracy);
  }
  std::fflush(stdout);
}

Problem print_text_summary(const HeldOut& held_out, double seconds, const TextDataset& dataset, LanguageModel& model,
                           const float* parameters, std::uint64_t seed) {
  const auto& bytes = dataset.text().bytes;
  say("\ntrained in {:.1f} s\n", seconds);
  if (held_out.samples == 0) {
    say("nothing was held out (--holdout 0, or too little text), so the loss on unseen text is unknown\n");
  } else {
    say("held-out loss: {:.3f} bits per byte on {} bytes; knowing only how often each byte occurs: {:.3f}\n",
        held_out.loss / std::numbers::ln2, held_out.samples, unigram_bits(bytes));
    say("held-out accuracy: {:.4f} (next byte guessed)\n", held_out.accuracy);
  }
  Random random(seed);
  const std::string prompt = prompt_from_middle(bytes, dataset.context());
  const auto text = model.sample(parameters, prompt, kSampleBytes, kTemperature, random);
  if (!text) return text.failure();
  say("\nthe model goes on from \"{}\" (behind a colon: the rest of a line too long to show):\n{}",
      for_terminal(prompt), paragraphs_for_terminal(*text));
  std::fflush(stdout);
  return {};
}

}  // namespace tutti::trainer
