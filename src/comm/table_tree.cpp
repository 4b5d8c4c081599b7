#include "comm/table_tree.h"

#include "comm/carriers.h"

#include <fmt/format.h>

#include <poll.h>

#include <chrono>
#include <utility>

namespace tutti::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// For the tables to come from the parent, and for the children to take them: the parent may wait for a network as long as the mesh does.
constexpr auto kPassTime = std::chrono::seconds(60);
constexpr int kLookMs = 25;

/// A rank's tables on their way: from its parent, to its children.
class Passage {
 public:
  Passage(int rank, const TablePlace& place, const Patience& patience, RootClient& root)
      : rank_(rank), place_(place), patience_(patience), root_(root) {}

  Result<Tables> from_root() {
    Tables tables;
    TUTTI_TRY_ASSIGN(tables.peers, root_.expect(FrameType::kTable));
    TUTTI_TRY_ASSIGN(tables.endpoints, root_.expect(FrameType::kEndpoints));
    return tables;
  }

  Result<Tables> from_parent(Connection parent) {
    parent.accept_up_to(Connection::kRootPayloadMax);
    Tables tables;
    TUTTI_TRY_ASSIGN(tables.peers, receive(parent, FrameType::kTable));
    TUTTI_TRY_ASSIGN(tables.endpoints, receive(parent, FrameType::kEndpoints));
    return tables;
  }

  Status to_children(const Tables& tables, std::vector<Connection> children) {
    const Connection::SharedFrame frames[] = {Connection::make_frame(FrameType::kTable, tables.peers),
                                              Connection::make_frame(FrameType::kEndpoints, tables.endpoints)};
    for (Connection& child : children) {
      for (const Connection::SharedFrame& frame : frames) child.queue(frame);
    }
    for (;;) {
      std::vector<pollfd> watched;
      int slowest = -1;
      for (std::size_t i = 0; i < children.size(); ++i) {
        // A child that is gone is the root's to find.
        if (!children[i].flush() || !children[i].wants_to_write()) continue;
        slowest = place_.node.children[i];
        watched.push_back({children[i].fd(), POLLOUT, 0});
      }
      if (watched.empty()) return {};
      TUTTI_TRY(go_on(fmt::format("rank {} does not take the ranks' addresses from rank {}", slowest, rank_)));
      poll(watched.data(), watched.size(), kLookMs);
    }
  }

 private:
  Result<Bytes> receive(Connection& parent, FrameType type) {
    bool open = true;
    for (;;) {
      auto frame = parent.next();
      if (!frame.ok()) {
        return error(Code::kRemote, fmt::format("rank {} sent {}", place_.node.parent, frame.error().message));
      }
      if (frame.value() && frame.value()->type == type) return std::move(frame.value()->payload);
      if (frame.value()) {
        return error(Code::kInternal, fmt::format("rank {} sent frame {} where {} was expected", place_.node.parent,
                                                  static_cast<int>(frame.value()->type), static_cast<int>(type)));
      }
      // A parent that is gone is the root's to find, which tells the reason.
      TUTTI_TRY(go_on(fmt::format("rank {} did not get the ranks' addresses from rank {}", rank_, place_.node.parent)));
      pollfd watched = {open ? parent.fd() : -1, POLLIN, 0};
      poll(&watched, 1, kLookMs);
      if (open) open = parent.fill() == Connection::Input::kOpen;
    }
  }

  /// An error if there is no use in waiting for longer.
  Status go_on(const std::string& why) {
    if (auto failure = root_.failure_now()) return std::move(*failure);
    const Patience::Outcome outcome = patience_.now();
    if (outcome == Patience::Outcome::kCancelled) {
      return error(Code::kInvalidUsage, "the communicator was aborted while it was being initialised");
    }
    if (outcome == Patience::Outcome::kReady && Clock::now() < until_) return {};
    return error(Code::kRemote, why);
  }

  const int rank_;
  const TablePlace& place_;
  const Patience& patience_;
  RootClient& root_;
  const Clock::time_point until_ = Clock::now() + kPassTime;
};

void put_below(std::vector<TableNode>& nodes, int parent, int child) {
  nodes[static_cast<std::size_t>(child)].parent = parent;
  nodes[static_cast<std::size_t>(parent)].children.push_back(child);
}

}  // namespace

std::vector<TableNode> table_tree(const std::vector<Peer>& peers) {
  constexpr auto kChildren = static_cast<std::size_t>(kTableChildren);
  const HostRanks hosts = ranks_of_hosts(hosts_of(peers));
  std::vector<TableNode> nodes(peers.size());
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    const std::vector<int>& here = hosts[host];
    if (host >= kChildren) put_below(nodes, hosts[host / kChildren - 1].front(), here.front());
    for (std::size_t i = 1; i < here.size(); ++i) put_below(nodes, here[(i - 1) / kChildren], here[i]);
  }
  return nodes;
}

Bytes encode_place(const TableNode& node, const Bytes& parent) {
  WireWriter writer;
  writer.number(static_cast<std::int32_t>(node.parent)).number(static_cast<std::uint32_t>(parent.size())).raw(parent);
  writer.number(static_cast<std::uint32_t>(node.children.size()));
  for (const int child : node.children) writer.number(static_cast<std::int32_t>(child));
  return writer.take();
}

std::optional<TablePlace> decode_place(const Bytes& bytes, int rank, int ranks) {
  const auto is_other = [&](int other) { return other >= 0 && other < ranks && other != rank; };
  WireReader reader(bytes);
  TablePlace place;
  place.node.parent = reader.number<std::int32_t>();
  const auto parent = reader.raw(reader.number<std::uint32_t>());
  if (place.node.parent != TableNode::kRoot) {
    place.parent = decode_endpoint(parent);
    if (!place.parent || !is_other(place.node.parent)) return std::nullopt;
  }
  const auto children = reader.number<std::uint32_t>();
  for (std::uint32_t i = 0; i < children && reader.ok(); ++i) {
    place.node.children.push_back(reader.number<std::int32_t>());
    if (!is_other(place.node.children.back())) return std::nullopt;
  }
  if (!reader.complete()) return std::nullopt;
  return place;
}

Result<Tables> pass_tables(int rank, const TablePlace& place, Mesh& mesh, const Patience& patience, RootClient& root) {
  std::vector<Meeting> wanted;
  for (const int child : place.node.children) wanted.push_back({child, Purpose::kTables, nullptr});
  if (place.parent) wanted.push_back({place.node.parent, Purpose::kTables, &*place.parent});
  TUTTI_TRY_ASSIGN(auto met, mesh.meet(wanted, patience, root));
  std::optional<Connection> parent;
  if (place.parent) {
    parent = std::move(met.back());
    met.pop_back();
  }
  Passage passage(rank, place, patience, root);
  TUTTI_TRY_ASSIGN(Tables tables, parent ? passage.from_parent(std::move(*parent)) : passage.from_root());
  TUTTI_TRY(passage.to_children(tables, std::move(met)));
  return tables;
}

}  // namespace tutti::comm
