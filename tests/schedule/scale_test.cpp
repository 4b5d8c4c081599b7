// PreMulSum's factors: every input is multiplied exactly once, because it is read through `in` exactly once. In place that
// depends on the name by which a step reads the memory that input and output share.
#include "random_run.h"
#include "schedules.h"

namespace tutti::schedule {
namespace {

using Catch::Matchers::Contains;

constexpr VerifyOptions kSlots{};
constexpr VerifyOptions kDirect{.direct = true};
constexpr VerifyOptions kInPlace{.in_place = true};
constexpr VerifyOptions kDirectInPlace{.in_place = true, .direct = true};

/// The verifier accepts it, and it is right on numbers.
void check_right(const std::string& text, const VerifyOptions& options) {
  const Schedule schedule = schedule_of(text);
  CHECK(complaint(schedule, options) == "");
  CHECK(RandomRun(schedule, {2, options.in_place, options.direct}, 1).is_right());
}

/// The verifier refuses it with these words, and it is wrong on numbers.
void check_wrong(const std::string& text, const VerifyOptions& options, const std::string& step,
                 const std::string& words) {
  const Schedule schedule = schedule_of(text);
  CHECK_THAT(complaint(schedule, options), Contains(step) && Contains(words) && Contains("PreMulSum"));
  CHECK_FALSE(RandomRun(schedule, {2, options.in_place, options.direct}, 1).is_right());
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

/// Rank 0 keeps its input in its output first, then adds what comes.
constexpr const char* kKept = R"(
schedule kept reduce ranks 2 root 0 units 1 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0] -> out[0.0]
  out[0.0] + recv 1 -> out[0.0] finish
rank 1 lane 0
  in[0.0] -> send 0
)";

TEST_CASE("an input that was copied to the output is multiplied by then") {
  check_right(kKept, kSlots);
  check_right(kKept, kInPlace);
  const std::string again = replaced(kKept, "out[0.0] + recv 1", "in[0.0] + recv 1");
  check_right(again, kSlots);
  check_wrong(again, kInPlace, "rank 0, lane 0, step 1 (in[0.0] + recv 1 -> out[0.0] finish)",
              "reads in[0.0] of rank 0, where in place rank 0, in[0.0] lies by now");
}

TEST_CASE("a partial sum in place is not read through in again") {
  const std::string text = R"(
schedule partial reduce ranks 3 root 0 units 1 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0] + recv 1 -> out[0.0]
  out[0.0] + recv 2 -> out[0.0] finish
rank 1 lane 0
  in[0.0] -> send 0
rank 2 lane 0
  in[0.0] -> send 0
)";
  check_right(text, kSlots);
  check_right(text, kInPlace);
  check_wrong(replaced(text, "out[0.0] + recv 2", "in[0.0] + recv 2"), kInPlace, "rank 0, lane 0, step 1",
              "where in place the sum of ranks 0 1, in[0.0] lies by now: PreMulSum multiplies whatever is read through "
              "in, so this would be multiplied twice; read it through out");
}

TEST_CASE("in place, an input that is read through the output is never multiplied") {
  const std::string raw = replaced(kKept, "  in[0.0] -> out[0.0]\n", "");
  CHECK_THAT(complaint(raw), Contains("reads out[0.0] of rank 0 before anything was written there"));
  check_wrong(raw, kInPlace, "rank 0, lane 0, step 0 (out[0.0] + recv 1 -> out[0.0] finish)",
              "where in place rank 0, in[0.0] still lies as the caller gave it: PreMulSum multiplies only what is read "
              "through in, so this would never be; read it through in");
}

/// Rank 1 pulls rank 0's input and pushes the sum.
constexpr const char* kPull = R"(
schedule pull all_reduce ranks 2 units 1 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0] -> send 1 pull in[0.0]
  recv 1 push out[0.0] -> out[0.0]
rank 1 lane 0
  recv 0 pull in[0.0] + in[0.0] -> out[0.0], send 0 push out[0.0] finish
)";

TEST_CASE("what a peer pulls from in is multiplied there, unless it has been already") {
  check_right(kPull, kSlots);
  check_right(kPull, kDirect);
  check_right(kPull, kDirectInPlace);
  const std::string copied = replaced(kPull, "in[0.0] -> send 1", "in[0.0] -> out[0.0], send 1");
  check_right(copied, kInPlace);
  // A pull from an input waits for nothing.
  CHECK_THAT(complaint(copied, kDirectInPlace),
             Contains("rank 1, lane 0, step 0") && Contains("writes it, and no message orders the two"));
  const std::string waited = replaced(replaced(copied, "\nrank 1 lane 0", "\nrank 1 lane 0\n  wait 0"),
                                      "in[0.0] -> out[0.0], send 1", "in[0.0] -> out[0.0], signal 1\n  in[0.0] -> send 1");
  check_wrong(waited, kDirectInPlace, "rank 0, lane 0, step 1",
              "reads in[0.0] of rank 0, where in place rank 0, in[0.0] lies by now");
}

TEST_CASE("what a peer pulls from out must have been multiplied at its owner") {
  const std::string text =
      replaced(replaced(kPull, "in[0.0] -> send 1 pull in[0.0]", "in[0.0] -> out[0.0], send 1 pull out[0.0]"),
               "recv 0 pull in[0.0]", "recv 0 pull out[0.0]");
  check_right(text, kDirect);
  check_right(text, kDirectInPlace);
  // The sender's step then writes nothing: in place the data lies there as it was.
  const std::string unwritten = replaced(text, "in[0.0] -> out[0.0], send 1", "in[0.0] -> send 1");
  check_right(unwritten, kInPlace);
  CHECK_THAT(complaint(unwritten, kDirect), Contains("neither copies from nor writes"));
  check_wrong(unwritten, kDirectInPlace, "rank 1, lane 0, step 0",
              "reads out[0.0] of rank 0, where in place rank 0, in[0.0] still lies as the caller gave it");
}

TEST_CASE("data that is only moved has no factor") {
  const std::string text = R"(
schedule moved all_gather ranks 2 units 1 lanes 1 input 1 output 2 scratch 0
rank 0 lane 0
  out[0.0] -> send 1
  recv 1 -> out[1.0]
rank 1 lane 0
  in[0.0] -> send 0
  in[0.0] -> out[1.0]
  recv 0 -> out[0.0]
)";
  check_right(text, kInPlace);
}

}  // namespace
}  // namespace tutti::schedule
