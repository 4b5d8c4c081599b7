#include "comm/launch.h"

#include "base/config.h"
#include "base/first_use.h"

#include <fmt/format.h>

#include <pthread.h>
#include <sys/un.h>
#include <unistd.h>
#include <charconv>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <string_view>
#include <utility>

// Where the ranks of a job meet: a name that only this user, this job and this call of it can have.

namespace tutti::comm {
namespace {

constinit std::mutex numbering;

// In a forked child nobody has it: who forks does not wait, as a name may be looked up meanwhile.
[[maybe_unused]] const int renewed = pthread_atfork(nullptr, nullptr, [] { new (&numbering) std::mutex; });

/// Stays where it is.
std::uint32_t& next_id_of(const tuttiLaunchInfo_t& info) {
  const FirstUse first_use;
  static auto* const made = new std::map<std::string, std::uint32_t>;
  return (*made)[info.job];
}

Result<std::string> address_of(const tuttiLaunchInfo_t& info, std::uint32_t call) {
  const char* place = launcher_variable("TUTTI_RENDEZVOUS");
  if (!place || !*place) {
    if (!info.job[0])
      return error(Code::kInvalidUsage,
                   "the launcher gives no identity of the job; set TUTTI_RENDEZVOUS=file:/path, the same for "
                   "all ranks and for no other job");
    std::uint64_t low = 0xcbf29ce484222325u, high = 0x9ae16a3b2f90404fu;
    for (const char* c = info.job; *c; ++c) {
      low = (low ^ static_cast<unsigned char>(*c)) * 0x100000001b3u;
      high = (high + static_cast<unsigned char>(*c)) * 0x9e3779b97f4a7c15u;
    }
    return fmt::format("@tutti-launch/{}/{:016x}{:016x}/{}", geteuid(), low, high, call);
  }
  const std::string_view text = place;
  if (!text.starts_with("file:/"))
    return error(Code::kInvalidUsage,
                 fmt::format("TUTTI_RENDEZVOUS=\"{}\" is neither file:/absolute/path nor tcp:host:port", text));
  const std::string path = fmt::format("{}.{}", text.substr(5), call);
  if (path.size() >= sizeof(sockaddr_un::sun_path))
    return error(Code::kInvalidUsage, fmt::format("TUTTI_RENDEZVOUS: the path {} is longer than {} characters", path,
                                                  sizeof(sockaddr_un::sun_path) - 1));
  return path;
}

}  // namespace

IdNumber::IdNumber(const tuttiLaunchInfo_t& info) : next_(next_id_of(info)) { numbering.lock(); }
IdNumber::~IdNumber() { numbering.unlock(); }

Result<double> meeting_timeout() {
  const char* text = launcher_variable("TUTTI_RENDEZVOUS_TIMEOUT_S");
  if (!text || !*text) return 120.0;
  double seconds = 0;
  const auto [end, problem] = std::from_chars(text, text + std::strlen(text), seconds);
  if (problem != std::errc{} || *end || !(seconds > 0 && seconds <= 1e6))
    return error(Code::kInvalidUsage,
                 fmt::format("TUTTI_RENDEZVOUS_TIMEOUT_S=\"{}\" is not a number of seconds", text));
  return seconds;
}

Result<MeetingPlace> next_meeting_place(const tuttiLaunchInfo_t& info) {
  TUTTI_TRY_ASSIGN(const double timeout_s, meeting_timeout());
  if (is_on_several_hosts(info)) {
    const char* const place = launcher_variable("TUTTI_RENDEZVOUS");
    const std::string such = place && *place ? fmt::format(", which TUTTI_RENDEZVOUS=\"{}\" does not name", place) : "";
    return error(Code::kInvalidUsage,
                 fmt::format("{} of the job's {} ranks are on this host; ranks on several hosts meet by TCP{}: set "
                             "TUTTI_RENDEZVOUS=tcp:host:port with rank 0's host and a free port, the same for all "
                             "ranks, or let MPI bring them together (tuttiLaunchInitMpi; tutti-perf and tutti-train: "
                             "--net mpi)",
                             info.local_size, info.size, such));
  }
  IdNumber number(info);
  TUTTI_TRY_ASSIGN(std::string address, address_of(info, number.value()));
  MeetingPlace found{std::move(address), number.value(), timeout_s};
  number.counted();
  return found;
}

}  // namespace tutti::comm
