// A plan: the algorithm chosen for a call, its program for this rank, and how the buffers are cut.
#pragma once

#include "algorithm/algorithm.h"
#include "base/result.h"
#include "planner/rules.h"
#include "schedule/tiling.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tutti::planner {

/// How well ranks reach each other's buffers in a call: the least of all ranks.
enum class Access : std::uint8_t {
  kSlots,       ///< through the channel's slots only
  kSingleCopy,  ///< by process_vm_readv and writev
  kMapped,      ///< by loads and stores
};
std::string_view name_of(Access access);

/// By what a call's candidate is chosen. What is measured when a communicator is made holds for the cores and pages of then.
enum class Way : std::uint8_t {
  kMeasured,  ///< the least price by what was measured
  kMoved,     ///< the least price if the cores have moved since (rules.h)
  kOther,     ///< of those whose data goes otherwise (by single copies, not slots, or the reverse) the least price
};
inline constexpr int kWays = 3;

/// Everything a plan depends on. Equal on every rank of a call.
struct Question {
  schedule::Request request;
  std::uint64_t count = 0;  ///< elements per block, not 0
  std::uint32_t element_bytes = 1;
  Access access = Access::kSlots;
  bool in_place = false;
  bool mixed = false;  ///< in place on some ranks and out of place on others: asked for schedules that are set alone
  bool wide_wire = false;  ///< wide messages are float32: a sum that uses_wide_wire
  Way way = Way::kMeasured;
  bool exchange = false;  ///< a send whose receiver sends as well: each of the two copies for both
  bool set = false;       ///< by the schedule that the user has set (set_schedule.h)

  friend bool operator==(const Question&, const Question&) = default;
};

/// What put a candidate before the others.
enum class Reason : std::uint8_t {
  kPrice,        ///< the cost model's
  kNamed,        ///< the same, among those that NCCL_ALGO leaves
  kTuning,       ///< a rule of the tuning (tuning.h)
  kSingleCopy,   ///< TUTTI_SINGLE_COPY_MIN_BYTES
  kSetSchedule,  ///< tuttiCommSetSchedule
};

struct Plan {
  const algorithm::Algorithm* algorithm = nullptr;
  std::shared_ptr<const schedule::RankProgram> program;  ///< this rank's
  schedule::Shape shape;
  schedule::Tiling tiling;
  Access access = Access::kSlots;
  bool direct = false;
  bool lines = false;          ///< what is not direct goes as lines
  bool streams_slots = false;  ///< slots are written past the caches
  bool wide_wire = false;      ///< wide messages are float32
  Reason reason = Reason::kPrice;
  double predicted_us = 0;
  std::size_t scratch_bytes = 0;  ///< per lane
};

/// One candidate of the planner's choice, for explanations.
struct Candidate {
  const algorithm::Algorithm* algorithm = nullptr;
  bool direct = false;
  /// Units of its widest message through slots; 0: none, or among more than kWholeRanksMax ranks, where make_plan() finds out.
  std::uint32_t widest = 0;
  double predicted_us = 0;
  std::uint32_t widest_wide = 0;  ///< the same of those that are float32, which do not count above
  Reason reason = Reason::kPrice;
};

/// All candidates the rules admit: first the one that shall run, then the others, cheapest first. kInvalidUsage if they leave none.
/// NCCL_ALGO, reproducible sums and a float32 wire say which there are; of these TUTTI_SINGLE_COPY_MIN_BYTES prefers the
/// direct ones, then the tuning says which, then the price does.
Result<std::vector<Candidate>> candidates(const Question& question, const Rules& rules);

/// How many times too high the prices of this question's single copies (`direct`) may be, or of its slots: those of much data are what the
/// machine's caches make of them.
double doubt(const Question& question, const Rules& rules, bool direct);

/// A size given by the user is an order, not a price: from there on single copies come first.
void put_ordered_first(std::vector<Candidate>& found, const Question& question, const Rules& rules);

/// The schedule as a candidate; `name` is the row that is shown for it.
Candidate make_candidate(const algorithm::Algorithm& name, const schedule::Schedule& schedule, const Question& question,
                         const Rules& rules, bool direct);

/// Why it runs, in words: "the lowest expected time", and by which measurements if there are any.
std::string describe_reason(const Question& question, const Rules& rules, const Candidate& chosen);

/// The plan that runs this candidate for `rank`.
Plan make_plan(const Question& question, const Rules& rules, const Candidate& candidate, int rank);
/// The same of a program and shape that are none of the table's.
Plan make_plan(const Question& question, const Rules& rules, const Candidate& candidate,
               std::shared_ptr<const schedule::RankProgram> program, const schedule::Shape& shape);

}  // namespace tutti::planner
