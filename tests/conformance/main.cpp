// conformance-suite: every case on every backend.
#include "backend.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string_view>

namespace tutti::conformance {
namespace {

constexpr std::string_view kUsage =
    R"(usage: conformance-suite [--backend NAME] [--case TEXT] [--quick] [--list] [--help]
  --backend NAME  this one, in this process; else all, each in a process of its own
  --case TEXT     only the cases whose description, as --list and failures print it, contains TEXT
  --quick         a part of the cases that has everything once
  --list          the backends with what they have, and the number of cases
)";
constexpr int kFailuresShown = 5;

struct Options {
  std::string backend;
  std::string text;
  bool quick = false;
  bool list = false;
};

/// Each case costs more of 8 ranks than of 2: the counts say what ran.
int run(Backend& backend, const Options& options) {
  for (const char* name : {"NCCL_ALGO", "NCCL_PROTO", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "TUTTI_SINGLE_COPY",
                           "TUTTI_SINGLE_COPY_MIN_BYTES", "TUTTI_REPRODUCIBLE", "TUTTI_WIRE"}) {
    unsetenv(name);
  }
  for (const auto& [name, value] : backend.environment()) setenv(name.c_str(), value.c_str(), 1);
  int done = 0;
  int failed = 0;
  std::map<std::string, int> skipped;
  for (const Case& c : make_cases(options.quick)) {
    if (describe(c).find(options.text) == std::string::npos) continue;
    std::string reason = backend.why_not();
    const Capabilities missing = needs_of(c) & ~backend.capabilities();
    for (int i = 0; reason.empty() && i < kCapabilities; ++i) {
      if ((missing >> i & 1) != 0) reason = reason_without(static_cast<Capability>(i));
    }
    if (reason.empty()) reason = backend.skip_reason(c);
    if (!reason.empty()) {
      ++skipped[reason];
      continue;
    }
    ++done;
    const std::string problem = backend.run(c);
    if (problem.empty()) continue;
    if (++failed > kFailuresShown) continue;
    fmt::print("FAILED {}: {}\n  again: --backend {} --case '{}'{}\n", describe(c), problem, backend.name(),
               describe(c), options.quick ? " --quick" : "");
    std::fflush(stdout);
  }
  fmt::print("{:<19} {:>5} run {:>5} failed   {}\n", backend.name(), done, failed, backend.summary());
  for (const auto& [reason, count] : skipped) fmt::print("{:<19} {:>5} skipped: {}\n", "", count, reason);
  if (done == 0 && backend.why_not().empty()) fmt::print("FAILED {}: nothing ran\n", backend.name());
  std::fflush(stdout);
  return failed == 0 && (done != 0 || !backend.why_not().empty()) ? 0 : 1;
}

int run_in_child(Backend& backend, const Options& options) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    const int status = run(backend, options);
    _exit(status);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) fmt::print("FAILED {}: died of signal {}\n", backend.name(), WTERMSIG(status));
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

void list(const Backends& all, bool quick) {
  for (const auto& backend : all) {
    std::string has;
    for (int i = 0; i < kCapabilities; ++i) {
      const auto capability = static_cast<Capability>(i);
      if ((backend->capabilities() & bit(capability)) == 0) continue;
      has += has.empty() ? "" : ", ";
      has += name_of(capability);
    }
    fmt::print("{:<19} {}\n{:<19} {}\n", backend->name(), backend->summary(), "",
               backend->why_not().empty() ? has : "skipped: " + backend->why_not());
  }
  fmt::print("{} cases\n", make_cases(quick).size());
}

int run_all(const Options& options) {
  Backends all;
  add_host_backends(all);
  add_sim_backends(all);
  add_library_backends(all);
  add_device_backends(all);
  if (options.list) {
    list(all, options.quick);
    return 0;
  }
  int status = 0;
  for (const auto& backend : all) {
    if (options.backend == backend->name()) return run(*backend, options);
    if (options.backend.empty()) status |= run_in_child(*backend, options);
  }
  if (options.backend.empty()) return status;
  fmt::print(stderr, "--backend {}: there is none of that name; --list names them\n", options.backend);
  return 2;
}

}  // namespace
}  // namespace tutti::conformance

int main(int argc, char** argv) {
  tutti::conformance::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const bool has_value = i + 1 < argc;
    if (word == "--help") {
      fmt::print("{}", tutti::conformance::kUsage);
      return 0;
    }
    if (word == "--backend" && has_value) {
      options.backend = argv[++i];
    } else if (word == "--case" && has_value) {
      options.text = argv[++i];
    } else if (word == "--quick") {
      options.quick = true;
    } else if (word == "--list") {
      options.list = true;
    } else {
      fmt::print(stderr, "{}: not understood\n{}", word, tutti::conformance::kUsage);
      return 2;
    }
  }
  return tutti::conformance::run_all(options);
}
