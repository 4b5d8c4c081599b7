#include "executor/stream.h"

#include <sys/wait.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

using namespace tutti::executor;
using tutti::Code;

namespace {

StreamHandle make_stream() {
  auto stream = stream_create();
  REQUIRE(stream.ok());
  return stream.value();
}

}  // namespace

TEST_CASE("work runs in order, and synchronize waits for it") {
  StreamHandle stream = make_stream();
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) REQUIRE(stream_enqueue(stream, [&order, i] { order.push_back(i); }).ok());
  REQUIRE(stream_synchronize(stream).ok());
  REQUIRE(order.size() == 1000);
  for (int i = 0; i < 1000; ++i) REQUIRE(order[i] == i);
  CHECK(stream_query(stream).value());
  CHECK(stream_destroy(stream).ok());
}

TEST_CASE("enqueue returns while earlier work still runs, and query tells") {
  StreamHandle stream = make_stream();
  CHECK(stream_query(stream).value());
  std::promise<void> gate;
  std::atomic<bool> second{false};
  REQUIRE(stream_enqueue(stream, [&] { gate.get_future().wait(); }).ok());
  REQUIRE(stream_enqueue(stream, [&] { second = true; }).ok());
  CHECK_FALSE(stream_query(stream).value());
  CHECK_FALSE(second);
  gate.set_value();
  REQUIRE(stream_synchronize(stream).ok());
  CHECK(second);
  CHECK(stream_query(stream).value());
  CHECK(stream_destroy(stream).ok());
}

TEST_CASE("synchronize waits for what was enqueued before it, not for what comes later") {
  StreamHandle stream = make_stream();
  std::atomic<bool> stop{false};
  std::atomic<int> ran{0};
  // Work that always enqueues its successor: the stream is never idle.
  std::function<void()> again = [&] {
    ++ran;
    if (!stop) (void)stream_enqueue(stream, again);
  };
  REQUIRE(stream_enqueue(stream, again).ok());
  REQUIRE(stream_synchronize(stream).ok());
  CHECK(ran >= 1);
  stop = true;
  CHECK(stream_destroy(stream).ok());
}

TEST_CASE("what the work held is released when synchronize returns") {
  StreamHandle stream = make_stream();
  auto held = std::make_shared<int>(1);
  REQUIRE(stream_enqueue(stream, [held] {}).ok());
  REQUIRE(stream_synchronize(stream).ok());
  CHECK(held.use_count() == 1);
  CHECK(stream_destroy(stream).ok());
}

TEST_CASE("destroy finishes the queue first") {
  StreamHandle stream = make_stream();
  std::atomic<int> ran{0};
  REQUIRE(stream_enqueue(stream, [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }).ok());
  for (int i = 0; i < 100; ++i) REQUIRE(stream_enqueue(stream, [&] { ++ran; }).ok());
  REQUIRE(stream_destroy(stream).ok());
  CHECK(ran == 100);
}

TEST_CASE("a destroyed stream's handle is an error everywhere") {
  StreamHandle stale = make_stream();
  CHECK(stream_valid(stale));
  REQUIRE(stream_destroy(stale).ok());
  StreamHandle live = make_stream();
  REQUIRE(stale != live);
  int on_stack = 0;
  for (StreamHandle bad : {stale, StreamHandle{}, StreamHandle{&on_stack}}) {
    CHECK_FALSE(stream_valid(bad));
    CHECK(stream_synchronize(bad).error().code == Code::kInvalidArgument);
    CHECK(stream_query(bad).error().code == Code::kInvalidArgument);
    CHECK(stream_destroy(bad).error().code == Code::kInvalidArgument);
    CHECK(stream_enqueue(bad, [] { FAIL("must not run"); }).error().code == Code::kInvalidArgument);
  }
  CHECK(stream_destroy(live).ok());
}

TEST_CASE("work that would wait for itself gets an error") {
  StreamHandle stream = make_stream();
  Code synchronized = Code::kSuccess;
  Code destroyed = Code::kSuccess;
  REQUIRE(stream_enqueue(stream, [&] {
            if (auto status = stream_synchronize(stream); !status.ok()) synchronized = status.error().code;
            if (auto status = stream_destroy(stream); !status.ok()) destroyed = status.error().code;
          }).ok());
  REQUIRE(stream_synchronize(stream).ok());
  CHECK(synchronized == Code::kInvalidUsage);
  CHECK(destroyed == Code::kInvalidUsage);
  CHECK(stream_destroy(stream).ok());
}

TEST_CASE("many threads enqueue, synchronize and destroy at once") {
  for (int repetition = 0; repetition < 20; ++repetition) {
    StreamHandle stream = make_stream();
    std::atomic<int> accepted{0};
    std::atomic<int> ran{0};
    std::atomic<int> destroyers{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < 200; ++i) {
          if (stream_enqueue(stream, [&] { ++ran; }).ok()) ++accepted;
          if (i % 64 == 0) (void)stream_synchronize(stream);
          if (t < 2 && i == 150 && stream_destroy(stream).ok()) ++destroyers;
        }
      });
    for (auto& thread : threads) thread.join();
    CHECK(destroyers == 1);
    CHECK(ran == accepted);
    CHECK_FALSE(stream_valid(stream));
  }
}

TEST_CASE("no wake-up is lost in a ping-pong of single pieces of work") {
  StreamHandle stream = make_stream();
  int ran = 0;
  for (int i = 0; i < 3000; ++i) {
    REQUIRE(stream_enqueue(stream, [&] { ++ran; }).ok());
    REQUIRE(stream_synchronize(stream).ok());
    REQUIRE(ran == i + 1);
  }
  CHECK(stream_destroy(stream).ok());
}

TEST_CASE("a forked child gets an error from the parent's stream, and can make its own", "[forks]") {
  StreamHandle stream = make_stream();
  const pid_t child = fork();
  if (child == 0) {
    auto status = stream_synchronize(stream);
    if (status.ok() || status.error().code != Code::kInvalidUsage) _exit(1);
    if (stream_valid(stream)) _exit(2);
    auto own = stream_create();
    if (!own.ok()) _exit(3);
    int ran = 0;
    if (!stream_enqueue(own.value(), [&] { ran = 1; }).ok() || !stream_synchronize(own.value()).ok()) _exit(4);
    if (!stream_destroy(own.value()).ok()) _exit(5);
    _exit(ran == 1 ? 0 : 6);
  }
  REQUIRE(child > 0);
  int state = 0;
  REQUIRE(waitpid(child, &state, 0) == child);
  CHECK(WIFEXITED(state));
  CHECK(WEXITSTATUS(state) == 0);
  CHECK(stream_destroy(stream).ok());
}
