// Calls of one number that differ among the ranks: what is said of them.
#include "comm/call.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace tutti::comm {

/// Some of `ranks`, which have all announced the call of number `last`, differ from this one in it or in an earlier one. Where they all
/// know that, the communicator goes on. If some rank may have gone on with what it believed to be a success, it fails.
Error CollectiveCall::mismatch(const std::vector<int>& ranks, std::uint32_t last) {
  std::uint32_t sequence = announcer_.met() + 1;
  const auto describe = [&](int r) { return signatures_.of(r, sequence).describe(); };
  const auto differs = [&](int r) { return describe(r) != describe(comm_.rank()); };
  while (sequence != last && std::ranges::none_of(ranks, differs)) ++sequence;
  const bool late = sequence != sequence_ || static_cast<int>(ranks.size()) < comm_.ranks() ||
                    std::ranges::any_of(ranks, [&](int r) { return signatures_.of(r, sequence).one_way != 0; });
  std::map<std::string, std::string> callers;
  for (int r : ranks) {
    std::string& who = callers[describe(r)];
    who += fmt::format("{}rank {}", who.empty() ? "" : ", ", r);
  }
  std::string text;
  for (const auto& [what, who] : callers) text += fmt::format("{}{} on {}", text.empty() ? "" : "; ", what, who);
  Error failure =
      error(Code::kInvalidUsage,
            fmt::format("the ranks' calls {}differ{}: {}. Every rank must make the same call with the same "
                        "arguments",
                        late ? fmt::format("#{} ", sequence) : "", late ? "" : ", and nothing was done", text));
  if (late) {
    comm_.fail(failure.code, -1, name() + ": " + failure.message);
  } else {
    announcer_.forget_history();
  }
  return failure;
}

/// Over hosts the lines of earlier one-way calls may come later than this call's: then it is not known yet which call differs.
bool CollectiveCall::knows_calls(const std::vector<int>& ranks, std::uint32_t last) const {
  for (std::uint32_t sequence = announcer_.met() + 1; static_cast<std::int32_t>(last - sequence) >= 0; ++sequence) {
    for (const int r : ranks)
      if (static_cast<std::int32_t>(signatures_.of(r, sequence).sequence - sequence) < 0) return false;
  }
  return true;
}

/// This rank and those whose lines it reads.
std::vector<int> CollectiveCall::ranks_read() const {
  std::vector<int> ranks;
  for (int r = 0; r < comm_.ranks(); ++r) {
    if (r == comm_.rank() || reads_.has(static_cast<std::uint32_t>(r))) ranks.push_back(r);
  }
  return ranks;
}

}  // namespace tutti::comm
