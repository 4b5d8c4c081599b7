// The training loop of one rank: a batch, its gradients, their sum over the ranks, a step.
#pragma once

#include "trainer/array.h"
#include "trainer/backend.h"
#include "trainer/buckets.h"
#include "trainer/dataset.h"
#include "trainer/journal.h"
#include "trainer/model.h"
#include "trainer/optimiser.h"
#include "trainer/options.h"
#include "trainer/outcome.h"
#include "trainer/replicas.h"
#include "trainer/sharding.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace tutti::trainer {

/// What a step sums beside the gradients.
struct StepSums {
  LossSums losses;
  double unread = 0;  ///< above 0: nobody reads what rank 0 has to tell
};

class Trainer {
 public:
  /// Everything referred to must outlive the trainer; model and replicas are the back end's.
  static Outcome<std::unique_ptr<Trainer>> make(const Options& options, const Dataset& dataset, Backend& backend,
                                                Model& model, Replicas& replicas);

  std::int64_t steps() const { return steps_; }
  /// Gives every rank rank 0's parameters, then makes all steps. `journal`: rank 0's, nullptr on the others.
  Problem run(Journal* journal);
  /// It has left steps out, as nobody reads rank 0's journal any more; on every rank.
  bool ended_early() const { return ended_early_; }
  /// The held-out samples, shared among the ranks; every rank gets the sum. Fails where the training diverged, also where nothing is held out.
  Outcome<HeldOut> evaluate_held_out();
  /// The back end's.
  const float* parameters() const { return parameters_.data(); }

 private:
  Trainer(const Options& options, const Dataset& dataset, Backend& backend, Model& model, Replicas& replicas);

  Problem start();
  /// Ranks that a launcher starts have command lines and files of their own.
  Problem compare_what_to_train();
  Outcome<StepRecord> step(std::int64_t number);
  /// Sums this rank's share of the batch into gradients_ and starts the all-reduces on the way.
  Problem compute_gradients(std::span<const std::uint32_t> batch);
  void clear_sums();
  Problem start_sums();
  /// Fails where they are no longer numbers.
  Outcome<std::uint64_t> hash_of_parameters();

  const Options& options_;
  const Dataset& dataset_;
  Backend& backend_;
  Model& model_;
  Replicas& replicas_;
  Array<float> parameters_;
  Array<float> gradients_;       ///< this rank's sum, then all ranks' sum, in place
  Array<float> part_gradients_;  ///< of one part of the share, when there are several (--accumulate)
  Array<StepSums> sums_;         ///< one: this rank's, then all ranks'
  GradientBuckets buckets_;
  BatchOrder order_;
  std::unique_ptr<Optimiser> optimiser_;
  std::int64_t steps_;
  Batch part_;
  bool unread_ = false;  ///< rank 0 knows it first
  bool ended_early_ = false;
};

}  // namespace tutti::trainer
