#include "comm/late_ties.h"

#include <algorithm>
#include <utility>

namespace tutti::comm {

LateTies::LateTies(Args args) : args_(std::move(args)) {
  args_.meeting.meetings->turn_away_others();
  args_.meeting.meetings->begin(
      {.expects = [this](const Meetings::Key& key) { return may_get(key); },
       .on_made = [this](const Meetings::Key& key, Connection made) { keep(key, std::move(made)); }});
}

void LateTies::want(int peer) {
  {
    const std::lock_guard lock(mutex_);
    wanted_.push_back(peer);
  }
  wake_();
}

std::vector<LateTies::News> LateTies::take_news() {
  const std::lock_guard lock(mutex_);
  has_news_.store(false, std::memory_order_release);
  return std::exchange(news_, {});
}

void LateTies::close_doors() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    // Whoever seeks this rank to watch it is refused, and goes on to the next one.
    args_.meeting.meetings->turn_away_all();
    args_.meeting.listener = {};
  }
  wake_();
}

void LateTies::end() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  pairs_.clear();
  news_.clear();
  args_.meeting = {};
}

std::size_t LateTies::sockets_with(int peer) const {
  const std::vector<RankEndpoint>& all = args_.meeting.endpoints;
  return std::min(all[static_cast<std::size_t>(peer)].sockets, all[static_cast<std::size_t>(args_.rank)].sockets);
}

bool LateTies::may_get(const Meetings::Key& key) const {
  const auto [peer, purpose] = key;
  if (purpose == Purpose::kWatch) return keeper_ != nullptr && keeper_->expects(peer);
  const auto number = number_of(purpose);
  if (!number || args_.given_up() || !args_.missing[static_cast<std::size_t>(peer)] || *number >= sockets_with(peer))
    return false;
  const auto pair = pairs_.find(peer);
  return pair == pairs_.end() || !pair->second.made[*number];
}

void LateTies::tell(News news) {
  news_.push_back(std::move(news));
  has_news_.store(true, std::memory_order_release);
}

void LateTies::note_left(int peer, std::uint32_t last_call) {
  const std::lock_guard lock(mutex_);
  // What it has sent by a connection that this rank has yet to take came before it left.
  args_.meeting.meetings->settle(peer);
  args_.missing[static_cast<std::size_t>(peer)] = false;
  args_.meeting.meetings->forget(peer);
  pairs_.erase(peer);
  tell({peer, {}, last_call});
}

void LateTies::keep(const Meetings::Key& key, Connection connection) {
  const auto [peer, purpose] = key;
  if (purpose == Purpose::kWatch) return keeper_->keep(peer, std::move(connection));
  Pair& pair = pairs_[peer];
  pair.made.resize(sockets_with(peer));
  pair.made[*number_of(purpose)] = std::move(connection);
  if (!std::ranges::all_of(pair.made, [](const auto& one) { return one.has_value(); })) return;
  News news{peer, {}, 0};
  for (auto& one : pair.made) news.sockets.push_back(one->release());
  args_.missing[static_cast<std::size_t>(peer)] = false;
  pairs_.erase(peer);
  tell(std::move(news));
}

void LateTies::begin_wanted() {
  for (const int peer : std::exchange(wanted_, {})) {
    if (!args_.missing[static_cast<std::size_t>(peer)]) continue;
    Pair& pair = pairs_[peer];
    pair.made.resize(sockets_with(peer));
    pair.until = Clock::now() + std::chrono::duration_cast<Clock::duration>(args_.reach_time);
    for (std::size_t number = 0; number < pair.made.size(); ++number) {
      if (pair.made[number]) continue;
      args_.meeting.meetings->seek({peer, data_socket(number)},
                                   args_.meeting.endpoints[static_cast<std::size_t>(peer)]);
    }
  }
}

void LateTies::give_up_late() {
  const auto now = Clock::now();
  const auto late = std::ranges::find_if(pairs_, [&](const auto& pair) { return now >= pair.second.until; });
  if (late == pairs_.end()) return;
  const int peer = late->first;
  const auto why = args_.meeting.meetings->not_reached(peer);
  args_.meeting.meetings->forget(peer);
  pairs_.erase(late);
  if (why) args_.on_failure(peer, *why);
}

/// Of a communicator that has failed.
void LateTies::end_data() {
  wanted_.clear();
  for (const auto& [peer, pair] : std::exchange(pairs_, {})) {
    for (std::size_t number = 0; number < pair.made.size(); ++number)
      args_.meeting.meetings->forget({peer, data_socket(number)});
  }
}

void LateTies::seek(int peer) {
  const std::lock_guard lock(mutex_);
  if (!closed_)
    args_.meeting.meetings->seek({peer, Purpose::kWatch}, args_.meeting.endpoints[static_cast<std::size_t>(peer)]);
}

void LateTies::forget(int peer) {
  const std::lock_guard lock(mutex_);
  if (!closed_) args_.meeting.meetings->forget({peer, Purpose::kWatch});
}

Meetings::Attempts LateTies::attempts(int peer) const {
  const std::lock_guard lock(mutex_);
  return closed_ ? Meetings::Attempts{} : args_.meeting.meetings->attempts({peer, Purpose::kWatch});
}

void LateTies::add_to(std::vector<pollfd>& watched) {
  const std::lock_guard lock(mutex_);
  polled_ = !closed_;
  if (!polled_) return;
  if (args_.given_up()) end_data();
  begin_wanted();
  args_.meeting.meetings->add_to(watched);
}

void LateTies::serve(std::span<const pollfd> polled) {
  const std::lock_guard lock(mutex_);
  if (!polled_ || closed_) return;
  args_.meeting.meetings->serve(polled);
  if (!args_.given_up()) give_up_late();
}

LateTies::Clock::time_point LateTies::due() const {
  const std::lock_guard lock(mutex_);
  if (closed_ || args_.meeting.meetings->is_idle()) return Clock::time_point::max();
  return Clock::now() + Meetings::kLookTime;
}

}  // namespace tutti::comm
