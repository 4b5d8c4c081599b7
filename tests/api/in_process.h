// Communicators whose ranks all live in this process, and checks of refusals, for the API tests.
#pragma once

#include <tutti/tutti.h>

#include <catch2/catch.hpp>

#include <string>
#include <vector>

namespace tutti::test {

/// All ranks of one communicator; aborted when it goes out of scope.
class Ranks {
 public:
  explicit Ranks(int count) : comms_(static_cast<std::size_t>(count), nullptr) {
    const ncclResult_t result = ncclCommInitAll(comms_.data(), count, nullptr);
    INFO(ncclGetLastError(nullptr));
    REQUIRE(result == ncclSuccess);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  ~Ranks() {
    for (ncclComm_t comm : comms_) ncclCommAbort(comm);
  }

  ncclComm_t operator[](int rank) const { return comms_[static_cast<std::size_t>(rank)]; }
  int count() const { return static_cast<int>(comms_.size()); }

 private:
  std::vector<ncclComm_t> comms_;
};

/// The call failed with `code`, and the reason names everything in `parts`.
inline void check_refused(ncclResult_t result, ncclResult_t code, const std::vector<std::string>& parts) {
  const std::string reason = ncclGetLastError(nullptr);
  INFO(reason);
  CHECK(result == code);
  for (const std::string& part : parts) CHECK_THAT(reason, Catch::Contains(part));
}

inline void check_invalid(ncclResult_t result, const std::vector<std::string>& parts) {
  check_refused(result, ncclInvalidArgument, parts);
}

/// Every rank adds ones in one group: the communicator works.
inline void check_usable(const Ranks& ranks) {
  std::vector<int> ones(static_cast<std::size_t>(ranks.count()), 1);
  REQUIRE(ncclGroupStart() == ncclSuccess);
  for (int r = 0; r < ranks.count(); ++r) {
    int* one = &ones[static_cast<std::size_t>(r)];
    CHECK(ncclAllReduce(one, one, 1, ncclInt, ncclSum, ranks[r], nullptr) == ncclSuccess);
  }
  const ncclResult_t result = ncclGroupEnd();
  INFO(ncclGetLastError(nullptr));
  CHECK(result == ncclSuccess);
  for (int one : ones) CHECK(one == ranks.count());
}

}  // namespace tutti::test
