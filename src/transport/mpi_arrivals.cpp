#include "transport/mpi_arrivals.h"

#include <algorithm>
#include <utility>

namespace tutti::transport {

std::size_t MpiArrivals::add() {
  const std::lock_guard lock(mutex_);
  receives_.push_back(MPI_REQUEST_NULL);
  bytes_.push_back(kNotYet);
  seen_.push_back(questions_);
  done_.resize(receives_.size());
  statuses_.resize(receives_.size());
  return receives_.size() - 1;
}

void MpiArrivals::await(std::size_t place, MPI_Request receive) {
  const std::lock_guard lock(mutex_);
  receives_[place] = receive;
  bytes_[place] = kNotYet;
}

int MpiArrivals::found(std::size_t place, bool may_ask) {
  const std::lock_guard lock(mutex_);
  if (bytes_[place] == kNotYet && may_ask && seen_[place] == questions_) ask();
  seen_[place] = questions_;
  return bytes_[place];
}

MPI_Request MpiArrivals::withdraw(std::size_t place) {
  const std::lock_guard lock(mutex_);
  return std::exchange(receives_[place], MPI_REQUEST_NULL);
}

/// As MPI_Testsome has it. Of one link by MPI_Test: Open MPI looks again there once it has gone on.
int MpiArrivals::test(int* count) {
  if (receives_.size() != 1 || receives_[0] == MPI_REQUEST_NULL)
    return MPI_Testsome(static_cast<int>(receives_.size()), receives_.data(), count, done_.data(), statuses_.data());
  done_[0] = 0;
  return MPI_Test(receives_.data(), count, statuses_.data());
}

/// With the lock.
void MpiArrivals::ask() {
  ++questions_;
  int count = 0;
  const int result = test(&count);
  if (result != MPI_SUCCESS && result != MPI_ERR_IN_STATUS) {
    std::ranges::fill(bytes_, kFailed);
    return;
  }
  if (count == MPI_UNDEFINED) return;  // nobody waits
  for (int i = 0; i < count; ++i) {
    const int place = done_[static_cast<std::size_t>(i)];
    const MPI_Status& status = statuses_[static_cast<std::size_t>(i)];
    const bool is_good = result == MPI_SUCCESS || status.MPI_ERROR == MPI_SUCCESS;
    int& bytes = bytes_[static_cast<std::size_t>(place)];
    if (!is_good || MPI_Get_count(&status, MPI_BYTE, &bytes) != MPI_SUCCESS) bytes = kFailed;
  }
}

}  // namespace tutti::transport
