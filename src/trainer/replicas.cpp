#include "trainer/replicas.h"

#include "trainer/parameter_hash.h"

#include <fmt/format.h>

#include <utility>

namespace tutti::trainer {

Outcome<Replicas> Replicas::join(int rank, int size, const ncclUniqueId& id, Backend& backend) {
  Replicas replicas(rank, size, backend);
  if (auto problem = replicas.check(tuttiSetDevice(backend.device()), "choosing the memory")) return *problem;
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.reproducible = 1;
  config.blocking = 1;
  config.name = "tutti-train";
  if (auto problem =
          replicas.check(tuttiCommInitRank(&replicas.comm_, size, id, rank, &config), "joining the other ranks")) {
    return *problem;
  }
  return replicas;
}

Replicas::Replicas(int rank, int size, Backend& backend)
    : rank_(rank),
      size_(size),
      backend_(backend),
      hashes_(backend.zeros<std::uint64_t>(static_cast<std::size_t>(size) + 1)) {}

Replicas::Replicas(Replicas&& other) noexcept
    : rank_(other.rank_),
      size_(other.size_),
      backend_(other.backend_),
      comm_(std::exchange(other.comm_, nullptr)),
      window_(std::exchange(other.window_, nullptr)),
      hashes_(std::move(other.hashes_)) {}

Replicas::~Replicas() { give_up(); }

void Replicas::give_up() {
  if (comm_ == nullptr) return;
  (void)ncclCommAbort(std::exchange(comm_, nullptr));
  (void)backend_.wait();  // what waited for a rank that is gone, does no more
}

Problem Replicas::leave() {
  if (auto problem = wait()) return problem;
  if (window_ != nullptr) {
    constexpr auto kWhat = "no longer sharing the gradients";
    if (auto problem = check(ncclCommWindowDeregister(comm_, std::exchange(window_, nullptr)), kWhat)) return problem;
    if (const auto all_have = gather(0); !all_have) return all_have.failure();  // now its memory may go
  }
  return check(ncclCommDestroy(std::exchange(comm_, nullptr)), "leaving the other ranks");
}

Problem Replicas::check(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return {};
  const char* reason = ncclGetLastError(comm_);
  if (reason == nullptr || *reason == '\0') reason = ncclGetErrorString(result);
  return Failure{fmt::format("{}: {}", what, reason)};
}

Problem Replicas::share(float* values, std::size_t count) {
  return check(ncclCommWindowRegister(comm_, values, count * sizeof(float), &window_, NCCL_WIN_COLL_SYMMETRIC),
               "sharing the gradients");
}

Problem Replicas::start_broadcast(float* values, std::size_t count) {
  backend_.before_collectives();
  return check(ncclBroadcast(values, values, count, ncclFloat32, 0, comm_, backend_.collectives()),
               "sending rank 0's parameters");
}

Problem Replicas::start_sum(float* values, std::size_t count) {
  backend_.before_collectives();
  return check(ncclAllReduce(values, values, count, ncclFloat32, ncclSum, comm_, backend_.collectives()),
               "adding gradients");
}

Problem Replicas::start_sum(double* values, std::size_t count) {
  backend_.before_collectives();
  return check(ncclAllReduce(values, values, count, ncclFloat64, ncclSum, comm_, backend_.collectives()),
               "adding losses");
}

/// A call on a stream that failed has no caller to tell: the communicator keeps the reason.
Problem Replicas::wait() {
  constexpr auto kWhat = "waiting for the other ranks";
  const Problem computed = backend_.wait();
  ncclResult_t state = ncclSuccess;
  if (auto problem = check(ncclCommGetAsyncError(comm_, &state), kWhat)) return problem;
  if (auto problem = check(state, kWhat)) return problem;
  return computed;
}

Outcome<std::vector<std::uint64_t>> Replicas::gather(std::uint64_t value) {
  std::vector<std::uint64_t> values(static_cast<std::size_t>(size_));
  std::uint64_t* const own = hashes_.data() + size_;
  backend_.upload(own, &value, sizeof value);
  backend_.before_collectives();
  if (auto problem =
          check(ncclAllGather(own, hashes_.data(), 1, ncclUint64, comm_, backend_.collectives()), "gathering hashes")) {
    return *problem;
  }
  backend_.after_collectives();
  backend_.download(values.data(), hashes_.data(), values.size() * sizeof value);
  if (auto problem = wait()) return *problem;
  return values;
}

Problem compare_replicas(Replicas& replicas, std::uint64_t hash, std::string_view differ) {
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
  return Failure{fmt::format("{}: {} against {} others", differ, list, hashes->size() - odd.size())};
}

}  // namespace tutti::trainer
