#include "comm/machine_library.h"

#include "base/config.h"

#include <fmt/format.h>

#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <string>

namespace tutti::comm {
namespace {

constexpr const char* kFileName = "libtutti-topology.so";

struct Attempt {
  const planner::MachineService* service = nullptr;
  std::string problem;
};

/// Beside the object that this code is in.
std::string path_beside() {
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&machine_service), &here) == 0 || here.dli_fname == nullptr)
    return kFileName;
  const std::string path = here.dli_fname;
  const std::size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? kFileName : path.substr(0, slash + 1) + kFileName;
}

Attempt load() {
  if (config().topology_library == "none") return {nullptr, "TUTTI_TOPOLOGY_LIBRARY=none"};
  const std::string path = config().topology_library.empty() ? path_beside() : config().topology_library;
  void* const object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (object == nullptr) return {nullptr, dlerror()};  // it names the file
  const auto entry = reinterpret_cast<planner::MachineServiceEntry>(dlsym(object, planner::kMachineServiceSymbol));
  const planner::MachineService* const service = entry == nullptr ? nullptr : entry();
  if (service == nullptr || service->version == nullptr)
    return {nullptr, fmt::format("{}: it is no such plug-in: it lacks {}", path, planner::kMachineServiceSymbol)};
  if (std::strcmp(service->version, planner::kMachineServiceVersion) != 0)
    return {nullptr, fmt::format("{}: it is \"{}\", this library \"{}\": install both from one build", path,
                                 service->version, planner::kMachineServiceVersion)};
  return {service, ""};
}

}  // namespace

Result<const planner::MachineService*> machine_service() {
  // No lock: a process may fork while another thread is here. Who comes second in a race loads the same object again.
  static std::atomic<const Attempt*> known{nullptr};
  const Attempt* attempt = known.load(std::memory_order_acquire);
  if (attempt == nullptr) {
    const auto* mine = new Attempt(load());
    if (known.compare_exchange_strong(attempt, mine)) {
      attempt = mine;
    } else {
      delete mine;
    }
  }
  if (attempt->service == nullptr)
    return error(Code::kSystem,
                 fmt::format("the machine is not known: {} cannot be used: {}", kFileName, attempt->problem));
  return attempt->service;
}

}  // namespace tutti::comm
