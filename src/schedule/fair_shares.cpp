#include "schedule/fair_shares.h"

#include "base/assert.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tutti::schedule {

namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

constexpr double kSame = 1e-12;  ///< of a rate: less is rounding

}  // namespace

FairShares::FairShares(const LinkTable& links) : links_(links.size()) {
  constexpr double kBytesPerUs = 1e3;  // of a GB/s
  for (std::size_t link = 0; link < links.size(); ++link) {
    TUTTI_ASSERT(links[link].gbps > 0);
    links_[link].capacity = links[link].gbps * kBytesPerUs;
  }
}

int FairShares::add(const LinkPath& path, double weight) {
  TUTTI_ASSERT(!path.empty() && weight > 0);
  if (free_.empty()) {
    free_.push_back(static_cast<int>(transfers_.size()));
    transfers_.emplace_back();
  }
  const int number = free_.back();
  free_.pop_back();
  Transfer& transfer = transfers_[at(number)];
  transfer.path = &path;
  transfer.weight = weight;
  transfer.rate = 0;
  transfer.places.resize(path.size());
  for (std::uint32_t hop = 0; hop < path.size(); ++hop) {
    Link& link = links_[at(path[hop].link)];
    transfer.places[hop] = static_cast<std::uint32_t>(link.users.size());
    link.users.push_back({number, hop});
    soil(path[hop].link);
  }
  return number;
}

void FairShares::remove(int number) {
  Transfer& transfer = transfers_[at(number)];
  for (std::size_t hop = 0; hop < transfer.path->size(); ++hop) {
    const int link_number = (*transfer.path)[hop].link;
    Link& link = links_[at(link_number)];
    const std::uint32_t place = transfer.places[hop];
    link.users[place] = link.users.back();
    link.users.pop_back();
    if (place < link.users.size()) transfers_[at(link.users[place].transfer)].places[link.users[place].hop] = place;
    soil(link_number);
  }
  transfer.path = nullptr;
  free_.push_back(number);
}

void FairShares::soil(int number) {
  Link& link = links_[at(number)];
  if (link.dirty) return;
  link.dirty = true;
  dirty_.push_back(number);
}

std::span<const int> FairShares::settle() {
  changed_.clear();
  ++turn_;
  for (const int link : dirty_) {
    links_[at(link)].dirty = false;
    if (links_[at(link)].seen == turn_) continue;
    gather(link);
    fill();
  }
  dirty_.clear();
  return changed_;
}

/// All that is joined to the link by transfers that share links.
void FairShares::gather(int first) {
  component_.clear();
  component_links_.assign(1, first);
  links_[at(first)].seen = turn_;
  for (std::size_t i = 0; i < component_links_.size(); ++i) {
    Link& link = links_[at(component_links_[i])];
    link.left = link.capacity;
    link.demand = 0;
    for (const User& user : link.users) {
      Transfer& transfer = transfers_[at(user.transfer)];
      link.demand += (*transfer.path)[user.hop].part * transfer.weight;
      if (transfer.seen == turn_) continue;
      transfer.seen = turn_;
      transfer.settled = -1;
      component_.push_back(user.transfer);
      for (const LinkPart& other : *transfer.path) {
        if (links_[at(other.link)].seen == turn_) continue;
        links_[at(other.link)].seen = turn_;
        component_links_.push_back(other.link);
      }
    }
  }
  visits_ += component_.size();
}

void FairShares::hold(int number, double rate) {
  Transfer& transfer = transfers_[at(number)];
  transfer.settled = rate;
  for (const LinkPart& part : *transfer.path) {
    Link& link = links_[at(part.link)];
    link.left -= rate * part.part;
    link.demand -= part.part * transfer.weight;
  }
}

void FairShares::fill() {
  std::size_t rising = component_.size();
  while (rising > 0) {
    double level = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < component_links_.size();) {
      const Link& link = links_[at(component_links_[i])];
      constexpr double kNothing = 1e-9;  // what remains of parts that were added and taken away
      if (link.demand <= kNothing) {
        component_links_[i] = component_links_.back();
        component_links_.pop_back();
        continue;
      }
      level = std::min(level, std::max(0.0, link.left) / link.demand);
      ++i;
    }
    TUTTI_ASSERT(std::isfinite(level));
    const double full = level * (1 + kSame);
    const std::size_t before = rising;
    for (const int number : component_links_) {
      const Link& link = links_[at(number)];
      if (std::max(0.0, link.left) > full * link.demand) continue;
      for (const User& user : link.users) {
        if (transfers_[at(user.transfer)].settled >= 0) continue;
        hold(user.transfer, level * transfers_[at(user.transfer)].weight);
        --rising;
      }
    }
    TUTTI_ASSERT(rising < before);
  }
  for (const int number : component_) {
    Transfer& transfer = transfers_[at(number)];
    if (std::abs(transfer.settled - transfer.rate) <= kSame * transfer.rate) continue;
    transfer.rate = transfer.settled;
    changed_.push_back(number);
  }
}

}  // namespace tutti::schedule
