// Each sample once per epoch, and each sample of a batch on one rank.
#include "trainer/sharding.h"

#include <catch2/catch.hpp>

#include <algorithm>

using namespace tutti::trainer;

namespace {

SampleIds sorted(SampleIds ids) {
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace

TEST_CASE("the parts of a batch are the batch, in order, and sizes differ by one at most") {
  for (std::size_t samples = 0; samples <= 40; ++samples) {
    const SampleIds batch = shuffled(samples, samples);
    for (std::size_t parts = 1; parts <= 17; ++parts) {
      INFO(samples << " samples, " << parts << " parts");
      SampleIds joined;
      for (std::size_t p = 0; p < parts; ++p) {
        const auto part = shard(batch, p, parts);
        REQUIRE(part.size() >= samples / parts);
        REQUIRE(part.size() <= (samples + parts - 1) / parts);
        joined.insert(joined.end(), part.begin(), part.end());
      }
      REQUIRE(joined == batch);
    }
  }
}

TEST_CASE("an epoch has each sample once, the last batch what is left") {
  const SampleIds samples{3, 5, 7, 11, 13, 17, 19, 23, 29, 31};
  BatchOrder order(samples, 4, 42);
  REQUIRE(order.batches_per_epoch() == 3);
  SampleIds epochs[2];
  for (auto& epoch : epochs) {
    for (const std::size_t expected : {4, 4, 2}) {
      const auto batch = order.next();
      REQUIRE(batch.size() == expected);
      epoch.insert(epoch.end(), batch.begin(), batch.end());
    }
    CHECK(sorted(epoch) == samples);
  }
  CHECK(epochs[0] != epochs[1]);
}

TEST_CASE("the order depends on the seed alone") {
  CHECK(shuffled(100, 1) == shuffled(100, 1));
  CHECK(shuffled(100, 1) != shuffled(100, 2));
  CHECK(sorted(shuffled(100, 1)) == sorted(shuffled(100, 2)));
  CHECK(shuffled(0, 1).empty());
}

TEST_CASE("a batch larger than the data is the data") {
  const SampleIds samples{1, 2, 3};
  BatchOrder order(samples, 100, 1);
  CHECK(order.batches_per_epoch() == 1);
  const auto batch = order.next();
  CHECK(sorted({batch.begin(), batch.end()}) == samples);
}
