#include "comm/peer_watch.h"

#include "base/log.h"
#include "comm/messages.h"
#include "comm/quiet_thread.h"
#include "comm/signs_of_life.h"
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
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

namespace tutti::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// For the others to take the goodbye.
constexpr auto kGoodbyeTime = milliseconds(500);
/// So often a rank refuses to be connected with before it counts as gone.
constexpr int kRefusalsMax = 3;
/// Who seeks others tries the next one beyond, too, when one has not answered for so long.
constexpr auto kPauseTime = std::chrono::seconds(1);

class Watch final : public PeerWatch, private WatchedBeside::Keeper {
 public:
  explicit Watch(Args args)
      : failure_(*args.failure),
        timeout_s_(args.timeout_s),
        reach_time_(args.reach_time),
        callbacks_(std::move(args.callbacks)),
        beside_(args.beside),
        graph_(args.rank, static_cast<int>(args.sockets.size())),
        signs_(args.timeout_s) {
    for (std::size_t rank = 0; rank < args.sockets.size(); ++rank) {
      if (args.sockets[rank])
        add(static_cast<int>(rank), Connection(std::move(args.sockets[rank]), payload_max()), true);
    }
    passes_on_ = peers_.size() + 1 < args.sockets.size();
    if (beside_ != nullptr) beside_->set_keeper(this);
  }
  ~Watch() override;

  Status run_thread();
  Error give_up(int rank, Error why);
  void begin_leaving(std::uint32_t last_call) override {
    last_call_ = last_call;
    leaving_ = true;
    wake();
  }
  void wake() override { eventfd_write(wake_.get(), 1); }
  void say(Bytes words) override;
  void finish_telling(double seconds) override;

 private:
  struct Peer {
    int rank;
    Connection connection;
    Clock::time_point heard;
    bool proved = true;  ///< something has come by it: the other side has kept it, if it was made late
    bool open = true;
    bool said_goodbye = false;  ///< one of the two has: the end of the connection tells nothing any more
    bool silent = false;
  };

  /// A rank's words of a shrink have a bit for each rank and list.
  std::size_t payload_max() const {
    return Connection::kStrangerPayloadMax + kShrinkLists * static_cast<std::size_t>(graph_.ranks()) / 8;
  }
  bool expects(int peer) override;
  void keep(int peer, Connection made) override { made_.emplace_back(peer, std::move(made)); }

  void run();
  void look();
  void end_watch();
  template <class Act>
  void survive(const Act& act);
  void wait(Clock::time_point until);
  void listen_to_all(Clock::time_point now);
  void listen(Peer& peer, Clock::time_point now);
  void handle(Peer& peer, const Frame& frame);
  void end(Peer& peer);
  void close(Peer& peer);
  void judge(Clock::time_point now);
  void send_signs(Clock::time_point now);
  void tell_failure();
  void tell_words();
  void pass_on(int from, FrameType type, const Bytes& news);
  void note_gone(const WatchGraph::Gone& gone, int from);
  void tell_deaths();
  void send(Peer& peer);
  void say_goodbye();

  void add(int rank, Connection connection, bool proved);
  void take_made();
  void tell_all_known(Peer& peer);
  bool is_connected(int rank) const;
  bool is_watched(int rank) const;
  bool has_failed() const { return executor::load_acquire(&failure_.word) == 2; }
  /// Whether connections can be made in the place of those that have gone.
  bool has_ring() const { return passes_on_ && beside_ != nullptr; }
  void close_ring(Clock::time_point now);
  void leave_out_pause(Clock::time_point now);
  void judge_sought(Clock::time_point now);
  void let_go();

  FailureRecord& failure_;
  const double timeout_s_;
  const std::chrono::duration<double> reach_time_;
  const Callbacks callbacks_;
  WatchedBeside* const beside_;
  std::atomic<std::uint32_t> last_call_{0};
  const pid_t owner_ = getpid();
  std::atomic<bool> leaving_{false};
  // The thread's:
  WatchGraph graph_;
  std::vector<Peer> peers_;
  std::vector<std::pair<int, Connection>> made_;  ///< peers to be
  std::map<int, Clock::time_point> sought_;       ///< since when
  std::set<int> unreached_;                       ///< not sought any more
  SignsOfLife signs_;
  Clock::time_point due_ = Clock::now();  ///< when the thread is to look again at the latest
  bool says_goodbye_ = false;
  std::optional<Bytes> own_words_;
  std::vector<WatchGraph::Gone> deaths_;  ///< callbacks_.on_death is still to be called for these
  bool passes_on_ = false;                ///< some rank is not watched by this one
  PrivateDescriptor wake_;
  std::thread thread_;
  std::atomic<bool> stopping_{false};
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

/// All have met: whose connections ended without a word would be dead for the others.
Error Watch::give_up(int rank, Error why) {
  record_failure(failure_, why.code, rank, fmt::format("rank {} could not initialise: {}", rank, why.message));
  stopping_ = true;
  run();
  return why;
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

void Watch::run() {
  while (!stopping_) survive([this] { look(); });
  survive([this] { end_watch(); });
}

/// Something may be lost for want of memory: the communicator fails, of which the others hear when there is some.
template <class Act>
void Watch::survive(const Act& act) {
  try {
    act();
  } catch (const std::exception&) {
    record_failure(failure_, Code::kSystem, graph_.rank(), "out of memory in the watch over other hosts' ranks");
    poll(nullptr, 0, 10);
  }
}

void Watch::look() {
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

void Watch::end_watch() {
  listen_to_all(Clock::now());  // after the goodbyes the end of a connection tells nothing any more
  tell_failure();
  tell_words();
  tell_deaths();
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
  due_ = std::max(due_, until);
  const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
  const int ready = poll(watched.data(), watched.size(), static_cast<int>(std::clamp<long>(left, 0, 60000)));
  if (ready < 0 && errno != EINTR) poll(nullptr, 0, 10);
  if (eventfd_t count = 0; ready > 0 && watched[0].revents != 0) eventfd_read(wake_.get(), &count);
  for (std::size_t i = 0; i < peers_.size() && ready > 0; ++i)
    if ((watched[i + 1].revents & POLLOUT) != 0) send(peers_[i]);
  if (beside_ != nullptr) beside_->serve(std::span(watched).subspan(own));
}

void Watch::listen_to_all(Clock::time_point now) {
  take_made();
  for (Peer& peer : peers_)
    if (peer.open) listen(peer, now);
}

void Watch::listen(Peer& peer, Clock::time_point now) {
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

void Watch::handle(Peer& peer, const Frame& frame) {
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

void Watch::close(Peer& peer) {
  peer.open = false;
  peer.connection = Connection(PrivateDescriptor(), payload_max());
}

void Watch::end(Peer& peer) {
  if (!peer.open) return;
  close(peer);
  if (peer.said_goodbye || !peer.proved) return;
  note_gone({peer.rank, PeerLife::kEnded}, peer.rank);
}

void Watch::judge(Clock::time_point now) {
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

void Watch::send_signs(Clock::time_point now) {
  if (!signs_.take(now)) return;
  for (Peer& peer : peers_) {
    if (!peer.open || peer.connection.wants_to_write()) continue;
    peer.connection.queue(FrameType::kSignOfLife, signs_.make());
    send(peer);
  }
}

void Watch::tell_failure() {
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

void Watch::tell_words() {
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
void Watch::pass_on(int from, FrameType type, const Bytes& news) {
  if (!passes_on_) return;
  for (Peer& peer : peers_) {
    if (!peer.open || peer.rank == from) continue;
    peer.connection.queue(type, news);
    send(peer);
  }
}

/// Passes it on, if it is news. Behind the failure that it is for this rank: so all have the words of one that has noticed it.
void Watch::note_gone(const WatchGraph::Gone& gone, int from) {
  const bool is_reached = gone.life == PeerLife::kUnreached && is_watched(gone.rank);  // and heard of when it ends
  if (is_reached || !graph_.note(gone)) return;
  callbacks_.on_gone(gone.rank, gone.life, gone.last_call);
  tell_failure();
  pass_on(from, FrameType::kGone, WatchGraph::encode(gone));
  if (is_death(gone.life)) deaths_.push_back(gone);
}

/// When others have been told of them, and of the failure.
void Watch::tell_deaths() {
  for (const WatchGraph::Gone& gone : std::exchange(deaths_, {})) callbacks_.on_death(gone.rank, gone.life);
}

// Connections in the place of those that have gone.

void Watch::add(int rank, Connection connection, bool proved) {
  connection.accept_up_to(payload_max());
  peers_.push_back({rank, std::move(connection), Clock::now(), proved});
}

bool Watch::is_connected(int rank) const {
  return std::ranges::any_of(peers_, [&](const Peer& peer) { return peer.rank == rank && peer.open; }) ||
         std::ranges::any_of(made_, [&](const auto& made) { return made.first == rank; });
}

/// By a connection of which both sides know.
bool Watch::is_watched(int rank) const {
  return std::ranges::any_of(peers_, [&](const Peer& peer) { return peer.rank == rank && peer.open && peer.proved; });
}

bool Watch::expects(int peer) {
  return has_ring() && !leaving_ && !stopping_ && graph_.is_there(peer) && !is_connected(peer);
}

void Watch::take_made() {
  for (auto& [rank, connection] : std::exchange(made_, {})) {
    sought_.erase(rank);
    unreached_.erase(rank);
    add(rank, std::move(connection), false);
    tell_all_known(peers_.back());
  }
}

/// To one that may have missed it: the first reason before others, and what ranks have said before who of them has gone, as everywhere.
void Watch::tell_all_known(Peer& peer) {
  peer.connection.queue(FrameType::kSignOfLife, signs_.make());
  for (const Bytes& words : callbacks_.words_known()) peer.connection.queue(FrameType::kShrink, words);
  if (own_words_) peer.connection.queue(FrameType::kShrink, *own_words_);
  if (failure_told_)
    peer.connection.queue(FrameType::kTold, encode(error(static_cast<Code>(failure_.code), failure_.text)));
  for (const WatchGraph::Gone& gone : graph_.gone()) peer.connection.queue(FrameType::kGone, WatchGraph::encode(gone));
  send(peer);
}

void Watch::close_ring(Clock::time_point now) {
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
void Watch::let_go() {
  for (Peer& peer : peers_)
    if (peer.open && peer.said_goodbye) close(peer);
}

/// The time in which this process was stopped itself, and with it perhaps all others, is not time in which they did not answer.
void Watch::leave_out_pause(Clock::time_point now) {
  const auto pause = now - due_;
  if (pause <= signs_.needed()) return;  // too short to count beside the timeout
  for (auto& [rank, since] : sought_) since += pause;
  for (Peer& peer : peers_) peer.heard += pause;
}

void Watch::judge_sought(Clock::time_point now) {
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

void Watch::send(Peer& peer) {
  if (peer.open) (void)peer.connection.flush();  // listen() finds the end, after what it said before it went
}

void Watch::say_goodbye() {
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

}  // namespace

Result<std::unique_ptr<PeerWatch>> PeerWatch::start(Args args) {
  const int rank = args.rank;
  auto made = std::make_unique<Watch>(std::move(args));
  if (Status started = made->run_thread(); !started.ok()) return made->give_up(rank, std::move(started).error());
  return std::unique_ptr<PeerWatch>(std::move(made));
}

}  // namespace tutti::comm
