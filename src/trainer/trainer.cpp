#include "trainer/trainer.h"

#include "trainer/parameter_hash.h"
#include "trainer/random.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <string_view>
#include <utility>

namespace tutti::trainer {
namespace {

constexpr std::size_t kEvaluationBatch = 256;

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

std::unique_ptr<Optimiser> make_optimiser(const Options& options, Backend& backend, std::size_t count) {
  if (options.optimiser == OptimiserKind::kAdam) return std::make_unique<Adam>(backend, count);
  return std::make_unique<Sgd>(backend, count, static_cast<float>(options.momentum));
}

}  // namespace

Outcome<std::unique_ptr<Trainer>> Trainer::make(const Options& options, const Dataset& dataset, Backend& backend,
                                                Model& model, Replicas& replicas) {
  std::unique_ptr<Trainer> trainer(new Trainer(options, dataset, backend, model, replicas));
  if (auto problem = backend.wait()) return *problem;  // all memory is there
  return trainer;
}

Trainer::Trainer(const Options& options, const Dataset& dataset, Backend& backend, Model& model, Replicas& replicas)
    : options_(options),
      dataset_(dataset),
      backend_(backend),
      model_(model),
      replicas_(replicas),
      parameters_(backend.shared_zeros<float>(model.layout().size())),
      gradients_(backend.shared_zeros<float>(model.layout().size())),
      part_gradients_(backend.zeros<float>(options.accumulate > 1 ? model.layout().size() : 0)),
      sums_(backend.zeros<StepSums>(1)),
      buckets_(model.layout(), static_cast<std::size_t>(options.bucket_mb * 1e6)),
      order_(dataset.training(), options.batch, options.seed),
      optimiser_(make_optimiser(options, backend, model.layout().size())),
      steps_(options.steps > 0 ? options.steps
                               : options.epochs * static_cast<std::int64_t>(order_.batches_per_epoch())) {}

Problem Trainer::run(Journal* journal) {
  if (auto problem = start()) return problem;
  for (std::int64_t number = 1; number <= steps_ && !ended_early_; ++number) {
    auto record = step(number);
    if (!record) return record.failure();
    if (journal == nullptr) continue;
    if (auto problem = journal->step(*record)) return problem;
    unread_ = journal->is_unread();
  }
  return {};
}

/// Only what goes into the sums, and which there are: ranks that differ in what is done with them have other parameters afterwards, which is
/// noticed.
Problem Trainer::compare_what_to_train() {
  const std::pair<std::uint64_t, std::string_view> all[] = {
      {options_.seed, "--seed"},  // first: what is held out follows from it
      {dataset_.hash(), "data"},
      {hash_all_on(kHashOfNothing, model_.describe()), "model"},
      {options_.accumulate, "--accumulate"},
      {options_.batch, "--batch"},
      {std::bit_cast<std::uint64_t>(options_.bucket_mb), "--bucket-mb"},
      {static_cast<std::uint64_t>(steps_), "number of steps (--steps, --epochs)"},
      {static_cast<std::uint64_t>(options_.check_every), "--check-every"},
  };
  for (const auto& [value, what] : all) {
    if (auto problem = compare_replicas(replicas_, value, fmt::format("the ranks differ in the {}", what)))
      return problem;
  }
  return {};
}

Problem Trainer::start() {
  if (auto problem = compare_what_to_train()) return problem;
  if (auto problem = replicas_.share(gradients_.data(), gradients_.size())) return problem;
  // Only rank 0 makes parameters: a broadcast that does not arrive cannot go unnoticed.
  if (replicas_.rank() == 0) {
    Array<float> made(parameters_.size());
    Random random(options_.seed);
    model_.initialise(made.data(), random);
    backend_.upload(parameters_.data(), made.data(), made.size() * sizeof(float));
  }
  if (auto problem = replicas_.start_broadcast(parameters_.data(), parameters_.size())) return problem;
  backend_.after_collectives();
  const auto hash = hash_of_parameters();
  if (!hash) return hash.failure();
  return compare_replicas(replicas_, *hash);
}

Outcome<std::uint64_t> Trainer::hash_of_parameters() {
  Array<float> copy(parameters_.size());
  backend_.download(copy.data(), parameters_.data(), copy.size() * sizeof(float));
  if (auto problem = replicas_.wait()) return *problem;
  // No loss says so of the last update.
  if (!std::ranges::all_of(copy.span(), [](float parameter) { return std::isfinite(parameter); })) {
    return Failure{fmt::format("the parameters are no longer finite: the training diverged; try a smaller --lr than {}",
                               options_.lr)};
  }
  return hash_parameters(copy.span());
}

Outcome<StepRecord> Trainer::step(std::int64_t number) {
  const auto start = std::chrono::steady_clock::now();
  (void)backend_.stood_still_ms();  // counts from here
  const std::span<const std::uint32_t> batch = order_.next();
  StepRecord record{.step = number, .samples = batch.size()};
  record.lr = options_.schedule == Schedule::kCosine ? cosine_learning_rate(options_.lr, number - 1, steps_)
                                                     : static_cast<float>(options_.lr);

  if (auto problem = compute_gradients(batch)) return *problem;
  backend_.after_collectives();
  optimiser_->step(parameters_.data(), gradients_.data(), batch.size(), static_cast<float>(record.lr));
  StepSums sums;
  backend_.download(&sums, sums_.data(), sizeof sums);
  if (auto problem = replicas_.wait()) return *problem;

  ended_early_ = sums.unread > 0;
  record.loss = sums.losses.loss / static_cast<double>(batch.size());
  record.accuracy = sums.losses.correct / static_cast<double>(batch.size());
  if (!std::isfinite(record.loss)) {
    return Failure{fmt::format("the loss of step {} is {}: the training diverged; try a smaller --lr than {}", number,
                               record.loss, options_.lr)};
  }
  if (number % options_.check_every == 0 || number == steps_) {
    const auto hash = hash_of_parameters();
    if (!hash) return hash.failure();
    if (auto problem = compare_replicas(replicas_, *hash)) {
      return Failure{fmt::format("after step {}: {}", number, problem->message)};
    }
    record.param_hash = *hash;
  }
  record.comm_ms = backend_.stood_still_ms();
  record.step_ms = milliseconds_since(start);
  return record;
}

Problem Trainer::compute_gradients(std::span<const std::uint32_t> batch) {
  // The batch is cut into ranks x accumulate parts, this rank's being neighbours. The sum over the parts goes from left to
  // right here, and over the ranks in rank order in the library: one order of addition, however the parts are spread.
  const auto rank = static_cast<std::size_t>(replicas_.rank());
  const std::size_t parts = static_cast<std::size_t>(replicas_.size()) * options_.accumulate;
  Problem problem;
  buckets_.begin();
  clear_sums();
  for (std::size_t a = 0; a < options_.accumulate; ++a) {
    const bool first = a == 0;
    const bool last = a + 1 == options_.accumulate;
    dataset_.gather(shard(batch, rank * options_.accumulate + a, parts), part_);
    float* target = first ? gradients_.data() : part_gradients_.data();
    const auto ready = [&](std::size_t tensor_index) {
      const Tensor& tensor = model_.layout()[tensor_index];
      if (!first) {
        backend_.add(gradients_.data() + tensor.offset, part_gradients_.data() + tensor.offset, tensor.count);
      }
      if (!last || problem) return;
      // The bucket travels while backward goes on with the layers below.
      if (const auto range = buckets_.ready(tensor_index)) {
        problem = replicas_.start_sum(gradients_.data() + range->offset, range->count);
      }
    };
    model_.forward_backward(parameters_.data(), backend_.place(part_), target, ready, &sums_.data()->losses);
  }
  if (problem) return problem;
  return start_sums();
}

void Trainer::clear_sums() {
  const StepSums none{.losses = {}, .unread = unread_ ? 1.0 : 0.0};
  backend_.upload(sums_.data(), &none, sizeof none);
}

Problem Trainer::start_sums() {
  static_assert(sizeof(StepSums) == 3 * sizeof(double));
  return replicas_.start_sum(&sums_.data()->losses.loss, 3);
}

Outcome<HeldOut> Trainer::evaluate_held_out() {
  std::span<const std::uint32_t> samples = dataset_.held_out();
  const bool held_out = !samples.empty();
  // Some others tell at least what the last update has made of the loss.
  if (!held_out) samples = std::span(dataset_.training()).first(std::min(kEvaluationBatch, dataset_.training().size()));
  auto mine = shard(samples, static_cast<std::size_t>(replicas_.rank()), static_cast<std::size_t>(replicas_.size()));
  clear_sums();
  while (!mine.empty()) {
    const std::size_t count = std::min(kEvaluationBatch, mine.size());
    dataset_.gather(mine.first(count), part_);
    model_.evaluate(parameters_.data(), backend_.place(part_), &sums_.data()->losses);
    mine = mine.subspan(count);
  }
  if (auto problem = start_sums()) return *problem;
  backend_.after_collectives();
  LossSums totals;
  backend_.download(&totals, &sums_.data()->losses, sizeof totals);
  if (auto problem = replicas_.wait()) return *problem;
  const auto count = static_cast<double>(samples.size());
  if (!std::isfinite(totals.loss)) {
    return Failure{fmt::format("the {} is {}: the training diverged; try a smaller --lr than {}",
                               held_out ? "held-out loss" : "loss after the last step", totals.loss, options_.lr)};
  }
  if (!held_out) return HeldOut{};
  return HeldOut{samples.size(), totals.loss / count, totals.correct / count};
}

}  // namespace tutti::trainer
