// Buffers of a rank that is a process, of each kind that calls tell apart, and every collective on them.
#pragma once

#include "process_ranks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tutti::test {

enum class BufferKind {
  kAllocated,    ///< ncclMemAlloc
  kRegistered,   ///< cudaMalloc, ncclCommRegister
  kWindow,       ///< cudaMalloc, a window that is not symmetric
  kOwn,          ///< cudaMalloc
  kMapped,       ///< pieces of cuMemMap, ncclCommRegister
  kPieces,       ///< ... for each of them
  kOwnMapped,    ///< ... registered by nobody
  kUnshareable,  ///< pieces that no other process can map, ncclCommRegister
};

/// Numbers on the GPU, which begin at an odd place of the allocation.
class SharedBuffer {
 public:
  static constexpr std::size_t kFirst = 3;
  static constexpr std::size_t kPiece = std::size_t{2} << 20;
  static constexpr std::size_t kInPiece = 8192;  ///< where memory of cuMemMap begins

  SharedBuffer() = default;
  SharedBuffer(const SharedBuffer&) = delete;
  SharedBuffer& operator=(const SharedBuffer&) = delete;

  std::string open(ncclComm_t comm, BufferKind kind, std::size_t count) {
    comm_ = comm;
    kind_ = kind;
    count_ = count;
    const std::size_t bytes = (kFirst + count) * sizeof(std::int32_t);
    if (kind == BufferKind::kAllocated) return fine(ncclMemAlloc(&memory_, bytes), "ncclMemAlloc");
    if (kind == BufferKind::kMapped || kind == BufferKind::kPieces || kind == BufferKind::kOwnMapped ||
        kind == BufferKind::kUnshareable) {
      int device = 0;
      CREW_TRY(fine(ncclCommCuDevice(comm, &device), "ncclCommCuDevice"));
      pieces_ = (kInPiece + bytes + kPiece - 1) / kPiece;
      reserved_ = Gpu::get().map(device, kPiece, pieces_, kind != BufferKind::kUnshareable);
      memory_ = static_cast<std::byte*>(reserved_) + kInPiece;
    } else {
      memory_ = Gpu::get().allocate(bytes);
    }
    if (kind == BufferKind::kOwn || kind == BufferKind::kOwnMapped) return "";
    if (kind != BufferKind::kWindow) return register_memory(bytes);
    return fine(ncclCommWindowRegister(comm, memory_, bytes, &window_, NCCL_WIN_DEFAULT), "ncclCommWindowRegister");
  }
  /// Of no registered memory.
  std::string close() {
    if (kind_ == BufferKind::kAllocated) return fine(ncclMemFree(memory_), "ncclMemFree");
    if (reserved_) {
      Gpu::get().unmap(reserved_, kPiece, pieces_);
    } else {
      Gpu::get().release(memory_);
    }
    return "";
  }
  /// Of memory of ncclMemAlloc, which is not freed.
  std::string close_refused(ncclResult_t wanted, const std::vector<std::string>& parts) const {
    return crew::refused(ncclMemFree(memory_), wanted, parts);
  }
  /// By all ranks at once: registered memory may be freed when all have deregistered theirs and each has made a call since. After the first
  /// call all have deregistered, at the second they let go.
  std::string close(const Rank& rank) {
    for (void* const handle : handles_) CREW_TRY(fine(ncclCommDeregister(comm_, handle), "ncclCommDeregister"));
    if (window_) CREW_TRY(fine(ncclCommWindowDeregister(comm_, window_), "ncclCommWindowDeregister"));
    const OnGpu<std::int32_t> one(Ints(1, 1));
    for (int i = 0; i < 2; ++i) {
      CREW_TRY(
          fine(ncclAllReduce(one.data(), one.data(), 1, ncclInt32, ncclMax, rank.comm, rank.stream), "a last max"));
      Gpu::get().wait(rank.stream);
    }
    return close();
  }
  /// Of cuMemMap: other physical memory in its second piece.
  std::string replace_second_piece() const {
    int device = 0;
    CREW_TRY(fine(ncclCommCuDevice(comm_, &device), "ncclCommCuDevice"));
    void* const second = static_cast<std::byte*>(reserved_) + kPiece;
    Gpu::get().replace_piece(device, second, kPiece, kind_ != BufferKind::kUnshareable);
    return "";
  }
  /// Of what was registered.
  std::string deregister_last() {
    void* const last = handles_.back();
    handles_.pop_back();
    return fine(ncclCommDeregister(comm_, last), "ncclCommDeregister");
  }
  std::size_t count() const { return count_; }
  std::int32_t* data() const { return static_cast<std::int32_t*>(memory_) + kFirst; }
  void write(const Ints& numbers) const { Gpu::get().copy(data(), numbers.data(), numbers.size() * 4); }
  Ints read() const {
    Ints found(count_);
    Gpu::get().copy(found.data(), data(), count_ * 4);
    return found;
  }

 private:
  std::string register_memory(std::size_t bytes) {
    auto* at = static_cast<std::byte*>(memory_);
    std::byte* const end = at + bytes;
    while (at != end) {
      const std::size_t whole =
          kind_ == BufferKind::kPieces ? kPiece - (at - static_cast<std::byte*>(reserved_)) % kPiece : bytes;
      const std::size_t length = std::min<std::size_t>(whole, end - at);
      CREW_TRY(fine(ncclCommRegister(comm_, at, length, &handles_.emplace_back()), "ncclCommRegister"));
      at += length;
    }
    return "";
  }

  ncclComm_t comm_ = nullptr;
  BufferKind kind_ = BufferKind::kOwn;
  std::size_t count_ = 0;
  void* memory_ = nullptr;
  void* reserved_ = nullptr;
  std::size_t pieces_ = 0;
  std::vector<void*> handles_;
  ncclWindow_t window_ = nullptr;
};

using Call = std::function<ncclResult_t()>;
/// Makes a call, and waits for it.
using MakeCall = std::function<std::string(const char*, const Call&)>;

/// Every collective on `count` elements of a block, from `in` to `out`, which have room for a block of each rank.
inline std::string collectives_on(const Rank& rank, const SharedBuffer& in, const SharedBuffer& out, std::size_t count,
                                  int root, const MakeCall& make_call) {
  const int ranks = rank.m.ranks;
  const auto n = static_cast<std::size_t>(ranks);
  const auto r = static_cast<std::size_t>(rank.m.rank);
  const bool at_root = rank.m.rank == root;
  std::int32_t* const from = in.data();
  std::int32_t* const to = out.data();
  in.write(values(rank.m.rank, n * count));
  const auto run = [&](const char* name, const Call& call, const std::function<std::int32_t(std::size_t)>& wanted,
                       std::size_t written) -> std::string {
    out.write(Ints(out.count(), kPoison));
    CREW_TRY(make_call(name, call));
    return differs(name, out.read(), wanted, written);
  };
  const auto total = [&](std::size_t i) { return sum(ranks, i); };
  const auto gathered = [&](std::size_t i) { return value(static_cast<int>(i / count), i % count); };
  CREW_TRY(run(
      "all_reduce", [&] { return ncclAllReduce(from, to, count, ncclInt32, ncclSum, rank.comm, rank.stream); }, total,
      count));
  CREW_TRY(run(
      "reduce", [&] { return ncclReduce(from, to, count, ncclInt32, ncclSum, root, rank.comm, rank.stream); }, total,
      at_root ? count : 0));
  CREW_TRY(run(
      "broadcast", [&] { return ncclBroadcast(from, to, count, ncclInt32, root, rank.comm, rank.stream); },
      [&](std::size_t i) { return value(root, i); }, count));
  CREW_TRY(run(
      "reduce_scatter", [&] { return ncclReduceScatter(from, to, count, ncclInt32, ncclSum, rank.comm, rank.stream); },
      [&](std::size_t i) { return sum(ranks, r * count + i); }, count));
  CREW_TRY(run(
      "all_gather", [&] { return ncclAllGather(from, to, count, ncclInt32, rank.comm, rank.stream); }, gathered,
      n * count));
  CREW_TRY(run(
      "gather", [&] { return ncclGather(from, to, count, ncclInt32, root, rank.comm, rank.stream); }, gathered,
      at_root ? n * count : 0));
  CREW_TRY(run(
      "scatter", [&] { return ncclScatter(from, to, count, ncclInt32, root, rank.comm, rank.stream); },
      [&](std::size_t i) { return value(root, r * count + i); }, count));
  return run(
      "all_to_all", [&] { return ncclAlltoAll(from, to, count, ncclInt32, rank.comm, rank.stream); },
      [&](std::size_t i) { return value(static_cast<int>(i / count), r * count + i % count); }, n * count);
}

inline std::string collectives_on(const Rank& rank, const SharedBuffer& in, const SharedBuffer& out, std::size_t count,
                                  int root) {
  return collectives_on(rank, in, out, count, root, [&](const char* name, const Call& call) {
    const std::string wrong = fine(call(), name);
    Gpu::get().wait(rank.stream);
    return wrong;
  });
}

}  // namespace tutti::test
