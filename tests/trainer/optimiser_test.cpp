// The optimisers against sums done by hand.
#include "trainer/optimiser.h"
#include "trainer/host_backend.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <memory>
#include <utility>

using namespace tutti::trainer;

namespace {

std::unique_ptr<Backend> host() { return std::move(*HostBackend::make()); }

}  // namespace

TEST_CASE("SGD with momentum, two steps by hand") {
  const auto backend = host();
  Sgd sgd(*backend, 2, 0.5f);
  float parameters[2] = {1.0f, -2.0f};
  const float first[2] = {2.0f, -4.0f};  // sums over 4 samples
  sgd.step(parameters, first, 4, 0.25f);
  CHECK(parameters[0] == 0.875f);  // 1 - 0.25 * 0.5
  CHECK(parameters[1] == -1.75f);  // -2 + 0.25 * 1
  const float second[2] = {0.25f, 0.0f};
  sgd.step(parameters, second, 1, 0.25f);
  CHECK(parameters[0] == 0.75f);    // velocity 0.5 * 0.5 + 0.25 = 0.5
  CHECK(parameters[1] == -1.625f);  // velocity 0.5 * -1 + 0 = -0.5
}

TEST_CASE("Adam, two steps by hand") {
  const auto backend = host();
  Adam adam(*backend, 1);
  float parameter = 1.0f;
  float gradient = 6.0f;
  adam.step(&parameter, &gradient, 3, 0.1f);
  // Mean and square, corrected, are 2 and 4: a step of lr * 2 / 2.
  CHECK(parameter == Approx(0.9).epsilon(1e-6));
  gradient = -1.0f;
  adam.step(&parameter, &gradient, 1, 0.1f);
  // mean   (0.9 * 0.2 - 0.1) / (1 - 0.81) = 0.08 / 0.19
  // square (0.999 * 0.004 + 0.001) / (1 - 0.998001) = 0.004996 / 0.001999
  const double expected = 0.9 - 0.1 * (0.08 / 0.19) / std::sqrt(0.004996 / 0.001999);
  CHECK(parameter == Approx(expected).epsilon(1e-5));
}

TEST_CASE("an unused parameter does not move") {
  const auto backend = host();
  Adam adam(*backend, 1);
  float parameter = 3.0f;
  const float gradient = 0.0f;
  for (int i = 0; i < 5; ++i) adam.step(&parameter, &gradient, 1, 0.1f);
  CHECK(parameter == 3.0f);
}

TEST_CASE("the cosine runs from the learning rate to a tenth of it") {
  CHECK(cosine_learning_rate(0.5, 0, 11) == Approx(0.5));
  CHECK(cosine_learning_rate(0.5, 5, 11) == Approx(0.275));
  CHECK(cosine_learning_rate(0.5, 10, 11) == Approx(0.05));
  CHECK(cosine_learning_rate(0.5, 0, 1) == Approx(0.5));
}
