// The tools' command lines: a mistake is told in one line, in the tool's name, with what is accepted; lists have no empty parts.
#pragma once

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <initializer_list>
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

/// For CLI::App::failure_message().
inline std::string mistake_text(const CLI::App* app, const CLI::Error& error) {
  std::string problem = error.what();
  problem = problem.substr(0, problem.find('\n'));
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
            return fmt::format("{} is not a number from {} to {}", text, low, high);
          },
          ""};
}

/// CLI11 takes -1 for the largest number that there is.
inline CLI::Validator not_negative() {
  return {[](const std::string& text) { return text.starts_with('-') ? text + " is less than 0" : std::string(); }, ""};
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
