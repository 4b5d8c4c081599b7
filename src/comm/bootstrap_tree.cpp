#include "comm/bootstrap_tree.h"

#include "base/random.h"
#include "comm/rank_endpoint.h"
#include "comm/unix_socket.h"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace tutti::comm {
namespace {

/// Of what a rank below says: an endpoint, or why it gives up.
constexpr std::size_t kUpwardPayloadMax = 4096;

}  // namespace

Result<std::unique_ptr<TreeLinks>> TreeLinks::listen(int rank, int ranks, const Secret& secret, bool by_unix_socket,
                                                     double heartbeat_s) {
  std::unique_ptr<TreeLinks> links(new TreeLinks(rank, ranks, heartbeat_s));
  if (by_unix_socket) {
    std::uint64_t name = 0;
    TUTTI_TRY(fill_random(&name, sizeof(name)));
    links->place_.unix_name = fmt::format("{}tutti-{}-{:016x}", kUnixPrefix, getpid(), name);
    TUTTI_TRY_ASSIGN(links->listener_, listen_unix(links->place_.unix_name));
  } else {
    // Without one, the root still knows the address by which this rank has come.
    const auto chosen = interfaces_for_others();
    TUTTI_TRY_ASSIGN(OpenPlace open, open_place(chosen.ok() ? chosen.value() : std::vector<Interface>()));
    links->listener_ = std::move(open.listener.socket);
    links->place_ = std::move(open.place);
  }
  TreeLinks* const self = links.get();
  links->meetings_ = std::make_unique<Meetings>(rank, ranks, secret, links->listener_);
  links->meetings_->begin(
      {.expects = [self](const Meetings::Key& key) { return self->takes(key); },
       .on_made = [self](const Meetings::Key& key, Connection made) { self->keep(key, std::move(made)); }});
  return links;
}

bool TreeLinks::takes(const Meetings::Key& key) const {
  const auto is_child = [&](const Child& child) { return child.rank == key.first; };
  return key.second == Purpose::kTree && key.first != parent_ && children_.size() < kRankChildren &&
         std::ranges::none_of(children_, is_child);
}

void TreeLinks::keep(const Meetings::Key& key, Connection connection) {
  connection.accept_descriptors();
  if (key.first == parent_) {
    connection.accept_up_to(Connection::kRootPayloadMax);
    above_ = std::move(connection);
    return;
  }
  connection.accept_up_to(kUpwardPayloadMax);
  children_.push_back({key.first, std::move(connection)});
  say_of(key.first, FrameType::kHere, {});
}

void TreeLinks::seek_above(const TreePlace& place) {
  parent_ = place.parent;
  parents_place_ = place.place;
  meetings_->seek({parent_, Purpose::kTree}, parents_place_);
}

void TreeLinks::add_to(std::vector<pollfd>& watched) {
  for (const Child& child : children_) {
    const short events = child.connection.wants_to_write() ? POLLIN | POLLOUT : POLLIN;
    if (child.open) watched.push_back({child.connection.fd(), events, 0});
  }
  if (meetings_) meetings_->add_to(watched);
}

void TreeLinks::serve() {
  if (meetings_) {
    std::vector<pollfd> watched;
    meetings_->add_to(watched);
    if (poll(watched.data(), watched.size(), 0) >= 0) meetings_->serve(watched);
  }
  if (above_) above_->show_life();  // until it is taken
  for (Child& child : children_) {
    if (!child.open) continue;
    // A child that is gone has its last words here still.
    (void)child.connection.flush();
    listen_to(child);
    child.connection.show_life();
  }
}

void TreeLinks::listen_to(Child& child) {
  const Connection::Input input = child.connection.fill();
  for (;;) {
    auto frame = child.connection.next();
    if (!frame.ok()) {
      child.open = false;
      return say_of(child.rank, FrameType::kLeave, encode(Leave{false, "it sent " + frame.error().message}));
    }
    if (!frame.value()) break;
    if (frame.value()->type == FrameType::kSignOfLife) continue;
    auto from = frame.value()->type == FrameType::kFrom ? decode_from(frame.value()->payload)
                                                        : FromRank{child.rank, std::move(*frame.value())};
    if (!from) continue;
    child.done |= from->rank == child.rank && from->frame.type == FrameType::kDone;
    std::shared_ptr<Descriptor> attached;
    if (from->frame.type == FrameType::kControl) {
      if (Descriptor file = child.connection.take_descriptor())
        attached = std::make_shared<Descriptor>(std::move(file));
    }
    say_of(from->rank, from->frame.type, std::move(from->frame.payload), std::move(attached));
  }
  const bool is_silent = !child.done && child.connection.is_silent(heartbeat_s_);
  if (input == Connection::Input::kOpen && !is_silent) return;
  child.open = false;
  if (input == Connection::Input::kOpen) {
    upward_.push_back({FrameType::kSilent, encode(Silence{child.rank, heartbeat_s_}), nullptr});
  } else {
    upward_.push_back({FrameType::kLost, encode_rank(child.rank), nullptr});
  }
}

void TreeLinks::say_of(int rank, FrameType type, Bytes payload, std::shared_ptr<Descriptor> attached) {
  upward_.push_back({FrameType::kFrom, encode(FromRank{rank, Frame{type, std::move(payload)}}), std::move(attached)});
}

void TreeLinks::send_down(const Frame& frame, const std::shared_ptr<Descriptor>& attached) {
  meetings_.reset();
  listener_.reset();
  const Connection::SharedFrame bytes = Connection::make_frame(frame.type, frame.payload);
  for (Child& child : children_) {
    if (!child.open) continue;
    child.connection.queue(bytes, attached);
    (void)child.connection.flush();
  }
}

int TreeLinks::slow_child() const {
  const auto slow = std::ranges::find_if(
      children_, [](const Child& child) { return child.open && child.connection.wants_to_write(); });
  return slow == children_.end() ? -1 : slow->rank;
}

void TreeLinks::flush_down(std::chrono::milliseconds at_most) {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + at_most;
  for (;;) {
    std::vector<pollfd> watched;
    for (Child& child : children_) {
      if (child.open && child.connection.flush() && child.connection.wants_to_write())
        watched.push_back({child.connection.fd(), POLLOUT, 0});
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    if (watched.empty() || left <= 0) return;
    poll(watched.data(), watched.size(), static_cast<int>(left));
  }
}

}  // namespace tutti::comm
