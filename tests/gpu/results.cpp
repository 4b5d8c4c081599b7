#include "results.h"

#include "gpu.h"

#include <fmt/format.h>

#include <cstdlib>
#include <ctime>
#include <fstream>

namespace tutti::test {

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + '"';
}

bool Results::takes(int argc, char** argv, int& i) {
  const std::string_view word = argv[i];
  std::string* const value = word == "--results"  ? &file_
                             : word == "--commit" ? &commit_
                             : word == "--way"    ? &way_
                                                  : nullptr;
  if (value == nullptr || i + 1 >= argc) return false;
  *value = argv[++i];
  return true;
}

std::string Results::place() const {
  const std::time_t now = std::time(nullptr);
  char date[32] = {};
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  // The kernel's part of the driver, where there is one; `driver` is the version of CUDA that it is for.
  std::string module;
  std::ifstream("/sys/module/nvidia/version") >> module;
  return fmt::format(R"("date":"{}","device":{},"driver":{},"module":{},"commit":{},"way":{})", date,
                     quoted(Gpu::get().name()), Gpu::get().driver_version(), quoted(module), quoted(commit_),
                     quoted(way_));
}

void Results::add(const std::string& fields) const {
  if (file_.empty()) return;
  std::ofstream file(file_, std::ios::app);
  file << "{" << place() << "," << fields << "}\n";
  if (file.flush()) return;
  fmt::print(stderr, "{} cannot be written\n", file_);
  std::exit(1);
}

}  // namespace tutti::test
