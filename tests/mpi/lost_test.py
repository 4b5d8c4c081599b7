"""Ranks over MPI, a host each, that lose one of them which is not dead: it is stopped, or its cable is down for good. The others say so after
TUTTI_HEARTBEAT_TIMEOUT_S, and call MPI no more.

usage: lost_test.py CLIENT [CASE]     with Open MPI, in network namespaces
"""
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


class Ranks:
    """mpirun of a case of the client, and the lines of its ranks."""

    def __init__(self, hosts, folder, client, case):
        self.path = os.path.join(folder, "lines")
        surroundings = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "TUTTI_", "OMPI_", "PMI"))}
        given = {"TEST_LINES": self.path, "TUTTI_NET": "mpi", "TUTTI_HEARTBEAT_TIMEOUT_S": str(HEARTBEAT_S), "LD_LIBRARY_PATH": ""}
        surroundings.update(given, LD_LIBRARY_PATH=surroundings.get("LD_LIBRARY_PATH", ""))
        options = ["--enable-recovery", "--mca", "pml", "ob1", "--mca", "btl", "self,tcp"]
        for name in given:
            options += ["-x", name]
        self.process = subprocess.Popen([*launchers.open_mpi(hosts, folder, 1, *options), client, "multiple", case], env=surroundings,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def text(self):
        if not os.path.exists(self.path):
            return ""
        with open(self.path, encoding="utf-8") as file:
            return file.read()

    def wait(self, word, ranks, limit_s):
        """{rank: the rest of its line that begins so}, when all of them have said it."""
        end = time.monotonic() + limit_s
        while True:
            found = {int(rank): rest for rank, rest in re.findall(rf"^rank (\d+) {word} ?(.*)$", self.text(), re.MULTILINE)}
            if set(ranks) <= set(found):
                return found
            if time.monotonic() > end:
                self.process.kill()
                raise AssertionError(f"no {word} of all of {ranks} within {limit_s} s:\n{self.text()}")
            time.sleep(0.05)

    def expect_named(self):
        """Rank 1, by the others: in time, and with no MPI call any more."""
        quiet = self.wait("quiet", OTHERS, 5 * HEARTBEAT_S)
        for rank in OTHERS:
            failed, waited = self.wait("failed", OTHERS, 1)[rank], self.wait("waited", OTHERS, 1)[rank]
            assert re.match("6 .*rank 1 ", failed) and "TUTTI_HEARTBEAT_TIMEOUT_S" in failed, failed
            assert HEARTBEAT_S - 1 < float(waited.split()[0]) < 2 * HEARTBEAT_S, waited
            assert quiet[rank] == "0 calls", quiet
            print(f"   rank {rank} after {waited}: {failed}", flush=True)

    def end(self):
        self.process.kill()
        self.process.wait()


def lose(client, case, happens):
    hosts = namespaces.Hosts(HOSTS)
    with tempfile.TemporaryDirectory() as folder:
        ranks = Ranks(hosts, folder, client, case)
        try:
            assert set(ranks.wait("transport", range(HOSTS), 40).values()) == {"mpi"}, ranks.text()
            ranks.wait("going", range(HOSTS), 20)
            happens(hosts)
            ranks.expect_named()
        finally:
            ranks.end()
            hosts.remove()


def case_stopped(client):
    """By SIGSTOP, its own."""
    lose(client, "stopped", lambda hosts: None)


def case_link_down(client):
    """For good. mpirun does not mind so soon."""
    lose(client, "cut", lambda hosts: hosts.link(1, "down"))


def main():
    reason = namespaces.why_not()
    if not reason and not launchers.open_mpi_path():
        reason = "there is no mpirun of Open MPI"
    if reason:
        print("SKIPPED:", reason)
        sys.exit(SKIPPED)
    sys.exit(1 if run_cases(globals(), sys.argv[2] if len(sys.argv) > 2 else "", os.path.abspath(sys.argv[1])) else 0)


main()
