// Network: what carries the bytes between hosts, TCP or the application's MPI. Every rank says what it has; all come to the same answer.
#pragma once

#include "base/result.h"
#include "comm/wire.h"
#include "transport/mpi_service.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tutti::comm {

/// What a rank tells the others before they connect.
struct MpiOffer {
  enum class Wish : std::uint8_t { kAny, kTcp, kMpi };
  Wish wish = Wish::kAny;  ///< TUTTI_NET
  enum class CudaWish : std::uint8_t { kOff, kIfItSaysSo, kForce };
  CudaWish cuda_wish = CudaWish::kOff;  ///< TUTTI_CUDA_MPI; rank 0's counts
  using Cuda = transport::MpiState::Cuda;
  Cuda cuda = Cuda::kUnknown;  ///< whether its MPI takes GPU memory
  std::string why_not;         ///< why it cannot be MPI; empty: it can, and the rest holds
  std::string job;             ///< as the launcher calls it; empty where it does not
  std::int32_t world_rank = -1;
  std::int32_t world_size = 0;
};
/// At most 512 bytes.
Bytes encode(const MpiOffer& offer);
std::optional<MpiOffer> decode_offer(std::span<const std::uint8_t> bytes);

/// This process's.
MpiOffer own_offer();

/// Whether MPI is given GPU memory as it is.
struct CudaMpi {
  bool is_on = false;
  std::string why;  ///< for people: why it is, or is not, or how it could be; empty: nobody has asked, and it could not
};

/// The ranks of MPI_COMM_WORLD that a communicator's ranks are, by rank; none: they use TCP.
struct MpiGroup {
  std::vector<int> world_ranks;
  int tag = 0;           ///< of MPI_Comm_create_group
  std::string why_none;  ///< for people
  CudaMpi cuda;
};
/// Of all ranks' offers, by rank. kInvalidUsage: some rank insists on what cannot be, and all ranks get this.
Result<MpiGroup> agree_on_mpi(std::span<const MpiOffer> offers);

/// The communicator of the group's ranks, once its creation has ended; `given_up` is asked while it has not. kRemote: it did not end
/// in that time.
Result<std::shared_ptr<transport::MpiNetwork>> open_mpi(const MpiGroup& group, std::chrono::duration<double> at_most,
                                                        const std::function<Status()>& given_up);

/// What the plug-in's thread calls before it calls MPI.
void prepare_mpi_thread(std::function<void()> prepare);

/// A rank has died: no call of MPI's begins any more in this process.
void forbid_mpi(const std::string& why);
/// The same, and waits up to a second for a call under way.
void stop_mpi(const std::string& why);

}  // namespace tutti::comm
