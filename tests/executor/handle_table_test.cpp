#include "executor/handle_table.h"

#include <catch2/catch.hpp>

#include <random>
#include <set>

using tutti::executor::HandleTable;

namespace {
using Table = HandleTable<int, 0x11>;
using OtherTable = HandleTable<int, 0x12>;
}  // namespace

TEST_CASE("a handle finds its object until it is removed") {
  Table table;
  void* first = table.insert(std::make_shared<int>(1));
  void* second = table.insert(std::make_shared<int>(2));
  REQUIRE(first != second);
  CHECK(*table.find(first) == 1);
  CHECK(*table.find(second) == 2);
  CHECK(*table.remove(first) == 1);
  CHECK(table.find(first) == nullptr);
  CHECK(table.remove(first) == nullptr);
  CHECK(*table.find(second) == 2);
}

TEST_CASE("a slot that is used again does not revive the old handle") {
  Table table;
  std::set<void*> seen;
  for (int i = 0; i < 1000; ++i) {
    void* handle = table.insert(std::make_shared<int>(i));
    CHECK(seen.insert(handle).second);
    for (void* old : seen)
      if (old != handle) REQUIRE(table.find(old) == nullptr);
    REQUIRE(*table.remove(handle) == i);
  }
}

TEST_CASE("anything else is recognised as no handle") {
  Table table;
  OtherTable other;
  void* handle = table.insert(std::make_shared<int>(7));
  void* foreign = other.insert(std::make_shared<int>(8));
  CHECK(table.find(foreign) == nullptr);
  CHECK(other.find(handle) == nullptr);
  int on_stack = 0;
  auto on_heap = std::make_unique<int>(0);
  for (void* pointer : {static_cast<void*>(nullptr), static_cast<void*>(&on_stack), static_cast<void*>(on_heap.get()),
                        reinterpret_cast<void*>(1), reinterpret_cast<void*>(2), reinterpret_cast<void*>(~0ull)})
    CHECK(table.find(pointer) == nullptr);
  const unsigned seed = 20240607;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 100000; ++i) {
    void* pointer = reinterpret_cast<void*>(random());
    if (pointer != handle) REQUIRE(table.find(pointer) == nullptr);
  }
  CHECK(*table.find(handle) == 7);
}
