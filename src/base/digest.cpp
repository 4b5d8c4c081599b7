#include "base/digest.h"

#include <sodium.h>

#include "base/assert.h"
#include "base/first_use.h"

#include <atomic>

namespace tutti {
namespace {

constinit std::atomic<bool> has_begun{false};

// Once in a process, before anything else of libsodium's; another user of it in the process has a copy of its own.
void begin() {
  if (has_begun.load(std::memory_order_acquire)) return;
  const FirstUse first_use;
  TUTTI_ASSERT(sodium_init() >= 0);  // again if another thread has been here meanwhile, which does nothing
  has_begun.store(true, std::memory_order_release);
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
