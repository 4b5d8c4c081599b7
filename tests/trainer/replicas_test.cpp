// The replicas' communication, with the ranks as threads of this process.
#include "trainer/replicas.h"
#include "trainer/host_backend.h"
#include "trainer/parameter_hash.h"

#include <catch2/catch.hpp>

#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace tutti::trainer;

namespace {

/// Runs `body` on every rank and returns what it said, "" for no problem. Catch2's checks are not for threads.
std::vector<std::string> on_ranks(int size, const std::function<Problem(Replicas&, Backend&)>& body) {
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  std::vector<std::string> messages(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      auto& message = messages[static_cast<std::size_t>(rank)];
      const auto backend = std::move(*HostBackend::make());
      auto replicas = Replicas::join(rank, size, id, *backend);
      if (!replicas) {
        message = "join: " + replicas.failure().message;
      } else if (const auto problem = body(*replicas, *backend)) {
        message = problem->message;
      } else if (const auto late = replicas->leave()) {
        message = late->message;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return messages;
}

using Catch::Contains;

}  // namespace

TEST_CASE("equal replicas pass the comparison") {
  for (const int size : {1, 2, 3}) {
    const auto messages =
        on_ranks(size, [](Replicas& replicas, Backend&) { return compare_replicas(replicas, 0x1234567890abcdefull); });
    for (const auto& message : messages) CHECK(message == "");
  }
}

TEST_CASE("replicas that differ fail on every rank, and the odd ones are named") {
  const auto messages = on_ranks(4, [](Replicas& replicas, Backend&) {
    std::vector<float> parameters{1.0f, 2.0f, 3.0f};
    if (replicas.rank() == 2) parameters[1] = 2.0000002f;
    return compare_replicas(replicas, hash_parameters(parameters));
  });
  for (const auto& message : messages) {
    CHECK_THAT(message, Contains("rank 2") && Contains("against 3 others") && !Contains("rank 1"));
  }
}

TEST_CASE("sums are left folds in rank order, whatever the size") {
  constexpr int kSize = 3;
  // (1e8 + 1) - 1e8 is 0 in float32, 1e8 - 1e8 + 1 is 1: another order shows.
  for (const std::size_t count : {1, 63, 5000, 300000}) {
    const auto messages = on_ranks(kSize, [&](Replicas& replicas, Backend& backend) -> Problem {
      auto values = backend.shared_zeros<float>(count);
      const float of_rank[kSize] = {1e8f, 1.0f, -1e8f};
      for (std::size_t i = 0; i < count; ++i) {
        values.data()[i] = of_rank[(static_cast<std::size_t>(replicas.rank()) + i) % kSize];
      }
      if (auto problem = replicas.start_sum(values.data(), count)) return problem;
      if (auto problem = replicas.wait()) return problem;
      for (std::size_t i = 0; i < count; ++i) {
        const volatile float first = of_rank[i % kSize] + of_rank[(i + 1) % kSize];
        const float expected = first + of_rank[(i + 2) % kSize];
        if (values.data()[i] != expected) {
          return Failure{"element " + std::to_string(i) + " is " + std::to_string(values.data()[i]) + ", not " +
                         std::to_string(expected)};
        }
      }
      return {};
    });
    for (const auto& message : messages) CHECK(message == "");
  }
}

TEST_CASE("a rank that gives up ends the others' wait") {
  const auto messages = on_ranks(3, [](Replicas& replicas, Backend&) -> Problem {
    if (replicas.rank() == 1) {
      return Failure{"a failure of its own"};  // and no leave()
    }
    std::vector<float> values(1000, 1.0f);
    if (auto problem = replicas.start_sum(values.data(), values.size())) return problem;
    return replicas.wait();
  });
  CHECK(messages[1] == "a failure of its own");
  CHECK_THAT(messages[0], Contains("rank 1"));
  CHECK_THAT(messages[2], Contains("rank 1"));
}
