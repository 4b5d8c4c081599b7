"""One rank of a job over hosts, through libtutti.so: all-reduces, checked, until the time is over or one fails.

usage: rank.py LIBRARY RANK RANKS ID_FILE SECONDS [COUNT]
Rank 0 makes the id and leaves it in ID_FILE. Prints "ready", then at the end "done N SECONDS" (N calls, and what they took) or "failed CODE TEXT".
With ID_FILE "-" the id comes from ncclGetUniqueId on every rank (NCCL_COMM_ID). With TEST_TELL=FILE it first writes the machine
graph and the certificate of an all-reduce of 16 MiB to FILE.RANK. With TEST_GO=FILE it begins its calls when FILE is there, and when they are over
says "over" and ends when FILE is gone. With TEST_HOLD=FILE a rank that fails keeps its communicator until FILE is gone. With TEST_VICTIMS=FILE ranks that fail leave out those that FILE
names, by ncclCommShrink, and go on for twenty calls: "done without 1,3: " and the first failure.
"""
import ctypes
import os
import sys
import time


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 128)]


FLOAT, SUM = 7, 0


def tell(library, comm, path, check):
    needed = ctypes.c_size_t()
    texts = b""
    for ask in (lambda *to: library.tuttiCommTopology(comm, *to),
                lambda *to: library.tuttiCommCertificate(comm, 0, ctypes.c_size_t(1 << 22), FLOAT, SUM, 0, *to)):
        check(ask(None, ctypes.c_size_t(0), ctypes.byref(needed)))
        text = ctypes.create_string_buffer(needed.value)
        check(ask(text, needed, None))
        texts += text.value
    with open(path, "wb") as file:
        file.write(texts)


def main():
    library = ctypes.CDLL(sys.argv[1])
    rank, ranks, id_file, seconds = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], float(sys.argv[5])
    count = int(sys.argv[6]) if len(sys.argv) > 6 else 50000
    library.ncclGetLastError.restype = ctypes.c_char_p
    comm = ctypes.c_void_p()

    def check(result):
        if result == 0:
            return
        print("failed", result, library.ncclGetLastError(None).decode(), flush=True)
        while os.path.exists(os.environ.get("TEST_HOLD", "")):
            time.sleep(0.01)
        if comm:
            library.ncclCommAbort(comm)
        sys.exit(0)

    unique = UniqueId()
    if id_file == "-" or rank == 0:
        check(library.ncclGetUniqueId(ctypes.byref(unique)))
    if id_file != "-" and rank == 0:
        with open(id_file + ".new", "wb") as file:
            file.write(bytes(unique))
        os.rename(id_file + ".new", id_file)
    if id_file != "-" and rank != 0:
        while not os.path.exists(id_file):
            time.sleep(0.01)
        with open(id_file, "rb") as file:
            unique = UniqueId.from_buffer_copy(file.read())
    check(library.ncclCommInitRank(ctypes.byref(comm), ranks, unique, rank))
    if "TEST_TELL" in os.environ:
        tell(library, comm, f"{os.environ['TEST_TELL']}.{rank}", check)
    print("ready", flush=True)
    go = os.environ.get("TEST_GO")
    while go and not os.path.exists(go):
        time.sleep(0.01)
    data = (ctypes.c_float * count)()

    def add_up(comm, members, stops):
        """A checked all-reduce; the first element says whether rank 0 stops. The library's result."""
        for place in (1, count // 2, count - 1):
            data[place] = rank + place % 100
        data[0] = 1.0 if rank == 0 and stops else 0.0
        result = library.ncclAllReduce(data, data, ctypes.c_size_t(count), FLOAT, SUM, comm, None)
        for place in (1, count // 2, count - 1):
            wanted = len(members) * (place % 100) + sum(members)
            if result == 0 and data[place] != wanted:
                print(f"failed 99 element {place} of call {calls} is {data[place]}, not {wanted}", flush=True)
                sys.exit(0)
        return result

    def go_on():
        """Without those that are gone."""
        reason = library.ncclGetLastError(None).decode()
        # Who is to be left out is known a moment before it happens.
        with open(os.environ["TEST_VICTIMS"], encoding="ascii") as file:
            victims = [int(word) for word in file.read().split(",")]
        rest = ctypes.c_void_p()
        check(library.ncclCommShrink(comm, (ctypes.c_int * len(victims))(*victims), len(victims), ctypes.byref(rest), None, 1))
        members = [r for r in range(ranks) if r not in victims]
        for _ in range(20):
            check(add_up(rest, members, False))
        check(library.ncclCommDestroy(rest))
        check(library.ncclCommAbort(comm))
        print("done without", ",".join(map(str, victims)) + ":", reason, flush=True)
        sys.exit(0)

    calls = 0
    # All stop at the same call: rank 0's clock decides, and its word is part of the sum.
    start = time.monotonic()
    while True:
        result = add_up(comm, range(ranks), time.monotonic() - start > seconds)
        if result != 0 and os.path.exists(os.environ.get("TEST_VICTIMS", "")):
            go_on()
        check(result)
        calls += 1
        if data[0] != 0.0:
            break
    seconds = time.monotonic() - start
    print("over", flush=True)
    while go and os.path.exists(go):
        time.sleep(0.01)
    check(library.ncclCommDestroy(comm))
    print("done", calls, seconds, flush=True)


main()
