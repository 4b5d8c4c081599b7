"""Ranks over MPI, a host each, that lose one of them: it is stopped, its cable is down for good, or it is killed. The others say so, after
TUTTI_HEARTBEAT_TIMEOUT_S or at once, and call MPI no more; after a death they go on by TCP.

usage: lost_test.py KIND CLIENT [CASE]     KIND: openmpi or mpich; in network namespaces
"""
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "hosts"))
import launchers  # noqa: E402
import namespaces  # noqa: E402
from job import run_cases  # noqa: E402

SKIPPED = 77
HOSTS = 3
HEARTBEAT_S = 2
OTHERS = [0, 2]
# What the calls are in which a rank is lost: between two of them, by streams, and in the middle of one, by MPI from the buffers.
LOST_IN = ({"TEST_ELEMENTS": "30000", "TUTTI_MPI_DIRECT_BYTES": "0"}, {"TEST_ELEMENTS": "4000000"})


def command(kind, hosts, folder, given):
    """The launcher's, which is to leave survivors alone."""
    if kind == "mpich":
        return launchers.mpich(hosts, folder, 1, "-disable-auto-cleanup")
    options = ["--enable-recovery", "--mca", "pml", "ob1", "--mca", "btl", "self,tcp"]
    for name in given:
        options += ["-x", name]
    return launchers.open_mpi(hosts, folder, 1, *options)


class Ranks:
    """mpirun of a case of the client, and the lines of its ranks."""

    def __init__(self, kind, hosts, folder, client, case, net, calls):
        self.path = os.path.join(folder, "lines")
        surroundings = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "TUTTI_", "OMPI_", "PMI"))}
        given = {"TEST_LINES": self.path, "TEST_ID_FILE": os.path.join(folder, "id"), "TUTTI_NET": net, "TUTTI_HEARTBEAT_TIMEOUT_S": str(HEARTBEAT_S),
                 "LD_LIBRARY_PATH": "", **calls}
        # UCX, below MPICH, would take memory of the machine that the namespaces are on.
        surroundings.update(given, LD_LIBRARY_PATH=surroundings.get("LD_LIBRARY_PATH", ""), UCX_TLS="tcp,self")
        self.client = client
        self.said = os.path.join(folder, "said")
        with open(self.said, "wb") as said:
            self.process = subprocess.Popen([*command(kind, hosts, folder, given), client, "multiple", case], env=surroundings,
                                            stdout=said, stderr=subprocess.STDOUT)

    def text(self):
        if not os.path.exists(self.path):
            return ""
        with open(self.path, encoding="utf-8") as file:
            return file.read()

    def launcher_says(self):
        with open(self.said, encoding="utf-8", errors="replace") as said:
            processes = subprocess.run(["pgrep", "-a", "-f", f"^{self.client} "], capture_output=True, text=True, check=False).stdout
            return f"The launcher, whose status is {self.process.poll()}:\n{said.read()[-3000:]}\nRanks that are there:\n{processes}"

    def lines(self, word):
        """{rank: the rest of its line that begins so}"""
        return {int(rank): rest for rank, rest in re.findall(rf"^rank (\d+) {word} ?(.*)$", self.text(), re.MULTILINE)}

    def wait(self, word, ranks, limit_s):
        """The lines, when all of these ranks have said it."""
        end = time.monotonic() + limit_s
        while not set(ranks) <= set(found := self.lines(word)):
            assert time.monotonic() < end, f"no {word} of all of {ranks} within {limit_s} s:\n{self.text()}\n{self.launcher_says()}"
            time.sleep(0.05)
        return found

    def expect_named(self, reason):
        """Rank 1, by the others, with no MPI call any more."""
        quiet, failed = self.wait("quiet", OTHERS, 5 * HEARTBEAT_S), self.lines("failed")
        for rank in OTHERS:
            assert re.match("6 .*rank 1 ", failed[rank]) and reason in failed[rank], failed
            assert quiet[rank] == "0 calls", quiet
            print(f"   rank {rank}: {failed[rank]}", flush=True)

    def expect_waited(self):
        """For the heartbeat, before they said so."""
        waited = self.lines("waited")
        assert all(HEARTBEAT_S - 1 < float(waited[rank].split()[0]) < 2 * HEARTBEAT_S for rank in OTHERS), waited

    def end(self):
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def ranks_of(kind, client, case, net="mpi", calls=LOST_IN[0]):
    """Once they have a communicator over MPI: them, and their hosts."""
    hosts = namespaces.Hosts(HOSTS)
    with tempfile.TemporaryDirectory() as folder:
        ranks = Ranks(kind, hosts, folder, client, case, net, calls)
        try:
            assert set(ranks.wait("transport", range(HOSTS), 40).values()) == {"mpi"}, ranks.text()
            yield ranks, hosts
        finally:
            ranks.end()
            hosts.remove()


def case_stopped(kind, client):
    """By SIGSTOP, its own."""
    for calls in LOST_IN:
        with ranks_of(kind, client, "stopped", calls=calls) as (ranks, _):
            ranks.wait("going", [1], 20)  # the others may still wait for its part of that call
            ranks.expect_named("TUTTI_HEARTBEAT_TIMEOUT_S")
            ranks.expect_waited()


def case_link_down(kind, client):
    """For good. The launchers do not mind so soon."""
    with ranks_of(kind, client, "cut") as (ranks, hosts):
        ranks.wait("going", range(HOSTS), 20)
        hosts.link(1, "down")
        ranks.expect_named("TUTTI_HEARTBEAT_TIMEOUT_S")
        ranks.expect_waited()


def case_killed(kind, client):
    """The launchers leave those of other hosts alone, as they are told to: they go on by TCP."""
    for calls in LOST_IN:
        with ranks_of(kind, client, "killed", net="auto", calls=calls) as (ranks, _):
            ranks.expect_named("ended without leaving")
            rest = ranks.wait("rest", OTHERS, 40)
            assert set(rest.values()) == {"tcp after 0 calls"}, rest


def main():
    kind = sys.argv[1]
    reason = namespaces.why_not()
    if not reason and not (launchers.mpich_path() if kind == "mpich" else launchers.open_mpi_path()):
        reason = f"there is no mpirun of {kind}"
    if reason:
        print("SKIPPED:", reason)
        sys.exit(SKIPPED)
    sys.exit(1 if run_cases(globals(), sys.argv[3] if len(sys.argv) > 3 else "", kind, os.path.abspath(sys.argv[2])) else 0)


main()
