#include "trainer/replicas.h"

#include "trainer/parameter_hash.h"

#include <fmt/format.h>

#include <utility>

namespace tutti::trainer {

Outcome<SharedFloats> SharedFloats::make(std::size_t count) {
  void* memory = nullptr;
  if (tuttiMemAlloc(&memory, count * sizeof(float), nullptr) != ncclSuccess) {
    return Failure{
        fmt::format("{} bytes of memory for parameters: {}", count * sizeof(float), ncclGetLastError(nullptr))};
  }
  SharedFloats floats;
  floats.floats_.reset(static_cast<float*>(memory));
  floats.count_ = count;
  return floats;
}

Outcome<Replicas> Replicas::join(int rank, int size, const ncclUniqueId& id) {
  Replicas replicas(rank, size);
  // The models compute on host memory, on a machine with a GPU too.
  if (auto problem = replicas.check(tuttiSetDevice(tuttiDeviceHost), "choosing host memory")) return *problem;
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.reproducible = 1;
  config.blocking = 1;
  config.name = "tutti-train";
  if (auto problem =
          replicas.check(tuttiCommInitRank(&replicas.comm_, size, id, rank, &config), "joining the other ranks")) {
    return *problem;
  }
  if (auto problem = replicas.check(tuttiStreamCreate(&replicas.stream_), "making a stream")) return *problem;
  return replicas;
}

Replicas::Replicas(Replicas&& other) noexcept
    : rank_(other.rank_),
      size_(other.size_),
      comm_(std::exchange(other.comm_, nullptr)),
      stream_(std::exchange(other.stream_, nullptr)) {}

Replicas::~Replicas() { give_up(); }

void Replicas::give_up() {
  // Abort first: the stream may hold a call that waits for a rank that is gone.
  if (comm_ != nullptr) (void)ncclCommAbort(std::exchange(comm_, nullptr));
  if (stream_ != nullptr) (void)tuttiStreamDestroy(std::exchange(stream_, nullptr));
}

Problem Replicas::leave() {
  if (auto problem = wait()) return problem;
  return check(ncclCommDestroy(std::exchange(comm_, nullptr)), "leaving the other ranks");
}

Problem Replicas::check(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return {};
  const char* reason = ncclGetLastError(comm_);
  if (reason == nullptr || *reason == '\0') reason = ncclGetErrorString(result);
  return Failure{fmt::format("{}: {}", what, reason)};
}

Problem Replicas::start_broadcast(float* values, std::size_t count) {
  return check(ncclBroadcast(values, values, count, ncclFloat32, 0, comm_, stream_), "sending rank 0's parameters");
}

Problem Replicas::start_sum(float* values, std::size_t count) {
  return check(ncclAllReduce(values, values, count, ncclFloat32, ncclSum, comm_, stream_), "adding gradients");
}

Problem Replicas::start_sum(double* values, std::size_t count) {
  return check(ncclAllReduce(values, values, count, ncclFloat64, ncclSum, comm_, stream_), "adding losses");
}

/// A call on a stream that failed has no caller to tell: the communicator keeps the reason.
Problem Replicas::wait() {
  constexpr auto kWhat = "waiting for the other ranks";
  if (auto problem = check(tuttiStreamSynchronize(stream_), kWhat)) return problem;
  ncclResult_t state = ncclSuccess;
  if (auto problem = check(ncclCommGetAsyncError(comm_, &state), kWhat)) return problem;
  return check(state, kWhat);
}

Outcome<std::vector<std::uint64_t>> Replicas::gather(std::uint64_t value) {
  std::vector<std::uint64_t> values(static_cast<std::size_t>(size_));
  if (auto problem = check(ncclAllGather(&value, values.data(), 1, ncclUint64, comm_, stream_), "gathering hashes")) {
    return *problem;
  }
  if (auto problem = wait()) return *problem;
  return values;
}

Problem compare_replicas(Replicas& replicas, std::uint64_t hash) {
  const auto hashes = replicas.gather(hash);
  if (!hashes) return hashes.failure();
  const auto odd = odd_ones_out(*hashes);
  if (odd.empty()) return {};
  // Every rank sees these hashes and comes here. The first to leave aborts what the others wait for: meet once more, so
  // that nobody hears of the abort before it has seen the hashes.
  (void)replicas.gather(hash);
  std::string list;
  for (const auto rank : odd)
    list += fmt::format("{}rank {} ({:016x})", list.empty() ? "" : ", ", rank, (*hashes)[rank]);
  return Failure{fmt::format("the replicas' parameters are no longer equal: {} against {} others", list,
                             hashes->size() - odd.size())};
}

}  // namespace tutti::trainer
