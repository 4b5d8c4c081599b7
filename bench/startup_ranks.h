// Ranks of the start-up benchmark: processes or threads that meet at barriers, with one board on which they write.
#pragma once

#include "startup_footprint.h"

#include "base/result.h"

#include <nccl.h>

#include <array>
#include <atomic>
#include <functional>
#include <string>
#include <vector>

namespace tutti::bench {

inline constexpr int kStartupRanksMax = 64;
inline constexpr int kStartupSamplesMax = 1000;

/// What is timed: from the last rank's arrival at a barrier to the last rank's return.
enum class Measure { kFirst, kInit, kDestroy, kSplit, kMeasures };
/// When the ranks' memory is looked at.
enum class Stage { kBefore, kInit, kAllReduce, kSends, kAfter, kStages };

struct Samples {
  std::array<double, kStartupSamplesMax> us;
  int count;
};

/// In memory that all ranks and the caller share, zero-filled.
struct Board {
  std::atomic<int> arrived;
  std::atomic<unsigned> generation;
  double released_us;
  std::array<double, kStartupRanksMax> returned_us;
  ncclUniqueId id;
  std::array<Samples, static_cast<std::size_t>(Measure::kMeasures)> samples;
  std::array<std::array<Footprint, kStartupRanksMax>, static_cast<std::size_t>(Stage::kStages)> footprints;

  std::vector<double> times(Measure measure) const;
};

/// One rank at work.
class Seat {
 public:
  Seat(int rank, int ranks, const ncclUniqueId& first, Board& board)
      : rank_(rank), ranks_(ranks), first_(first), board_(board) {}

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  void meet();
  /// All ranks call at once; rank 0 keeps the time.
  Status time(Measure measure, const std::function<Status()>& call);
  /// One rank after the other, while the others wait.
  void look(Stage stage);

  /// The first communicator is made with the launcher's id, the others with ids of rank 0's.
  Status init(Measure measure, ncclComm_t& comm);
  Status destroy(ncclComm_t comm);

 private:
  int rank_;
  int ranks_;
  const ncclUniqueId& first_;
  bool first_used_ = false;
  Board& board_;
};

using RankBody = std::function<Status(Seat&)>;

struct Crew {
  bool threads = false;
  int ranks = 2;
  unsigned deadline_s = 0;  ///< ranks that take longer are ended
};

/// Runs the body on every rank in fresh processes (one for all threads) and waits for them.
Status run_crew(const Crew& crew, Board& board, const RankBody& body);

/// A board, emptied; it stays until the program ends.
Result<Board*> make_board();

}  // namespace tutti::bench
