// What the bootstrap's root tells every rank: the same comes out, and bytes that are cut or changed do no harm.
#include "comm/messages.h"

#include <catch2/catch.hpp>

#include <random>

using namespace tutti;
using comm::Bytes;
using comm::Peer;

namespace {

std::vector<Peer> peers_of(int ranks, int ranks_per_host) {
  std::vector<Peer> peers;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto number = static_cast<std::uint64_t>(rank) * 0x9e3779b97f4a7c15u;
    // Hosts in no order: rank r is on host r / ranks_per_host, or two of them by turns.
    const int host = rank / ranks_per_host ^ (rank & 1);
    peers.push_back(
        {rank, 1000 + rank, number, "host-" + std::to_string(host) + std::string(40, 'x'), number + 1, ~number});
  }
  return peers;
}

void check_same(const std::vector<Peer>& told, const std::vector<Peer>& heard) {
  REQUIRE(heard.size() == told.size());
  for (std::size_t i = 0; i < told.size(); ++i) {
    INFO("rank " << i);
    CHECK(heard[i].rank == told[i].rank);
    CHECK(heard[i].pid == told[i].pid);
    CHECK(heard[i].process_token == told[i].process_token);
    CHECK(heard[i].host == told[i].host);
    CHECK(heard[i].probe_address == told[i].probe_address);
    CHECK(heard[i].probe_value == told[i].probe_value);
  }
}

std::vector<Bytes> endpoints_of(int ranks) {
  std::vector<Bytes> all;
  for (int rank = 0; rank < ranks; ++rank) {
    Bytes one = {static_cast<std::uint8_t>(rank), static_cast<std::uint8_t>(rank * 7)};
    one.resize(2 + static_cast<std::size_t>(rank % 5 == 4 ? 0 : 60), static_cast<std::uint8_t>(rank / 8));
    all.push_back(one);
  }
  return all;
}

}  // namespace

TEST_CASE("the table of ranks comes back the same, each host's name once", "[messages]") {
  for (const int ranks : {1, 2, 7, 64, 1024}) {
    const std::vector<Peer> peers = peers_of(ranks, 8);
    const Bytes table = comm::encode(peers);
    const auto heard = comm::decode_table(table);
    REQUIRE(heard);
    check_same(peers, *heard);
    if (ranks == 1024) CHECK(table.size() < 48 * peers.size());
  }
}

TEST_CASE("a list of endpoints comes back the same, alike ones in a few bytes", "[messages]") {
  for (const int ranks : {1, 2, 7, 64, 1024}) {
    const std::vector<Bytes> all = endpoints_of(ranks);
    const Bytes list = comm::encode(all);
    const auto heard = comm::decode_list(list, ranks);
    REQUIRE(heard);
    CHECK(*heard == all);
    CHECK_FALSE(comm::decode_list(list, ranks + 1));
    if (ranks > 1) CHECK_FALSE(comm::decode_list(list, ranks - 1));
    if (ranks == 1024) CHECK(list.size() < 40 * all.size());
  }
}

TEST_CASE("tables and lists that are cut or changed are refused or read, and nothing worse", "[messages]") {
  const std::vector<Peer> peers = peers_of(9, 4);
  const Bytes table = comm::encode(peers);
  const Bytes list = comm::encode(endpoints_of(9));
  for (std::size_t size = 0; size < table.size(); ++size)
    CHECK_FALSE(comm::decode_table(Bytes(table.begin(), table.begin() + static_cast<std::ptrdiff_t>(size))));
  for (std::size_t size = 0; size < list.size(); ++size)
    CHECK_FALSE(comm::decode_list(Bytes(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(size)), 9));
  std::mt19937 random(20261122);
  for (int round = 0; round < 20000; ++round) {
    Bytes changed = round % 2 == 0 ? table : list;
    for (unsigned i = 0; i < 1 + random() % 3; ++i)
      changed[random() % changed.size()] = static_cast<std::uint8_t>(random());
    if (round % 2 == 0) {
      if (const auto heard = comm::decode_table(changed)) CHECK(heard->size() < 1000);
    } else if (const auto heard = comm::decode_list(changed, 9)) {
      CHECK(heard->size() == 9);
    }
  }
}

TEST_CASE("hosts whose long names differ at their ends only are two", "[messages]") {
  const auto heard_as = [](const std::string& host) {
    comm::Hello hello;
    hello.peer.host = host;
    const auto heard = comm::decode_hello(comm::encode(hello));
    REQUIRE(heard);
    return heard->peer.host;
  };
  const std::string long_name(300, 'x');
  CHECK(heard_as(long_name + "1") != heard_as(long_name + "2"));
  CHECK(heard_as(long_name + "1") == heard_as(long_name + "1"));
  CHECK(heard_as(long_name).starts_with(std::string(200, 'x')));
  CHECK(heard_as(std::string(256, 'y')) == std::string(256, 'y'));
}
