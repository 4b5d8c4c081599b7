#include "trainer/language_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace tutti::trainer {
namespace {

constexpr std::size_t kBytes = 256;

std::vector<std::size_t> stack_sizes(std::size_t in, const std::vector<std::size_t>& hidden) {
  std::vector<std::size_t> sizes{in};
  sizes.insert(sizes.end(), hidden.begin(), hidden.end());
  sizes.push_back(kBytes);
  return sizes;
}

}  // namespace

LanguageModel::LanguageModel(Backend& backend, std::size_t context, std::size_t width,
                             const std::vector<std::size_t>& hidden)
    : Model(backend),
      context_(context),
      width_(width),
      table_(layout_.add("embedding.table", kBytes * width)),
      stack_(backend, stack_sizes(context * width, hidden), Activation::kTanh, layout_) {}

std::string LanguageModel::describe() const {
  return fmt::format("byte language model, {} bytes of context x {} numbers each, {}, tanh", context_, width_,
                     stack_.describe());
}

void LanguageModel::initialise(float* parameters, Random& random) const {
  const Tensor& table = layout_[table_];
  for (std::size_t i = 0; i < table.count; ++i) parameters[table.offset + i] = random.symmetric(1.0f);
  stack_.initialise(parameters, random);
}

float* LanguageModel::forward(const float* parameters, const std::uint8_t* bytes, std::size_t samples) {
  const std::size_t count = samples * context_ * width_;
  if (vectors_.size() < count) {
    vectors_ = backend_.zeros<float>(count);
    vectors_grad_ = backend_.zeros<float>(count);
  }
  backend_.embedding_forward(bytes, parameters + layout_[table_].offset, vectors_.data(), samples * context_, width_);
  return stack_.forward(parameters, vectors_.data(), samples);
}

void LanguageModel::evaluate(const float* parameters, const PlacedBatch& batch, LossSums* sums) {
  float* logits = forward(parameters, batch.bytes, batch.samples);
  backend_.softmax_cross_entropy(logits, batch.labels, batch.samples, kBytes, sums);
}

void LanguageModel::forward_backward(const float* parameters, const PlacedBatch& batch, float* gradients,
                                     const GradientReady& ready, LossSums* sums) {
  evaluate(parameters, batch, sums);
  stack_.backward(parameters, vectors_.data(), batch.samples, gradients, ready, vectors_grad_.data());
  backend_.embedding_backward(batch.bytes, vectors_grad_.data(), gradients + layout_[table_].offset,
                              batch.samples * context_, width_);
  ready(table_);
}

Outcome<std::string> LanguageModel::sample(const float* parameters, std::string prompt, std::size_t count,
                                           double temperature, Random& random) {
  const std::size_t prompt_size = prompt.size();
  Batch batch;
  batch.samples = 1;
  float logits[kBytes] = {};
  for (std::size_t i = 0; i < count; ++i) {
    batch.bytes.assign(prompt.end() - static_cast<std::ptrdiff_t>(context_), prompt.end());
    backend_.download(logits, forward(parameters, backend_.place(batch).bytes, 1), sizeof logits);
    if (auto problem = backend_.wait()) return *problem;
    const float highest = *std::max_element(logits, logits + kBytes);
    double weights[kBytes];
    double total = 0;
    for (std::size_t b = 0; b < kBytes; ++b) total += weights[b] = std::exp((logits[b] - highest) / temperature);
    double point = random.uniform() * total;
    std::size_t byte = 0;
    while (byte + 1 < kBytes && (point -= weights[byte]) >= 0) ++byte;
    prompt.push_back(static_cast<char>(byte));
  }
  return prompt.substr(prompt_size);
}

}  // namespace tutti::trainer
