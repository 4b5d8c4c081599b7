#include "planner/miniature.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <set>

namespace tutti::planner {
namespace {

using schedule::Groups;
using schedule::Request;

/// So many hosts, or ranks of a host, has the smallest; of twice as many twice more there are miniatures of them.
constexpr int kLeast = 2;
constexpr int kLeastRanks = 8;
constexpr int kRanksPerHostMax = 8;

bool is_point_to_point(Collective c) { return c == Collective::kSend || c == Collective::kReceive; }

std::vector<int> sizes_of(const Groups& groups) {
  std::vector<int> sizes(static_cast<std::size_t>(*std::ranges::max_element(groups)) + 1, 0);
  for (const int group : groups) ++sizes[static_cast<std::size_t>(group)];
  return sizes;
}

/// The largest `hosts` of them, with up to `ranks` ranks each: those are like the others in all that tells rows apart.
Groups cut_down(std::vector<int> sizes, std::size_t hosts, int ranks) {
  std::ranges::sort(sizes, std::greater<>());
  Groups groups;
  for (std::size_t host = 0; host < std::min(hosts, sizes.size()); ++host) {
    groups.insert(groups.end(), static_cast<std::size_t>(std::min(sizes[host], ranks)), static_cast<int>(host));
  }
  return groups;
}

Request among(Request request, std::size_t ranks) {
  request.ranks = static_cast<int>(ranks);
  request.root = request.rank = 0;
  request.groups = nullptr;
  return request;
}

/// Only the two take part.
Miniatures of_pair(const Request& request) {
  const bool self = request.rank == request.root;
  const auto group = [&](int rank) { return (*request.groups)[static_cast<std::size_t>(rank)]; };
  Miniature pair{among(request, self ? 1 : 2), {}, 1};
  pair.request.root = self ? 0 : 1;
  if (request.groups != nullptr) {
    pair.groups = self ? Groups{0} : Groups{0, group(request.rank) == group(request.root) ? 0 : 1};
  }
  return {{pair, pair, pair}, 1};
}

}  // namespace

Miniatures miniatures_of(const Request& request) {
  if (is_point_to_point(request.collective)) return of_pair(request);
  Miniatures made;
  if (request.groups == nullptr) {
    made.size = request.ranks;
    for (std::size_t i = 0; i < made.each.size(); ++i) {
      const std::size_t ranks = std::size_t{kLeastRanks} << i;
      made.each[i] = {among(request, ranks), {}, static_cast<double>(ranks)};
    }
    return made;
  }
  const std::vector<int> sizes = sizes_of(*request.groups);
  const bool fewer_hosts = sizes.size() >= std::size_t{kLeast} << 2;
  made.size = fewer_hosts ? static_cast<double>(sizes.size())
                          : static_cast<double>(request.ranks) / static_cast<double>(sizes.size());
  for (std::size_t i = 0; i < made.each.size(); ++i) {
    const int some = kLeast << i;
    Groups groups = fewer_hosts ? cut_down(sizes, static_cast<std::size_t>(some), kRanksPerHostMax)
                                : cut_down(sizes, sizes.size(), some);
    made.each[i] = {among(request, groups.size()), std::move(groups), static_cast<double>(some)};
  }
  return made;
}

double continued(const Miniatures& miniatures, const std::array<double, 3>& values) {
  const double least = miniatures.each[0].size;
  const double last = miniatures.each[2].size;
  if (last == least) return values[2];
  const double first_step = values[1] - values[0];
  const double second_step = values[2] - values[1];
  double by_doubling = 2 * first_step - second_step;
  double by_size = (second_step - first_step) / least;
  // What falls with the size, or grows less and less, is nearly level from here on.
  if (by_size < 0) {
    by_size = 0;
    by_doubling = std::max(0.0, second_step);
  }
  if (by_doubling < 0) {
    by_doubling = 0;
    by_size = std::max(0.0, second_step) / (2 * least);
  }
  return values[2] + by_doubling * std::log2(miniatures.size / last) + by_size * (miniatures.size - last);
}

/// The root and who is one, two or half of all ranks away from it, and of the first, the largest and the smallest host the first and the last.
std::vector<int> ranks_with_widest(const Request& request) {
  const int n = request.ranks;
  const int half = static_cast<int>(std::bit_floor(static_cast<unsigned>(n - 1)));
  std::set<int> ranks = {0, n - 1, request.rank};
  for (const int apart : {0, 1, 2, half}) {
    ranks.insert((request.root + apart) % n);
    ranks.insert((request.root + n - apart % n) % n);
  }
  if (request.groups == nullptr) return {ranks.begin(), ranks.end()};
  const Groups& groups = *request.groups;
  const std::vector<int> sizes = sizes_of(groups);
  const auto largest = static_cast<int>(std::ranges::max_element(sizes) - sizes.begin());
  const auto smallest = static_cast<int>(std::ranges::min_element(sizes) - sizes.begin());
  for (const int group : {0, largest, smallest}) {
    ranks.insert(static_cast<int>(std::ranges::find(groups, group) - groups.begin()));
    ranks.insert(static_cast<int>(groups.rend() - std::find(groups.rbegin(), groups.rend(), group)) - 1);
  }
  return {ranks.begin(), ranks.end()};
}

}  // namespace tutti::planner
