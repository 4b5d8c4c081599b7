// SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104), for the handshake between processes. Small rather than fast.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tutti {

using Digest = std::array<std::uint8_t, 32>;

class Sha256 {
 public:
  void add(std::span<const std::uint8_t> bytes);
  /// Call once; nothing may be added afterwards.
  Digest finish();

 private:
  void absorb(const std::uint8_t* block);

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::uint8_t, 64> block_ = {};
  std::uint64_t total_bytes_ = 0;
};

Digest sha256(std::span<const std::uint8_t> bytes);
Digest hmac_sha256(std::span<const std::uint8_t> key, std::span<const std::uint8_t> message);

/// Takes the same time wherever the difference is.
bool same_digest(const Digest& a, const Digest& b);

}  // namespace tutti
