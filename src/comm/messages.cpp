#include "comm/messages.h"

#include <algorithm>
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
  return writer.text(cut(hello.peer.host, kHostBytesMax)).take();
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

Bytes encode(const ControlSize& control) { return WireWriter().number(control.bytes).number(control.fd).take(); }

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

bool spans_hosts(const std::vector<Peer>& peers) {
  return std::ranges::any_of(peers, [&](const Peer& peer) { return peer.host != peers.front().host; });
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

std::optional<ControlSize> decode_control(const Bytes& bytes) {
  WireReader reader(bytes);
  ControlSize control;
  control.bytes = reader.number<std::uint64_t>();
  control.fd = reader.number<std::int32_t>();
  return if_complete(reader, control);
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
