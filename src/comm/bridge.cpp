#include "comm/bridge.h"

#include "base/assert.h"
#include "base/config.h"
#include "comm/call.h"
#include "comm/striped_stream.h"
#include "comm/tcp_stream.h"
#include "executor/host_machine.h"

#include <fmt/format.h>

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace tutti::comm {
namespace {

/// With more streams than this it is cheaper to ask which of them have something.
constexpr std::size_t kAskedMax = 3;
/// While a call waits for one rank's line, or for lines that come by carriers, the other streams are asked once in so many times: a receive
/// that finds nothing costs a system call, on a core that the awaited rank may be waiting for.
constexpr std::uint32_t kSeldom = 8;
/// Where nothing wakes who waits.
constexpr auto kUnpolledWait = std::chrono::microseconds(50);

/// What lies in and beside the announce line of a send.
struct Extent {
  std::size_t in_line = 0;
  std::size_t beside = 0;
};

Extent extent_of(const Signature& signature, const protocol::AnnounceLine& line, std::size_t carried_max) {
  const std::size_t bytes = signature.count * size_of(signature.type);
  if (bytes <= protocol::kAnnouncePayloadBytes) return {bytes, 0};
  const bool carried = bytes <= carried_max && (line.buffers.flags & protocol::kCarried) != 0;
  return {sizeof(protocol::BufferReferences), carried ? bytes : 0};
}

std::uint32_t number_of(const protocol::AnnounceLine& line) {
  return protocol::sequence_of(executor::load_acquire(&line.word));
}

/// Of an input that comes with lines, by its record's mark.
std::uint32_t part_in(std::uint64_t mark) { return static_cast<std::uint32_t>(mark); }

/// nullptr: there is no connection yet.
std::unique_ptr<transport::ByteStream> stream_of(std::vector<PrivateDescriptor> sockets) {
  if (sockets.empty()) return nullptr;
  const ZeroCopy::Options zero_copy{.from_bytes = config().zero_copy_bytes};
  if (sockets.size() == 1) return std::make_unique<TcpStream>(std::move(sockets.front()), zero_copy);
  return std::make_unique<StripedStream>(std::move(sockets), zero_copy);
}

}  // namespace

Bridge::Bridge(const Control& control, int rank, std::vector<PeerSockets>& sockets,
               const std::vector<std::optional<Control>>& copies, const schedule::Groups& hosts, LateTies* late)
    : control_(control),
      copies_(copies),
      host_of_(hosts),
      hosts_(ranks_of_hosts(hosts)),
      here_(hosts_[static_cast<std::size_t>(hosts[rank])]),
      late_(late),
      rank_(rank),
      usual_{first_routes(hosts_), {}, {}} {
  for (int peer = 0; peer < static_cast<int>(sockets.size()); ++peer) {
    if (peer == rank) continue;
    Remote& remote = remotes_.emplace_back();
    remote.peer = peer;
    PeerSockets& with = sockets[peer];
    std::unique_ptr<transport::ByteStream> stream = std::move(with.stream);
    if (copies_[peer]) {
      remote.link = std::make_unique<RecordLink>(copies_[peer]->memory());
    } else {
      if (!stream) stream = stream_of(std::move(with.data));
      remote.link = std::make_unique<RecordLink>(nullptr, control_.memory());
      if (stream) connect(remote, std::move(stream));
    }
    remote.farewell = control_.farewell(peer);
    remote.to = control_.pair(rank, peer);
    remote.from = control_.pair(peer, rank);
    remote.signatures_to = control_.pair_signatures(rank, peer);
    remote.signatures_from = control_.pair_signatures(peer, rank);
  }
  route_lines(usual_.routes);
}

void Bridge::connect(Remote& remote, std::unique_ptr<transport::ByteStream> stream) {
  remote.link->connect(std::move(stream));
  if (!on_this_system_.empty()) remote.link->settle_pacing(on_this_system_[static_cast<std::size_t>(remote.peer)]);
  is_polled_ = is_polled_ && remote.link->descriptor() >= 0;
  ++streams_;
}

void Bridge::settle_pacing(std::vector<bool> on_this_system) {
  on_this_system_ = std::move(on_this_system);
  for (Remote& remote : remotes_) remote.link->settle_pacing(on_this_system_[static_cast<std::size_t>(remote.peer)]);
}

void Bridge::leave_channels_alone(int peer) {
  for (Remote& remote : remotes_) remote.has_channels = remote.has_channels && remote.peer != peer;
}

bool Bridge::carries_all() const {
  return std::ranges::all_of(remotes_, [](const Remote& r) { return r.has_channels && r.link->is_stream(); });
}

void Bridge::open(Membership& members) {
  members_ = &members;
  for (Remote& remote : remotes_) {
    remote.link->set_place([this, &remote](const Record& record) { return place_of(remote, record); });
    remote.link->set_arrived([this](const Record& record) {
      far_inputs_.note_arrived(protocol::sequence_of(record.value), part_in(record.value));
    });
    remote.link->set_stale([this](const Record& record) { return is_stale(record); });
  }
}

void Bridge::attach(std::uint32_t lane, std::vector<protocol::Channel>& channels) {
  TUTTI_ASSERT(control_.slot_shape().slots <= protocol::Crossing::kSlotsMax);
  for (Remote& remote : remotes_) {
    if (!remote.has_channels) continue;
    remote.channels.emplace_back();
    channels[remote.peer].crossing = &remote.crossings.emplace_back();
  }
}

std::uint64_t Bridge::offset_of(const void* address) const {
  return static_cast<std::uint64_t>(static_cast<const std::byte*>(address) - control_.memory().data());
}

void Bridge::queue(Remote& remote, const void* payload, std::size_t bytes, const std::uint64_t* word) {
  Record record;
  record.bytes = static_cast<std::uint32_t>(bytes);
  if (bytes != 0) record.offset = offset_of(payload);
  if (word != nullptr) {
    record.word = offset_of(word);
    record.value = executor::load_acquire(word);
  }
  remote.link->queue(record, static_cast<const std::byte*>(payload));
}

void Bridge::queue_line(Remote& remote, const protocol::AnnounceLine& line, std::size_t payload_bytes) {
  queue(remote, line.payload, payload_bytes, &line.word);
}

/// Where the lane waits for just this message and knows where it belongs, it goes there.
std::byte* Bridge::place_of(const Remote& remote, const Record& record) {
  if (record.offset == Record::kReceiversPlace)
    return far_inputs_.place_for(protocol::sequence_of(record.value), part_in(record.value), record.bytes, announced_);
  for (std::uint32_t lane = 0; lane < remote.channels.size(); ++lane) {
    const protocol::Channel& channel = members_->channels[lane][remote.peer];
    protocol::Crossing& crossing = *channel.crossing;
    if (record.word != offset_of(&channel.theirs->tail)) continue;
    if (record.value != crossing.expected || record.bytes != crossing.place_bytes) return nullptr;
    crossing.landed = record.value;
    return crossing.place;
  }
  return nullptr;
}

/// What has come of connections, and of ranks that leave.
void Bridge::take_news() {
  for (LateTies::News& news : late_->take_news()) {
    for (Remote& remote : remotes_) {
      if (remote.peer != news.peer || !remote.link->is_stream()) continue;
      if (news.sockets.empty()) {
        remote.goodbye = news.last_call;
      } else if (remote.link->waits_for_stream()) {
        connect(remote, stream_of(std::move(news.sockets)));
      }
      settle(remote);
    }
  }
}

void Bridge::send_part(int peer, std::uint32_t number, std::uint32_t part, const void* bytes, std::size_t size) {
  Remote& remote = remote_of(peer);
  Record record;
  record.bytes = static_cast<std::uint32_t>(size);
  record.offset = Record::kReceiversPlace;
  record.value = protocol::announce_word(number, part);
  remote.link->queue(record, static_cast<const std::byte*>(bytes));
  if (remote.holds_lines_of == number) remote.holds_lines_of = 0;
}

void Bridge::tell(int peer, const std::byte* payload, std::size_t bytes, const std::uint64_t* word) {
  for (Remote& remote : remotes_) {
    if (remote.peer != peer) continue;
    queue(remote, payload, bytes, word);
    remote.link->send();
  }
}

bool Bridge::send() {
  bool moved = false;
  if (given_up_) return false;
  if (late_ != nullptr && late_->has_news()) take_news();
  if (members_ != nullptr) collect();
  for (Remote& remote : remotes_) {
    if (remote.is_leaving) settle(remote);
    moved |= remote.link->send();
    if (remote.asked || remote.link->is_sent() || !remote.link->waits_for_stream()) continue;
    remote.asked = true;
    late_->want(remote.peer);
  }
  return moved;
}

bool Bridge::receive(int awaited) {
  bool moved = false;
  if (given_up_) return false;
  take_lines();
  const bool seldom = ++receives_ % kSeldom == 0;
  if (!seldom && waits_for_carried_lines()) {
    moved = receive_lines();
    if (part_source_ < 0) return moved;
    Remote& source = remote_of(part_source_);
    return (source.heard != receives_ && receive_from(source)) || moved;
  }
  if (seldom) awaited = -1;
  if (awaited >= 0 || streams_ <= kAskedMax || !is_polled_) {
    for (Remote& remote : remotes_) {
      if (awaited < 0 || remote.peer == awaited) moved |= receive_from(remote);
    }
    return moved;
  }
  polled_.clear();
  for (const Remote& remote : remotes_) {
    const bool open = remote.link->state() == RecordLink::State::kOpen;
    if (remote.link->descriptor() >= 0) polled_.push_back({open ? remote.link->descriptor() : -1, POLLIN, 0});
  }
  poll(polled_.data(), polled_.size(), 0);
  auto found = polled_.begin();
  for (Remote& remote : remotes_) {
    if (remote.link->descriptor() < 0) continue;
    const bool has_come = (found++)->revents != 0;
    if (has_come || remote.link->has_staged()) moved |= receive_from(remote);
  }
  return moved;
}

bool Bridge::receive_last() {
  if (given_up_) return false;
  bool is_news = !std::exchange(has_received_last_, true);
  if (late_ != nullptr && late_->has_news()) take_news();
  take_lines();
  for (Remote& remote : remotes_) {
    while (receive_from(remote)) is_news = true;
  }
  return is_news;
}

bool Bridge::receive_from(Remote& remote) {
  remote.heard = receives_;
  const bool moved = remote.link->receive();
  if (remote.is_leaving || (moved && executor::load_acquire(remote.farewell) != 0)) settle(remote);
  return moved;
}

void Bridge::wait(int milliseconds) const {
  if (!is_polled_) {
    std::this_thread::sleep_for(kUnpolledWait);
    return;
  }
  std::vector<pollfd> watched;
  for (const Remote& remote : remotes_) {
    if (remote.link->has_staged()) return;
    (void)remote.link->is_released();  // the kernel's words that were there before would end the wait
    const bool open = remote.link->state() == RecordLink::State::kOpen;
    watched.push_back({open ? remote.link->descriptor() : -1, POLLIN, 0});
    if (open && !remote.link->is_sent()) watched.push_back({remote.link->output_descriptor(), POLLOUT, 0});
  }
  poll(watched.data(), watched.size(), milliseconds);
}

void Bridge::rest() const {
  if (carries_all()) return wait(1);
  std::this_thread::sleep_for(kUnpolledWait);
}

void Bridge::collect() {
  collect_announcements();
  carry_lines(usual_);
  if (rail_ways_) carry_lines(*rail_ways_);
  for (Remote& remote : remotes_) {
    collect_pair(remote);
    for (std::uint32_t lane = 0; lane < remote.channels.size(); ++lane) collect_channel(remote, lane);
  }
}

void Bridge::collect_pair(Remote& remote) {
  for (std::uint32_t next = remote.sent.sends + 1; number_of(remote.to.send(next)) == next; ++next) {
    remote.sent.sends = next;
    const Signature& signature = remote.signatures_to.of(Direction::kSend, next);
    const protocol::AnnounceLine& line = remote.to.send(next);
    const Extent extent = extent_of(signature, line, remote.to.input_bytes);
    queue(remote, &signature, sizeof(signature));
    if (extent.beside != 0) {
      queue(remote, remote.to.carried(next, extent.beside), extent.beside);
    }
    queue_line(remote, line, extent.in_line);
  }
  for (std::uint32_t next = remote.sent.receives + 1; number_of(remote.from.receive(next)) == next; ++next) {
    remote.sent.receives = next;
    const Signature& signature = remote.signatures_from.of(Direction::kReceive, next);
    queue(remote, &signature, sizeof(signature));
    queue_line(remote, remote.from.receive(next), sizeof(protocol::BufferReferences));
  }
  const std::uint64_t taken = executor::load_acquire(remote.from.taken);
  if (taken == remote.sent.taken) return;
  remote.sent.taken = taken;
  queue(remote, nullptr, 0, remote.from.taken);
}

void Bridge::collect_channel(Remote& remote, std::uint32_t lane) {
  const protocol::Channel& channel = members_->channels[lane][remote.peer];
  SentChannel& sent = remote.channels[lane];
  const protocol::SlotShape shape = control_.slot_shape();
  for (; sent.messages != channel.sent; ++sent.messages) {
    // All messages over the bridge take a slot, so that the slot's number is the message's.
    const std::uint64_t slot = sent.messages % shape.slots;
    Record record;
    record.bytes = channel.crossing->bytes[slot];
    record.offset = offset_of(channel.outbox + slot * shape.slot_bytes);
    record.word = offset_of(&channel.mine->tail);
    record.value = sent.messages + 1;
    const std::byte* const lent = channel.crossing->from[slot];
    remote.link->lend(record, lent != nullptr ? lent : channel.outbox + slot * shape.slot_bytes);
  }
  // The peer can do with a count that is late; it goes along with whatever else goes there.
  const std::uint64_t untold = channel.acknowledged - sent.acknowledged;
  const bool may_wait = untold < schedule::messages_per_acknowledgement(shape.slots);
  if (untold == 0 || (may_wait && remote.link->is_sent())) return;
  sent.acknowledged = channel.acknowledged;
  queue(remote, nullptr, 0, &channel.mine->head);
}

int Bridge::unsent_peer() const {
  const auto is_over = [](const Remote& remote) { return remote.link->is_sent() && remote.link->is_released(); };
  const auto unsent = std::ranges::find_if_not(remotes_, is_over);
  return unsent == remotes_.end() ? -1 : unsent->peer;
}

/// What the kernel has not let go of, it may still send to others: not after this, as the call's caller writes there.
void Bridge::give_up() {
  given_up_ = true;
  for (Remote& remote : remotes_) {
    if (!remote.link->is_released()) remote.link->close();
  }
}

void Bridge::finish() {
  for (Remote& remote : remotes_) remote.link->finish();
}

void Bridge::close() {
  for (Remote& remote : remotes_) remote.link->close();
}

bool Bridge::has_arrived() const {
  return std::ranges::all_of(remotes_, [](const Remote& remote) { return remote.link->has_arrived(); });
}

std::uint64_t Bridge::sent_bytes() const {
  std::uint64_t total = 0;
  for (const Remote& remote : remotes_) total += remote.link->sent_bytes();
  return total;
}

int Bridge::ended_peer() const {
  for (const Remote& remote : remotes_) {
    if (remote.link->state() == RecordLink::State::kOpen) continue;
    if (executor::load_acquire(control_.phase(remote.peer)) == static_cast<std::uint64_t>(RankPhase::kLeft)) continue;
    return remote.peer;
  }
  return -1;
}

std::string Bridge::why_ended(int peer) const {
  for (const Remote& remote : remotes_) {
    if (remote.peer != peer) continue;
    if (remote.link->state() == RecordLink::State::kBroken) return "it sent " + remote.link->complaint();
  }
  return "the connection has ended";
}

}  // namespace tutti::comm
