#include "explain.h"

#include "nccl_status.h"

#include <tutti/tutti.h>

#include <cstdio>
#include <sstream>
#include <string>

namespace tutti::bench {

Status print_plan(const Call& call, const Collective& collective, std::size_t bytes) {
  const int root = collective.plan == tuttiSend ? (call.rank + 1) % call.ranks : call.root;
  std::size_t needed = 0;
  TUTTI_TRY(nccl(tuttiExplain(call.comm, collective.plan, call.count, call.type, call.op, root, nullptr, 0, &needed),
                 "tuttiExplain"));
  std::string text(needed, '\0');
  TUTTI_TRY(nccl(
      tuttiExplain(call.comm, collective.plan, call.count, call.type, call.op, root, text.data(), text.size(), nullptr),
      "tuttiExplain"));
  std::printf("== %s, %zu bytes, %zu elements, %d ranks\n%s\n", collective.name, bytes, call.count, call.ranks,
              text.c_str());
  TUTTI_TRY(
      nccl(tuttiCommCertificate(call.comm, collective.plan, call.count, call.type, call.op, root, nullptr, 0, &needed),
           "tuttiCommCertificate"));
  text.assign(needed, '\0');
  TUTTI_TRY(nccl(tuttiCommCertificate(call.comm, collective.plan, call.count, call.type, call.op, root, text.data(),
                                      text.size(), nullptr),
                 "tuttiCommCertificate"));
  // As comments: what is printed is a schedule that --plan reads.
  std::istringstream lines(text.c_str());
  for (std::string line; std::getline(lines, line);) std::printf("# %s\n", line.c_str());
  std::printf("\n");
  return {};
}

}  // namespace tutti::bench
