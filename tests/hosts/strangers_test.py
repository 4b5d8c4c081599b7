"""Strangers at the ports of the bootstrap and of ranks, replayed handshakes, and addresses without a secret: each costs nobody but its
sender, and is logged once. On one machine, where NCCL_HOSTID makes the hosts: this needs no root.

usage: strangers_test.py LIBRARY [CASE]
"""
import contextlib
import os
import random
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from job import Job, expect_done, port_of, run_cases  # noqa: E402

NO_SECRET = "it does not know the secret of the unique id"
LOCAL = "127.0.0.1"


class Machine:
    """In place of namespaces.Hosts."""

    names = [f"host-{number}" for number in range(6)]

    def start(self, host, command, env=None, **more):
        surroundings = dict(os.environ, NCCL_HOSTID=self.names[host], NCCL_SOCKET_IFNAME="=lo", **(env or {}))
        return subprocess.Popen(command, env=surroundings, **more)


def frame(kind, payload):
    return b"TUTI" + struct.pack("<II", kind, len(payload)) + payload


def greeting(version):
    return frame(1, struct.pack("<I", version) + os.urandom(32))


def false_hello():
    return frame(3, os.urandom(80))


def kinds(version, noise):
    """What strangers say, whether they go then or wait to be sent away, and why they are refused. `version`: the bootstrap's own."""
    return {
        "a port scan": (b"", True, "it closed the connection without a word"),
        "a few bytes": (b"TUTI\x01", True, "after 5 bytes, within its first frame"),
        "half a greeting": (greeting(version)[:30], True, "after 30 bytes, within its first frame"),
        "garbage": (b"\0" + noise.randbytes(noise.randrange(11, 5000)), False, "it sent bytes that are no bootstrap frame"),
        "garbage, and gone": (b"\0" + noise.randbytes(40), True, "it sent bytes that are no bootstrap frame"),
        "another program": (b"GET / HTTP/1.1\r\nHost: box\r\n\r\n", False, "it sent bytes that are no bootstrap frame"),
        "a long frame": (b"TUTI" + struct.pack("<II", 1, 0x7fffffff), False, "it sent a frame of 2147483647 bytes"),
        "a wrong frame": (frame(6, b""), False, "a wrong frame"),
        "a short greeting": (frame(1, b"abc"), False, "its greeting is malformed"),
        "no secret": (greeting(version) + false_hello(), False, NO_SECRET),
        "another version without the secret": (greeting(version + 64) + false_hello(), False, NO_SECRET),
        "another version, and gone": (greeting(version + 64), True, f"it speaks version {version + 64} of the bootstrap, and has gone"),
    }


def visit(port, said, goes, reset=False):
    """A stranger's whole visit; its own port."""
    with socket.create_connection((LOCAL, port), timeout=10) as stranger:
        own = stranger.getsockname()[1]
        with contextlib.suppress(ConnectionError):
            stranger.sendall(said)
            while not goes and stranger.recv(4096):
                pass
        if reset:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return own


def version_of(id_file):
    with open(id_file, "rb") as file:
        return struct.unpack_from("<I", file.read(), 8)[0]


class Logs:
    """Of a job's ranks; `env` makes them."""

    def __init__(self, level="INFO"):
        self.folder = tempfile.TemporaryDirectory()
        self.env = {"NCCL_DEBUG": level, "NCCL_DEBUG_FILE": os.path.join(self.folder.name, "%p")}

    def lines(self, process, part):
        path = os.path.join(self.folder.name, str(process.pid))
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as file:
            return [line for line in file if part in line]

    def wait_for(self, process, part, limit_s=20):
        end = time.monotonic() + limit_s
        while not self.lines(process, part):
            assert time.monotonic() < end, f'"{part}" is not in the log after {limit_s} s'
            time.sleep(0.02)
        return self.lines(process, part)

    def expect_refusals(self, job, counts):
        for rank, count in enumerate(counts):
            found = self.lines(job.processes[rank], " was refused: ")
            assert len(found) == count, f"rank {rank} has logged {len(found)} refusals, not {count}: {found}"


ID_MAKER = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
unique = (ctypes.c_ubyte * 128)()
for _ in range(int(sys.argv[2])):
    assert library.ncclGetUniqueId(ctypes.byref(unique)) == 0
    print(bytes(unique).hex(), flush=True)
sys.stdin.read()
"""


def make_ids(library, count, env):
    """A process that makes so many ids, each with a root of its own."""
    return subprocess.Popen([sys.executable, "-c", ID_MAKER, library, str(count)], env=dict(os.environ, **env), text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def case_each_kind_is_logged(library):
    """One stranger of each kind for each of several roots: a line each, which says what was wrong. Who greets and goes may be a rank."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    noise = random.Random(seed)
    logs = Logs()
    count = len(kinds(0, noise)) + 2
    maker = make_ids(library, count, dict(logs.env, NCCL_SOCKET_IFNAME="=lo"))
    ids = [bytes.fromhex(maker.stdout.readline()) for _ in range(count)]
    ports = [struct.unpack_from("<H", one, 12)[0] for one in ids]
    version = struct.unpack_from("<I", ids[0], 8)[0]
    for (name, (said, goes, why)), port in zip(kinds(version, noise).items(), ports):
        own = visit(port, said, goes)
        line = logs.wait_for(maker, f"{LOCAL}:{own} was refused: ")[0]
        assert why in line, f"{name}: {line}"
    before = len(logs.lines(maker, " was refused: "))
    assert before == count - 2, logs.lines(maker, " was refused: ")
    own = visit(ports[-1], greeting(version), True)
    logs.wait_for(maker, f"{LOCAL}:{own} ended within the handshake")
    assert len(logs.lines(maker, " was refused: ")) == before
    visit(ports[-2], b"", True, reset=True)
    end = time.monotonic() + 10
    while len(logs.lines(maker, "without a word")) < 2:
        assert time.monotonic() < end, "who resets its connection is not logged"
        time.sleep(0.02)
    maker.communicate()


def crowd(port, version, noise):
    """Five of each kind, in any order, and some that say nothing, or not enough, and stay."""
    visits = 5 * [(said, goes) for said, goes, _ in kinds(version, noise).values()]
    noise.shuffle(visits)
    stay = []
    for number, (said, goes) in enumerate(visits):
        visit(port, said, goes, reset=goes and number % 2 == 0)
        if number % 5 == 0:
            stay.append(socket.create_connection((LOCAL, port), timeout=10))
            stay[-1].sendall(b"TUTI"[:number % 4])
    return stay


def case_crowd_at_the_root(library):
    """While a job starts: one line, in the log of whoever has the root."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    logs = Logs()
    job = Job(Machine(), library, 3, 0.5, logs.env, last=1)
    assert job.read(lambda: os.path.exists(job.id_file), 20)
    stay = crowd(port_of(job.id_file), version_of(job.id_file), random.Random(seed))
    for rank in (1, 2):
        job.begin(rank)
    expect_done(job.results([0, 1, 2], 40))
    for stranger in stay:
        stranger.close()
    logs.expect_refusals(job, [1, 0, 0])
    job.end()


def case_silent_at_the_root(library):
    """One that says nothing until all ranks are there."""
    logs = Logs("WARN")
    job = Job(Machine(), library, 2, 0.2, logs.env, last=1)
    assert job.read(lambda: os.path.exists(job.id_file), 20)
    with socket.create_connection((LOCAL, port_of(job.id_file)), timeout=10):
        time.sleep(0.5)
        job.begin(1)
        expect_done(job.results([0, 1], 40))
    logs.expect_refusals(job, [1, 0])
    assert logs.lines(job.processes[0], "it had said nothing when all ranks were there")
    job.end()


def case_crowd_at_a_rank(library):
    """While a job runs: one line, in that rank's log."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    logs = Logs()
    folder = tempfile.TemporaryDirectory()
    go = os.path.join(folder.name, "go")
    with open(go, "w", encoding="ascii"):
        pass
    job = Job(Machine(), library, 2, 2, dict(logs.env, TEST_GO=go))  # which is there as long as that
    job.wait_ready()
    told = logs.wait_for(job.processes[1], "other hosts reach this rank at")
    port = int(re.search(r"\(port (\d+)\)", told[-1]).group(1))
    own = visit(port, b"", True)
    logs.wait_for(job.processes[1], f"{LOCAL}:{own} was refused: it closed the connection without a word")
    stay = crowd(port, version_of(job.id_file), random.Random(seed))
    logs.expect_refusals(job, [0, 1])
    folder.cleanup()
    expect_done(job.results([0, 1], 40))
    for stranger in stay:
        stranger.close()
    logs.expect_refusals(job, [0, 1])
    job.end()


def case_no_strangers(library):
    """Ranks that connect with each other at once, and drop what they do not need, are no strangers."""
    for _ in range(3):
        logs = Logs()
        job = Job(Machine(), library, 6, 0.2, logs.env)
        expect_done(job.results(range(6), 40))
        logs.expect_refusals(job, 6 * [0])
        job.end()


class Recorder:
    """A port of its own that passes on to another one, and keeps what was said to that."""

    def __init__(self, port):
        self.to = port
        self.listener = socket.create_server((LOCAL, 0))
        self.port = self.listener.getsockname()[1]
        self.said = []
        self.answered = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            guest, _ = self.listener.accept()
            try:
                there = socket.create_connection((LOCAL, self.to), timeout=10)
            except ConnectionError:  # nobody listens yet: the rank comes again
                guest.close()
                continue
            there.settimeout(None)
            self.said.append(bytearray())
            self.answered.append(bytearray())
            for source, sink, kept in ((guest, there, self.said[-1]), (there, guest, self.answered[-1])):
                threading.Thread(target=self.pump, args=(source, sink, kept), daemon=True).start()

    @staticmethod
    def pump(source, sink, kept):
        with contextlib.suppress(OSError):
            while some := source.recv(65536):
                kept += some
                sink.sendall(some)
            sink.shutdown(socket.SHUT_WR)


def frames(data):
    """Those that are whole."""
    found = []
    while len(data) >= 12 and len(data) >= 12 + struct.unpack_from("<I", data, 8)[0]:
        length = 12 + struct.unpack_from("<I", data, 8)[0]
        found.append(bytes(data[:length]))
        data = data[length:]
    return found


def case_replay(library):
    """What a rank has said to the root, again, by others: the challenge is another one each time, and the old proof is none."""
    logs = Logs()
    port = random.randrange(20000, 30000)
    recorder = Recorder(port)
    env = dict(logs.env, NCCL_COMM_ID=f"{LOCAL}:{port}", TUTTI_SECRET="a word")
    job = Job(Machine(), library, 3, 0.5, env, id_file="-", last=1)
    time.sleep(0.5)
    job.begin(1, {"NCCL_COMM_ID": f"{LOCAL}:{recorder.port}"})
    end = time.monotonic() + 20
    # The last one: earlier ones may have found nobody. Its place is the answer to its hello.
    while not recorder.answered or len(frames(recorder.answered[-1])) < 2:
        assert time.monotonic() < end, "rank 1 has not come"
        time.sleep(0.02)
    greeted, hello = frames(recorder.said[-1])[:2]
    challenges = {frames(recorder.answered[-1])[0]}
    for number in range(10):
        # All at once, or when the challenge is there.
        waits = number % 2 != 0
        answer = bytearray()
        with socket.create_connection((LOCAL, port), timeout=10) as stranger, contextlib.suppress(ConnectionError):
            stranger.sendall(greeted if waits else greeted + hello)
            while some := stranger.recv(4096):
                answer += some
                if waits and frames(answer):
                    stranger.sendall(hello)
                    waits = False
        found = frames(answer)
        assert not waits and len(found) <= 1, f"a replayed hello was answered: {found}"
        challenges.update(found)
    assert len(challenges) >= 6, f"{len(challenges)} different challenges of 6"
    assert NO_SECRET in logs.wait_for(job.processes[0], " was refused: ")[0]
    job.begin(2)
    expect_done(job.results([0, 1, 2], 40))
    logs.expect_refusals(job, [1, 0, 0])
    job.end()


def case_no_secret(library):
    """An address without TUTTI_SECRET: ranks meet, each process says once at WARN that anybody may join, and nothing by default."""
    port = random.randrange(20000, 30000)
    named = {"NCCL_COMM_ID": f"{LOCAL}:{port}"}
    for level, secret, count in (("WARN", "", 1), ("WARN", "a word", 0), ("", "", 0)):
        maker = make_ids(library, 3, dict(named, NCCL_DEBUG=level, NCCL_DEBUG_FILE="", TUTTI_SECRET=secret))
        _, log = maker.communicate()
        assert maker.returncode == 0 and log.count("the bootstrap is unauthenticated") == count, f"{level} {secret}: {log}"
        assert level or not log, log
    logs = Logs("WARN")
    job = Job(Machine(), library, 2, 0.2, dict(logs.env, **named), id_file="-")
    expect_done(job.results([0, 1], 40))
    for rank in (0, 1):
        assert len(logs.lines(job.processes[rank], "the bootstrap is unauthenticated")) == 1
    job.end()


def case_long_waits(library):
    """After 10 s of waiting each rank that could say for whom does, at WARN: rank 0 for the others, others for rank 0, and rank 0 for its port."""
    logs = Logs("WARN")
    taken = socket.create_server((LOCAL, 0))
    ports = [*random.sample(range(20000, 30000), 2), taken.getsockname()[1]]
    jobs = [Job(Machine(), library, 3, 0.2, dict(logs.env, NCCL_COMM_ID=f"{LOCAL}:{port}", TUTTI_SECRET="a word"), id_file="-", first=first, last=last)
            for port, first, last in zip(ports, (0, 2, 0), (2, 3, 1))]
    try:
        for job, rank, part in zip(jobs, (0, 2, 0), ("did not come: rank 2", f"nobody has answered at {LOCAL}:{ports[1]}",
                                                     f"to listen at {LOCAL}:{ports[2]}: bind TCP port")):
            logs.wait_for(job.processes[rank], part, 30)
        taken.close()
        for job, rest in zip(jobs, ((2,), (0, 1), (1, 2))):
            for rank in rest:
                job.begin(rank)
            expect_done(job.results([0, 1, 2], 40))
    finally:
        for job in jobs:
            job.end()


def main():
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_COMM_ID", "TUTTI_SECRET", "NCCL_SOCKET_FAMILY"):
        os.environ.pop(name, None)
    library = os.path.abspath(sys.argv[1])
    wanted = sys.argv[2] if len(sys.argv) > 2 else ""
    sys.exit(1 if run_cases(globals(), wanted, library) else 0)


main()
