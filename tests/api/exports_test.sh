#!/bin/sh
# exports_test.sh LIBNCCL LIBTUTTI NAMES LATER HEADER...
# Compares what the libraries export with NCCL 2.28.9's names and bindings (NAMES: "W name" or "T name", sorted; LATER: names that
# libtutti.so has besides, of later versions), looks at SONAME, NEEDED and RUNPATH, and wants every function declared in the tutti headers in libtutti.so.
set -eu
libnccl=$1
libtutti=$2
names=$3
later=$4
shift 4
export LC_ALL=C
failed=0

fail() {
  echo "exports_test: $*" >&2
  failed=1
}

exported() { nm -D --defined-only "$1" | awk '{print $(NF-1), $NF}' | sort -k2; }
dynamic() { readelf -d "$1" | sed -n "s/.*($2).*\[\(.*\)\]/\1/p"; }

both=$(mktemp)
trap 'rm -f "$both"' EXIT
sort -k2 "$names" "$later" >"$both"

difference=$(exported "$libnccl" | diff "$names" - | head -n 30 || true)
[ -z "$difference" ] || fail "libnccl.so.2 exports other names than NCCL 2.28.9 (<: missing, >: too much):
$difference"

in_tutti=$(exported "$libtutti")
missing=$(echo "$in_tutti" | grep -v ' tutti' | diff "$both" - | head -n 30 || true)
[ -z "$missing" ] || fail "libtutti.so's NCCL names differ (<: missing, >: too much):
$missing"

for function in $(cat "$@" | sed '/^[ ]*\*/d; /^\/\*/d' | grep -o '\btutti[A-Z][A-Za-z]*(' | tr -d '(' | sort -u); do
  echo "$in_tutti" | grep -q " $function\$" || fail "libtutti.so does not export $function, which the headers declare"
done
others=$(echo "$in_tutti" | grep -Ev ' (p?nccl|tutti)' || true)
[ -z "$others" ] || fail "libtutti.so exports more than it should:
$others"

[ "$(dynamic "$libnccl" SONAME)" = libnccl.so.2 ] || fail "libnccl's SONAME is $(dynamic "$libnccl" SONAME)"
[ "$(dynamic "$libtutti" SONAME)" = libtutti.so.0 ] || fail "libtutti's SONAME is $(dynamic "$libtutti" SONAME)"
dynamic "$libnccl" 'RUNPATH\|RPATH' | grep -q '\$ORIGIN' || readelf -d "$libnccl" | grep -Eq '(RUNPATH|RPATH).*ORIGIN' ||
  fail "libnccl.so.2 does not look for libtutti.so in its own folder"
for needed in $(dynamic "$libnccl" NEEDED); do
  case $needed in
    libtutti.so.0 | libc.so.6) ;;
    *) fail "libnccl.so.2 needs $needed" ;;
  esac
done
for needed in $(dynamic "$libtutti" NEEDED); do
  case $needed in
    libstdc++.so.6 | libm.so.6 | libgcc_s.so.1 | libc.so.6 | ld-linux*) ;;
    libasan* | libtsan* | libubsan*) ;;
    *) fail "libtutti.so needs $needed" ;;
  esac
done
exit $failed
