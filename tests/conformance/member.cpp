#include "member.h"

#include <cstdio>

namespace tutti::conformance {
namespace {

std::string run_case(Session& session, const Case& c, int number) {
  std::string problem = session.begin(c, number);
  if (!problem.empty()) return problem;
  for (int round = 0; round < Session::kRounds; ++round) {
    session.fill(round);
    if (c.kind == Kind::kGroup && ncclGroupStart() != ncclSuccess) keep(problem, "ncclGroupStart failed");
    const int calls = c.kind == Kind::kRow ? kRowCalls : Session::kCallsInARow;
    for (int k = 0; k < calls; ++k) keep(problem, session.issue(k % Session::kCallsInARow));
    if (c.kind == Kind::kGroup && ncclGroupEnd() != ncclSuccess) keep(problem, "ncclGroupEnd failed");
    keep(problem, session.wait());
    keep(problem, session.check(round));
  }
  keep(problem, session.end());
  return problem;
}

/// The calls may end well or badly, but they end. The communicator is gone then.
std::string run_aborted(Session& session, const Case& c, int number, bool aborts) {
  std::string problem = session.begin(c, number);
  session.fill(0);
  if (aborts) {
    usleep(5000);
  } else {
    session.issue(0);
    session.wait();
  }
  keep(problem, session.abort());
  return problem;
}

}  // namespace

void live(const SessionOptions& options, int rank, int ranks, int orders, int replies, const std::vector<Case>* cases) {
  Session session(options, rank, ranks);
  std::string problem = session.start();
  Command command;
  while (receive(orders, command) && command.order != Order::kLeave) {
    Reply reply{};
    if (command.order == Order::kMakeId) {
      if (ncclGetUniqueId(&reply.id) != ncclSuccess) keep(problem, ncclGetLastError(nullptr));
    } else if (command.order == Order::kJoin) {
      keep(problem, session.join(command.id));
    } else if (problem.empty()) {
      if (cases != nullptr) command.c = cases->at(static_cast<std::size_t>(command.c.place));
      problem = command.c.kind == Kind::kAbort ? run_aborted(session, command.c, command.number, rank == ranks - 1)
                                               : run_case(session, command.c, command.number);
    }
    std::snprintf(reply.text, sizeof reply.text, "%s", problem.c_str());
    if (!send(replies, reply)) break;
  }
}

}  // namespace tutti::conformance
