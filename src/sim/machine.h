// The Sim machine: the vocabulary of src/protocol over a simulated memory. Every operation is a moment at which another rank may
// go on instead.
#pragma once

#include "base/reduce.h"
#include "sim/fiber.h"
#include "sim/simulation.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tutti::sim {

class Machine {
 public:
  /// One rank's. Both outlive it.
  Machine(Simulation& simulation, Fiber& fiber, int rank) : sim_(simulation), fiber_(fiber), rank_(rank) {}

  void set_reduce(ReduceFunction reduce, std::size_t element_bytes) {
    reduce_ = reduce;
    element_bytes_ = element_bytes;
  }
  /// For whoever explains a run that is over: loads return the newest value, and nothing else happens.
  void set_quiet() { quiet_ = true; }

  std::uint64_t load_acquire(const std::uint64_t* word);
  void store_release(std::uint64_t* word, std::uint64_t value);
  std::uint64_t load_word(const std::uint64_t* word);
  void store_word(std::uint64_t* word, std::uint64_t value);
  void load_bytes(void* to, const void* from, std::size_t bytes);
  void store_bytes(void* to, const void* from, std::size_t bytes);
  void prepare_write(const std::byte*, std::size_t) {}
  void reduce(const ReduceArgs& args);
  bool read_remote(std::uint32_t peer, std::uint64_t address, std::byte* local, std::size_t bytes);
  bool write_remote(std::uint32_t peer, std::uint64_t address, const void* local, std::size_t bytes);
  std::byte* staging(std::size_t index, std::size_t bytes);
  bool aborted();
  /// The rank can do nothing until a word changes.
  void pause();

 private:
  /// Far more than it takes to come out of what a rank is in.
  static constexpr std::uint32_t kOperationsAfterEndMax = 20000;

  bool begin();
  bool copy(const void* from, void* to, std::size_t bytes, const char* verb);
  std::byte* view(std::size_t i, std::size_t bytes);
  bool peer_lives(std::uint32_t peer);
  Memory::Loaded load(const std::uint64_t* word, bool acquire);
  void store(std::uint64_t* word, std::uint64_t value, bool release);
  enum class Word : std::uint8_t { kTail, kHead, kAnnounce, kOther };
  Word kind_of(const std::uint64_t* word) const;
  std::uint64_t mistaken(const std::uint64_t* word, Word kind, std::uint64_t value);
  const std::uint64_t* announced_by(int rank, const std::uint64_t* word, std::size_t turns_before) const;
  bool looks_for_room() const { return position().phase == Phase::kRoom; }
  bool has(Fault fault) const { return sim_.options().fault == fault; }
  std::string name_of(const void* where, std::size_t bytes) const;
  void note(const std::string& what) { sim_.note(rank_, what); }
  Position position() const { return sim_.position(rank_); }

  Simulation& sim_;
  Fiber& fiber_;
  int rank_;
  ReduceFunction reduce_ = nullptr;
  std::size_t element_bytes_ = 1;
  bool quiet_ = false;
  std::uint32_t after_the_end_ = 0;
  bool saw_stale_ = false;  ///< since the last pause: looking again may help
  std::vector<std::vector<std::byte>> tiles_;
  std::vector<std::vector<std::byte>> views_;  ///< what sources look like to this rank, and sums
  std::vector<void*> view_pointers_;
};

}  // namespace tutti::sim
