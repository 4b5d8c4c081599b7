// Every primitive of the CUDA back end beside the host's, on odd sizes. Products are the fake cuBLAS's, kernels tutti-train's own.
#include "trainer/cuda/cuda_backend.h"
#include "trainer/host_backend.h"
#include "trainer/random.h"

#include "fake_driver.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

using namespace tutti::trainer;

namespace {

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

struct Backends {
  std::unique_ptr<Backend> host = std::move(*HostBackend::make());
  std::unique_ptr<Backend> gpu = std::move(*make_cuda_backend(0));
};

/// The same values in both memories.
template <class T>
class Twin {
 public:
  Twin(Backends& backends, const std::vector<T>& values)
      : backends_(backends), on_host_(values), on_gpu_(backends.gpu->zeros<T>(values.size())) {
    backends.gpu->upload(on_gpu_.data(), values.data(), values.size() * sizeof(T));
  }
  T* on(const Backend& backend) { return &backend == backends_.gpu.get() ? on_gpu_.data() : on_host_.data(); }

  /// Call it after both have computed.
  void check_equal(const char* name, double tolerance) {
    std::vector<T> found(on_host_.size());
    backends_.gpu->download(found.data(), on_gpu_.data(), found.size() * sizeof(T));
    const Problem problem = backends_.gpu->wait();
    REQUIRE((problem ? problem->message : "") == "");
    for (std::size_t i = 0; i < found.size(); ++i) {
      const auto wanted = static_cast<double>(on_host_[i]);
      if (std::abs(static_cast<double>(found[i]) - wanted) <= tolerance * (1 + std::abs(wanted))) continue;
      FAIL(name << "[" << i << "] of " << found.size() << " is " << found[i] << " on the GPU, " << wanted
                << " on the host");
    }
    SUCCEED();
  }

 private:
  Backends& backends_;
  std::vector<T> on_host_;
  Array<T> on_gpu_;
};

std::vector<float> values(std::size_t count, Random& random, float limit = 1.0f) {
  std::vector<float> made(count);
  for (float& value : made) value = random.symmetric(limit);
  return made;
}
std::vector<std::uint8_t> bytes(std::size_t count, std::size_t below, Random& random) {
  std::vector<std::uint8_t> made(count);
  for (auto& byte : made) byte = static_cast<std::uint8_t>(random.below(below));
  return made;
}

void on_both(Backends& backends, const std::function<void(Backend&)>& what) {
  what(*backends.host);
  what(*backends.gpu);
}

/// Sums in another order.
constexpr double kOfSums = 2e-5;
/// Single operations, which may round otherwise on the GPU.
constexpr double kOfElements = 1e-6;

}  // namespace

TEST_CASE("cuda: linear layers, forward and backward") {
  Backends backends;
  Random random(1);
  const auto shape = GENERATE(LinearShape{1, 1, 1}, LinearShape{7, 5, 3}, LinearShape{33, 17, 65},
                              LinearShape{3, 131, 40}, LinearShape{0, 5, 3});
  CAPTURE(shape.samples, shape.in, shape.out);
  Twin x(backends, values(shape.samples * shape.in + 1, random));
  Twin weight(backends, values(shape.in * shape.out, random));
  Twin bias(backends, values(shape.out, random));
  Twin y_grad(backends, values(shape.samples * shape.out + 1, random));
  Twin y(backends, std::vector<float>(shape.samples * shape.out, kPoison));
  Twin x_grad(backends, std::vector<float>(shape.samples * shape.in, kPoison));
  Twin weight_grad(backends, std::vector<float>(shape.in * shape.out, kPoison));
  Twin bias_grad(backends, std::vector<float>(shape.out, kPoison));
  on_both(backends, [&](Backend& b) {
    b.linear_forward(x.on(b), weight.on(b), bias.on(b), y.on(b), shape);
    b.linear_backward_parameters(x.on(b), y_grad.on(b), weight_grad.on(b), bias_grad.on(b), shape);
    b.linear_backward_input(y_grad.on(b), weight.on(b), x_grad.on(b), shape);
  });
  y.check_equal("y", kOfSums);
  weight_grad.check_equal("weight_grad", kOfSums);
  bias_grad.check_equal("bias_grad", kOfSums);
  x_grad.check_equal("x_grad", kOfSums);
}

TEST_CASE("cuda: activations") {
  Backends backends;
  Random random(2);
  const auto activation = GENERATE(Activation::kRelu, Activation::kTanh);
  const std::size_t count = GENERATE(1, 255, 3001);
  Twin y(backends, values(count, random, 4.0f));
  Twin grad(backends, values(count, random));
  on_both(backends, [&](Backend& b) {
    b.activation_forward(activation, y.on(b), count);
    b.activation_backward(activation, y.on(b), grad.on(b), count);
  });
  y.check_equal("y", kOfElements);
  grad.check_equal("grad", kOfElements);
}

TEST_CASE("cuda: more elements than a launch has threads") {
  Backends backends;
  constexpr std::size_t kCount = 4096 * 256 + 777;
  Twin sum(backends, std::vector<float>(kCount, 1.0f));
  Twin part(backends, std::vector<float>(kCount, 2.0f));
  on_both(backends, [&](Backend& b) { b.add(sum.on(b), part.on(b), kCount); });
  sum.check_equal("sum", 0);
}

TEST_CASE("cuda: the embedding's rows, and the sums of their gradients") {
  Backends backends;
  Random random(3);
  const std::size_t width = GENERATE(1, 24, 60, 131);
  const std::size_t count = GENERATE(1, 97);
  Twin text(backends, bytes(count, 5, random));  // few different ones, so that rows come together
  Twin table(backends, values(256 * width, random));
  Twin x(backends, std::vector<float>(count * width, kPoison));
  Twin x_grad(backends, values(count * width, random));
  Twin table_grad(backends, std::vector<float>(256 * width, kPoison));
  on_both(backends, [&](Backend& b) {
    b.embedding_forward(text.on(b), table.on(b), x.on(b), count, width);
    b.embedding_backward(text.on(b), x_grad.on(b), table_grad.on(b), count, width);
  });
  x.check_equal("x", 0);
  table_grad.check_equal("table_grad", kOfSums);
}

TEST_CASE("cuda: softmax and cross entropy") {
  Backends backends;
  Random random(4);
  const std::size_t classes = GENERATE(1, 10, 131, 256);
  const std::size_t samples = GENERATE(1, 37);
  CAPTURE(classes, samples);
  std::vector<float> raw = values(samples * classes, random, 3.0f);
  // Equal logits: the first one counts. Huge ones: no overflow.
  if (classes > 3) raw[1] = raw[classes - 1] = 50.0f;
  if (classes > 3 && samples > 1) raw[classes] = 1e30f;
  Twin logits(backends, raw);
  std::vector<std::uint8_t> answers = bytes(samples, classes, random);
  answers[0] = classes > 3 ? 1 : 0;
  Twin labels(backends, answers);
  Twin sums(backends, std::vector<double>{0.25, 2});  // added to
  on_both(backends, [&](Backend& b) {
    b.softmax_cross_entropy(logits.on(b), labels.on(b), samples, classes, reinterpret_cast<LossSums*>(sums.on(b)));
  });
  logits.check_equal("logits", kOfSums);
  sums.check_equal("sums", 1e-6);
}

TEST_CASE("cuda: a logit that is no number makes the loss none") {
  const auto backend = std::move(*make_cuda_backend(0));
  auto logits = backend->zeros<float>(300);
  const float bad = kPoison;
  backend->upload(logits.data() + 100 + GENERATE(0, 7, 99), &bad, sizeof bad);
  auto labels = backend->zeros<std::uint8_t>(3);
  auto sums = backend->zeros<LossSums>(1);
  backend->softmax_cross_entropy(logits.data(), labels.data(), 3, 100, sums.data());
  LossSums found;
  backend->download(&found, sums.data(), sizeof found);
  REQUIRE(!backend->wait());
  CHECK(std::isnan(found.loss));
}

TEST_CASE("cuda: steps of the optimisers") {
  Backends backends;
  Random random(5);
  constexpr std::size_t kCount = 1003;
  Twin parameters(backends, values(kCount, random));
  Twin gradients(backends, values(kCount, random, 10.0f));
  Twin first(backends, values(kCount, random, 0.1f));
  Twin second(backends, std::vector<float>(kCount, 0.25f));
  on_both(backends, [&](Backend& b) {
    b.step(SgdStep{parameters.on(b), gradients.on(b), first.on(b), kCount, 33.0f, 0.1f, 0.9f});
    b.step(AdamStep{parameters.on(b), gradients.on(b), first.on(b), second.on(b), kCount, 33.0f, 0.002f, 0.3f, 0.4f});
  });
  parameters.check_equal("parameters", kOfElements);
  first.check_equal("first", kOfElements);
  second.check_equal("second", kOfElements);
}

TEST_CASE("cuda: a batch that is placed may change at once, and what is large comes over whole") {
  const auto backend = std::move(*make_cuda_backend(0));
  Random random(6);
  std::vector<float> total(4000);
  auto sum = backend->zeros<float>(total.size());
  std::vector<float> wanted(total.size());
  Batch batch;
  batch.samples = 4;
  batch.features = Array<float>(total.size());
  // Several batches before anybody waits: more than the memory in which they wait holds.
  for (int part = 0; part < 300; ++part) {
    const auto values_of_part = values(total.size(), random);
    std::copy(values_of_part.begin(), values_of_part.end(), batch.features.data());
    backend->add(sum.data(), backend->place(batch).features, total.size());
    for (std::size_t i = 0; i < total.size(); ++i) wanted[i] += values_of_part[i];
  }
  std::fill_n(batch.features.data(), total.size(), kPoison);
  backend->download(total.data(), sum.data(), total.size() * sizeof(float));
  REQUIRE(!backend->wait());
  CHECK(total == wanted);
}

TEST_CASE("cuda: what is longer than the pinned memory goes through it in pieces") {
  const auto backend = std::move(*make_cuda_backend(0));
  const std::int64_t before = fake_driver::live().host_bytes;
  constexpr std::size_t kCount = 5'000'001;
  auto on_gpu = backend->zeros<float>(kCount);
  std::vector<float> sent(kCount);
  for (std::size_t i = 0; i < kCount; ++i) sent[i] = static_cast<float>(i);
  const std::vector<float> wanted = sent;
  backend->upload(on_gpu.data(), sent.data(), kCount * sizeof(float));
  std::fill(sent.begin(), sent.end(), kPoison);
  std::vector<float> first(100), found(kCount);  // one waits while the other is copied
  backend->download(first.data(), on_gpu.data() + 17, first.size() * sizeof(float));
  backend->download(found.data(), on_gpu.data(), kCount * sizeof(float));
  REQUIRE(!backend->wait());
  CHECK(found == wanted);
  CHECK(std::equal(first.begin(), first.end(), wanted.begin() + 17));
  CHECK(fake_driver::live().host_bytes - before < std::int64_t{8} << 20);
}
