// What is on streams: for who has to wait for it, or to keep what it uses.
#pragma once

#include "cuda/device.h"

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>

namespace tutti::comm {

class Communicator;

class DeviceWork {
 public:
  /// How long, in seconds, kernels that were told to give up may take, and what comes before them on the stream.
  static constexpr double kAbortGraceS = 1;

  virtual ~DeviceWork() = default;
  /// Whether it is done; also if nobody can tell any more: the context is lost.
  virtual bool is_through() const = 0;
  /// Waits until it is done; not for long if the communicator has failed, or fails meanwhile: the program's own work may come before.
  void finish(const Communicator& communicator) const {
    finish(communicator, [this] { return is_through(); });
  }
  /// `work`: keeps what is on the streams of the device (nullopt: of several, and no memory) uses, and gets no more. It is let go of when that
  /// is done: by sweep(), or at once.
  static void keep(std::shared_ptr<const DeviceWork> work, std::optional<int> device);
  /// The same, and never at once: this thread may not be one that may_free() there.
  static void leave(std::shared_ptr<const DeviceWork> work, std::optional<int> device);
  /// By a thread that works on this device: what it may_free().
  static void sweep(int device);
  /// The same for what somebody else can tell of.
  static void finish(const Communicator& communicator, const std::function<bool()>& is_through);
};

/// A rank of this process on a device, while it lives.
class DeviceTenant {
 public:
  explicit DeviceTenant(int device);
  ~DeviceTenant();
  DeviceTenant(const DeviceTenant&) = delete;
  DeviceTenant& operator=(const DeviceTenant&) = delete;

 private:
  const int device_;
};

/// Whether a thread that works on device `own` may free what others have left on `device`: on its own one, or where no rank is any more. CUDA
/// may wait for all that is on a device before it frees memory there, and another rank's kernels may wait for what this thread does next.
bool may_free(int device, int own);
/// What graphs have let go of there.
void release_graph_memory(int own);

/// What a process's streams were given by launches that nothing orders with each other: behind the last one on each stream an event, which is
/// there when the program has destroyed the stream. The kernels stay loaded as long as it lives. For one thread at a time.
class DeviceTrail : public DeviceWork {
 public:
  /// A bit for each rank.
  using Ranks = std::uint64_t;
  /// What was given before goes if it is done, once it is much.
  void tidy();
  /// To be recorded on the stream, when it has been given a call of these ranks. Stays there until tidy().
  Result<const cuda::Event*> on(const std::shared_ptr<cuda::Device>& device, cuda::StreamHandle stream, Ranks ranks);
  bool is_through() const override { return is_through(~Ranks{0}); }
  bool is_through(Ranks ranks) const;

 private:
  struct Last {
    std::uint64_t stream = 0;  ///< stream_id(): its handle may be another one's when it is destroyed and still at work
    std::shared_ptr<cuda::Device> device;
    cuda::Event event;
    Ranks ranks = 0;  ///< that the stream has had calls of
  };
  std::list<Last> all_;
};

/// Whether the event is reached; also if nobody can tell any more.
bool is_reached(const cuda::Event& event);

}  // namespace tutti::comm
