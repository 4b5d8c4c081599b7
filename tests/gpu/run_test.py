#!/usr/bin/env python3
"""tests/gpu/run from start to end on the fake driver: with too little time, on from where that ended, and with a step that fails.

    run_test.py BUILD
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

RUN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run")
EVERY_LINE = {"date", "device", "driver", "commit"}


def run(build, results, *flags):
    ended = subprocess.run([RUN, *flags, build, results], capture_output=True, text=True, timeout=400)
    print(ended.stdout[-3000:], ended.stderr)
    return ended.returncode, ended.stdout


def lines(results):
    with open(os.path.join(results, "results.jsonl")) as file:
        found = [json.loads(line) for line in file]
    assert all(EVERY_LINE <= line.keys() and line["device"].startswith("Fake") for line in found), found
    return found


def steps(results):
    return {line["step"]: line["state"] for line in lines(results) if "step" in line}


def main(build):
    listed = subprocess.run([RUN, "--list", build], capture_output=True, text=True, check=True).stdout.split()
    # What is NVIDIA's does not run on the fake driver.
    listed = [step for step in listed if not step.startswith(("against-nccl", "memcheck"))]
    with tempfile.TemporaryDirectory() as folder:
        # Too little time: ends in it, says with which step to go on, and that is the first without a state.
        code, said = run(build, folder, "--budget", "40")
        first = steps(folder)
        assert code == 4 and first["conformance"] == "ok" and set(first.values()) <= {"ok", "skipped", "undone"}, (code, first)
        onward = said.strip().splitlines()[-1].split("--from ")[1].split()[0]
        done = [step for step, state in first.items() if state != "undone"]
        assert done == listed[:len(done)] and onward == listed[len(done)], (onward, done)
        # The rest, and nothing that was done: with what was found before.
        code, _ = run(build, folder, "--from", onward)
        assert code == 0 and list(steps(folder)) == listed, steps(folder)
        found = lines(folder)
        assert [line["state"] for line in found if line.get("step") == "conformance"] == ["ok"]
        assert any("goal" in line for line in found) and any(line.get("conformance") for line in found)
        for ranks in (2, 4):
            assert any(line.get("what", "").startswith(f"all-reduce, {ranks} processes") for line in found)
        assert run(build, folder, "--from", "nothing")[0] == 2
    # What is wrong is the result, whatever comes after.
    with tempfile.TemporaryDirectory() as folder:
        broken = os.path.join(folder, "build")
        os.makedirs(os.path.join(broken, "tests", "cuda"))
        for program in ("gpu-conformance", "gpu-bench", "device-tests", "device-process-tests"):
            os.symlink(os.path.join(build, "tests", "cuda", program), os.path.join(broken, "tests", "cuda", program))
        os.remove(os.path.join(broken, "tests", "cuda", "device-tests"))
        shutil.copy(shutil.which("false"), os.path.join(broken, "tests", "cuda", "device-tests"))
        code, _ = run(broken, folder, "--budget", "30", "--from", "device-tests")
        assert code == 1 and steps(folder)["device-tests"] == "wrong" and steps(folder)["device-process-tests"] == "ok", steps(folder)


if __name__ == "__main__":
    main(os.path.realpath(sys.argv[1]))
