#include "comm/nics.h"

#include "comm/own_seat.h"
#include "comm/system_file.h"

#include <fmt/format.h>

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <string_view>
#include <tuple>
#include <utility>

namespace tutti::comm {
namespace {

using planner::kUnknownSeat;

/// A VLAN of a bond of devices is two above them.
constexpr int kLayersMax = 4;

struct Hardware {
  bool there = false;
  int numa = kUnknownSeat;
};

/// The device of an interface, or the first one that is below it.
Hardware hardware_of(const std::string& interfaces, const std::string& name, int layers = 0) {
  const std::string path = fmt::format("{}/{}", interfaces, name);
  if (access((path + "/device").c_str(), F_OK) == 0)
    return {true, std::max(number_in(path + "/device/numa_node").value_or(kUnknownSeat), kUnknownSeat)};
  if (layers == kLayersMax) return {};
  constexpr std::string_view kBelow = "lower_";
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(path.c_str()), closedir);
  while (const dirent* entry = folder ? readdir(folder.get()) : nullptr) {
    const std::string_view link = entry->d_name;
    if (!link.starts_with(kBelow)) continue;
    const Hardware below = hardware_of(interfaces, std::string(link.substr(kBelow.size())), layers + 1);
    if (below.there) return below;
  }
  return {};
}

/// By NUMA node; nothing where the system does not tell, or has one, which not all devices name.
std::map<int, int> distances_from(const std::string& root, int numa) {
  std::map<int, int> distances;
  if (numa == kUnknownSeat) return distances;
  const std::string nodes = root + "/sys/devices/system/node";
  const std::string text = content_of(fmt::format("{}/node{}/distance", nodes, numa));
  const char* at = text.data();
  const char* const stop = at + text.size();
  for (const int node : planner::from_list(content_of(nodes + "/online"))) {
    while (at != stop && *at == ' ') ++at;
    int distance = 0;
    const auto [after, failure] = std::from_chars(at, stop, distance);
    if (failure != std::errc()) return {};
    distances[node] = distance;
    at = after;
  }
  if (distances.size() < 2) distances.clear();
  return distances;
}

/// Less is better.
int kind_of(const Interface& interface, const Nic& nic) {
  if (interface.loopback) return 3;
  if (!interface.running) return 2;
  return nic.hardware ? 0 : 1;
}

}  // namespace

std::vector<Nic> look_at_nics(const std::string& root, const std::vector<Interface>& interfaces) {
  std::vector<Nic> nics(interfaces.size());
  // One, or several addresses of it: there is nothing to choose.
  const auto is_first = [&](const Interface& one) { return one.name == interfaces.front().name; };
  if (std::ranges::all_of(interfaces, is_first)) return nics;
  const std::map<int, int> distances = distances_from(root, own_seat(root).numa);
  const std::string folder = root + "/sys/class/net";
  for (std::size_t i = 0; i < interfaces.size(); ++i) {
    const Hardware hardware = hardware_of(folder, interfaces[i].name);
    const auto distance = distances.find(hardware.numa);
    nics[i].hardware = hardware.there;
    nics[i].megabits = std::max(0, number_in(fmt::format("{}/{}/speed", folder, interfaces[i].name)).value_or(0));
    if (distance != distances.end()) nics[i].distance = distance->second;
  }
  return nics;
}

ToldInterfaces in_order(const std::vector<Interface>& chosen, const std::vector<Nic>& nics) {
  ToldInterfaces told;
  if (chosen.empty()) return told;
  std::vector<std::pair<Interface, Nic>> all;
  for (std::size_t i = 0; i < chosen.size(); ++i) all.emplace_back(chosen[i], nics[i]);
  const auto rank_of = [](const auto& one) {
    const auto& [interface, nic] = one;
    return std::tuple(interface.address.v6, kind_of(interface, nic), -nic.megabits, nic.distance);
  };
  std::ranges::stable_sort(all, {}, rank_of);
  const auto [best, best_nic] = all.front();
  const bool v6 = best.address.v6;
  const int kind = kind_of(best, best_nic);
  const int megabits = best_nic.megabits;
  const auto is_fast = [v6, kind, megabits](const auto& one) {
    const bool fast = megabits == 0 || one.second.megabits > megabits / 2;
    return one.first.address.v6 == v6 && kind_of(one.first, one.second) == kind && fast;
  };
  const auto others = std::ranges::stable_partition(all, is_fast).begin();
  const auto distance_of = [](const auto& one) { return one.second.distance; };
  std::ranges::stable_sort(all.begin(), others, {}, distance_of);
  const int nearest = distance_of(all.front());
  auto behind = all.begin();
  for (auto one = all.begin(); one != others && distance_of(*one) == nearest; ++one) {
    const auto is_same = [&](const auto& other) { return other.first.name == one->first.name; };
    if (std::any_of(all.begin(), behind, is_same)) continue;
    std::rotate(behind, one, one + 1);
    ++behind;
  }
  std::sort(all.begin(), behind, [](const auto& a, const auto& b) { return a.first.address < b.first.address; });
  told.abreast = static_cast<std::size_t>(behind - all.begin());
  for (auto& [interface, nic] : all) told.interfaces.push_back(std::move(interface));
  return told;
}

}  // namespace tutti::comm
