"""Faults over TCP between network namespaces: dead and stopped ranks, links that go down, strangers on the port, wrong keys.

usage: faults_test.py LIBRARY [CASE]
"""
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import namespaces  # noqa: E402
from job import Job, expect_done, expect_failed, port_of, run_cases  # noqa: E402

SKIPPED = 77


def case_killed(hosts, library):
    """A rank that is killed is named by all others at once."""
    job = Job(hosts, library, 4, 60)
    job.wait_ready()
    job.processes[2].send_signal(signal.SIGKILL)
    expect_failed(job.results([0, 1, 3], 10), "rank 2", "ended without leaving")
    job.end()


def case_killed_host(hosts, library):
    """All ranks of a host at once."""
    job = Job(hosts, library, 8, 60)
    job.wait_ready()
    for rank in (3, 7):
        job.processes[rank].send_signal(signal.SIGKILL)
    expect_failed(job.results([0, 1, 2, 4, 5, 6], 10), "ended without leaving")
    job.end()


def case_many_killed_while_they_come(hosts, library):
    """More ranks than the root keeps connections with, by TCP, one of which is killed while all wait for the last: it is named by all, and by the last."""
    ranks = 40
    job = Job(hosts, library, ranks, 1, last=ranks - 1)
    assert job.read(lambda: os.path.exists(job.id_file), 20)
    time.sleep(4)  # they are in their places, for the most part: this is right wherever they are
    job.processes[9].send_signal(signal.SIGKILL)
    others = [rank for rank in range(ranks - 1) if rank != 9]
    expect_failed(job.results(others, 20), "rank 9 (process", "ended before all ranks were initialised")
    job.end()
    job = Job(hosts, library, ranks, 1)
    expect_done(job.results(range(ranks), 60))
    job.end()


def case_stopped(hosts, library):
    """A rank that is stopped is named after TUTTI_HEARTBEAT_TIMEOUT_S, and finds that out when it goes on. With 0, as for debuggers, nobody
    minds one that is stopped for longer than the 10 s that count without it."""
    patient = Job(hosts, library, 2, 1, {"TUTTI_HEARTBEAT_TIMEOUT_S": "0"})
    patient.wait_ready()
    patient.processes[1].send_signal(signal.SIGSTOP)
    stopped_for_debugger = time.monotonic()
    job = Job(hosts, library, 3, 60, {"TUTTI_HEARTBEAT_TIMEOUT_S": "2"})
    job.wait_ready()
    job.processes[1].send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    expect_failed(job.results([0, 2], 15), "rank 1", "TUTTI_HEARTBEAT_TIMEOUT_S")
    took = time.monotonic() - stopped
    assert took > 1.5, f"after {took:.1f} s"
    job.processes[1].send_signal(signal.SIGCONT)
    expect_failed(job.results([1], 15))
    job.end()
    patient.read(lambda: time.monotonic() > stopped_for_debugger + 12, 12)
    patient.processes[1].send_signal(signal.SIGCONT)
    expect_done(patient.results([0, 1], 30))
    patient.end()


def case_stopped_beside_others(hosts, library):
    """A rank that is stopped, and goes on when the others of its host have failed for that and ended: it does not take them for the reason."""
    for _ in range(3):
        job = Job(hosts, library, 12, 60, {"TUTTI_HEARTBEAT_TIMEOUT_S": "2"})
        job.wait_ready()
        job.processes[1].send_signal(signal.SIGSTOP)
        others = [rank for rank in range(12) if rank != 1]
        expect_failed(job.results(others, 15), "rank 1", "TUTTI_HEARTBEAT_TIMEOUT_S")
        for rank in others:
            job.processes[rank].wait(10)
        job.processes[1].send_signal(signal.SIGCONT)
        expect_failed(job.results([1], 15), "rank 1", "TUTTI_HEARTBEAT_TIMEOUT_S")
        job.end()


def case_all_stopped(hosts, library):
    """All ranks stopped for longer than TUTTI_HEARTBEAT_TIMEOUT_S, as when a job is suspended: they go on as if nothing had been."""
    job = Job(hosts, library, 3, 7, {"TUTTI_HEARTBEAT_TIMEOUT_S": "2"})
    job.wait_ready()
    for sign, seconds in ((signal.SIGSTOP, 4), (signal.SIGCONT, 0)):
        for process in job.processes.values():
            process.send_signal(sign)
        time.sleep(seconds)
    expect_done(job.results([0, 1, 2], 60))
    job.end()


def case_other_timeouts(hosts, library):
    """Ranks whose own TUTTI_HEARTBEAT_TIMEOUT_S is long, or 0 as in a debugger, are heard in time by one whose own is short."""
    job = Job(hosts, library, 3, 5, last=0)
    for rank, timeout in enumerate(("2", "0", "60")):
        job.begin(rank, {"TUTTI_HEARTBEAT_TIMEOUT_S": timeout})
    expect_done(job.results([0, 1, 2], 60))
    job.end()


def case_link_down_at_the_start(hosts, library):
    """A link that is down when a rank comes is waited for, though the id also names an address, here the loopback, that refuses at once."""
    job = Job(hosts, library, 2, 1, {"NCCL_SOCKET_IFNAME": "^docker"}, last=1)
    assert job.read(lambda: os.path.exists(job.id_file), 20)
    hosts.link(1, "down")
    job.begin(1)
    time.sleep(4)
    hosts.link(1, "up")
    expect_done(job.results([0, 1], 60))
    job.end()


def case_link_down_and_back(hosts, library):
    """A link that is down for 4 s is survived, with the right sums."""
    job = Job(hosts, library, 3, 9)
    job.wait_ready()
    hosts.link(1, "down")
    time.sleep(4)
    hosts.link(1, "up")
    expect_done(job.results([0, 1, 2], 60))
    job.end()


def case_link_down(hosts, library):
    """A link that stays down: both sides give up, and name somebody of the other."""
    job = Job(hosts, library, 3, 60, {"TUTTI_HEARTBEAT_TIMEOUT_S": "2"})
    job.wait_ready()
    hosts.link(2, "down")
    try:
        expect_failed(job.results([0, 1, 2], 20), "TUTTI_HEARTBEAT_TIMEOUT_S")
        expect_failed(job.results([0, 1], 1), "rank 2")
    finally:
        hosts.link(2, "up")
        job.end()


def case_strangers(hosts, library):
    """Garbage, half-open connections and a port scan on the root's port while the job starts."""
    job = Job(hosts, library, 3, 1, last=1)
    assert job.read(lambda: os.path.exists(job.id_file), 20)
    port = port_of(job.id_file)
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    noise = random.Random(seed)
    silent = []
    for number in range(60):
        stranger = socket.create_connection((hosts.address(0), port), timeout=5)
        if number % 3 == 0:
            silent.append(stranger)
            continue
        if number % 3 == 1:
            stranger.sendall(noise.randbytes(noise.randrange(1, 5000)))
        stranger.close()
    for rank in (1, 2):
        job.begin(rank)
    expect_done(job.results([0, 1, 2], 40))
    for stranger in silent:
        stranger.close()
    job.end()


def case_wrong_version(hosts, library):
    """An id of another version of the bootstrap is refused with both numbers."""
    job = Job(hosts, library, 2, 1, last=1, env={"TUTTI_TIMEOUT_S": "5"})
    assert job.read(lambda: os.path.exists(job.id_file), 20)
    with open(job.id_file, "r+b") as file:
        file.seek(8)
        version = struct.unpack("<I", file.read(4))[0]
        file.seek(8)
        file.write(struct.pack("<I", version + 7))
    job.begin(1)
    expect_failed(job.results([1], 20), f"version {version + 7}", f"version {version}", code=5)
    job.end()


def case_named_root(hosts, library):
    """NCCL_COMM_ID and TUTTI_SECRET, the last rank first."""
    env = {"NCCL_COMM_ID": f"{hosts.address(0)}:{random.randrange(20000, 30000)}", "TUTTI_SECRET": "a word"}
    job = Job(hosts, library, 3, 1, env, id_file="-", first=1)
    time.sleep(0.5)
    job.begin(0)
    expect_done(job.results([0, 1, 2], 40))
    job.end()


def case_root_elsewhere(hosts, library):
    """NCCL_COMM_ID names another host than rank 0's: rank 0 says so at once."""
    job = Job(hosts, library, 2, 1, {"NCCL_COMM_ID": f"{hosts.address(1)}:4711", "TUTTI_SECRET": "a word"}, id_file="-", last=1)
    expect_failed(job.results([0], 20), "rank 0 is not at", f"{hosts.address(1)}:4711: Connection refused", code=5)
    job.end()


class WithNames:
    """Hosts with a file of names that takes the place of /etc/hosts."""

    def __init__(self, hosts, path, lines):
        self.hosts = hosts
        self.names = hosts.names
        self.path = path
        with open(path, "w", encoding="ascii") as file:
            file.write("\n".join(lines) + "\n")

    def start(self, host, command, env=None, **more):
        surroundings = dict(os.environ, NCCL_HOSTID=f"host-{host}", **(env or {}))
        return subprocess.Popen([*self.hosts.entering(host, f"host-{host}", self.path), *command], env=surroundings, **more)


def case_name_of_several_addresses(hosts, library):
    """NCCL_COMM_ID=name:port: each of the name's addresses is tried, and named where none works."""
    with tempfile.TemporaryDirectory() as folder:
        port = random.randrange(20000, 30000)
        # To rank 1 the third host's address is nearer than the first one's, and nobody listens there.
        named = WithNames(hosts, os.path.join(folder, "hosts"), [f"{hosts.address(host)} root" for host in (2, 0)])
        env = {"NCCL_COMM_ID": f"root:{port}", "TUTTI_SECRET": "a word"}
        job = Job(named, library, 2, 1, env, id_file="-")
        expect_done(job.results([0, 1], 40))
        job.end()
        job = Job(named, library, 2, 1, dict(env, TUTTI_TIMEOUT_S="3"), id_file="-", first=1)
        expect_failed(job.results([1], 20), *(f"{hosts.address(host)}:{port}: Connection refused" for host in (2, 0)))
        job.end()


def case_wrong_secret(hosts, library):
    """A rank with another TUTTI_SECRET is told so; the others do not take it for one of theirs."""
    env = {"NCCL_COMM_ID": f"{hosts.address(0)}:{random.randrange(20000, 30000)}", "TUTTI_SECRET": "a word",
           "TUTTI_TIMEOUT_S": "6"}
    job = Job(hosts, library, 2, 1, env, id_file="-", last=1)
    job.begin(1, {"TUTTI_SECRET": "another"})
    expect_failed(job.results([1], 20), "TUTTI_SECRET differs", code=5)
    expect_failed(job.results([0], 20), "1 of 2 ranks did not come: rank 1")
    job.end()


def case_no_interface(hosts, library):
    """A rule that admits nothing: what there is is listed."""
    job = Job(hosts, library, 2, 1, {"NCCL_SOCKET_IFNAME": "=nothing0"}, last=1)
    expect_failed(job.results([0], 20), "NCCL_SOCKET_IFNAME==nothing0", "eth0", code=5)
    job.end()


def case_no_interface_among_many(hosts, library):
    """The same of one rank of more than the root keeps connections with: all are told which and why."""
    ranks = 20
    env = {"NCCL_COMM_ID": f"{hosts.address(0)}:{random.randrange(20000, 30000)}", "TUTTI_SECRET": "a word"}
    job = Job(hosts, library, ranks, 1, env, id_file="-", last=ranks - 1)
    job.begin(ranks - 1, {"NCCL_SOCKET_IFNAME": "=nothing0"})
    expect_failed(job.results([ranks - 1], 40), "NCCL_SOCKET_IFNAME==nothing0", "eth0", code=5)
    expect_failed(job.results(range(ranks - 1), 10), f"rank {ranks - 1} (process", "gave up: NCCL_SOCKET_IFNAME==nothing0", "eth0")
    job.end()


def case_one_machine(hosts, library):
    """All ranks tell the same graph and certificate, in which each host has the interface that leads to the others."""
    if not os.path.exists(os.path.join(os.path.dirname(library), "libtutti-topology.so")):
        return
    with tempfile.TemporaryDirectory() as folder:
        job = Job(hosts, library, 5, 1, {"TEST_TELL": os.path.join(folder, "told")})
        expect_done(job.results(range(5), 40))
        job.end()
        told = []
        for rank in range(5):
            with open(os.path.join(folder, f"told.{rank}"), encoding="utf-8") as file:
                told.append(file.read())
    assert all(text == told[0] for text in told), "the ranks tell different things:\n" + "\n".join(told)
    # A virtual cable is one of 10 Gbit/s, says the kernel. Four blocks: 4 x 1.25 / 6.
    for part in ("nic eth0", "nic h3.eth0", "link h1.eth0 <-> network network 1.25", "# rank 4: ", "{ranks 0 4} | {rank 1} | {rank 2} | {rank 3}",
                 "allow 0.8333 GB/s"):
        assert part in told[0], f'"{part}" is missing in: {told[0]}'


def main():
    reason = namespaces.why_not()
    if reason:
        print("SKIPPED:", reason)
        sys.exit(SKIPPED)
    library = os.path.abspath(sys.argv[1])
    wanted = sys.argv[2] if len(sys.argv) > 2 else ""
    hosts = namespaces.Hosts(4)
    sys.exit(1 if run_cases(globals(), wanted, hosts, library) else 0)


main()
