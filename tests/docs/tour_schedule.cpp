// The schedule of docs/tour.md under three of its readers. Reads a schedule's text from standard input (lines before the
// word "schedule" are skipped: --explain's words) and
//   tour-schedule prove      proves it in every mode, up to the first that is wrong
//   tour-schedule price      prices it on a machine that the cost model's defaults describe
//   tour-schedule run        runs it, and tells what becomes of the one number that every rank has
//   tour-schedule channel    runs it, and tells what the channel from rank 1 to rank 2 sees
#include "base/standard_output.h"
#include "narrated_run.h"
#include "schedule/cost_model.h"
#include "schedule/text.h"
#include "schedule/verifier.h"

#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <iterator>
#include <string>

namespace {

using namespace tutti;
using schedule::Schedule;

int prove(const Schedule& schedule) {
  for (const bool in_place : {false, true}) {
    for (const bool direct : {false, true}) {
      schedule::VerifyOptions options;
      options.in_place = in_place;
      options.direct = direct;
      const Status proved = verify(schedule, options);
      fmt::print("{}, {}: {}\n", in_place ? "in place" : "out of place", direct ? "direct" : "through slots",
                 proved.ok() ? "right, whatever the timing" : proved.error().message);
      if (!proved.ok()) return 1;
    }
  }
  return 0;
}

int price(const Schedule& schedule) {
  for (const std::uint64_t count : {64u, 16384u, 4194304u}) {
    schedule::CostInputs inputs;
    inputs.count = count;
    inputs.element_bytes = 4;
    fmt::print("{:>8} bytes: {:>8.1f} us, {} rounds\n", count * 4, schedule::predict_us(schedule, inputs),
               schedule::rounds_of(schedule, inputs));
  }
  return 0;
}

int run(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  text.erase(0, std::min(text.find("\nschedule ") + 1, text.size()));
  const auto parsed = schedule::parse(text);
  if (!parsed.ok()) {
    fmt::print(stderr, "{}\n", parsed.error().message);
    return 2;
  }
  if (mode == "prove") return prove(parsed.value());
  // What reads it trusts it: a block or a rank that is not there would be looked for all the same.
  if (const Status proved = verify(parsed.value(), {}); !proved.ok()) {
    fmt::print(stderr, "not right, and so neither priced nor run: {}\n", proved.error().message);
    return 1;
  }
  if (mode == "price") return price(parsed.value());
  if (mode == "run") return docs::run(parsed.value(), docs::Narrate::kNumbers);
  if (mode == "channel") return docs::run(parsed.value(), docs::Narrate::kChannel);
  fmt::print(stderr, "prove, price, run or channel?\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) { return end_output("tour-schedule", run(argc, argv)); }
