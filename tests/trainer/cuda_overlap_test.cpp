// Gradients are summed while the backward pass goes on: what streams are given in a step, in which order, and what waits for what.
#include "trainer/buckets.h"
#include "trainer/cuda/cuda_backend.h"
#include "trainer/language_model.h"
#include "trainer/trainer.h"

#include "fake_driver.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

using namespace tutti::trainer;
using fake_driver::Given;

namespace {

constexpr int kRanks = 2;

TextDataset text() {
  Text made;
  for (int i = 0; i < 400; ++i) made.bytes.push_back(static_cast<std::uint8_t>("the sum of "[i % 11]));
  made.file_count = 1;
  return std::move(*TextDataset::split(std::move(made), 3, 0.1));
}

/// One step of one rank, with a bucket for each tensor. How many there are.
Outcome<std::size_t> train(int rank, const ncclUniqueId& id) {
  const TextDataset dataset = text();
  Options options;
  options.context = 3;
  options.batch = 16;
  options.steps = 1;
  options.check_every = 1;
  options.lr = 0.01;
  options.bucket_mb = 1e-6;
  options.device = DeviceKind::kCuda;
  auto backend = make_cuda_backend(0);
  if (!backend) return backend.failure();
  LanguageModel model(**backend, 3, 2, {5, 4});
  auto replicas = Replicas::join(rank, kRanks, id, **backend);
  if (!replicas) return replicas.failure();
  auto trainer = Trainer::make(options, dataset, **backend, model, *replicas);
  if (!trainer) return trainer.failure();
  if (auto problem = (*trainer)->run(nullptr)) return *problem;
  if (auto problem = replicas->leave()) return *problem;
  return model.layout().tensors().size();
}

/// What comes before what, whatever the device does: by the order on each stream, and by events.
class Order {
 public:
  explicit Order(const std::vector<Given>& given) : given_(given), before_(given.size()) {
    for (std::size_t i = 0; i < given.size(); ++i) {
      before_[i].assign(given.size(), false);
      for (std::size_t k = i; k-- > 0;) {
        if (given[k].stream == given[i].stream) {
          add(i, k);
          break;
        }
      }
      if (given[i].record) add(i, *given[i].record);
    }
  }
  bool is_before(std::size_t first, std::size_t second) const { return before_[second][first]; }
  /// Places in (from, to) of what `stream` was given; nullptr: any.
  std::vector<std::size_t> find(Given::What what, CUstream stream, const std::string& kernel, std::size_t from,
                                std::size_t to) const {
    std::vector<std::size_t> found;
    for (std::size_t i = from; i < to; ++i) {
      const Given& one = given_[i];
      if (one.what != what || (stream != nullptr && one.stream != stream)) continue;
      if (one.kernel.starts_with(kernel)) found.push_back(i);
    }
    return found;
  }

 private:
  void add(std::size_t later, std::size_t earlier) {
    before_[later][earlier] = true;
    for (std::size_t i = 0; i < earlier; ++i) {
      if (before_[earlier][i]) before_[later][i] = true;
    }
  }
  const std::vector<Given>& given_;
  std::vector<std::vector<bool>> before_;
};

}  // namespace

TEST_CASE(
    "cuda: each bucket's sum is on its way before the layers below are worked on, and the optimiser waits for all") {
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  fake_driver::note_given();
  std::vector<std::string> problems(kRanks);
  std::vector<std::size_t> tensors(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto trained = train(rank, id);
      if (trained) tensors[static_cast<std::size_t>(rank)] = *trained;
      if (!trained) problems[static_cast<std::size_t>(rank)] = trained.failure().message;
    });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(problems == std::vector<std::string>(kRanks));
  const std::vector<Given> given = fake_driver::given();
  const Order order(given);
  using What = Given::What;
  const auto steps = order.find(What::kKernel, nullptr, "tutti_train_adam", 0, given.size());
  REQUIRE(steps.size() == kRanks);
  for (const std::size_t step : steps) {
    const CUstream computing = given[step].stream;
    const auto losses = order.find(What::kKernel, computing, "tutti_train_softmax_rows", 0, step);
    REQUIRE(losses.size() == 1);
    const std::size_t loss = losses[0];
    const auto kernels = order.find(What::kKernel, computing, "", loss, step + 1);
    // A sum for each tensor and one for the loss, and the event that each begins with; the last event is for the time.
    const auto sums = order.find(What::kKernel, nullptr, "tutti_fold", loss, step);
    const auto ready = order.find(What::kRecord, computing, "", loss, step);
    const std::size_t count = tensors[0] + 1;
    REQUIRE(sums.size() == count);
    REQUIRE(ready.size() == count + 1);
    std::size_t overlapped = 0;
    for (std::size_t k = 0; k < count; ++k) {
      CAPTURE(k, count);
      const auto next = std::ranges::upper_bound(kernels, ready[k]);
      REQUIRE(next != kernels.begin());
      REQUIRE(next != kernels.end());
      CHECK(order.is_before(*(next - 1), sums[k]));  // the gradients are there
      CHECK(sums[k] < *next);                        // it is on its stream first ...
      for (auto later = next; later != kernels.end() && *later != step; ++later) {
        CHECK_FALSE(order.is_before(sums[k], *later));  // ... and nothing of the pass waits for it
        ++overlapped;
      }
      CHECK(order.is_before(sums[k], step));
    }
    CHECK(overlapped > count);
  }
}
