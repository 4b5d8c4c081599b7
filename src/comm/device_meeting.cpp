#include "comm/device_meeting.h"

#include "comm/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <new>
#include <source_location>
#include <utility>

namespace tutti::comm {
namespace {

/// By the control segment, which the ranks of this process have mapped once.
std::mutex meetings_mutex;
std::map<const void*, std::weak_ptr<DeviceMeeting>>& meetings() {
  static auto* table = new std::map<const void*, std::weak_ptr<DeviceMeeting>>;
  return *table;
}

std::string describe(const PostedCall& call) { return signature_of(call.args).describe(); }

bool agree(const PostedCall& a, const PostedCall& b) {
  const bool same = a.args.count == b.args.count && a.args.type == b.args.type;
  if (is_point_to_point(a.args)) return same;
  return same && a.args.collective == b.args.collective &&
         (!is_rooted(a.args.collective) || a.args.root == b.args.root) &&
         (!reduces(a.args.collective) || (a.args.op == b.args.op && a.args.scaled == b.args.scaled));
}

}  // namespace

std::shared_ptr<DeviceMeeting> DeviceMeeting::of(const Control& control) {
  const std::lock_guard lock(meetings_mutex);
  std::erase_if(meetings(), [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<DeviceMeeting>& place = meetings()[control.abort_word()];
  if (auto known = place.lock()) return known;
  auto made = std::make_shared<DeviceMeeting>(control.ranks());
  place = made;
  return made;
}

DeviceMeeting::DeviceMeeting(int ranks) : ranks_(ranks), launcher_(ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  collectives_.resize(n);
  sends_.resize(n * n);
  receives_.resize(n * n);
}

void DeviceMeeting::join(int rank, LaunchPlace where) {
  const std::lock_guard lock(mutex_);
  launcher_.place(rank, std::move(where));
}

Status DeviceMeeting::give_lanes(int rank, std::shared_ptr<DeviceLanes> lanes) {
  const std::lock_guard lock(mutex_);
  return launcher_.give_lanes(rank, std::move(lanes));
}

DeviceMeeting::Queue& DeviceMeeting::queue_of(int rank, const CallArgs& call) {
  if (!is_point_to_point(call)) return collectives_[static_cast<std::size_t>(rank)];
  const bool sends = call.collective == Collective::kSend;
  const int from = sends ? rank : call.root;
  const int to = sends ? call.root : rank;
  return (sends ? sends_ : receives_)[static_cast<std::size_t>(from) * ranks_ + to];
}

bool DeviceMeeting::post(int rank, std::span<const CallArgs> calls, const PathOf& path_of,
                         DeviceSubmission& submission) {
  const std::lock_guard lock(mutex_);
  submission.open.store(calls.size(), std::memory_order_relaxed);
  for (const CallArgs& call : calls) {
    const DevicePath path = rank == 0 ? path_of(call) : DevicePath::kDirect;  // sends and receives go no other way
    queue_of(rank, call).push_back({call, rank, path, &submission});
  }
  match_collectives();
  for (const CallArgs& call : calls) {
    if (!is_point_to_point(call)) continue;
    const bool sends = call.collective == Collective::kSend;
    match_pair(static_cast<std::size_t>(sends ? rank : call.root) * ranks_ + (sends ? call.root : rank));
  }
  return matched_count_ != 0;
}

/// One more, empty, which counts if end_match() finds that its parts agree.
MatchedCall& DeviceMeeting::begin_match() {
  if (matched_count_ == matched_.size()) matched_.emplace_back();
  MatchedCall& call = matched_[matched_count_];
  call.parts.clear();
  return call;
}

void DeviceMeeting::end_match() {
  MatchedCall& call = matched_[matched_count_];
  if (std::ranges::all_of(call.parts, [&](const PostedCall& part) { return agree(part, call.parts[0]); })) {
    ++matched_count_;
  } else {
    refuse(call.parts);
  }
}

void DeviceMeeting::match_collectives() {
  const auto is_waiting = [](const Queue& queue) { return !queue.empty(); };
  while (std::ranges::all_of(collectives_, is_waiting)) {
    MatchedCall& call = begin_match();
    call.parts.reserve(collectives_.size());
    for (Queue& queue : collectives_) {
      call.parts.push_back(queue.front());
      queue.pop_front();
    }
    end_match();
  }
}

void DeviceMeeting::match_pair(std::size_t pair) {
  while (!sends_[pair].empty() && !receives_[pair].empty()) {
    begin_match().parts.assign({sends_[pair].front(), receives_[pair].front()});
    sends_[pair].pop_front();
    receives_[pair].pop_front();
    end_match();
  }
}

namespace {

/// What could not be told for want of memory: a message would need some.
void break_off(std::span<PostedCall> calls, bool broken) {
  const Error out_of_memory{Code::kSystem, {}, std::source_location::current()};
  for (PostedCall& call : calls) count_off(call, &out_of_memory, broken);
}

}  // namespace

void DeviceMeeting::refuse(std::span<PostedCall> calls) try {
  std::map<std::string, std::string> callers;
  for (const PostedCall& call : calls) {
    std::string& who = callers[describe(call)];
    who += fmt::format("{}rank {}", who.empty() ? "" : ", ", call.rank);
  }
  std::string text;
  for (const auto& [what, who] : callers) text += fmt::format("{}{} on {}", text.empty() ? "" : "; ", what, who);
  for (PostedCall& call : calls) {
    const Error failure = error(Code::kInvalidUsage,
                                fmt::format("the ranks' calls differ, and nothing was done: {}. Every rank must make "
                                            "the same call with the same arguments",
                                            text));
    count_off(call, &failure);
  }
} catch (const std::bad_alloc&) {
  break_off(calls, false);
}

void DeviceMeeting::launch() {
  const std::lock_guard lock(mutex_);
  launch_matched();
}

void DeviceMeeting::launch_matched() {
  constexpr std::size_t kKept = 16;
  const auto calls = std::span(matched_).first(std::exchange(matched_count_, 0));
  try {
    launcher_.launch(calls);
  } catch (const std::bad_alloc&) {
    const bool broken = launcher_.broke_off();
    for (MatchedCall& call : calls) break_off(call.parts, broken);
  }
  if (matched_.size() > kKept) matched_.resize(kKept);
}

bool DeviceMeeting::is_through(const Communicator& communicator) {
  const std::lock_guard lock(mutex_);
  return launcher_.is_through(communicator.rank());
}

void DeviceMeeting::finish(const Communicator& communicator) {
  DeviceWork::finish(communicator, [&] { return is_through(communicator); });
}

void DeviceMeeting::withdraw(DeviceSubmission& submission) {
  const std::lock_guard lock(mutex_);
  launch_matched();  // another thread may have matched its calls, and not come to launch them
  const auto is_its = [&](const PostedCall& call) { return call.submission == &submission; };
  for (auto* queues : {&collectives_, &sends_, &receives_}) {
    for (Queue& queue : *queues) std::erase_if(queue, is_its);
  }
}

int DeviceMeeting::waiting_for(int rank, const DeviceSubmission& submission, std::string& what) {
  const std::lock_guard lock(mutex_);
  const auto its = [&](const Queue& queue) {
    return std::ranges::any_of(queue, [&](const PostedCall& call) { return call.submission == &submission; });
  };
  if (its(collectives_[static_cast<std::size_t>(rank)])) {
    what = describe(collectives_[static_cast<std::size_t>(rank)].front());
    for (int peer = 0; peer < ranks_; ++peer) {
      if (collectives_[static_cast<std::size_t>(peer)].empty()) return peer;
    }
  }
  for (int peer = 0; peer < ranks_; ++peer) {
    for (const bool sends : {true, false}) {
      const std::size_t pair = static_cast<std::size_t>(sends ? rank : peer) * ranks_ + (sends ? peer : rank);
      const Queue& queue = (sends ? sends_ : receives_)[pair];
      if (!its(queue)) continue;
      what = fmt::format("{} {} rank {}", describe(queue.front()), sends ? "to" : "from", peer);
      return peer;
    }
  }
  return -1;
}

}  // namespace tutti::comm
