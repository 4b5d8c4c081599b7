"""Starts the ranks of an MPI program, and reads what they print."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from turn import case_has_turn  # noqa: E402

SKIPPED = 77
LIMIT_S = 100


def launcher(kind, ranks, *more):
    """mpirun's command line. `more`: options of its own."""
    if kind == "mpich":
        return [shutil.which("mpiexec.mpich") or "mpiexec.hydra", "-np", str(ranks), *more]
    program = shutil.which("mpirun.openmpi") or "mpirun"
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [program, *as_root, "--oversubscribe", "--mca", "btl_base_warn_component_unused", "0", "-np", str(ranks), *more]


class Run:
    """One mpirun: its exit status, and its lines by rank."""

    def __init__(self, kind, ranks, command, env=None, options=()):
        # A machine that is busy with other things may keep ranks waiting.
        surroundings = dict(os.environ, TUTTI_TIMEOUT_S="60", TUTTI_HEARTBEAT_TIMEOUT_S="40", **(env or {}))
        for name in ("NCCL_HOSTID", "TUTTI_NET", "NCCL_DEBUG"):
            if name not in (env or {}):
                surroundings.pop(name, None)
        # Meson puts the folders of all that a test depends on there; the driver is one case's.
        folders = surroundings.get("LD_LIBRARY_PATH", "").split(":")
        surroundings["LD_LIBRARY_PATH"] = ":".join(f for f in folders if f and f != os.environ.get("TEST_FAKE_DRIVER"))
        self.ranks = ranks
        with tempfile.TemporaryDirectory() as folder:
            surroundings["TEST_LINES"] = os.path.join(folder, "lines")
            self.done = subprocess.run([*launcher(kind, ranks, *options), *command], env=surroundings, capture_output=True,
                                       text=True, timeout=LIMIT_S, check=False)
            self.printed = ""
            if os.path.exists(surroundings["TEST_LINES"]):
                with open(surroundings["TEST_LINES"], encoding="utf-8") as file:
                    self.printed = file.read()
        self.text = self.printed + self.done.stdout + self.done.stderr

    def lines(self, word):
        """{rank: the rest of its last line that begins so}"""
        return {int(rank): rest for rank, rest in re.findall(rf"^rank (\d+) {word} ?(.*)$", self.printed, re.MULTILINE)}

    def expect(self, word, wanted, ranks=None):
        ranks = range(self.ranks) if ranks is None else ranks
        found = self.lines(word)
        for rank in ranks:
            assert rank in found and re.search(wanted, found[rank]), f'rank {rank}: no "{word} {wanted}" in:\n{self.text}'
        return found

    def expect_done(self):
        self.expect("done", "")
        assert self.done.returncode == 0, f"status {self.done.returncode}:\n{self.text}"


def why_not(kind):
    """Why mpirun cannot start ranks here; "" if it can."""
    try:
        run = subprocess.run([*launcher(kind, 1), "true"], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except OSError as failure:
        return str(failure)
    return "" if run.returncode == 0 else f"mpirun does not start a process here: {run.stderr.strip()[:200]}"


def run_cases(kind, names, found, *args):
    """The functions called case_* of `found`, those that are named or all: the status of the test."""
    if reason := why_not(kind):
        print("skipped:", reason)
        return SKIPPED
    cases = {name[len("case_"):]: case for name, case in found.items() if name.startswith("case_")}
    # Those that one MPI leaves to another commit have their turn with the other one.
    in_turn = [name for number, name in enumerate(cases) if case_has_turn(number + (kind == "mpich"))]
    failed = 0
    for name in names or in_turn:
        try:
            cases[name](kind, *args)
            print("ok    ", name, flush=True)
        except (AssertionError, subprocess.TimeoutExpired) as failure:
            failed += 1
            print("FAILED", name, failure, getattr(failure, "stdout", ""), flush=True)
    return 1 if failed else 0
