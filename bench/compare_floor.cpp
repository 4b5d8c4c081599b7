// bench/compare's floor: the collectives by hand, over buffers that all ranks map. Each rank does its share of the whole
// work directly on everybody's buffers, between two barriers of flags. No library does less.
#include "compare_floor.h"
#include "compare_kernels.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

namespace tutti::compare {

void FlagBarrier::wait(const Rank& rank) {
  const std::uint64_t target = ++count;
  __atomic_store_n(&shared->arrived[rank.rank].value, target, __ATOMIC_RELEASE);
  for (int peer = 0; peer < rank.ranks; ++peer)
    for (unsigned spins = 0; __atomic_load_n(&shared->arrived[peer].value, __ATOMIC_ACQUIRE) < target; ++spins)
      worker_pause(&rank, spins);
}

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

SharedFlags* shared_flags = nullptr;
int buffer_file = -1;

/// A rank's own; one process has one rank.
struct Floor {
  FlagBarrier barrier;
  std::uint64_t line_calls = 0;
  std::byte* base = nullptr;  // the buffers of all ranks, one after another
  std::size_t stride = 0, receive_offset = 0;
} floor_state;

void before_ranks(int) {
  void* memory = mmap(nullptr, sizeof(SharedFlags), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  buffer_file = memfd_create("compare-floor", MFD_CLOEXEC);
  if (memory == MAP_FAILED || buffer_file < 0) worker_fail(nullptr, "no shared memory");
  shared_flags = static_cast<SharedFlags*>(memory);
}

void open_rank(Rank* rank) {
  rank->context = &floor_state;
  floor_state.barrier.shared = shared_flags;
}

// ---- Buffers: rank r's are at base + r * stride

std::size_t rounded(std::size_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

void allocate(Cell* cell, std::size_t send_bytes, std::size_t receive_bytes) {
  Rank* rank = cell->rank;
  Floor& mine = floor_state;
  mine.receive_offset = rounded(send_bytes);
  mine.stride = mine.receive_offset + rounded(receive_bytes);
  const std::size_t total = mine.stride * static_cast<std::size_t>(rank->ranks);
  if (rank->rank == 0 && ftruncate(buffer_file, static_cast<off_t>(total)) != 0)
    worker_fail(rank, "no shared memory of %zu bytes", total);
  worker_barrier(rank);
  void* memory = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_SHARED, buffer_file, 0);
  if (memory == MAP_FAILED) worker_fail(rank, "cannot map %zu bytes", total);
  worker_advise(memory, total, cell->pages);
  mine.base = static_cast<std::byte*>(memory);
  unsigned char* own = static_cast<unsigned char*>(memory) + mine.stride * static_cast<std::size_t>(rank->rank);
  if (!cell->in_place) cell->send = own;
  cell->receive = own + mine.receive_offset;
}

void release(Cell* cell) {
  Rank* rank = cell->rank;
  munmap(floor_state.base, floor_state.stride * static_cast<std::size_t>(rank->ranks));
  worker_barrier(rank);
  if (rank->rank == 0 && ftruncate(buffer_file, 0) != 0) worker_fail(rank, "cannot give shared memory back");
}

/// Where rank `peer` has what this rank has at `own`.
template <class T>
T* theirs(const Cell& cell, T* own, int peer) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(own) +
                              floor_state.stride *
                                  static_cast<std::uintptr_t>(static_cast<std::intptr_t>(peer - cell.rank->rank)));
}

// ---- The collectives

/// This rank's slice of the elements, whole cache lines but for the last.
std::pair<std::size_t, std::size_t> slice(const Cell& cell, std::size_t width) {
  const std::size_t line = kLineBytes / width, ranks = static_cast<std::size_t>(cell.rank->ranks);
  const std::size_t share = (cell.count + ranks * line - 1) / (ranks * line) * line;
  const std::size_t begin = std::min(cell.count, share * static_cast<std::size_t>(cell.rank->rank));
  return {begin, std::min(cell.count, begin + share)};
}

/// add() for as many inputs as there are ranks, to one output or to as many.
template <class T, Store kStore>
void add_all(const Cell& cell, const T* const* inputs, T* const* outputs, bool everywhere, std::size_t begin,
             std::size_t end) {
  using Add = void (*)(const T* const*, T* const*, std::size_t, std::size_t);
  const auto choose = []<int kRanks>(bool all) -> Add {
    return all ? &add<T, kStore, kRanks, kRanks> : &add<T, kStore, kRanks, 1>;
  };
  Add function = nullptr;
  switch (cell.rank->ranks) {
    case 1: function = choose.template operator()<1>(everywhere); break;
    case 2: function = choose.template operator()<2>(everywhere); break;
    case 3: function = choose.template operator()<3>(everywhere); break;
    case 4: function = choose.template operator()<4>(everywhere); break;
    case 8: function = choose.template operator()<8>(everywhere); break;
    case 16: function = choose.template operator()<16>(everywhere); break;
    default: worker_fail(cell.rank, "the floor sums 1, 2, 3, 4, 8 or 16 ranks");
  }
  function(inputs, outputs, begin, end);
}

template <class T, Store kStore>
void reduce_directly(const Cell& cell) {
  const T* inputs[kRanksMax];
  T* outputs[kRanksMax];
  const int ranks = cell.rank->ranks, me = cell.rank->rank;
  for (int peer = 0; peer < ranks; ++peer) {
    inputs[peer] = reinterpret_cast<const T*>(theirs(cell, cell.send, peer));
    outputs[peer] = reinterpret_cast<T*>(theirs(cell, cell.receive, peer));
  }
  if (cell.collective == kReduceScatter) {
    // In place `receive` is a place within `send`, another one for each rank.
    for (int peer = 0; peer < ranks; ++peer) inputs[peer] += static_cast<std::size_t>(me) * cell.part;
    T* output = reinterpret_cast<T*>(cell.receive);
    add_all<T, kStore>(cell, inputs, &output, false, 0, cell.part);
    return;
  }
  const auto [begin, end] = slice(cell, sizeof(T));
  add_all<T, kStore>(cell, inputs, outputs, cell.collective == kAllReduce, begin, end);
}

template <Store kStore>
void copy_directly(const Cell& cell) {
  const int ranks = cell.rank->ranks, me = cell.rank->rank;
  const std::size_t width = element_bytes(cell.type), all = cell.count * width, part = cell.part * width;
  const auto pull = [&](std::size_t to, const unsigned char* own, int peer, std::size_t from, std::size_t bytes) {
    copy<kStore>(reinterpret_cast<std::byte*>(cell.receive) + to,
                 reinterpret_cast<const std::byte*>(theirs(cell, own, peer)) + from, bytes);
  };
  if (cell.collective == kBroadcast) {
    if (me != 0) pull(0, cell.receive, 0, 0, all);
    return;
  }
  if (cell.collective == kSendReceive) return pull(0, cell.send, (me + ranks - 1) % ranks, 0, all);
  for (int step = 0; step < ranks; ++step) {
    const int peer = (me + step) % ranks;
    const std::size_t to = static_cast<std::size_t>(peer) * part;
    if (cell.collective == kAllToAll) {
      pull(to, cell.send, peer, static_cast<std::size_t>(me) * part, part);
    } else if (!cell.in_place) {
      pull(to, cell.send, peer, 0, part);
    } else if (peer != me) {
      pull(to, cell.receive, peer, to, part);
    }
  }
}

template <Store kStore>
void work_directly(const Cell& cell) {
  if (cell.collective != kAllReduce && cell.collective != kReduce && cell.collective != kReduceScatter)
    return copy_directly<kStore>(cell);
  switch (cell.type) {
    case kFloat: return reduce_directly<float, kStore>(cell);
    case kDouble: return reduce_directly<double, kStore>(cell);
    case kInt32: return reduce_directly<std::uint32_t, kStore>(cell);  // sums may wrap around
    default: worker_fail(cell.rank, "the floor does not add this type");
  }
}

enum Variant : std::uintptr_t { kDirect, kDirectNonTemporal, kLines };

void begin(Cell* cell) {
  const bool lines = std::strcmp(cell->variant, "lines") == 0;
  if (lines && (cell->collective != kAllReduce || cell->count * element_bytes(cell->type) > kLinePayloadMax))
    worker_fail(cell->rank, "the cache-line exchange is an all_reduce of up to %zu bytes", kLinePayloadMax);
  const Variant variant = lines ? kLines : std::strcmp(cell->variant, "direct_nt") == 0 ? kDirectNonTemporal : kDirect;
  cell->context = reinterpret_cast<void*>(variant);  // NOLINT(performance-no-int-to-ptr): a small number
}

void call(Cell* cell) {
  const auto variant = static_cast<Variant>(reinterpret_cast<std::uintptr_t>(cell->context));
  if (variant == kLines) return exchange_lines(*cell, *shared_flags, floor_state.line_calls);
  floor_state.barrier.wait(*cell->rank);  // all inputs are there
  if (variant == kDirect) {
    work_directly<Store::kOrdinary>(*cell);
  } else {
    work_directly<Store::kNonTemporal>(*cell);
  }
  floor_state.barrier.wait(*cell->rank);  // all outputs are there, all inputs free
}

void command(Rank* rank, const char* line, std::FILE* reply) {
  std::size_t bytes = 0;
  if (std::strcmp(line, "probe\n") == 0) {
    probe_round_trip(*rank, *shared_flags, reply);
  } else if (std::sscanf(line, "memory %zu", &bytes) == 1) {
    probe_memory(*rank, bytes, reply);
  } else {
    worker_fail(rank, "unknown command: %s", line);
  }
}

}  // namespace
}  // namespace tutti::compare

int main(int argc, char** argv) {
  Peer peer{};
  peer.before_ranks = tutti::compare::before_ranks;
  peer.open = tutti::compare::open_rank;
  peer.begin = tutti::compare::begin;
  peer.call = tutti::compare::call;
  peer.allocate = tutti::compare::allocate;
  peer.release = tutti::compare::release;
  peer.command = tutti::compare::command;
  return worker_main(argc, argv, &peer);
}
