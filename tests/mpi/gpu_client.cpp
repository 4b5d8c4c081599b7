// A rank of an MPI program whose Tutti communicators are on GPU memory: of a driver without a GPU, whose memory is the process's, so that
// any MPI takes it. Built once with each MPI. What the plug-in posts of users' memory is looked at, and meddled with. Every rank prints
// lines of its own.
//
// usage: mpi-gpu-client CASE [RANKS_PER_HOST]
//   CASE   sends, differ, default-stream, captured, killed, abort, abort-self, error
// The ranks believe that they are on hosts of RANKS_PER_HOST (default 1) ranks each. TEST_MPI_SAYS=0 or 1 answers for MPI whether it takes
// GPU memory.
#include "fake_driver.h"
#include "gpu.h"
#include "mpi_rank.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

using namespace tutti::test;

namespace {

/// The plug-in's, of messages of users' memory.
constexpr int kMessageTag = 2;
/// Nobody sends with it.
constexpr int kNobodysTag = 77;

std::atomic<long> mpi_calls{0};

/// Such messages, sent and received.
struct Posted {
  std::atomic<long> messages{0};
  std::atomic<long> on_gpu{0};  ///< of them: in memory of the GPU
  std::atomic<long> bytes{0};
  std::atomic<long> without_context{0};
  std::atomic<long> cancelled{0};
} posted;

enum class Meddling { kNone, kWithholdSends, kFailSends };
std::atomic<Meddling> meddling{Meddling::kNone};
MPI_Request withheld = MPI_REQUEST_NULL;
char nothing = 0;

/// This rank's memory on the GPU.
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

extern "C" {
int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  ++mpi_calls;
  if (tag == kMessageTag) note_message(data, count);
  if (tag == kMessageTag && meddling == Meddling::kFailSends) return MPI_ERR_OTHER;
  if (tag == kMessageTag && meddling == Meddling::kWithholdSends) {
    const int result = PMPI_Irecv(&nothing, 1, MPI_BYTE, to, kNobodysTag, comm, request);
    withheld = *request;
    return result;
  }
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}
int MPI_Irecv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request) {
  ++mpi_calls;
  if (tag == kMessageTag) note_message(data, count);
  return PMPI_Irecv(data, count, type, from, tag, comm, request);
}
int MPI_Test(MPI_Request* request, int* done, MPI_Status* status) {
  ++mpi_calls;
  return PMPI_Test(request, done, status);
}
int MPI_Cancel(MPI_Request* request) {
  ++mpi_calls;
  ++posted.cancelled;
  return PMPI_Cancel(request);
}
#ifdef OPEN_MPI
__attribute__((visibility("default"))) int MPIX_Query_cuda_support() { return answer(0); }
#else
__attribute__((visibility("default"))) int MPIX_GPU_query_support(int kind, int* can) {
  *can = kind == 0 ? answer(0) : 0;
  return MPI_SUCCESS;
}
#endif
}

namespace {

class Buffer {
 public:
  explicit Buffer(const std::vector<std::uint8_t>& values) : memory_(values) {
    const std::lock_guard lock(ranges_mutex);
    ranges[reinterpret_cast<const std::byte*>(memory_.data())] = values.size();
  }
  ~Buffer() {
    const std::lock_guard lock(ranges_mutex);
    ranges.erase(reinterpret_cast<const std::byte*>(memory_.data()));
  }
  std::uint8_t* data() const { return memory_.data(); }
  std::vector<std::uint8_t> read() const { return memory_.read(); }
  void write(const std::vector<std::uint8_t>& values) const { memory_.write(values); }

 private:
  OnGpu<std::uint8_t> memory_;
};

constexpr std::uint8_t kPoison = 0xa5;

std::uint8_t value(int from, int to, std::size_t message, std::size_t i) {
  return static_cast<std::uint8_t>(from * 31 + to * 57 + static_cast<int>(message) * 17 +
                                   static_cast<int>(i * 7 + i / 251));
}

/// Messages of one rank to another, or from it: one behind the other with odd gaps, so that most begin anywhere.
struct Layout {
  std::vector<std::size_t> sizes;
  std::vector<std::size_t> at;
  std::size_t total = 1;

  explicit Layout(std::vector<std::size_t> all) : sizes(std::move(all)) {
    for (const std::size_t bytes : sizes) {
      at.push_back(total);
      total += bytes + 3;
    }
  }
  std::vector<std::uint8_t> filled(int from, int to) const {
    std::vector<std::uint8_t> data(total, kPoison);
    for (std::size_t m = 0; m < sizes.size(); ++m) {
      for (std::size_t i = 0; i < sizes[m]; ++i) data[at[m] + i] = value(from, to, m, i);
    }
    return data;
  }
};

struct Rank {
  ncclComm_t comm = nullptr;
  int ranks = 0;
  int per_host = 1;
  CUstream stream = nullptr;
  std::size_t far_bytes = 0;  ///< sent and received

  bool is_far(int peer) const { return peer / per_host != me / per_host; }
};

Rank open(int per_host) {
  Rank rank;
  rank.comm = join(world, me, share_id(true), true);
  rank.ranks = world;
  rank.per_host = per_host;
  rank.stream = Gpu::get().make_stream();
  return rank;
}

void close(Rank& rank) {
  check(ncclCommDestroy(rank.comm), "ncclCommDestroy");
  Gpu::get().destroy(rank.stream);
}

/// Every rank with every other, all messages in one group; the receives before the sends or after them.
void exchange(Rank& rank, const Layout& layout, bool receives_first) {
  std::vector<std::unique_ptr<Buffer>> in, out;
  for (int peer = 0; peer < rank.ranks; ++peer) {
    in.push_back(std::make_unique<Buffer>(layout.filled(me, peer)));
    out.push_back(std::make_unique<Buffer>(std::vector<std::uint8_t>(layout.total, kPoison)));
  }
  const auto all = [&](bool receives) {
    for (int peer = 0; peer < rank.ranks; ++peer) {
      for (std::size_t m = 0; m < layout.sizes.size() && peer != me; ++m) {
        const std::size_t bytes = layout.sizes[m];
        check(receives ? ncclRecv(out[peer]->data() + layout.at[m], bytes, ncclUint8, peer, rank.comm, rank.stream)
                       : ncclSend(in[peer]->data() + layout.at[m], bytes, ncclUint8, peer, rank.comm, rank.stream),
              receives ? "ncclRecv" : "ncclSend");
        if (rank.is_far(peer)) rank.far_bytes += bytes;
      }
    }
  };
  check(ncclGroupStart(), "ncclGroupStart");
  all(receives_first);
  all(!receives_first);
  check(ncclGroupEnd(), "ncclGroupEnd");
  Gpu::get().wait(rank.stream);
  for (int peer = 0; peer < rank.ranks; ++peer) {
    if (peer != me) expect(out[peer]->read() == layout.filled(peer, me), "what came from rank " + std::to_string(peer));
  }
}

/// Calls one by one: each rank with the next one, even ranks send first.
void pass_on(Rank& rank, std::size_t bytes) {
  const Layout layout({bytes});
  const int next = me ^ 1;
  if (next >= rank.ranks) return;
  const Buffer in(layout.filled(me, next));
  const Buffer out(std::vector<std::uint8_t>(layout.total, kPoison));
  for (const bool sends : {me % 2 == 0, me % 2 != 0}) {
    check(sends ? ncclSend(in.data() + 1, bytes, ncclUint8, next, rank.comm, rank.stream)
                : ncclRecv(out.data() + 1, bytes, ncclUint8, next, rank.comm, rank.stream),
          "a lone call");
  }
  if (rank.is_far(next)) rank.far_bytes += 2 * bytes;
  Gpu::get().wait(rank.stream);
  expect(out.read() == layout.filled(next, me), "a lone receive of " + std::to_string(bytes));
}

void say_what_was_posted(std::size_t far_bytes) {
  const fake_driver::Staged staged = fake_driver::staged();
  say("posted %ld messages, %ld on the GPU, %ld bytes of %zu, %ld without a context; %llu bytes staged, %s",
      posted.messages.load(), posted.on_gpu.load(), posted.bytes.load(), far_bytes, posted.without_context.load(),
      static_cast<unsigned long long>(staged.bytes), staged.flushes != 0 ? "flushed" : "not flushed");
}

/// Two communicators, whose calls take turns.
void case_sends(int per_host) {
  Rank first = open(per_host);
  Rank second = open(per_host);
  for (const std::size_t bytes : {0ul, 1ul, 2ul, 3ul, 7ul, 127ul, 1009ul, 4096ul, 4099ul, 8191ul, 65537ul, 300007ul}) {
    pass_on(first, bytes);
    exchange(second, Layout({bytes}), false);
  }
  exchange(first, Layout({5, 70001, 0, 3, 9001, 1}), true);
  exchange(second, Layout({200003, 0, 64, 1}), false);
  std::uint64_t sent = 0;
  check(tuttiCommWireBytes(first.comm, &sent), "tuttiCommWireBytes");
  say("wire %s", sent >= first.far_bytes / 2 ? "enough" : "too little");
  say_what_was_posted(first.far_bytes + second.far_bytes);
  close(first);
  close(second);
}

/// The communicator's failure, once there is one, and that the stream comes to its end.
void say_failure(const Rank& rank) {
  ncclResult_t state = ncclSuccess;
  for (const auto start = Clock::now(); state == ncclSuccess && seconds_since(start) < 30;) {
    check(ncclCommGetAsyncError(rank.comm, &state), "ncclCommGetAsyncError");
    std::this_thread::sleep_for(milliseconds(1));
  }
  Gpu::get().wait(rank.stream);
  say("failed %d %s", static_cast<int>(state), ncclGetLastError(rank.comm));
}

/// Rank 0 sends 5000 bytes, or what it is told; rank 1 receives into what comes back.
std::unique_ptr<Buffer> send_one(const Rank& rank, std::size_t sent = 5000, std::size_t received = 5000) {
  auto buffer = std::make_unique<Buffer>(std::vector<std::uint8_t>(std::max(sent, received), kPoison));
  check(me == 0 ? ncclSend(buffer->data(), sent, ncclUint8, 1, rank.comm, rank.stream)
                : ncclRecv(buffer->data(), received, ncclUint8, 0, rank.comm, rank.stream),
        "the call");
  return buffer;
}

bool is_untouched(const Buffer& buffer) {
  return std::ranges::all_of(buffer.read(), [](std::uint8_t v) { return v == kPoison; });
}

/// Both are told, nothing has moved, and the next calls are as good as ever.
void case_differ(int per_host) {
  Rank rank = open(per_host);
  const auto buffer = send_one(rank, 100, 90);
  say_failure(rank);
  say("before %s, %ld messages", is_untouched(*buffer) ? "untouched" : "written", posted.messages.load());
  exchange(rank, Layout({1000}), false);
  say_what_was_posted(rank.far_bytes);
  close(rank);
}

/// Calls on streams behind which CUDA would put MPI's own copies: of both ranks, and of one.
void case_default_stream(int per_host) {
  Rank rank = open(per_host);
  CUstream const fit = rank.stream;
  CUstream const blocking = Gpu::get().make_blocking_stream();
  for (CUstream of_rank_1 : {blocking, CUstream{}, fit}) {
    rank.stream = me == 1 ? of_rank_1 : blocking;
    exchange(rank, Layout({0, 1009, 100003}), false);
  }
  rank.stream = fit;
  say_what_was_posted(rank.far_bytes);
  Gpu::get().destroy(blocking);
  close(rank);
}

/// Captured on both ranks, then on rank 0 only; with calls between the replays.
void case_captured(int per_host) {
  const Gpu& gpu = Gpu::get();
  Rank rank = open(per_host);
  const Layout layout({0, 77, 100003});
  const int peer = 1 - me;
  const Buffer in(std::vector<std::uint8_t>(layout.total, 0));
  const Buffer out(std::vector<std::uint8_t>(layout.total, 0));
  const auto call = [&] {
    check(ncclGroupStart(), "ncclGroupStart");
    for (std::size_t m = 0; m < layout.sizes.size(); ++m) {
      check(ncclSend(in.data() + layout.at[m], layout.sizes[m], ncclUint8, peer, rank.comm, rank.stream), "send");
      check(ncclRecv(out.data() + layout.at[m], layout.sizes[m], ncclUint8, peer, rank.comm, rank.stream), "receive");
    }
    check(ncclGroupEnd(), "ncclGroupEnd");
  };
  gpu.begin_capture(rank.stream);
  call();
  CUgraph graph = gpu.end_capture(rank.stream);
  expect(graph != nullptr, "the capture was spoilt");
  CUgraphExec executable = gpu.make_executable(graph);
  for (int replay = 0; replay < 6; ++replay) {
    in.write(layout.filled(me + replay, peer));
    out.write(std::vector<std::uint8_t>(layout.total, kPoison));
    const bool is_captured = replay < 3 || me == 0;
    if (is_captured) {
      gpu.launch(executable, rank.stream);
    } else {
      call();
    }
    gpu.wait(rank.stream);
    expect(out.read() == layout.filled(peer + replay, me), "replay " + std::to_string(replay));
    if (replay == 2) say_what_was_posted(3 * 2 * (77 + 100003));
  }
  say("mixed %ld on the GPU", posted.on_gpu.load());
  gpu.destroy(executable);
  gpu.destroy(graph);
  close(rank);
}

void wait_for_message() {
  for (const auto start = Clock::now(); posted.messages == 0 && seconds_since(start) < 30;)
    std::this_thread::sleep_for(milliseconds(1));
}

/// Rank 0 is killed when its send should be on its way, and rank 1's receive is posted.
void case_killed(int per_host) {
  Rank rank = open(per_host);
  MPI_Barrier(MPI_COMM_WORLD);
  if (me == 0) meddling = Meddling::kWithholdSends;
  const auto buffer = send_one(rank);
  wait_for_message();
  if (me == 0) {
    std::this_thread::sleep_for(milliseconds(300));
    raise(SIGKILL);
  }
  say_failure(rank);
  const long before = mpi_calls;
  say("after %s, %ld cancelled", is_untouched(*buffer) ? "untouched" : "written", posted.cancelled.load());
  check(ncclCommAbort(rank.comm), "ncclCommAbort");
  std::this_thread::sleep_for(milliseconds(20));
  say("quiet %ld calls", static_cast<long>(mpi_calls) - before);
  std::_Exit(0);
}

/// The receive is posted, and nothing comes: rank `aborts` ends it. MPI stays as usable as it was.
void case_abort(int per_host, int aborts) {
  Rank rank = open(per_host);
  MPI_Barrier(MPI_COMM_WORLD);
  if (me == 0) meddling = Meddling::kWithholdSends;
  const auto buffer = send_one(rank);
  wait_for_message();
  std::this_thread::sleep_for(milliseconds(me == aborts ? 300 : 0));
  if (me != aborts) say_failure(rank);
  check(ncclCommAbort(rank.comm), "ncclCommAbort");
  Gpu::get().wait(rank.stream);
  say("after %s, %ld cancelled", is_untouched(*buffer) ? "untouched" : "written", posted.cancelled.load());
  meddling = Meddling::kNone;
  if (me == 0) {
    PMPI_Cancel(&withheld);
    PMPI_Wait(&withheld, MPI_STATUS_IGNORE);
  }
  Rank next = open(per_host);
  exchange(next, Layout({1000, 70001}), false);
  close(next);
}

/// MPI does not take what rank 0 sends.
void case_error(int per_host) {
  Rank rank = open(per_host);
  MPI_Barrier(MPI_COMM_WORLD);
  if (me == 0) meddling = Meddling::kFailSends;
  const auto buffer = send_one(rank);
  say_failure(rank);
  check(ncclCommAbort(rank.comm), "ncclCommAbort");
  say("after %s, %ld cancelled", is_untouched(*buffer) ? "untouched" : "written", posted.cancelled.load());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "sends";
  const int per_host = argc > 2 ? std::atoi(argv[2]) : 1;
  int provided = -1;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  expect(provided == MPI_THREAD_MULTIPLE, "MPI gave another thread level");
  MPI_Comm_rank(MPI_COMM_WORLD, &me);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  setenv("NCCL_HOSTID", ("host-" + std::to_string(me / per_host)).c_str(), 1);
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);  // each of the drivers has one GPU, all the same
  expect(Gpu::why_not().empty(), Gpu::why_not());
  if (name == "sends") case_sends(per_host);
  if (name == "differ") case_differ(per_host);
  if (name == "default-stream") case_default_stream(per_host);
  if (name == "captured") case_captured(per_host);
  if (name == "killed") case_killed(per_host);
  if (name == "abort") case_abort(per_host, 0);
  if (name == "abort-self") case_abort(per_host, 1);
  if (name == "error") case_error(per_host);
  MPI_Finalize();
  say("done");
  return 0;
}
