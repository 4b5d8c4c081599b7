// What the machine does at this moment: how long a cache line takes between cores, and how fast memory is.
#include "compare_floor.h"
#include "compare_kernels.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdio>

namespace tutti::compare {
namespace {

constexpr int kSeries = 7;
constexpr int kRoundTrips = 500;

void wait_for(const Rank& rank, const std::uint64_t& value, std::uint64_t expected) {
  for (unsigned spins = 0; __atomic_load_n(&value, __ATOMIC_ACQUIRE) != expected; ++spins)
    if (spins > 20000) worker_pause(&rank, spins);
}

double median(std::array<double, kSeries>& values) {
  std::sort(values.begin(), values.end());
  return values[kSeries / 2];
}

/// Rank 0's side: nanoseconds for there and back.
double round_trip_ns(const Rank& rank, Flag& there, Flag& back) {
  std::array<double, kSeries> series{};
  for (double& one : series) {
    const std::uint64_t start = worker_now_ns();
    for (int n = 0; n < kRoundTrips; ++n) {
      const std::uint64_t next = there.value + 1;
      __atomic_store_n(&there.value, next, __ATOMIC_RELEASE);
      wait_for(rank, back.value, next);
    }
    one = static_cast<double>(worker_now_ns() - start) / kRoundTrips;
  }
  return median(series);
}

void answer(const Rank& rank, const Flag& there, Flag& back) {
  for (int n = 0; n < kSeries * kRoundTrips; ++n) {
    const std::uint64_t next = back.value + 1;
    wait_for(rank, there.value, next);
    __atomic_store_n(&back.value, next, __ATOMIC_RELEASE);
  }
}

// ---- Memory

struct Arrays {
  float *a, *b, *to;
  std::size_t count;
};

using Kernel = void (*)(const Arrays&);

template <Store kStore>
void copy_array(const Arrays& arrays) {
  copy<kStore>(reinterpret_cast<std::byte*>(arrays.to), reinterpret_cast<const std::byte*>(arrays.a),
               arrays.count * sizeof(float));
}

template <Store kStore>
void add_arrays(const Arrays& arrays) {
  const float* inputs[] = {arrays.a, arrays.b};
  add<float, kStore, 2, 1>(inputs, &arrays.to, 0, arrays.count);
}

struct MemoryRow {
  const char* name;
  Kernel kernel;
  int passes;  // arrays that are read or written
};

constexpr MemoryRow kRows[] = {{"copy", copy_array<Store::kOrdinary>, 2},
                               {"copy_nt", copy_array<Store::kNonTemporal>, 2},
                               {"add", add_arrays<Store::kOrdinary>, 3},
                               {"add_nt", add_arrays<Store::kNonTemporal>, 3}};

/// The first `cores` ranks work, each on its own arrays; GB/s of all together, the median of several times.
double bandwidth(Rank& rank, const MemoryRow& row, const Arrays& arrays, int cores) {
  std::array<double, kSeries> series{};
  const std::size_t bytes = arrays.count * sizeof(float);
  const std::size_t repeats = std::max<std::size_t>(1, (std::size_t{8} << 20) / bytes);
  const bool works = rank.rank < cores;
  if (works) row.kernel(arrays);
  for (double& one : series) {
    worker_barrier(&rank);
    const std::uint64_t start = worker_now_ns();
    for (std::size_t n = 0; works && n < repeats; ++n) row.kernel(arrays);
    rank.control->duration_ns[rank.rank][0] = works ? worker_now_ns() - start : 0;
    worker_barrier(&rank);
    std::uint64_t slowest = 1;
    for (int n = 0; n < cores; ++n) slowest = std::max(slowest, rank.control->duration_ns[n][0]);
    one = static_cast<double>(bytes * repeats) * row.passes * cores / static_cast<double>(slowest);
  }
  return median(series);
}

float* pages(const Rank& rank, std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) worker_fail(&rank, "no memory for an array of %zu bytes", bytes);
  auto* array = static_cast<float*>(memory);
  std::fill_n(array, bytes / sizeof(float), 1.0F);
  return array;
}

}  // namespace

void probe_round_trip(const Rank& rank, SharedFlags& shared, std::FILE* reply) {
  if (rank.rank >= rank.cores) return;  // has no core of its own
  if (rank.rank > 0) return answer(rank, shared.there[rank.rank], shared.back[rank.rank]);
  std::fputs("{\"round_trip_ns\": [", reply);
  for (int peer = 1; peer < rank.cores; ++peer)
    std::fprintf(reply, "%s%.1f", peer > 1 ? ", " : "", round_trip_ns(rank, shared.there[peer], shared.back[peer]));
  std::fputs("]}", reply);
}

void probe_memory(Rank& rank, std::size_t bytes, std::FILE* reply) {
  const Arrays arrays{pages(rank, bytes), pages(rank, bytes), pages(rank, bytes), bytes / sizeof(float)};
  const char* separator = "";
  if (reply) std::fputs("{\"memory\": [", reply);
  for (const MemoryRow& row : kRows) {
    for (const int cores : {1, rank.cores}) {
      const double gbps = bandwidth(rank, row, arrays, cores);
      if (reply)
        std::fprintf(reply, "%s{\"kernel\": \"%s\", \"cores\": %d, \"gbps\": %.2f}", separator, row.name, cores, gbps);
      separator = ", ";
      if (rank.cores == 1) break;
    }
  }
  if (reply) std::fputs("]}", reply);
  munmap(arrays.a, bytes);
  munmap(arrays.b, bytes);
  munmap(arrays.to, bytes);
}

}  // namespace tutti::compare
