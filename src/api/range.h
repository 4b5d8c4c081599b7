// A range for each call in the timelines of NVIDIA's tools (NVTX, domain "NCCL", as NCCL has it). Costs next to nothing where no tool
// is attached; nothing where the library was built without NVTX's headers.
#pragma once

namespace tutti::api {

class Range {
 public:
  /// `name`: a literal.
  explicit Range(const char* name) noexcept;
  ~Range();
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};

}  // namespace tutti::api
