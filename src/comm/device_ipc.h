// Calls on device memory among ranks in several processes of one host, by kernels. No thread waits for another rank: the kernels wait for each
// other on the devices (cuda/opening.h), or, where ranks share a GPU, the streams do (device_bells.h). There takes() leaves few bytes
// to the way through host memory.
//
// A call is cut into pieces that fit into the ranks' staging (device_segment.h). For each piece, in the order of the caller's stream:
//
//   each rank has a GPU of its own                        ranks share a GPU
//   input -> own staging        a copy                    input -> own staging
//   tutti_fold                  from everybody's staging  the streams meet (device_bells.h)
//                               to everybody's, between   tutti_fold, by one rank of each GPU for all ranks there
//                               opening and closing       the streams meet
//   own staging -> output       a copy                    own staging -> output
//
// A call whose buffers are in windows of all ranks (device_windows.h) is one piece, in place, without copies; so is a long one of which all
// ranks agree, while they make it, that the others come to their buffers (device_exports.h, device_agreement.h). A small one where kernels
// wait for each other goes as lines (device_path.h): one launch, from the user's buffers, into the others' line memory.
//
//  I1. A piece's kernel, or the second meeting, ends when all ranks are through with it: so the copies of the next piece, and of the next call, find the staging
//      free, and what the peers have written there is complete.
//  I2. A rank's launches run one after the other, whatever their streams: events order a call behind the last one. Sequence numbers
//      are counted by the kernels, so that graphs can be replayed.
//  I3. All ranks cut a call alike, and launch as many blocks: by the call's arguments, and what is on the cards.
//  I4. What one rank's stream waits for may be another rank's of the same thread. So before the first of them puts anything all settle their calls,
//      which is all that may wait for a device; then they put a piece each by turns, as a stream that is full (about 1000 operations) keeps
//      the thread waiting: for pieces then that all of them have put.
//  I5. A call that cannot be made as its stream is (a capture that was spoilt, the legacy default stream while another one is captured) is refused
//      before anything is known of it elsewhere: it has no number, nowhere, and fails nobody. Whatever ends a call later fails the communicator.
//  I6. The event is behind what a call has put, also of one that breaks off between its pieces: it uses memory that goes with the communicator.
#pragma once

#include "comm/communicator.h"
#include "comm/device_bells.h"
#include "comm/device_lanes.h"
#include "comm/device_mail.h"
#include "comm/device_order.h"
#include "comm/device_path.h"
#include "comm/device_places.h"
#include "comm/device_segment.h"
#include "comm/device_watch.h"
#include "cuda/device.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace tutti::comm {

class DeviceIpc : public std::enable_shared_from_this<DeviceIpc> {
 public:
  /// Before the ranks meet. Failure: this rank's memory cannot be shared.
  static Result<std::shared_ptr<DeviceIpc>> open(std::shared_ptr<cuda::Device> device, const Control& control,
                                                 int rank);
  ~DeviceIpc();
  DeviceIpc(const DeviceIpc&) = delete;
  DeviceIpc& operator=(const DeviceIpc&) = delete;

  /// When all cards are there: maps the others' memory.
  Status link(const Membership& members, int rank);
  /// A bit for each rank whose memory it has mapped, and why the first that is missing is not.
  std::uint32_t mapped() const;
  const std::string& why_not() const { return segment_->why_not(); }
  /// When all ranks have linked. `links`: who has mapped whom, both ways.
  Status start(Communicator& communicator, const DeviceLinks& links);
  /// Before the first call, by all ranks or by none: lanes have a part of the staging for their FIFOs.
  Status give_lanes(std::shared_ptr<DeviceLanes> lanes);

  DevicePlaces& places() { return *places_; }
  DeviceWatch& watch() { return *watch_; }
  /// Whether kernels of this communicator wait for each other by themselves.
  DeviceCrew crew() const { return bells_ ? DeviceCrew::kByTurns : DeviceCrew::kTogether; }

  /// Whether kernels do this call. The host is quicker where ranks share a GPU, few bytes are to be moved, and each rank would have to
  /// bring its own there: going from one process to another takes a GPU longer than copies to host memory and back. The same on all ranks,
  /// if all or none use windows.
  Result<bool> takes(Communicator& communicator, const CallArgs& args);
  /// Of calls by kernels: they come before and behind what goes through host memory, in whose turn only a thread waits.
  Turns& turns() { return turns_; }
  /// Before settle(), by all ranks or by none: tells the others how this rank could do the calls. Waits for nobody. A failure is the communicator's
  /// too, but for a stream's that cannot be used (I5): then nothing has been told.
  Status arrive(std::span<const CallArgs> calls);
  /// Then, by whoever has the turn of turns(), in the caller's thread; fails as arrive() does. What step() needs of others and of the
  /// device's memory. Waits for nobody but, after arrive(), a little for the others' calls: as long as they save by going in place.
  Status settle(std::span<const CallArgs> calls);
  /// Puts the next piece of the collectives on its stream, in order. Whether there are more. After a failure the communicator has failed too.
  Result<bool> step(std::span<const CallArgs> calls);
  /// Then, whatever has ended the calls: those that others have been told of, and that are not on their streams, fail the communicator.
  void end_calls();
  /// Waits until what is on the streams is done. It is over soon if the communicator fails.
  void finish() const { order_.finish(*comm_); }
  /// Takes it back once nothing goes on that may use it. Waits for that a second at most, as programs end registrations before they abort
  /// calls that are stuck: what is put off is done at a later call, or before more is registered.
  void end_registration(bool is_window, const void* memory, std::size_t bytes);
  /// What was put off; and the same without a wait, if nothing goes on.
  void end_registrations();
  void end_idle_registrations();
  /// The same, before the communicator goes. The memory stays as long as somebody holds this: graphs do, into which calls were captured,
  /// as nobody knows their replays, and so do calls that wait for the program's own work. If the communicator has failed they wait for
  /// nobody else.
  void close();
  const DeviceOrder& order() const { return order_; }

 private:
  /// How a call's blocks lie in the staging of every rank. Where a buffer is one block, input and output are the same place.
  struct Staging {
    std::uint64_t block_bytes = 0;  ///< at most
    std::uint64_t output_at = 0;
    std::uint64_t blocks = 1;  ///< of the longest buffer
  };
  struct Piece {
    std::uint64_t first = 0;  ///< element of each block
    std::uint64_t count = 0;
  };
  using Places = DevicePlaces::Places;
  /// A call between settle() and its last piece.
  struct Settled {
    std::uint64_t capture = 0;
    bool in_windows = false;
    std::optional<Places> places;  ///< nullopt: staging, if it is direct
    DeviceLanes::Part lanes;
  };
  Staging staging_of(Collective collective, std::uint64_t ranks) const;

  DeviceIpc(std::shared_ptr<cuda::Device> device, std::unique_ptr<DeviceSegment> segment)
      : device_(std::move(device)), segment_(std::move(segment)) {}
  void run_ends();
  /// Passes a failure on to the communicator.
  Status fail(Status status) const;
  Status look_at_captures(std::span<const CallArgs> calls);
  Result<Settled> settle(const CallArgs& args, const cuda::Capture& capture, const DevicePlaces::Arrival& arrival);
  Status begin(const CallArgs& args, const Settled& settled);
  Status put_or_break_off(const CallArgs& args, const Settled& settled);
  Status put(const CallArgs& args, const Settled& settled);
  Status put_lines(const CallArgs& args, DevicePath path);
  Status put_lanes(const CallArgs& args, const DeviceLanes::Part& part);
  Status put_next_piece(const CallArgs& args);
  Status put_launches(const CallArgs& args, const Places& places, std::uint64_t count, std::uint64_t bytes,
                      std::uint32_t fingerprint);
  Status put_piece(const CallArgs& args, const Staging& staging, const Piece& piece);
  /// Between blocks of a buffer, `count` elements apart, and those of a piece, which lie one behind the other.
  Status copy_blocks(const CallArgs& args, const Piece& piece, std::size_t bytes, bool in, std::byte* staged);

  const std::shared_ptr<cuda::Device> device_;
  const std::unique_ptr<DeviceSegment> segment_;
  Communicator* comm_ = nullptr;  ///< only for whoever has the turn
  Turns turns_;
  // Of the calls that come next; for whoever has the turn:
  std::vector<cuda::Capture> captures_;  ///< of their streams
  std::vector<DevicePlaces::Arrival> arrivals_;
  std::vector<Settled> settled_;
  bool is_told_ = false;                ///< others may know of them
  std::size_t next_ = 0;                ///< the call
  std::uint64_t done_ = 0;              ///< its elements, of each block
  std::unique_ptr<DeviceBells> bells_;  ///< where ranks share a GPU
  std::unique_ptr<DeviceMail> mail_;
  std::unique_ptr<DevicePlaces> places_;
  std::unique_ptr<DeviceWatch> watch_;
  std::shared_ptr<DeviceLanes> lanes_;
  std::uint32_t blocks_max_ = 1;  ///< of a launch
  DeviceOrder order_;
  /// A registration that has ended.
  struct Ended {
    bool is_window;
    const void* memory;
    std::size_t bytes;
  };
  std::mutex ending_;                   ///< of what follows
  std::atomic<bool> has_ended_{false};  ///< some are put off
  std::vector<Ended> ended_;            ///< those; there is room, as there may be no memory for it then
  std::uint64_t held_by_ = 0;           ///< the last capture whose graph holds this
};

}  // namespace tutti::comm
