// TUTTI_ASSERT: a broken invariant ends the process with a message; on in every build.
#pragma once

namespace tutti {

[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);

}  // namespace tutti

#define TUTTI_ASSERT(condition)                                                  \
  do {                                                                           \
    if (!(condition)) ::tutti::assertion_failed(#condition, __FILE__, __LINE__); \
  } while (false)
