#include "comm/device_bells.h"

#include <atomic>
#include <vector>

namespace tutti::comm {

Result<std::unique_ptr<DeviceBells>> DeviceBells::open(std::shared_ptr<cuda::Device> device, std::span<std::byte> words,
                                                       int ranks, int rank) {
  std::unique_ptr<DeviceBells> made(new DeviceBells(device, words, ranks, rank));
  TUTTI_TRY_ASSIGN(made->registered_, cuda::SharedWords::of(device, words.data(), words.size()));
  return made;
}

Status DeviceBells::meet(Point point, cuda::StreamHandle stream) const {
  std::vector<cuda::StreamWord> words;
  const auto address = [&](int from, int to) {
    return registered_.address() + index(point, from, to) * sizeof(std::uint32_t);
  };
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer != rank_) words.push_back({false, address(rank_, peer), 1});
  }
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_) continue;
    words.push_back({true, address(peer, rank_), 1});
    words.push_back({false, address(peer, rank_), 0});
  }
  return cuda::give_words(*device_, words, stream);
}

bool DeviceBells::waits_for(int peer) const {
  auto* const words = reinterpret_cast<std::uint32_t*>(words_.data());
  const auto is_set = [&](Point point, int from, int to) {
    return std::atomic_ref(words[index(point, from, to)]).load(std::memory_order_relaxed) != 0;
  };
  const auto waits_at = [&](Point point) { return is_set(point, rank_, peer) && !is_set(point, peer, rank_); };
  return waits_at(Point::kOpen) || waits_at(Point::kClose);
}

void DeviceBells::let_go() const {
  auto* const words = reinterpret_cast<std::uint32_t*>(words_.data());
  for (const Point point : {Point::kOpen, Point::kClose}) {
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer != rank_) std::atomic_ref(words[index(point, peer, rank_)]).store(1, std::memory_order_release);
    }
  }
}

}  // namespace tutti::comm
