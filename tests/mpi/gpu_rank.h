// A rank's communicator, stream and buffers on GPU memory, and messages between all ranks.
#pragma once

#include "fake_driver.h"
#include "gpu.h"
#include "mpi_rank.h"
#include "watched_mpi.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tutti::test {

class Buffer {
 public:
  explicit Buffer(const std::vector<std::uint8_t>& values) : memory_(values) {
    note_gpu_memory(memory_.data(), values.size());
  }
  ~Buffer() { note_gpu_memory(memory_.data(), 0); }
  std::uint8_t* data() const { return memory_.data(); }
  std::vector<std::uint8_t> read() const { return memory_.read(); }
  void write(const std::vector<std::uint8_t>& values) const { memory_.write(values); }

 private:
  OnGpu<std::uint8_t> memory_;
};

inline constexpr std::uint8_t kPoison = 0xa5;

inline std::uint8_t value(int from, int to, std::size_t message, std::size_t i) {
  return static_cast<std::uint8_t>(from * 31 + to * 57 + static_cast<int>(message) * 17 +
                                   static_cast<int>(i * 7 + i / 251));
}

/// Messages of one rank to another, or from it: one behind the other with odd gaps, so that most begin anywhere.
struct Layout {
  std::vector<std::size_t> sizes;
  std::vector<std::size_t> at;
  std::size_t total = 1;

  explicit Layout(std::vector<std::size_t> all) : sizes(std::move(all)) {
    for (const std::size_t bytes : sizes) {
      at.push_back(total);
      total += bytes + 3;
    }
  }
  std::vector<std::uint8_t> filled(int from, int to) const {
    std::vector<std::uint8_t> data(total, kPoison);
    for (std::size_t m = 0; m < sizes.size(); ++m) {
      for (std::size_t i = 0; i < sizes[m]; ++i) data[at[m] + i] = value(from, to, m, i);
    }
    return data;
  }
};

struct Rank {
  ncclComm_t comm = nullptr;
  int ranks = 0;
  int per_host = 1;
  CUstream stream = nullptr;
  std::size_t far_bytes = 0;  ///< sent and received

  bool is_far(int peer) const { return peer / per_host != me / per_host; }
};

inline Rank open(int per_host) {
  Rank rank;
  rank.comm = join(world, me, share_id(true), true);
  rank.ranks = world;
  rank.per_host = per_host;
  rank.stream = Gpu::get().make_stream();
  return rank;
}

inline void close(Rank& rank) {
  check(ncclCommDestroy(rank.comm), "ncclCommDestroy");
  Gpu::get().destroy(rank.stream);
}

/// Every rank with every other, all messages in one group; the receives before the sends or after them.
inline void exchange(Rank& rank, const Layout& layout, bool receives_first) {
  std::vector<std::unique_ptr<Buffer>> in, out;
  for (int peer = 0; peer < rank.ranks; ++peer) {
    in.push_back(std::make_unique<Buffer>(layout.filled(me, peer)));
    out.push_back(std::make_unique<Buffer>(std::vector<std::uint8_t>(layout.total, kPoison)));
  }
  const auto all = [&](bool receives) {
    for (int peer = 0; peer < rank.ranks; ++peer) {
      for (std::size_t m = 0; m < layout.sizes.size() && peer != me; ++m) {
        const std::size_t bytes = layout.sizes[m];
        check(receives ? ncclRecv(out[peer]->data() + layout.at[m], bytes, ncclUint8, peer, rank.comm, rank.stream)
                       : ncclSend(in[peer]->data() + layout.at[m], bytes, ncclUint8, peer, rank.comm, rank.stream),
              receives ? "ncclRecv" : "ncclSend");
        if (rank.is_far(peer)) rank.far_bytes += bytes;
      }
    }
  };
  check(ncclGroupStart(), "ncclGroupStart");
  all(receives_first);
  all(!receives_first);
  check(ncclGroupEnd(), "ncclGroupEnd");
  Gpu::get().wait(rank.stream);
  for (int peer = 0; peer < rank.ranks; ++peer) {
    if (peer != me) expect(out[peer]->read() == layout.filled(peer, me), "what came from rank " + std::to_string(peer));
  }
}

/// Calls one by one: each rank with the next one, even ranks send first.
inline void pass_on(Rank& rank, std::size_t bytes) {
  const Layout layout({bytes});
  const int next = me ^ 1;
  if (next >= rank.ranks) return;
  const Buffer in(layout.filled(me, next));
  const Buffer out(std::vector<std::uint8_t>(layout.total, kPoison));
  for (const bool sends : {me % 2 == 0, me % 2 != 0}) {
    check(sends ? ncclSend(in.data() + 1, bytes, ncclUint8, next, rank.comm, rank.stream)
                : ncclRecv(out.data() + 1, bytes, ncclUint8, next, rank.comm, rank.stream),
          "a lone call");
  }
  if (rank.is_far(next)) rank.far_bytes += 2 * bytes;
  Gpu::get().wait(rank.stream);
  expect(out.read() == layout.filled(next, me), "a lone receive of " + std::to_string(bytes));
}

inline void say_what_was_posted(std::size_t far_bytes) {
  const fake_driver::Staged staged = fake_driver::staged();
  say("posted %ld messages, %ld on the GPU, %ld bytes of %zu, %ld without a context; %llu bytes staged, %s",
      posted.messages.load(), posted.on_gpu.load(), posted.bytes.load(), far_bytes, posted.without_context.load(),
      static_cast<unsigned long long>(staged.bytes), staged.flushes != 0 ? "flushed" : "not flushed");
}

}  // namespace tutti::test
