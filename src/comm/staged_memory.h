// The memory that streams and a rank's thread share while calls go through host memory, and when it may be let go of.
#pragma once

#include "cuda/device.h"
#include "cuda/stream_words.h"

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

namespace tutti::comm {

/// Pinned host memory for copies; of a kind that ranks of other processes can map, if that can be pinned.
class StagingMemory {
 public:
  static Result<std::unique_ptr<StagingMemory>> allocate(const std::shared_ptr<cuda::Device>& device,
                                                         std::size_t bytes);
  ~StagingMemory();
  StagingMemory(const StagingMemory&) = delete;
  StagingMemory& operator=(const StagingMemory&) = delete;
  std::byte* data() const { return data_; }

 private:
  StagingMemory() = default;
  std::byte* data_ = nullptr;
  void* shared_ = nullptr;
  cuda::RegisteredMemory registered_;
  cuda::PinnedMemory pinned_;  ///< in its place
};

/// For calls that follow one another on streams. Used by the thread that puts them there; `ready` and `done` are everybody's.
class StagedResources {
 public:
  /// Rounds that have room in the staging memory at once.
  static constexpr std::uint32_t kDepth = 2;

  static Result<StagedResources> create(std::shared_ptr<cuda::Device> device);

  const cuda::Device& device() const { return *device_; }
  /// Where place() was last; nullptr: nowhere yet.
  std::shared_ptr<StagingMemory> memory() const { return memory_; }
  std::uint32_t* ready() const;
  std::uint32_t* done() const;
  std::uint32_t last_number() const { return last_number_; }
  /// The next round's number is one more, and it has so many bytes at the address that comes back; none: anything. The staging memory grows
  /// if need be.
  Result<std::byte*> place(std::size_t bytes);
  /// Device memory for calls that go by kernels for a part of their way: always the same, and larger if need be.
  Result<std::byte*> scratch(std::size_t bytes);
  /// Where scratch() was last; nullptr: nowhere yet.
  std::shared_ptr<cuda::DeviceMemory> scratch_memory() const { return scratch_; }

  /// `streams`: all that calls name; the first is to have the work, and waits for what the others were given before.
  Status join(const std::vector<cuda::StreamHandle>& streams);
  /// The others wait for what the first was given.
  Status part(const std::vector<cuda::StreamHandle>& streams);
  /// In place of part(), where something has failed.
  void give_up(cuda::StreamHandle stream);
  /// Streams touch nothing of it any more.
  bool are_through() const;
  /// Nobody can tell whether they do.
  bool are_lost() const { return is_lost_; }

 private:
  StagedResources() = default;

  std::shared_ptr<cuda::Device> device_;
  cuda::PinnedMemory words_;
  cuda::Event passed_;  ///< recorded behind all that streams were given
  bool is_used_ = false;
  bool is_lost_ = false;  ///< it could not be recorded
  std::uint32_t last_number_ = 0;
  std::size_t slot_bytes_ = 0;
  std::shared_ptr<StagingMemory> memory_;
  /// Streams may still copy from and to it. All of it is no more than there is now, and stays: whether they do may not be asked while a graph is
  /// captured, and to free memory of a device waits for all that is on it.
  std::vector<std::shared_ptr<StagingMemory>> outgrown_;
  std::shared_ptr<cuda::DeviceMemory> scratch_;
  std::vector<std::shared_ptr<cuda::DeviceMemory>> outgrown_scratch_;  ///< likewise
};

/// Ends them, once streams are through: waits a little, and leaves it to a later call otherwise, or to a thread that may_free() there.
/// `device`: on which this thread works. A list, as there may be no memory for one at the end.
void let_go(std::list<StagedResources> all, int device);
/// What let_go() has left, may end now, and a thread that works on this device may_free().
void let_go_of_remains(int device);

}  // namespace tutti::comm
