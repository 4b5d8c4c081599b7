#include "transport/address_table.h"

#include <catch2/catch.hpp>

#include <atomic>
#include <map>
#include <random>
#include <thread>
#include <vector>

using tutti::transport::AddressTable;

namespace {

/// Every field follows from the start, so that a mixture of two segments is recognised.
AddressTable::Segment segment_at(std::uintptr_t start) {
  return {.start = start,
          .bytes = 0x1000 + start % 7,
          .file = start * 3,
          .number = static_cast<std::uint32_t>(start >> 16),
          .fd = static_cast<std::int32_t>(start >> 20)};
}

}  // namespace

TEST_CASE("ranges are found when they lie inside one segment") {
  AddressTable table;
  CHECK_FALSE(table.find(0x5000, 1));
  table.insert({.start = 0x5000, .bytes = 0x1000, .file = 5, .number = 1, .fd = 10});
  table.insert({.start = 0x6000, .bytes = 0x2000, .file = 6, .number = 2, .fd = 11});
  const auto found = table.find(0x6010, 0x1ff0);
  REQUIRE(found);
  CHECK(found->offset == 0x10);
  CHECK(found->bytes == 0x2000);
  CHECK(found->file == 6);
  CHECK(found->segment == 2);
  CHECK(found->fd == 11);
  CHECK(table.find(0x5000, 0x1000));
  CHECK(table.find(0x5fff, 1));
  CHECK(table.find(0x5fff, 0));
  CHECK_FALSE(table.find(0x4fff, 1));
  CHECK_FALSE(table.find(0x4fff, 0x10));
  CHECK_FALSE(table.find(0x5fff, 2));  // runs into the next segment
  CHECK_FALSE(table.find(0x6010, 0x1ff1));
  CHECK_FALSE(table.find(0x8000, 0));
  CHECK_FALSE(table.find(0x6010, ~0ull));  // no overflow
  CHECK_FALSE(table.find(~std::uintptr_t{0}, 1));
}

TEST_CASE("a random history agrees with a map") {
  const unsigned seed = 7;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  AddressTable table;
  std::map<std::uintptr_t, AddressTable::Segment> model;
  for (int i = 0; i < 20000; ++i) {
    const std::uintptr_t start = (1 + random() % 300) << 16;
    if (random() % 2 && !model.count(start)) {
      table.insert(segment_at(start));
      model[start] = segment_at(start);
    } else {
      const auto removed = table.remove(start);
      REQUIRE(removed.has_value() == (model.erase(start) == 1));
      if (removed) REQUIRE(removed->file == start * 3);
    }
    const std::uintptr_t address = ((random() % 302) << 16) + random() % 0x1100;
    const auto found = table.find(address, 1);
    auto above = model.upper_bound(address);
    const bool expected = above != model.begin() && (--above, address - above->first < above->second.bytes);
    REQUIRE(found.has_value() == expected);
    if (expected) REQUIRE(found->offset == address - above->first);
  }
}

TEST_CASE("readers never see a mixture while segments come and go") {
  AddressTable table;
  const std::uintptr_t fixed = std::uintptr_t{500} << 16;
  table.insert(segment_at(fixed));
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::atomic<int> readers_ready{0};
  std::vector<std::thread> readers;
  for (int t = 0; t < 2; ++t)
    readers.emplace_back([&, t] {
      std::mt19937 random(t);
      ++readers_ready;
      while (!stop) {
        const auto always = table.find(fixed + 100, 8);
        if (!always || always->file != fixed * 3 || always->offset != 100) ++wrong;
        const std::uintptr_t start = (1 + random() % 1000) << 16;
        const auto found = table.find(start + 1, 8);
        const auto expected = segment_at(start);
        if (found && (found->file != expected.file || found->bytes != expected.bytes || found->offset != 1 ||
                      found->segment != expected.number || found->fd != expected.fd))
          ++wrong;
      }
    });
  while (readers_ready < 2) std::this_thread::yield();
  for (int round = 0; round < 20; ++round) {
    for (std::uintptr_t i = 1; i <= 100; ++i)
      if (i != 50) table.insert(segment_at((i * 10) << 16));
    for (std::uintptr_t i = 1; i <= 100; ++i)
      if (i != 50) REQUIRE(table.remove((i * 10) << 16));
  }
  stop = true;
  for (auto& reader : readers) reader.join();
  CHECK(wrong == 0);
}
