#!/bin/sh
# install_test.sh BUILD_FOLDER SOURCE_FOLDER
# Installs into an empty folder, moves the folder, and uses it as a packager's or a user's program would: by flags, by
# pkg-config, by dlopen of both libraries at once.
set -eu
# 'meson test' points it at the build folder's libraries; here the installed ones are tried.
unset LD_LIBRARY_PATH
build=$1
source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "install_test: $*" >&2
  exit 1
}

DESTDIR="$work/first" meson install -C "$build" --no-rebuild --quiet > "$work/log" 2>&1 || { cat "$work/log"; fail "meson install failed"; }
header=$(find "$work/first" -name nccl.h)
[ -n "$header" ] || fail "nccl.h is not installed"
mv "$(dirname "$(dirname "$header")")" "$work/moved prefix"
rm -rf "$work/first"
prefix="$work/moved prefix"
lib=$(dirname "$(find "$prefix" -name libnccl.so.2)")
include="$prefix/include"
cd "$work"

for file in "$include/nccl.h" "$include/tutti/tutti.h" "$include/tutti/launch.h" "$lib/libnccl.so" "$lib/libtutti.so" "$lib/pkgconfig/tutti.pc" "$lib/pkgconfig/nccl.pc"; do
  [ -e "$file" ] || fail "$file is not installed"
done
[ "$(readlink "$lib/libnccl.so")" = libnccl.so.2 ] || fail "libnccl.so is no link to libnccl.so.2"
for library in "$lib/libnccl.so.2" "$lib/libtutti.so.0"; do
  if readelf -S "$library" | grep -q ' \.symtab'; then
    fail "$library is not stripped (default_options of the root meson.build: 'strip=true')"
  fi
done

cat > client.c <<'END'
#include <nccl.h>
#include <stdio.h>
int main(void) {
  ncclComm_t comm;
  float x[3] = {1, 2, 3}, y[3] = {0, 0, 0};
  if (ncclCommInitAll(&comm, 1, NULL) != ncclSuccess || ncclAllReduce(x, y, 3, ncclFloat, ncclSum, comm, NULL) != ncclSuccess ||
      ncclCommDestroy(comm) != ncclSuccess) {
    fprintf(stderr, "%s\n", ncclGetLastError(NULL));
    return 1;
  }
  return !(y[0] == 1 && y[1] == 2 && y[2] == 3);
}
END
cc=${CC:-cc}
$cc -std=c99 -Wall -Werror client.c -I"$include" -L"$lib" -lnccl -Wl,-rpath,"$lib" -o by_flags || fail "a program does not link with -lnccl"
./by_flags || fail "a program linked with -lnccl does not run"
readelf -d by_flags | grep -q 'NEEDED.*libnccl.so.2' || fail "the program does not need libnccl.so.2"

if command -v pkg-config > /dev/null; then
  export PKG_CONFIG_PATH="$lib/pkgconfig"
  [ "$(pkg-config --modversion nccl)" = 2.28.9 ] || fail "nccl.pc has version $(pkg-config --modversion nccl)"
  for package in nccl tutti; do
    # A prefix with a space: pkg-config quotes it, eval undoes that.
    pkg-config --cflags --libs $package | grep -q 'moved' ||
      fail "$package.pc points at $(pkg-config --cflags --libs $package), not at the moved prefix (default_options: 'pkgconfig.relocatable=true')"
    # README's line.
    eval "$cc client.c $(pkg-config --cflags --libs $package) -Wl,-rpath,$(pkg-config --variable=libdir $package) -o by_$package" ||
      fail "$package.pc's flags do not link"
    "./by_$package" || fail "the program linked by $package.pc does not run"
  done
fi

# Both libraries in one process, in either order: one state.
cat > both.c <<'END'
#include <dlfcn.h>
#include <nccl.h>
#include <stdio.h>
#include <string.h>
typedef ncclResult_t (*MakeAll)(ncclComm_t*, int, const int*);
typedef ncclResult_t (*Count)(ncclComm_t, int*);
typedef ncclResult_t (*Destroy)(ncclComm_t);
int main(int argc, char** argv) {
  void* one = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  void* two = argc > 2 ? dlopen(argv[2], RTLD_NOW | RTLD_LOCAL) : NULL;
  ncclComm_t comm;
  int count = 0;
  MakeAll make;
  Count ask;
  Destroy destroy;
  if (!one || !two) return fprintf(stderr, "%s\n", dlerror()), 1;
  *(void**)&make = dlsym(one, "ncclCommInitAll");
  *(void**)&ask = dlsym(two, "pncclCommCount");
  *(void**)&destroy = dlsym(two, "ncclCommDestroy");
  return !(make(&comm, 1, NULL) == ncclSuccess && ask(comm, &count) == ncclSuccess && count == 1 && destroy(comm) == ncclSuccess);
}
END
$cc both.c -I"$include" -ldl -o both
./both "$lib/libnccl.so.2" "$lib/libtutti.so.0" || fail "libnccl.so.2 then libtutti.so.0 do not share their state"
./both "$lib/libtutti.so.0" "$lib/libnccl.so.2" || fail "libtutti.so.0 then libnccl.so.2 do not share their state"

# A profiler: the program's own ncclAllReduce, which calls pncclAllReduce.
cat > profiler.c <<'END'
#include <nccl.h>
static int calls;
ncclResult_t ncclAllReduce(const void* a, void* b, size_t n, ncclDataType_t t, ncclRedOp_t o, ncclComm_t c, cudaStream_t s) {
  ++calls;
  return pncclAllReduce(a, b, n, t, o, c, s);
}
int main(void) {
  ncclComm_t comm;
  int x = 7;
  return !(ncclCommInitAll(&comm, 1, NULL) == ncclSuccess && ncclAllReduce(&x, &x, 1, ncclInt, ncclSum, comm, NULL) == ncclSuccess &&
           ncclCommDestroy(comm) == ncclSuccess && calls == 1 && x == 7);
}
END
$cc profiler.c -I"$include" -L"$lib" -lnccl -Wl,-rpath,"$lib" -o profiler
./profiler || fail "a profiler's own ncclAllReduce does not reach pncclAllReduce"
