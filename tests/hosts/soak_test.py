"""Ranks and whole hosts are killed and stopped at random moments, over and over: every survivor ends with an error that names one of
them, or goes on without them by ncclCommShrink, and nothing is left behind.

usage: soak_test.py LIBRARY [--seconds S | --minutes M] [--seed N]
"""
import argparse
import os
import random
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import namespaces  # noqa: E402
from job import Job  # noqa: E402

SKIPPED = 77
HOSTS = 3
HEARTBEAT_S = 1
TIMEOUT_S = 4
# A machine that is busy with other things may keep ranks waiting.
LIMIT_S = 30


def sockets_of(hosts):
    """What is open in the namespaces: TCP connections and listeners, Unix sockets of the library's."""
    found = []
    for name in hosts.names:
        for table, wanted in (("tcp", r"^ *\d+: \S+ \S+ (01|0A) .*"), ("unix", r"^.*tutti.*")):
            text = subprocess.run(["ip", "netns", "exec", name, "cat", f"/proc/net/{table}"], capture_output=True, text=True,
                                  check=True).stdout
            found += [f"{name} {table}: {line}" for line in re.findall(wanted, text, re.MULTILINE)]
    return found


def left_files():
    """What bears the library's name: files, sockets. Folders are those of other tests, which may run beside this one."""
    return {entry.path for folder in ("/dev/shm", "/tmp") for entry in os.scandir(folder)
            if ("tutti" in entry.name or "nccl" in entry.name) and not entry.is_dir()}


def processes_in(hosts):
    return [pid for name in hosts.names
            for pid in subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=True).stdout.split()]


class Accident:
    """What happens to a job, and when."""

    def __init__(self, chance):
        # Now and then more than can all watch each other.
        self.ranks = chance.randrange(17, 23) if chance.random() < 0.05 else chance.randrange(3, 7)
        self.count = chance.choice([3, 500, 5000, 50000, 200000])
        self.stops = chance.random() < 0.3
        # Before all have come, or so long after it.
        self.early = chance.random() < 0.25
        self.after_s = chance.random() * (0.2 if self.early else 0.5)
        if chance.random() < 0.25:
            host = chance.randrange(HOSTS)
            self.victims = [r for r in range(self.ranks) if r % HOSTS == host]
        else:
            self.victims = [chance.randrange(self.ranks)]
        self.shrinks = not self.early and chance.random() < 0.5

    def __str__(self):
        return (f"{self.ranks} ranks, {4 * self.count} bytes, {'stop' if self.stops else 'kill'} {self.victims} "
                f"{self.after_s:.3f} s after the {'start' if self.early else 'first call'}{', go on' if self.shrinks else ''}")


def names_a_victim(accident, line):
    """By itself, or in a list of nobody else: "2 of 6 ranks did not come: ranks 2, 5"."""
    if any(re.search(rf"rank {victim}\b", line) for victim in accident.victims):
        return True
    lists = re.findall(r"ranks (\d+(?:, \d+)*)", line)
    return any({int(rank) for rank in one.split(", ")} <= set(accident.victims) for one in lists)


def check_end(accident, line):
    # Rank 0 made the id; before a rank has met the others it knows it by that. One that comes late may find that it has ended with its own
    # error, for the victim's sake.
    by_the_id = "made the unique id" if 0 in accident.victims else "made the unique id has ended"
    if line.startswith("done without " + ",".join(map(str, accident.victims)) + ":") and accident.shrinks:
        pass
    elif not (line.startswith("failed 6 ") and not accident.shrinks):
        raise AssertionError(f"it ended with: {line}")
    knows_the_id = 0 in accident.victims or accident.early
    if not (names_a_victim(accident, line) or (knows_the_id and by_the_id in line)):
        raise AssertionError(f"none of {accident.victims} is named in: {line}")


def happen(accident, hosts, library):
    """The job's life."""
    before = left_files()
    job = Job(hosts, library, accident.ranks, 60, {"TUTTI_HEARTBEAT_TIMEOUT_S": str(HEARTBEAT_S), "TUTTI_TIMEOUT_S": str(TIMEOUT_S)},
              count=accident.count, last=0)
    try:
        victims_file = os.path.join(job.folder.name, "victims")
        if accident.shrinks:
            job.env["TEST_VICTIMS"] = victims_file
        for rank in range(accident.ranks):
            job.begin(rank)
        if not accident.early:
            job.wait_ready()
        else:
            # The interpreter's start is not what is tried.
            job.read(lambda: os.path.exists(job.id_file), 20)
        time.sleep(accident.after_s)
        with open(victims_file, "w", encoding="ascii") as file:
            file.write(",".join(map(str, accident.victims)))
        for victim in accident.victims:
            job.processes[victim].send_signal(signal.SIGSTOP if accident.stops else signal.SIGKILL)
        survivors = [r for r in range(accident.ranks) if r not in accident.victims]
        for rank, line in job.results(survivors, LIMIT_S).items():
            try:
                check_end(accident, line)
            except AssertionError as problem:
                raise AssertionError(f"rank {rank}: {problem}") from problem
        for victim in accident.victims:
            job.processes[victim].send_signal(signal.SIGKILL)
        for process in job.processes.values():
            process.wait(LIMIT_S)
    finally:
        job.end()
    end = time.monotonic() + 2
    while (left := processes_in(hosts) + sockets_of(hosts) + sorted(left_files() - before)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left, "left behind: " + ", ".join(left)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    if reason := namespaces.why_not():
        print("SKIPPED:", reason)
        return SKIPPED
    print(f"--seed {options.seed}", flush=True)
    chance = random.Random(options.seed)
    hosts = namespaces.Hosts(HOSTS)
    end = time.monotonic() + (options.minutes * 60 or options.seconds)
    jobs = failed = 0
    while time.monotonic() < end and failed < 5:
        accident = Accident(chance)
        jobs += 1
        try:
            happen(accident, hosts, os.path.abspath(options.library))
        except (AssertionError, OSError, subprocess.SubprocessError) as problem:
            failed += 1
            print(f"FAILED job {jobs}, {accident}: {problem}", flush=True)
    print(f"{jobs} jobs, {failed} failed")
    return 1 if failed else 0


sys.exit(main())
