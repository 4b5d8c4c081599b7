#include "comm/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>

namespace tutti::comm {
namespace {

constexpr std::size_t kHostBytesMax = 256;
constexpr std::size_t kReasonBytesMax = 700;

std::string_view cut(std::string_view text, std::size_t size_max) { return text.substr(0, size_max); }

std::span<const std::uint8_t> as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

/// A longer name is told from others by all of it.
[[gnu::cold]] std::string shortened(const std::string& host) {
  const Digest digest = sha256(as_bytes(host));
  std::uint64_t hash = 0;
  std::memcpy(&hash, digest.data(), sizeof(hash));
  return fmt::format("{}~{:016x}", cut(host, kHostBytesMax - 2 * sizeof(hash) - 1), hash);
}

template <std::size_t N>
void read_array(WireReader& reader, std::array<std::uint8_t, N>& out) {
  const auto part = reader.raw(N);
  std::copy(part.begin(), part.end(), out.begin());
}

Bytes handshake_so_far(std::string_view direction, const Greeting& greeting, const Challenge& challenge) {
  WireWriter writer;
  writer.raw(as_bytes(direction)).number(greeting.version).raw(greeting.nonce);
  writer.number(challenge.version).raw(challenge.nonce);
  return writer.take();
}

/// All but the host.
void write(WireWriter& writer, const Peer& peer) {
  writer.number(peer.rank).number(peer.pid).number(peer.process_token).number(peer.probe_address);
  writer.number(peer.probe_value);
}

Peer read_peer(WireReader& reader) {
  Peer peer;
  peer.rank = reader.number<std::int32_t>();
  peer.pid = reader.number<std::int32_t>();
  peer.process_token = reader.number<std::uint64_t>();
  peer.probe_address = reader.number<std::uint64_t>();
  peer.probe_value = reader.number<std::uint64_t>();
  return peer;
}

template <class T>
std::optional<T> if_complete(const WireReader& reader, T value) {
  if (!reader.complete()) return std::nullopt;
  return value;
}

}  // namespace

Secret secret_of(const UniqueId& id) {
  Secret secret;
  std::memcpy(secret.data(), id.secret, secret.size());
  return secret;
}

Digest root_proof(const Secret& secret, const Greeting& greeting, const Challenge& challenge) {
  return hmac_sha256(secret, handshake_so_far("tutti root to rank", greeting, challenge));
}

Digest rank_proof(const Secret& secret, const Greeting& greeting, const Challenge& challenge, FrameType type,
                  std::span<const std::uint8_t> body) {
  WireWriter writer;
  writer.raw(handshake_so_far("tutti rank to root", greeting, challenge));
  writer.number(static_cast<std::uint32_t>(type)).raw(body);
  return hmac_sha256(secret, writer.take());
}

Bytes encode(const Greeting& greeting) { return WireWriter().number(greeting.version).raw(greeting.nonce).take(); }

Bytes encode(const Challenge& challenge) {
  return WireWriter().number(challenge.version).raw(challenge.nonce).raw(challenge.proof).take();
}

Bytes encode(const Hello& hello) {
  WireWriter writer;
  writer.number(hello.ranks);
  write(writer, hello.peer);
  const std::string& host = hello.peer.host;
  writer.text(host.size() > kHostBytesMax ? shortened(host) : host);
  write_place(writer, hello.place);
  return writer.take();
}

Bytes encode(const std::vector<Peer>& peers) {
  std::map<std::string_view, std::uint32_t> numbers;
  WireWriter hosts;
  WireWriter entries;
  for (const Peer& peer : peers) {
    const std::string_view host = cut(peer.host, kHostBytesMax);
    const auto [known, fresh] = numbers.try_emplace(host, static_cast<std::uint32_t>(numbers.size()));
    if (fresh) hosts.text(host);
    write(entries, peer);
    entries.number(known->second);
  }
  WireWriter writer;
  writer.number(static_cast<std::uint32_t>(numbers.size())).number(static_cast<std::uint32_t>(peers.size()));
  return writer.raw(hosts.take()).raw(entries.take()).take();
}

Bytes encode(const std::vector<Bytes>& endpoints) {
  WireWriter writer;
  std::span<const std::uint8_t> before;
  for (const Bytes& endpoint : endpoints) {
    const auto end = std::ranges::mismatch(endpoint.rbegin(), endpoint.rend(), before.rbegin(), before.rend()).in1;
    const auto alike = static_cast<std::size_t>(end - endpoint.rbegin());
    const auto own = std::span(endpoint).first(endpoint.size() - alike);
    writer.number(static_cast<std::uint16_t>(own.size())).number(static_cast<std::uint16_t>(alike)).raw(own);
    before = endpoint;
  }
  return writer.take();
}

Bytes encode(const TreePlace& place) {
  WireWriter writer;
  writer.number(place.parent).number(place.pid);
  write_place(writer, place.place);
  return writer.take();
}

Bytes encode(const FromRank& from) {
  WireWriter writer;
  writer.number(from.rank).number(static_cast<std::uint32_t>(from.frame.type));
  return writer.raw(from.frame.payload).take();
}

Bytes encode(const std::vector<ControlFile>& controls) {
  WireWriter writer;
  writer.number(static_cast<std::uint32_t>(controls.size()));
  for (const ControlFile& control : controls) writer.number(control.leader).number(control.bytes).number(control.fd);
  return writer.take();
}

Bytes encode_rank(int rank) { return WireWriter().number(static_cast<std::int32_t>(rank)).take(); }

Bytes encode(const Silence& silence) {
  return WireWriter().number(silence.rank).number(static_cast<std::uint64_t>(silence.seconds * 1000)).take();
}

Bytes encode(const Leave& leave) {
  return WireWriter()
      .number(static_cast<std::uint8_t>(leave.timed_out))
      .text(cut(leave.reason, kReasonBytesMax))
      .take();
}

Bytes encode(const Error& failure) {
  return WireWriter()
      .number(static_cast<std::int32_t>(failure.code))
      .text(cut(failure.message, kReasonBytesMax))
      .take();
}

std::optional<Greeting> decode_greeting(const Bytes& bytes) {
  WireReader reader(bytes);
  Greeting greeting{reader.number<std::uint32_t>(), {}};
  read_array(reader, greeting.nonce);
  return if_complete(reader, greeting);
}

std::optional<Challenge> decode_challenge(const Bytes& bytes) {
  WireReader reader(bytes);
  Challenge challenge{reader.number<std::uint32_t>(), {}, {}};
  read_array(reader, challenge.nonce);
  read_array(reader, challenge.proof);
  return if_complete(reader, challenge);
}

std::optional<Hello> decode_hello(std::span<const std::uint8_t> bytes) {
  WireReader reader(bytes);
  Hello hello;
  hello.ranks = reader.number<std::int32_t>();
  hello.peer = read_peer(reader);
  hello.peer.host = reader.text(kHostBytesMax);
  auto place = read_place(reader);
  if (!place) return std::nullopt;
  hello.place = *std::move(place);
  return if_complete(reader, std::move(hello));
}

std::optional<std::vector<Peer>> decode_table(const Bytes& bytes) {
  WireReader reader(bytes);
  const auto host_count = reader.number<std::uint32_t>();
  const auto count = reader.number<std::uint32_t>();
  std::vector<std::string> hosts;
  while (reader.ok() && hosts.size() < host_count) hosts.push_back(reader.text(kHostBytesMax));
  std::vector<Peer> peers;
  while (reader.ok() && peers.size() < count) {
    peers.push_back(read_peer(reader));
    const auto host = reader.number<std::uint32_t>();
    if (host >= hosts.size()) return std::nullopt;
    peers.back().host = hosts[host];
  }
  return if_complete(reader, std::move(peers));
}

std::optional<std::vector<Bytes>> decode_list(const Bytes& bytes, int count) {
  WireReader reader(bytes);
  std::vector<Bytes> all;
  for (int i = 0; i < count && reader.ok(); ++i) {
    const auto own_bytes = reader.number<std::uint16_t>();
    const auto alike = reader.number<std::uint16_t>();
    if (std::size_t{own_bytes} + alike > Connection::kStrangerPayloadMax) return std::nullopt;
    const auto own = reader.raw(own_bytes);
    Bytes one(own.begin(), own.end());
    if (alike != 0) {
      if (all.empty() || alike > all.back().size()) return std::nullopt;
      one.insert(one.end(), all.back().end() - alike, all.back().end());
    }
    all.push_back(std::move(one));
  }
  return if_complete(reader, std::move(all));
}

std::optional<TreePlace> decode_tree_place(const Bytes& bytes) {
  WireReader reader(bytes);
  TreePlace place;
  place.parent = reader.number<std::int32_t>();
  place.pid = reader.number<std::int32_t>();
  auto where = read_place(reader);
  if (!where) return std::nullopt;
  place.place = *std::move(where);
  return if_complete(reader, std::move(place));
}

std::optional<FromRank> decode_from(std::span<const std::uint8_t> bytes) {
  WireReader reader(bytes);
  FromRank from;
  from.rank = reader.number<std::int32_t>();
  from.frame.type = static_cast<FrameType>(reader.number<std::uint32_t>());
  if (!reader.ok()) return std::nullopt;
  const auto payload = bytes.subspan(sizeof(std::int32_t) + sizeof(std::uint32_t));
  from.frame.payload.assign(payload.begin(), payload.end());
  return from;
}

std::optional<std::vector<ControlFile>> decode_controls(const Bytes& bytes) {
  WireReader reader(bytes);
  const auto count = reader.number<std::uint32_t>();
  std::vector<ControlFile> controls;
  while (reader.ok() && controls.size() < count) {
    ControlFile& control = controls.emplace_back();
    control.leader = reader.number<std::int32_t>();
    control.bytes = reader.number<std::uint64_t>();
    control.fd = reader.number<std::int32_t>();
  }
  return if_complete(reader, std::move(controls));
}

std::optional<int> decode_rank(const Bytes& bytes) {
  WireReader reader(bytes);
  const auto rank = reader.number<std::int32_t>();
  return if_complete(reader, static_cast<int>(rank));
}

std::optional<Silence> decode_silence(const Bytes& bytes) {
  WireReader reader(bytes);
  const auto rank = reader.number<std::int32_t>();
  const auto milliseconds = reader.number<std::uint64_t>();
  return if_complete(reader, Silence{rank, static_cast<double>(milliseconds) / 1000});
}

std::optional<Leave> decode_leave(const Bytes& bytes) {
  WireReader reader(bytes);
  Leave leave;
  leave.timed_out = reader.number<std::uint8_t>() != 0;
  leave.reason = reader.text(kReasonBytesMax);
  return if_complete(reader, std::move(leave));
}

std::optional<Error> decode_failure(const Bytes& bytes) {
  WireReader reader(bytes);
  const auto code = reader.number<std::int32_t>();
  std::string reason = reader.text(kReasonBytesMax);
  if (code < static_cast<int>(Code::kUnhandledCuda) || code > static_cast<int>(Code::kRemote)) return std::nullopt;
  return if_complete(reader, error(static_cast<Code>(code), std::move(reason)));
}

}  // namespace tutti::comm
