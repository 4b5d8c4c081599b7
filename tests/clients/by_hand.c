/* A rank that is started by hand, with nothing but nccl.h: the id goes from rank 0 to the others by a file, or in their environment.

   usage: by-hand RANK RANKS FILE     rank 0 writes the id to FILE, the others wait for it there
          by-hand RANK RANKS          rank 0 prints the id, a line of hexadecimal digits; the others have it in UNIQUE_ID */
#include <nccl.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int fail(const char* what) {
  fprintf(stderr, "by-hand: %s\n", what);
  return 0;
}

/* Under another name first: who finds the file finds all of it. */
static int write_file(const char* path, const ncclUniqueId* id) {
  char other[4096];
  FILE* file;
  int done;
  if (snprintf(other, sizeof other, "%s.new", path) >= (int)sizeof other) return fail("the file's name is too long");
  file = fopen(other, "wb");
  if (file == NULL) return fail("the file cannot be written");
  done = fwrite(id, sizeof *id, 1, file) == 1;
  if (fclose(file) != 0 || !done || rename(other, path) != 0) return fail("the file cannot be written");
  return 1;
}

static int read_file(const char* path, ncclUniqueId* id) {
  const struct timespec pause = {0, 10000000};
  int attempt;
  for (attempt = 0; attempt < 3000; ++attempt) {
    FILE* const file = fopen(path, "rb");
    if (file != NULL) {
      const int done = fread(id, sizeof *id, 1, file) == 1;
      fclose(file);
      return done || fail("the file has no id");
    }
    nanosleep(&pause, NULL);
  }
  return fail("the file has not come within 30 s");
}

static int print_id(const ncclUniqueId* id) {
  size_t i;
  for (i = 0; i < sizeof id->internal; ++i) printf("%02x", (unsigned char)id->internal[i]);
  printf("\n");
  return fflush(stdout) == 0;
}

static int read_environment(ncclUniqueId* id) {
  const char* const text = getenv("UNIQUE_ID");
  size_t i;
  if (text == NULL || strlen(text) != 2 * sizeof id->internal) return fail("UNIQUE_ID is not what rank 0 has printed");
  for (i = 0; i < sizeof id->internal; ++i) {
    unsigned byte;
    if (sscanf(text + 2 * i, "%2x", &byte) != 1) return fail("UNIQUE_ID is not what rank 0 has printed");
    id->internal[i] = (char)byte;
  }
  return 1;
}

static int get_id(int rank, const char* path, ncclUniqueId* id) {
  if (rank != 0) return path != NULL ? read_file(path, id) : read_environment(id);
  if (ncclGetUniqueId(id) != ncclSuccess) return fail(ncclGetLastError(NULL));
  return path != NULL ? write_file(path, id) : print_id(id);
}

/* -1: no number. */
static int number(const char* text) {
  char* end;
  const long value = strtol(text, &end, 10);
  return end != text && *end == '\0' && value >= 0 && value <= 1000000 ? (int)value : -1;
}

int main(int argc, char** argv) {
  const int rank = argc > 2 ? number(argv[1]) : -1;
  const int ranks = argc > 2 ? number(argv[2]) : -1;
  ncclUniqueId id;
  ncclComm_t comm;
  float value = (float)rank;
  if (argc > 4 || rank < 0 || rank >= ranks) {
    fprintf(stderr, "usage: by-hand RANK RANKS [FILE]\n");
    return 2;
  }
  if (!get_id(rank, argc == 4 ? argv[3] : NULL, &id)) return 1;
  if (ncclCommInitRank(&comm, ranks, id, rank) != ncclSuccess) {
    fprintf(stderr, "by-hand: %s\n", ncclGetLastError(NULL));
    return 1;
  }
  if (ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comm, NULL) != ncclSuccess) {
    fprintf(stderr, "by-hand: %s\n", ncclGetLastError(comm));
    return 1;
  }
  printf("rank %d of %d: the sum of all ranks is %g\n", rank, ranks, value);
  return ncclCommDestroy(comm) == ncclSuccess ? 0 : 1;
}
