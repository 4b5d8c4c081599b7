// A plug-in of another version, for machine_test.py: the library must not call more of it than its name.
#include "planner/machine_service.h"

namespace {
constexpr tutti::planner::MachineService kOther{.version = "Tutti 9.9.9, machine service 99"};
}

extern "C" __attribute__((visibility("default"))) const tutti::planner::MachineService* tutti_machine_service() {
  return &kOther;
}
