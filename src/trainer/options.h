// The command line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace tutti::trainer {

enum class ModelKind : std::uint8_t { kMlp, kLm };
enum class OptimiserKind : std::uint8_t { kSgd, kAdam };
enum class DeviceKind : std::uint8_t { kHost, kCuda };
enum class Schedule : std::uint8_t { kCosine, kConstant };

/// Complete: what the user left out holds the model's default.
struct Options {
  ModelKind model = ModelKind::kLm;
  std::string images, labels;     ///< mlp
  std::vector<std::string> text;  ///< lm
  double holdout = 0;             ///< share of the samples
  std::size_t context = 0;        ///< lm: bytes a prediction looks back
  std::size_t embedding = 0;      ///< lm: numbers per byte of context
  std::vector<std::size_t> hidden;

  int ranks = 0;  ///< 0: not given
  bool threads = false;
  DeviceKind device = DeviceKind::kHost;
  int ranks_per_gpu = 1;  ///< ranks next to each other that share one
  std::string network;    ///< for TUTTI_NET: auto, tcp, mpi; empty: as it is
  double bucket_mb = 0;
  std::size_t accumulate = 1;

  std::int64_t steps = 0;  ///< 0: `epochs` counts
  std::int64_t epochs = 0;
  std::size_t batch = 0;  ///< global
  OptimiserKind optimiser = OptimiserKind::kAdam;
  double lr = 0;
  double momentum = 0;
  Schedule schedule = Schedule::kCosine;
  std::uint64_t seed = 0;

  std::int64_t check_every = 0;
  std::int64_t report_every = 0;  ///< 0: about 40 lines in the whole run
  std::string log, plot;
};

/// The options, or the exit code to end with: the help (0) or what is wrong (2) has been printed.
std::variant<Options, int> parse_options(int argc, char** argv);

}  // namespace tutti::trainer
