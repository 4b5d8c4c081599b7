"""bench/hosts runs: values are right, every peer that is asked for is measured, bytes that crossed are counted.

usage: bench_test.py BENCH_HOSTS BUILD_FOLDER
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

SIZES = [8, 262144]


def main():
    peers = ["tutti", "wire"] + ["tutti-mpi"] * (shutil.which("mpirun.openmpi") is not None)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.json")
        run = subprocess.run([sys.executable, sys.argv[1], "--build", sys.argv[2], "--shapes", "2x1,2x2", "--rounds", "1", "--budget", "5",
                              "--sizes", ",".join(map(str, SIZES)), "--peers", ",".join(peers), "--json", path], check=False)
        if run.returncode != 0:
            return run.returncode
        with open(path, encoding="utf-8") as file:
            shapes = json.load(file)["shapes"]
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
