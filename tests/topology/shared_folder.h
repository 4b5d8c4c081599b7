// Files of other machines that lie next to the repository; tests that read them say so and pass where they are not there.
#pragma once

#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace topology_tests {

inline std::filesystem::path shared_folder() { return TUTTI_SHARED_TOPOLOGIES; }

/// Whether the folder is there; if not, the test's output says why it checks nothing.
inline bool has_shared_folder() {
  if (std::filesystem::is_directory(shared_folder())) return true;
  WARN("skipped: there is no folder " << shared_folder());
  return false;
}

inline std::string contents_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace topology_tests
