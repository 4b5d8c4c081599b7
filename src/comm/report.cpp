// Where every rank is: read from the control segment, so that it costs calls nothing, and can be asked while they hang.
#include "comm/report.h"

#include "executor/host_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <vector>

namespace tutti::comm {
namespace {

#if defined(__SANITIZE_THREAD__)
#define TUTTI_UNSYNCHRONISED __attribute__((no_sanitize("thread"), noinline))
#else
#define TUTTI_UNSYNCHRONISED
#endif

/// The writer does not wait for this reader. Whoever calls looks afterwards whether the place was used again.
TUTTI_UNSYNCHRONISED Signature copy_of(const Signature& shared) {
  static_assert(sizeof(Signature) % sizeof(std::uint64_t) == 0 || sizeof(Signature) % sizeof(std::uint32_t) == 0);
  std::uint32_t words[sizeof(Signature) / sizeof(std::uint32_t)];
  const auto* const from = reinterpret_cast<const volatile std::uint32_t*>(&shared);
  for (std::size_t i = 0; i < std::size(words); ++i) words[i] = from[i];
  Signature copy;
  std::memcpy(&copy, words, sizeof(copy));
  return copy;
}

std::uint32_t sequence_at(const protocol::AnnounceLine& line) {
  return protocol::sequence_of(executor::load_acquire(&line.word));
}

/// The number of the rank's last call; 0: none yet.
std::uint32_t last_sequence(const protocol::AnnounceBoard& board, int rank) {
  std::uint32_t last = 0;
  for (std::uint32_t i = 0; i < protocol::kAnnounceDepth; ++i)
    last = std::max(last, sequence_at(board.line(static_cast<std::uint32_t>(rank), i)));
  return last;
}

/// The newest of a pair's lines of one direction.
std::uint32_t newest(const protocol::AnnounceLine* lines, std::uint32_t depth) {
  std::uint32_t last = 0;
  for (std::uint32_t i = 0; i < depth; ++i) last = std::max(last, sequence_at(lines[i]));
  return last;
}

std::string described(const Signature& signature, std::uint32_t sequence) {
  return signature.sequence == sequence ? ": " + signature.describe() : std::string();
}

/// How many sends one rank has made to another that has not received them; `newest_send`: the last of them.
std::uint32_t open_sends(const Control& control, int from, int to, std::uint32_t& newest_send) {
  const protocol::Pair pair = control.pair(from, to);
  const auto taken = static_cast<std::uint32_t>(executor::load_acquire(pair.taken));
  newest_send = newest(pair.sends, protocol::kSendDepth);
  const std::uint32_t asked = newest(pair.receives, protocol::kReceiveDepth);
  return newest_send > taken && asked < newest_send ? newest_send - taken : 0;
}

/// What one rank has announced to the other and the other has not taken up.
void append_open_pairs(const Control& control, int from, int to, std::string& text) {
  std::uint32_t sent = 0;
  const std::uint32_t open = open_sends(control, from, to, sent);
  const std::uint32_t asked = newest(control.pair(from, to).receives, protocol::kReceiveDepth);
  const PairSignatures signatures = control.pair_signatures(from, to);
  if (open > 0) {
    text += fmt::format("rank {} sends to rank {}, which has not received {} of its sends yet{}\n", from, to, open,
                        described(copy_of(signatures.of(Direction::kSend, sent)), sent));
  }
  if (asked > sent) {
    text += fmt::format("rank {} waits for rank {}{}\n", to, from,
                        described(copy_of(signatures.of(Direction::kReceive, asked)), asked));
  }
}

}  // namespace

LastCall last_call(const Control& control, int rank) {
  LastCall call;
  if (control.ranks() == 1) return call;
  const protocol::AnnounceBoard board = control.board();
  call.number = last_sequence(board, rank);
  if (call.number == 0) return call;
  const Signature signature = copy_of(control.signatures().of(rank, call.number));
  // The place of the signature is used again two rounds of lines later.
  const bool kept = last_sequence(board, rank) - call.number < protocol::kAnnounceDepth;
  if (kept && signature.sequence == call.number) call.text = signature.describe();
  return call;
}

int behind(const Control& control, int rank) {
  if (control.ranks() == 1) return -1;
  int last = -1;
  std::uint32_t least = last_sequence(control.board(), rank);
  for (int r = 0; r < control.ranks(); ++r) {
    const std::uint32_t sequence = last_sequence(control.board(), r);
    if (sequence >= least) continue;
    least = sequence;
    last = r;
  }
  return last;
}

std::string open_send(const Control& control, int rank, int preferred) {
  for (int i = -1; control.ranks() > 1 && i < control.ranks(); ++i) {
    const int to = i < 0 ? preferred : i;
    std::uint32_t sent = 0;
    if (to == rank || open_sends(control, rank, to, sent) == 0) continue;
    return fmt::format(
        "; rank {} sends to rank {}, which has not received that{}. A send and a receive of which each waits for the "
        "other go into one group (ncclGroupStart, ncclGroupEnd)",
        rank, to, described(copy_of(control.pair_signatures(rank, to).of(Direction::kSend, sent)), sent));
  }
  return "";
}

std::string LastCall::describe() const {
  if (number == 0) return "no call yet";
  return text.empty() ? fmt::format("call #{}", number) : fmt::format("call #{}, {}", number, text);
}

std::string report(Communicator& communicator) {
  const Control& control = communicator.members().control;
  const int ranks = communicator.ranks();
  const std::string& name = communicator.options().name;
  std::string text = fmt::format("communicator {}, {} ranks, seen by rank {}\n", name.empty() ? "(unnamed)" : name,
                                 ranks, communicator.rank());
  std::vector<LastCall> calls;
  std::uint32_t newest_call = 0;
  for (int r = 0; r < control.ranks(); ++r) {
    calls.push_back(last_call(control, r));
    newest_call = std::max(newest_call, calls.back().number);
  }
  for (int r = 0; r < control.ranks(); ++r) {
    const std::uint32_t behind = newest_call - calls[r].number;
    text +=
        fmt::format("rank {}: {}{}{}\n", r, calls[r].describe(), behind == 0 ? "" : fmt::format("; {} behind", behind),
                    communicator.has_left(r)    ? "; has left"
                    : communicator.has_ended(r) ? "; its process has ended"
                                                : "");
  }
  for (int from = 0; ranks > 1 && from < control.ranks(); ++from) {
    for (int to = 0; to < control.ranks(); ++to) append_open_pairs(control, from, to, text);
  }
  if (communicator.failed()) text += "failed: " + communicator.failure().message + "\n";
  return text;
}

Result<std::string> report_of(Communicator& communicator) {
  if (!communicator.is_initialised()) return communicator.not_ready();
  return report(communicator);
}

}  // namespace tutti::comm
