// Files where there is no room for them.
#include "trainer/journal.h"

#include <catch2/catch.hpp>

#include <stdlib.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

using namespace tutti::trainer;

namespace {

/// A folder in which no file may be longer; what is longer is refused, as on a full disk.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) {
    std::string pattern = (std::filesystem::temp_directory_path() / "tutti-journal-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    folder_ = pattern;
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before_) == 0);
    const rlimit limit{bytes, before_.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~SmallFiles() {
    allow_large();
    std::error_code none;
    std::filesystem::remove_all(folder_, none);
  }
  SmallFiles(const SmallFiles&) = delete;
  SmallFiles& operator=(const SmallFiles&) = delete;
  /// Before anything is checked: what that says may go to a file, too.
  void allow_large() const {
    setrlimit(RLIMIT_FSIZE, &before_);
    (void)std::signal(SIGXFSZ, handler_);
  }
  std::string path(const char* name) const { return (folder_ / name).string(); }

 private:
  std::filesystem::path folder_;
  void (*handler_)(int) = nullptr;
  rlimit before_{};
};

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

constexpr StepRecord kStep{.step = 2, .loss = 1.5, .lr = 0.1, .samples = 8, .step_ms = 1, .comm_ms = 0.5};

}  // namespace

TEST_CASE("a log that finds no more room ends with a whole line") {
  const SmallFiles files(1000);
  Options options;
  options.log = files.path("log");
  options.report_every = 100;
  auto journal = Journal::open(options, 1000);
  REQUIRE(journal);
  int steps = 0;
  Problem problem;
  while (steps < 1000 && !problem) {
    problem = journal->step(kStep);
    ++steps;
  }
  files.allow_large();
  REQUIRE(problem);
  CHECK_THAT(problem->message, Catch::Contains(options.log + ": cannot write: File too large"));
  const std::string text = text_of(options.log);
  REQUIRE_FALSE(text.empty());
  CHECK(text.back() == '\n');
  CHECK(text.size() > 800);
}

TEST_CASE("a loss curve that finds no room is not left cut") {
  const SmallFiles files(1000);
  Options options;
  options.plot = files.path("plot.svg");
  options.report_every = 100;
  auto journal = Journal::open(options, 1000);
  REQUIRE(journal);
  REQUIRE_FALSE(journal->step(kStep));
  const Problem problem = journal->finish({});
  files.allow_large();
  REQUIRE(problem);
  CHECK_THAT(problem->message, Catch::Contains(options.plot + ": cannot write: File too large"));
  CHECK_FALSE(std::filesystem::exists(options.plot));
}
