#include "comm/launch.h"

#include "base/config.h"
#include "comm/slurm_step.h"

#include <fmt/format.h>

#include <unistd.h>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string_view>

namespace tutti::comm {
namespace {

bool is_set(const char* name) {
  const char* value = launcher_variable(name);
  return value && *value;
}

std::string text_of(const char* name) {
  const char* value = launcher_variable(name);
  return value ? value : "";
}

/// The first of the variables that is set; nothing if none is.
Result<std::optional<int>> number_of(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (!is_set(name)) continue;
    const std::string text = text_of(name);
    int value = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (problem != std::errc{} || end != text.data() + text.size() || value < 0)
      return error(Code::kInvalidUsage,
                   fmt::format("the launcher's variable {}=\"{}\" is not a number from 0 on", name, text));
    return std::optional<int>(value);
  }
  return std::optional<int>();
}

std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3u;
  return hash;
}

/// Keeps long identities apart by a hash of all of it.
void set_job(tuttiLaunchInfo_t& info, std::string job) {
  if (job.size() >= sizeof(info.job)) job = job.substr(0, sizeof(info.job) - 20) + fmt::format("~{:016x}", fnv1a(job));
  std::memset(info.job, 0, sizeof(info.job));
  std::memcpy(info.job, job.data(), job.size());
}

/// "parent 1234 started 56789": the same for all ranks that one process started.
std::string parent_identity() {
  const pid_t parent = getppid();
  std::FILE* file = std::fopen(fmt::format("/proc/{}/stat", parent).c_str(), "re");
  if (!file) return fmt::format("parent {}", parent);
  char line[1024] = {};
  const std::size_t length = std::fread(line, 1, sizeof(line) - 1, file);
  std::fclose(file);
  // The second field is the name in parentheses and may hold blanks; the start time is the 20th after it.
  std::string_view rest(line, length);
  rest.remove_prefix(std::min(rest.size(), rest.rfind(')') + 1));
  for (int field = 0; field < 20 && !rest.empty(); ++field)
    rest.remove_prefix(std::min(rest.size(), rest.find(' ') + 1));
  return fmt::format("parent {} started {}", parent, rest.substr(0, rest.find(' ')));
}

/// Of a rank that speaks PMI.
std::string pmi_identity() {
  for (const char* name : {"PMIX_NAMESPACE", "PMI_JOBID"})
    if (is_set(name)) return fmt::format("pmi {}", text_of(name));
  return is_set("PMI_PORT") ? "pmi port " + text_of("PMI_PORT") : "pmi " + parent_identity();
}

struct Launcher {
  const char* name;
  bool (*present)();
  std::initializer_list<const char*> rank, size, local_rank, local_size;
  std::string (*job)();
};

/// Innermost first: srun starts torchrun or mpirun, which start the ranks.
const Launcher kLaunchers[] = {
    {TUTTI_LAUNCHER_TORCHRUN,
     [] {
       return is_set("RANK") && is_set("WORLD_SIZE") &&
              (is_set("TORCHELASTIC_RUN_ID") || is_set("MASTER_PORT") || is_set("TUTTI_RENDEZVOUS") ||
               !root_variables().comm_id.empty());
     },
     {"RANK"},
     {"WORLD_SIZE"},
     {"LOCAL_RANK"},
     {"LOCAL_WORLD_SIZE"},
     [] {
       return fmt::format("torchrun {} {}:{} restart {}", text_of("TORCHELASTIC_RUN_ID"), text_of("MASTER_ADDR"),
                          text_of("MASTER_PORT"), text_of("TORCHELASTIC_RESTART_COUNT"));
     }},
    {TUTTI_LAUNCHER_MPIRUN,
     [] { return is_set("OMPI_COMM_WORLD_RANK"); },
     {"OMPI_COMM_WORLD_RANK"},
     {"OMPI_COMM_WORLD_SIZE"},
     {"OMPI_COMM_WORLD_LOCAL_RANK"},
     {"OMPI_COMM_WORLD_LOCAL_SIZE"},
     [] {
       const std::string space =
           is_set("PMIX_NAMESPACE") ? text_of("PMIX_NAMESPACE") : text_of("OMPI_MCA_ess_base_jobid");
       return fmt::format("openmpi {} {}", space, text_of("OMPI_MCA_orte_precondition_transports"));
     }},
    {TUTTI_LAUNCHER_MPIRUN,
     [] { return is_set("PMI_RANK") && is_set("PMI_SIZE"); },
     {"PMI_RANK"},
     {"PMI_SIZE"},
     {"MPI_LOCALRANKID"},
     {"MPI_LOCALNRANKS"},
     pmi_identity},
    // mpiexec.hydra -pmi-port. It tells the number of ranks to MPI alone, which asks at that port.
    {TUTTI_LAUNCHER_MPIRUN,
     [] { return is_set("PMI_PORT") && is_set("PMI_ID"); },
     {"PMI_ID"},
     {"WORLD_SIZE"},
     {"MPI_LOCALRANKID"},
     {"MPI_LOCALNRANKS"},
     pmi_identity},
    {TUTTI_LAUNCHER_SRUN,
     // A batch script has SLURM_PROCID=0 too, but is no rank of a step.
     [] { return is_set("SLURM_PROCID") && (is_set("SLURM_STEP_ID") || text_of("ENVIRONMENT") != "BATCH"); },
     {"SLURM_PROCID"},
     {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
     {"SLURM_LOCALID"},
     {},
     [] {
       return fmt::format("slurm {}.{} restart {}", text_of("SLURM_JOB_ID"), text_of("SLURM_STEP_ID"),
                          text_of("SLURM_RESTART_COUNT"));
     }},
    // Without PMI_SIZE, which is an error where no other launcher's variables are there.
    {TUTTI_LAUNCHER_MPIRUN, [] { return is_set("PMI_RANK"); }, {"PMI_RANK"}, {"PMI_SIZE"}, {}, {}, pmi_identity},
};

Status check_place(const char* rank_name, int rank, const char* size_name, int size) {
  if (rank < size) return {};
  return error(Code::kInvalidUsage,
               fmt::format("{}={} does not fit {}={}: ranks go from 0 to size-1", rank_name, rank, size_name, size));
}

Result<tuttiLaunchInfo_t> info_from(const Launcher& launcher) {
  TUTTI_TRY_ASSIGN(const std::optional<int> rank, number_of(launcher.rank));
  TUTTI_TRY_ASSIGN(std::optional<int> size, number_of(launcher.size));
  TUTTI_TRY_ASSIGN(const std::optional<int> local_rank, number_of(launcher.local_rank));
  TUTTI_TRY_ASSIGN(std::optional<int> local_size, number_of(launcher.local_size));
  TUTTI_TRY_ASSIGN(const std::optional<int> hosts, number_of({"SLURM_STEP_NUM_NODES", "SLURM_NNODES"}));
  if (!size)
    return error(Code::kInvalidUsage, fmt::format("{} is set, but {} is not: the number of ranks is missing",
                                                  *launcher.rank.begin(), *(launcher.size.end() - 1)));
  TUTTI_TRY(check_place(*launcher.rank.begin(), *rank, *launcher.size.begin(), *size));
  if (!local_size && launcher.name == std::string_view(TUTTI_LAUNCHER_SRUN)) {
    TUTTI_TRY_ASSIGN(const std::optional<int> node, number_of({"SLURM_NODEID"}));
    if (hosts == 1) local_size = size;
    if (hosts > 1 && node) local_size = tasks_of_node(text_of("SLURM_STEP_TASKS_PER_NODE"), *node);
  }
  tuttiLaunchInfo_t info{*rank, *size, local_rank.value_or(-1), local_size.value_or(0), launcher.name, {}};
  set_job(info, launcher.job());
  return info;
}

}  // namespace

Result<tuttiLaunchInfo_t> launch_detect() {
  for (const Launcher& launcher : kLaunchers)
    if (launcher.present()) return info_from(launcher);
  // Or as many jobs of one rank each would all go well.
  TUTTI_TRY_ASSIGN(const std::optional<int> rank, number_of({"RANK"}));
  TUTTI_TRY_ASSIGN(const std::optional<int> size, number_of({"WORLD_SIZE"}));
  if (rank && size) TUTTI_TRY(check_place("RANK", *rank, "WORLD_SIZE", *size));
  if (rank && size > 1) {
    return error(
        Code::kInvalidUsage,
        fmt::format("RANK={} and WORLD_SIZE={} are set, but nothing says where the ranks meet: MASTER_ADDR and "
                    "MASTER_PORT (torchrun), NCCL_COMM_ID=host:port, or TUTTI_RENDEZVOUS",
                    *rank, *size));
  }
  return tuttiLaunchInfo_t{0, 1, 0, 1, TUTTI_LAUNCHER_NONE, {}};
}

}  // namespace tutti::comm
