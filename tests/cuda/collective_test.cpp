// Communicators on device memory, all ranks in this process: every collective end to end, on the fake driver or a real one.
#include "gpu.h"

#include <nccl.h>
#include <tutti/tutti.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>

namespace tutti::test {
namespace {

using Values = std::vector<std::int32_t>;

/// All ranks on device 0, or by turns on several, each with a stream.
class Ranks {
 public:
  explicit Ranks(int count, bool one_stream = false, int device_count = 1) : comms_(static_cast<std::size_t>(count)) {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    REQUIRE(Gpu::why_not().empty());
    std::vector<int> devices(comms_.size(), 0);
    for (int r = 0; r < count; ++r) devices[static_cast<std::size_t>(r)] = r % device_count;
    devices_ = devices;
    const ncclResult_t made = ncclCommInitAll(comms_.data(), count, devices.data());
    INFO(ncclGetLastError(nullptr));
    REQUIRE(made == ncclSuccess);
    for (int r = 0; r < count; ++r) {
      use(r);
      streams_.push_back(one_stream && r > 0 ? streams_[0] : Gpu::get().make_stream());
    }
    one_stream_ = one_stream;
  }
  ~Ranks() {
    for (ncclComm_t comm : comms_) ncclCommDestroy(comm);
    for (std::size_t r = 0; r < streams_.size() && (r == 0 || !one_stream_); ++r) Gpu::get().destroy(streams_[r]);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  /// Makes the rank's device the current one.
  void use(int rank) const { Gpu::get().use(devices_[static_cast<std::size_t>(rank)]); }
  int count() const { return static_cast<int>(comms_.size()); }
  ncclComm_t comm(int rank) const { return comms_[static_cast<std::size_t>(rank)]; }
  CUstream stream(int rank) const { return streams_[static_cast<std::size_t>(rank)]; }
  void wait() const {
    for (CUstream stream : streams_) Gpu::get().wait(stream);
  }
  /// In one group.
  void each(const std::function<ncclResult_t(int)>& call) const {
    REQUIRE(ncclGroupStart() == ncclSuccess);
    for (int r = 0; r < count(); ++r) REQUIRE(call(r) == ncclSuccess);
    const ncclResult_t ended = ncclGroupEnd();
    INFO(ncclGetLastError(nullptr));
    REQUIRE(ended == ncclSuccess);
  }

 private:
  std::vector<ncclComm_t> comms_;
  std::vector<CUstream> streams_;
  std::vector<int> devices_;
  bool one_stream_ = false;
};

std::int32_t value(int rank, std::size_t i) { return 1000 * (rank + 1) + static_cast<std::int32_t>(i * 7 % 911); }
Values values(int rank, std::size_t count) {
  Values all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = value(rank, i);
  return all;
}
constexpr std::int32_t kPoison = -77;

using Buffers = std::vector<std::unique_ptr<OnGpu<std::int32_t>>>;
Buffers inputs(const Ranks& ranks, std::size_t count) {
  Buffers all;
  for (int r = 0; r < ranks.count(); ++r) {
    ranks.use(r);
    all.push_back(std::make_unique<OnGpu<std::int32_t>>(values(r, count)));
  }
  return all;
}
Buffers outputs(const Ranks& ranks, std::size_t count) {
  Buffers all;
  for (int r = 0; r < ranks.count(); ++r) {
    ranks.use(r);
    all.push_back(std::make_unique<OnGpu<std::int32_t>>(Values(count, kPoison)));
  }
  return all;
}
std::int32_t sum(const Ranks& ranks, std::size_t i) {
  std::int32_t total = 0;
  for (int r = 0; r < ranks.count(); ++r) total += value(r, i);
  return total;
}
Values sums(const Ranks& ranks, std::size_t first, std::size_t count) {
  Values all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = sum(ranks, first + i);
  return all;
}

}  // namespace

TEST_CASE("device: all ranks of one thread add up their memory", "[device]") {
  const int count = GENERATE(1, 2, 5, 8);
  const std::size_t elements = GENERATE(std::size_t{1}, std::size_t{1000}, std::size_t{70001});
  const bool in_place = GENERATE(false, true);
  const int devices = std::min(GENERATE(1, 3), Gpu::why_not().empty() ? Gpu::get().devices() : 1);
  const Ranks ranks(count, false, devices);
  CAPTURE(count, elements, in_place);
  const Buffers in = inputs(ranks, elements);
  const Buffers out = outputs(ranks, elements);
  ranks.each([&](int r) {
    std::int32_t* to = in_place ? in[r]->data() : out[r]->data();
    return ncclAllReduce(in[r]->data(), to, elements, ncclInt32, ncclSum, ranks.comm(r), ranks.stream(r));
  });
  ranks.wait();
  for (int r = 0; r < count; ++r) {
    CHECK((in_place ? in : out)[r]->read() == sums(ranks, 0, elements));
    if (!in_place) CHECK(in[r]->read() == values(r, elements));
  }
}

TEST_CASE("device: every collective moves what it should", "[device]") {
  const int devices = std::min(GENERATE(1, 2, 4), Gpu::why_not().empty() ? Gpu::get().devices() : 1);
  const int rank_count = GENERATE(4, 7);
  const std::size_t count =
      GENERATE(std::size_t{777}, std::size_t{20011});  // of several GPUs: lines, and too long for them
  CAPTURE(devices, rank_count, count);
  const Ranks ranks(rank_count, false, devices);
  const auto n = static_cast<std::size_t>(rank_count);
  const int root = 2;
  const Buffers in = inputs(ranks, n * count);
  const Buffers out = outputs(ranks, n * count);
  const auto check = [&](const std::function<std::int32_t(int, std::size_t)>& expected) {
    ranks.wait();
    for (int r = 0; r < ranks.count(); ++r) {
      Values wanted(n * count);
      for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = expected(r, i);
      CHECK(out[r]->read() == wanted);
      out[r]->write(Values(n * count, kPoison));
    }
  };
  const auto block = [&](std::size_t i) { return static_cast<int>(i / count); };
  ranks.each([&](int r) {
    return ncclReduceScatter(in[r]->data(), out[r]->data(), count, ncclInt32, ncclSum, ranks.comm(r), ranks.stream(r));
  });
  check([&](int r, std::size_t i) { return i < count ? sum(ranks, r * count + i) : kPoison; });
  ranks.each([&](int r) {
    return ncclAllGather(in[r]->data(), out[r]->data(), count, ncclInt32, ranks.comm(r), ranks.stream(r));
  });
  check([&](int, std::size_t i) { return value(block(i), i % count); });
  ranks.each([&](int r) {
    return ncclBroadcast(in[r]->data(), out[r]->data(), count, ncclInt32, root, ranks.comm(r), ranks.stream(r));
  });
  check([&](int, std::size_t i) { return i < count ? value(root, i) : kPoison; });
  ranks.each([&](int r) {
    return ncclReduce(in[r]->data(), out[r]->data(), count, ncclInt32, ncclSum, root, ranks.comm(r), ranks.stream(r));
  });
  check([&](int r, std::size_t i) { return r == root && i < count ? sum(ranks, i) : kPoison; });
  ranks.each([&](int r) {
    return ncclAlltoAll(in[r]->data(), out[r]->data(), count, ncclInt32, ranks.comm(r), ranks.stream(r));
  });
  check([&](int r, std::size_t i) { return value(block(i), r * count + i % count); });
  ranks.each([&](int r) {
    return ncclGather(in[r]->data(), out[r]->data(), count, ncclInt32, root, ranks.comm(r), ranks.stream(r));
  });
  check([&](int r, std::size_t i) { return r == root ? value(block(i), i % count) : kPoison; });
  ranks.each([&](int r) {
    return ncclScatter(in[r]->data(), out[r]->data(), count, ncclInt32, root, ranks.comm(r), ranks.stream(r));
  });
  check([&](int r, std::size_t i) { return i < count ? value(root, r * count + i) : kPoison; });
  // To the next rank, and to itself.
  ranks.each([&](int r) {
    const int next = (r + 1) % ranks.count();
    const int before = (r + ranks.count() - 1) % ranks.count();
    ncclSend(in[r]->data(), count, ncclInt32, next, ranks.comm(r), ranks.stream(r));
    ncclRecv(out[r]->data(), count, ncclInt32, before, ranks.comm(r), ranks.stream(r));
    ncclSend(in[r]->data() + count, count, ncclInt32, r, ranks.comm(r), ranks.stream(r));
    return ncclRecv(out[r]->data() + count, count, ncclInt32, r, ranks.comm(r), ranks.stream(r));
  });
  check([&](int r, std::size_t i) {
    const int before = (r + ranks.count() - 1) % ranks.count();
    return i < count ? value(before, i) : i < 2 * count ? value(r, i) : kPoison;
  });
  // In place: what goes comes from where something else arrives.
  ranks.each([&](int r) {
    return ncclAlltoAll(in[r]->data(), in[r]->data(), count, ncclInt32, ranks.comm(r), ranks.stream(r));
  });
  ranks.wait();
  for (int r = 0; r < ranks.count(); ++r) {
    const Values found = in[r]->read();
    bool right = true;
    for (std::size_t i = 0; i < found.size(); ++i) right &= found[i] == value(block(i), r * count + i % count);
    CHECK(right);
  }
}

TEST_CASE("device: a thread for each rank", "[device]") {
  const Ranks ranks(4);
  const std::size_t elements = 3000;
  const Buffers in = inputs(ranks, elements);
  const Buffers out = outputs(ranks, elements);
  std::vector<ncclResult_t> results(4, ncclInternalError);
  std::vector<std::thread> threads;
  for (int r = 0; r < 4; ++r) {
    threads.emplace_back([&, r] {
      Gpu::get().use(0);
      ncclResult_t result = ncclSuccess;
      for (int call = 0; call < 5 && result == ncclSuccess; ++call) {
        const std::int32_t* from = call == 0 ? in[r]->data() : out[r]->data();
        result = ncclAllReduce(from, out[r]->data(), elements, ncclInt32, call == 0 ? ncclSum : ncclMax, ranks.comm(r),
                               ranks.stream(r));
      }
      results[static_cast<std::size_t>(r)] = result;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int r = 0; r < 4; ++r) {
    CHECK(results[static_cast<std::size_t>(r)] == ncclSuccess);
    Gpu::get().wait(ranks.stream(r));
    CHECK(out[r]->read() == sums(ranks, 0, elements));
  }
}

TEST_CASE("device: each thread's own default stream", "[device]") {
  const Ranks ranks(3);
  const std::size_t elements = 2000;
  const Buffers source = inputs(ranks, elements);
  const Buffers in = outputs(ranks, elements);
  const Buffers out = outputs(ranks, elements);
  std::vector<Values> found(3);
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      const Gpu& gpu = Gpu::get();
      gpu.use(0);
      gpu.copy(in[r]->data(), source[r]->data(), elements * 4, CU_STREAM_PER_THREAD);
      const ncclResult_t result = ncclAllReduce(in[r]->data(), out[r]->data(), elements, ncclInt32, ncclSum,
                                                ranks.comm(r), CU_STREAM_PER_THREAD);
      Values copy(elements);
      if (result == ncclSuccess) gpu.copy(copy.data(), out[r]->data(), elements * 4, CU_STREAM_PER_THREAD);
      gpu.wait(CU_STREAM_PER_THREAD);
      found[static_cast<std::size_t>(r)] = copy;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Values& values : found) CHECK(values == sums(ranks, 0, elements));
}

TEST_CASE("device: a call on a thread's own default stream does not wait for another thread's", "[device]") {
  const Ranks ranks(2);
  const Gpu& gpu = Gpu::get();
  const std::size_t elements = 500;
  const Buffers in = inputs(ranks, elements);
  const Buffers out = outputs(ranks, elements);
  const Buffers later = outputs(ranks, elements);
  auto* const gate = static_cast<std::uint32_t*>(gpu.allocate_pinned(4096));
  *gate = 0;
  const auto sum_up = [&](int rank, const Buffers& to, CUstream stream) {
    return ncclAllReduce(in[rank]->data(), to[rank]->data(), elements, ncclInt32, ncclSum, ranks.comm(rank), stream);
  };
  std::atomic<int> done{0};
  std::atomic<bool> begun{false};
  std::thread first([&] {
    gpu.use(0);
    begun = true;
    done += sum_up(0, out, CU_STREAM_PER_THREAD) == ncclSuccess;
    gpu.wait(CU_STREAM_PER_THREAD);
    ++done;
  });
  while (!begun) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // it waits for rank 1's call
  std::thread second([&] {
    gpu.use(0);
    gpu.wait_for_word(CU_STREAM_PER_THREAD, gate, 1);
    done += sum_up(0, later, CU_STREAM_PER_THREAD) == ncclSuccess;
    gpu.wait(CU_STREAM_PER_THREAD);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(sum_up(1, out, ranks.stream(1)) == ncclSuccess);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (done < 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  CHECK(done == 2);
  std::atomic_ref(*gate).store(1);
  CHECK(sum_up(1, later, ranks.stream(1)) == ncclSuccess);
  first.join();
  second.join();
  CHECK(done == 3);
  ranks.wait();
  gpu.release_pinned(gate);
  for (int r = 0; r < 2; ++r) CHECK(out[r]->read() == sums(ranks, 0, elements));
  for (int r = 0; r < 2; ++r) CHECK(later[r]->read() == sums(ranks, 0, elements));
}

TEST_CASE("device: calls of one group that use each other's results stay in order", "[device]") {
  const Ranks ranks(3, true);
  const std::size_t elements = 500;
  const Buffers in = inputs(ranks, elements);
  const Buffers middle = outputs(ranks, elements);
  const Buffers out = outputs(ranks, elements);
  ranks.each([&](int r) {
    ncclAllReduce(in[r]->data(), middle[r]->data(), elements, ncclInt32, ncclSum, ranks.comm(r), ranks.stream(r));
    return ncclAllReduce(middle[r]->data(), out[r]->data(), elements, ncclInt32, ncclMax, ranks.comm(r),
                         ranks.stream(r));
  });
  ranks.wait();
  for (int r = 0; r < 3; ++r) CHECK(out[r]->read() == sums(ranks, 0, elements));
}

TEST_CASE("device: the stream's order holds before and after a call", "[device]") {
  const Ranks ranks(2);
  const std::size_t elements = 4096;
  const Buffers source = inputs(ranks, elements);
  const Buffers in = outputs(ranks, elements);
  const Buffers out = outputs(ranks, elements);
  const Buffers copy = outputs(ranks, elements);
  const Gpu& gpu = Gpu::get();
  for (int r = 0; r < 2; ++r) gpu.copy(in[r]->data(), source[r]->data(), elements * 4, ranks.stream(r));
  ranks.each([&](int r) {
    return ncclAllReduce(in[r]->data(), out[r]->data(), elements, ncclInt32, ncclSum, ranks.comm(r), ranks.stream(r));
  });
  for (int r = 0; r < 2; ++r) gpu.copy(copy[r]->data(), out[r]->data(), elements * 4, ranks.stream(r));
  ranks.wait();
  for (int r = 0; r < 2; ++r) CHECK(copy[r]->read() == sums(ranks, 0, elements));
}

TEST_CASE("device: calls on streams that nothing orders run one after the other", "[device]") {
  const int devices = std::min(GENERATE(1, 2), Gpu::why_not().empty() ? Gpu::get().devices() : 1);
  const Ranks ranks(2, false, devices);
  std::vector<CUstream> others;
  for (int r = 0; r < 2; ++r) {
    ranks.use(r);
    others.push_back(Gpu::get().make_stream());
  }
  const std::size_t elements = 900;
  const Buffers in = inputs(ranks, elements);
  std::vector<Buffers> out;
  for (int call = 0; call < 12; ++call) out.push_back(outputs(ranks, elements));
  for (int call = 0; call < 12; ++call) {
    const Buffers& to = out[static_cast<std::size_t>(call)];
    ranks.each([&](int r) {
      CUstream stream = call % 2 == 0 ? ranks.stream(r) : others[static_cast<std::size_t>(r)];
      return ncclAllReduce(in[r]->data(), to[r]->data(), elements, ncclInt32, call % 3 == 0 ? ncclMax : ncclSum,
                           ranks.comm(r), stream);
    });
  }
  ranks.wait();
  for (CUstream stream : others) Gpu::get().wait(stream);
  for (int call = 0; call < 12; ++call) {
    const Values wanted = call % 3 == 0 ? values(1, elements) : sums(ranks, 0, elements);
    for (int r = 0; r < 2; ++r) CHECK(out[static_cast<std::size_t>(call)][r]->read() == wanted);
  }
  for (CUstream stream : others) Gpu::get().destroy(stream);
}

TEST_CASE("device: a captured call is replayed", "[device]") {
  const bool one_stream = GENERATE(true, false);
  const int devices = one_stream ? 1 : std::min(GENERATE(1, 2), Gpu::why_not().empty() ? Gpu::get().devices() : 1);
  const Ranks ranks(3, one_stream, devices);
  const std::size_t elements = 1024;
  const Buffers in = inputs(ranks, elements);
  const Buffers out = outputs(ranks, elements);
  const Gpu& gpu = Gpu::get();
  gpu.begin_capture(ranks.stream(0));
  for (int r = 1; r < 3 && !one_stream; ++r) gpu.order(ranks.stream(0), ranks.stream(r));
  ranks.each([&](int r) {
    return ncclAllReduce(in[r]->data(), out[r]->data(), elements, ncclInt32, ncclSum, ranks.comm(r), ranks.stream(r));
  });
  for (int r = 1; r < 3 && !one_stream; ++r) gpu.order(ranks.stream(r), ranks.stream(0));
  CUgraph graph = gpu.end_capture(ranks.stream(0));
  REQUIRE(graph != nullptr);
  CUgraphExec executable = gpu.make_executable(graph);
  gpu.destroy(graph);
  const Buffers eager = outputs(ranks, elements);
  for (int replay = 0; replay < 1000; ++replay) {
    for (int r = 0; r < 3; ++r) in[r]->write(values(r + replay, elements));
    // Now and then a call beside the graph's, which counts as one of them.
    if (replay % 7 == 3) {
      ranks.each([&](int r) {
        return ncclAllReduce(in[r]->data(), eager[r]->data(), elements, ncclInt32, ncclMin, ranks.comm(r),
                             ranks.stream(r));
      });
      ranks.wait();
      for (int r = 0; r < 3; ++r) CHECK(eager[r]->read() == values(replay, elements));
    }
    gpu.launch(executable, ranks.stream(0));
    gpu.wait(ranks.stream(0));
    Values wanted = sums(ranks, 0, elements);
    for (std::int32_t& v : wanted) v += 3 * 1000 * replay;
    for (int r = 0; r < 3; ++r) CHECK(out[r]->read() == wanted);
  }
  gpu.destroy(executable);
}

TEST_CASE("device: a graph outlives the communicator whose calls it has", "[device]") {
  const int count = GENERATE(1, 3);
  const std::size_t elements = 1024;
  const Gpu& gpu = Gpu::get();
  auto ranks = std::make_unique<Ranks>(count, true);
  const Buffers in = inputs(*ranks, elements);
  const Buffers out = outputs(*ranks, elements);
  const CUstream own = gpu.make_stream();
  gpu.begin_capture(ranks->stream(0));
  ranks->each([&](int r) {
    return ncclAllReduce(in[r]->data(), out[r]->data(), elements, ncclInt32, ncclSum, ranks->comm(r), ranks->stream(r));
  });
  CUgraph graph = gpu.end_capture(ranks->stream(0));
  REQUIRE(graph != nullptr);
  CUgraphExec executable = gpu.make_executable(graph);
  gpu.destroy(graph);
  const Values wanted = sums(*ranks, 0, elements);
  ranks.reset();
  gpu.launch(executable, own);
  gpu.wait(own);
  for (int r = 0; r < count; ++r) CHECK(out[r]->read() == wanted);
  gpu.destroy(executable);
  gpu.destroy(own);
}

TEST_CASE("device: ranks of one process whose streams are not in one graph are refused", "[device]") {
  const int devices = std::min(GENERATE(1, 2), Gpu::why_not().empty() ? Gpu::get().devices() : 1);
  const Ranks ranks(2, false, devices);
  const std::size_t elements = 300000;
  const Buffers in = inputs(ranks, elements);
  const Buffers out = outputs(ranks, elements);
  const Gpu& gpu = Gpu::get();
  const auto call = [&] {
    REQUIRE(ncclGroupStart() == ncclSuccess);
    for (int r = 0; r < 2; ++r) {
      REQUIRE(ncclAllReduce(in[r]->data(), out[r]->data(), elements, ncclInt32, ncclSum, ranks.comm(r),
                            ranks.stream(r)) == ncclSuccess);
    }
    return ncclGroupEnd();
  };
  gpu.begin_capture(ranks.stream(0), CU_STREAM_CAPTURE_MODE_RELAXED);
  CHECK(call() == ncclInvalidUsage);
  CHECK_THAT(ncclGetLastError(ranks.comm(0)), Catch::Contains("captured into different graphs"));
  CUgraph graph = gpu.end_capture(ranks.stream(0));
  CHECK(graph != nullptr);  // nothing has spoilt it
  gpu.destroy(graph);
}

}  // namespace tutti::test
