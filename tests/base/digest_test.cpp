#include "base/digest.h"

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <string>
#include <vector>

namespace {

std::span<const std::uint8_t> bytes(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

std::string hex(const tutti::Digest& digest) { return fmt::format("{:02x}", fmt::join(digest, "")); }

}  // namespace

TEST_CASE("SHA-256 of the FIPS 180-4 examples", "[sha256]") {
  CHECK(hex(tutti::sha256({})) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hex(tutti::sha256(bytes("abc"))) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hex(tutti::sha256(bytes("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))) ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(hex(tutti::sha256(bytes(std::string(1000000, 'a')))) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("HMAC-SHA-256 of the RFC 4231 cases", "[sha256]") {
  const auto mac = [](const std::string& key, const std::string& message) {
    return hex(tutti::hmac_sha256(bytes(key), bytes(message)));
  };
  CHECK(mac(std::string(20, '\x0b'), "Hi There") == "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(mac("Jefe", "what do ya want for nothing?") ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(mac(std::string(20, '\xaa'), std::string(50, '\xdd')) ==
        "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  std::string counted;
  for (char byte = 1; byte <= 25; ++byte) counted += byte;
  CHECK(mac(counted, std::string(50, '\xcd')) == "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  CHECK(mac(std::string(20, '\x0c'), "Test With Truncation").substr(0, 32) == "a3b6167473100ee06e0c796c2955552b");
  CHECK(mac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First") ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  CHECK(mac(std::string(131, '\xaa'),
            "This is a test using a larger than block-size key and a larger than block-size data. The key needs to be "
            "hashed before being used by the HMAC algorithm.") ==
        "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST_CASE("digests are compared whole", "[sha256]") {
  const tutti::Digest digest = tutti::sha256(bytes("abc"));
  CHECK(tutti::same_digest(digest, digest));
  for (std::size_t i = 0; i < digest.size(); ++i) {
    tutti::Digest other = digest;
    other[i] ^= 0x10;
    CHECK_FALSE(tutti::same_digest(digest, other));
  }
}
