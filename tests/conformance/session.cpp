#include "session.h"

#include "hosts/placement.h"
#include "schedule/text.h"
#include "values.h"

#include <fmt/format.h>
#include <tutti/tutti.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace tutti::conformance {
namespace {

constexpr std::size_t kGuardBytes = 64;
constexpr std::byte kPoisonByte{0xb9};
/// More than slots of a page hold: in two rounds for units of 5 ranks, in six for whole blocks.
constexpr std::uint64_t kRoundsCount = 6007;

ncclResult_t call(const Case& c, const void* in, void* out, std::uint64_t count, int rank, ncclRedOp_t op,
                  ncclComm_t comm, cudaStream_t stream) {
  const int root = c.request.root;
  const int ranks = c.request.ranks;
  switch (c.request.collective) {
    case Collective::kAllReduce: return ncclAllReduce(in, out, count, c.type, op, comm, stream);
    case Collective::kReduce: return ncclReduce(in, out, count, c.type, op, root, comm, stream);
    case Collective::kBroadcast: return ncclBroadcast(in, out, count, c.type, root, comm, stream);
    case Collective::kReduceScatter: return ncclReduceScatter(in, out, count, c.type, op, comm, stream);
    case Collective::kAllGather: return ncclAllGather(in, out, count, c.type, comm, stream);
    case Collective::kAllToAll: return ncclAlltoAll(in, out, count, c.type, comm, stream);
    case Collective::kGather: return ncclGather(in, out, count, c.type, root, comm, stream);
    case Collective::kScatter: return ncclScatter(in, out, count, c.type, root, comm, stream);
    default: break;
  }
  ncclResult_t result = ncclGroupStart();
  if (result != ncclSuccess) return result;
  result = ncclSend(in, count, c.type, (rank + 1) % ranks, comm, stream);
  if (result == ncclSuccess) result = ncclRecv(out, count, c.type, (rank + ranks - 1) % ranks, comm, stream);
  const ncclResult_t ended = ncclGroupEnd();
  return result == ncclSuccess ? ended : result;
}

tuttiCollective_t number_of(Collective collective) { return static_cast<tuttiCollective_t>(collective); }

}  // namespace

Session::Session(const SessionOptions& options, int rank, int ranks) : options_(options), rank_(rank), ranks_(ranks) {}

Session::~Session() {
  if (comm_ != nullptr) ncclCommDestroy(comm_);
  if (stream_ != nullptr) tuttiStreamDestroy(stream_);
  for (Buffers& b : buffers_) {
    for (std::byte* area : {b.first, b.second}) {
      if (options_.shared_buffers) {
        ncclMemFree(area);
      } else {
        std::free(area);
      }
    }
  }
}

std::uint64_t Session::count_of(const Case& c) {
  switch (c.size) {
    case Size::kNone: return 0;
    case Size::kOne: return 1;
    case Size::kCacheLine: return 64 / static_cast<std::uint64_t>(type_of(c).bytes);
    case Size::kPrime: return 37;
    default: return kRoundsCount;
  }
}

std::string Session::fine(ncclResult_t result, const char* what) const {
  if (result == ncclSuccess) return "";
  return fmt::format("rank {}: {}: {}: {}", rank_, what, ncclGetErrorString(result), ncclGetLastError(nullptr));
}

std::string Session::start() {
  const std::size_t area_bytes =
      std::max<std::size_t>(8, static_cast<std::size_t>(ranks_)) * kRoundsCount * 8 + 2 * kGuardBytes;
  for (Buffers& b : buffers_) {
    for (std::byte** area : {&b.first, &b.second}) {
      if (!options_.shared_buffers) {
        *area = static_cast<std::byte*>(std::aligned_alloc(64, (area_bytes + 63) / 64 * 64));
        continue;
      }
      void* memory = nullptr;
      if (std::string wrong = fine(ncclMemAlloc(&memory, area_bytes), "ncclMemAlloc"); !wrong.empty()) return wrong;
      *area = static_cast<std::byte*>(memory);
    }
  }
  return options_.stream ? fine(tuttiStreamCreate(&stream_), "tuttiStreamCreate") : "";
}

/// Cases of one algorithm and request follow one another: proved once.
std::string Session::set_schedule() {
  const bool same_request = case_.algorithm == nullptr ||
                            (set_for_.collective == case_.request.collective && set_for_.root == case_.request.root);
  if (set_ == case_.algorithm && same_request) return "";
  std::string text;
  if (case_.algorithm != nullptr) {
    text = schedule::to_text(algorithm::make_schedule(*case_.algorithm, case_.request));
  }
  set_ = case_.algorithm;
  set_for_ = case_.request;
  return fine(tuttiCommSetSchedule(comm_, text.empty() ? nullptr : text.c_str(), nullptr), "tuttiCommSetSchedule");
}

/// That the backend carries what it is there for.
std::string Session::check_route() {
  if (case_.kind != Kind::kCalls) return "";
  if (options_.route.empty() || ranks_ == 1 || case_.size == Size::kNone || rank_ != 0) return "";
  if (case_.request.collective == Collective::kSend) return "";
  std::string text(16384, '\0');
  const ncclResult_t result = tuttiExplain(comm_, number_of(case_.request.collective), count_of(case_), case_.type, op_,
                                           case_.request.root, text.data(), text.size(), nullptr);
  if (std::string wrong = fine(result, "tuttiExplain"); !wrong.empty()) return wrong;
  const bool announced = text.find("access: announce line") != std::string::npos;
  if (text.find(options_.route) != std::string::npos || (announced && case_.algorithm == nullptr)) return "";
  return fmt::format("the call does not go the backend's way: no \"{}\" in\n{}", options_.route,
                     text.substr(0, text.find("\n\n")));
}

std::string Session::join(const ncclUniqueId& id) {
  const ncclResult_t joined = ncclCommInitRank(&comm_, ranks_, id, rank_);
  if (std::string wrong = fine(joined, "ncclCommInitRank"); !wrong.empty() || options_.transport.empty()) return wrong;
  const char* transport = "";
  if (std::string wrong = fine(tuttiCommTransport(comm_, &transport), "tuttiCommTransport"); !wrong.empty())
    return wrong;
  // Ranks of one host have no use for a network.
  const hosts::Places places = hosts::ranks_per_host(options_.ranks_per_host);
  const char* wanted = hosts::host_of(ranks_ - 1, places) == 0 ? "local" : options_.transport.c_str();
  return std::string_view(transport) == wanted
             ? ""
             : fmt::format("rank {}: the transport is {}, not {}", rank_, transport, wanted);
}

std::string Session::begin(const Case& c, int number) {
  case_ = c;
  number_ = number;
  if (std::string wrong = set_schedule(); !wrong.empty()) return wrong;
  op_ = c.op;
  if (c.op == bench::kScaledSum) {
    std::uint64_t factor = bench::bits_of(factor_of(rank_), type_of(c));
    const ncclResult_t made = ncclRedOpCreatePreMulSum(&op_, &factor, c.type, ncclScalarHostImmediate, comm_);
    if (std::string wrong = fine(made, "ncclRedOpCreatePreMulSum"); !wrong.empty()) return wrong;
  }
  for (Buffers& b : buffers_) place(b);
  return "";
}

/// In place, a block of the output is where the input lies, or the other way round: NCCL's positions. Unused: null.
void Session::place(Buffers& b) const {
  const std::size_t block = count_of(case_) * static_cast<std::size_t>(type_of(case_).bytes);
  const std::uint32_t in = input_blocks(case_, rank_);
  const std::uint32_t out = output_blocks(case_, rank_);
  b.input_bytes = in * block;
  b.output_bytes = out * block;
  b.input = in == 0 ? nullptr : b.first + kGuardBytes;
  b.output = out == 0 ? nullptr : b.second + kGuardBytes;
  if (!case_.in_place || case_.request.collective == Collective::kSend || in == 0 || out == 0) return;
  b.output = b.first + kGuardBytes;
  if (in < out) b.input += static_cast<std::size_t>(rank_) * block;
  if (out < in) b.output += static_cast<std::size_t>(rank_) * block;
}

void Session::fill(int round) {
  const auto bytes = static_cast<std::size_t>(type_of(case_).bytes);
  const std::uint64_t count = count_of(case_);
  for (int k = 0; k < kCallsInARow; ++k) {
    const Buffers& b = buffers_[k];
    // Poison as far as anything of this case could get.
    const std::size_t reach = std::max(b.input_bytes, b.output_bytes) + 2 * kGuardBytes;
    std::fill_n(b.first, reach, kPoisonByte);
    std::fill_n(b.second, reach, kPoisonByte);
    for (std::uint32_t block = 0; block < input_blocks(case_, rank_); ++block) {
      for (std::uint64_t i = 0; i < count; ++i) {
        const std::uint64_t value = input_bits(case_, number_ + round * kCallsInARow + k, rank_, block, i);
        std::memcpy(b.input + (block * count + i) * bytes, &value, bytes);
      }
    }
  }
}

std::string Session::issue(int k) {
  const Buffers& b = buffers_[k];
  return fine(call(case_, b.input, b.output, count_of(case_), rank_, op_, comm_, stream_), "the call");
}

std::string Session::wait() {
  if (stream_ == nullptr) return "";
  if (std::string wrong = fine(tuttiStreamSynchronize(stream_), "tuttiStreamSynchronize"); !wrong.empty()) return wrong;
  ncclResult_t state = ncclSuccess;
  if (std::string wrong = fine(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError"); !wrong.empty()) {
    return wrong;
  }
  return fine(state, "the communicator");
}

std::string Session::check(int round) {
  for (int k = 0; k < kCallsInARow; ++k) {
    if (std::string wrong = check(k, number_ + round * kCallsInARow + k); !wrong.empty()) {
      return fmt::format("rank {}, call {}: {}", rank_, round * kCallsInARow + k, wrong);
    }
  }
  return "";
}

/// Every byte that the case could reach: the promised output, the input as it was, poison all around.
std::string Session::check(int k, int number) const {
  const Buffers& b = buffers_[k];
  const auto bytes = static_cast<std::size_t>(type_of(case_).bytes);
  const std::uint64_t count = count_of(case_);
  const std::size_t reach = std::max(b.input_bytes, b.output_bytes) + 2 * kGuardBytes;
  for (const std::byte* area : {b.first, b.second}) {
    std::vector<std::byte> wanted(reach, kPoisonByte);
    const auto put = [&](const std::byte* where, std::uint32_t blocks, auto value_of) {
      if (where == nullptr || where < area || where >= area + reach) return;
      for (std::uint32_t block = 0; block < blocks; ++block) {
        for (std::uint64_t i = 0; i < count; ++i) {
          const std::uint64_t value = value_of(case_, number, rank_, block, i);
          std::memcpy(&wanted[static_cast<std::size_t>(where - area) + (block * count + i) * bytes], &value, bytes);
        }
      }
    };
    // A whole input around the output in place may be used up; what is checked there is the output alone.
    const bool used_up = case_.in_place && b.output != nullptr && b.input_bytes > b.output_bytes &&
                         b.output >= b.input && b.output < b.input + b.input_bytes;
    put(b.input, input_blocks(case_, rank_), input_bits);
    put(b.output, output_blocks(case_, rank_), promised_bits);
    if (std::memcmp(area, wanted.data(), reach) == 0) continue;
    for (std::size_t i = 0; i < reach; ++i) {
      if (area[i] == wanted[i]) continue;
      const bool in_output = b.output != nullptr && area + i >= b.output && area + i < b.output + b.output_bytes;
      const bool in_input = b.input != nullptr && area + i >= b.input && area + i < b.input + b.input_bytes;
      if (used_up && in_input && !in_output) continue;
      return fmt::format("byte {} of {} is {:#04x}, not {:#04x}",
                         area + i -
                             (in_output  ? b.output
                              : in_input ? b.input
                                         : area),
                         in_output  ? "the output"
                         : in_input ? "the input (which is not the call's to write)"
                                    : "what lies around the buffers",
                         static_cast<unsigned>(area[i]), static_cast<unsigned>(wanted[i]));
    }
  }
  return "";
}

std::string Session::end() {
  std::string wrong = check_route();
  if (wrong.empty() && case_.op == bench::kScaledSum) wrong = fine(ncclRedOpDestroy(op_, comm_), "ncclRedOpDestroy");
  return wrong;
}

std::string Session::abort() {
  const ncclResult_t result = ncclCommAbort(comm_);
  comm_ = nullptr;
  return fine(result, "ncclCommAbort");
}

}  // namespace tutti::conformance
