#!/usr/bin/env python3
"""Two processes that are started by hand, as docs/hosts.md says: the id goes by a file, and in the environment; on one host, and on two where
there are network namespaces.

usage: by_hand_test.py BY_HAND
"""
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "hosts"))
import namespaces  # noqa: E402

LIMIT_S = 60
RANKS = 2


def start(before, program, rank, words=(), **env):
    """A rank; `before`: what enters its host."""
    surroundings = {name: value for name, value in os.environ.items()
                    if not name.startswith(("NCCL_", "TUTTI_")) and name not in ("RANK", "WORLD_SIZE", "UNIQUE_ID")}
    return subprocess.Popen([*before[rank], program, str(rank), str(RANKS), *words], env=dict(surroundings, **env),
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def expect_sums(ranks):
    """Of the processes in the order of their ranks."""
    for rank, process in enumerate(ranks):
        text = process.communicate(timeout=LIMIT_S)[0]
        assert process.returncode == 0 and f"rank {rank} of {RANKS}: the sum of all ranks is 1\n" in text, text


def end(ranks):
    for process in ranks:
        process.kill()
        process.wait()


def by_file(before, program):
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        try:
            for rank in range(RANKS):
                ranks.append(start(before, program, rank, [os.path.join(folder, "id")]))
            expect_sums(ranks)
        finally:
            end(ranks)


def by_environment(before, program):
    ranks = [start(before, program, 0)]
    try:
        shown = ranks[0].stdout.readline().strip()
        assert len(shown) == 256 and set(shown) <= set("0123456789abcdef"), shown
        ranks.append(start(before, program, 1, UNIQUE_ID=shown))
        expect_sums(ranks)
    finally:
        end(ranks)


def wrong_environment(before, program):
    """What is no id is said to be none."""
    for text in ("", "0f" * 127, "zz" * 128):
        process = start(before, program, 1, UNIQUE_ID=text)
        told = process.communicate(timeout=LIMIT_S)[0]
        assert process.returncode == 1 and "UNIQUE_ID is not what rank 0 has printed" in told, told


def wrong_ranks(program):
    """A word is not taken for rank 0."""
    for words in (["x", "2"], ["0x", "2"], ["", "2"], ["0", "two"], ["2", "2"], ["-1", "2"], ["0"]):
        told = subprocess.run([program, *words], capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert told.returncode == 2 and told.stderr == "usage: by-hand RANK RANKS [FILE]\n", (words, told)


def main():
    program = os.path.abspath(sys.argv[1])
    wrong_ranks(program)
    places = {"one host": [[]] * RANKS}
    reason = namespaces.why_not()
    if reason:
        print("two hosts: skipped:", reason)
    else:
        hosts = namespaces.Hosts(RANKS)
        places["two hosts"] = [["ip", "netns", "exec", name, "env", f"NCCL_HOSTID=host-{host}"] for host, name in enumerate(hosts.names)]
    for place, before in places.items():
        for way in (by_file, by_environment, wrong_environment):
            way(before, program)
            print(f"{place}, {way.__name__}: ok", flush=True)


main()
