// Reductions through the communicator, all ranks in this thread: the calls that the tests of numbers make.
#pragma once

#include "api/in_process.h"
#include "schedule/schedule.h"

#include <catch2/catch.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tutti::numbers {

/// An operation on each rank's communicator: one of NCCL's, or PreMulSum with a factor for each rank, made and destroyed.
class Operations {
 public:
  Operations(const test::Ranks& ranks, ncclRedOp_t op)
      : ranks_(ranks), ops_(static_cast<std::size_t>(ranks.count()), op) {}
  Operations(const test::Ranks& ranks, ncclDataType_t type, const std::vector<std::uint64_t>& factors)
      : ranks_(ranks), made_(true) {
    for (int r = 0; r < ranks.count(); ++r) {
      std::uint64_t factor = factors[static_cast<std::size_t>(r)];
      ops_.push_back(ncclSum);
      REQUIRE(ncclRedOpCreatePreMulSum(&ops_.back(), &factor, type, ncclScalarHostImmediate, ranks[r]) == ncclSuccess);
    }
  }
  Operations(const Operations&) = delete;
  Operations& operator=(const Operations&) = delete;
  ~Operations() {
    for (int r = 0; made_ && r < ranks_.count(); ++r) ncclRedOpDestroy(ops_[static_cast<std::size_t>(r)], ranks_[r]);
  }
  ncclRedOp_t operator[](int rank) const { return ops_[static_cast<std::size_t>(rank)]; }

 private:
  const test::Ranks& ranks_;
  bool made_ = false;
  std::vector<ncclRedOp_t> ops_;
};

using Buffers = std::vector<std::vector<std::byte>>;

/// What each rank ends with; poison where nothing came. An input has all the blocks that the collective takes.
inline Buffers reduce(const test::Ranks& ranks, const schedule::Request& request, ncclDataType_t type,
                      std::size_t element_bytes, std::size_t count, const Operations& ops, const Buffers& inputs) {
  Buffers outputs;
  for (int r = 0; r < ranks.count(); ++r)
    outputs.emplace_back(schedule::output_blocks(request, r) * count * element_bytes, std::byte{0xb9});
  REQUIRE(ncclGroupStart() == ncclSuccess);
  for (int r = 0; r < ranks.count(); ++r) {
    const void* from = inputs[static_cast<std::size_t>(r)].data();
    void* to = outputs[static_cast<std::size_t>(r)].data();
    ncclResult_t result = ncclInternalError;
    if (request.collective == Collective::kAllReduce) {
      result = ncclAllReduce(from, to, count, type, ops[r], ranks[r], nullptr);
    } else if (request.collective == Collective::kReduceScatter) {
      result = ncclReduceScatter(from, to, count, type, ops[r], ranks[r], nullptr);
    } else if (request.collective == Collective::kReduce) {
      result = ncclReduce(from, to, count, type, ops[r], request.root, ranks[r], nullptr);
    }
    CHECK(result == ncclSuccess);
  }
  const ncclResult_t result = ncclGroupEnd();
  INFO(ncclGetLastError(nullptr));
  REQUIRE(result == ncclSuccess);
  return outputs;
}

}  // namespace tutti::numbers
