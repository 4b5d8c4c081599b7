#include "comm/launch.h"

#include "base/config.h"
#include "comm/named_root.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

// Ranks on several hosts need no meeting: all know the address at which rank 0 will listen, and make the same id of it.

namespace tutti::comm {
namespace {

std::string text_of(const char* name) {
  const char* value = launcher_variable(name);
  return value != nullptr ? value : "";
}

/// "host:port" where the job's ranks meet by TCP; "" if they do not.
std::string tcp_place(const tuttiLaunchInfo_t& info) {
  constexpr std::string_view kPrefix = "tcp:";
  const std::string place = text_of("TUTTI_RENDEZVOUS");
  if (place.starts_with(kPrefix)) return place.substr(kPrefix.size());
  if (place.empty()) {
    if (std::string named = root_variables().comm_id; !named.empty()) return named;
  }
  const std::string master = text_of("MASTER_ADDR");
  if (!place.empty() || !is_on_several_hosts(info) || master.empty()) return "";
  // The launcher's agent listens at the port itself.
  const std::string port = text_of("MASTER_PORT");
  int number = 29500;
  std::from_chars(port.data(), port.data() + port.size(), number);
  return fmt::format("{}:{}", master.find(':') == std::string::npos ? master : "[" + master + "]", number + 1);
}

/// What all ranks know of the job. mpiexec.hydra tells them nothing of it, and on each host another process starts them (launch.cpp): the place
/// where they meet has to do.
std::string_view job_of(const tuttiLaunchInfo_t& info) {
  const std::string_view job = info.job;
  const bool is_of_this_host = job.starts_with("pmi parent ") || job.starts_with("pmi port ");
  return is_of_this_host && info.local_size != info.size ? "mpirun" : job;
}

}  // namespace

bool names_meeting_place(const tuttiLaunchInfo_t& info) {
  return !text_of("TUTTI_RENDEZVOUS").empty() || !tcp_place(info).empty();
}

Result<std::optional<UniqueId>> launched_id(const tuttiLaunchInfo_t& info) {
  static std::mutex mutex;
  static std::map<std::string, std::uint32_t> calls;
  const std::string place = tcp_place(info);
  if (place.empty() || info.size == 1) return std::optional<UniqueId>();
  const std::lock_guard lock(mutex);
  std::uint32_t& call = calls[info.job];
  NamedRoot root;
  root.place = place;
  root.from = "TUTTI_RENDEZVOUS, NCCL_COMM_ID or MASTER_ADDR";
  root.label = fmt::format("{} ranks, id {} of {}", info.size, call, job_of(info));
  root.port_offset = static_cast<std::uint16_t>(call);
  TUTTI_TRY_ASSIGN(const UniqueId id, make_named_id(root));
  ++call;
  return std::optional<UniqueId>(id);
}

}  // namespace tutti::comm
