#include "startup_footprint.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <vector>

namespace tutti::bench {
namespace {

struct Close {
  void operator()(std::FILE* file) const { (void)std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

int entries(const char* folder) {
  std::error_code problem;
  int count = 0;
  for (auto entry = std::filesystem::directory_iterator(folder, problem);
       !problem && entry != std::filesystem::directory_iterator(); entry.increment(problem))
    ++count;
  return count;
}

void read_totals(Footprint& footprint) {
  const File file(std::fopen("/proc/self/smaps_rollup", "re"));
  char line[256];
  while (file && std::fgets(line, sizeof line, file.get())) {
    unsigned long kilobytes = 0;
    if (std::sscanf(line, "Rss: %lu", &kilobytes) == 1) footprint.rss_bytes = kilobytes * 1024;
    if (std::sscanf(line, "Pss: %lu", &kilobytes) == 1) footprint.pss_bytes = kilobytes * 1024;
    if (std::sscanf(line, "Anonymous: %lu", &kilobytes) == 1) footprint.private_bytes = kilobytes * 1024;
  }
}

/// A shared page may take memory without being in this process's page table, so that the table does not tell. Where the
/// kernel does not let this process ask for the file, reserved pages that nobody has touched are missing.
std::uint64_t taken_bytes(unsigned long start, unsigned long end) {
  char link[64];
  (void)std::snprintf(link, sizeof link, "/proc/self/map_files/%lx-%lx", start, end);
  struct stat file {};
  if (stat(link, &file) == 0) return static_cast<std::uint64_t>(file.st_blocks) * 512;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((end - start) / page);
  if (mincore(reinterpret_cast<void*>(start), end - start, pages.data()) != 0) return 0;
  return page *
         static_cast<std::size_t>(std::count_if(pages.begin(), pages.end(), [](auto p) { return (p & 1) != 0; }));
}

void read_segments(Footprint& footprint) {
  const File file(std::fopen("/proc/self/maps", "re"));
  char line[512];
  while (file && std::fgets(line, sizeof line, file.get())) {
    unsigned long start = 0, end = 0;
    if (!std::strstr(line, "memfd:tutti-control") || std::sscanf(line, "%lx-%lx", &start, &end) != 2) continue;
    footprint.segment_bytes += end - start;
    footprint.segment_taken_bytes += taken_bytes(start, end);
  }
}

}  // namespace

Footprint Footprint::now() {
  Footprint footprint;
  read_totals(footprint);
  read_segments(footprint);
  footprint.descriptors = entries("/proc/self/fd") - 1;  // one is the folder's own
  footprint.threads = entries("/proc/self/task");
  return footprint;
}

double Footprint::per_rank_bytes(const Footprint& before, int ranks, bool as_threads) const {
  const double own = static_cast<double>(private_bytes) - static_cast<double>(before.private_bytes);
  const double shared = static_cast<double>(segment_taken_bytes) - static_cast<double>(before.segment_taken_bytes);
  return (as_threads ? own / ranks : own) + shared / ranks;
}

}  // namespace tutti::bench
