#include "comm/device_bells.h"

#include "cuda/stream_words.h"

#include <atomic>

namespace tutti::comm {
namespace {

cuda::StreamWord store(std::uint64_t address, std::uint32_t value) { return {false, address, value}; }
cuda::StreamWord wait(std::uint64_t address) { return {true, address, 1}; }

}  // namespace

Result<std::unique_ptr<DeviceBells>> DeviceBells::open(std::shared_ptr<cuda::Device> device, std::span<std::byte> words,
                                                       std::vector<int> leaders, int rank) {
  std::unique_ptr<DeviceBells> made(new DeviceBells(device, words, std::move(leaders), rank));
  TUTTI_TRY_ASSIGN(made->registered_, cuda::SharedWords::of(device, words.data(), words.size()));
  return made;
}

cuda::FoldMembers DeviceBells::members() const {
  cuda::FoldMembers members;
  members.calls = reinterpret_cast<const cuda::StreamCall*>(address(call_at(0)));
  members.fingerprints = reinterpret_cast<const std::uint32_t*>(address(came_at(rank_, 0)));
  for (int r = 0; r < ranks_; ++r) {
    if (leaders_[static_cast<std::size_t>(r)] == rank_) members.bits |= 1u << r;
  }
  return members;
}

Status DeviceBells::begin(const cuda::AnnouncedBuffers& own, const cuda::Factor* factor, std::size_t element_bytes,
                          cuda::StreamHandle stream) const {
  std::vector<cuda::StreamWord> words;
  const std::uint64_t call = address(call_at(rank_));
  const auto store_both = [&](std::size_t at, std::uint64_t value) {
    words.push_back(store(call + at, static_cast<std::uint32_t>(value)));
    words.push_back(store(call + at + sizeof(std::uint32_t), static_cast<std::uint32_t>(value >> 32)));
  };
  store_both(offsetof(cuda::StreamCall, input), cuda::StreamCall::pack(own.own.input));
  store_both(offsetof(cuda::StreamCall, output), cuda::StreamCall::pack(own.own.output));
  const std::size_t factor_at = offsetof(cuda::StreamCall, factor);
  if (factor && factor->is_address) {
    TUTTI_TRY(cuda::copy_on_stream(*device_, reinterpret_cast<void*>(call + factor_at),
                                   reinterpret_cast<const void*>(factor->value), element_bytes, stream));
  } else if (factor) {
    store_both(factor_at, factor->value);
  }
  for (int leader = 0; leader < ranks_; ++leader) {
    if (leads(leader)) words.push_back(store(address(came_at(leader, rank_)), own.fingerprint | 1));
  }
  for (int r = 0; r < ranks_ && leads(); ++r) words.push_back(wait(address(came_at(rank_, r))));
  return cuda::give_words(*device_, words, stream);
}

Status DeviceBells::end(cuda::StreamHandle stream) const {
  std::vector<cuda::StreamWord> words;
  for (int r = 0; r < ranks_ && leads(); ++r) words.push_back(store(address(came_at(rank_, r)), 0));
  for (int r = 0; r < ranks_ && leads(); ++r) {
    if (r != rank_) words.push_back(store(address(done_at(rank_, r)), 1));
  }
  for (int leader = 0; leader < ranks_; ++leader) {
    if (!leads(leader) || leader == rank_) continue;
    words.push_back(wait(address(done_at(leader, rank_))));
    words.push_back(store(address(done_at(leader, rank_)), 0));
  }
  return words.empty() ? Status() : cuda::give_words(*device_, words, stream);
}

bool DeviceBells::has_come(int rank) const {
  for (int leader = 0; leader < ranks_; ++leader) {
    if (leads(leader) && std::atomic_ref(word(came_at(leader, rank))).load(std::memory_order_relaxed) != 0) return true;
  }
  return false;
}

bool DeviceBells::waits_for(int peer) const {
  if (!has_come(rank_)) return false;
  if (!has_come(peer)) return true;
  if (!leads(peer)) return false;
  for (int r = 0; r < ranks_; ++r) {
    if (!has_come(r)) return false;
  }
  return true;
}

void DeviceBells::let_go() const {
  for (int r = 0; r < ranks_; ++r) {
    if (leads()) std::atomic_ref(word(came_at(rank_, r))).store(1, std::memory_order_release);
    if (leads(r) && r != rank_) std::atomic_ref(word(done_at(r, rank_))).store(1, std::memory_order_release);
  }
}

}  // namespace tutti::comm
