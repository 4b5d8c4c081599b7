#include "comm/launch.h"

#include "base/config.h"
#include "comm/bootstrap.h"
#include "comm/mpi_library.h"

#include <fmt/format.h>

#include <atomic>
#include <string_view>

// Programs that are ranks of an mpirun or srun job and leave MPI to the library: Tutti's own, which are linked with none.

namespace tutti::comm {
namespace {

using transport::MpiService;
using transport::MpiState;

bool is_set(const char* name) {
  const char* const value = launcher_variable(name);
  return value != nullptr && *value != '\0';
}

/// The MPI whose launcher has started this process; "": none has.
std::string launchers_kind() {
  if (is_set("OMPI_COMM_WORLD_SIZE") || is_set("PMIX_NAMESPACE")) return "openmpi";
  const bool is_pmi = (is_set("PMI_RANK") && is_set("PMI_SIZE")) || (is_set("PMI_PORT") && is_set("PMI_ID"));
  return is_pmi ? "mpich" : "";
}

/// Where this library has initialised MPI.
std::atomic<const MpiService*>& launched() {
  static std::atomic<const MpiService*> service{nullptr};
  return service;
}

}  // namespace

/// MPICH's has to be asked for: over UCX's TCP its MPI_Finalize may hang (docs/hosts.md).
bool launch_wants_mpi(const tuttiLaunchInfo_t& info) {
  const bool by_mpirun = std::string_view(info.launcher) == TUTTI_LAUNCHER_MPIRUN;
  const std::string& network = config().network;
  if (!by_mpirun || !is_on_several_hosts(info) || network == "tcp") return false;
  return network == "mpi" || (launchers_kind() == "openmpi" && !names_meeting_place(info));
}

Status launch_mpi() {
  if (launched() != nullptr) return {};
  TUTTI_TRY_ASSIGN(const MpiService* const service, load_mpi_service(launchers_kind()));
  if (const MpiState state = service->state(); state.initialised || state.finalised) {
    return error(Code::kInvalidUsage, state.finalised || !state.ended.empty()
                                          ? "MPI has ended in this process, and cannot be initialised once more"
                                          : "MPI is the application's, which has initialised it already");
  }
  if (const std::string problem = service->initialise(); !problem.empty()) return error(Code::kSystem, problem);
  launched() = service;
  if (service->state().level == MpiState::Level::kMultiple) return {};
  return error(Code::kInvalidUsage, "this MPI has no MPI_THREAD_MULTIPLE");
}

Status end_launched_mpi() {
  const MpiService* const service = launched().exchange(nullptr);
  if (service == nullptr) return {};
  const std::string problem = service->finalise();
  if (!problem.empty()) return error(Code::kSystem, problem);
  return {};
}

Result<std::optional<UniqueId>> id_by_mpi(const tuttiLaunchInfo_t& info) {
  const MpiService* const service = launched();
  if (service == nullptr || info.size == 1) return std::optional<UniqueId>();
  const MpiState state = service->state();
  if (state.rank != info.rank || state.size != info.size) return std::optional<UniqueId>();
  UniqueId id;
  Status made;
  if (info.rank == 0) {
    auto own = make_programs_id();
    if (own.ok()) {
      id = own.value();
    } else {
      made = std::move(own).error();
    }
  }
  // In any case: the others wait.
  TUTTI_TRY_ASSIGN(const double timeout_s, meeting_timeout());
  const std::string problem = service->broadcast(&id, sizeof(id), timeout_s);
  TUTTI_TRY(made);
  if (!problem.empty() && info.rank == 0 && !id.named) end_bootstrap(id);
  if (!problem.empty()) return error(Code::kRemote, fmt::format("rank {}: rank 0's id by MPI: {}", info.rank, problem));
  if (id.magic != kUniqueIdMagic) return error(Code::kRemote, "rank 0 could not make a unique id");
  return std::optional<UniqueId>(id);
}

}  // namespace tutti::comm
