// Result<T>: a value, or an error with a code, a message and the place it was made. Used for every
// control-plane failure (a system call, a peer, a user argument). Broken invariants are TUTTI_ASSERT's.
#pragma once

#include <memory>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace tutti {

/// Values are ncclResult_t's, so that the API layer converts by a cast.
enum class Code : int {
  kSuccess = 0,
  kUnhandledCuda = 1,
  kSystem = 2,
  kInternal = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemote = 6,
  kInProgress = 7,
};

struct [[nodiscard]] Error {
  Code code = Code::kInternal;
  std::string message;
  std::source_location where = std::source_location::current();
};

inline Error error(Code code, std::string message, std::source_location where = std::source_location::current()) {
  return Error{code, std::move(message), where};
}

/// "function: reason"; the reason alone where it names the function itself, in its beginning.
inline std::string named(std::string_view function, std::string_view reason) {
  std::string text(reason);
  return reason.starts_with(function) ? text : std::string(function) + ": " + text;
}

/// "open /dev/x: No such file or directory" from the calling thread's errno.
Error system_error(std::string what, std::source_location where = std::source_location::current());

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error failure) : state_(std::in_place_index<1>, std::move(failure)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error failure) : failure_(std::make_unique<Error>(std::move(failure))) {}
  Result(const Result& other) : failure_(other.failure_ ? std::make_unique<Error>(*other.failure_) : nullptr) {}
  Result(Result&&) noexcept = default;
  Result& operator=(Result other) noexcept {
    failure_ = std::move(other.failure_);
    return *this;
  }
  ~Result() = default;

  bool ok() const { return failure_ == nullptr; }
  explicit operator bool() const { return ok(); }
  /// Only if not ok().
  const Error& error() const& { return *failure_; }
  Error&& error() && { return std::move(*failure_); }

 private:
  std::unique_ptr<Error> failure_;  ///< success is one null pointer: every call returns several
};

using Status = Result<void>;

}  // namespace tutti

#define TUTTI_CONCAT_INNER(a, b) a##b
#define TUTTI_CONCAT(a, b) TUTTI_CONCAT_INNER(a, b)

/// Leaves the function with the error of `expression`, if it has one.
#define TUTTI_TRY(expression)                                                                         \
  do {                                                                                                \
    if (auto tutti_status = (expression); !tutti_status.ok()) return std::move(tutti_status).error(); \
  } while (false)

/// Leaves the function with the error of `expression`, or puts its value into `declaration`.
#define TUTTI_TRY_ASSIGN(declaration, expression)                                                                   \
  auto TUTTI_CONCAT(tutti_result_, __LINE__) = (expression);                                                        \
  if (!TUTTI_CONCAT(tutti_result_, __LINE__).ok()) return std::move(TUTTI_CONCAT(tutti_result_, __LINE__)).error(); \
  declaration = std::move(TUTTI_CONCAT(tutti_result_, __LINE__)).value()
