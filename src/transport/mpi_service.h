// What libtutti.so asks its plug-ins libtutti-openmpi.so and libtutti-mpich.so, which alone link MPI. The two are one source, compiled
// once with each MPI's header: their types and constants differ. The library loads the one that fits the MPI that the application has
// initialised with MPI_THREAD_MULTIPLE, and none where it has not (docs/hosts.md).
//
// Why it is right:
//  M1. A stream's bytes go as messages of one pair of ranks with one tag, in the order in which they were posted, and are received in the
//      order in which receives were posted: MPI keeps that order. An empty message is the stream's end.
//  M2. What send() takes is copied, so that a rank that is in no call owes nobody anything; a thread of the plug-in's sees to it
//      that MPI goes on with what is under way, and sleeps while there is nothing.
//  M3. No flow control is needed: what a rank may send before the other takes it in is bounded by slots and announce lines (B2 of
//      comm/bridge.h).
//  M4. Nothing here waits for a peer, but for MPI_Comm_create_group, which has a thread of its own.
//  M5. Messages of users' memory (MpiMessage) have tags of their own, by what they are for (MpiUse). Both ranks have agreed on one before
//      either posts its side, and post those of a tag and a direction in the same order: MPI matches the two, and neither is left alone but by
//      a failure.
#pragma once

#include "transport/byte_stream.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tutti::transport {

/// Both sides must be built with the same one: what is passed are C++ types.
inline constexpr const char* kMpiServiceVersion = "Tutti 0.1.0, MPI service 6";

struct MpiState {
  enum class Level : std::uint8_t { kSingle, kFunneled, kSerialized, kMultiple };
  bool initialised = false;
  bool finalised = false;
  Level level = Level::kSingle;
  int rank = -1;  ///< in MPI_COMM_WORLD, as is size; once initialised
  int size = 0;
  std::string ended;  ///< why the plug-in calls MPI no more; empty: it may
  /// What MPI says of GPU memory; kUnknown: it has no function that can be asked.
  enum class Cuda : std::uint8_t { kUnknown, kCannot, kCan };
  Cuda cuda = Cuda::kUnknown;
};

/// Memory of this rank's on its way to or from another one; it stays where it is until look() or give_up() says that it is over.
class MpiMessage {
 public:
  enum class State : std::uint8_t { kUnderWay, kDone, kFailed };
  virtual ~MpiMessage() = default;
  /// Lets MPI go on. Under way is also what MPI must not be asked of any more (MpiNetwork::problem), and for 2 s what it has refused.
  virtual State look() = 0;
  /// Of a receive: it is to come no more, unless MPI has begun to take it in. Either way look() says when it is over. Does not wait.
  virtual void cancel() = 0;
  /// In place of look(), the last call: cancels a receive. False: MPI may go on to write to the memory, or to read it, since it has begun to
  /// take it in, or cannot cancel it, or must not be called.
  virtual bool give_up() = 0;
  /// Of one that has failed.
  virtual std::string problem() const = 0;
};
enum class MpiDirection : std::uint8_t { kSend, kReceive };
/// The last two: of an all-reduce of host memory (comm/mpi_all_reduce.h).
enum class MpiUse : std::uint8_t { kSendOrReceive, kCollective, kShares, kSums };

/// An MPI communicator for one of Tutti's.
class MpiNetwork {
 public:
  enum class State : std::uint8_t { kOpening, kOpen, kFailed };
  virtual ~MpiNetwork() = default;
  virtual State state() const = 0;
  /// Why it has failed, or why streams that were open have ended; empty: neither.
  virtual std::string problem() const = 0;
  /// Once open, for every peer once. While *abort_word is not 0, and after the stream is destroyed without finish(), no MPI call is
  /// made for it, but that a question of another stream may be about all of them; its requests and their memory stay then. After
  /// finish() what is under way is carried through behind the caller's back.
  virtual std::unique_ptr<ByteStream> stream(int peer, const std::uint64_t* abort_word) = 0;
  /// Once open. Up to 1 GiB, more than 0, of any memory that the MPI takes.
  virtual std::unique_ptr<MpiMessage> message(int peer, MpiDirection direction, void* data, std::size_t bytes,
                                              MpiUse use) = 0;
  /// This rank aborts: others may take that for a failure, and never end their streams. MPI_Finalize does not wait for it then.
  virtual void expect_silence() {}
};

struct MpiService {
  const char* version = nullptr;

  MpiState (*state)() = nullptr;
  /// Begins to make a communicator of these ranks of MPI_COMM_WORLD, in this order; every one of them must ask for it. `tag`, from 0 to
  /// kMpiTagMax, tells it from others that are made at the same time.
  std::shared_ptr<MpiNetwork> (*open)(const std::vector<int>& world_ranks, int tag) = nullptr;
  /// A process of the job has died: from now on the plug-in begins no call of MPI, for any communicator.
  void (*forbid)(const std::string& why) = nullptr;
  /// The same, and waits a little for a call under way, which ends by itself.
  void (*stop)(const std::string& why) = nullptr;
  /// From now on the plug-in's own thread calls this before it calls MPI, which may work on messages of GPU memory there.
  void (*prepare_thread)(std::function<void()> prepare) = nullptr;

  // For programs of Tutti's own, which are the application.

  /// MPI_Init_thread with MPI_THREAD_MULTIPLE. Returns "" or what went wrong.
  std::string (*initialise)() = nullptr;
  std::string (*finalise)() = nullptr;
  /// World rank 0's bytes to all. Returns "" or what went wrong.
  std::string (*broadcast)(void* data, int bytes, double timeout_s) = nullptr;
};

inline constexpr int kMpiTagMax = 0x7fff;

/// The plug-in's one exported function: an MpiService that lives as long as the plug-in.
inline constexpr const char* kMpiServiceSymbol = "tutti_mpi_service";
using MpiServiceEntry = const MpiService* (*)();

}  // namespace tutti::transport
