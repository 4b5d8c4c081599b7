#include "comm/peer_watch.h"

#include "base/log.h"
#include "comm/messages.h"
#include "comm/quiet_thread.h"
#include "comm/wire.h"
#include "executor/host_machine.h"

#include <fmt/format.h>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace tutti::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Signs of life in the time after which their absence means something.
constexpr int kSignsPerTimeout = 5;
constexpr auto kSlowestSign = std::chrono::seconds(2);
constexpr auto kFastestSign = milliseconds(10);
/// For the others to take the goodbye.
constexpr auto kGoodbyeTime = milliseconds(500);

class Watch final : public PeerWatch {
 public:
  Watch(std::vector<PrivateDescriptor> sockets, FailureRecord& failure, double timeout_s, Callbacks callbacks,
        WatchedBeside* beside)
      : failure_(failure), timeout_s_(timeout_s), callbacks_(std::move(callbacks)), beside_(beside) {
    const auto now = Clock::now();
    for (std::size_t rank = 0; rank < sockets.size(); ++rank) {
      if (sockets[rank])
        peers_.push_back({static_cast<int>(rank), Connection(std::move(sockets[rank]), kPayloadMax), now});
    }
    passes_on_ = peers_.size() + 1 < sockets.size();
  }
  ~Watch() override;

  Status run_thread();
  void set_last_call(std::uint32_t last_call) override { last_call_ = last_call; }
  void wake() override;
  void say(Bytes words) override;
  void finish_telling(double seconds) override;

 private:
  static constexpr std::size_t kPayloadMax = Connection::kStrangerPayloadMax;

  struct Peer {
    int rank;
    Connection connection;
    Clock::time_point heard;
    bool open = true;
    bool said_goodbye = false;
    bool silent = false;
  };

  void run();
  Clock::duration interval() const;
  void wait(Clock::time_point until);
  void listen(Peer& peer, Clock::time_point now);
  void handle(Peer& peer, const Frame& frame);
  void end(Peer& peer);
  void judge(Clock::time_point now);
  void send_signs(Clock::time_point now);
  void tell_failure();
  void tell_words();
  void pass_on(const Peer& from, FrameType type, const Bytes& news);
  void tell_gone(const Peer& gone, PeerLife life, std::uint32_t last_call = 0);
  void hear_gone(const Peer& from, const Bytes& news);
  void send(Peer& peer);
  void say_goodbye();

  FailureRecord& failure_;
  const double timeout_s_;
  const Callbacks callbacks_;
  WatchedBeside* const beside_;
  std::atomic<std::uint32_t> last_call_{0};
  const pid_t owner_ = getpid();
  std::vector<Peer> peers_;  ///< the thread's
  bool passes_on_ = false;   ///< some rank is not watched by this one
  PrivateDescriptor wake_;
  std::thread thread_;
  std::atomic<bool> stopping_{false};
  Clock::time_point next_sign_ = Clock::now();
  bool failure_told_ = false;
  std::mutex mutex_;
  std::condition_variable told_;
  bool all_told_ = false;    ///< guarded by mutex_
  std::vector<Bytes> said_;  ///< the same; not queued yet
};

Status Watch::run_thread() {
  wake_ = PrivateDescriptor::open([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  if (!wake_) return system_error("eventfd for the watch over other hosts' ranks (raise ulimit -n)");
  TUTTI_TRY_ASSIGN(thread_, start_quiet_thread("tutti-watch", [this] { run(); }));
  return {};
}

Watch::~Watch() {
  if (!thread_.joinable()) return;
  if (owner_ != getpid()) {
    new std::thread(std::move(thread_));  // a forked child has no such thread
    return;
  }
  stopping_ = true;
  wake();
  thread_.join();
}

void Watch::wake() {
  const std::uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

void Watch::say(Bytes words) {
  {
    const std::lock_guard lock(mutex_);
    said_.push_back(std::move(words));
  }
  wake();
}

void Watch::finish_telling(double seconds) {
  wake();
  std::unique_lock lock(mutex_);
  told_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return all_told_; });
}

Clock::duration Watch::interval() const {
  if (timeout_s_ <= 0) return std::chrono::hours(1);
  const auto wanted = std::chrono::duration<double>(timeout_s_ / kSignsPerTimeout);
  return std::clamp<Clock::duration>(std::chrono::duration_cast<Clock::duration>(wanted), kFastestSign, kSlowestSign);
}

void Watch::run() {
  while (!stopping_) {
    // What was heard is judged by the time before it was looked for: a process that was stopped itself hears first.
    const auto now = Clock::now();
    for (Peer& peer : peers_) {
      if (peer.open) listen(peer, now);
    }
    judge(now);
    send_signs(now);
    tell_failure();
    tell_words();
    wait(next_sign_);
  }
  tell_failure();
  tell_words();
  say_goodbye();
}

void Watch::wait(Clock::time_point until) {
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
  const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
  const int ready = poll(watched.data(), watched.size(), static_cast<int>(std::clamp<long>(left, 0, 60000)));
  if (ready < 0 && errno != EINTR) poll(nullptr, 0, 10);
  std::uint64_t count = 0;
  if (ready > 0 && watched[0].revents != 0) (void)!read(wake_.get(), &count, sizeof(count));
  for (std::size_t i = 0; i < peers_.size() && ready > 0; ++i) {
    if ((watched[i + 1].revents & POLLOUT) != 0) send(peers_[i]);
  }
  if (beside_ != nullptr) beside_->serve(std::span(watched).subspan(own));
}

void Watch::listen(Peer& peer, Clock::time_point now) {
  const Connection::Input input = peer.connection.fill();
  for (;;) {
    auto frame = peer.connection.next();
    if (!frame.ok()) return end(peer);
    if (!frame.value()) break;
    peer.heard = now;
    handle(peer, *frame.value());
  }
  if (input == Connection::Input::kClosed) end(peer);
}

void Watch::handle(Peer& peer, const Frame& frame) {
  if (frame.type == FrameType::kGoodbye) {
    // Nothing is left to say to it: closing this end lets it go.
    WireReader reader(frame.payload);
    const auto last_call = reader.number<std::uint32_t>();
    peer.said_goodbye = true;
    callbacks_.on_goodbye(peer.rank, last_call);
    tell_gone(peer, PeerLife::kLeft, last_call);
    return end(peer);
  }
  if (frame.type == FrameType::kShrink && callbacks_.on_words(frame.payload)) pass_on(peer, frame.type, frame.payload);
  if (frame.type == FrameType::kGone) hear_gone(peer, frame.payload);
  if (frame.type != FrameType::kTold) return;
  if (auto told = decode_failure(frame.payload)) record_failure(failure_, told->code, peer.rank, told->message);
}

void Watch::end(Peer& peer) {
  if (!peer.open) return;
  peer.open = false;
  peer.connection = Connection(PrivateDescriptor(), kPayloadMax);
  if (peer.said_goodbye) return;
  callbacks_.on_end(peer.rank);
  tell_gone(peer, PeerLife::kEnded);
}

void Watch::judge(Clock::time_point now) {
  if (timeout_s_ <= 0) return;
  for (Peer& peer : peers_) {
    if (!peer.open || peer.silent) continue;
    peer.silent = std::chrono::duration<double>(now - peer.heard).count() > timeout_s_;
    if (!peer.silent) continue;
    callbacks_.on_silence(peer.rank);
    tell_gone(peer, PeerLife::kSilent);
  }
}

void Watch::send_signs(Clock::time_point now) {
  if (now < next_sign_) return;
  next_sign_ = now + interval();
  for (Peer& peer : peers_) {
    if (!peer.open || peer.connection.wants_to_write()) continue;
    peer.connection.queue(FrameType::kSignOfLife, {});
    send(peer);
  }
}

void Watch::tell_failure() {
  if (executor::load_acquire(&failure_.word) != 2) return;
  if (!failure_told_) {
    failure_told_ = true;
    const Bytes text = encode(error(static_cast<Code>(failure_.code), failure_.text));
    for (Peer& peer : peers_) {
      if (peer.open) peer.connection.queue(FrameType::kTold, text);
    }
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

void Watch::tell_words() {
  std::vector<Bytes> said;
  {
    const std::lock_guard lock(mutex_);
    said.swap(said_);
  }
  if (said.empty()) return;
  for (Peer& peer : peers_) {
    for (const Bytes& words : said) {
      if (peer.open) peer.connection.queue(FrameType::kShrink, words);
    }
    send(peer);
  }
}

/// In the order in which it came: what a rank said is known wherever it is known that it has gone.
void Watch::pass_on(const Peer& from, FrameType type, const Bytes& news) {
  if (!passes_on_) return;
  for (Peer& peer : peers_) {
    if (!peer.open || peer.rank == from.rank) continue;
    peer.connection.queue(type, news);
    send(peer);
  }
}

void Watch::tell_gone(const Peer& gone, PeerLife life, std::uint32_t last_call) {
  WireWriter news;
  news.number(static_cast<std::uint32_t>(gone.rank)).number(static_cast<std::uint8_t>(life)).number(last_call);
  pass_on(gone, FrameType::kGone, news.take());
}

void Watch::hear_gone(const Peer& from, const Bytes& news) {
  WireReader reader(news);
  const auto rank = reader.number<std::uint32_t>();
  const auto life = reader.number<std::uint8_t>();
  const auto last_call = reader.number<std::uint32_t>();
  if (!reader.complete() || life > static_cast<std::uint8_t>(PeerLife::kLeft)) return;
  if (callbacks_.on_gone(static_cast<int>(rank), static_cast<PeerLife>(life), last_call))
    pass_on(from, FrameType::kGone, news);
}

void Watch::send(Peer& peer) {
  if (!peer.open || peer.connection.flush()) return;
  // What it said before it went is still to be heard; listen() finds the end.
}

void Watch::say_goodbye() {
  const Bytes goodbye = WireWriter().number(last_call_.load()).take();
  for (Peer& peer : peers_) {
    if (!peer.open) continue;
    peer.connection.queue(FrameType::kGoodbye, goodbye);
    peer.said_goodbye = true;
  }
  const auto until = Clock::now() + kGoodbyeTime;
  while (Clock::now() < until && std::ranges::any_of(peers_, &Peer::open)) {
    for (Peer& peer : peers_) {
      send(peer);
      if (peer.open && !peer.silent) listen(peer, Clock::now());
      if (peer.silent) peer.open = false;
    }
    if (std::ranges::any_of(peers_, &Peer::open)) wait(std::min(until, Clock::now() + milliseconds(20)));
  }
}

}  // namespace

Result<std::unique_ptr<PeerWatch>> PeerWatch::start(std::vector<PrivateDescriptor> sockets, FailureRecord& failure,
                                                    double timeout_s, Callbacks callbacks, WatchedBeside* beside) {
  auto made = std::make_unique<Watch>(std::move(sockets), failure, timeout_s, std::move(callbacks), beside);
  TUTTI_TRY(made->run_thread());
  return std::unique_ptr<PeerWatch>(std::move(made));
}

}  // namespace tutti::comm
