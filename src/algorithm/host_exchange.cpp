// All-to-all by rails: between hosts only ranks of equal places talk to each other, so that a rank has H - 1 peers on other
// hosts instead of all their ranks. A block for place p of another host goes to place p of its own host first, which hands
// it on without storing it.
//
// From: the relay through the GPU next to the NIC ("PXN") of NCCL 2.12's all-to-all.
//
// The blocks of distance d between hosts and e between places are one turn together with those of -d and -e: first both are
// sent, then handed on, then received. So in place each block is sent before what comes from there overwrites it, and a
// channel never holds more than two.
#include "algorithm/host_rails.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace tutti::algorithm {

namespace {

class Exchange {
 public:
  Exchange(const HostRails& rails, int rank) : rails_(rails), rank_(rank), host_(rails.host_of(rank)) {
    for (int host = 0; host < rails.hosts(); ++host)
      places_ = std::max(places_, static_cast<int>(rails.group(host).size()));
  }

  LaneProgram program() {
    for (int host = 0; host < rails_.hosts(); ++host) {
      for (const int peer : rails_.group(host)) {
        send_to(peer);
        receive_from(peer);
        if (host != host_ && rails_.carrier_towards(host_, peer) == rank_) hand_on_to(peer);
      }
    }
    std::ranges::stable_sort(due_, {}, [](const Due& due) { return std::tuple(due.turn, due.phase, due.distance); });
    LaneProgram lane;
    for (const Due& due : due_) step(lane).from(due.from).to(due.to);
    return lane;
  }

 private:
  enum Phase { kSend, kHandOn, kReceive };
  struct Due {
    int turn;
    Phase phase;
    int distance;
    Endpoint from;
    Endpoint to;
  };

  /// Of what `from` sends to `to`: hosts and places apart, as one number, and the smaller of it and the one the other way.
  std::pair<int, int> turn(int from, int to) const {
    const int hosts = rails_.hosts();
    const int d = around(rails_.host_of(to), -rails_.host_of(from), hosts);
    const int e = around(rails_.place_of(to), -rails_.place_of(from), places_);
    const int there = d * places_ + e;
    const int back = (hosts - d) % hosts * places_ + (places_ - e) % places_;
    return {std::min(there, back), there};
  }

  void add(int from, int to, Phase phase, const Endpoint& source, const Endpoint& sink) {
    const auto [first, distance] = turn(from, to);
    due_.push_back({first, phase, distance, source, sink});
  }

  void send_to(int peer) {
    const Endpoint block = input({index(peer)});
    if (peer == rank_) {
      add(rank_, peer, kSend, block, output({index(peer)}));
    } else if (rails_.host_of(peer) == host_) {
      add(rank_, peer, kSend, block, pull(peer, block));
    } else if (const int carrier = rails_.carrier_towards(host_, peer); carrier != rank_) {
      add(rank_, peer, kSend, block, message(carrier));
    }
  }

  void hand_on_to(int peer) {
    for (const int from : rails_.group(host_))
      add(from, peer, kHandOn, from == rank_ ? input({index(peer)}) : message(from), message(peer));
  }

  void receive_from(int peer) {
    if (peer == rank_) return;
    const Endpoint place = output({index(peer)});
    const int host = rails_.host_of(peer);
    add(peer, rank_, kReceive,
        host == host_ ? pull(peer, input({index(rank_)})) : message(rails_.carrier_towards(host, rank_)), place);
  }

  const HostRails& rails_;
  int rank_;
  int host_;
  int places_ = 1;
  std::vector<Due> due_;
};

}  // namespace

LaneProgram exchange_by_rails(const HostRails& rails, int rank) { return Exchange(rails, rank).program(); }

}  // namespace tutti::algorithm
