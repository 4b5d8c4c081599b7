#include "sim/fault.h"

#include <algorithm>
#include <iterator>

namespace tutti::sim {
namespace {

constexpr std::uint32_t bit(Protocol p) { return 1u << static_cast<unsigned>(p); }
constexpr std::uint32_t kSlots = bit(Protocol::kSlots);
constexpr std::uint32_t kLines = bit(Protocol::kLines);
constexpr std::uint32_t kDirect = bit(Protocol::kDirect) | bit(Protocol::kSingleCopy);
constexpr std::uint32_t kAnnounce = bit(Protocol::kAnnounce);
constexpr std::uint32_t kAnnounced = kDirect | kAnnounce;

// A head without release or acquire is no mistake that lines show here: the words that it lets be overwritten are read by loads
// that cannot return what is stored later, in this machine. docs/testing.md says so.
constexpr FaultRow kRows[] = {
    {Fault::kTailWithoutRelease, "tail-without-release", "missing release: the tail is stored relaxed",
     kSlots | kDirect},
    {Fault::kHeadWithoutRelease, "head-without-release", "missing release: the head is stored relaxed",
     kSlots | kDirect},
    {Fault::kAnnounceWithoutRelease, "announce-without-release", "missing release: the announce word is stored relaxed",
     kAnnounced},
    {Fault::kTailWithoutAcquire, "tail-without-acquire", "missing acquire: the tail is loaded relaxed",
     kSlots | kDirect},
    {Fault::kHeadWithoutAcquire, "head-without-acquire", "missing acquire: the head is loaded relaxed",
     kSlots | kDirect},
    {Fault::kAnnounceWithoutAcquire, "announce-without-acquire", "missing acquire: the announce word is loaded relaxed",
     kAnnounced},
    {Fault::kTailAhead, "tail-ahead", "missing wait: the receiver believes in one message more than was sent",
     kSlots | kDirect},
    {Fault::kAnnounceAhead, "announce-ahead", "missing wait: every announce word seems to be that of this call",
     kAnnounced},
    {Fault::kCreditTooMany, "credit-too-many", "wrong credit: the sender believes in one free slot more than there is",
     kSlots | kLines},
    {Fault::kLineFlagEarly, "line-flag-early",
     "flag reused one epoch early: a line's flag equals that of the line before "
     "it in its slot",
     kLines},
    {Fault::kAnnounceFlagEarly, "announce-flag-early",
     "flag reused one epoch early: every call announces in the same line instead of several by turns", kAnnounced},
    {Fault::kRoomWithoutAcquire, "room-without-acquire",
     "missing acquire: who waits for room to announce loads the others' words relaxed", kAnnounce},
    {Fault::kRoomAhead, "room-ahead", "missing wait: a rank announces without looking whether its line is still read",
     kAnnounce},
    {Fault::kRoomTooMuch, "room-too-much", "wrong credit: a rank announces one line sooner than the others allow",
     kAnnounce},
    {Fault::kNoDrain, "no-drain", "overwrite under a reader: a call ends before its pulled data is read", kDirect},
};
constexpr FaultRow kNoRow{Fault::kNone, "none", "the protocol as it is", 0};

}  // namespace

std::span<const FaultRow> faults() { return kRows; }

const FaultRow& row_of(Fault fault) {
  const auto* const found =
      std::find_if(std::begin(kRows), std::end(kRows), [&](const FaultRow& r) { return r.fault == fault; });
  return found == std::end(kRows) ? kNoRow : *found;
}

std::optional<Fault> fault_named(std::string_view name) {
  if (name == kNoRow.name) return Fault::kNone;
  const auto* const found =
      std::find_if(std::begin(kRows), std::end(kRows), [&](const FaultRow& r) { return r.name == name; });
  if (found == std::end(kRows)) return std::nullopt;
  return found->fault;
}

bool applies(Fault fault, Protocol protocol) {
  return (row_of(fault).protocols >> static_cast<unsigned>(protocol) & 1) != 0;
}

}  // namespace tutti::sim
