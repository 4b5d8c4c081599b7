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

/// A number from the environment; 0 without it.
inline std::size_t number_in(const char* variable) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 0;
}

/// Whether it is the turn of a program's test case `number`, of which one in `share` is run at a time (main.cpp).
inline bool case_has_its_turn(std::size_t number, std::size_t share) {
  return !is_in_turns() || number % share == number_in("TEST_TURN") % share;
}

/// Which of `share` turns it is; the first, where there are none. Of a test case that is run at every Nth turn only, each time the next one: with
/// remainders of one number for both, some would never come.
inline std::size_t turn_of(std::size_t share) {
  const std::size_t share_of_cases = number_in("TEST_TURN_OF_CASES");
  return is_in_turns() ? number_in("TEST_TURN") / (share_of_cases != 0 ? share_of_cases : 1) % share : 0;
}

/// Whether it is the turn of case `number`, of those of which one in `share` is tried at a time.
inline bool has_its_turn(std::size_t number, std::size_t share) {
  return !is_in_turns() || number % share == turn_of(share);
}

}  // namespace tutti::test
