// What the schedule tests share: schedules from text, and what verify says about them.
#pragma once

#include "schedule/text.h"
#include "schedule/verifier.h"

#include <catch2/catch.hpp>

#include <string>
#include <string_view>

namespace tutti::schedule {

inline Schedule schedule_of(std::string_view text) {
  Result<Schedule> read = parse(text);
  INFO((read.ok() ? "" : read.error().message));
  REQUIRE(read.ok());
  return std::move(read).value();
}

/// The verifier's message; empty where the schedule is right.
inline std::string complaint(const Schedule& schedule, const VerifyOptions& options = {}) {
  const Status status = verify(schedule, options);
  if (status.ok()) return "";
  CHECK(status.error().code == Code::kInvalidUsage);
  return status.error().message;
}
inline std::string complaint(std::string_view text, const VerifyOptions& options = {}) {
  return complaint(schedule_of(text), options);
}

}  // namespace tutti::schedule
