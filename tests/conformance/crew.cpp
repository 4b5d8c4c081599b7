#include "crew.h"

#include "hosts/placement.h"
#include "member.h"
#include "starter.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>

namespace tutti::conformance {
namespace {

class Team final : public Crew {
 public:
  Team(bool processes, const SessionOptions& options, int ranks) : members_(static_cast<std::size_t>(ranks)) {
    for (int r = 0; r < ranks; ++r) begin(processes, options, r);
  }
  /// Of a launcher's processes.
  Team(const std::string& backend, int ranks)
      : members_(static_cast<std::size_t>(ranks)), starter_(std::make_unique<Starter>(backend, ranks)) {
    std::vector<int> sockets;
    problem_ = starter_->wait(sockets);
    for (std::size_t r = 0; r < sockets.size(); ++r) {
      members_[r].orders = sockets[r];
      members_[r].replies = dup(sockets[r]);
    }
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  ~Team() override {
    if (!ended_) dismiss();
  }

  std::string end() override {
    dismiss();
    return starter_ == nullptr || hangs_ || !problem_.empty() ? "" : starter_->end();
  }

  std::string run(const Case& c, int number) override {
    if (!problem_.empty()) return problem_;
    if (!joined_) {
      if (std::string wrong = join(); !wrong.empty()) return wrong;
    }
    joined_ = true;
    Command command;
    command.order = Order::kRun;
    command.c = c;
    command.number = number;
    return all(command);
  }

 private:
  struct Member {
    int orders = -1;
    int replies = -1;
    int own_orders = -1;  ///< the rank's ends
    int own_replies = -1;
    pid_t child = 0;
    std::thread thread;
    Reply reply{};
  };
  static constexpr int kPatienceMs = 60000;

  void begin(bool processes, const SessionOptions& options, int rank) {
    Member& m = members_[static_cast<std::size_t>(rank)];
    const int ranks = static_cast<int>(members_.size());
    int orders[2];
    int replies[2];
    if (pipe(orders) != 0 || pipe(replies) != 0) std::abort();
    m.orders = orders[1];
    m.replies = replies[0];
    m.own_orders = orders[0];
    m.own_replies = replies[1];
    if (!processes) {
      m.thread = std::thread(live, options, rank, ranks, m.own_orders, m.own_replies, nullptr);
      return;
    }
    std::fflush(nullptr);
    m.child = fork();
    if (m.child == 0) {
      for (int r = 0; r <= rank; ++r) {
        close(members_[static_cast<std::size_t>(r)].orders);
        close(members_[static_cast<std::size_t>(r)].replies);
      }
      if (options.ranks_per_host != 0) hosts::enter_host(rank, hosts::ranks_per_host(options.ranks_per_host));
      live(options, rank, ranks, m.own_orders, m.own_replies);
      _exit(0);
    }
    close(m.own_orders);
    close(m.own_replies);
  }

  void dismiss() {
    ended_ = true;
    for (const Member& m : members_) send(m.orders, Command{});
    for (Member& m : members_) {
      // A rank that hangs cannot be joined: the process ends with it.
      if (hangs_ && m.child != 0) kill(m.child, SIGKILL);
      if (m.child != 0) waitpid(m.child, nullptr, 0);
      if (m.thread.joinable() && hangs_) m.thread.detach();
      if (m.thread.joinable()) m.thread.join();
      close(m.orders);
      close(m.replies);
      if (m.child == 0 && !hangs_) {
        close(m.own_orders);
        close(m.own_replies);
      }
    }
  }

  std::string join() {
    Command command;
    command.order = Order::kMakeId;
    send(members_[0].orders, command);
    if (std::string wrong = answer(0); !wrong.empty()) return wrong;
    command.order = Order::kJoin;
    command.id = members_[0].reply.id;
    return all(command);
  }

  std::string all(const Command& command) {
    std::string problem;
    for (const Member& m : members_) {
      if (!send(m.orders, command)) keep(problem, "a rank takes no orders");
    }
    for (std::size_t r = 0; r < members_.size(); ++r) keep(problem, answer(r));
    return problem;
  }

  std::string answer(std::size_t r) {
    Member& m = members_[r];
    pollfd waiting{m.replies, POLLIN, 0};
    if (poll(&waiting, 1, hangs_ ? 1000 : kPatienceMs) == 0) {
      hangs_ = true;
      return fmt::format("rank {} hangs: no answer within {} s", r, kPatienceMs / 1000);
    }
    if (!receive(m.replies, m.reply)) return fmt::format("rank {} died", r);
    return m.reply.text;
  }

  std::vector<Member> members_;
  std::unique_ptr<Starter> starter_;
  std::string problem_;  ///< the ranks have not started
  bool joined_ = false;
  bool ended_ = false;
  bool hangs_ = false;
};

/// All ranks' calls in one group of the caller's thread.
class OneThread final : public Crew {
 public:
  OneThread(const SessionOptions& options, int ranks) {
    for (int r = 0; r < ranks; ++r) {
      sessions_.push_back(std::make_unique<Session>(options, r, ranks));
      keep(problem_, sessions_.back()->start());
    }
    std::vector<ncclComm_t> comms(sessions_.size());
    if (ncclCommInitAll(comms.data(), ranks, nullptr) != ncclSuccess) keep(problem_, ncclGetLastError(nullptr));
    for (std::size_t r = 0; r < comms.size(); ++r) *sessions_[r]->comm() = comms[r];
  }
  ~OneThread() override {
    // Ends are collective, and one thread has one at a time: no rank waits for others.
    for (auto& s : sessions_) s->abort();
  }

  std::string run(const Case& c, int number) override {
    if (!problem_.empty()) return problem_;
    all([&](Session& s) { return s.begin(c, number); });
    for (int round = 0; round < Session::kRounds && problem_.empty(); ++round) {
      for (auto& s : sessions_) s->fill(round);
      if (c.kind == Kind::kGroup) {
        group(0, Session::kCallsInARow);
      } else {
        for (int k = 0; k < Session::kCallsInARow; ++k) group(k, k + 1);
      }
      all([](Session& s) { return s.wait(); });
      all([&](Session& s) { return s.check(round); });
    }
    all([](Session& s) { return s.end(); });
    return problem_;
  }

 private:
  void all(const std::function<std::string(Session&)>& what) {
    for (auto& s : sessions_) keep(problem_, what(*s));
  }
  void group(int from, int to) {
    ncclGroupStart();
    for (int k = from; k < to; ++k) all([&](Session& s) { return s.issue(k); });
    if (ncclGroupEnd() != ncclSuccess) keep(problem_, std::string("ncclGroupEnd: ") + ncclGetLastError(nullptr));
  }

  std::vector<std::unique_ptr<Session>> sessions_;
  std::string problem_;
};

}  // namespace

std::unique_ptr<Crew> make_crew(Executor executor, const std::string& backend, const SessionOptions& options,
                                int ranks) {
  if (executor == Executor::kStarted) return std::make_unique<Team>(backend, ranks);
  if (executor == Executor::kOneThread) return std::make_unique<OneThread>(options, ranks);
  return std::make_unique<Team>(executor == Executor::kProcesses, options, ranks);
}

}  // namespace tutti::conformance
