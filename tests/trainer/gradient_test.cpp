// The hand-written backward passes against finite differences of the loss.
#include "trainer/host_backend.h"
#include "trainer/image_classifier.h"
#include "trainer/language_model.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

using namespace tutti::trainer;

namespace {

/// One for all cases: it has no state that they could leave.
Backend& host() {
  static const std::unique_ptr<Backend> backend = std::move(*HostBackend::make());
  return *backend;
}

LossSums loss_of(Model& model, const Batch& batch, const float* parameters) {
  LossSums sums;
  model.evaluate(parameters, host().place(batch), &sums);
  return sums;
}

struct Probe {
  Model& model;
  const Batch& batch;
  Array<float>& parameters;

  /// Central difference of the summed loss along one parameter.
  double slope(std::size_t index, float step) {
    float& parameter = parameters.data()[index];
    const float kept = parameter;
    parameter = kept + step;
    const double above = loss_of(model, batch, parameters.data()).loss;
    const double high = parameter;
    parameter = kept - step;
    const double below = loss_of(model, batch, parameters.data()).loss;
    const double width = high - double{parameter};
    parameter = kept;
    return (above - below) / width;
  }
};

/// Central differences against the backward pass, tensor by tensor: the norm of the difference to the backward pass must be small
/// against the norm of the gradient. Every tensor must have a gradient worth comparing.
void check_gradients(Model& model, const Batch& batch, std::uint64_t seed) {
  const Layout& layout = model.layout();
  Array<float> parameters(layout.size());
  Array<float> gradients(layout.size());
  for (float& gradient : gradients.span()) gradient = std::numeric_limits<float>::quiet_NaN();
  Random random(seed);
  model.initialise(parameters.data(), random);
  // Biases start at zero, where a swapped or missing bias does not show.
  for (const auto& tensor : layout.tensors()) {
    for (std::size_t i = 0; i < tensor.count; ++i) parameters.data()[tensor.offset + i] += random.symmetric(0.1f);
  }

  std::vector<std::size_t> ready;
  LossSums sums;
  model.forward_backward(
      parameters.data(), host().place(batch), gradients.data(), [&](std::size_t tensor) { ready.push_back(tensor); },
      &sums);
  REQUIRE(sums.loss == loss_of(model, batch, parameters.data()).loss);
  // Each tensor once, the last first: what the buckets rely on.
  REQUIRE(ready.size() == layout.tensors().size());
  for (std::size_t i = 0; i < ready.size(); ++i) REQUIRE(ready[i] == ready.size() - 1 - i);

  Probe probe{model, batch, parameters};
  for (const auto& tensor : layout.tensors()) {
    double difference = 0, size = 0;
    std::size_t kinks = 0;
    for (std::size_t i = tensor.offset; i < tensor.offset + tensor.count; ++i) {
      const double numeric = probe.slope(i, 1e-2f);
      // Where ReLU bends within the step, half the step sees another slope; such a place says nothing about the gradient.
      if (std::abs(numeric - probe.slope(i, 5e-3f)) > 2e-3 * (1 + std::abs(numeric))) {
        ++kinks;
        continue;
      }
      difference += (numeric - gradients.data()[i]) * (numeric - gradients.data()[i]);
      size += numeric * numeric;
    }
    INFO("seed " << seed << ", tensor " << tensor.name << ", " << kinks << " bends in " << tensor.count
                 << ", gradient norm " << std::sqrt(size) << ", difference " << std::sqrt(difference));
    CHECK(kinks * 2 <= tensor.count);
    CHECK(std::sqrt(size) > 0.05);
    CHECK(std::sqrt(difference) < 5e-3 * std::sqrt(size));
  }
}

Batch image_batch(std::size_t samples, std::size_t pixels, std::size_t classes, Random& random) {
  Batch batch;
  batch.samples = samples;
  batch.features = Array<float>(samples * pixels);
  for (float& value : batch.features.span()) value = random.symmetric(1.0f);
  for (std::size_t s = 0; s < samples; ++s) batch.labels.push_back(static_cast<std::uint8_t>(random.below(classes)));
  return batch;
}

Batch text_batch(std::size_t samples, std::size_t context, Random& random) {
  Batch batch;
  batch.samples = samples;
  // Few different bytes, so that rows of the embedding get gradients from several places.
  for (std::size_t i = 0; i < samples * context; ++i)
    batch.bytes.push_back(static_cast<std::uint8_t>(250 + random.below(6)));
  for (std::size_t s = 0; s < samples; ++s) batch.labels.push_back(static_cast<std::uint8_t>(random.below(256)));
  return batch;
}

}  // namespace

TEST_CASE("the classifier's gradients are those of finite differences") {
  const std::uint64_t seed = GENERATE(1, 2, 3);
  Random random(seed + 100);
  ImageClassifier model(host(), {5, 7, 4, 3});
  check_gradients(model, image_batch(11, 5, 3, random), seed);
}

TEST_CASE("the language model's gradients are those of finite differences") {
  const std::uint64_t seed = GENERATE(1, 2);
  Random random(seed + 100);
  LanguageModel model(host(), 3, 2, {6, 5});
  check_gradients(model, text_batch(13, 3, random), seed);
}

TEST_CASE("a batch without samples gives zero gradients and tells every tensor") {
  LanguageModel model(host(), 3, 2, {6});
  Array<float> parameters(model.layout().size());
  Array<float> gradients(model.layout().size());
  for (const auto& tensor : model.layout().tensors()) {
    std::fill_n(gradients.data() + tensor.offset, tensor.count, 7.0f);
  }
  std::size_t told = 0;
  LossSums sums;
  model.forward_backward(
      parameters.data(), PlacedBatch{}, gradients.data(), [&](std::size_t) { ++told; }, &sums);
  CHECK(sums.loss == 0);
  CHECK(told == model.layout().tensors().size());
  for (const float gradient : gradients.span()) REQUIRE(gradient == 0.0f);
}

TEST_CASE("the loss of equal logits is the logarithm of the class count") {
  float logits[2 * 4] = {3, 3, 3, 3, -1, -1, -1, -1};
  const std::uint8_t labels[2] = {0, 3};
  LossSums sums;
  host().softmax_cross_entropy(logits, labels, 2, 4, &sums);
  CHECK(sums.loss == Approx(2 * std::log(4.0)));
  CHECK(sums.correct == 1);  // the first of equal logits is the guess
  CHECK(logits[0] == Approx(0.25 - 1));
  CHECK(logits[1] == Approx(0.25));
  CHECK(logits[7] == Approx(0.25 - 1));
}

TEST_CASE("huge logits neither overflow nor lose the label") {
  float logits[3] = {1e30f, 0, -1e30f};
  const std::uint8_t label = 0;
  LossSums sums;
  host().softmax_cross_entropy(logits, &label, 1, 3, &sums);
  CHECK(sums.loss == 0);
  CHECK(sums.correct == 1);
  CHECK(logits[0] == 0);
}
