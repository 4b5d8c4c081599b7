#include "trainer/trainer.h"

#include "trainer/parameter_hash.h"
#include "trainer/random.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

namespace tutti::trainer {
namespace {

constexpr std::size_t kEvaluationBatch = 256;

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

std::unique_ptr<Optimiser> make_optimiser(const Options& options, std::size_t count) {
  if (options.optimiser == OptimiserKind::kAdam) return std::make_unique<Adam>(count);
  return std::make_unique<Sgd>(count, static_cast<float>(options.momentum));
}

}  // namespace

Outcome<std::unique_ptr<Trainer>> Trainer::make(const Options& options, const Dataset& dataset, Model& model,
                                                Replicas& replicas) {
  auto parameters = SharedFloats::make(model.layout().size());
  if (!parameters) return parameters.failure();
  auto gradients = SharedFloats::make(model.layout().size());
  if (!gradients) return gradients.failure();
  return std::unique_ptr<Trainer>(
      new Trainer(options, dataset, model, replicas, std::move(*parameters), std::move(*gradients)));
}

Trainer::Trainer(const Options& options, const Dataset& dataset, Model& model, Replicas& replicas,
                 SharedFloats parameters, SharedFloats gradients)
    : options_(options),
      dataset_(dataset),
      model_(model),
      replicas_(replicas),
      parameters_(std::move(parameters)),
      gradients_(std::move(gradients)),
      part_gradients_(options.accumulate > 1 ? model.layout().size() : 0),
      buckets_(model.layout(), static_cast<std::size_t>(options.bucket_mb * 1e6)),
      order_(dataset.training(), options.batch, options.seed),
      optimiser_(make_optimiser(options, model.layout().size())),
      steps_(options.steps > 0 ? options.steps
                               : options.epochs * static_cast<std::int64_t>(order_.batches_per_epoch())) {}

Problem Trainer::run(Journal* journal) {
  if (auto problem = start()) return problem;
  for (std::int64_t number = 1; number <= steps_; ++number) {
    auto record = step(number);
    if (!record) return record.failure();
    if (journal == nullptr) continue;
    if (auto problem = journal->step(*record)) return problem;
  }
  return {};
}

Problem Trainer::start() {
  // Only rank 0 makes parameters: a broadcast that does not arrive cannot go unnoticed.
  if (replicas_.rank() == 0) {
    Random random(options_.seed);
    model_.initialise(parameters_.data(), random);
  }
  if (auto problem = replicas_.start_broadcast(parameters_.data(), parameters_.size())) return problem;
  if (auto problem = replicas_.wait()) return problem;
  return compare_replicas(replicas_, hash_parameters(parameters_.span()));
}

Outcome<StepRecord> Trainer::step(std::int64_t number) {
  const auto start = std::chrono::steady_clock::now();
  const std::span<const std::uint32_t> batch = order_.next();
  StepRecord record{.step = number, .samples = batch.size()};
  record.lr = options_.schedule == Schedule::kCosine ? cosine_learning_rate(options_.lr, number - 1, steps_)
                                                     : static_cast<float>(options_.lr);

  if (auto problem = compute_gradients(batch)) return *problem;
  const auto computed = std::chrono::steady_clock::now();
  if (auto problem = replicas_.wait()) return *problem;
  record.comm_ms = milliseconds_since(computed);
  update(batch.size(), static_cast<float>(record.lr));

  record.loss = loss_and_correct_[0] / static_cast<double>(batch.size());
  record.accuracy = loss_and_correct_[1] / static_cast<double>(batch.size());
  if (!std::isfinite(record.loss)) {
    return Failure{fmt::format("the loss of step {} is {}: the training diverged; try a smaller --lr than {}", number,
                               record.loss, options_.lr)};
  }
  if (number % options_.check_every == 0 || number == steps_) {
    record.param_hash = hash_parameters(parameters_.span());
    const auto hashed = std::chrono::steady_clock::now();
    if (auto problem = compare_replicas(replicas_, *record.param_hash)) {
      return Failure{fmt::format("after step {}: {}", number, problem->message)};
    }
    record.comm_ms += milliseconds_since(hashed);
  }
  record.step_ms = milliseconds_since(start);
  return record;
}

Problem Trainer::compute_gradients(std::span<const std::uint32_t> batch) {
  // The batch is cut into ranks x accumulate parts, this rank's being neighbours. The sum over the parts goes from left to
  // right here, and over the ranks in rank order in the library: one order of addition, however the parts are spread.
  const auto rank = static_cast<std::size_t>(replicas_.rank());
  const std::size_t parts = static_cast<std::size_t>(replicas_.size()) * options_.accumulate;
  LossSums sums;
  Problem problem;
  buckets_.begin();
  for (std::size_t a = 0; a < options_.accumulate; ++a) {
    const bool first = a == 0;
    const bool last = a + 1 == options_.accumulate;
    dataset_.gather(shard(batch, rank * options_.accumulate + a, parts), part_);
    float* target = first ? gradients_.data() : part_gradients_.data();
    const auto ready = [&](std::size_t tensor_index) {
      if (!first) {
        const Tensor& tensor = model_.layout()[tensor_index];
        float* sum = gradients_.data() + tensor.offset;
        const float* part = part_gradients_.data() + tensor.offset;
        for (std::size_t i = 0; i < tensor.count; ++i) sum[i] += part[i];
      }
      if (!last || problem) return;
      // The bucket travels while backward goes on with the layers below.
      if (const auto range = buckets_.ready(tensor_index)) {
        problem = replicas_.start_sum(gradients_.data() + range->offset, range->count);
      }
    };
    sums += model_.forward_backward(parameters_.data(), part_, target, ready);
  }
  if (problem) return problem;
  loss_and_correct_[0] = sums.loss;
  loss_and_correct_[1] = sums.correct;
  return replicas_.start_sum(loss_and_correct_, 2);
}

void Trainer::update(std::size_t samples, float lr) {
  const auto divisor = static_cast<float>(samples);
  for (float& gradient : gradients_.span()) gradient /= divisor;
  optimiser_->step(parameters_.data(), gradients_.data(), gradients_.size(), lr);
}

Outcome<HeldOut> Trainer::evaluate_held_out() {
  const SampleIds& samples = dataset_.held_out();
  if (samples.empty()) return HeldOut{};
  auto mine = shard(samples, static_cast<std::size_t>(replicas_.rank()), static_cast<std::size_t>(replicas_.size()));
  LossSums sums;
  while (!mine.empty()) {
    const std::size_t count = std::min(kEvaluationBatch, mine.size());
    dataset_.gather(mine.first(count), part_);
    sums += model_.evaluate(parameters_.data(), part_);
    mine = mine.subspan(count);
  }
  double totals[2] = {sums.loss, sums.correct};
  if (auto problem = replicas_.start_sum(totals, 2)) return *problem;
  if (auto problem = replicas_.wait()) return *problem;
  const auto count = static_cast<double>(samples.size());
  if (!std::isfinite(totals[0])) {
    return Failure{fmt::format("the held-out loss is {}: the training diverged; try a smaller --lr than {}", totals[0],
                               options_.lr)};
  }
  return HeldOut{samples.size(), totals[0] / count, totals[1] / count};
}

}  // namespace tutti::trainer
