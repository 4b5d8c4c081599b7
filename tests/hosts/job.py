"""A job of rank.py's processes on hosts, and what its ranks should have said at the end."""
import json
import os
import select
import struct
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from turn import case_has_turn  # noqa: E402

RANK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank.py")


class Job:
    """`ranks` processes, one per host by turns; what they print is kept by rank."""

    def __init__(self, hosts, library, ranks, seconds, env=None, id_file=None, count=50000, first=0, last=None):
        self.hosts = hosts
        self.folder = tempfile.TemporaryDirectory()
        self.id_file = id_file or os.path.join(self.folder.name, "id")
        self.text = {}
        self.processes = {}
        self.command = lambda rank: [sys.executable, RANK, library, str(rank), str(ranks), self.id_file, str(seconds),
                                     str(count)]
        self.env = env or {}
        for rank in range(first, ranks if last is None else last):
            self.begin(rank)

    def begin(self, rank, env=None):
        self.text[rank] = ""
        self.processes[rank] = self.hosts.start(rank % len(self.hosts.names), self.command(rank),
                                                dict(self.env, **(env or {})), stdout=-1, text=False)

    def read(self, until, limit_s):
        """Takes what ranks print until `until()` or the time is over; True for the former."""
        end = time.monotonic() + limit_s
        while not until():
            left = end - time.monotonic()
            if left <= 0:
                return False
            files = {p.stdout: rank for rank, p in self.processes.items() if not p.stdout.closed}
            if not files:
                return until()
            ready, _, _ = select.select(list(files), [], [], min(left, 0.2))
            for file in ready:
                some = os.read(file.fileno(), 65536)
                self.text[files[file]] += some.decode()
                if not some:
                    file.close()
        return True

    def wait_ready(self, ranks=None, limit_s=30):
        wanted = list(self.processes) if ranks is None else ranks
        if not self.read(lambda: all("ready" in self.text[r] for r in wanted), limit_s):
            raise AssertionError(f"not all ranks are ready after {limit_s} s: {self.text}")

    def results(self, ranks, limit_s):
        """The last lines of these ranks, when they have ended."""
        def over():
            whole = {r: self.text[r].split("\n")[:-1] for r in ranks}
            return all(any(line.startswith(("done", "failed")) for line in whole[r]) for r in ranks)
        if not self.read(over, limit_s):
            raise AssertionError(f"ranks {ranks} have not ended after {limit_s} s: {self.text}")
        return {r: self.text[r].strip().splitlines()[-1] for r in ranks}

    def end(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()
        self.folder.cleanup()


def port_of(id_file):
    """Where the root of an id that was left in a file listens."""
    with open(id_file, "rb") as file:
        return struct.unpack_from("<H", file.read(), 12)[0]


def wait_for_text(path, text, limit_s):
    """Until a file is there that begins with `text`."""
    end = time.monotonic() + limit_s
    while True:
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                found = file.read()
            if found.startswith(text):
                return
        assert time.monotonic() < end, f"{path} does not begin with '{text}' after {limit_s} s"
        time.sleep(0.05)


def trainer_command(train, text):
    """A short run of tutti-train on a text that it makes at `text`, up to the name of its log."""
    with open(text, "w", encoding="ascii") as file:
        file.write("the sum of all ranks " * 2000)
    return [train, "--model", "lm", "--text", text, "--context", "4", "--embedding", "4", "--hidden", "16", "--steps", "5", "--batch", "16", "--log"]


def losses(log):
    """Those that a run of it has logged."""
    with open(log, encoding="utf-8") as file:
        found = [step["loss"] for step in map(json.loads, file) if "loss" in step]
    assert len(found) >= 5, found
    return found


def expect_done(results):
    for rank, line in results.items():
        assert line.startswith("done"), f"rank {rank}: {line}"


def expect_failed(results, *parts, code=6):
    for rank, line in results.items():
        assert line.startswith(f"failed {code} "), f"rank {rank}: {line}"
        for part in parts:
            assert part in line, f'rank {rank}: "{part}" is missing in: {line}'


def run_cases(cases, wanted, *arguments):
    """Each of {name: function} whose name contains `wanted`, or that has its turn; how many failed."""
    failed = 0
    for number, name in enumerate([name for name in cases if name.startswith("case_")]):
        if wanted not in name or not (wanted or case_has_turn(number)):
            continue
        case = cases[name]
        start = time.monotonic()
        try:
            case(*arguments)
            outcome = "ok"
        except (AssertionError, OSError) as problem:
            outcome = f"FAILED: {problem}"
            failed += 1
        print(f"{name[5:]:<28} {time.monotonic() - start:5.1f} s  {outcome}", flush=True)
    return failed
