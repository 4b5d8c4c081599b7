#include "watched_mpi.h"

#include "gpu.h"

#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

namespace tutti::test {
namespace {

/// The plug-in's tags, of messages of users' memory: of sends and receives, and of collectives.
bool is_message(int tag) { return tag == 2 || tag == 3; }
/// Nobody sends with it.
constexpr int kNobodysTag = 77;

MPI_Request withheld = MPI_REQUEST_NULL;
char nothing = 0;

std::mutex ranges_mutex;
std::map<const std::byte*, std::size_t> ranges;

bool is_on_gpu(const void* data) {
  const std::lock_guard lock(ranges_mutex);
  const auto* const at = static_cast<const std::byte*>(data);
  auto after = ranges.upper_bound(at);
  if (after == ranges.begin()) return false;
  --after;
  return at < after->first + after->second;
}

void note_message(const void* data, int bytes) {
  ++posted.messages;
  posted.on_gpu += is_on_gpu(data);
  posted.bytes += bytes;
  posted.without_context += !Gpu::get().has_context();
}

int answer(int fallback) {
  const char* const says = std::getenv("TEST_MPI_SAYS");
  return says == nullptr ? fallback : std::atoi(says);
}

}  // namespace

void drop_withheld() {
  if (withheld == MPI_REQUEST_NULL) return;
  PMPI_Cancel(&withheld);
  PMPI_Wait(&withheld, MPI_STATUS_IGNORE);
}

void note_gpu_memory(const void* data, std::size_t bytes) {
  const std::lock_guard lock(ranges_mutex);
  const auto* const at = static_cast<const std::byte*>(data);
  if (bytes == 0) {
    ranges.erase(at);
  } else {
    ranges[at] = bytes;
  }
}

}  // namespace tutti::test

using namespace tutti::test;

#pragma GCC visibility push(default)  // for the plug-in to find them
extern "C" {
int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  ++mpi_calls;
  if (is_message(tag)) note_message(data, count);
  if (is_message(tag) && meddling == Meddling::kFail) {
    while (!all_have_posted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return MPI_ERR_OTHER;
  }
  if (is_message(tag) && meddling == Meddling::kWithhold) {
    const int result = PMPI_Irecv(&nothing, 1, MPI_BYTE, to, kNobodysTag, comm, request);
    withheld = *request;
    return result;
  }
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}
int MPI_Irecv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request) {
  ++mpi_calls;
  if (is_message(tag)) note_message(data, count);
  return PMPI_Irecv(data, count, type, from, tag, comm, request);
}
int MPI_Test(MPI_Request* request, int* done, MPI_Status* status) {
  ++mpi_calls;
  if (meddling == Meddling::kRefuse) return MPI_ERR_OTHER;
  return PMPI_Test(request, done, status);
}
int MPI_Testsome(int count, MPI_Request* requests, int* done_count, int* done, MPI_Status* statuses) {
  ++mpi_calls;
  return PMPI_Testsome(count, requests, done_count, done, statuses);
}
int MPI_Cancel(MPI_Request* request) {
  ++mpi_calls;
  ++posted.cancelled;
  return PMPI_Cancel(request);
}
#ifdef OPEN_MPI
int MPIX_Query_cuda_support() { return answer(0); }
#else
int MPIX_GPU_query_support(int kind, int* can) {
  *can = kind == 0 ? answer(0) : 0;
  return MPI_SUCCESS;
}
#endif
}
#pragma GCC visibility pop
