/* bench/hosts' worker for the bare network: what an all-reduce must at least move, and nothing else. The first rank of each
 * host sends 2 (h-1)/h of the bytes to the next host and receives as many from the one before, both at once; nothing is
 * added up, announced or checked. */
#include "compare_worker.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { kHostsMax = 16, kPieceBytes = 1 << 20 };

typedef struct Connection {
  int to, from; /* sockets; -1 at ranks that are not the first of their host */
  unsigned char *out, *in;
  size_t bytes; /* of the buffers */
} Connection;

static Connection connection = {-1, -1, NULL, NULL, 0};

static void must(const Rank* rank, int result, const char* what) {
  if (result < 0) worker_fail(rank, "%s: %s", what, strerror(errno));
}

static int leads(const Rank* rank) { return rank->rank % rank->per_host == 0; }

static int open_socket(const Rank* rank) {
  const int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  must(rank, made, "socket");
  return made;
}

static void send_at_once(const Rank* rank, int file) {
  const int on = 1;
  must(rank, setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), "TCP_NODELAY");
}

/* All ranks learn all hosts' places from rank 0, one host after the other. */
static void open_rank(Rank* rank) {
  struct sockaddr_in places[kHostsMax];
  struct sockaddr_in mine;
  socklen_t bytes = sizeof mine;
  int listener = -1;
  const int host = rank->rank / rank->per_host;
  if (rank->hosts < 2 || rank->hosts > kHostsMax)
    worker_fail(rank, "%d hosts: expected 2 to %d", rank->hosts, kHostsMax);
  memset(&mine, 0, sizeof mine);
  mine.sin_family = AF_INET;
  if (leads(rank)) {
    if (inet_pton(AF_INET, rank->address, &mine.sin_addr) != 1) worker_fail(rank, "%s is no address", rank->address);
    listener = open_socket(rank);
    must(rank, bind(listener, (const struct sockaddr*)&mine, sizeof mine), "bind");
    must(rank, listen(listener, 4), "listen");
    must(rank, getsockname(listener, (struct sockaddr*)&mine, &bytes), "getsockname");
  }
  for (int n = 0; n < rank->hosts; ++n) {
    /* worker_share carries rank 0's word only: the others leave theirs there first. */
    if (leads(rank) && host == n) memcpy(rank->control->shared, &mine, sizeof mine);
    worker_barrier(rank);
    memcpy(&places[n], rank->control->shared, sizeof places[n]);
    worker_barrier(rank);
  }
  if (!leads(rank)) return;
  connection.to = open_socket(rank);
  const struct sockaddr_in* next = &places[(host + 1) % rank->hosts];
  must(rank, connect(connection.to, (const struct sockaddr*)next, sizeof *next), "connect");
  connection.from = accept(listener, NULL, NULL);
  must(rank, connection.from, "accept");
  send_at_once(rank, connection.to);
  send_at_once(rank, connection.from);
  close(listener);
}

static void begin(Cell* cell) {
  if (cell->collective != kAllReduce) worker_fail(cell->rank, "only an all-reduce's bytes are known here");
  const size_t hosts = (size_t)cell->rank->hosts;
  const size_t bytes = 2 * (hosts - 1) * cell->count * element_bytes(cell->type) / hosts;
  if (!leads(cell->rank)) return;
  connection.bytes = bytes > 0 ? bytes : 1;
  connection.out = malloc(connection.bytes);
  connection.in = malloc(connection.bytes);
  if (!connection.out || !connection.in) worker_fail(cell->rank, "no memory for %zu bytes", connection.bytes);
  memset(connection.out, 1, connection.bytes);
  memset(connection.in, 1, connection.bytes);
}

static void end(Cell* cell) {
  (void)cell;
  free(connection.out);
  free(connection.in);
  connection.out = connection.in = NULL;
}

static int is_for_now(void) { return errno == EAGAIN || errno == EINTR; }

static size_t piece(size_t left) { return left < kPieceBytes ? left : kPieceBytes; }

static void call(Cell* cell) {
  const Rank* rank = cell->rank;
  if (!leads(rank)) return;
  size_t sent = 0, received = 0;
  for (unsigned spins = 0; sent < connection.bytes || received < connection.bytes;) {
    ssize_t moved = 0;
    if (sent < connection.bytes) {
      moved = send(connection.to, connection.out + sent, piece(connection.bytes - sent), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (moved < 0 && !is_for_now()) worker_fail(rank, "send: %s", strerror(errno));
      if (moved > 0) sent += (size_t)moved;
    }
    ssize_t came = 0;
    if (received < connection.bytes) {
      came = recv(connection.from, connection.in + received, piece(connection.bytes - received), MSG_DONTWAIT);
      if (came == 0 || (came < 0 && !is_for_now())) worker_fail(rank, "recv: %s", came ? strerror(errno) : "the end");
      if (came > 0) received += (size_t)came;
    }
    spins = moved > 0 || came > 0 ? 0 : spins + 1;
    if (spins != 0) worker_pause(rank, spins > 100 ? 1u << 20 : spins);
  }
}

int main(int argc, char** argv) {
  static const Peer peer = {.open = open_rank, .begin = begin, .call = call, .end = end};
  return worker_main(argc, argv, &peer);
}
