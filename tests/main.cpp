// Catch2's main(), for which some tests take turns: with TEST_TURN_OF_CASES=N, as `meson test` gives it in sanitizer builds to long tests of many
// cases, one in N of the chosen test cases is run (turn.h).
#define CATCH_CONFIG_RUNNER
#include "turn.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

/// A name as a test spec that only it matches.
std::string exactly(const std::string& name) {
  std::string spec;
  for (const char c : name) {
    if (std::strchr("\\,[]\"*", c) != nullptr) spec += '\\';
    spec += c;
  }
  return '"' + spec + '"';
}

std::string of_this_turn(const Catch::Config& config, std::size_t share) {
  const auto tests = Catch::filterTests(Catch::getAllTestCasesSorted(config), config.testSpec(), config);
  share = std::min(share, tests.size());  // of few cases too, one has its turn
  std::string spec;
  std::size_t number = 0;
  for (const Catch::TestCase& test : tests) {
    if (!tutti::test::case_has_its_turn(number++, share)) continue;
    spec += (spec.empty() ? "" : ",") + exactly(test.name);
    std::printf("has its turn: %s\n", test.name.c_str());
  }
  return spec;
}

}  // namespace

int main(int count, char** arguments) {
  Catch::Session session;
  if (const int wrong = session.applyCommandLine(count, arguments); wrong != 0) return wrong;
  const char* const share = std::getenv("TEST_TURN_OF_CASES");
  if (share != nullptr) {
    Catch::ConfigData chosen = session.configData();
    // '-#', of which a session thinks only as it runs.
    if (chosen.filenamesAsTags) Catch::applyFilenamesAsTags(session.config());
    chosen.filenamesAsTags = false;
    const std::string spec = of_this_turn(session.config(), std::strtoull(share, nullptr, 10));
    if (!spec.empty()) chosen.testsOrTags = {spec};
    session.useConfigData(chosen);
  }
  // Not the number of what has failed: 3, 77 or 124 of it would mean something else to who runs this.
  return session.run() == 0 ? 0 : 1;
}
