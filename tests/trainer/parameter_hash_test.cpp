// The hash of the replicas' parameters, and who differs.
#include "trainer/parameter_hash.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <utility>

using namespace tutti::trainer;

TEST_CASE("every bit and every place counts") {
  std::vector<float> parameters;
  for (int i = 0; i < 100; ++i) parameters.push_back(0.25f * static_cast<float>(i - 50));
  const std::uint64_t hash = hash_parameters(parameters);
  CHECK(hash == hash_parameters(parameters));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto changed = parameters;
    changed[i] = std::nextafter(changed[i], 1e9f);
    CHECK(hash_parameters(changed) != hash);
    if (i == 0) continue;
    changed = parameters;
    std::swap(changed[i], changed[i - 1]);
    CHECK(hash_parameters(changed) != hash);
  }
  const std::vector<float> zero{0.0f}, minus_zero{-0.0f}, zeros{0.0f, 0.0f};
  CHECK(hash_parameters(zero) != hash_parameters(minus_zero));
  CHECK(hash_parameters(zero) != hash_parameters(zeros));
}

TEST_CASE("those that differ from the majority are named") {
  using Odd = std::vector<std::size_t>;
  CHECK(odd_ones_out({5}) == Odd{});
  CHECK(odd_ones_out({5, 5, 5, 5}) == Odd{});
  CHECK(odd_ones_out({5, 5, 6, 5}) == Odd{2});
  CHECK(odd_ones_out({6, 5, 5, 7}) == Odd{0, 3});
  CHECK(odd_ones_out({5, 6}) == Odd{1});
}
