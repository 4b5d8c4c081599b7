/* Starts a worker's ranks, pins them, and hands them the commands. */
#include "compare_worker.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kHostsMax = 16 };

typedef struct Options {
  int ranks;
  int threads;
  int registered;
  int cores[CPU_SETSIZE];
  int core_count;
  int per_host;
  int host_count;
  char* hosts[kHostsMax]; /* NAME=ADDRESS: a network namespace (ip netns) and what it is reached at */
  const char* control;
  const char* commands;
  const char* replies;
} Options;

void worker_fail(const Rank* rank, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  if (rank) fprintf(stderr, "rank %d: ", rank->rank);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  fflush(stderr);
  _exit(1);
}

uint64_t worker_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void worker_pause(const Rank* rank, unsigned spins) {
  if (rank->ranks > rank->cores || spins > 20000) {
    sched_yield();
  } else {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
  }
}

void worker_barrier(Rank* rank) {
  Control* control = rank->control;
  const uint32_t generation = __atomic_load_n(&control->generation, __ATOMIC_ACQUIRE);
  if (__atomic_add_fetch(&control->arrived, 1, __ATOMIC_ACQ_REL) == (uint32_t)rank->ranks) {
    __atomic_store_n(&control->arrived, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&control->generation, generation + 1, __ATOMIC_RELEASE);
    return;
  }
  for (unsigned spins = 0; __atomic_load_n(&control->generation, __ATOMIC_ACQUIRE) == generation; ++spins)
    worker_pause(rank, spins);
}

void worker_share(Rank* rank, void* data, size_t bytes) {
  if (bytes > kSharedBytes) worker_fail(rank, "%zu bytes do not fit into the %d that ranks share", bytes, kSharedBytes);
  if (rank->rank == 0) memcpy(rank->control->shared, data, bytes);
  worker_barrier(rank);
  memcpy(data, rank->control->shared, bytes);
  worker_barrier(rank);
}

void worker_advise(void* memory, size_t bytes, Pages pages) {
  /* A kernel without huge pages refuses; then all pages are small anyway. */
  if (pages == kPagesSmall) (void)madvise(memory, bytes, MADV_NOHUGEPAGE);
  if (pages == kPagesHuge) (void)madvise(memory, bytes, MADV_HUGEPAGE);
}

/* ---- Options ---- */

static const char* kUsage =
    "a worker of bench/compare, which starts it with\n"
    "  --control FILE --commands FIFO --replies FIFO --ranks N --cores LIST [--threads] [--registered]\n"
    "  [--hosts NAMESPACE=ADDRESS,... --per-host N]\n";

static void read_cores(Options* options, const char* list) {
  for (char* rest = (char*)list; *rest && options->core_count < CPU_SETSIZE;) {
    options->cores[options->core_count++] = (int)strtol(rest, &rest, 10);
    if (*rest == ',') ++rest;
  }
}

static void read_hosts(Options* options, char* list) {
  char* rest = list;
  for (char* host = strsep(&rest, ","); host && options->host_count < kHostsMax; host = strsep(&rest, ","))
    options->hosts[options->host_count++] = host;
}

static int read_options(Options* options, int argc, char** argv) {
  for (int n = 1; n < argc; ++n) {
    const char* name = argv[n];
    if (strcmp(name, "--threads") == 0) {
      options->threads = 1;
      continue;
    }
    if (strcmp(name, "--registered") == 0) {
      options->registered = 1;
      continue;
    }
    if (++n == argc) return 0;
    if (strcmp(name, "--control") == 0)
      options->control = argv[n];
    else if (strcmp(name, "--commands") == 0)
      options->commands = argv[n];
    else if (strcmp(name, "--replies") == 0)
      options->replies = argv[n];
    else if (strcmp(name, "--ranks") == 0)
      options->ranks = atoi(argv[n]);
    else if (strcmp(name, "--hosts") == 0)
      read_hosts(options, argv[n]);
    else if (strcmp(name, "--per-host") == 0)
      options->per_host = atoi(argv[n]);
    else if (strcmp(name, "--cores") == 0)
      read_cores(options, argv[n]);
    else
      return 0;
  }
  return options->control && options->commands && options->replies && options->core_count > 0 && options->ranks > 0 &&
         options->ranks <= kRanksMax &&
         options->per_host * options->host_count == (options->host_count ? options->ranks : 0);
}

static Control* map_control(const char* path) {
  const int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0 || ftruncate(file, sizeof(Control)) != 0) worker_fail(NULL, "%s: %s", path, strerror(errno));
  void* memory = mmap(NULL, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) worker_fail(NULL, "%s: %s", path, strerror(errno));
  close(file);
  return (Control*)memory;
}

/* ---- A rank's life ---- */

static const char kEnd[] = "end\n";

static void handle(Rank* rank, const char* line, FILE* reply) {
  if (strncmp(line, "run ", 4) == 0) {
    measure_command(rank, line, reply);
  } else if (rank->peer->command) {
    rank->peer->command(rank, line, reply);
  } else {
    worker_fail(rank, "unknown command: %s", line);
  }
}

/* Rank 0: reads commands until the FIFO is closed or "end" comes. */
static void lead(Rank* rank, const Options* options) {
  Control* control = rank->control;
  FILE* commands = fopen(options->commands, "r");
  FILE* replies = fopen(options->replies, "w");
  if (!commands || !replies) worker_fail(rank, "%s: %s", options->commands, strerror(errno));
  fputs("{\"ready\": true}\n", replies);
  fflush(replies);
  for (;;) {
    const uint32_t number = control->command_number + 1;
    char* line = control->command[number % 2];
    if (!fgets(line, kCommandBytes, commands)) strcpy(line, kEnd);
    __atomic_store_n(&control->command_number, number, __ATOMIC_RELEASE);
    syscall(SYS_futex, &control->command_number, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    if (strcmp(line, kEnd) == 0) break;
    handle(rank, line, replies);
    fputc('\n', replies);
    fflush(replies);
  }
  fclose(commands);
  fclose(replies);
}

/* The other ranks. One that has no part in a command may oversleep it: it takes the latest. A line is written again only
 * after the number has moved on, so that a number that is the same before and after the copy has its line. */
static void follow(Rank* rank) {
  Control* control = rank->control;
  char line[kCommandBytes];
  for (uint32_t done = 0;;) {
    const uint32_t number = __atomic_load_n(&control->command_number, __ATOMIC_ACQUIRE);
    if (number == done) {
      syscall(SYS_futex, &control->command_number, FUTEX_WAIT, done, NULL, NULL, 0);
      continue;
    }
    memcpy(line, control->command[number % 2], sizeof line);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (__atomic_load_n(&control->command_number, __ATOMIC_RELAXED) != number) continue;
    done = number;
    if (strcmp(line, kEnd) == 0) return;
    handle(rank, line, NULL);
  }
}

static void pin(const Rank* rank, const Options* options) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(options->cores[rank->rank % options->core_count], &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0)
    worker_fail(rank, "cannot run on core %d: %s", options->cores[rank->rank % options->core_count], strerror(errno));
}

/* Before the library starts. A launcher has put its ranks where they belong. */
static void enter_host(Rank* rank, const Options* options) {
  rank->hosts = options->host_count ? options->host_count : 1;
  rank->per_host = options->host_count ? options->per_host : rank->ranks;
  rank->address = "127.0.0.1";
  if (!options->host_count || rank->peer->launched) return;
  char* name = options->hosts[rank->rank / options->per_host];
  char* address = strchr(name, '=');
  char path[256];
  if (!address) worker_fail(rank, "--hosts %s: expected NAMESPACE=ADDRESS", name);
  rank->address = address + 1;
  snprintf(path, sizeof path, "/run/netns/%.*s", (int)(address - name), name);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0 || setns(file, CLONE_NEWNET) != 0) worker_fail(rank, "%s: %s", path, strerror(errno));
  close(file);
  /* A host name of its own, as far as Tutti is concerned. */
  setenv("NCCL_HOSTID", rank->address, 1);
}

/* A rank does not outlive whoever started it. */
static void die_with(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
}

static void live(Rank* rank, const Options* options) {
  enter_host(rank, options);
  /* A library sees all cores when it starts, as it would without this harness. */
  rank->peer->open(rank);
  pin(rank, options);
  worker_barrier(rank);
  if (rank->rank == 0) {
    lead(rank, options);
  } else {
    follow(rank);
  }
  if (rank->peer->close) rank->peer->close(rank);
}

typedef struct ThreadStart {
  Rank rank;
  const Options* options;
} ThreadStart;

static void* thread_main(void* start) {
  ThreadStart* mine = (ThreadStart*)start;
  live(&mine->rank, mine->options);
  return NULL;
}

static int run_threads(Rank first, const Options* options) {
  static ThreadStart starts[kRanksMax];
  pthread_t threads[kRanksMax];
  for (int n = 0; n < first.ranks; ++n) {
    starts[n].rank = first;
    starts[n].rank.rank = n;
    starts[n].options = options;
    if (pthread_create(&threads[n], NULL, thread_main, &starts[n]) != 0) worker_fail(NULL, "cannot start a thread");
  }
  for (int n = 0; n < first.ranks; ++n) pthread_join(threads[n], NULL);
  return 0;
}

static int run_processes(Rank first, const Options* options) {
  pid_t children[kRanksMax];
  const pid_t parent = getpid();
  for (int n = 0; n < first.ranks; ++n) {
    children[n] = fork();
    if (children[n] < 0) worker_fail(NULL, "fork: %s", strerror(errno));
    if (children[n] == 0) {
      die_with(parent);
      first.rank = n;
      live(&first, options);
      exit(0);
    }
  }
  int failed = 0;
  for (int left = first.ranks; left > 0; --left) {
    int status = 0;
    const pid_t ended = wait(&status);
    for (int n = 0; n < first.ranks; ++n)
      if (children[n] == ended) children[n] = 0;
    if (status == 0 || failed) continue;
    failed = 1;
    for (int n = 0; n < first.ranks; ++n)
      if (children[n] != 0) kill(children[n], SIGKILL);
  }
  return failed;
}

int worker_main(int argc, char** argv, const Peer* peer) {
  Options options = {0};
  if (!read_options(&options, argc, argv)) {
    fputs(kUsage, stderr);
    return 2;
  }
  Rank rank = {0};
  rank.ranks = options.ranks;
  rank.cores = options.ranks < options.core_count ? options.ranks : options.core_count;
  rank.registered = options.registered;
  if (rank.registered && !peer->allocate) worker_fail(NULL, "this peer has no registered buffers");
  rank.control = map_control(options.control);
  rank.peer = peer;
  if (peer->before_ranks) peer->before_ranks(options.ranks);
  if (peer->launched) {
    die_with(getppid());
    live(&rank, &options);
    return 0;
  }
  return options.threads ? run_threads(rank, &options) : run_processes(rank, &options);
}
