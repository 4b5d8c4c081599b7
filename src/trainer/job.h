// One run from its options: what all ranks share (read once, before they start), and what each of them does.
#pragma once

#include "trainer/dataset.h"
#include "trainer/model.h"
#include "trainer/options.h"
#include "trainer/outcome.h"
#include "trainer/trainer.h"

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
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

/// "12 MB", "1.5 GB"
std::string memory_text(double bytes);

class Job {
 public:
  /// Reads the data. Every problem that the command line or a file can cause shows here, before any rank exists.
  static Outcome<Job> prepare(const Options& options);

  /// Bytes of host memory that each of so many ranks takes at least, with the model on the host.
  double bytes_of_rank(int ranks) const;
  bool is_of_text() const { return text_ != nullptr; }
  /// A rank's whole life; the result is its exit code. Rank 0 prints.
  int run_rank(const Place& place, const ncclUniqueId& id) const;

 private:
  Problem read_data();
  std::vector<std::size_t> layer_sizes() const;
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
