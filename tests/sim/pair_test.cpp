// Eager sends (protocol/pair.h) over the simulated memory: two ranks, in an order that the seed chooses, and loads that are as stale as
// C++'s memory model allows. Then the same with one mistake in what the machine does, each of which must show.
#include "protocol/pair.h"
#include "sim/memory.h"
#include "sim/random.h"

#include <catch2/catch.hpp>

#include <array>
#include <cstring>
#include <string>
#include <vector>

using namespace tutti;

namespace {

constexpr std::uint32_t kFingerprint = 0x5eed;
constexpr std::size_t kCarriedBytes = 1024;
constexpr std::uint32_t kMessages = 40;
constexpr int kSender = 0, kReceiver = 1;

enum class Mistake { kNone, kNoRelease, kNoAcquire, kRoomForOneMore, kNoRoom, kTakenEarly };

/// In the line, beside it, and now and then nothing; a line's next message goes the same way.
std::size_t length_of(std::uint32_t message) {
  constexpr std::array<std::size_t, 4> kLengths = {8, 512, 516, 1024};
  static_assert(protocol::kSendDepth % kLengths.size() == 0);
  return message % 9 == 0 ? 0 : kLengths[message % kLengths.size()];
}
std::byte byte_of(std::uint32_t message, std::size_t at) { return static_cast<std::byte>(message * 37 + at); }

class Machine {
 public:
  Machine(sim::Memory& memory, int rank, Mistake mistake) : memory_(memory), rank_(rank), mistake_(mistake) {}

  std::uint64_t load_acquire(const std::uint64_t* word) {
    return memory_.load(rank_, {}, word, mistake_ != Mistake::kNoAcquire).value;
  }
  void store_release(std::uint64_t* word, std::uint64_t value) {
    memory_.store(rank_, {}, word, value, mistake_ != Mistake::kNoRelease);
  }
  void load_bytes(void* to, const void* from, std::size_t bytes) {
    memory_.read(rank_, {}, from, bytes, static_cast<std::byte*>(to));
  }
  void store_bytes(void* to, const void* from, std::size_t bytes) { memory_.write(rank_, {}, to, from, bytes); }
  void prepare_write(const std::byte*, std::size_t) {}

 private:
  sim::Memory& memory_;
  int rank_;
  Mistake mistake_;
};

/// What one run found: nothing, or the first thing that is wrong.
class Run {
 public:
  Run(std::uint64_t seed, Mistake mistake)
      : mistake_(mistake), sender_(memory(), kSender, mistake), receiver_(memory(), kReceiver, mistake) {
    random_ = sim::Random(seed, 1);
    memory().reset(2, {seed, 128, false, true});
    const auto lines = [](std::uint32_t depth, int writer) {
      return reinterpret_cast<protocol::AnnounceLine*>(
          memory().take(depth * sizeof(protocol::AnnounceLine),
                        {sim::AreaKind::kSlots, writer, 1 - writer, 0, sizeof(protocol::AnnounceLine)}));
    };
    pair_.sends = lines(protocol::kSendDepth, kSender);
    pair_.receives = lines(protocol::kReceiveDepth, kReceiver);
    pair_.taken = reinterpret_cast<std::uint64_t*>(memory().take(64, {sim::AreaKind::kCounts, kReceiver, kSender, 0}));
    pair_.inputs = memory().take(protocol::kSendDepth * kCarriedBytes,
                                 {sim::AreaKind::kSlots, kSender, kReceiver, 0, kCarriedBytes});
    pair_.input_bytes = kCarriedBytes;
  }

  std::string outcome() {
    for (int turns = 0; received_ < kMessages; ++turns) {
      if (turns == 100000) return "no end";
      if (random_.below(2) == 0) {
        send();
      } else {
        receive();
      }
      if (memory().conflict()) return "race";
      if (!wrong_.empty()) return wrong_;
    }
    return "";
  }

 private:
  static sim::Memory& memory() {
    static sim::Memory memory;  // large: one for all
    return memory;
  }

  void send() {
    const std::uint32_t sequence = sent_ + 1;
    if (sent_ == kMessages) return;
    const std::uint32_t asked = mistake_ == Mistake::kRoomForOneMore ? sequence - 1 : sequence;
    if (mistake_ != Mistake::kNoRoom && !protocol::has_room(sender_, pair_, asked, taken_)) return;
    std::vector<std::byte> input(length_of(sequence));
    for (std::size_t i = 0; i < input.size(); ++i) input[i] = byte_of(sequence, i);
    const std::uint64_t word = protocol::announce_word(sequence, kFingerprint);
    protocol::send_eagerly(sender_, pair_, word, input.data(), input.size(), taken_);
    ++sent_;
  }

  void receive() {
    const std::uint32_t sequence = received_ + 1;
    if (!arrived_) {
      const std::uint64_t word = protocol::announced_word(receiver_, pair_.send(sequence), sequence);
      if (word == 0) return;
      arrived_ = true;
      if (mistake_ == Mistake::kTakenEarly) protocol::take(receiver_, pair_, sequence);
      if (random_.below(4) == 0) return;  // the sender may go on in between
    }
    std::vector<std::byte> output(length_of(sequence));
    protocol::receive_eagerly(receiver_, pair_, sequence, output.data(), output.size());
    for (std::size_t i = 0; i < output.size(); ++i) {
      if (output[i] != byte_of(sequence, i)) wrong_ = "message " + std::to_string(sequence) + " is wrong";
    }
    if (mistake_ != Mistake::kTakenEarly) protocol::take(receiver_, pair_, sequence);
    arrived_ = false;
    ++received_;
  }

  Mistake mistake_;
  sim::Random random_;
  Machine sender_, receiver_;
  protocol::Pair pair_;
  std::uint32_t sent_ = 0;
  std::uint32_t taken_ = 0;
  std::uint32_t received_ = 0;
  bool arrived_ = false;
  std::string wrong_;
};

/// The first seed that shows something, and what.
std::string first_finding(Mistake mistake, std::uint64_t seeds) {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const std::string found = Run(seed, mistake).outcome();
    if (!found.empty()) return "seed " + std::to_string(seed) + ": " + found;
  }
  return "";
}

}  // namespace

TEST_CASE("eager sends arrive whole, in whatever order the ranks go on", "[pair]") {
  CHECK(first_finding(Mistake::kNone, 500) == "");
}

TEST_CASE("mistakes in eager sends are found", "[pair]") {
  for (const Mistake mistake :
       {Mistake::kNoRelease, Mistake::kNoAcquire, Mistake::kRoomForOneMore, Mistake::kNoRoom, Mistake::kTakenEarly}) {
    INFO("mistake " << static_cast<int>(mistake));
    CHECK(first_finding(mistake, 500) != "");
  }
}
