// conformance-suite: every case on every backend.
#include "backend.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <iterator>
#include <map>
#include <random>
#include <sstream>
#include <string_view>

namespace tutti::conformance {
namespace {

constexpr std::string_view kUsage =
    R"(usage: conformance-suite [--backend NAME] [--case TEXT] [--quick] [--ranks LIST] [--sample N [--seed N]] [--list] [--help]
  --backend NAME  this one, in this process; else all, each in a process of its own
  --case TEXT     only the cases whose description, as --list and failures print it, contains TEXT
  --quick         a part of the cases that has everything once
  --ranks LIST    communicators of so many ranks: 7,15; else 1,2,3,5,8
  --sample N      so many of the backend's cases, which --seed chooses (else each run others); prints the seed
  --list          the backends with what they have, and the number of cases
)";
constexpr int kFailuresShown = 5;

struct Options {
  std::string backend;
  std::string text;
  Wanted wanted;
  std::size_t sample = 0;  ///< 0: all
  std::uint64_t seed = std::random_device{}();
  std::string member;  ///< the socket of who started this process as a rank
  bool list = false;
};

void set_environment(const Backend& backend) {
  for (const char* name : {"NCCL_ALGO", "NCCL_PROTO", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "TUTTI_SINGLE_COPY",
                           "TUTTI_SINGLE_COPY_MIN_BYTES", "TUTTI_REPRODUCIBLE", "TUTTI_WIRE"}) {
    unsetenv(name);
  }
  for (const auto& [name, value] : backend.environment()) setenv(name.c_str(), value.c_str(), 1);
}

/// Why the backend does not run it; empty: it does.
std::string skip_reason(const Backend& backend, const Case& c) {
  std::string reason = backend.why_not();
  const Capabilities missing = needs_of(c) & ~backend.capabilities();
  for (int i = 0; reason.empty() && i < kCapabilities; ++i) {
    if ((missing >> i & 1) != 0) reason = reason_without(static_cast<Capability>(i));
  }
  return reason.empty() ? backend.skip_reason(c) : reason;
}

std::string as_listed(const std::vector<int>& numbers) { return fmt::format("{}", fmt::join(numbers, ",")); }

/// What names the cases again.
std::string words_of(const Options& options) {
  std::string words = options.wanted.quick ? " --quick" : "";
  if (options.wanted.ranks != Wanted{}.ranks) words += " --ranks " + as_listed(options.wanted.ranks);
  return words;
}

/// Each case costs more of 8 ranks than of 2: the counts say what ran.
int run(Backend& backend, const Options& options) {
  set_environment(backend);
  int failed = 0;
  std::map<std::string, int> skipped;
  std::vector<Case> cases;
  for (const Case& c : make_cases(options.wanted)) {
    if (describe(c).find(options.text) == std::string::npos) continue;
    const std::string reason = skip_reason(backend, c);
    if (reason.empty()) {
      cases.push_back(c);
    } else {
      ++skipped[reason];
    }
  }
  if (options.sample != 0 && options.sample < cases.size()) {
    fmt::print("{}: {} of {} cases, --seed {}\n", backend.name(), options.sample, cases.size(), options.seed);
    std::vector<Case> some;
    std::ranges::sample(cases, std::back_inserter(some), static_cast<std::ptrdiff_t>(options.sample),
                        std::mt19937_64(options.seed));
    cases = std::move(some);
  }
  for (const Case& c : cases) {
    const std::string problem = backend.run(c);
    if (problem.empty()) continue;
    if (++failed > kFailuresShown) continue;
    fmt::print("FAILED {}: {}\n  again: --backend {} --case '{}'{}\n", describe(c), problem, backend.name(),
               describe(c), words_of(options));
    std::fflush(stdout);
  }
  if (const std::string problem = backend.end(); !problem.empty()) {
    ++failed;
    fmt::print("FAILED {}: after the last case: {}\n", backend.name(), problem);
  }
  const std::size_t done = cases.size();
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

void list(const Backends& all, const Wanted& wanted) {
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
  fmt::print("{} cases\n", make_cases(wanted).size());
}

std::vector<int> numbers_of(const std::string& list) {
  std::vector<int> numbers;
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) numbers.push_back(std::max(1, std::atoi(word.c_str())));
  return numbers.empty() ? Wanted{}.ranks : numbers;
}

int run_all(const Options& options) {
  Backends all;
  add_host_backends(all);
  add_sim_backends(all);
  add_library_backends(all);
  add_device_backends(all);
  if (options.list) {
    list(all, options.wanted);
    return 0;
  }
  int status = 0;
  for (const auto& backend : all) {
    if (options.backend == backend->name()) {
      if (options.member.empty()) return run(*backend, options);
      set_environment(*backend);
      return backend->be_member(options.member, make_cases(options.wanted));
    }
    if (options.backend.empty()) status |= run_in_child(*backend, options);
  }
  if (options.backend.empty()) return status;
  fmt::print(stderr, "--backend {}: there is none of that name; --list names them\n", options.backend);
  return 2;
}

}  // namespace
}  // namespace tutti::conformance

int main(int argc, char** argv) {
  // A rank that has died takes no orders.
  std::signal(SIGPIPE, SIG_IGN);
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
      options.wanted.quick = true;
    } else if (word == "--ranks" && has_value) {
      options.wanted.ranks = tutti::conformance::numbers_of(argv[++i]);
    } else if (word == "--sample" && has_value) {
      options.sample = std::strtoull(argv[++i], nullptr, 10);
    } else if (word == "--seed" && has_value) {
      options.seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (word == "--member" && has_value) {
      options.member = argv[++i];
    } else if (word == "--list") {
      options.list = true;
    } else {
      fmt::print(stderr, "{}: not understood\n{}", word, tutti::conformance::kUsage);
      return 2;
    }
  }
  return tutti::conformance::run_all(options);
}
