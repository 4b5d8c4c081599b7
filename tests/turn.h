// Long tests try a share of their cases, others after each commit: which of them, TEST_TURN says, as `meson test` gives it. All of them without
// it, or where the environment has TEST_ALL=1, as in `.ci/run --thorough`.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <string_view>

namespace tutti::test {

/// Whether it is the turn of case `number`, of those of which one in `share` is tried at a time.
inline bool has_its_turn(std::size_t number, std::size_t share) {
  const char* const all = std::getenv("TEST_ALL");
  const char* const turn = std::getenv("TEST_TURN");
  if (turn == nullptr || (all != nullptr && std::string_view(all) == "1")) return true;
  return number % share == std::strtoull(turn, nullptr, 10) % share;
}

}  // namespace tutti::test
