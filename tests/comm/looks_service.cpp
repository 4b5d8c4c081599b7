// A plug-in that sees what a test wants: TEST_LOOK names a file with the text that it gives for this machine (no such file: it cannot look),
// TEST_LOOK_LOG one that it adds a line to when it is asked.
// All else is done by the real plug-in, TEST_PLUG_IN.
#include "planner/machine_service.h"

#include <dlfcn.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

namespace {

tutti::Result<std::string> discover(const std::string&) {
  if (const char* log = std::getenv("TEST_LOOK_LOG")) std::ofstream(log, std::ios::app) << "looks at the machine\n";
  const char* path = std::getenv("TEST_LOOK");
  std::ifstream file(path == nullptr ? "" : path, std::ios::binary);
  if (!file) return tutti::error(tutti::Code::kSystem, "there is nothing to see");
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const tutti::planner::MachineService* tutti_machine_service() {
  using tutti::planner::MachineService;
  static MachineService service;
  void* const real = dlopen(std::getenv("TEST_PLUG_IN"), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (real == nullptr) return nullptr;
  const auto entry =
      reinterpret_cast<tutti::planner::MachineServiceEntry>(dlsym(real, tutti::planner::kMachineServiceSymbol));
  if (entry == nullptr) return nullptr;
  service = *entry();
  service.discover = discover;
  return &service;
}
