#include "executor/stream.h"

#include <catch2/catch.hpp>

#include <atomic>
#include <future>
#include <thread>
#include <vector>

using namespace tutti::executor;
using tutti::Code;

namespace {

struct Fixture {
  StreamHandle first = stream_create().value();
  StreamHandle second = stream_create().value();
  EventHandle event = event_create().value();
  ~Fixture() {
    (void)event_destroy(event);
    (void)stream_destroy(first);
    (void)stream_destroy(second);
  }
};

}  // namespace

TEST_CASE_METHOD(Fixture, "a stream waits for an event of another") {
  std::promise<void> gate;
  std::atomic<bool> produced{false};
  bool seen = false;
  REQUIRE(stream_enqueue(first, [&] {
            gate.get_future().wait();
            produced = true;
          }).ok());
  REQUIRE(event_record(event, first).ok());
  REQUIRE(stream_wait_event(second, event).ok());
  REQUIRE(stream_enqueue(second, [&] { seen = produced; }).ok());
  CHECK_FALSE(event_query(event).value());
  CHECK_FALSE(stream_query(second).value());
  gate.set_value();
  REQUIRE(event_synchronize(event).ok());
  CHECK(produced);
  REQUIRE(stream_synchronize(second).ok());
  CHECK(seen);
  CHECK(event_query(event).value());
}

TEST_CASE_METHOD(Fixture, "an event that was never recorded is complete") {
  CHECK(event_query(event).value());
  CHECK(event_synchronize(event).ok());
  REQUIRE(stream_wait_event(first, event).ok());
  CHECK(stream_synchronize(first).ok());
}

TEST_CASE_METHOD(Fixture, "recording again moves the event, but not earlier waits") {
  std::promise<void> gate;
  REQUIRE(event_record(event, first).ok());
  REQUIRE(event_synchronize(event).ok());
  REQUIRE(stream_wait_event(second, event).ok());  // refers to the first record
  REQUIRE(stream_enqueue(first, [&] { gate.get_future().wait(); }).ok());
  REQUIRE(event_record(event, first).ok());
  CHECK_FALSE(event_query(event).value());
  CHECK(stream_synchronize(second).ok());  // would hang if it had moved
  gate.set_value();
  CHECK(event_synchronize(event).ok());
}

TEST_CASE_METHOD(Fixture, "a record on a fast stream does not release a wait for one on a slow stream") {
  std::promise<void> gate;
  std::atomic<bool> slow_done{false};
  bool seen = false;
  StreamHandle third = stream_create().value();
  REQUIRE(stream_enqueue(first, [&] {
            gate.get_future().wait();
            slow_done = true;
          }).ok());
  REQUIRE(event_record(event, first).ok());
  REQUIRE(stream_wait_event(third, event).ok());
  REQUIRE(stream_enqueue(third, [&] { seen = slow_done; }).ok());
  REQUIRE(event_record(event, second).ok());  // completes at once
  REQUIRE(event_synchronize(event).ok());
  CHECK_FALSE(stream_query(third).value());
  gate.set_value();
  REQUIRE(stream_synchronize(third).ok());
  CHECK(seen);
  CHECK(stream_destroy(third).ok());
}

TEST_CASE_METHOD(Fixture, "an event may be destroyed while a stream still waits for it") {
  std::promise<void> gate;
  REQUIRE(stream_enqueue(first, [&] { gate.get_future().wait(); }).ok());
  EventHandle passing = event_create().value();
  REQUIRE(event_record(passing, first).ok());
  REQUIRE(stream_wait_event(second, passing).ok());
  REQUIRE(event_destroy(passing).ok());
  CHECK(event_query(passing).error().code == Code::kInvalidArgument);
  CHECK(event_record(passing, first).error().code == Code::kInvalidArgument);
  CHECK(event_synchronize(passing).error().code == Code::kInvalidArgument);
  CHECK(event_destroy(passing).error().code == Code::kInvalidArgument);
  CHECK(stream_wait_event(second, passing).error().code == Code::kInvalidArgument);
  CHECK_FALSE(stream_query(second).value());
  gate.set_value();
  CHECK(stream_synchronize(second).ok());
}

TEST_CASE_METHOD(Fixture, "streams and events are not mistaken for each other") {
  CHECK(event_query(first).error().code == Code::kInvalidArgument);
  CHECK(stream_query(event).error().code == Code::kInvalidArgument);
  CHECK(event_record(event, event).error().code == Code::kInvalidArgument);
  CHECK(stream_wait_event(event, event).error().code == Code::kInvalidArgument);
  CHECK(event_query(event).value());  // the failed record left no trace
}

TEST_CASE_METHOD(Fixture, "a chain of events hands a value back and forth between streams") {
  const int rounds = 2000;
  int value = 0;  // guarded by the order that the events make
  bool in_order = true;
  EventHandle back = event_create().value();
  for (int i = 0; i < rounds; ++i) {
    REQUIRE(stream_wait_event(first, back).ok());
    REQUIRE(stream_enqueue(first, [&, i] { in_order = in_order && value++ == 2 * i; }).ok());
    REQUIRE(event_record(event, first).ok());
    REQUIRE(stream_wait_event(second, event).ok());
    REQUIRE(stream_enqueue(second, [&, i] { in_order = in_order && value++ == 2 * i + 1; }).ok());
    REQUIRE(event_record(back, second).ok());
  }
  REQUIRE(event_synchronize(back).ok());
  CHECK(value == 2 * rounds);
  CHECK(in_order);
  CHECK(event_destroy(back).ok());
}

TEST_CASE_METHOD(Fixture, "threads record and wait for one event at once") {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        (void)event_record(event, t % 2 ? first : second);
        (void)stream_wait_event(t % 2 ? second : first, event);
        if (i % 50 == 0) (void)event_synchronize(event);
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(event_synchronize(event).ok());
  CHECK(stream_synchronize(first).ok());
  CHECK(stream_synchronize(second).ok());
  CHECK(event_query(event).value());
}
