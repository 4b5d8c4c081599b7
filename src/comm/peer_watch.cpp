#include "comm/peer_watch.h"

#include "comm/quiet_thread.h"
#include "comm/watch_thread.h"

#include <fmt/format.h>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>

namespace tutti::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// For the others to take the goodbye.
constexpr auto kGoodbyeTime = milliseconds(500);

}  // namespace

Status WatchThread::run_thread() {
  wake_ = PrivateDescriptor::open([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  if (!wake_) return system_error("eventfd for the watch over other hosts' ranks (raise ulimit -n)");
  TUTTI_TRY_ASSIGN(thread_, start_quiet_thread("tutti-watch", [this] { run(); }));
  return {};
}

/// All have met: whose connections ended without a word would be dead for the others.
Error WatchThread::give_up(int rank, Error why) {
  record_failure(failure_, why.code, rank, fmt::format("rank {} could not initialise: {}", rank, why.message));
  stopping_ = true;
  run();
  return why;
}

WatchThread::~WatchThread() {
  if (!thread_.joinable()) return;
  if (owner_ != getpid()) {
    new std::thread(std::move(thread_));  // a forked child has no such thread
    return;
  }
  stopping_ = true;
  wake();
  thread_.join();
}

void WatchThread::say(Bytes words) {
  {
    const std::lock_guard lock(mutex_);
    said_.push_back(std::move(words));
  }
  wake();
}

void WatchThread::finish_telling(double seconds) {
  wake();
  std::unique_lock lock(mutex_);
  told_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return all_told_; });
}

void WatchThread::run() {
  while (!stopping_) survive([this] { look(); });
  survive([this] { end_watch(); });
}

/// Something may be lost for want of memory: the communicator fails, of which the others hear when there is some.
template <class Act>
void WatchThread::survive(const Act& act) {
  try {
    act();
  } catch (const std::exception&) {
    record_failure(failure_, Code::kSystem, graph_.rank(), "out of memory in the watch over other hosts' ranks");
    poll(nullptr, 0, 10);
  }
}

void WatchThread::look() {
  // What was heard is judged by the time before it was looked for: a process that was stopped itself hears first.
  const auto now = Clock::now();
  leave_out_pause(now);
  due_ = now;
  listen_to_all(now);
  judge(now);
  send_signs(now);
  tell_failure();
  tell_words();
  tell_deaths();
  close_ring(now);
  wait(made_.empty() ? signs_.next() : now);
}

void WatchThread::end_watch() {
  listen_to_all(Clock::now());  // after the goodbyes the end of a connection tells nothing any more
  tell_failure();
  tell_words();
  tell_deaths();
  say_goodbye();
}

void WatchThread::wait(Clock::time_point until) {
  std::vector<pollfd> watched = {{wake_.get(), POLLIN, 0}};
  for (const Peer& peer : peers_) {
    const short events = peer.connection.wants_to_write() ? POLLIN | POLLOUT : POLLIN;
    watched.push_back({peer.open ? peer.connection.fd() : -1, events, 0});
  }
  const std::size_t own = watched.size();
  if (beside_ != nullptr) {
    beside_->add_to(watched);
    until = std::min(until, beside_->due());
  }
  due_ = std::max(due_, until);
  const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
  const int ready = poll(watched.data(), watched.size(), static_cast<int>(std::clamp<long>(left, 0, 60000)));
  if (ready < 0 && errno != EINTR) poll(nullptr, 0, 10);
  if (eventfd_t count = 0; ready > 0 && watched[0].revents != 0) eventfd_read(wake_.get(), &count);
  for (std::size_t i = 0; i < peers_.size() && ready > 0; ++i)
    if ((watched[i + 1].revents & POLLOUT) != 0) send(peers_[i]);
  if (beside_ != nullptr) beside_->serve(std::span(watched).subspan(own));
}

void WatchThread::listen_to_all(Clock::time_point now) {
  take_made();
  for (Peer& peer : peers_)
    if (peer.open) listen(peer, now);
}

void WatchThread::listen(Peer& peer, Clock::time_point now) {
  const Connection::Input input = peer.connection.fill();
  for (;;) {
    auto frame = peer.connection.next();
    if (!frame.ok()) return end(peer);
    if (!frame.value()) break;
    peer.heard = now;
    peer.proved = true;
    handle(peer, *frame.value());
  }
  if (input == Connection::Input::kClosed) end(peer);
}

void WatchThread::handle(Peer& peer, const Frame& frame) {
  if (frame.type == FrameType::kGoodbye) {
    WireReader reader(frame.payload);
    const auto last_call = reader.number<std::uint32_t>();
    peer.said_goodbye = true;
    note_gone({peer.rank, PeerLife::kLeft, last_call}, peer.rank);
    // Closing this end lets it go, at once where nobody may need it any more.
    if (!has_ring() || says_goodbye_) close(peer);
    return;
  }
  if (frame.type == FrameType::kShrink && callbacks_.on_words(frame.payload))
    pass_on(peer.rank, frame.type, frame.payload);
  if (frame.type == FrameType::kGone) {
    if (const auto gone = graph_.decode(frame.payload)) note_gone(*gone, peer.rank);
  }
  if (frame.type == FrameType::kSignOfLife) signs_.hear(frame.payload);
  if (frame.type != FrameType::kTold) return;
  if (auto told = decode_failure(frame.payload)) record_failure(failure_, told->code, peer.rank, told->message);
  tell_failure();
}

void WatchThread::close(Peer& peer) {
  peer.open = false;
  peer.connection = Connection(PrivateDescriptor(), payload_max());
}

void WatchThread::end(Peer& peer) {
  if (!peer.open) return;
  close(peer);
  if (peer.said_goodbye || !peer.proved) return;
  note_gone({peer.rank, PeerLife::kEnded}, peer.rank);
}

void WatchThread::judge(Clock::time_point now) {
  if (timeout_s_ <= 0) return;
  for (Peer& peer : peers_) {
    if (!peer.open || peer.silent || peer.said_goodbye) continue;
    peer.silent = std::chrono::duration<double>(now - peer.heard).count() > timeout_s_;
    if (!peer.silent) continue;
    if (peer.proved)
      note_gone({peer.rank, PeerLife::kSilent}, peer.rank);
    else
      close(peer);
  }
}

void WatchThread::send_signs(Clock::time_point now) {
  if (!signs_.take(now)) return;
  for (Peer& peer : peers_) {
    if (!peer.open || peer.connection.wants_to_write()) continue;
    peer.connection.queue(FrameType::kSignOfLife, signs_.make());
    send(peer);
  }
}

void WatchThread::tell_failure() {
  if (!has_failed()) return;
  if (!failure_told_) {
    unreached_.clear();  // sought once more: from now on the others are told
    const Bytes text = encode(error(static_cast<Code>(failure_.code), failure_.text));
    for (Peer& peer : peers_)
      if (peer.open) peer.connection.queue(FrameType::kTold, text);
    failure_told_ = true;
  }
  bool all = true;
  for (Peer& peer : peers_) {
    send(peer);
    all = all && !(peer.open && peer.connection.wants_to_write());
  }
  if (!all) return;
  const std::lock_guard lock(mutex_);
  all_told_ = true;
  told_.notify_all();
}

void WatchThread::tell_words() {
  std::vector<Bytes> said;
  {
    const std::lock_guard lock(mutex_);
    said.swap(said_);
  }
  if (said.empty()) return;
  own_words_ = said.back();
  for (Peer& peer : peers_) {
    for (const Bytes& words : said)
      if (peer.open) peer.connection.queue(FrameType::kShrink, words);
    send(peer);
  }
}

/// In the order in which it came: what a rank said is known wherever it is known that it has gone.
void WatchThread::pass_on(int from, FrameType type, const Bytes& news) {
  if (!passes_on_) return;
  for (Peer& peer : peers_) {
    if (!peer.open || peer.rank == from) continue;
    peer.connection.queue(type, news);
    send(peer);
  }
}

/// Passes it on, if it is news. Behind the failure that it is for this rank: so all have the words of one that has noticed it.
void WatchThread::note_gone(const WatchGraph::Gone& gone, int from) {
  const bool is_reached = gone.life == PeerLife::kUnreached && is_watched(gone.rank);  // and heard of when it ends
  if (is_reached || !graph_.note(gone)) return;
  callbacks_.on_gone(gone.rank, gone.life, gone.last_call);
  tell_failure();
  pass_on(from, FrameType::kGone, WatchGraph::encode(gone));
  if (is_death(gone.life)) deaths_.push_back(gone);
}

/// When others have been told of them, and of the failure.
void WatchThread::tell_deaths() {
  for (const WatchGraph::Gone& gone : std::exchange(deaths_, {})) callbacks_.on_death(gone.rank, gone.life);
}

void WatchThread::send(Peer& peer) {
  if (peer.open) (void)peer.connection.flush();  // listen() finds the end, after what it said before it went
}

void WatchThread::say_goodbye() {
  says_goodbye_ = true;
  const Bytes goodbye = WireWriter().number(last_call_.load()).take();
  for (Peer& peer : peers_) {
    if (!peer.open) continue;
    peer.connection.queue(FrameType::kGoodbye, goodbye);
    send(peer);
    if (peer.said_goodbye) close(peer);
    peer.said_goodbye = true;
  }
  const auto until = Clock::now() + kGoodbyeTime;
  while (Clock::now() < until && std::ranges::any_of(peers_, &Peer::open)) {
    for (Peer& peer : peers_) {
      send(peer);
      if (peer.open && !peer.silent) listen(peer, Clock::now());
      if (peer.silent) peer.open = false;
    }
    tell_failure();  // those who are still there may need this rank to hear of it
    tell_deaths();
    if (std::ranges::any_of(peers_, &Peer::open)) wait(std::min(until, Clock::now() + milliseconds(20)));
  }
}

Result<std::unique_ptr<PeerWatch>> PeerWatch::start(Args args) {
  const int rank = args.rank;
  auto made = std::make_unique<WatchThread>(std::move(args));
  if (Status started = made->run_thread(); !started.ok()) return made->give_up(rank, std::move(started).error());
  return std::unique_ptr<PeerWatch>(std::move(made));
}

}  // namespace tutti::comm
