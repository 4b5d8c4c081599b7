// Every CUDA call of a short training fails once: the rank says which one, and leaves nothing.
#include "trainer/buckets.h"
#include "trainer/cuda/cuda_backend.h"
#include "trainer/language_model.h"
#include "trainer/trainer.h"

#include "fake_driver.h"
#include "turn.h"

#include <catch2/catch.hpp>

#include <set>
#include <string>

using namespace tutti::trainer;

namespace {

/// Of how many calls one fails at a time. With a sanitizer the fibers of the fake driver's kernels take a system call per switch.
#ifdef __SANITIZE_ADDRESS__
constexpr std::size_t kShare = 40;
#else
constexpr std::size_t kShare = 8;
#endif

TextDataset text() {
  Text made;
  for (int i = 0; i < 400; ++i) made.bytes.push_back(static_cast<std::uint8_t>("the sum of "[i % 11]));
  made.file_count = 1;
  return std::move(*TextDataset::split(std::move(made), 3, 0.1));
}

/// CUDA calls before the end began.
std::uint64_t calls_of_work = 0;

Problem train(const TextDataset& dataset) {
  Options options;
  options.context = 3;
  options.batch = 16;
  options.steps = 2;
  options.accumulate = 2;
  options.check_every = 2;
  options.lr = 0.01;
  options.device = DeviceKind::kCuda;
  ncclUniqueId id;
  if (ncclGetUniqueId(&id) != ncclSuccess) return Failure{ncclGetLastError(nullptr)};
  auto backend = make_cuda_backend(0);
  if (!backend) return backend.failure();
  LanguageModel model(**backend, 3, 2, {5});
  auto replicas = Replicas::join(0, 1, id, **backend);
  if (!replicas) return replicas.failure();
  auto trainer = Trainer::make(options, dataset, **backend, model, *replicas);
  if (!trainer) return trainer.failure();
  if (auto problem = (*trainer)->run(nullptr)) return problem;
  const auto held_out = (*trainer)->evaluate_held_out();
  if (!held_out) return held_out.failure();
  Random random(1);
  const auto sample = model.sample((*trainer)->parameters(), "the", 2, 0.7, random);
  if (!sample) return sample.failure();
  calls_of_work = fake_driver::calls();
  return replicas->leave();
}

}  // namespace

TEST_CASE("cuda: every CUDA call fails once, and nothing is left") {
  const TextDataset dataset = text();
  const auto message = [](const Problem& problem) { return problem ? problem->message : ""; };
  REQUIRE(message(train(dataset)) == "");  // the driver is open now
  const fake_driver::Live before = fake_driver::live();
  fake_driver::set_counting(true);
  const std::uint64_t start = fake_driver::calls();
  REQUIRE(message(train(dataset)) == "");
  const std::uint64_t total = fake_driver::calls() - start;
  const std::uint64_t work = calls_of_work - start;
  REQUIRE(total > 100);
  std::set<std::string> failed;
  for (std::uint64_t k = 1; k <= total; ++k) {
    if (!tutti::test::has_its_turn(k, kShare)) continue;
    fake_driver::fail_after(k, CUDA_ERROR_OUT_OF_MEMORY);
    const std::string said = message(train(dataset));
    const std::string function = fake_driver::failed_function();
    fake_driver::fail_after(0, CUDA_SUCCESS);
    failed.insert(function);
    CAPTURE(k, total, function, said);
    // What only ends something may go unreported.
    bool ends = k > work;
    for (const char* word : {"Free", "Destroy", "Release", "Unload", "Pop", "ExchangeStream", "EventQuery"}) {
      ends = ends || function.find(word) != std::string::npos;
    }
    if (!ends) {
      CHECK_THAT(said,
                 Catch::Contains(function) || Catch::Contains("CUDA_ERROR_OUT_OF_MEMORY") || Catch::Contains("cublas"));
    }
    const fake_driver::Live after = fake_driver::live();
    INFO("before " << fake_driver::describe(before) << "\nafter  " << fake_driver::describe(after));
    REQUIRE(after == before);
  }
  CHECK(failed.size() > 40 / kShare);
  CHECK(message(train(dataset)) == "");
  fake_driver::set_counting(false);
  CHECK(fake_driver::live() == before);
}
