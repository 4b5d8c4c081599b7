// bench/compare's worker for Gloo: TCP, over the loopback interface within a host, which is all that its Debian package has
// there. Ranks meet in files of a folder.
// Machines without Gloo have tools too that read every file.
#if __has_include(<gloo/allreduce.h>)

#include "compare_worker.h"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

namespace {

/// gloo::sum has overloads; this is the one that its options take.
using Sum = void (*)(void*, const void*, const void*, std::size_t);

struct Connection {
  std::shared_ptr<gloo::rendezvous::Context> context;
  Sum sum = nullptr;
  bool bcube = false;
};

Connection* connection_of(const Cell* cell) { return static_cast<Connection*>(cell->rank->context); }

Sum sum_of(const Cell& cell) {
  switch (cell.type) {
    case kFloat: return &gloo::sum<float>;
    case kDouble: return &gloo::sum<double>;
    case kInt32: return &gloo::sum<std::int32_t>;
    case kHalf: return &gloo::sum<gloo::float16>;
    default: worker_fail(cell.rank, "Gloo has no such data type");
  }
}

void connect(Rank* rank) {
  char folder[] = "/tmp/compare-gloo-XXXXXX";
  if (rank->rank == 0 && mkdtemp(folder) == nullptr) worker_fail(rank, "cannot make a folder in /tmp");
  worker_share(rank, folder, sizeof folder);
  gloo::rendezvous::FileStore store(folder);
  auto device = gloo::transport::tcp::CreateDevice(rank->address);
  auto* connection = new Connection;  // lives as long as the process
  connection->context = std::make_shared<gloo::rendezvous::Context>(rank->rank, rank->ranks);
  connection->context->connectFullMesh(store, device);
  rank->context = connection;
  worker_barrier(rank);
  std::error_code ignored;
  if (rank->rank == 0) std::filesystem::remove_all(folder, ignored);
}

/// Gloo moves bytes; the type matters for sums only, and its buffers want one all the same.
template <class T>
void run(Cell* cell) {
  Connection& connection = *connection_of(cell);
  const auto& context = connection.context;
  T* send = reinterpret_cast<T*>(cell->send);
  T* receive = reinterpret_cast<T*>(cell->receive);
  switch (cell->collective) {
    case kAllReduce: {
      gloo::AllreduceOptions options(context);
      if (!cell->in_place) options.setInput(send, cell->count);
      options.setOutput(receive, cell->count);
      options.setReduceFunction(connection.sum);
      using Algorithm = gloo::AllreduceOptions::Algorithm;
      options.setAlgorithm(connection.bcube ? Algorithm::BCUBE : Algorithm::RING);
      return gloo::allreduce(options);
    }
    case kReduce: {
      gloo::ReduceOptions options(context);
      if (!cell->in_place) options.setInput(send, cell->count);
      options.setOutput(receive, cell->count);
      options.setReduceFunction(connection.sum);
      options.setRoot(0);
      return gloo::reduce(options);
    }
    case kBroadcast: {
      gloo::BroadcastOptions options(context);
      options.setOutput(receive, cell->count);
      options.setRoot(0);
      return gloo::broadcast(options);
    }
    case kAllGather: {
      gloo::AllgatherOptions options(context);
      if (!cell->in_place) options.setInput(send, cell->part);
      options.setOutput(receive, cell->count);
      return gloo::allgather(options);
    }
    case kAllToAll: {
      gloo::AlltoallOptions options(context);
      options.setInput(send, cell->count);
      options.setOutput(receive, cell->count);
      return gloo::alltoall(options);
    }
    default: {
      const int ranks = cell->rank->ranks, me = cell->rank->rank;
      const auto outgoing = context->createUnboundBuffer(send, cell->count * sizeof(T));
      const auto incoming = context->createUnboundBuffer(receive, cell->count * sizeof(T));
      constexpr std::uint64_t kSlot = 1;
      outgoing->send((me + 1) % ranks, kSlot);
      incoming->recv((me + ranks - 1) % ranks, kSlot);
      outgoing->waitSend();
      incoming->waitRecv();
    }
  }
}

void open_rank(Rank* rank) {
  try {
    connect(rank);
  } catch (const std::exception& problem) {
    worker_fail(rank, "%s", problem.what());
  }
}

void begin(Cell* cell) {
  if (cell->collective == kReduceScatter) worker_fail(cell->rank, "Gloo has no reduce_scatter of this form");
  connection_of(cell)->sum = sum_of(*cell);
  connection_of(cell)->bcube = std::strcmp(cell->variant, "bcube") == 0;
}

void call(Cell* cell) {
  try {
    switch (element_bytes(cell->type)) {
      case 2: return run<gloo::float16>(cell);
      case 4: return run<float>(cell);
      default: return run<double>(cell);
    }
  } catch (const std::exception& problem) {
    worker_fail(cell->rank, "%s", problem.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  Peer peer{};
  peer.open = open_rank;
  peer.begin = begin;
  peer.call = call;
  return worker_main(argc, argv, &peer);
}

#endif
