// Fibers keep their own stacks, take turns as they are told, and can be used again.
#include "sim/fiber.h"

#include <catch2/catch.hpp>

#include <string>
#include <vector>

using tutti::sim::Fiber;

namespace {

struct Talker {
  Fiber fiber;
  std::string* text = nullptr;
  char letter = 'a';
};

void talk(void* argument) {
  auto& talker = *static_cast<Talker*>(argument);
  // Something on the stack that must survive, with a destructor that must run.
  const std::vector<char> letters(1000, talker.letter);
  for (int i = 0; i < 3; ++i) {
    *talker.text += letters[static_cast<std::size_t>(i) * 300];
    talker.fiber.suspend();
  }
  *talker.text += '.';
}

}  // namespace

TEST_CASE("fibers take turns and can be used again", "[fiber]") {
  std::string text;
  Talker a;
  Talker b;
  a.text = b.text = &text;
  b.letter = 'b';
  for (int round = 0; round < 3; ++round) {
    a.fiber.start(talk, &a);
    b.fiber.start(talk, &b);
    while (!a.fiber.ended() || !b.fiber.ended()) {
      if (!a.fiber.ended()) a.fiber.resume();
      if (!b.fiber.ended()) b.fiber.resume();
    }
  }
  CHECK(text == "ababab..ababab..ababab..");
}
