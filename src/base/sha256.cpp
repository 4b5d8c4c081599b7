#include "base/sha256.h"

#include <algorithm>
#include <bit>

namespace tutti {
namespace {

/// FIPS 180-4, 4.2.2: the first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t load_big_endian(const std::uint8_t* p) {
  return std::uint32_t{p[0]} << 24 | std::uint32_t{p[1]} << 16 | std::uint32_t{p[2]} << 8 | p[3];
}

}  // namespace

void Sha256::absorb(const std::uint8_t* block) {
  std::uint32_t w[64];
  for (int t = 0; t < 16; ++t) w[t] = load_big_endian(block + 4 * t);
  for (int t = 16; t < 64; ++t) {
    const std::uint32_t low = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
    const std::uint32_t high = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
    w[t] = w[t - 16] + low + w[t - 7] + high;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (int t = 0; t < 64; ++t) {
    const std::uint32_t sum_e = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t sum_a = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t first = h + sum_e + ((e & f) ^ (~e & g)) + kRound[t] + w[t];
    const std::uint32_t second = sum_a + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + first;
    d = c;
    c = b;
    b = a;
    a = first + second;
  }
  const std::uint32_t change[8] = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) state_[i] += change[i];
}

void Sha256::add(std::span<const std::uint8_t> bytes) {
  std::size_t filled = total_bytes_ % 64;
  total_bytes_ += bytes.size();
  while (!bytes.empty()) {
    const std::size_t taken = std::min(bytes.size(), 64 - filled);
    std::copy_n(bytes.begin(), taken, block_.begin() + static_cast<std::ptrdiff_t>(filled));
    bytes = bytes.subspan(taken);
    filled += taken;
    if (filled < 64) return;
    absorb(block_.data());
    filled = 0;
  }
}

Digest Sha256::finish() {
  const std::uint64_t bits = total_bytes_ * 8;
  // A one bit, zeros up to 8 bytes before a block's end, the length in bits.
  std::uint8_t padding[72] = {0x80};
  const std::size_t zeros_end = (total_bytes_ % 64 < 56 ? 56 : 120) - total_bytes_ % 64;
  for (int i = 0; i < 8; ++i) padding[zeros_end + i] = static_cast<std::uint8_t>(bits >> (56 - 8 * i));
  add({padding, zeros_end + 8});
  Digest digest;
  for (std::size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<std::uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  }
  return digest;
}

Digest sha256(std::span<const std::uint8_t> bytes) {
  Sha256 hash;
  hash.add(bytes);
  return hash.finish();
}

Digest hmac_sha256(std::span<const std::uint8_t> key, std::span<const std::uint8_t> message) {
  std::array<std::uint8_t, 64> padded = {};
  if (key.size() > padded.size()) {
    const Digest short_key = sha256(key);
    std::copy(short_key.begin(), short_key.end(), padded.begin());
  } else {
    std::copy(key.begin(), key.end(), padded.begin());
  }
  std::array<std::uint8_t, 64> inner_key;
  std::array<std::uint8_t, 64> outer_key;
  for (std::size_t i = 0; i < padded.size(); ++i) {
    inner_key[i] = padded[i] ^ 0x36;
    outer_key[i] = padded[i] ^ 0x5c;
  }
  Sha256 inner;
  inner.add(inner_key);
  inner.add(message);
  Sha256 outer;
  outer.add(outer_key);
  outer.add(inner.finish());
  return outer.finish();
}

bool same_digest(const Digest& a, const Digest& b) {
  std::uint8_t difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

}  // namespace tutti
