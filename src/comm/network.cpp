#include "comm/network.h"

#include "base/config.h"
#include "base/log.h"
#include "comm/mpi_library.h"
#include "executor/backoff.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>

namespace tutti::comm {
namespace {

using transport::MpiNetwork;
using transport::MpiState;

constexpr std::size_t kWhyMax = 300;
constexpr std::size_t kJobMax = 128;
/// For a death that MPI has noticed first.
constexpr std::chrono::seconds kDeathTime{2};

const char* name_of(MpiState::Level level) {
  switch (level) {
    case MpiState::Level::kSingle: return "MPI_THREAD_SINGLE";
    case MpiState::Level::kFunneled: return "MPI_THREAD_FUNNELED";
    case MpiState::Level::kSerialized: return "MPI_THREAD_SERIALIZED";
    case MpiState::Level::kMultiple: break;
  }
  return "MPI_THREAD_MULTIPLE";
}

std::string why_not(const MpiState& state) {
  if (!state.ended.empty()) return fmt::format("MPI is not called any more: {}", state.ended);
  if (!state.initialised)
    return "MPI is loaded, but not initialised (call MPI_Init_thread before the communicator is made), or it is of "
           "another "
           "version than the plug-in";
  if (state.finalised) return "MPI was finalised";
  if (state.level != MpiState::Level::kMultiple)
    return fmt::format("MPI was initialised with {}; MPI_THREAD_MULTIPLE is needed (MPI_Init_thread)",
                       name_of(state.level));
  return "";
}

/// What tells this job of the launcher from others; not all launchers do.
std::string job_identity() {
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"}) {
    const char* const value = launcher_variable(name);
    if (value != nullptr && *value != '\0') return std::string(value).substr(0, kJobMax);
  }
  return "";
}

/// The one whose communicators are open. A service lives as long as the process.
std::atomic<const transport::MpiService*>& service_in_use() {
  static std::atomic<const transport::MpiService*> service{nullptr};
  return service;
}

/// Why the ranks cannot use MPI together; empty: they can.
std::string obstacle_of(std::span<const MpiOffer> offers) {
  const int ranks = static_cast<int>(offers.size());
  for (int rank = 0; rank < ranks; ++rank) {
    if (!offers[rank].why_not.empty()) return fmt::format("rank {}: {}", rank, offers[rank].why_not);
  }
  std::vector<int> place(static_cast<std::size_t>(std::max(offers[0].world_size, 0)), -1);
  for (int rank = 0; rank < ranks; ++rank) {
    const MpiOffer& offer = offers[rank];
    const bool fits = offer.world_rank >= 0 && offer.world_rank < offers[0].world_size;
    if (offer.job != offers[0].job || offer.world_size != offers[0].world_size || !fits)
      return fmt::format("ranks 0 and {} are of different MPI jobs", rank);
    int& other = place[static_cast<std::size_t>(offer.world_rank)];
    if (other >= 0)
      return fmt::format("ranks {} and {} are both MPI rank {}: they share a process, or are of different MPI jobs",
                         other, rank, offer.world_rank);
    other = rank;
  }
  return "";
}

/// Of ranks that use MPI (`obstacle` is empty), or TCP.
CudaMpi agree_on_cuda(std::span<const MpiOffer> offers, const std::string& obstacle) {
  const MpiOffer::CudaWish wish = offers[0].cuda_wish;
  const bool is_off = wish == MpiOffer::CudaWish::kOff;
  std::string missing;
  if (!obstacle.empty()) missing = "the network is TCP; " + obstacle;
  for (std::size_t rank = 0; rank < offers.size() && missing.empty(); ++rank) {
    if (offers[rank].cuda == MpiOffer::Cuda::kCannot)
      missing = fmt::format("the MPI of rank {} says that it does not take GPU memory", rank);
    if (offers[rank].cuda == MpiOffer::Cuda::kUnknown)
      missing = fmt::format("the MPI of rank {} cannot be asked (TUTTI_CUDA_MPI=force does not ask)", rank);
  }
  if (wish == MpiOffer::CudaWish::kForce && obstacle.empty()) return {true, "TUTTI_CUDA_MPI=force on rank 0"};
  if (missing.empty() && is_off)
    return {false, "all ranks' MPI says that it takes GPU memory; TUTTI_CUDA_MPI=1 uses that"};
  if (missing.empty()) return {true, "TUTTI_CUDA_MPI=1 on rank 0, and all ranks' MPI says that it takes GPU memory"};
  return {false, is_off ? "" : "in spite of TUTTI_CUDA_MPI on rank 0: " + missing};
}

int first_with(std::span<const MpiOffer> offers, MpiOffer::Wish wish) {
  const auto found = std::ranges::find(offers, wish, &MpiOffer::wish);
  return found == offers.end() ? -1 : static_cast<int>(found - offers.begin());
}

}  // namespace

Bytes encode(const MpiOffer& offer) {
  return WireWriter()
      .number(static_cast<std::uint8_t>(offer.wish))
      .number(static_cast<std::uint8_t>(offer.cuda_wish))
      .number(static_cast<std::uint8_t>(offer.cuda))
      .text(offer.why_not)
      .text(offer.job)
      .number(offer.world_rank)
      .number(offer.world_size)
      .take();
}

std::optional<MpiOffer> decode_offer(std::span<const std::uint8_t> bytes) {
  WireReader reader(bytes);
  MpiOffer offer;
  const auto wish = reader.number<std::uint8_t>();
  const auto cuda_wish = reader.number<std::uint8_t>();
  const auto cuda = reader.number<std::uint8_t>();
  offer.wish = static_cast<MpiOffer::Wish>(wish);
  offer.cuda_wish = static_cast<MpiOffer::CudaWish>(cuda_wish);
  offer.cuda = static_cast<MpiOffer::Cuda>(cuda);
  offer.why_not = reader.text(kWhyMax);
  offer.job = reader.text(kJobMax);
  offer.world_rank = reader.number<std::int32_t>();
  offer.world_size = reader.number<std::int32_t>();
  if (!reader.complete() || wish > 2 || cuda_wish > 2 || cuda > 2 || offer.world_size > (1 << 24)) return std::nullopt;
  return offer;
}

MpiOffer own_offer() {
  MpiOffer offer;
  const std::string& wanted = config().network;
  offer.wish = wanted == "tcp" ? MpiOffer::Wish::kTcp : wanted == "mpi" ? MpiOffer::Wish::kMpi : MpiOffer::Wish::kAny;
  const std::string& cuda = config().cuda_mpi;
  using CudaWish = MpiOffer::CudaWish;
  offer.cuda_wish = cuda == "force" ? CudaWish::kForce : cuda == "1" ? CudaWish::kIfItSaysSo : CudaWish::kOff;
  if (offer.wish == MpiOffer::Wish::kTcp) {
    offer.why_not = "TUTTI_NET=tcp";
    return offer;
  }
  const auto service = mpi_service();
  const MpiState state = service.ok() ? service.value()->state() : MpiState{};
  offer.why_not = (service.ok() ? why_not(state) : service.error().message).substr(0, kWhyMax);
  if (!offer.why_not.empty()) return offer;
  service_in_use() = service.value();
  offer.job = job_identity();
  offer.world_rank = state.rank;
  offer.world_size = state.size;
  offer.cuda = state.cuda;
  return offer;
}

Result<MpiGroup> agree_on_mpi(std::span<const MpiOffer> offers) {
  MpiGroup group;
  group.why_none = obstacle_of(offers);
  group.cuda = agree_on_cuda(offers, group.why_none);
  if (group.why_none.empty()) {
    for (const MpiOffer& offer : offers) group.world_ranks.push_back(offer.world_rank);
    return group;
  }
  const int insists = first_with(offers, MpiOffer::Wish::kMpi);
  if (insists < 0) return group;
  return error(Code::kInvalidUsage,
               fmt::format("rank {} has TUTTI_NET=mpi, and MPI cannot be used: {}", insists, group.why_none));
}

Result<std::shared_ptr<MpiNetwork>> open_mpi(const MpiGroup& group, std::chrono::duration<double> at_most,
                                             const std::function<Status()>& given_up) {
  std::shared_ptr<MpiNetwork> network = service_in_use().load()->open(group.world_ranks, group.tag);
  const auto until = std::chrono::steady_clock::now() + at_most;
  executor::Backoff backoff(true);
  while (network->state() == MpiNetwork::State::kOpening) {
    TUTTI_TRY(given_up());
    if (std::chrono::steady_clock::now() >= until) {
      return error(
          Code::kRemote,
          fmt::format("MPI_Comm_create_group did not come back within {:.4g} s: are all ranks of one MPI job? Does "
                      "the program wait for MPI_ANY_TAG in MPI_COMM_WORLD meanwhile, by which it may take Open "
                      "MPI's own messages? TUTTI_NET=tcp does without MPI",
                      at_most.count()));
    }
    backoff.wait();
  }
  if (network->state() == MpiNetwork::State::kOpen) return network;
  for (const auto end = std::chrono::steady_clock::now() + kDeathTime; std::chrono::steady_clock::now() < end;) {
    TUTTI_TRY(given_up());
    backoff.wait();
  }
  return error(Code::kSystem, "no MPI communicator could be made: " + network->problem());
}

void prepare_mpi_thread(std::function<void()> prepare) {
  if (const auto* service = service_in_use().load()) service->prepare_thread(std::move(prepare));
}

void forbid_mpi(const std::string& why) {
  if (const auto* service = service_in_use().load()) service->forbid(why);
}

void stop_mpi(const std::string& why) {
  if (const auto* service = service_in_use().load()) service->stop(why);
}

}  // namespace tutti::comm
