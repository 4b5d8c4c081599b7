// Gradient buckets: every float travels once, from the last layer to the first, as soon as its bucket is full.
#include "trainer/buckets.h"

#include <catch2/catch.hpp>

using namespace tutti::trainer;

namespace {

Layout layout_of(const std::vector<std::size_t>& counts) {
  Layout layout;
  for (const auto count : counts) layout.add("tensor", count);
  return layout;
}

}  // namespace

TEST_CASE("tensors start on cache lines") {
  const Layout layout = layout_of({1, 16, 17, 5});
  CHECK(layout[1].offset == 16);
  CHECK(layout[2].offset == 32);
  CHECK(layout[3].offset == 64);
  CHECK(layout.size() == 80);
  CHECK(layout.parameter_count() == 39);
}

TEST_CASE("the buckets cover the array from its end, whatever their size") {
  const Layout layout = layout_of({1000, 10, 300, 10, 50, 7});
  for (const std::size_t bytes : {0, 1, 64, 500, 1300, 4000, 100000}) {
    INFO("buckets of " << bytes << " bytes");
    GradientBuckets buckets(layout, bytes);
    for (int pass = 0; pass < 2; ++pass) {
      buckets.begin();
      std::size_t end = layout.size();
      for (std::size_t t = layout.tensors().size(); t-- > 0;) {
        const auto range = buckets.ready(t);
        if (!range) continue;
        REQUIRE(range->offset + range->count == end);
        REQUIRE(range->offset == layout[t].offset);
        // Full, or the last one.
        REQUIRE((range->count * sizeof(float) >= bytes || t == 0));
        end = range->offset;
      }
      REQUIRE(end == 0);
    }
  }
  CHECK(GradientBuckets(layout, 0).ranges().size() == 6);
  CHECK(GradientBuckets(layout, 100000).ranges().size() == 1);
}
