// Ranks that are threads: what others may read outlives a rank that fails.
#include "trainer/job.h"

#include <catch2/catch.hpp>

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

using namespace tutti::trainer;

namespace {

/// What is mapped of memory that ranks share.
int shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);)
    if (line.find("/memfd:tutti") != std::string::npos) ++count;
  return count;
}

}  // namespace

TEST_CASE("what a rank has shared stays, where it fails as a thread, until all have ended") {
  std::string folder = (std::filesystem::temp_directory_path() / "tutti-job-XXXXXX").string();
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  std::ofstream(folder + "/text") << std::string(4000, 'a');
  Options options;
  options.model = ModelKind::kLm;
  options.text = {folder + "/text"};
  options.context = 4;
  options.embedding = 4;
  options.hidden = {8};
  options.batch = 8;
  options.steps = 1000;
  options.lr = 0.01;
  options.bucket_mb = 1;
  options.check_every = 50;
  options.log = "/dev/full";  // rank 0 fails at the first step, and so do the others
  const auto job = Job::prepare(options);
  std::filesystem::remove_all(folder);
  REQUIRE(job);
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);

  const int before = shared_mappings();
  constexpr int kRanks = 3;
  std::optional<KeptParts> kept(std::in_place);
  std::vector<int> codes(kRanks, -1);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      codes[static_cast<std::size_t>(rank)] = job->run_rank({rank, kRanks, rank, &*kept}, id);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(codes == std::vector<int>(kRanks, 1));
  const int held = shared_mappings();
  CHECK(held >= before + 2 * kRanks);  // parameters and gradients of each
  kept.reset();
  CHECK(shared_mappings() <= held - 2 * kRanks);
}
