// The plug-in's service: MPI's state in this process, communicators, and what Tutti's own programs need.
#include "transport/mpi_calls.h"
#include "transport/mpi_link.h"
#include "transport/mpi_messages.h"
#include "transport/mpi_progress.h"
#include "transport/mpi_service.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace tutti::transport {

MpiCalls& mpi_calls() {
  static MpiCalls& calls = *new MpiCalls;
  return calls;
}

namespace {

using std::chrono::milliseconds;

/// For what is under way to be taken before MPI ends; for calls under way to come back.
constexpr milliseconds kDrainTime{5000};
constexpr milliseconds kCallTime{1000};

/// When the process exits without MPI_Finalize, the thread must not meet a library that is being taken apart. A child has no such thread, and calls that
/// were under way when it was made never end there.
struct AtExit {
  const pid_t process = getpid();
  ~AtExit() {
    if (getpid() == process) mpi_calls().end("the process exits", kCallTime);
  }
} at_exit;

/// MPI_Finalize deletes MPI_COMM_SELF's attributes before it takes anything apart.
int at_finalise(MPI_Comm, int, void*, void*) {
  mpi_progress().drain(kDrainTime);
  mpi_calls().end("the application has called MPI_Finalize", kDrainTime);
  return MPI_SUCCESS;
}

/// With a pass.
bool watch_finalise() {
  static std::mutex mutex;
  static bool watched = false;
  const std::lock_guard lock(mutex);
  if (watched) return true;
  int key = MPI_KEYVAL_INVALID;
  watched = MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, at_finalise, &key, nullptr) == MPI_SUCCESS &&
            MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr) == MPI_SUCCESS;
  return watched;
}

class LinkStream final : public ByteStream {
 public:
  explicit LinkStream(std::shared_ptr<MpiLink> link) : link_(std::move(link)) {}
  ~LinkStream() override { link_->close(); }
  Moved send(std::span<const iovec> parts) override { return link_->send(parts); }
  Moved receive(std::span<const iovec> /*parts*/) override { return link_->receive(); }
  void finish() override { link_->finish(); }
  /// The rest is carried through in any case.
  bool has_arrived() const override { return true; }
  int descriptor() const override { return -1; }

 private:
  std::shared_ptr<MpiLink> link_;
};

/// What the thread that makes a communicator has in common with who waits for it.
struct Creation {
  std::mutex mutex;
  MpiNetwork::State state = MpiNetwork::State::kOpening;
  std::string problem;
  std::shared_ptr<MpiOwned> comm;

  void fail(const std::string& why) {
    const std::lock_guard lock(mutex);
    state = MpiNetwork::State::kFailed;
    problem = why;
  }
};

/// What Open MPI 4.1 sends to make a communicator is received by whoever waits for that tag of MPI_COMM_WORLD, the program too, which is less likely
/// to be at the highest tags. With a pass.
int high_tag(int tag) {
  int* highest = nullptr;
  int known = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&highest), &known);
  return known == 0 ? tag : *highest - kMpiTagMax + tag;
}

void create(Creation& creation, const std::vector<int>& world_ranks, int tag) {
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group group = MPI_GROUP_NULL;
  mpi_progress().sweep();
  {
    const MpiCalls::Pass pass = mpi_calls().enter();
    if (!pass.owns_lock()) return creation.fail(mpi_calls().why_ended());
    if (!watch_finalise()) return creation.fail("MPI_Comm_set_attr of MPI_COMM_SELF failed");
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, static_cast<int>(world_ranks.size()), world_ranks.data(), &group);
    tag = high_tag(tag);
  }
  MPI_Comm made = MPI_COMM_NULL;
  // This one waits for the others, hence the thread, and no pass: a death must not wait for it.
  const int result = MPI_Comm_create_group(MPI_COMM_WORLD, group, tag, &made);
  const MpiCalls::Pass pass = mpi_calls().enter();
  if (!pass.owns_lock()) return creation.fail(mpi_calls().why_ended());
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  if (result != MPI_SUCCESS) return creation.fail(text_of_error("MPI_Comm_create_group", result));
  MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
  const std::lock_guard lock(creation.mutex);
  creation.comm = std::make_shared<MpiOwned>(made);
  creation.state = MpiNetwork::State::kOpen;
}

class Network final : public MpiNetwork {
 public:
  explicit Network(std::shared_ptr<Creation> creation) : creation_(std::move(creation)) {}

  State state() const override {
    const std::lock_guard lock(creation_->mutex);
    return creation_->state;
  }
  std::string problem() const override {
    const std::lock_guard lock(creation_->mutex);
    if (!creation_->problem.empty()) return creation_->problem;
    const std::string ended = mpi_calls().why_ended();
    return ended.empty() ? "" : "MPI is not called any more: " + ended;
  }
  std::unique_ptr<ByteStream> stream(int peer, const std::uint64_t* abort_word) override {
    const std::lock_guard lock(creation_->mutex);
    return std::make_unique<LinkStream>(std::make_shared<MpiLink>(creation_->comm, peer, abort_word));
  }
  std::unique_ptr<MpiMessage> message(int peer, MpiDirection direction, void* data, std::size_t bytes,
                                      MpiUse use) override {
    const std::lock_guard lock(creation_->mutex);
    return post_message(creation_->comm, peer, direction, data, bytes, use);
  }
  void expect_silence() override {
    const std::lock_guard lock(creation_->mutex);
    if (creation_->comm) creation_->comm->expect_silence();
  }

 private:
  std::shared_ptr<Creation> creation_;
};

std::shared_ptr<MpiNetwork> open(const std::vector<int>& world_ranks, int tag) {
  MpiPipe::protect();
  auto creation = std::make_shared<Creation>();
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([creation, world_ranks, tag] { create(*creation, world_ranks, tag); }).detach();
  } catch (const std::exception& failure) {
    creation->fail(std::string("no thread for MPI_Comm_create_group: ") + failure.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return std::make_shared<Network>(std::move(creation));
}

MpiState::Level level_of(int provided) {
  if (provided == MPI_THREAD_MULTIPLE) return MpiState::Level::kMultiple;
  if (provided == MPI_THREAD_SERIALIZED) return MpiState::Level::kSerialized;
  if (provided == MPI_THREAD_FUNNELED) return MpiState::Level::kFunneled;
  return MpiState::Level::kSingle;
}

MpiState state() {
  MpiState found;
  found.ended = mpi_calls().why_ended();
  const MpiCalls::Pass pass = mpi_calls().enter();
  if (!pass.owns_lock()) {
    found.initialised = true;
    return found;
  }
  // These may be called at any time, by any thread.
  int flag = 0;
  MPI_Initialized(&flag);
  found.initialised = flag != 0;
  MPI_Finalized(&flag);
  found.finalised = flag != 0;
  if (!found.initialised || found.finalised) return found;
  int provided = MPI_THREAD_SINGLE;
  MPI_Query_thread(&provided);
  found.level = level_of(provided);
  if (found.level != MpiState::Level::kMultiple) return found;
  MPI_Comm_rank(MPI_COMM_WORLD, &found.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &found.size);
  found.cuda = ask_for_cuda();
  return found;
}

void forbid(const std::string& why) { mpi_calls().forbid(why); }

/// Of many deaths the first waits for a call that is stuck: whoever tells of them is not held up again.
void stop(const std::string& why) {
  static std::atomic<bool> has_waited{false};
  if (!has_waited.exchange(true)) mpi_calls().end(why, kCallTime);
}

void prepare_thread(std::function<void()> prepare) { mpi_progress().prepare_by(std::move(prepare)); }

std::string initialise() {
  int provided = MPI_THREAD_SINGLE;
  const int result = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  return result == MPI_SUCCESS ? "" : text_of_error("MPI_Init_thread", result);
}

std::string finalise() {
  // After a death MPI_Finalize would wait for the dead.
  if (const std::string ended = mpi_calls().why_ended(); !ended.empty()) return "MPI_Finalize is left out: " + ended;
  const int result = MPI_Finalize();
  return result == MPI_SUCCESS ? "" : "MPI_Finalize failed";
}

/// A broadcast cannot be cancelled: where the others do not come in time MPI keeps its memory, and the ranks are out of step for good.
std::string broadcast(void* data, int bytes, double timeout_s) {
  static std::atomic<bool> out_of_step{false};
  if (out_of_step)
    return "an earlier one did not come in time, and cannot be taken back; let the program end, or bring the ranks "
           "together by TUTTI_RENDEZVOUS";
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
  const auto* const first = static_cast<const std::byte*>(data);
  auto memory = std::make_unique<std::vector<std::byte>>(first, first + bytes);
  MPI_Request request = MPI_REQUEST_NULL;
  const int result = MPI_Ibcast(memory->data(), bytes, MPI_BYTE, 0, MPI_COMM_WORLD, &request);
  if (result != MPI_SUCCESS) return text_of_error("MPI_Ibcast", result);
  for (int done = 0; done == 0;) {
    const int tested = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (tested != MPI_SUCCESS) return text_of_error("MPI_Ibcast", tested);
    if (done == 0 && std::chrono::steady_clock::now() >= until) {
      out_of_step = true;
      [[maybe_unused]] static const auto* const kept = memory.release();  // reachable, for leak checkers
      return "the other ranks did not come in time";
    }
    if (done == 0) std::this_thread::yield();
  }
  std::memcpy(data, memory->data(), memory->size());
  return "";
}

constexpr MpiService kService = {.version = kMpiServiceVersion,
                                 .state = state,
                                 .open = open,
                                 .forbid = forbid,
                                 .stop = stop,
                                 .prepare_thread = prepare_thread,
                                 .initialise = initialise,
                                 .finalise = finalise,
                                 .broadcast = broadcast};

}  // namespace
}  // namespace tutti::transport

extern "C" __attribute__((visibility("default"))) const tutti::transport::MpiService* tutti_mpi_service() {
  return &tutti::transport::kService;
}
