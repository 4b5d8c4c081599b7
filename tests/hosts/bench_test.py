"""bench/hosts runs: values are right, every peer that is asked for is measured, bytes that crossed are counted; what is measured is shown,
and is written where it can be, whatever happens to the rest.

usage: bench_test.py BENCH_HOSTS BUILD_FOLDER
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

SIZES = [8, 262144]
TINY = ["--build", sys.argv[2], "--shapes", "2x1", "--sizes", "8", "--budget", "1", "--peers", "wire"]


def start(words, **streams):
    return subprocess.Popen([sys.executable, sys.argv[1], *words], text=True, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams})


def check_command_lines():
    """Before anything is measured."""
    for name, why in (("", "No such file or directory"), ("/nonexistent/rows.json", "No such file or directory"), ("-", "name a file")):
        run = start([*TINY, "--json", name])
        said = run.communicate()[1]
        assert run.returncode == 2 and f"--json {name}: " in said and why in said, said


def check_unwritable(path):
    run = start([*TINY, "--rounds", "1", "--json", "/dev/full"])
    table, said = run.communicate()
    assert run.returncode == 1 and "bare copy" in table and said.endswith("hosts: --json /dev/full: No space left on device\n"), said
    with open("/dev/full", "w", encoding="utf-8") as full:
        run = start([*TINY, "--rounds", "1", "--json", path], stdout=full)
        said = run.communicate()[1]
    assert run.returncode == 1 and said.endswith("hosts: standard output: No space left on device\n"), said
    with open(path, encoding="utf-8") as file:
        assert json.load(file)["shapes"][0]["rows"][0]["us"]["wire"] > 0


def check_interrupted(path):
    run = start([*TINY, "--rounds", "100", "--json", path])
    line = run.stderr.readline()
    assert "round 1 of " in line, line
    run.send_signal(signal.SIGINT)
    table, said = run.communicate()
    assert run.returncode == -signal.SIGINT and said.endswith("interrupted; what is there:\n") and "# FAILED: interrupted" in table, said
    with open(path, encoding="utf-8") as file:
        shape = json.load(file)["shapes"][0]
    assert shape["failures"] == ["interrupted"] and shape["rows"][0]["us"]["wire"] > 0, shape


def main():
    check_command_lines()
    peers = ["tutti", "wire"] + ["tutti-mpi"] * (shutil.which("mpirun.openmpi") is not None)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.json")
        run = subprocess.run([sys.executable, sys.argv[1], "--build", sys.argv[2], "--shapes", "2x1,2x2", "--rounds", "1", "--budget", "5",
                              "--sizes", ",".join(map(str, SIZES)), "--peers", ",".join(peers), "--json", path], check=False)
        if run.returncode != 0:
            return run.returncode
        with open(path, encoding="utf-8") as file:
            shapes = json.load(file)["shapes"]
        check_unwritable(path)
        check_interrupted(path)
    assert [(shape["hosts"], shape["ranks_per_host"]) for shape in shapes] == [(2, 1), (2, 2)], shapes
    for shape in shapes:
        assert not shape["failures"] and not shape["left_out"], shape
        for row in shape["rows"]:
            assert all(row["us"][peer] > 0 for peer in peers), row
            assert row["perf"]["transport"] != "local", row
        # What two hosts must exchange, in each direction.
        crossed = shape["rows"][-1]["perf"]["wire_bytes"] * shape["ranks_per_host"]
        assert SIZES[-1] <= crossed <= 1.1 * SIZES[-1], crossed
    return 0


sys.exit(main())
