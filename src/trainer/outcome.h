// Outcome<T>: a value, or one sentence that says what is wrong. The trainer's own type, because it is a client of the
// public headers only.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace tutti::trainer {

struct [[nodiscard]] Failure {
  std::string message;
};

template <class T>
class [[nodiscard]] Outcome {
 public:
  Outcome(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Outcome(Failure failure) : state_(std::in_place_index<1>, std::move(failure)) {}

  explicit operator bool() const { return state_.index() == 0; }
  T& operator*() { return std::get<0>(state_); }
  const T& operator*() const { return std::get<0>(state_); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  const Failure& failure() const { return std::get<1>(state_); }

 private:
  std::variant<T, Failure> state_;
};

/// For what has no value: empty when it went well.
using Problem = std::optional<Failure>;

}  // namespace tutti::trainer
