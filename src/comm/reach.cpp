#include "comm/reach.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace tutti::comm {
namespace {

void describe_buffer(const void* address, std::size_t bytes, protocol::BufferReference& buffer, std::int32_t& fd,
                     bool& mappable) {
  buffer = {reinterpret_cast<std::uint64_t>(address), 0};
  fd = -1;
  if (bytes == 0) return;
  if (const auto shared = transport::shared_find(address, bytes)) {
    buffer = {shared->inode, shared->offset};
    fd = shared->fd;
  } else {
    mappable = false;
  }
}

}  // namespace

Reach::Reach(int rank, std::span<const Peer> peers, FailureRecord& failure) : rank_(rank), failure_(failure) {
  const std::uint64_t own = peers[rank].process_token;
  for (const Peer& peer : peers) {
    const bool same = peer.process_token == own;
    one_process_ = one_process_ && same;
    members_.push_back({peer.pid, same, peer.probe_address, peer.probe_value, 0, {}});
  }
}

Reach::~Reach() {
  for (const Member& member : members_) transport::ImportCache::process().drop(member.pid);
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

Result<std::uint64_t> Reach::mapped_address(Member& member, const protocol::BufferReference& buffer, std::int32_t fd) {
  for (const Held& held : member.held) {
    if (held.inode == buffer.address) return reinterpret_cast<std::uint64_t>(held.memory.get()) + buffer.offset;
  }
  transport::SharedReference segment;
  segment.fd = fd;
  segment.inode = buffer.address;
  auto memory = transport::ImportCache::process().hold(member.pid, segment);
  if (!memory.ok()) return std::move(memory).error();
  member.held.push_back({buffer.address, memory.value()});
  return reinterpret_cast<std::uint64_t>(member.held.back().memory.get()) + buffer.offset;
}

Status Reach::resolve(int peer, const protocol::BufferReferences& announced, bool input,
                      protocol::PeerBuffers& buffers) {
  Member& member = members_[peer];
  // A rank of the same process is no exception: beside processes it announces segments too.
  // An older announcement (of a call that another one has overtaken in a group) is no news.
  if (static_cast<std::int32_t>(announced.reserved - member.freed) > 0) {
    std::ranges::move(member.held, std::back_inserter(retired_));
    member.held.clear();
    ++drops_;
    transport::ImportCache::process().drop(member.pid);
    member.freed = announced.reserved;
  }
  const protocol::BufferReference& buffer = input ? announced.input : announced.output;
  const std::int32_t fd = input ? announced.input_fd : announced.output_fd;
  std::uint64_t& address = input ? buffers.input : buffers.output;
  buffers.mapped = member.same_process || fd >= 0;
  address = buffer.address;
  if (fd < 0) return {};
  TUTTI_TRY_ASSIGN(address, mapped_address(member, buffer, fd));
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
