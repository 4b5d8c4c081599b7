// How fast the reduction kernels are, for each instruction set, data type, operation, number of sources and size.
// bytes_per_second counts every source read once and the destination written once.
// Examples: reduce-bench --benchmark_filter='avx2/bfloat16/sum/sources:2'
//           reduce-bench table     sums and copies of all types beside each other, with the ratio to float32

#include "base/reduce_variants.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

namespace {

using namespace tutti;

/// Ordinary numbers between 1 and 2 in every float type: no NaN or subnormal, whose speed may differ.
void fill(std::vector<unsigned char>& buffer, DataType type) {
  const std::size_t size = size_of(type);
  const bool five_bit_exponent = type == DataType::kFloat16 || type == DataType::kFloat8e5m2;
  const unsigned char top = type == DataType::kFloat8e4m3 ? 0x38 : five_bit_exponent ? 0x3c : 0x3f;
  const unsigned char below = size == 2 ? 0x81 : 0xf1;
  for (std::size_t i = 0; i < buffer.size(); ++i) {
    const std::size_t place = size - 1 - i % size;  // 0: the most significant byte
    buffer[i] = place == 0 ? top : place == 1 ? below : static_cast<unsigned char>(i);
  }
}

constexpr std::size_t kBytes[] = {std::size_t{8} << 10, std::size_t{128} << 10, std::size_t{4} << 20,
                                  std::size_t{64} << 20};

void reduce_one(benchmark::State& state, ReduceVariant variant, DataType type, ReduceOp op, int sources,
                std::size_t bytes) {
  std::vector<std::vector<unsigned char>> buffers(sources + 1, std::vector<unsigned char>(bytes));
  std::vector<const void*> inputs;
  for (int s = 0; s < sources; ++s) {
    fill(buffers[s], type);
    inputs.push_back(buffers[s].data());
  }
  void* output = buffers[sources].data();
  ReduceArgs args;
  args.sources = inputs.data();
  args.source_count = sources;
  args.destinations = &output;
  args.destination_count = 1;
  args.count = bytes / size_of(type);
  const ReduceFunction function = reduce_function_of(variant, type, op);
  for (auto _ : state) {
    function(args);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * bytes * (sources + 1)));
}

/// Whether the variant's sums of the type are not just those of the variant before it.
bool is_own(ReduceVariant variant, DataType type) {
  if (variant <= ReduceVariant::kAvx512) return true;
  const auto before = static_cast<ReduceVariant>(static_cast<int>(variant) - 1);
  return reduce_function_of(variant, type, ReduceOp::kSum) != reduce_function_of(before, type, ReduceOp::kSum);
}

void register_all() {
  constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMax, ReduceOp::kMin};
  for (int v = 0; v < kReduceVariants; ++v) {
    const auto variant = static_cast<ReduceVariant>(v);
    if (!is_usable(variant)) continue;
    for (int t = 0; t < kDataTypes; ++t) {
      const auto type = static_cast<DataType>(t);
      if (!is_own(variant, type)) continue;
      for (const ReduceOp op : kOps) {
        for (const int sources : {1, 2, 4, 8}) {
          for (const std::size_t bytes : kBytes) {
            const std::string name = std::string(name_of(variant)) + "/" + std::string(name_of(type)) + "/" +
                                     std::string(name_of(op)) + "/sources:" + std::to_string(sources) + "/" +
                                     std::to_string(bytes >> 10) + "KiB";
            benchmark::RegisterBenchmark(name.c_str(), reduce_one, variant, type, op, sources, bytes);
          }
        }
      }
    }
  }
}

// ---- The table

/// Buffers for all rows: bytes that are ordinary numbers in every type.
struct Buffers {
  static constexpr int kSources = 8;
  static constexpr std::size_t kPage = 4096;
  std::vector<unsigned char> memory[kSources + 2];
  const void* sources[kSources];
  void* destinations[2];

  Buffers() {
    for (auto& buffer : memory) {
      buffer.resize(kBytes[std::size(kBytes) - 1] + kPage);
      for (std::size_t i = 0; i < buffer.size(); ++i) buffer[i] = static_cast<unsigned char>(0x3b + i % 3);
    }
    for (int s = 0; s < kSources; ++s) sources[s] = page_of(memory[s]);
    for (int d = 0; d < 2; ++d) destinations[d] = page_of(memory[kSources + d]);
  }
  static unsigned char* page_of(std::vector<unsigned char>& buffer) {
    return buffer.data() + -reinterpret_cast<std::uintptr_t>(buffer.data()) % kPage;
  }
};

/// One way to do something, and its samples.
struct Row {
  std::string name;
  ReduceFunction function = nullptr;  // null: memcpy
  ReduceArgs args;
  std::size_t bytes = 0;  // of a buffer
  std::vector<double> seconds;

  void call() const {
    if (function == nullptr) {
      std::memcpy(args.destinations[0], args.sources[0], bytes);
    } else {
      function(args);
    }
    benchmark::ClobberMemory();
  }
  void sample() {
    using Clock = std::chrono::steady_clock;
    const std::size_t calls = std::max<std::size_t>(1, (std::size_t{16} << 20) / (bytes * args.source_count));
    call();
    const auto begin = Clock::now();
    for (std::size_t i = 0; i < calls; ++i) call();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count() / static_cast<double>(calls));
  }
  /// The median's; every buffer counts once.
  double gigabytes_per_second() {
    std::sort(seconds.begin(), seconds.end());
    const int buffers = args.source_count + args.destination_count;
    return static_cast<double>(bytes) * buffers / seconds[seconds.size() / 2] / 1e9;
  }
};

Row make_row(Buffers& buffers, ReduceVariant variant, DataType type, int sources, int destinations, int streamed,
             std::size_t bytes) {
  Row row;
  row.name = std::string(name_of(type)) + (streamed > 0 ? ", streamed" : "");
  row.function = reduce_function_of(variant, type, ReduceOp::kSum);
  row.args.sources = buffers.sources;
  row.args.source_count = sources;
  row.args.destinations = buffers.destinations;
  row.args.destination_count = destinations;
  row.args.count = bytes / size_of(type);
  row.args.streamed_count = streamed;
  row.bytes = bytes;
  return row;
}

/// The rows of one block at one size, sampled in turn; the first one is what the others are compared with.
std::vector<Row> measure(Buffers& buffers, ReduceVariant variant, int sources, int destinations, std::size_t bytes) {
  std::vector<Row> rows;
  const auto add = [&](DataType type, int streamed) {
    rows.push_back(make_row(buffers, variant, type, sources, destinations, streamed, bytes));
  };
  add(DataType::kFloat32, 0);
  if (sources <= 2) add(DataType::kFloat32, destinations);
  if (sources == 1) {
    rows[0].name = "copy";
    rows[1].name = "copy, streamed";
    rows.insert(rows.begin(), rows[0]);
    rows[0].name = "memcpy";
    rows[0].function = nullptr;
  } else if (destinations == 1) {
    for (int t = 0; t < kDataTypes; ++t) {
      const auto type = static_cast<DataType>(t);
      if (type != DataType::kFloat32 && is_own(variant, type)) add(type, 0);
    }
  }
  constexpr int kRounds = 7;
  for (int round = 0; round < kRounds; ++round) {
    for (Row& row : rows) row.sample();
  }
  return rows;
}

void print_block(Buffers& buffers, ReduceVariant variant, int sources, int destinations) {
  std::printf("\n%s, sources: %d, destinations: %d, GB/s (over the first row)\n%-20s",
              std::string(name_of(variant)).c_str(), sources, destinations, "bytes of a buffer");
  std::vector<std::vector<Row>> columns;
  for (const std::size_t bytes : kBytes) {
    std::printf("%13zu KiB ", bytes >> 10);
    columns.push_back(measure(buffers, variant, sources, destinations, bytes));
  }
  for (std::size_t r = 0; r < columns[0].size(); ++r) {
    std::printf("\n%-20s", columns[0][r].name.c_str());
    for (auto& column : columns) {
      const double speed = column[r].gigabytes_per_second();
      std::printf("%9.1f (%.2f) ", speed, speed / column[0].gigabytes_per_second());
    }
  }
  std::printf("\n");
  std::fflush(stdout);
}

void print_table() {
  Buffers buffers;
  for (int v = kReduceVariants - 1; v >= 0; --v) {
    const auto variant = static_cast<ReduceVariant>(v);
    if (!is_usable(variant)) continue;
    for (const int sources : {1, 2, 4, 8}) {
      if (variant == ReduceVariant::kAvx512Half ? sources == 2 : sources > 1 || variant != ReduceVariant::kAvx512Whole)
        print_block(buffers, variant, sources, 1);
    }
    if (variant != ReduceVariant::kAvx512Whole) print_block(buffers, variant, 2, 2);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "table") == 0) {
    print_table();
    return 0;
  }
  register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
