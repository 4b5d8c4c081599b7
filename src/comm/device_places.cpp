#include "comm/device_places.h"

#include "base/config.h"
#include "comm/call.h"

#include <algorithm>

namespace tutti::comm {

DevicePlaces::DevicePlaces(Communicator& communicator, const DeviceSegment& segment,
                           std::shared_ptr<cuda::Device> device, DeviceMail& mail, const DeviceOrder& order,
                           DeviceCrew crew, std::vector<bool> works)
    : comm_(communicator),
      crew_(crew),
      windows_(communicator, segment, *device, mail),
      exports_(DeviceExports::make(communicator.members().control, communicator.members().reach, segment,
                                   std::move(device), mail, order, communicator.rank(), std::move(works))),
      agreement_(communicator.members().control.agreement(), communicator.ranks(), communicator.rank()) {}

std::uint64_t DevicePlaces::longest_bytes(const CallArgs& args, int ranks) {
  const std::uint64_t block = args.count * size_of(args.type);
  switch (args.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast: return block;
    default: return block * static_cast<std::uint64_t>(ranks);
  }
}

/// `find`: what is announced for so many bytes at an address, if others come to them.
template <class Find>
Result<std::optional<DevicePlaces::Places>> DevicePlaces::find(const CallArgs& args, Find find) const {
  std::optional<Places> none;
  // The only one that is not right in place.
  if (args.collective == Collective::kAllToAll && args.send == args.receive) return none;
  const CallShape shape = shape_of(args, comm_.ranks(), comm_.rank());
  Places places;
  if (shape.input_bytes != 0) {
    TUTTI_TRY_ASSIGN(const auto input, find(args.send, shape.input_bytes));
    if (!input) return none;
    places.input = args.send;
    places.announced.input = *input;
  }
  if (shape.output_bytes != 0) {
    TUTTI_TRY_ASSIGN(const auto output, find(args.receive, shape.output_bytes));
    if (!output) return none;
    places.output = args.receive;
    places.announced.output = *output;
  }
  return std::optional(places);
}

Result<std::optional<DevicePlaces::Places>> DevicePlaces::in_windows(const CallArgs& args) {
  // All ranks must come to the same: those that have no buffer in a rooted call would not.
  if (is_rooted(args.collective) || args.count == 0) return std::optional<Places>();
  return find(args, [this](const void* address, std::size_t bytes) { return windows_.find(address, bytes); });
}

Result<DevicePlaces::Arrival> DevicePlaces::arrive(const CallArgs& args, bool is_captured) {
  Arrival arrival;
  TUTTI_TRY_ASSIGN(arrival.windows, in_windows(args));
  const std::uint64_t bytes = longest_bytes(args, comm_.ranks());
  if (arrival.windows || bytes < kAgreedFrom) return arrival;
  TUTTI_TRY_ASSIGN(arrival.shared, find(args, [this](const void* address, std::size_t length) {
                     return exports_->find(address, length);
                   }));
  arrival.patience = patience_for(bytes);
  arrival.agreement = agreement_.arrive(arrival.shared.has_value(), is_captured);
  return arrival;
}

Result<std::optional<DevicePlaces::Places>> DevicePlaces::settle(const Arrival& arrival) {
  if (arrival.windows || !arrival.agreement) return arrival.windows;
  const bool agreed = agreement_.settle(*arrival.agreement, arrival.patience, [this] { return comm_.failed(); });
  if (comm_.failed()) return comm_.failure();
  if (arrival.shared) refusals_ = agreed ? 0 : refusals_ + 1;
  if (!agreed) return std::optional<Places>();
  TUTTI_TRY(exports_->link());
  return arrival.shared;
}

/// About what the call takes longer through staging (H100, 4 processes by turns: 0.16 ms a MiB; kernels that wait: two copies on the
/// GPU, by reckoning). Less where calls are refused in a row, as when ranks make them one after another in one thread; now and then it is
/// tried again.
std::chrono::nanoseconds DevicePlaces::patience_for(std::uint64_t bytes) const {
  if (const double seconds = config().in_place_wait_s; seconds >= 0) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(std::min(seconds, 1e6)));
  }
  const auto saved = (crew_ == DeviceCrew::kByTurns ? 160000 : 4000) * static_cast<std::int64_t>(bytes >> 20);
  constexpr std::uint32_t kTriedAgain = 16;
  return std::chrono::nanoseconds(20000 + (saved >> std::min(refusals_ % kTriedAgain, 8u)));
}

}  // namespace tutti::comm
