// Long tests try a share of their cases, others after each commit: which of them, TEST_TURN says, as `meson test` gives it. All of them without
// it, or where the environment has TEST_ALL=1, as in `.ci/run --thorough`.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <string_view>

namespace tutti::test {

/// Whether cases take turns at all.
inline bool is_in_turns() {
  const char* const all = std::getenv("TEST_ALL");
  return std::getenv("TEST_TURN") != nullptr && (all == nullptr || std::string_view(all) != "1");
}

/// Which of `share` turns it is; the first, where there are none.
inline std::size_t turn_of(std::size_t share) {
  return is_in_turns() ? std::strtoull(std::getenv("TEST_TURN"), nullptr, 10) % share : 0;
}

/// Whether it is the turn of case `number`, of those of which one in `share` is tried at a time.
inline bool has_its_turn(std::size_t number, std::size_t share) {
  return !is_in_turns() || number % share == turn_of(share);
}

}  // namespace tutti::test
