// The verifier, part 4: no step writes a place twice. What it reads and what it writes is the same place or has nothing in
// common, as all its places have the same unit number (part 1).
#include "schedule/verifier_accesses.h"

#include <fmt/format.h>

#include <vector>

namespace tutti::schedule::verifier {
namespace {

/// What the step at hand has written.
class Overlaps {
 public:
  Overlaps(const Schedule& schedule, int lane, const Memory& memory, bool direct)
      : schedule_(schedule), lane_(lane), memory_(memory), direct_(direct), written_(memory.cells(), 0) {}

  Status check(StepRun run) {
    ++serial_;
    return for_each_access(schedule_, lane_, run, memory_, direct_, [&](const Access& access) -> Status {
      if (!access.write) return {};
      std::uint32_t& written = written_[access.cell];
      if (written == serial_) {
        return wrong(schedule_, {run.rank, lane_, run.step},
                     fmt::format("writes {} twice; each sink needs a place of its own", memory_.name_of(access.cell)));
      }
      written = serial_;
      return {};
    });
  }

 private:
  const Schedule& schedule_;
  int lane_;
  const Memory& memory_;
  bool direct_;
  std::vector<std::uint32_t> written_;  ///< by cell: the last step that wrote it
  std::uint32_t serial_ = 0;
};

}  // namespace

Status check_overlaps(const Schedule& schedule, int lane, const Memory& memory, bool direct) {
  Overlaps overlaps(schedule, lane, memory, direct);
  for (int rank = 0; rank < schedule.request.ranks; ++rank) {
    const std::size_t steps = lane_of(schedule, rank, lane).steps.size();
    for (std::uint32_t step = 0; step < steps; ++step) TUTTI_TRY(overlaps.check({rank, step}));
  }
  return {};
}

}  // namespace tutti::schedule::verifier
