#include "base/digest.h"

#include <sodium.h>

#include "base/assert.h"

namespace tutti {
namespace {

// Once in a process, before anything else of libsodium's; another user of it in the process has a copy of its own.
void begin() {
  static const bool begun = sodium_init() >= 0;
  TUTTI_ASSERT(begun);
}

}  // namespace

Digest sha256(std::span<const std::uint8_t> bytes) {
  begin();
  Digest digest;
  static_assert(sizeof(digest) == crypto_hash_sha256_BYTES);
  crypto_hash_sha256(digest.data(), bytes.data(), bytes.size());
  return digest;
}

Digest hmac_sha256(std::span<const std::uint8_t> key, std::span<const std::uint8_t> message) {
  begin();
  Digest digest;
  static_assert(sizeof(digest) == crypto_auth_hmacsha256_BYTES);
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, key.data(), key.size());
  crypto_auth_hmacsha256_update(&state, message.data(), message.size());
  crypto_auth_hmacsha256_final(&state, digest.data());
  sodium_memzero(&state, sizeof(state));
  return digest;
}

bool same_digest(const Digest& a, const Digest& b) {
  begin();
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace tutti
