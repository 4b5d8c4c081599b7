#include "comm/slurm_step.h"

#include <algorithm>
#include <charconv>
#include <system_error>

namespace tutti::comm {
namespace {

/// The number at the beginning, which is taken off; nothing: there is none from 1 on.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || number < 1) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

bool take(std::string_view& text, std::string_view what) {
  if (!text.starts_with(what)) return false;
  text.remove_prefix(what.size());
  return true;
}

}  // namespace

std::string first_node(std::string_view nodes) {
  std::string name;
  while (!nodes.empty() && nodes.front() != ',') {
    const std::size_t plain = std::min(nodes.find_first_of("[,"), nodes.size());
    name += nodes.substr(0, plain);
    nodes.remove_prefix(plain);
    if (!take(nodes, "[")) continue;
    // Of its numbers the first.
    const std::size_t end = nodes.find(']');
    if (end == std::string_view::npos) return "";
    name += nodes.substr(0, nodes.find_first_of("-,]"));
    nodes.remove_prefix(end + 1);
  }
  return name;
}

std::optional<int> tasks_of_node(std::string_view tasks, int node) {
  while (const std::optional<int> here = take_number(tasks)) {
    int times = 1;
    if (take(tasks, "(x")) {
      const std::optional<int> number = take_number(tasks);
      if (!number || !take(tasks, ")")) return std::nullopt;
      times = *number;
    }
    if (!tasks.empty() && !take(tasks, ",")) break;
    if (node < times) return here;
    node -= times;
  }
  return std::nullopt;
}

}  // namespace tutti::comm
