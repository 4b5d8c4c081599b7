// SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104) by libsodium, for the handshake between processes.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace tutti {

using Digest = std::array<std::uint8_t, 32>;

Digest sha256(std::span<const std::uint8_t> bytes);
/// key: of any length.
Digest hmac_sha256(std::span<const std::uint8_t> key, std::span<const std::uint8_t> message);

/// Takes the same time wherever the difference is.
bool same_digest(const Digest& a, const Digest& b);

}  // namespace tutti
