// What the programs of tests/gpu/run write down as they go: a file of JSON lines, each of which says by itself where and when it was found. A
// run that is cut off has lost nothing of what it had found.
#pragma once

#include <string>
#include <string_view>

namespace tutti::test {

/// As a JSON string.
std::string quoted(std::string_view text);

class Results {
 public:
  /// Takes `--results FILE`, `--commit NAME` or `--way NAME` at argv[i], and goes on to its value. False: it is something else.
  bool takes(int argc, char** argv, int& i);
  static constexpr const char* kUsage = "[--results FILE] [--commit NAME] [--way NAME]";

  /// Where this is: what every line begins with. Uses CUDA.
  std::string place() const;
  /// Appends a line: `fields` are the members of an object that are its own. Ends the program if the file cannot be written.
  void add(const std::string& fields) const;
  const std::string& commit() const { return commit_; }

 private:
  std::string file_;  ///< "": nowhere
  std::string commit_ = "unknown";
  std::string way_;  ///< what is set of NCCL_PROTO and NCCL_ALGO
};

}  // namespace tutti::test
