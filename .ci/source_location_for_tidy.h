// For clang-tidy and the fuzzers: clang before version 16 lacks the builtin that libstdc++'s <source_location> is made of, and
// would stop at its first use.
#pragma once

#if defined(__cplusplus) && !__has_builtin(__builtin_source_location)
namespace std {
struct source_location {
  static constexpr source_location current() noexcept { return {}; }
  constexpr const char* file_name() const noexcept { return ""; }
  constexpr const char* function_name() const noexcept { return ""; }
  constexpr unsigned line() const noexcept { return 0; }
  constexpr unsigned column() const noexcept { return 0; }
};
}  // namespace std
#endif
