// What a collective does whose inputs come with the lines of hosts of one rank each (far_inputs.h), or go by rails; and for whom it waits.
#include "comm/call.h"

namespace tutti::comm {

void* CollectiveCall::far_input(std::uint32_t part) const {
  return comm_.members().bridge->part_of(sequence_, part, shape_.input_bytes);
}

/// What the round's lines bring.
void* CollectiveCall::far_sum(std::uint32_t round) const {
  return far_input(static_cast<std::uint32_t>(comm_.members().bridge->sender_in(round)));
}

/// The rank from which an input, or a sum, has not come with the lines; -1: all is there. Lines can come by themselves, before it.
[[gnu::hot]] int CollectiveCall::missing_input() const {
  if (!goes_from_buffers(carriage_)) return -1;
  const Bridge& bridge = *comm_.members().bridge;
  if (carriage_ == Carriage::kAddedUp) {
    const auto last = static_cast<std::uint32_t>(bridge.routes().rounds() - 1);
    if (added_ == last && far_sum(last) != nullptr) return -1;
    return bridge.sender_in(added_);
  }
  const auto is_missing = [&](int rank) { return far_input(static_cast<std::uint32_t>(rank)) == nullptr; };
  if (gets_sum()) return far_input(FarInputs::kSumOfAll) == nullptr ? bridge.hub() : -1;
  const bool by_hub = bridge.routes().pattern() == LineRoutes::Pattern::kStar && comm_.rank() != bridge.hub();
  for (int r = 0; r < comm_.ranks(); ++r)
    if (r != comm_.rank() && is_missing(r)) return by_hub ? bridge.hub() : r;
  return -1;
}

/// The hub adds up, and the others' results come from there.
bool CollectiveCall::gets_sum() const {
  return carriage_ == Carriage::kAtHub && comm_.rank() != comm_.members().bridge->hub();
}

/// What goes with the lines, and where a sum is to come.
void CollectiveCall::lend_buffers() {
  Bridge& bridge = *comm_.members().bridge;
  added_ = 0;
  if (carriage_ != Carriage::kAtHub || gets_sum()) bridge.lend_input(sequence_, args_.send);
  if (gets_sum()) bridge.expect_part(sequence_, FarInputs::kSumOfAll, shape_.output_bytes, args_.receive);
}

/// For a call whose inputs came with the lines of hosts of one rank: what finish_by_lines() does, from other places.
void CollectiveCall::finish_from_buffers() {
  if (gets_sum()) return;  // it has come
  for (int r = 0; r < comm_.ranks(); ++r)
    sources_[r] = r == comm_.rank() ? args_.send : far_input(static_cast<std::uint32_t>(r));
  if (args_.collective == Collective::kAllReduce) {
    lanes_.machine().reduce(
        {sources_.data(), comm_.ranks(), &args_.receive, 1, args_.count, nullptr, announced_call_.divisor});
    if (carriage_ == Carriage::kAtHub) comm_.members().bridge->lend_input(sequence_, args_.receive);
    return;
  }
  for (int r = 0; r < comm_.ranks(); ++r) {
    std::byte* const to = static_cast<std::byte*>(args_.receive) + static_cast<std::size_t>(r) * shape_.input_bytes;
    if (sources_[r] != to) lanes_.machine().load_bytes(to, sources_[r], shape_.input_bytes);
  }
}

void CollectiveCall::lay_rails() {
  rails().begin({.number = sequence_,
                 .input = args_.send,
                 .output = args_.receive,
                 .count = args_.count,
                 .element_bytes = size_of(args_.type),
                 .divisor = announced_call_.divisor},
                lanes_.machine());
}

/// What ranks sent by rails in a call that is refused comes to an end first.
executor::Progress CollectiveCall::end_refused() {
  const Bridge& bridge = *comm_.members().bridge;
  const auto is_by_rails = [&](int rank) { return bridge.goes_by_rails(rank, sequence_); };
  return rails().end_refused(sequence_, is_by_rails) ? fail(refusal_.error()) : blocked();
}

/// Of pairs of hosts, each of which adds up what it has and what comes, the lower one's first: so both have the same bits. What came in the
/// round before has become what this rank has.
void CollectiveCall::add_round(std::uint32_t round, void* to, int divisor) {
  const void* const own = round == 0 ? args_.send : far_sum(round - 1);
  const void* const far = far_sum(round);
  const bool first = comm_.rank() < comm_.members().bridge->sender_in(round);
  const void* const sources[] = {first ? own : far, first ? far : own};
  lanes_.machine().reduce({sources, 2, &to, 1, args_.count, nullptr, divisor});
}

/// As many sums as what has come allows, in its place; they go on with the lines.
void CollectiveCall::add_up() {
  Bridge& bridge = *comm_.members().bridge;
  const auto last = static_cast<std::uint32_t>(bridge.routes().rounds() - 1);
  while (added_ != last) {
    void* const sum = far_sum(added_);
    if (sum == nullptr) return;
    add_round(added_, sum, 0);
    bridge.lend_input(sequence_, sum, ++added_);
  }
}

/// The result would be written over an input that is still on its way to another rank. Of a hub that adds up only the sum goes to others.
[[gnu::hot]] bool CollectiveCall::is_input_needed() const {
  if (!goes_from_buffers(carriage_) || args_.send != args_.receive) return false;
  const bool adds_up_for_all = carriage_ == Carriage::kAtHub && !gets_sum();
  return !adds_up_for_all && !comm_.members().bridge->is_input_sent(sequence_);
}

int CollectiveCall::awaited() {
  if (phase_ == Phase::kGather || phase_ == Phase::kRefused) return waiting_for();
  const int peer = phase_ == Phase::kRun ? lanes_.waiting_for_one() : -1;
  return peer >= 0 && comm_.members().bridge->is_here(peer) ? peer : -1;
}

int CollectiveCall::waiting_for() {
  if (phase_ == Phase::kRun) return lanes_.waiting_for();
  if (phase_ == Phase::kMessages) return messages_.empty() ? -1 : messages_.front().peer;
  if (phase_ == Phase::kMpiAllReduce) return comm_.members().mpi_all_reduce->waiting_for();
  if (phase_ == Phase::kRefused) return rails().owed_by();
  const bool waits = phase_ == Phase::kRoom     ? announcer_.room(lanes_.machine()) == protocol::Room::kNotYet
                     : phase_ == Phase::kGather ? !announcer_.advance(lanes_.machine())
                                                : false;
  if (!waits && (phase_ != Phase::kGather || !announcer_.all_equal())) return -1;
  if (!waits) return carriage_ == Carriage::kByRails ? rails().waiting_for() : missing_input();
  const auto unseen = static_cast<int>(announcer_.unseen());
  const Bridge* const bridge = comm_.members().bridge.get();
  const bool carried = bridge != nullptr && phase_ == Phase::kGather && signature_.one_way == 0;
  return carried ? bridge->whom_it_waits_for(unseen, sequence_) : unseen;
}

/// From another host a line may come by a longer way than the word that its rank has left.
bool CollectiveCall::is_coming(int peer) const {
  if (has_messages()) return true;
  const std::uint64_t farewell = *comm_.members().control.farewell(peer);
  if (farewell == 0) return false;  // it is of this host
  const auto last = static_cast<std::uint32_t>(farewell);
  const bool by_stream = phase_ == Phase::kGather || phase_ == Phase::kRefused;
  return by_stream && static_cast<std::int32_t>(last - sequence_) >= 0;
}

}  // namespace tutti::comm
