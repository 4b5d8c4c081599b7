#include "comm/launch.h"

#include "base/config.h"
#include "comm/named_root.h"
#include "comm/slurm_step.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

// Ranks on several hosts need no meeting: all know the address at which rank 0 will listen, and make the same id of it.

namespace tutti::comm {
namespace {

std::string text_of(const char* name) {
  const char* value = launcher_variable(name);
  return value != nullptr ? value : "";
}

/// Where the job's ranks meet by TCP.
struct TcpPlace {
  std::string place;  ///< "host:port"; "": they do not
  std::string from;   ///< the variable that says so
};

TcpPlace at(const std::string& host, int port, const char* from) {
  return {fmt::format("{}:{}", host.find(':') == std::string::npos ? host : "[" + host + "]", port), from};
}

/// What all ranks know of the job. mpiexec.hydra tells them nothing of it, and on each host another process starts them (launch.cpp): the place
/// where they meet has to do.
std::string_view job_of(const tuttiLaunchInfo_t& info) {
  const std::string_view job = info.job;
  const bool is_of_this_host = job.starts_with("pmi parent ") || job.starts_with("pmi port ");
  return is_of_this_host && info.local_size != info.size ? "mpirun" : job;
}

/// Of the step's first node, where rank 0 is: steps that run at one time should have ports of their own.
TcpPlace slurm_place(const tuttiLaunchInfo_t& info) {
  const std::string host = first_node(text_of("SLURM_STEP_NODELIST"));
  if (host.empty() || std::string_view(info.launcher) != TUTTI_LAUNCHER_SRUN) return {};
  constexpr std::uint32_t kFirstPort = 20000;
  constexpr std::uint32_t kPorts = 10000;  // below those that systems give out by themselves
  std::uint32_t hash = 2166136261U;
  for (const char c : job_of(info)) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  return at(host, static_cast<int>(kFirstPort + hash % kPorts), "SLURM_STEP_NODELIST");
}

/// torchrun tells how many ranks are on this host. Who starts ranks with its variables by hand, or one in each container, may tell no more than
/// an address, which is any host's but where it is each one's own.
bool may_be_on_several_hosts(const tuttiLaunchInfo_t& info, std::string_view master) {
  if (info.local_size > 0 || std::string_view(info.launcher) != TUTTI_LAUNCHER_TORCHRUN)
    return is_on_several_hosts(info);
  const bool is_each_hosts_own =
      master.starts_with("localhost") || master.starts_with("ip6-") || master.starts_with("127.") || master == "::1";
  return !master.empty() && !is_each_hosts_own;
}

TcpPlace tcp_place(const tuttiLaunchInfo_t& info) {
  constexpr std::string_view kPrefix = "tcp:";
  const std::string place = text_of("TUTTI_RENDEZVOUS");
  if (place.starts_with(kPrefix)) return {place.substr(kPrefix.size()), "TUTTI_RENDEZVOUS"};
  if (!place.empty()) return {};
  if (std::string named = root_variables().comm_id; !named.empty()) return {std::move(named), "NCCL_COMM_ID"};
  const std::string master = text_of("MASTER_ADDR");
  if (!may_be_on_several_hosts(info, master)) return {};
  if (master.empty()) return slurm_place(info);
  // The launcher's agent listens at the port itself.
  const std::string port = text_of("MASTER_PORT");
  int number = 29500;
  std::from_chars(port.data(), port.data() + port.size(), number);
  return at(master, number + 1, "MASTER_ADDR, with the port after MASTER_PORT");
}

}  // namespace

bool names_meeting_place(const tuttiLaunchInfo_t& info) {
  return !text_of("TUTTI_RENDEZVOUS").empty() || !tcp_place(info).place.empty();
}

Result<std::optional<UniqueId>> launched_id(const tuttiLaunchInfo_t& info) {
  const TcpPlace found = tcp_place(info);
  if (found.place.empty() || info.size == 1) return std::optional<UniqueId>();
  IdNumber number(info);
  NamedRoot root;
  root.place = found.place;
  root.from = found.from;
  root.label = fmt::format("{} ranks, id {} of {}", info.size, number.value(), job_of(info));
  root.port_offset = static_cast<std::uint16_t>(number.value());
  TUTTI_TRY_ASSIGN(const UniqueId id, make_named_id(root));
  number.counted();
  return std::optional<UniqueId>(id);
}

}  // namespace tutti::comm
