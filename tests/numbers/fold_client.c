/* Reductions on given numbers, for tests that know no C: reads calls from standard input, runs them on ranks that are
 * threads, processes or both, and prints what each rank got.
 *
 *   fold-client 2,1,2 < calls                   five ranks in three processes
 *   fold-client 2,1,2 all|first < calls         all ranks (the first rank) ask for a reproducible communicator
 *
 * Input, by lines:
 *   data BYTES COUNT                then a line for each rank: COUNT elements of BYTES bytes each, as hex bytes
 *   call COLLECTIVE TYPE OP ROOT FIRST COUNT MEMORY SEND_SHIFT RECEIVE_SHIFT IN_PLACE [a scale for each rank, as hex bytes]
 * A call's inputs are the data's elements from FIRST on. COLLECTIVE: all_reduce, reduce, reduce_scatter; TYPE and OP: NCCL's
 * numbers, OP 5 is PreMulSum; MEMORY: private or shared; the buffers begin SEND_SHIFT and RECEIVE_SHIFT bytes after a page.
 * Output: for each call and rank the hex bytes it got, "=" if they are those of the first rank that got any, "-" if it gets none. */
#include <tutti/tutti.h>

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kRanksMax = 64, kCallsMax = 4096, kDataMax = 64, kPage = 4096, kPoison = 0xb9, kScaled = 5 };

typedef struct {
  size_t element_bytes, count;
  unsigned char* ranks[kRanksMax];
} Data;

typedef struct {
  const Data* data;
  char collective[24], memory[8];
  int type, op, root, in_place;
  size_t first, count, send_shift, receive_shift;
  unsigned char scales[kRanksMax][8];
  unsigned char* results; /* of all ranks, shared by all processes */
} Call;

static Data datas[kDataMax];
static Call calls[kCallsMax];
static int data_count, call_count, rank_count;
static const char* asking = ""; /* which ranks ask for reproducible sums */

/* Shared by all processes. The id is made when all ranks are forked: its threads must not hold a sanitizer's locks then. */
typedef struct {
  int made;
  ncclUniqueId id;
} Meeting;
static Meeting* meeting;

static void require(int good, const char* what) {
  if (good) return;
  fprintf(stderr, "fold-client: %s: %s\n", what, ncclGetLastError(NULL));
  exit(1);
}

static unsigned nibble(char digit) {
  require((digit >= '0' && digit <= '9') || (digit >= 'a' && digit <= 'f'), "hex bytes");
  return (unsigned)(digit <= '9' ? digit - '0' : digit - 'a' + 10);
}

static void read_hex(const char* text, unsigned char* to, size_t bytes) {
  size_t i;
  for (i = 0; i < bytes; ++i) to[i] = (unsigned char)(nibble(text[2 * i]) << 4 | nibble(text[2 * i + 1]));
}

static size_t output_bytes(const Call* c) { return c->count * c->data->element_bytes; }
static int has_output(const Call* c, int rank) { return strcmp(c->collective, "reduce") != 0 || rank == c->root; }

static void read_data(const char* line) {
  Data* data = &datas[data_count++];
  char* text = NULL;
  size_t room = 0;
  int r;
  require(data_count <= kDataMax && sscanf(line, "data %zu %zu", &data->element_bytes, &data->count) == 2, line);
  for (r = 0; r < rank_count; ++r) {
    const size_t bytes = data->element_bytes * data->count;
    require(getline(&text, &room, stdin) == (ssize_t)(2 * bytes + 1), "a line of data");
    data->ranks[r] = malloc(bytes + 1);
    read_hex(text, data->ranks[r], bytes);
  }
  free(text);
}

static void read_call(const char* line) {
  Call* c = &calls[call_count++];
  int used = 0, r;
  require(call_count <= kCallsMax, "too many calls");
  require(sscanf(line, "call %23s %d %d %d %zu %zu %7s %zu %zu %d%n", c->collective, &c->type, &c->op, &c->root,
                 &c->first, &c->count, c->memory, &c->send_shift, &c->receive_shift, &c->in_place, &used) == 10,
          line);
  c->data = &datas[data_count - 1];
  for (r = 0; c->op == kScaled && r < rank_count; ++r) {
    read_hex(line + used + 1, c->scales[r], c->data->element_bytes);
    used += 1 + 2 * (int)c->data->element_bytes;
  }
  c->results =
      mmap(NULL, (size_t)rank_count * output_bytes(c) + 1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  require(c->results != MAP_FAILED, "memory for results");
}

static unsigned char* make_buffer(const Call* c, size_t bytes) {
  void* memory = NULL;
  if (strcmp(c->memory, "shared") == 0) {
    require(ncclMemAlloc(&memory, bytes + kPage) == ncclSuccess, "ncclMemAlloc");
  } else {
    require(posix_memalign(&memory, kPage, bytes + kPage) == 0, "memory");
  }
  memset(memory, kPoison, bytes + kPage);
  return memory;
}

static void free_buffer(const Call* c, unsigned char* buffer) {
  if (strcmp(c->memory, "shared") == 0)
    require(ncclMemFree(buffer) == ncclSuccess, "ncclMemFree");
  else
    free(buffer);
}

static void run_call(const Call* c, ncclComm_t comm, int rank) {
  const int scatters = strcmp(c->collective, "reduce_scatter") == 0;
  const size_t bytes = output_bytes(c), input = bytes * (scatters ? (size_t)rank_count : 1);
  unsigned char* const send_memory = make_buffer(c, input);
  unsigned char* const receive_memory = make_buffer(c, bytes);
  unsigned char* const send = send_memory + c->send_shift;
  unsigned char* receive = receive_memory + c->receive_shift;
  ncclRedOp_t op = (ncclRedOp_t)c->op;
  ncclResult_t result;
  if (c->in_place) receive = send + (scatters ? (size_t)rank * bytes : 0);
  memcpy(send, c->data->ranks[rank] + c->first * c->data->element_bytes, input);
  if (c->op == kScaled)
    require(ncclRedOpCreatePreMulSum(&op, (void*)c->scales[rank], (ncclDataType_t)c->type, ncclScalarHostImmediate,
                                     comm) == ncclSuccess,
            "ncclRedOpCreatePreMulSum");
  if (scatters)
    result = ncclReduceScatter(send, receive, c->count, (ncclDataType_t)c->type, op, comm, NULL);
  else if (strcmp(c->collective, "reduce") == 0)
    result = ncclReduce(send, receive, c->count, (ncclDataType_t)c->type, op, c->root, comm, NULL);
  else
    result = ncclAllReduce(send, receive, c->count, (ncclDataType_t)c->type, op, comm, NULL);
  require(result == ncclSuccess, c->collective);
  if (c->op == kScaled) require(ncclRedOpDestroy(op, comm) == ncclSuccess, "ncclRedOpDestroy");
  if (has_output(c, rank)) memcpy(c->results + (size_t)rank * bytes, receive, bytes);
  free_buffer(c, send_memory);
  free_buffer(c, receive_memory);
}

static void* run_rank(void* argument) {
  const int rank = (int)(intptr_t)argument;
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  ncclComm_t comm;
  int i;
  if (strcmp(asking, "all") == 0 || (strcmp(asking, "first") == 0 && rank == 0)) config.reproducible = 1;
  require(tuttiCommInitRank(&comm, rank_count, meeting->id, rank, &config) == ncclSuccess, "tuttiCommInitRank");
  for (i = 0; i < call_count; ++i) run_call(&calls[i], comm, rank);
  require(ncclCommDestroy(comm) == ncclSuccess, "ncclCommDestroy");
  return NULL;
}

static void run_process(int first, int threads) {
  pthread_t all[kRanksMax];
  int t;
  while (!__atomic_load_n(&meeting->made, __ATOMIC_ACQUIRE)) usleep(200);
  for (t = 0; t < threads; ++t)
    require(pthread_create(&all[t], NULL, run_rank, (void*)(intptr_t)(first + t)) == 0, "pthread_create");
  for (t = 0; t < threads; ++t) pthread_join(all[t], NULL);
}

static void print_results(const Call* c) {
  const size_t bytes = output_bytes(c);
  const int first = strcmp(c->collective, "reduce") == 0 ? c->root : 0;
  const unsigned char* const shown = c->results + (size_t)first * bytes;
  int r;
  size_t i;
  for (r = 0; r < rank_count; ++r) {
    const unsigned char* got = c->results + (size_t)r * bytes;
    if (!has_output(c, r)) {
      puts("-");
    } else if (r > first && memcmp(got, shown, bytes) == 0) {
      puts("=");
    } else {
      for (i = 0; i < bytes; ++i) printf("%02x", got[i]);
      puts("");
    }
  }
}

int main(int argc, char** argv) {
  int layout[kRanksMax], processes = 0, p, failed = 0, first = 0;
  char* line = NULL;
  size_t room = 0;
  const char* at = argc > 1 ? argv[1] : "";
  while (*at && processes < kRanksMax) {
    char* end;
    layout[processes] = (int)strtol(at, &end, 10);
    rank_count += layout[processes++];
    at = *end == ',' ? end + 1 : end;
  }
  require(rank_count > 0 && rank_count <= kRanksMax, "usage: fold-client THREADS[,THREADS...] [all|first] < calls");
  if (argc > 2) asking = argv[2];
  while (getline(&line, &room, stdin) > 0) {
    if (strncmp(line, "data", 4) == 0)
      read_data(line);
    else
      read_call(line);
  }
  free(line);
  meeting = mmap(NULL, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  require(meeting != MAP_FAILED, "memory to meet in");
  fflush(NULL);
  for (p = 0; p < processes; first += layout[p++]) {
    const pid_t child = fork();
    require(child >= 0, "fork");
    if (child != 0) continue;
    alarm(120);
    run_process(first, layout[p]);
    exit(0);
  }
  require(ncclGetUniqueId(&meeting->id) == ncclSuccess, "ncclGetUniqueId");
  __atomic_store_n(&meeting->made, 1, __ATOMIC_RELEASE);
  for (p = 0; p < processes; ++p) {
    int status = 0;
    require(wait(&status) > 0, "wait");
    failed |= status != 0;
  }
  for (p = 0; p < call_count && !failed; ++p) print_results(&calls[p]);
  return failed;
}
