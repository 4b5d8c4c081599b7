// Prints the tables of docs/numerics.md: how far sums are off, by algorithm, type, operation and rank count. All of it is
// computed here and now, on the library's schedules and kernels; nothing depends on the machine.
#include "samples.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace tutti;
using namespace tutti::numbers;

constexpr char kUsage[] =
    "error-table paths [RANKS...]       how often an input is added and rounded on its way, counted from the "
    "schedules\n"
    "error-table sums TYPE [RANKS...]   relative RMS error of sums\n"
    "error-table types RANKS            the same of all types\n"
    "error-table operations TYPE RANKS  all operations\n"
    "error-table ring                   what a bfloat16 ring of 1024 ranks loses of positive sums\n"
    "error-table wire TYPE [RANKS...]   sums with a float32 wire\n";

constexpr std::uint64_t kSeed = 3;

/// So many results that their mean square is known to a percent or so.
constexpr std::uint64_t kElements = 2048;

Error error(const algorithm::Algorithm& row, const FloatType& type, Operation operation, Data data, int ranks,
            bool wide_wire = false) {
  Sample sample{&type, operation, data, {collective_of(row), ranks, 0, 0}, kElements, kSeed};
  sample.wide_wire = wide_wire;
  return simulated_error(row, sample).error;
}

std::string label(const algorithm::Algorithm& row) {
  return std::string(name_of(collective_of(row))) + " " + std::string(row.name);
}

/// One row for each way to add: the others of the same name do the same with the same inputs.
std::vector<const algorithm::Algorithm*> different_rows() {
  std::vector<const algorithm::Algorithm*> rows;
  for (const algorithm::Algorithm* row : reducing_rows()) {
    if (collective_of(*row) == Collective::kAllReduce || row->name == "binomial") rows.push_back(row);
  }
  return rows;
}

void print_head(const char* first, const std::vector<int>& ranks, int width) {
  std::printf("%-32s", first);
  for (const int n : ranks) std::printf("%*d", width, n);
  std::printf("\n");
}

void print_paths(const std::vector<int>& ranks) {
  print_head("additions/roundings, ranks", ranks, 10);
  for (const algorithm::Algorithm* row : reducing_rows()) {
    std::printf("%-32s", label(*row).c_str());
    for (const int n : ranks) {
      const LongestPath path = counted_path(*row, {collective_of(*row), n, 0, 0});
      std::printf("%10s", (std::to_string(path.operations) + "/" + std::to_string(path.roundings)).c_str());
    }
    std::printf("\n");
  }
}

void print_sums(const FloatType& type, const std::vector<int>& ranks, bool wide_wire) {
  for (const Data data : {Data::kZeroMean, Data::kPositive}) {
    print_head((std::string(type.name) + " " + name_of(data) + ", ranks").c_str(), ranks, 9);
    for (const algorithm::Algorithm* row : different_rows()) {
      if (wide_wire && !row->wide_wire) continue;
      std::printf("%-32s", label(*row).c_str());
      for (const int n : ranks) std::printf("%9.1e", error(*row, type, Operation::kSum, data, n, wide_wire).rms);
      std::printf("\n");
    }
  }
}

void print_types(int ranks) {
  std::printf("%-32s", (std::to_string(ranks) + " ranks").c_str());
  for (const FloatType& type : kFloatTypes) std::printf("%11s", type.name);
  std::printf("\n");
  for (const Data data : {Data::kZeroMean, Data::kPositive}) {
    for (const algorithm::Algorithm* row : different_rows()) {
      std::printf("%-32s", (label(*row) + (data == Data::kPositive ? " +" : "")).c_str());
      for (const FloatType& type : kFloatTypes)
        std::printf("%11.1e", error(*row, type, Operation::kSum, data, ranks).rms);
      std::printf("\n");
    }
  }
}

void print_operations(const FloatType& type, int ranks) {
  std::printf("%-32s", (std::string(type.name) + ", " + std::to_string(ranks) + " ranks").c_str());
  for (const Operation operation : kRoundingOperations) std::printf("%20s", name_of(operation));
  std::printf("\n");
  for (const Data data : {Data::kZeroMean, Data::kPositive}) {
    for (const algorithm::Algorithm* row : different_rows()) {
      std::printf("%-32s", (label(*row) + (data == Data::kPositive ? " +" : "")).c_str());
      for (const Operation operation : kRoundingOperations) {
        const Error e = error(*row, type, operation, data, ranks);
        std::printf("%11.1e (%5.1f%%)", e.max, 100 * e.of_bound);
      }
      std::printf("\n");
    }
  }
}

void print_ring() {
  const algorithm::Algorithm& ring = *algorithm::find("ring", {Collective::kAllReduce, 1024, 0, 0});
  Sample sample{
      &kFloatTypes[0], Operation::kSum, Data::kPositive, {Collective::kAllReduce, 1024, 0, 0}, kElements, kSeed};
  sample.plain = true;
  for (const bool wide_wire : {false, true}) {
    sample.wide_wire = wide_wire;
    std::printf("bfloat16 ring, 1024 ranks, magnitudes of normally distributed numbers%s: %.1f%% of the sums is lost\n",
                wide_wire ? ", float32 wire" : "", 100 * std::abs(simulated_error(ring, sample).error.lost));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  const bool names_type = what == "sums" || what == "wire" || what == "operations";
  const FloatType* type = nullptr;
  for (const FloatType& known : kFloatTypes) {
    if (names_type && argc > 2 && std::strcmp(argv[2], known.name) == 0) type = &known;
  }
  std::vector<int> ranks;
  bool good = !names_type || type != nullptr;
  for (int i = names_type ? 3 : 2; i < argc; ++i) {
    ranks.push_back(std::atoi(argv[i]));
    good = good && ranks.back() >= 2 && ranks.back() <= 4096;
  }
  if (good && what == "paths" && !ranks.empty()) {
    print_paths(ranks);
  } else if (good && (what == "sums" || what == "wire") && !ranks.empty()) {
    print_sums(*type, ranks, what == "wire");
  } else if (good && what == "types" && ranks.size() == 1) {
    print_types(ranks[0]);
  } else if (good && what == "operations" && ranks.size() == 1) {
    print_operations(*type, ranks[0]);
  } else if (good && what == "ring" && ranks.empty()) {
    print_ring();
  } else {
    std::fputs(kUsage, stderr);
    return 2;
  }
  return 0;
}
