#include "forked.h"

#include <fmt/format.h>

#include <new>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tutti::test {
namespace {

/// What the processes share.
struct Page {
  std::atomic<bool> failed;
  char why[512];
};

}  // namespace

std::string run_forked(int processes, unsigned limit_s, const ProcessPart& part) {
  void* const memory = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return "no memory to share";
  Page& page = *new (memory) Page{};
  std::string wrong;
  int made = 0;
  for (; made < processes; ++made) {
    const pid_t child = fork();
    if (child < 0) break;
    if (child != 0) continue;
    alarm(limit_s);
    const std::string why = part(made, page.failed);
    if (!why.empty()) fmt::format_to_n(page.why, sizeof page.why - 1, "process {}: {}", made, why);
    _exit(why.empty() ? 0 : 1);
  }
  if (made < processes) {
    page.failed = true;
    wrong = fmt::format("only {} of {} processes could be made", made, processes);
  }
  for (int ended = 0; ended < made; ++ended) {
    int status = 0;
    wait(&status);
    if (status == 0) continue;
    page.failed = true;
    if (wrong.empty()) wrong = fmt::format("a process ended with status {:#x}", status);
  }
  if (page.why[0] != 0) wrong = page.why;
  munmap(memory, sizeof(Page));
  return wrong;
}

}  // namespace tutti::test
