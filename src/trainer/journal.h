// What a run tells: progress lines, the JSONL log, the loss curve. Rank 0's alone.
#pragma once

#include "trainer/options.h"
#include "trainer/outcome.h"

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <vector>

namespace tutti::trainer {

struct StepRecord {
  std::int64_t step = 0;  ///< from 1
  double loss = 0;        ///< mean over the batch, natural logarithm, before the update
  double accuracy = 0;    ///< share of the batch
  double lr = 0;
  std::size_t samples = 0;  ///< in the global batch
  double step_ms = 0;
  double comm_ms = 0;                       ///< of these, the time this rank stood still for communication
  std::optional<std::uint64_t> param_hash;  ///< where the replicas were compared (and found equal)
};

/// What the held-out samples say at the end. samples == 0: nothing was held out.
struct HeldOut {
  std::size_t samples = 0;
  double loss = 0;
  double accuracy = 0;
};

class Journal {
 public:
  /// Can the log and the plot be written? Asked before any rank starts, not after the training.
  static Problem check_paths(const Options& options);
  static Outcome<Journal> open(const Options& options, std::int64_t steps);

  Problem step(const StepRecord& record);
  /// The log's last line, and the plot.
  Problem finish(const HeldOut& held_out);
  /// Nobody reads what is printed any more, and no file is wanted.
  bool is_unread() const { return reader_has_gone_ && log_path_.empty() && plot_path_.empty(); }

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  using File = std::unique_ptr<std::FILE, CloseFile>;

  Problem print_progress(std::int64_t step);
  Problem write_log(std::string line);

  ModelKind model_ = ModelKind::kLm;
  std::int64_t steps_ = 0, report_every_ = 1;
  std::string log_path_, plot_path_;
  File log_;
  std::size_t log_bytes_ = 0;  ///< of whole lines
  bool reader_has_gone_ = false;
  std::vector<StepRecord> records_;  ///< for the plot
  StepRecord since_report_;          ///< sums over the steps behind its `step`
};

}  // namespace tutti::trainer
