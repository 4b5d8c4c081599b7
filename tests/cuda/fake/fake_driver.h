// A CUDA driver without a GPU: a libcuda.so.1 whose devices are memory of this process. Streams are queues that are worked off while somebody
// waits, in an order that changes; nothing runs before that, so that a missing order between streams shows as wrong results. Once a stream
// has waited for a word in memory, a thread works the queues off: whoever stores the word may wait for what the stream does before.
// Kernels are the library's own, run on the host. What capture forbids is refused, and any call can be made to fail.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fake_driver {

#define FAKE_EXPORT __attribute__((visibility("default")))

/// Devices that cuInit finds; 1 if not set, or FAKE_CUDA_DEVICES. Before the first call.
FAKE_EXPORT void set_devices(int count);

// FAKE_CUDA_IPC=0: memory cannot be shared with other processes. FAKE_CUDA_VERSION=12040: the driver says that it is of CUDA 12.4.
// FAKE_CUDA_MISSING=cuStreamGetId: it has no such function, as an older one.
// FAKE_CUDA_PEERS="0-1 2>1": these devices reach each other's memory (2>1: the first the second's, but not back), and no others, in one
// process and in several; FAKE_CUDA_PEERS_MOST=4: a device so many others', in one process. FAKE_CUDA_TURNS=/path: the processes that share this file have the GPU by turns (turns.h).
// FAKE_CUDA_ROOM=16: so many operations wait on a stream at most, 1024 if not set; whoever gives it more waits. FAKE_CUDA_IDLE_MAPPING=1: calls
// that change what memory of other devices and processes is mapped, and cuMemHostUnregister, wait until this process's streams have nothing to do, as
// a driver's may, and cuMemFree until its device has nothing to do.

/// Whether devices reach each other's memory; true if not set. Before communicators are made.
FAKE_EXPORT void set_peers(bool reach);

/// So many bytes of device memory and no more can be allocated (cuMemAlloc), on all devices together; 0: as many as there are.
FAKE_EXPORT void set_memory(std::int64_t bytes);

/// Whether calls count, and can fail: while the library is called, not the test's own. At first they do not.
FAKE_EXPORT void set_counting(bool counts);
/// Driver calls that counted so far.
FAKE_EXPORT std::uint64_t calls();
/// The call after so many more (1: the next) fails once with this error; 0: none does. `lasts`: and so do all after it, as those of a context
/// in which a kernel went wrong.
FAKE_EXPORT void fail_after(std::uint64_t more, CUresult error, bool lasts = false);
/// The name of the function that failed so; empty: none has yet.
FAKE_EXPORT std::string failed_function();

/// What exists.
struct Live {
  std::int64_t device_allocations = 0;
  std::int64_t device_bytes = 0;
  std::int64_t host_allocations = 0;
  std::int64_t host_bytes = 0;
  std::int64_t imports = 0;
  std::int64_t registrations = 0;
  std::int64_t streams = 0;
  std::int64_t events = 0;
  std::int64_t modules = 0;
  std::int64_t contexts = 0;
  std::int64_t user_objects = 0;

  friend bool operator==(const Live&, const Live&) = default;
};
FAKE_EXPORT Live live();
FAKE_EXPORT std::string describe(const Live& live);

/// Kernels that were given to streams so far, and how many of them were captured.
FAKE_EXPORT std::uint64_t launches();

/// How often it was asked so far to export memory that is of no such kind, which tools tell as the program's error.
FAKE_EXPORT std::uint64_t refused_exports();

/// What streams were given so far that has to do with pinned memory: bytes that they copy to and from it, replays of graphs apart, and waits
/// for words there that flush what others have written to the device.
struct Staged {
  std::uint64_t bytes = 0;
  std::uint64_t flushes = 0;
  std::uint64_t rows = 0;  ///< copies made as rows
};
FAKE_EXPORT Staged staged();

/// What a stream was given: a kernel, the record of an event, or a wait for one; a copy to host memory, or of anything else; a wait for a
/// word in memory; or a graph, an event outside of it that its launches record or wait for.
struct Given {
  enum class What { kKernel, kRecord, kWait, kCopyToHost, kCopy, kWaitForWord, kOutside } what = What::kKernel;
  CUstream stream = nullptr;
  std::string kernel{};
  /// Of a wait: the record's place among all that was given; none: it was not noted.
  std::optional<std::size_t> record{};
  std::size_t bytes = 0;  ///< of a copy
};
/// Notes what streams are given from now on, in the order of the calls of all threads; forgets what was noted before.
FAKE_EXPORT void note_given();
FAKE_EXPORT std::vector<Given> given();

/// Whether a thread takes a while to launch a kernel or to record an event, in which others may give theirs. At first it does not.
FAKE_EXPORT void set_naps(bool naps);

/// Whether a stream that is destroyed while it has work ends at once for its program, as streams of CUDA's do: the work goes on, and the next
/// stream has its handle. At first its end waits for the work.
FAKE_EXPORT void set_quick_ends(bool quick);

/// Whether this thread is in a function of the driver's, but for functions of the program's that are called from there.
FAKE_EXPORT bool is_inside();

/// Another seed, another order of the streams.
FAKE_EXPORT void set_seed(std::uint64_t seed);

}  // namespace fake_driver
