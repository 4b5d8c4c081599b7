#include "kernel_case.h"

#include "kernel_bodies.h"
#include "lane_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

namespace tutti::cuda {
namespace {

constexpr std::byte kPoison{0xee};
constexpr std::uint32_t kFingerprint = 0xf00d;
constexpr std::size_t kAlignment = 64;

/// One rank's buffers and what it keeps.
struct Rank {
  RankHome home;
  RankState state{};
  cuda::Buffers learned{};
  FailureRecord failure{};
  std::uint64_t abort_word = 0;
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::size_t input_bytes = 0;
  std::size_t output_bytes = 0;
};

}  // namespace

Buffer::Buffer(sim::BlockMachine& machine, std::size_t bytes, std::size_t skew, std::string name)
    : memory_(std::make_unique<std::byte[]>(bytes + skew + 2 * kAlignment)), bytes_(bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.get());
  data_ = memory_.get() + (kAlignment - address % kAlignment) + skew;
  machine.add_buffer(data_, bytes, std::move(name));
}

std::string text_of(const KernelCase& c) {
  return fmt::format("{} {} {} {} ranks {} root {} count {} skew {} blocks {} x {}{}{}{}{}{}{}{}",
                     kKernelKindNames[static_cast<int>(c.kind)], name_of(c.collective), name_of(c.dtype), name_of(c.op),
                     c.ranks, c.root, c.count, c.skew, c.blocks, c.threads, c.fused ? " fused" : "",
                     c.gpus != 0 ? fmt::format(" on {} GPUs", c.gpus) : "", c.two_shot ? " two-shot" : "",
                     c.in_place ? " in place" : "", c.scaled ? " scaled" : "",
                     c.kind == KernelKind::kLanes ? fmt::format(" {}", c.algorithm) : "", c.direct ? " direct" : "");
}

namespace {

/// A case's ranks on a machine.
class Run {
 public:
  Run(const KernelCase& c, std::uint64_t seed, bool checks_races) : c_(c), machine_({seed, checks_races}) {
    if (c.kind == KernelKind::kLanes) lanes_.emplace(c, machine_);
    for (int r = 0; r < c.ranks; ++r) make_rank(r);
    for (auto& rank : ranks_) connect(*rank);
    machine_.add_buffer(stream_calls_, sizeof stream_calls_, "stream calls");
    machine_.add_buffer(fingerprints_, sizeof fingerprints_, "fingerprints");
    if (c.abort_at != 0) {
      machine_.at_pass(c.abort_at, [this] {
        for (auto& rank : ranks_) rank->abort_word = 1;
      });
    }
    if (c.overtaken_rank >= 0) let_overtake();
  }

  Outcome run() {
    for (int call = 0; call < c_.calls; ++call) add_call(call);
    Outcome outcome;
    outcome.problem = machine_.run();
    if (outcome.problem.empty()) outcome.problem = problem_;
    for (const auto& rank : ranks_) {
      outcome.failures.push_back(rank->failure);
      outcome.states.push_back(rank->state);
      outcome.output_written |=
          std::any_of(rank->output, rank->output + rank->output_bytes, [](std::byte b) { return b != kPoison; });
      outcome.oldest_flag = std::min(outcome.oldest_flag, oldest_flag(rank->home));
    }
    return outcome;
  }

 private:
  /// In what peers write.
  static std::uint64_t oldest_flag(const RankHome& home) {
    const LineMemory& memory = home.line_memory;
    std::uint64_t oldest = ~std::uint64_t{0};
    for (std::uint64_t turn = 0; turn < LineMemory::kTurns; ++turn) {
      for (std::uint32_t phase = 0; phase < LineMemory::kPhases; ++phase) {
        for (std::uint32_t sender = 0; sender < home.ranks; ++sender) {
          if (sender == home.rank) continue;
          const std::uint64_t* const words = home.lines[home.rank] + memory.at(home.ranks, turn, phase, sender);
          for (std::size_t w = 0; w < (memory.units + 1) * 2; ++w) oldest = std::min(oldest, words[w] >> 32);
        }
      }
    }
    return oldest;
  }
  std::size_t block_bytes() const { return c_.count * size_of(c_.dtype); }
  std::byte* make_buffer(Rank& rank, std::size_t bytes, std::size_t skew, const char* name) {
    rank.buffers.push_back(
        std::make_unique<Buffer>(machine_, bytes, skew, fmt::format("rank {}'s {}", ranks_.size(), name)));
    return rank.buffers.back()->data();
  }
  template <class T>
  T* make_words(Rank& rank, std::size_t bytes, const char* name) {
    return reinterpret_cast<T*>(make_buffer(rank, bytes, 0, name));
  }

  void make_rank(int r) {
    auto rank = std::make_unique<Rank>();
    const auto ranks = static_cast<std::uint32_t>(c_.ranks);
    rank->home.rank = static_cast<std::uint32_t>(r);
    rank->home.ranks = ranks;
    rank->home.abort_word = &rank->abort_word;
    rank->home.failure = &rank->failure;
    rank->home.state = &rank->state;
    rank->home.learned = &rank->learned;
    rank->state.announced_sequence = rank->state.lines_sequence = c_.first_sequence;
    const std::size_t message = c_.two_shot ? lines_share_bytes(block_bytes(), ranks) : block_bytes();
    rank->home.line_memory.units = static_cast<std::uint32_t>((message + 7) / 8 + 3);
    rank->home.boards[r] = make_words<protocol::AnnounceLine>(*rank, board_bytes(ranks), "board");
    rank->home.closings[r] = make_words<std::uint64_t>(*rank, closing_bytes(ranks), "closings");
    rank->home.lines[r] = make_words<std::uint64_t>(*rank, rank->home.line_memory.bytes(ranks), "lines");
    machine_.add_buffer(&rank->state, sizeof rank->state, "state");
    machine_.add_buffer(&rank->learned, sizeof rank->learned, "learned");
    make_user_buffers(*rank, r);
    ranks_.push_back(std::move(rank));
  }
  void make_user_buffers(Rank& rank, int r) {
    rank.input_bytes = input_block_count(c_, r) * block_bytes();
    rank.output_bytes = output_block_count(c_, r) * block_bytes();
    if (!c_.in_place || rank.input_bytes == 0 || rank.output_bytes == 0) {
      if (rank.input_bytes != 0) rank.input = make_buffer(rank, rank.input_bytes, c_.skew, "input");
      if (rank.output_bytes != 0) rank.output = make_buffer(rank, rank.output_bytes, c_.skew, "output");
    } else {
      std::byte* const both = make_buffer(rank, std::max(rank.input_bytes, rank.output_bytes), c_.skew, "buffer");
      const std::size_t own = static_cast<std::size_t>(r) * block_bytes();
      rank.input = both + (rank.input_bytes < rank.output_bytes ? own : 0);
      rank.output = both + (rank.output_bytes < rank.input_bytes ? own : 0);
    }
    if (rank.output) std::fill_n(rank.output, rank.output_bytes, kPoison);
  }
  void connect(Rank& rank) {
    for (const auto& peer : ranks_) {
      const std::uint32_t p = peer->home.rank;
      if (c_.knows_neighbours && !are_neighbours(rank.home.rank, p)) continue;
      rank.home.boards[p] = peer->home.boards[p];
      rank.home.closings[p] = peer->home.closings[p];
      rank.home.lines[p] = peer->home.lines[p];
    }
  }

  /// In the ring of ranks.
  bool are_neighbours(std::uint32_t a, std::uint32_t b) const {
    const auto ranks = static_cast<std::uint32_t>(c_.ranks);
    return a == b || (a + 1) % ranks == b || (b + 1) % ranks == a;
  }

  void let_overtake() {
    const RankHome& home = ranks_[static_cast<std::size_t>(c_.overtaken_rank)]->home;
    const std::uint64_t sequence = c_.first_sequence + 1;
    const std::uint64_t* const header = home.lines[home.rank] + home.line_memory.at(home.ranks, sequence, 0, 0);
    machine_.hold_looks(header, [this, header, sequence] {
      looks_for_lines_ = true;
      return header[0] >> 32 == sequence && header[1] >> 32 == sequence;
    });
    machine_.add_launch(0, {1, 1}, 0, [this](sim::BlockThread& t, void*) {
      while (!looks_for_lines_) t.pause();
    });
  }

  // Calls.

  void add_call(int call) {
    const bool fused = c_.fused;
    for (int r = 0; r < c_.ranks; ++r) {
      const std::size_t stream = fused ? 0 : static_cast<std::size_t>(r);
      add_fill(stream, call, r);
      if (!fused && r != c_.silent_rank) add_kernel(stream, r, call);
    }
    if (fused) add_kernel(0, 0, call);
    if (c_.odd_rank >= 0 || c_.abort_at != 0) return;
    for (int r = 0; r < c_.ranks; ++r) add_check(fused ? 0 : static_cast<std::size_t>(r), call, r);
  }
  /// What the rank's stream does before the call.
  void add_fill(std::size_t stream, int call, int r) {
    auto bytes = std::make_shared<std::vector<std::byte>>();
    for (std::uint32_t b = 0; b < input_block_count(c_, r); ++b) {
      const auto block = input_block(c_, call, r, b);
      bytes->insert(bytes->end(), block.begin(), block.end());
    }
    machine_.add_launch(stream, {1, 32}, 0, [this, r, bytes](sim::BlockThread& t, void*) {
      const Rank& rank = *ranks_[static_cast<std::size_t>(r)];
      for (std::size_t i = t.index(); i < rank.output_bytes; i += t.count()) t.store(rank.output + i, kPoison);
      t.sync();
      for (std::size_t i = t.index(); i < rank.input_bytes; i += t.count()) t.store(rank.input + i, (*bytes)[i]);
    });
  }
  void add_check(std::size_t stream, int call, int r) {
    auto expected = std::make_shared<std::vector<std::byte>>(expected_output(c_, call, r));
    machine_.add_launch(stream, {1, 1}, 0, [this, call, r, expected](sim::BlockThread& t, void*) {
      const Rank& rank = *ranks_[static_cast<std::size_t>(r)];
      for (std::size_t i = 0; i < expected->size() && problem_.empty(); ++i) {
        const std::byte found = t.load(rank.output + i);
        if (found == (*expected)[i]) continue;
        problem_ =
            fmt::format("call {} rank {}: byte {} (element {}) is {:#04x}, not {:#04x}", call, r, i,
                        i / size_of(c_.dtype), static_cast<unsigned>(found), static_cast<unsigned>((*expected)[i]));
      }
    });
  }

  Factor factor(int r) const { return {factor_bits(c_, r), false}; }
  std::int32_t divisor() const { return c_.op == ReduceOp::kAverage ? c_.ranks : 0; }
  ReduceOp op() const { return c_.op == ReduceOp::kAverage ? ReduceOp::kSum : c_.op; }
  std::uint32_t fingerprint(int r) const { return r == c_.odd_rank ? kFingerprint + 2 : kFingerprint; }
  AnnouncedBuffers announced(int r) const {
    const Rank& rank = *ranks_[static_cast<std::size_t>(r)];
    AnnouncedBuffers made;
    made.own.input.offset = reinterpret_cast<std::uint64_t>(rank.input);
    made.own.output.offset = reinterpret_cast<std::uint64_t>(rank.output);
    made.fingerprint = fingerprint(r);
    return made;
  }
  void add_kernel(std::size_t stream, int r, int call) {
    if (c_.overtaken_rank >= 0 && call > 0) return add_lines(stream, r);
    const KernelKind kind = r == c_.odd_rank ? c_.odd_kind.value_or(c_.kind) : c_.kind;
    if (kind == KernelKind::kFold) return add_fold(stream, r);
    if (kind == KernelKind::kLines) return add_lines(stream, r);
    add_lanes(stream, r);
  }
  void add_fold(std::size_t stream, int r) {
    FoldLaunch launch;
    launch.home = c_.fused ? nullptr : &ranks_[static_cast<std::size_t>(r)]->home;
    launch.call_count = c_.calls_in_launch;
    launch.announced = announced(r);
    for (std::uint32_t k = 0; k < c_.calls_in_launch; ++k) fill_call(launch, k, r);
    const sim::GridShape grid{c_.blocks * c_.calls_in_launch, c_.threads};
    const auto add = [&](const sim::GridShape& shape) {
      machine_.add_launch(stream, shape, fold_shared_bytes(), fold_body(c_.dtype, launch));
    };
    if (c_.gpus == 0) return add(grid);
    add_begin(stream, r);
    if (leads(r)) {
      launch.members = {0, true, stream_calls_, fingerprints_[r]};
      for (int p = r; p < c_.ranks; p += c_.gpus) launch.members.bits |= 1u << p;
      add({1, c_.threads});
      launch.members.learns = false;
      add(grid);
    }
    add_end(stream, r);
  }
  /// As the host orders the ranks' streams (src/comm/device_bells.h).
  bool leads(int r) const { return r < c_.gpus; }
  void add_begin(std::size_t stream, int r) {
    machine_.add_launch(stream, {1, 1}, 0, [this, r](sim::BlockThread& t, void*) {
      const AnnouncedBuffers own = announced(r);
      StreamCall& call = stream_calls_[r];
      const auto store = [&](std::uint32_t(&halves)[2], std::uint64_t word) {
        t.store(&halves[0], static_cast<std::uint32_t>(word));
        t.store(&halves[1], static_cast<std::uint32_t>(word >> 32));
      };
      store(call.input, StreamCall::pack(own.own.input));
      store(call.output, StreamCall::pack(own.own.output));
      store(call.factor, factor(r).value);
      for (int l = 0; l < c_.gpus; ++l) {
        t.store(&fingerprints_[l][r], own.fingerprint | 1);
        t.store_release(&came_[l][r], 1);
      }
      for (int p = 0; p < c_.ranks && leads(r) && c_.unmet != 0; ++p) wait_for(t, came_[r][p]);
    });
  }
  void add_end(std::size_t stream, int r) {
    machine_.add_launch(stream, {1, 1}, 0, [this, r](sim::BlockThread& t, void*) {
      for (int p = 0; p < c_.ranks && leads(r); ++p) {
        if (p != r) t.store_release(&done_[r][p], 1);
      }
      for (int l = 0; l < c_.gpus && c_.unmet != 1; ++l) {
        if (l != r) wait_for(t, done_[l][r]);
      }
    });
  }
  static void wait_for(sim::BlockThread& t, std::uint64_t& word) {
    while (t.load_acquire(&word) == 0) t.pause();
    t.store_release(&word, 0);
  }
  /// The k-th part of the elements, the last one being the longest.
  void fill_call(FoldLaunch& launch, std::uint32_t k, int r) {
    const std::uint64_t part = c_.count / c_.calls_in_launch;
    const std::size_t offset = k * part * size_of(c_.dtype);
    FoldCall& call = launch.calls[k];
    call.collective = c_.collective;
    call.op = op();
    call.scaled = c_.scaled;
    call.root = static_cast<std::uint32_t>(c_.root);
    call.divisor = divisor();
    call.ranks = static_cast<std::uint32_t>(c_.ranks);
    call.first_block = k * c_.blocks;
    call.block_count = c_.blocks;
    call.count = k + 1 == c_.calls_in_launch ? c_.count - k * part : part;
    for (int p = 0; p < c_.ranks; ++p) {
      if (!c_.fused && p != r) continue;
      const Rank& rank = *ranks_[static_cast<std::size_t>(p)];
      call.inputs[p] = rank.input ? rank.input + offset : nullptr;
      call.outputs[p] = rank.output ? rank.output + offset : nullptr;
      launch.factors[p] = factor(p);
    }
  }
  void add_lines(std::size_t stream, int r) {
    LinesLaunch launch;
    launch.launch_ranks = c_.fused ? static_cast<std::uint32_t>(c_.ranks) : 1;
    launch.blocks_per_rank = c_.blocks;
    launch.collective = c_.collective;
    launch.op = op();
    launch.two_shot = c_.two_shot;
    launch.scaled = c_.scaled;
    launch.root = static_cast<std::uint32_t>(c_.root);
    launch.divisor = divisor();
    launch.fingerprint = fingerprint(r);
    launch.count = c_.count;
    for (std::uint32_t k = 0; k < launch.launch_ranks; ++k) {
      const Rank& rank = *ranks_[c_.fused ? k : static_cast<std::size_t>(r)];
      launch.homes[k] = &rank.home;
      launch.inputs[k] = rank.input;
      launch.outputs[k] = rank.output;
      launch.factors[k] = factor(static_cast<int>(rank.home.rank));
    }
    machine_.add_launch(stream, {launch.launch_ranks * c_.blocks, c_.threads}, 16, lines_body(c_.dtype, launch));
  }
  void add_lanes(std::size_t stream, int r) {
    LanesLaunch launch;
    const auto rank = static_cast<std::size_t>(r);
    launch.launch_ranks = c_.fused ? static_cast<std::uint32_t>(c_.ranks) : 1;
    for (std::uint32_t k = 0; k < launch.launch_ranks; ++k) {
      const int member = c_.fused ? static_cast<int>(k) : r;
      launch.homes[k] = &ranks_[static_cast<std::size_t>(member)]->home;
      launch.lanes[k] = lanes_->homes(member);
      launch.programs[k] = lanes_->programs(member);
    }
    launch.blocks_per_rank = lanes_->blocks_per_rank();
    launch.rows = c_.rows;
    launch.direct = c_.direct;
    launch.lines = c_.lines;
    launch.wide_wire = c_.wide_wire;
    launch.announces = (c_.direct || c_.announces) && !c_.fused;
    launch.scaled = c_.scaled;
    launch.op = op();
    launch.divisor = divisor();
    launch.tiling = lanes_->tiling();
    launch.slot_shape = lanes_->slots();
    launch.line_shape = lanes_->line_shape();
    launch.announced = announced(r);
    for (std::size_t p = 0; p < ranks_.size(); ++p) {
      if (!c_.fused && p != rank) continue;
      launch.inputs[p] = ranks_[p]->input;
      launch.outputs[p] = ranks_[p]->output;
      launch.factors[p] = factor(static_cast<int>(p));
    }
    machine_.add_launch(stream, {launch.launch_ranks * launch.blocks_per_rank, c_.threads}, lanes_shared_bytes(),
                        lanes_body(c_.dtype, launch));
  }

  const KernelCase& c_;
  sim::BlockMachine machine_;
  std::optional<LaneSetup> lanes_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  // By rank, and by leader and rank.
  StreamCall stream_calls_[kRanksMax];
  std::uint32_t fingerprints_[kRanksMax][kRanksMax] = {};
  std::uint64_t came_[kRanksMax][kRanksMax] = {};
  std::uint64_t done_[kRanksMax][kRanksMax] = {};
  bool looks_for_lines_ = false;  ///< the rank that is overtaken does
  std::string problem_;
};

}  // namespace

Outcome run_case(const KernelCase& c, std::uint64_t seed, bool checks_races) {
  return Run(c, seed, checks_races).run();
}

}  // namespace tutti::cuda
