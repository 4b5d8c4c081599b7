// The tools' command lines: a mistake is told in one line, in the tool's name, with what is accepted; lists have no empty parts.
#pragma once

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace tutti {

/// What CLI11 says of a word that it cannot read names the option alone. Empty: it says enough.
inline std::string accepted_by(const CLI::App& app, std::string_view problem) {
  for (const CLI::Option* option : app.get_options()) {
    if (!problem.starts_with("Could not convert: " + option->get_name() + " = ")) continue;
    const std::string type = option->get_type_name();
    if (type.starts_with("BOOLEAN")) return "; write 0 or 1";
    if (type.starts_with("UINT")) return "; write a whole number, 0 or more";
    if (type.starts_with("INT")) return "; write a whole number";
    if (type.starts_with("FLOAT")) return "; write a number";
  }
  return {};
}

/// CLI11's words for these mistakes do not say what to do, or hide that a value is empty.
inline std::string in_plain_words(const std::string& problem) {
  constexpr std::string_view kTwice = ": At Most 1 required but received ";
  const std::size_t colon = std::min(problem.find(": "), problem.size());
  const std::string name = problem.substr(0, colon);
  const std::string_view rest = std::string_view(problem).substr(colon);
  if (rest.starts_with(kTwice))
    return fmt::format("{} is given {} times; once will do", name, rest.substr(kTwice.size()));
  if (rest.starts_with(": 1 required ") && rest.ends_with(" missing")) return name + " needs a value";
  constexpr std::string_view kEmptyWord = ":  not in ";
  if (rest.starts_with(kEmptyWord))
    return fmt::format("{} is empty; write one of {}", name, rest.substr(kEmptyWord.size()));
  constexpr std::string_view kEmpty = ": Value  not in range ";
  if (rest.starts_with(kEmpty))
    return fmt::format("{} is empty; write a number from {}", name, rest.substr(kEmpty.size()));
  return problem;
}

/// For CLI::App::failure_message().
inline std::string mistake_text(const CLI::App* app, const CLI::Error& error) {
  std::string problem = error.what();
  problem = in_plain_words(problem.substr(0, problem.find('\n')));
  return fmt::format("{}: {}{}\n", app->get_name(), problem, accepted_by(*app, problem));
}

/// The first of these options that is given and empty, as "$FILE" is where there is no such variable; nullptr: none is.
inline const CLI::Option* first_empty(const CLI::App& app, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const CLI::Option* const option = app.get_option(name);
    if (std::ranges::any_of(option->results(), &std::string::empty)) return option;
  }
  return nullptr;
}

/// "2,4,8". CLI11's own delimiter overlooks empty parts.
inline std::vector<std::string> parts_of(std::string_view list) {
  std::vector<std::string> parts;
  for (;;) {
    const std::size_t comma = list.find(',');
    parts.emplace_back(list.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    list.remove_prefix(comma + 1);
  }
}

/// That holds for each part of a list.
inline CLI::Validator each_part(const CLI::Validator& check) {
  const auto problem_of = [check](const std::string& list) {
    for (const std::string& part : parts_of(list)) {
      if (part.empty()) return fmt::format("\"{}\" has an empty part", list);
      if (std::string problem = check(part); !problem.empty()) return problem;
    }
    return std::string();
  };
  return {problem_of, check.get_description()};
}

/// CLI::Range lets "nan" pass.
inline CLI::Validator number(double low, double high) {
  return {[low, high](const std::string& text) {
            double value = 0;
            if (CLI::detail::lexical_cast(text, value) && value >= low && value <= high) return std::string();
            return fmt::format("{} is not a number from {} to {}", text.empty() ? "\"\"" : text, low, high);
          },
          ""};
}

/// CLI11 takes -1, and what 64 bits cannot hold, for the largest number that there is.
inline CLI::Validator not_negative() {
  return {[](const std::string& text) -> std::string {
            std::uint64_t number = 0;
            if (text.starts_with('-')) return text + " is less than 0";
            const auto failure = std::from_chars(text.data(), text.data() + text.size(), number).ec;
            return failure == std::errc::result_out_of_range ? text + " is more than 18446744073709551615" : "";
          },
          ""};
}

/// "8", "64K", "64KB" and "64KiB", up to T (powers of 1024); what 64 bits cannot hold is the largest that they can. Nothing: it is no size.
inline std::optional<std::uint64_t> size_from(const std::string& text) {
  constexpr std::uint64_t kMost = ~std::uint64_t{0};
  std::uint64_t size = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (failure != std::errc()) return std::nullopt;
  const std::string unit = CLI::detail::to_lower(text.substr(static_cast<std::size_t>(end - text.data())));
  if (unit.empty() || unit == "b") return size;
  const std::size_t power = std::string_view("kmgt").find(unit[0]) + 1;
  const std::string_view rest = std::string_view(unit).substr(1);
  if (power == 0 || !(rest.empty() || rest == "b" || rest == "ib")) return std::nullopt;
  return size > kMost >> (10 * power) ? kMost : size << (10 * power);
}

/// Do two paths lead to one file, which need not be there yet? A device may be named twice: /dev/null.
inline bool same_file(const std::string& one, const std::string& other) {
  namespace fs = std::filesystem;
  std::error_code none;
  if (one.empty() || other.empty() || fs::is_other(one, none)) return false;
  if (fs::equivalent(one, other, none)) return true;
  return fs::weakly_canonical(fs::absolute(one, none), none) == fs::weakly_canonical(fs::absolute(other, none), none);
}

}  // namespace tutti
