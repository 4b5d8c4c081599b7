#include "comm/reach.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>

namespace tutti::comm {
namespace {

void describe_buffer(const void* address, std::size_t bytes, protocol::BufferReference& buffer, std::int32_t& fd,
                     bool& mappable) {
  buffer = {reinterpret_cast<std::uint64_t>(address), 0};
  fd = -1;
  if (bytes == 0) return;
  if (const auto shared = transport::shared_find(address, bytes)) {
    buffer = {shared->file, shared->offset};
    fd = shared->fd;
  } else {
    mappable = false;
  }
}

}  // namespace

Reach::Reach(int rank, std::span<const Peer> peers, const Control& control)
    : rank_(rank), frees_(control.frees()), own_(&control.freed(rank)), failure_(control.failure()) {
  const std::uint64_t own = peers[rank].process_token;
  for (const Peer& peer : peers) {
    const bool same = peer.process_token == own;
    one_process_ = one_process_ && same;
    const transport::FreedList& freed = control.freed(static_cast<int>(members_.size()));
    members_.push_back({peer.pid, same, peer.probe_address, peer.probe_value, 0, 0, &freed, {}});
  }
}

Reach::~Reach() {
  transport::shared_untell(*own_);
  for (const Member& member : members_) transport::ImportCache::process().drop(member.pid);
}

void Reach::set_maps(bool maps) {
  maps_ = maps;
  if (maps && !one_process_) transport::shared_tell(*own_, *frees_);
}

protocol::BufferReferences Reach::describe(const void* input, std::size_t input_bytes, void* output,
                                           std::size_t output_bytes) const {
  protocol::BufferReferences references{};
  bool mappable = one_process_ || maps_;
  if (one_process_) {
    references.input = {reinterpret_cast<std::uint64_t>(input), 0};
    references.output = {reinterpret_cast<std::uint64_t>(output), 0};
    references.input_fd = references.output_fd = -1;
  } else {
    describe_buffer(input, input_bytes, references.input, references.input_fd, mappable);
    describe_buffer(output, output_bytes, references.output, references.output_fd, mappable);
  }
  if (mappable) {
    references.flags |= protocol::kMappable;
  } else {
    references.input = {reinterpret_cast<std::uint64_t>(input), 0};
    references.output = {reinterpret_cast<std::uint64_t>(output), 0};
    references.input_fd = references.output_fd = -1;
  }
  references.reserved = static_cast<std::uint32_t>(transport::shared_freed_count());
  return references;
}

Result<std::uint64_t> Reach::mapped_address(Member& member, const protocol::BufferReference& buffer,
                                            std::uint64_t bytes, std::int32_t fd) {
  const std::uint64_t end = buffer.offset + bytes;
  for (const Held& held : member.held) {
    if (held.file == buffer.address && held.import.bytes >= end)
      return reinterpret_cast<std::uint64_t>(held.import.memory.get()) + buffer.offset;
  }
  transport::SharedReference segment;
  segment.fd = fd;
  segment.file = buffer.address;
  segment.bytes = end;
  TUTTI_TRY_ASSIGN(transport::Import import, transport::ImportCache::process().hold(member.pid, segment));
  member.held.push_back({buffer.address, std::move(import)});
  return reinterpret_cast<std::uint64_t>(member.held.back().import.memory.get()) + buffer.offset;
}

/// What else is mapped of the peer stays where it is: to map it again takes a millisecond for each 10 MiB. What other communicators of this
/// process have mapped of what is freed is not found any more, as it may be a part of a file that has grown.
void Reach::retire_freed(Member& member) {
  if (!member.freed->has_more_than(member.freed_seen)) return;
  transport::ImportCache& cache = transport::ImportCache::process();
  found_.clear();
  const bool all = !member.freed->read(member.freed_seen, found_);
  if (all) cache.drop(member.pid);
  for (const std::uint64_t file : found_) cache.drop(member.pid, file);
  const auto is_freed = [&](const Held& held) { return all || std::ranges::find(found_, held.file) != found_.end(); };
  const auto gone = std::stable_partition(member.held.begin(), member.held.end(), std::not_fn(is_freed));
  if (gone == member.held.end()) return;
  std::move(gone, member.held.end(), std::back_inserter(retired_));
  member.held.erase(gone, member.held.end());
  ++drops_;
  settled_frees_ = kUnsettled;
}

void Reach::let_go() {
  const std::uint64_t frees = executor::load_acquire(frees_);
  for (Member& member : members_) {
    if (!member.held.empty()) retire_freed(member);
  }
  retired_.clear();
  settled_frees_ = frees;
}

Status Reach::resolve(int peer, const protocol::BufferReferences& announced, bool input, std::uint64_t bytes,
                      protocol::PeerBuffers& buffers) {
  Member& member = members_[peer];
  // What is announced may lie in a file that has grown. A rank of the same process is no exception: beside processes it announces
  // segments too. An older announcement (of a call that another one has overtaken in a group) is no news; nor is this one when the other
  // buffer is asked for, so that of one call no address is given that is retired before the call knows drops().
  if (static_cast<std::int32_t>(announced.reserved - member.announced) > 0) {
    // What was freed before this communicator was made its list does not name.
    if (member.announced == 0) transport::ImportCache::process().drop(member.pid);
    member.announced = announced.reserved;
    retire_freed(member);
  }
  const protocol::BufferReference& buffer = input ? announced.input : announced.output;
  const std::int32_t fd = input ? announced.input_fd : announced.output_fd;
  std::uint64_t& address = input ? buffers.input : buffers.output;
  buffers.mapped = member.same_process || fd >= 0;
  address = buffer.address;
  if (fd < 0) return {};
  TUTTI_TRY_ASSIGN(address, mapped_address(member, buffer, bytes, fd));
  return {};
}

bool Reach::probe_single_copy() const {
  return std::ranges::all_of(members_, [](const Member& m) {
    return m.same_process || transport::probe_single_copy(m.pid, m.probe_address, m.probe_value).ok();
  });
}

Status Reach::probe_mapping(std::span<const transport::SharedReference> probes, bool copied) const {
  for (std::size_t r = 0; r < members_.size(); ++r) {
    const Member& member = members_[r];
    const bool own = static_cast<int>(r) == rank_;
    if (own || !(copied || member.same_process)) TUTTI_TRY(transport::probe_mapping(member.pid, probes[r]));
  }
  return {};
}

bool Reach::failed(std::uint32_t peer, const Error& failure) {
  record_failure(failure_, failure.code, static_cast<int>(peer),
                 fmt::format("rank {}: copying from or to rank {}: {}", rank_, peer, failure.message));
  return false;
}

bool Reach::read(std::uint32_t peer, std::uint64_t address, std::byte* local, std::size_t bytes) {
  const Status status = transport::read_process(members_[peer].pid, address, local, bytes);
  return status.ok() || failed(peer, status.error());
}

bool Reach::write(std::uint32_t peer, std::uint64_t address, const std::byte* local, std::size_t bytes) {
  const Status status = transport::write_process(members_[peer].pid, address, local, bytes);
  return status.ok() || failed(peer, status.error());
}

}  // namespace tutti::comm
