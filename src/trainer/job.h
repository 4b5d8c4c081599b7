// One run from its options: what all ranks share (read once, before they start), and what each of them does.
#pragma once

#include "trainer/dataset.h"
#include "trainer/model.h"
#include "trainer/options.h"
#include "trainer/outcome.h"
#include "trainer/trainer.h"

#include <nccl.h>

#include <cstdint>
#include <memory>

namespace tutti::trainer {

class Job {
 public:
  /// Reads the data. Every problem that the command line or a file can cause shows here, before any rank exists.
  static Outcome<Job> prepare(const Options& options);

  /// A rank's whole life; the result is its exit code. Rank 0 prints.
  int run_rank(int rank, int size, const ncclUniqueId& id) const;

 private:
  std::unique_ptr<Model> make_model() const;
  Problem train(Model& model, Replicas& replicas, Trainer& trainer) const;
  void print_heading(const Model& model, std::int64_t steps, int size) const;
  void print_summary(const HeldOut& held_out, double seconds, Model& model, const float* parameters) const;

  Options options_;
  // The one that options_.model wants.
  std::unique_ptr<ImageDataset> images_;
  std::unique_ptr<TextDataset> text_;
  const Dataset* dataset_ = nullptr;
};

}  // namespace tutti::trainer
