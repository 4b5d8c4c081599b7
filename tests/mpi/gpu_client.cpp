// A rank of an MPI program whose Tutti communicators are on GPU memory: of a driver without a GPU, whose memory is the process's, so that
// any MPI takes it. Built once with each MPI. What the plug-in posts of users' memory is looked at, and meddled with. Every rank prints
// lines of its own.
//
// usage: mpi-gpu-client CASE [RANKS_PER_HOST]
//   CASE   sends, copies, all-collectives, sums, sums-staged, sums-side-by-side, captured-sums, differ, differ-sums, default-stream, captured, killed, killed-staged,
//          killed-sum, abort, abort-self, abort-copy, abort-staged, abort-sum, error
// The ranks believe that they are on hosts of RANKS_PER_HOST (default 1) ranks each. TEST_MPI_SAYS=0 or 1 answers for MPI whether it takes
// GPU memory.
#include "fake_driver.h"
#include "gpu.h"
#include "gpu_rank.h"
#include "gpu_sums.h"
#include "mpi_rank.h"
#include "watched_mpi.h"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

using namespace tutti::test;

namespace {

/// Collectives that copy: in every form, with sums and a broadcast between them. Returns bytes sent and received.
std::size_t copy_blocks(const Rank& rank, std::size_t bytes, bool with_others) {
  const int n = rank.ranks;
  const int root = n - 1;
  const auto ranks = static_cast<std::size_t>(n);
  const auto block = [&](int from, int to) {
    std::vector<std::uint8_t> data(bytes);
    for (std::size_t i = 0; i < bytes; ++i) data[i] = value(from, to, 0, i);
    return data;
  };
  const auto blocks = [&](const std::function<std::vector<std::uint8_t>(int)>& of) {
    std::vector<std::uint8_t> all;
    for (int r = 0; r < n; ++r) {
      const auto one = of(r);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  };
  const auto poison = [&](int) { return std::vector<std::uint8_t>(bytes, kPoison); };
  const Buffer in(blocks([&](int to) { return block(me, to); }));
  const Buffer out(blocks(poison));
  const auto check_output = [&](const char* what, ncclResult_t result, const std::vector<std::uint8_t>& wanted) {
    check(result, what);
    Gpu::get().wait(rank.stream);
    const std::vector<std::uint8_t> found = out.read();
    const auto differs = std::ranges::mismatch(found, wanted).in1 - found.begin();
    expect(found == wanted, std::string(what) + " of " + std::to_string(bytes) + " at " + std::to_string(differs));
    out.write(blocks(poison));
  };
  const auto u8 = ncclUint8;
  const auto first_alone = [&](const std::vector<std::uint8_t>& first) {
    return blocks([&](int r) { return r == 0 ? first : poison(r); });
  };
  check_output("all_gather", ncclAllGather(in.data(), out.data(), bytes, u8, rank.comm, rank.stream),
               blocks([&](int r) { return block(r, 0); }));
  check_output("all_to_all", ncclAlltoAll(in.data(), out.data(), bytes, u8, rank.comm, rank.stream),
               blocks([&](int r) { return block(r, me); }));
  check_output("gather", ncclGather(in.data(), out.data(), bytes, u8, root, rank.comm, rank.stream),
               blocks([&](int r) { return me == root ? block(r, 0) : poison(r); }));
  check_output("scatter", ncclScatter(in.data(), out.data(), bytes, u8, root, rank.comm, rank.stream),
               first_alone(block(root, me)));
  std::uint8_t* const own = out.data() + static_cast<std::size_t>(me) * bytes;
  out.write(blocks([&](int r) { return r == me ? block(me, 0) : poison(r); }));
  check_output("all_gather in place", ncclAllGather(own, out.data(), bytes, u8, rank.comm, rank.stream),
               blocks([&](int r) { return block(r, 0); }));
  if (with_others) {
    check_output("broadcast", ncclBroadcast(in.data(), out.data(), bytes, u8, root, rank.comm, rank.stream),
                 first_alone(block(root, 0)));
    check_output("max", ncclAllReduce(in.data(), out.data(), bytes, u8, ncclMin, rank.comm, rank.stream), [&] {
      std::vector<std::uint8_t> least(bytes, 255);
      for (int r = 0; r < n; ++r) {
        const auto other = block(r, 0);
        for (std::size_t i = 0; i < bytes; ++i) least[i] = std::min(least[i], other[i]);
      }
      return first_alone(least);
    }());
    out.write(in.read());
    check_output("all_to_all in place", ncclAlltoAll(out.data(), out.data(), bytes, u8, rank.comm, rank.stream),
                 blocks([&](int r) { return block(r, me); }));
  }
  // One that reads what another one of its group writes, beside a send.
  check(ncclGroupStart(), "ncclGroupStart");
  check(ncclAllGather(in.data(), out.data(), bytes, u8, rank.comm, rank.stream), "all_gather");
  check(ncclAlltoAll(out.data(), in.data(), bytes, u8, rank.comm, rank.stream), "all_to_all");
  check(ncclGroupEnd(), "ncclGroupEnd");
  Gpu::get().wait(rank.stream);
  expect(in.read() == blocks([&](int) { return block(me, 0); }), "an all_to_all of what was gathered");
  const std::size_t all = 2 * (ranks - 1) * bytes;
  return (with_others ? 6 : 5) * all + 2 * (me == root ? ranks - 1 : 1) * bytes;
}

void case_copies(int per_host, bool with_others) {
  Rank rank = open(per_host);
  // The longest sums and broadcasts that are staged are shorter than 64 KiB.
  for (const std::size_t bytes : {0ul, 1ul, 7ul, 1009ul, 20011ul, with_others ? 65535ul : 100003ul})
    rank.far_bytes += copy_blocks(rank, bytes, with_others);
  std::uint64_t sent = 0;
  check(tuttiCommWireBytes(rank.comm, &sent), "tuttiCommWireBytes");
  say("wire %s", sent >= rank.far_bytes / 2 ? "enough" : "too little");
  say_what_was_posted(rank.far_bytes);
  close(rank);
}

SumRanks sums_of(const Rank& rank) {
  return {rank.comm, rank.ranks, me, rank.stream,
          static_cast<std::size_t>(std::atol(std::getenv("TUTTI_STAGING_BYTES")))};
}

/// Sums and broadcasts. `rank_1_blocks`: that one makes its calls on a stream on which MPI may wait for them.
void case_sums(int per_host, bool rank_1_blocks) {
  Rank rank = open(per_host);
  CUstream const fit = rank.stream;
  CUstream const blocking = Gpu::get().make_blocking_stream();
  if (rank_1_blocks && me == 1) rank.stream = blocking;
  for (const std::size_t count : {16411ul, 50021ul}) rank.far_bytes += sum_everything(sums_of(rank), count);
  rank.stream = fit;
  say_what_was_posted(rank.far_bytes);
  Gpu::get().destroy(blocking);
  close(rank);
}

void case_captured_sums(int per_host) {
  Rank rank = open(per_host);
  replay_sums(sums_of(rank), 20011);
  say_what_was_posted(0);
  close(rank);
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

/// The communicator's failure, once there is one, and that the stream comes to its end. `state`: of the call, which may say it itself, where the
/// other rank has come first.
void say_failure(const Rank& rank, const char* word = "failed", ncclResult_t state = ncclSuccess) {
  for (const auto start = Clock::now(); state == ncclSuccess && seconds_since(start) < 30;) {
    check(ncclCommGetAsyncError(rank.comm, &state), "ncclCommGetAsyncError");
    std::this_thread::sleep_for(milliseconds(1));
  }
  Gpu::get().wait(rank.stream);
  say("%s %d %s", word, static_cast<int>(state), ncclGetLastError(rank.comm));
}

/// Rank 0 sends 5000 bytes, or what it is told; rank 1 receives into what comes back.
std::unique_ptr<Buffer> send_one(const Rank& rank, std::size_t sent = 5000, std::size_t received = 5000) {
  auto buffer = std::make_unique<Buffer>(std::vector<std::uint8_t>(std::max(sent, received), kPoison));
  check(me == 0 ? ncclSend(buffer->data(), sent, ncclUint8, 1, rank.comm, rank.stream)
                : ncclRecv(buffer->data(), received, ncclUint8, 0, rank.comm, rank.stream),
        "the call");
  return buffer;
}

constexpr std::size_t kSumBytes = 100003;

/// Returns the input.
std::unique_ptr<Buffer> sum_one(const Rank& rank, const Buffer& to) {
  auto from = std::make_unique<Buffer>(std::vector<std::uint8_t>(kSumBytes, 1));
  check(ncclAllReduce(from->data(), to.data(), kSumBytes, ncclUint8, ncclSum, rank.comm, rank.stream), "all_reduce");
  return from;
}

/// Calls of two communicators that are under way at once, on two streams of each, and made in the other order by odd ranks.
void case_sums_side_by_side(int per_host) {
  const Gpu& gpu = Gpu::get();
  std::vector<Rank> ranks;
  for (int i = 0; i < 2; ++i) ranks.push_back(open(per_host));
  std::vector<CUstream> streams;
  std::vector<std::unique_ptr<Buffer>> inputs, outputs;
  for (int i = 0; i < 4; ++i) streams.push_back(gpu.make_stream());
  for (int call = 0; call < 12; ++call) {
    const int which = (call + me) % 2;
    Rank with = ranks[which];
    with.stream = streams[which * 2 + call / 2 % 2];
    outputs.push_back(std::make_unique<Buffer>(std::vector<std::uint8_t>(kSumBytes, kPoison)));
    inputs.push_back(sum_one(with, *outputs.back()));
  }
  for (CUstream stream : streams) gpu.wait(stream);
  const std::vector<std::uint8_t> wanted(kSumBytes, static_cast<std::uint8_t>(world));
  for (const auto& output : outputs) expect(output->read() == wanted, "a sum beside others");
  // Of two ranks each sends as much as it has, and receives as much.
  say_what_was_posted(2 * kSumBytes * outputs.size());
  for (CUstream stream : streams) gpu.destroy(stream);
  for (Rank& rank : ranks) close(rank);
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
  Rank other = open(per_host);
  const Buffer out(std::vector<std::uint8_t>(1000, kPoison));
  const long before = posted.messages;
  const ncclResult_t made =
      ncclAllGather(buffer->data(), out.data(), 50 + static_cast<std::size_t>(me), ncclUint8, other.comm, other.stream);
  say_failure(other, "gathered", made);
  say("gather %ld messages", posted.messages.load() - before);
  close(other);
}

/// Sums of other lengths, then another call: ranks are told, and nothing has moved.
void case_differ_sums(int per_host) {
  const std::vector<std::uint8_t> poison(kSumBytes, kPoison);
  const Buffer to(poison);
  for (const bool broadcasts : {false, true}) {
    Rank rank = open(per_host);
    const bool is_other = broadcasts && me == 1;
    const Buffer from(poison);
    const std::size_t count = kSumBytes - static_cast<std::size_t>(broadcasts ? 0 : me);
    const ncclResult_t made =
        is_other ? ncclBroadcast(from.data(), to.data(), count, ncclUint8, 0, rank.comm, rank.stream)
                 : ncclAllReduce(from.data(), to.data(), count, ncclUint8, ncclSum, rank.comm, rank.stream);
    say_failure(rank, broadcasts ? "broadcast" : "summed", made);
    say("%s %ld messages", broadcasts ? "other" : "longer", posted.messages.load());
    close(rank);
  }
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
  constexpr std::size_t kBlock = 501;
  const Buffer gathered(std::vector<std::uint8_t>(2 * kBlock, 0));
  const auto call = [&] {
    check(ncclGroupStart(), "ncclGroupStart");
    for (std::size_t m = 0; m < layout.sizes.size(); ++m) {
      check(ncclSend(in.data() + layout.at[m], layout.sizes[m], ncclUint8, peer, rank.comm, rank.stream), "send");
      check(ncclRecv(out.data() + layout.at[m], layout.sizes[m], ncclUint8, peer, rank.comm, rank.stream), "receive");
    }
    check(ncclAllGather(in.data(), gathered.data(), kBlock, ncclUint8, rank.comm, rank.stream), "all_gather");
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
    for (const int r : {0, 1}) {
      const std::vector<std::uint8_t> sent = layout.filled(r + replay, 1 - r);
      const std::vector<std::uint8_t> both = gathered.read();
      expect(std::equal(sent.begin(), sent.begin() + kBlock, both.begin() + r * static_cast<int>(kBlock)),
             "what was gathered in replay " + std::to_string(replay));
    }
    if (replay == 2) say_what_was_posted(3 * 2 * (77 + 100003 + kBlock));
  }
  say("mixed %ld on the GPU", posted.on_gpu.load());
  gpu.destroy(executable);
  gpu.destroy(graph);
  close(rank);
}

/// Until every rank has posted one.
void wait_for_messages() {
  for (const auto start = Clock::now(); posted.messages == 0 && seconds_since(start) < 30;)
    std::this_thread::sleep_for(milliseconds(1));
  MPI_Barrier(MPI_COMM_WORLD);
  all_have_posted = true;
}

/// What MPI may be at work on.
void say_what_is_pinned() { say("pinned %lld regions", static_cast<long long>(fake_driver::live().registrations)); }

/// Rank 0 is killed when its send should be on its way, and rank 1's receive is posted. `stages`: to pinned memory. `refuses`: MPI is the first to find
/// something wrong.
void case_killed(int per_host, bool stages, bool sums = false, bool refuses = false) {
  Rank rank = open(per_host);
  if (stages) rank.stream = Gpu::get().make_blocking_stream();
  MPI_Barrier(MPI_COMM_WORLD);
  if (me == 0) meddling = Meddling::kWithhold;
  const Buffer to(std::vector<std::uint8_t>(kSumBytes, kPoison));
  const auto buffer = sums ? sum_one(rank, to) : send_one(rank);
  wait_for_messages();
  if (me == 1 && refuses) meddling = Meddling::kRefuse;
  if (me == 0) {
    std::this_thread::sleep_for(milliseconds(300));
    raise(SIGKILL);
  }
  say_failure(rank);
  const long before = mpi_calls;
  say("after %s, %ld cancelled", is_untouched(*buffer) ? "untouched" : "written", posted.cancelled.load());
  check(ncclCommAbort(rank.comm), "ncclCommAbort");
  say_what_is_pinned();
  say("scratch %lld allocations", static_cast<long long>(fake_driver::live().device_allocations) - 2);
  std::this_thread::sleep_for(milliseconds(20));
  say("quiet %ld calls", static_cast<long>(mpi_calls) - before);
  std::_Exit(0);
}

/// The receive is posted, and nothing comes: rank `aborts` ends it. MPI stays as usable as it was.
enum class Aborted { kReceive, kGather, kSum };
void case_abort(int per_host, int aborts, Aborted call = Aborted::kReceive, bool stages = false) {
  Rank rank = open(per_host);
  if (stages) rank.stream = Gpu::get().make_blocking_stream();
  MPI_Barrier(MPI_COMM_WORLD);
  if (me == 0) meddling = Meddling::kWithhold;
  const Buffer collected(std::vector<std::uint8_t>(kSumBytes, kPoison));
  std::unique_ptr<Buffer> buffer;
  if (call == Aborted::kGather) {
    buffer = std::make_unique<Buffer>(std::vector<std::uint8_t>(5000, kPoison));
    check(ncclAllGather(buffer->data(), collected.data(), 5000, ncclUint8, rank.comm, rank.stream), "all_gather");
  } else if (call == Aborted::kSum) {
    buffer = sum_one(rank, collected);
  } else {
    buffer = send_one(rank);
  }
  wait_for_messages();
  if (me == aborts) std::this_thread::sleep_for(milliseconds(300));  // until MPI is at work on it
  if (me != aborts) say_failure(rank);
  check(ncclCommAbort(rank.comm), "ncclCommAbort");
  Gpu::get().wait(rank.stream);
  say("after %s, %ld cancelled",
      is_untouched(call == Aborted::kReceive ? *buffer : collected) ? "untouched" : "written", posted.cancelled.load());
  say_what_is_pinned();
  meddling = Meddling::kNone;
  drop_withheld();
  Rank next = open(per_host);
  exchange(next, Layout({1000, 70001}), false);
  close(next);
}

/// MPI does not take what rank 0 sends.
void case_error(int per_host) {
  Rank rank = open(per_host);
  MPI_Barrier(MPI_COMM_WORLD);
  if (me == 0) meddling = Meddling::kFail;
  const auto buffer = send_one(rank);
  wait_for_messages();
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
  if (name == "copies") case_copies(per_host, false);
  if (name == "sums") case_sums(per_host, false);
  if (name == "sums-staged") case_sums(per_host, true);
  if (name == "sums-side-by-side") case_sums_side_by_side(per_host);
  if (name == "captured-sums") case_captured_sums(per_host);
  if (name == "all-collectives") case_copies(per_host, true);
  if (name == "differ") case_differ(per_host);
  if (name == "default-stream") case_default_stream(per_host);
  if (name == "captured") case_captured(per_host);
  if (name == "killed") case_killed(per_host, false);
  if (name == "killed-staged") case_killed(per_host, true);
  if (name == "abort") case_abort(per_host, 0);
  if (name == "abort-self") case_abort(per_host, 1);
  if (name == "abort-copy") case_abort(per_host, 0, Aborted::kGather);
  if (name == "abort-staged") case_abort(per_host, 0, Aborted::kReceive, true);
  if (name == "abort-sum") case_abort(per_host, 0, Aborted::kSum);
  if (name == "killed-sum") case_killed(per_host, false, true);
  if (name == "killed-refused") case_killed(per_host, false, false, true);
  if (name == "killed-refused-sum") case_killed(per_host, false, true, true);
  if (name == "differ-sums") case_differ_sums(per_host);
  if (name == "error") case_error(per_host);
  MPI_Finalize();
  say("done");
  return 0;
}
