// Calls of the kernels on the Block machine: ranks with everything that a host would give them, inputs that depend on call, rank and
// position, and what the host's reduction makes of them.
#pragma once

#include "base/dtype.h"
#include "cuda/kernel_abi.h"
#include "sim/block_machine.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::cuda {

struct KernelCase {
  KernelKind kind = KernelKind::kFold;
  Collective collective = Collective::kAllReduce;
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  bool fused = false;  ///< one launch for all ranks
  int gpus =
      0;  ///< folds: not 0: the first rank of each GPU does the parts of all its ranks (rank % gpus), between meetings
  bool two_shot = false;
  bool in_place = false;
  bool scaled = false;
  int ranks = 2;
  int root = 0;
  std::uint64_t count = 100;
  std::size_t skew = 0;  ///< bytes from alignment to each buffer
  std::uint32_t blocks = 1;
  std::uint32_t threads = 64;
  int calls = 2;
  std::uint32_t calls_in_launch = 1;   ///< fused folds of all_reduce: the elements in so many calls
  std::uint64_t first_sequence = 0;    ///< calls before
  int odd_rank = -1;                   ///< announces another call
  std::optional<KernelKind> odd_kind;  ///< ... of another kind
  std::uint64_t abort_at = 0;          ///< pass at which all abort words are set; 0: never
  int silent_rank = -1;                ///< never launches
  int overtaken_rank = -1;  ///< lanes, and lines in all calls but the first: while it looks for lines instead of an
                            ///< announcement, rank 0 begins the first call, ends it, and begins the second
  int unmet = -1;           ///< 0 or 1: the streams do not wait for each other before that launch, or behind it
  // Lanes only.
  std::string_view algorithm = "ring";
  std::uint32_t rows = 1;
  std::uint32_t slot_bytes = 512;
  bool direct = false;
  bool announces = false;  ///< also where data goes through slots; not fused
  bool lines = false;
  bool wide_wire = false;
  bool knows_neighbours = false;  ///< a rank knows the memory of its neighbours in the ring alone
};
std::string text_of(const KernelCase& c);

/// Memory whose end and beginning nobody may pass.
class Buffer {
 public:
  Buffer(sim::BlockMachine& machine, std::size_t bytes, std::size_t skew, std::string name);
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::byte* data_;
  std::size_t bytes_;
};

/// What came of a case.
struct Outcome {
  std::string problem;                  ///< what the machine found, or the first wrong value; empty: all is well
  std::vector<FailureRecord> failures;  ///< by rank
  std::vector<RankState> states;
  bool output_written = false;                    ///< there is something else than poison in some output
  std::uint64_t oldest_flag = ~std::uint64_t{0};  ///< in any word of line memory
};
Outcome run_case(const KernelCase& c, std::uint64_t seed, bool checks_races = true);

/// Block `block` of a rank's input in a call.
std::vector<std::byte> input_block(const KernelCase& c, int call, int rank, std::uint32_t block);
/// What the rank's output must be: the host's reduction in rank order. Empty: the call leaves it alone.
std::vector<std::byte> expected_output(const KernelCase& c, int call, int rank);
std::uint32_t input_block_count(const KernelCase& c, int rank);
std::uint32_t output_block_count(const KernelCase& c, int rank);
/// The factor of a rank, as an element.
std::uint64_t factor_bits(const KernelCase& c, int rank);

}  // namespace tutti::cuda
