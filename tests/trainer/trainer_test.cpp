// The training loop on a model that has no samples to learn from.
#include "trainer/trainer.h"
#include "trainer/host_backend.h"

#include <catch2/catch.hpp>

#include <limits>
#include <string>
#include <utility>

using namespace tutti::trainer;

namespace {

/// One parameter. Its loss is finite whatever becomes of that, as ReLU makes zeros of NaNs.
class OneParameter : public Model {
 public:
  OneParameter(Backend& backend, float gradient) : Model(backend), gradient_(gradient) { layout_.add("one", 1); }
  std::string describe() const override { return "one parameter"; }
  void initialise(float*, Random&) const override {}
  void evaluate(const float*, const PlacedBatch&, LossSums* sums) override { sums->loss += 1; }
  void forward_backward(const float* parameters, const PlacedBatch& batch, float* gradients, const GradientReady& ready,
                        LossSums* sums) override {
    evaluate(parameters, batch, sums);
    gradients[0] = gradient_;
    ready(0);
  }

 private:
  float gradient_;
};

/// What a run of three steps on one rank says, "" for no problem.
std::string trained(float gradient) {
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  const auto backend = std::move(*HostBackend::make());
  const auto dataset = TextDataset::split({.bytes = {1, 2, 3, 4}, .file_count = 1}, 1, 0);
  REQUIRE(dataset);
  OneParameter model(*backend, gradient);
  auto replicas = Replicas::join(0, 1, id, *backend);
  REQUIRE(replicas);
  Options options;
  options.optimiser = OptimiserKind::kSgd;
  options.steps = 3;
  options.batch = 2;
  options.lr = 1;
  options.bucket_mb = 1;
  options.check_every = 50;
  const auto trainer = Trainer::make(options, *dataset, *backend, model, *replicas);
  REQUIRE(trainer);
  auto problem = (*trainer)->run(nullptr);
  if (problem) {
    replicas->give_up();
  } else {
    problem = replicas->leave();
  }
  return problem ? problem->message : "";
}

}  // namespace

TEST_CASE("parameters that are no longer finite after the last step are no success") {
  CHECK(trained(1) == "");
  for (const float gradient : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    CHECK_THAT(trained(gradient), Catch::Contains("the parameters are no longer finite: the training diverged"));
}
