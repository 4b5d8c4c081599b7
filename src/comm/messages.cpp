#include "comm/messages.h"

#include <algorithm>

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

void write(WireWriter& writer, const Peer& peer) {
  writer.number(peer.rank).number(peer.pid).number(peer.process_token).number(peer.probe_address);
  writer.number(peer.probe_value).text(cut(peer.host, kHostBytesMax));
}

Peer read_peer(WireReader& reader) {
  Peer peer;
  peer.rank = reader.number<std::int32_t>();
  peer.pid = reader.number<std::int32_t>();
  peer.process_token = reader.number<std::uint64_t>();
  peer.probe_address = reader.number<std::uint64_t>();
  peer.probe_value = reader.number<std::uint64_t>();
  peer.host = reader.text(kHostBytesMax);
  return peer;
}

template <class T>
std::optional<T> if_complete(const WireReader& reader, T value) {
  if (!reader.complete()) return std::nullopt;
  return value;
}

}  // namespace

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
  return writer.take();
}

Bytes encode(const std::vector<Peer>& peers) {
  WireWriter writer;
  writer.number(static_cast<std::uint32_t>(peers.size()));
  for (const Peer& peer : peers) write(writer, peer);
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
  return if_complete(reader, std::move(hello));
}

std::optional<std::vector<Peer>> decode_table(const Bytes& bytes) {
  WireReader reader(bytes);
  const auto count = reader.number<std::uint32_t>();
  std::vector<Peer> peers;
  while (reader.ok() && peers.size() < count) peers.push_back(read_peer(reader));
  return if_complete(reader, std::move(peers));
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
