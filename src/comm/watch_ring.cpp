#include "comm/watch_thread.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace tutti::comm {
namespace {

/// So often a rank refuses to be connected with before it counts as gone.
constexpr int kRefusalsMax = 3;
/// Who seeks others tries the next one beyond, too, when one has not answered for so long.
constexpr auto kPauseTime = std::chrono::seconds(1);

}  // namespace

void WatchThread::add(int rank, Connection connection, bool proved) {
  connection.accept_up_to(payload_max());
  peers_.push_back({rank, std::move(connection), Clock::now(), proved});
}

bool WatchThread::is_connected(int rank) const {
  return std::ranges::any_of(peers_, [&](const Peer& peer) { return peer.rank == rank && peer.open; }) ||
         std::ranges::any_of(made_, [&](const auto& made) { return made.first == rank; });
}

/// By a connection of which both sides know.
bool WatchThread::is_watched(int rank) const {
  return std::ranges::any_of(peers_, [&](const Peer& peer) { return peer.rank == rank && peer.open && peer.proved; });
}

bool WatchThread::expects(int peer) {
  return has_ring() && !leaving_ && !stopping_ && graph_.is_there(peer) && !is_connected(peer);
}

void WatchThread::take_made() {
  for (auto& [rank, connection] : std::exchange(made_, {})) {
    sought_.erase(rank);
    unreached_.erase(rank);
    add(rank, std::move(connection), false);
    tell_all_known(peers_.back());
  }
}

/// To one that may have missed it: the first reason before others, and what ranks have said before who of them has gone, as everywhere.
void WatchThread::tell_all_known(Peer& peer) {
  peer.connection.queue(FrameType::kSignOfLife, signs_.make());
  for (const Bytes& words : callbacks_.words_known()) peer.connection.queue(FrameType::kShrink, words);
  if (own_words_) peer.connection.queue(FrameType::kShrink, *own_words_);
  if (failure_told_)
    peer.connection.queue(FrameType::kTold, encode(error(static_cast<Code>(failure_.code), failure_.text)));
  for (const WatchGraph::Gone& gone : graph_.gone()) peer.connection.queue(FrameType::kGone, WatchGraph::encode(gone));
  send(peer);
}

void WatchThread::close_ring(Clock::time_point now) {
  if (!has_ring()) return;
  if (!leaving_) {
    judge_sought(now);
    const auto is_slow = [&](int rank) {
      const auto sought = sought_.find(rank);
      return sought != sought_.end() && now - sought->second > kPauseTime;
    };
    const WatchGraph::Ring ring = graph_.ring(
        [this](int rank) { return is_watched(rank); },
        [&](int rank) { return unreached_.contains(rank) || is_slow(rank) || beside_->attempts(rank).rounds > 0; });
    for (const int rank : ring.wanted) {
      if (!is_connected(rank) && !unreached_.contains(rank) && sought_.emplace(rank, now).second) beside_->seek(rank);
    }
    if (ring.whole) return let_go();
  }
  // Those who are let go by a rank that leaves itself hear its goodbye first. Of a failed communicator nobody has to hear of a death.
  if (has_failed()) let_go();
}

/// Those who have said goodbye.
void WatchThread::let_go() {
  for (Peer& peer : peers_)
    if (peer.open && peer.said_goodbye) close(peer);
}

/// The time in which this process was stopped itself, and with it perhaps all others, is not time in which they did not answer.
void WatchThread::leave_out_pause(Clock::time_point now) {
  const auto pause = now - due_;
  if (pause <= signs_.needed()) return;  // too short to count beside the timeout
  for (auto& [rank, since] : sought_) since += pause;
  for (Peer& peer : peers_) peer.heard += pause;
}

void WatchThread::judge_sought(Clock::time_point now) {
  for (auto sought = sought_.begin(); sought != sought_.end();) {
    const auto [rank, since] = *sought;
    const Meetings::Attempts attempts = beside_->attempts(rank);
    const bool refuses = attempts.refused && attempts.rounds >= kRefusalsMax;
    const std::chrono::duration<double> patience =
        has_failed() ? reach_time_ : std::max(reach_time_, std::chrono::duration<double>(timeout_s_));
    const bool unreached = now - since > patience || refuses;
    if (graph_.is_there(rank) && !unreached) {
      ++sought;
      continue;
    }
    sought = sought_.erase(sought);
    beside_->forget(rank);
    if (!unreached) continue;
    unreached_.insert(rank);
    // A communicator that has not failed is not made to: a goodbye may have been missed.
    if (has_failed() || refuses) {
      note_gone({rank, PeerLife::kUnreached}, rank);
    } else if (attempts.silent && timeout_s_ > 0) {
      note_gone({rank, PeerLife::kSilent}, rank);
    }
  }
}

}  // namespace tutti::comm
