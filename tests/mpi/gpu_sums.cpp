#include "gpu_sums.h"

#include "gpu.h"
#include "mpi_rank.h"
#include "watched_mpi.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tutti::test {
namespace {

/// Elements of GPU memory that begin one element behind an address that vectors like.
template <class Element>
class Numbers {
 public:
  explicit Numbers(std::size_t count) : memory_(std::vector<Element>(count + 1)) {
    note_gpu_memory(memory_.data(), (count + 1) * sizeof(Element));
  }
  ~Numbers() { note_gpu_memory(memory_.data(), 0); }
  Element* data() const { return memory_.data() + 1; }
  void write(std::vector<Element> values) const {
    values.insert(values.begin(), Element{});
    memory_.write(values);
  }
  std::vector<Element> read() const {
    std::vector<Element> values = memory_.read();
    values.erase(values.begin());
    return values;
  }

 private:
  OnGpu<Element> memory_;
};

template <class Element>
constexpr ncclDataType_t type_of() {
  if constexpr (sizeof(Element) == 1) return ncclUint8;
  return std::is_same_v<Element, float> ? ncclFloat32 : ncclInt32;
}

/// Such that sums are exact in every type.
template <class Element>
Element value_of(int rank, std::size_t i) {
  return static_cast<Element>((static_cast<std::size_t>(rank) * 7 + i * 3 + i / 251) % 31 + 1);
}

struct Traffic {
  std::size_t sent = 0;
  std::size_t received = 0;
};

/// Of one call, by the rule of the library's documentation: a part is shared out evenly, by whole elements, the last share being shorter.
class Bound {
 public:
  Bound(const SumRanks& with, std::size_t element_bytes) : with_(with), element_(element_bytes) {}

  Traffic all_reduce(std::size_t count) const {
    return over_parts(count, 1, with_.ranks, [&](std::size_t part, std::size_t own) {
      const std::size_t moved = part - own + others() * own;
      return Traffic{moved, moved};
    });
  }
  Traffic reduce(std::size_t count, bool is_root) const {
    return over_parts(count, 1, with_.ranks, [&](std::size_t part, std::size_t own) {
      return is_root ? Traffic{part - own, others() * own + part - own} : Traffic{part, others() * own};
    });
  }
  Traffic reduce_scatter(std::size_t count) const {
    const std::size_t moved = others() * count * element_;
    return {moved, moved};
  }
  Traffic broadcast(std::size_t count, bool is_root, int place) const {
    return over_parts(
        count, 1, with_.ranks - 1,
        [&](std::size_t part, std::size_t own) {
          return is_root ? Traffic{part, 0} : Traffic{(others() - 1) * own, part};
        },
        place);
  }

 private:
  std::size_t others() const { return static_cast<std::size_t>(with_.ranks) - 1; }
  template <class Of>
  Traffic over_parts(std::size_t count, std::size_t blocks, int sharers, Of&& of, int place = -1) const {
    Traffic all;
    const std::size_t most = with_.part_bytes / blocks / element_ / 256 * 256;
    const auto own = static_cast<std::size_t>(place < 0 ? with_.rank : place);
    for (std::size_t first = 0; first < count; first += most) {
      const std::size_t part = std::min(most, count - first);
      const std::size_t share = (part + static_cast<std::size_t>(sharers) - 1) / static_cast<std::size_t>(sharers);
      const Traffic one =
          of(part * element_, (std::min(part, (own + 1) * share) - std::min(part, own * share)) * element_);
      all.sent += one.sent;
      all.received += one.received;
    }
    return all;
  }

  const SumRanks& with_;
  const std::size_t element_;
};

template <class Element>
class Calls {
 public:
  Calls(const SumRanks& with, std::size_t count)
      : with_(with),
        count_(count),
        all_(count * static_cast<std::size_t>(with.ranks)),
        root_(with.ranks - 1),
        in_(all_),
        out_(all_) {}

  std::size_t run() {
    const Bound bound(with_, sizeof(Element));
    const auto sum = [](std::size_t, const std::vector<Element>& of) { return added(of); };
    const bool is_root = with_.rank == root_;
    for (const bool in_place : {false, true}) {
      add(bound.all_reduce(all_));
      reduced(ncclSum, in_place, sum, "all_reduce");
      add(bound.reduce(all_, is_root));
      reduced_to_root(in_place);
      add(bound.reduce_scatter(count_));
      scattered(in_place);
      add(bound.broadcast(all_, is_root, is_root ? 0 : with_.rank));
      broadcast(in_place);
    }
    add(bound.all_reduce(all_));
    reduced(
        ncclMax, false, [](std::size_t, const std::vector<Element>& of) { return *std::ranges::max_element(of); },
        "max");
    add(bound.all_reduce(all_));
    reduced(
        ncclAvg, true,
        [&](std::size_t, const std::vector<Element>& of) {
          return static_cast<Element>(added(of) / static_cast<Element>(with_.ranks));
        },
        "average");
    scaled(ncclScalarHostImmediate);
    add(bound.all_reduce(all_));
    add(bound.reduce_scatter(count_));
    scaled(ncclScalarDevice);
    add(bound.all_reduce(all_));
    add(bound.reduce_scatter(count_));
    grouped();
    add(bound.all_reduce(all_));
    add(bound.broadcast(all_, is_root, is_root ? 0 : with_.rank));
    add(bound.all_reduce(all_));
    overwritten();
    add(bound.reduce_scatter(count_));
    add(bound.broadcast(all_, is_root, is_root ? 0 : with_.rank));
    return bytes_;
  }

  /// In place and not, a sum and what copies it.
  void replay() {
    const Gpu& gpu = Gpu::get();
    gpu.begin_capture(with_.stream);
    check(ncclAllReduce(in_.data(), out_.data(), all_, type_, ncclSum, with_.comm, with_.stream), "all_reduce");
    check(ncclBroadcast(out_.data(), in_.data(), all_, type_, root_, with_.comm, with_.stream), "broadcast");
    check(ncclReduceScatter(in_.data(), in_.data() + own(), count_, type_, ncclSum, with_.comm, with_.stream),
          "reduce_scatter");
    CUgraph graph = gpu.end_capture(with_.stream);
    expect(graph != nullptr, "the capture was spoilt");
    CUgraphExec executable = gpu.make_executable(graph);
    for (int replay = 0; replay < 2; ++replay) {
      begin();
      gpu.launch(executable, with_.stream);
      gpu.wait(with_.stream);
      const std::vector<Element> found = in_.read();
      for (std::size_t i = 0; i < count_; ++i) {
        const auto wanted = static_cast<Element>(added(values_at(own() + i)) * static_cast<Element>(with_.ranks));
        expect(found[own() + i] == wanted, "a captured sum at " + std::to_string(i));
      }
    }
    gpu.destroy(executable);
    gpu.destroy(graph);
  }

 private:
  static Element added(const std::vector<Element>& of) {
    Element sum{};
    for (const Element one : of) sum = static_cast<Element>(sum + one);
    return sum;
  }
  std::vector<Element> values_at(std::size_t i) const {
    std::vector<Element> values;
    for (int r = 0; r < with_.ranks; ++r) values.push_back(value_of<Element>(r, i));
    return values;
  }
  std::size_t own() const { return static_cast<std::size_t>(with_.rank) * count_; }
  void add(const Traffic& traffic) { bytes_ += traffic.sent + traffic.received; }
  void begin() {
    std::vector<Element> values(all_);
    for (std::size_t i = 0; i < all_; ++i) values[i] = value_of<Element>(with_.rank, i);
    in_.write(values);
    out_.write(std::vector<Element>(all_, static_cast<Element>(kPoisoned)));
  }
  using Of = std::function<Element(std::size_t)>;
  /// What is in `of` from `first` on, and poison elsewhere if it is the output.
  void expect_values(const Numbers<Element>& of, std::size_t first, std::size_t count, const Of& wanted,
                     const std::string& what) {
    Gpu::get().wait(with_.stream);
    const std::vector<Element> found = of.read();
    for (std::size_t i = 0; i < all_; ++i) {
      const bool is_result = i >= first && i < first + count;
      if (!is_result && &of == &in_) continue;
      const Element right = is_result ? wanted(i) : static_cast<Element>(kPoisoned);
      expect(found[i] == right, what + " of " + std::to_string(all_) + " at " + std::to_string(i) + ": " +
                                    std::to_string(found[i]) + " for " + std::to_string(right));
    }
  }

  void reduced(ncclRedOp_t op, bool in_place, const std::function<Element(std::size_t, std::vector<Element>)>& of,
               const std::string& what) {
    begin();
    const Numbers<Element>& to = in_place ? in_ : out_;
    check(ncclAllReduce(in_.data(), to.data(), all_, type_, op, with_.comm, with_.stream), "all_reduce");
    expect_values(
        to, 0, all_, [&](std::size_t i) { return of(i, values_at(i)); }, what + (in_place ? " in place" : ""));
  }
  void reduced_to_root(bool in_place) {
    begin();
    const bool is_root = with_.rank == root_;
    const Numbers<Element>& to = in_place ? in_ : out_;
    check(ncclReduce(in_.data(), is_root ? to.data() : nullptr, all_, type_, ncclSum, root_, with_.comm, with_.stream),
          "reduce");
    expect_values(
        is_root ? to : out_, 0, is_root ? all_ : 0, [&](std::size_t i) { return added(values_at(i)); }, "reduce");
  }
  void scattered(bool in_place) {
    begin();
    Element* const to = in_place ? in_.data() + own() : out_.data();
    check(ncclReduceScatter(in_.data(), to, count_, type_, ncclSum, with_.comm, with_.stream), "reduce_scatter");
    const std::size_t shift = in_place ? 0 : own();
    expect_values(
        in_place ? in_ : out_, own() - shift, count_, [&](std::size_t i) { return added(values_at(i + shift)); },
        "reduce_scatter");
  }
  void broadcast(bool in_place) {
    begin();
    const Numbers<Element>& to = in_place ? in_ : out_;
    check(ncclBroadcast(in_.data(), to.data(), all_, type_, root_, with_.comm, with_.stream), "broadcast");
    expect_values(
        to, 0, all_, [&](std::size_t i) { return value_of<Element>(root_, i); }, "broadcast");
  }
  /// Each rank has a factor of its own.
  void scaled(ncclScalarResidence_t where) {
    const auto factor = static_cast<Element>(with_.rank + 2);
    const Numbers<Element> on_gpu(1);
    on_gpu.write({factor});
    Element here = factor;
    ncclRedOp_t op{};
    check(ncclRedOpCreatePreMulSum(&op, where == ncclScalarDevice ? on_gpu.data() : &here, type_, where, with_.comm),
          "ncclRedOpCreatePreMulSum");
    const auto of = [&](std::size_t i) {
      Element sum{};
      for (int r = 0; r < with_.ranks; ++r)
        sum = static_cast<Element>(sum + value_of<Element>(r, i) * static_cast<Element>(r + 2));
      return sum;
    };
    reduced(
        op, false, [&](std::size_t i, const std::vector<Element>&) { return of(i); }, "a scaled sum");
    begin();
    check(ncclReduceScatter(in_.data(), out_.data(), count_, type_, op, with_.comm, with_.stream), "reduce_scatter");
    expect_values(
        out_, 0, count_, [&](std::size_t i) { return of(i + own()); }, "a scaled reduce_scatter");
    check(ncclRedOpDestroy(op, with_.comm), "ncclRedOpDestroy");
  }
  /// One that reads what the one before it writes.
  void grouped() {
    begin();
    check(ncclGroupStart(), "ncclGroupStart");
    check(ncclAllReduce(in_.data(), out_.data(), all_, type_, ncclSum, with_.comm, with_.stream), "all_reduce");
    check(ncclBroadcast(in_.data(), in_.data(), all_, type_, root_, with_.comm, with_.stream), "broadcast");
    check(ncclAllReduce(out_.data(), out_.data(), all_, type_, ncclMin, with_.comm, with_.stream), "all_reduce");
    check(ncclGroupEnd(), "ncclGroupEnd");
    expect_values(
        in_, 0, all_, [&](std::size_t i) { return value_of<Element>(root_, i); }, "a grouped broadcast");
    expect_values(
        out_, 0, all_, [&](std::size_t i) { return added(values_at(i)); }, "a grouped sum");
  }

  /// One that writes what the one before it reads.
  void overwritten() {
    begin();
    check(ncclGroupStart(), "ncclGroupStart");
    check(ncclReduceScatter(in_.data(), out_.data(), count_, type_, ncclSum, with_.comm, with_.stream),
          "reduce_scatter");
    check(ncclBroadcast(in_.data(), in_.data(), all_, type_, root_, with_.comm, with_.stream), "broadcast");
    check(ncclGroupEnd(), "ncclGroupEnd");
    expect_values(
        out_, 0, count_, [&](std::size_t i) { return added(values_at(i + own())); }, "a sum before a broadcast");
    expect_values(
        in_, 0, all_, [&](std::size_t i) { return value_of<Element>(root_, i); }, "a broadcast after a sum");
  }

  static constexpr int kPoisoned = 251;
  static constexpr ncclDataType_t type_ = type_of<Element>();
  const SumRanks& with_;
  const std::size_t count_;
  const std::size_t all_;
  const int root_;
  const Numbers<Element> in_;
  const Numbers<Element> out_;
  std::size_t bytes_ = 0;
};

}  // namespace

std::size_t sum_everything(const SumRanks& with, std::size_t count) {
  return Calls<std::int32_t>(with, count).run() + Calls<float>(with, count).run() +
         Calls<std::uint8_t>(with, 4 * count).run();
}

void replay_sums(const SumRanks& with, std::size_t count) { Calls<std::int32_t>(with, count).replay(); }

}  // namespace tutti::test
