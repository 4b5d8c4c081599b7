// The kernels of the fake driver: what kernel_abi.h says of the library's, done on the host.
#include "world.h"

#include "base/reduce.h"
#include "cuda/kernel_abi.h"

#include <fmt/format.h>

#include <cstring>
#include <list>
#include <vector>

namespace fake_driver {
namespace {

using tutti::Collective;
using tutti::DataType;
using tutti::cuda::FoldCall;
using tutti::cuda::FoldLaunch;
using tutti::cuda::LanesLaunch;
using tutti::cuda::LinesLaunch;

/// One fused call, part by part, as the collective is defined.
class Fold {
 public:
  Fold(const FoldLaunch& launch, const FoldCall& call, DataType type) : launch_(launch), call_(call), type_(type) {}

  void run() {
    const std::uint32_t n = call_.ranks;
    switch (call_.collective) {
      case Collective::kAllReduce: return sum(0, all(), 0);
      case Collective::kReduce: return sum(0, {call_.root}, 0);
      case Collective::kReduceScatter:
        for (std::uint32_t r = 0; r < n; ++r) sum(r, {r}, 0);
        return;
      case Collective::kBroadcast:
        for (std::uint32_t r = 0; r < n; ++r) move(call_.root, 0, r, 0);
        return;
      case Collective::kAllGather:
        for (std::uint32_t r = 0; r < n * n; ++r) move(r / n, 0, r % n, r / n);
        return;
      case Collective::kAllToAll:
        for (std::uint32_t r = 0; r < n * n; ++r) move(r / n, r % n, r % n, r / n);
        return;
      case Collective::kGather:
        for (std::uint32_t r = 0; r < n; ++r) move(r, 0, call_.root, r);
        return;
      case Collective::kScatter:
        for (std::uint32_t r = 0; r < n; ++r) move(call_.root, r, r, 0);
        return;
      default: return move(call_.root, 0, call_.root, 0);
    }
  }

 private:
  std::size_t block_bytes() const { return call_.count * tutti::size_of(type_); }
  std::vector<std::uint32_t> all() const {
    std::vector<std::uint32_t> ranks(call_.ranks);
    for (std::uint32_t r = 0; r < call_.ranks; ++r) ranks[r] = r;
    return ranks;
  }
  const std::byte* input(std::uint32_t rank, std::uint32_t block) const {
    return static_cast<const std::byte*>(call_.inputs[rank]) + block * block_bytes();
  }
  std::byte* output(std::uint32_t rank, std::uint32_t block) const {
    return static_cast<std::byte*>(call_.outputs[rank]) + block * block_bytes();
  }
  void move(std::uint32_t from, std::uint32_t from_block, std::uint32_t to, std::uint32_t to_block) const {
    std::memmove(output(to, to_block), input(from, from_block), block_bytes());
  }
  void sum(std::uint32_t block, const std::vector<std::uint32_t>& to, std::uint32_t to_block) {
    std::vector<std::byte> total(block_bytes());
    std::vector<const void*> sources;
    std::vector<const void*> scales;
    std::list<std::uint64_t> factors;
    for (std::uint32_t r = 0; r < call_.ranks; ++r) {
      sources.push_back(input(r, block));
      const tutti::cuda::Factor& factor = launch_.factors[r];
      factors.push_back(factor.value);
      if (factor.is_address) {
        std::memcpy(&factors.back(), reinterpret_cast<const void*>(factor.value), tutti::size_of(type_));
      }
      scales.push_back(&factors.back());
    }
    void* destination = total.data();
    tutti::ReduceArgs args;
    args.sources = sources.data();
    args.source_count = static_cast<int>(sources.size());
    args.destinations = &destination;
    args.destination_count = 1;
    args.count = call_.count;
    args.scales = call_.scaled ? scales.data() : nullptr;
    args.divisor = call_.divisor;
    tutti::reduce_function(type_, call_.op)(args);
    for (const std::uint32_t r : to) std::memcpy(output(r, to_block), total.data(), total.size());
  }

  const FoldLaunch& launch_;
  const FoldCall& call_;
  DataType type_;
};

/// Blocks that no call has, or two calls have, are a mistake of the launch.
bool covers(const FoldLaunch& launch, unsigned blocks) {
  unsigned next = 0;
  for (std::uint32_t i = 0; i < launch.call_count; ++i) {
    if (launch.calls[i].first_block != next || launch.calls[i].block_count == 0) return false;
    next += launch.calls[i].block_count;
  }
  return next == blocks && launch.call_count <= tutti::cuda::kCallsMax;
}

Work fold(DataType type, const void* argument, unsigned blocks) {
  const auto* const launch = static_cast<const FoldLaunch*>(argument);
  if (launch->home) return fold_alone(type, launch, blocks);
  return [launch, blocks, type] {
    // A wrong grid leaves the outputs as they were, which tests see.
    if (!covers(*launch, blocks)) return true;
    for (std::uint32_t i = 0; i < launch->call_count; ++i) Fold(*launch, launch->calls[i], type).run();
    return true;
  };
}

std::vector<const void*> touched_by(const void* argument) {
  const auto* const launch = static_cast<const FoldLaunch*>(argument);
  std::vector<const void*> all;
  for (std::uint32_t i = 0; i < launch->call_count; ++i) {
    const FoldCall& call = launch->calls[i];
    all.insert(all.end(), call.inputs, call.inputs + call.ranks);
    all.insert(all.end(), call.outputs, call.outputs + call.ranks);
    for (std::uint32_t r = 0; call.scaled && r < call.ranks; ++r) {
      if (launch->factors[r].is_address) all.push_back(reinterpret_cast<const void*>(launch->factors[r].value));
    }
  }
  return all;
}

Work copy(const void* argument, unsigned) {
  const auto* const launch = static_cast<const tutti::cuda::CopyLaunch*>(argument);
  return [launch] {
    std::memmove(launch->to, launch->from, launch->bytes);
    return true;
  };
}

std::list<Kernel> make_kernels() {
  std::list<Kernel> all;
  for (int t = 0; t < tutti::kDataTypes; ++t) {
    const auto type = static_cast<DataType>(t);
    const auto name = [&](const char* kind) { return fmt::format("tutti_{}_{}", kind, tutti::name_of(type)); };
    all.push_back({name("fold"), sizeof(FoldLaunch),
                   [type](const void* argument, unsigned blocks) { return fold(type, argument, blocks); }, touched_by});
    all.push_back({name("lines"), sizeof(LinesLaunch), [type](const void* argument, unsigned blocks) {
                     return lines(type, static_cast<const LinesLaunch*>(argument), blocks);
                   }});
    all.push_back({name("lanes"), sizeof(LanesLaunch), [type](const void* argument, unsigned blocks) {
                     return lanes(type, static_cast<const LanesLaunch*>(argument), blocks);
                   }});
  }
  all.push_back({tutti::cuda::kCopyKernel, sizeof(tutti::cuda::CopyLaunch), copy});
  all.push_back({tutti::cuda::kNothingKernel, 0, [](const void*, unsigned) -> Work { return [] { return true; }; }});
  for (Kernel& kernel : trainer_kernels()) all.push_back(std::move(kernel));
  return all;
}

}  // namespace

const Kernel* find_kernel(const std::string& name) {
  static const std::list<Kernel> kernels = make_kernels();
  for (const Kernel& kernel : kernels) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

}  // namespace fake_driver
