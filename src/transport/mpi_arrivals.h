// MpiArrivals: the receives that the links of one communicator wait for, the oldest of each. MPI goes on with everything whenever it is asked
// for anything that is not done, by a system call at least: one question serves all links.
//
// Nothing here waits, posts or cancels: the requests and the memory that they write are the links' own (mpi_link.h). MPI is called by ask()
// alone, so only for a caller that has a pass and says that it may.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace tutti::transport {

class MpiArrivals {
 public:
  static constexpr int kNotYet = -1;
  static constexpr int kFailed = -2;

  /// A place for a link, which has no receive there yet.
  std::size_t add();
  /// The place's receive, until found() has told of it or it is withdrawn.
  void await(std::size_t place, MPI_Request receive);
  /// Bytes of the place's receive if it is done, kNotYet or kFailed. With a pass (MpiCalls), and if the caller `may_ask`, MPI is asked
  /// for all places, unless it has been since this place was last looked at.
  int found(std::size_t place, bool may_ask);
  /// MPI_REQUEST_NULL: it has none, or that is done.
  MPI_Request withdraw(std::size_t place);

 private:
  void ask();
  int test(int* count);

  std::mutex mutex_;  ///< of everything below
  std::vector<MPI_Request> receives_;
  std::vector<int> bytes_;
  std::vector<std::uint64_t> seen_;  ///< the last question of which each place knows the answer
  std::uint64_t questions_ = 0;
  std::vector<int> done_;  ///< MPI's answer
  std::vector<MPI_Status> statuses_;
};

}  // namespace tutti::transport
