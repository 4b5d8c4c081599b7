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
#include <mutex>
#include <utility>
#include <vector>

namespace tutti::trainer {

/// What ranks that are threads, and have failed, had made: others may be at work on its arrays still, which stay until all have ended.
class KeptParts {
 public:
  void add(std::shared_ptr<void> parts) {
    const std::lock_guard lock(mutex_);
    parts_.push_back(std::move(parts));
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<void>> parts_;
};

/// A rank among all, and among those of its host.
struct Place {
  int rank, size;
  int local_rank;
  KeptParts* kept = nullptr;  ///< of ranks that are threads
};

class Job {
 public:
  /// Reads the data. Every problem that the command line or a file can cause shows here, before any rank exists.
  static Outcome<Job> prepare(const Options& options);

  /// A rank's whole life; the result is its exit code. Rank 0 prints.
  int run_rank(const Place& place, const ncclUniqueId& id) const;

 private:
  Problem read_data();
  Outcome<std::unique_ptr<Backend>> make_backend(int local_rank) const;
  std::unique_ptr<Model> make_model(Backend& backend) const;
  struct Parts;
  Problem live(Parts& parts, const Place& place, const ncclUniqueId& id) const;
  Problem train(const Backend& backend, Model& model, Replicas& replicas, Trainer& trainer) const;
  void print_heading(const Backend& backend, const Model& model, std::int64_t steps, int size) const;
  Problem print_summary(const HeldOut& held_out, double seconds, Model& model, const float* parameters) const;

  Options options_;
  // The one that options_.model wants.
  std::unique_ptr<ImageDataset> images_;
  std::unique_ptr<TextDataset> text_;
  const Dataset* dataset_ = nullptr;
};

}  // namespace tutti::trainer
