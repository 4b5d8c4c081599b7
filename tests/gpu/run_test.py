#!/usr/bin/env python3
"""tests/gpu/run from start to end on the fake driver, and with programs that take too long, miss goals and fail.

    run_test.py BUILD
"""
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import tempfile

RUN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run")
EVERY_LINE = {"date", "device", "driver", "commit"}


def run(build, results, *flags):
    ended = subprocess.run([RUN, *flags, build, results], capture_output=True, text=True, timeout=600)
    print(ended.stdout[-3000:], ended.stderr)
    return ended.returncode, ended.stdout


def lines(results):
    with open(os.path.join(results, "results.jsonl")) as file:
        found = [json.loads(line) for line in file]
    assert all(EVERY_LINE <= line.keys() and line["device"].startswith("Fake") for line in found), found
    return found


def steps(results):
    return {line["step"]: line["state"] for line in lines(results) if "step" in line}


def said_by_failed(results):
    """The end of what each step printed that is wrong or late."""
    with open(os.path.join(results, "log.txt")) as file:
        logs = {part.split(":", 1)[0]: part[-3000:] for part in file.read().split("\n== ")}
    return "\n".join(logs.get(step, step) for step, state in steps(results).items() if state in ("wrong", "late"))


def with_scripts(build, folder, **scripts):
    """A build folder whose programs say of themselves what those of `build` do, and else run these lines of a shell. {real}: what they are in `build`."""
    made = os.path.join(folder, "build")
    shutil.rmtree(made, ignore_errors=True)
    programs = os.path.join(made, "tests", "cuda")
    os.makedirs(programs)
    os.symlink(os.path.join(build, "src"), os.path.join(made, "src"))
    for name in ("gpu-conformance", "gpu-bench", "device-tests", "device-process-tests"):
        path = os.path.join(programs, name)
        with open(path, "w") as file:
            file.write(f'#!/bin/sh\n[ "$1" = --facts ] && exec "{build}/tests/cuda/{name}" "$@"\n')
            file.write(scripts.get(name.replace("-", "_"), "exit 0").replace("{real}", f"{build}/tests/cuda/{name}") + "\n")
        os.chmod(path, 0o755)
    return made


def check_all(build):
    """With the programs themselves. Tests of their own run device-tests, which writes no results, and device-process-tests but for lines."""
    with tempfile.TemporaryDirectory() as folder:
        made = with_scripts(build, folder, gpu_conformance='exec {real} "$@"', gpu_bench='exec {real} "$@"',
                            device_process_tests='[ "$NCCL_PROTO" != LL ] || exec {real} "$@"')
        os.symlink(os.path.join(build, "tutti-train"), os.path.join(made, "tutti-train"))
        listed = subprocess.run([RUN, "--list", made], capture_output=True, text=True, check=True).stdout.split()
        code, _ = run(made, folder)
        # What is NVIDIA's does not run on the fake driver.
        wanted = [step for step in listed if not step.startswith(("against-nccl", "memcheck", "peers"))]
        assert code == 0 and list(steps(folder)) == wanted, f"{code}, {steps(folder)}\n{said_by_failed(folder)}"
        found = lines(folder)
        assert any("goal" in line for line in found) and any(line.get("conformance") for line in found)
        for ranks in (2, 4):
            assert any(line.get("what", "").startswith(f"all-reduce, {ranks} processes") for line in found)
        assert run(made, folder, "--from", "nothing")[0] == 2
        assert run(made, folder, "--from", "paths", "--to", "nothing")[0] == 2


def check_ends(build):
    """How it ends with programs that are slow, miss goals and fail."""
    with tempfile.TemporaryDirectory() as folder:
        # Too little time: ends in it, and says with which step to go on.
        slow = with_scripts(build, folder, device_tests="sleep 600")
        code, said = run(slow, folder, "--budget", "30")
        first = steps(folder)
        assert code == 4 and set(first.values()) <= {"ok", "undone"} and first["conformance"] == "ok", (code, first)
        assert said.strip().splitlines()[-1].split("--from ")[1].split()[0] == "device-tests", said
        # One that does not end with all of the time is late, and what is killed before its time is over is wrong.
        code, _ = run(slow, folder, "--budget", "30", "--from", "device-tests")
        assert code == 1 and steps(folder)["device-tests"] == "late", (code, steps(folder))
        assert [line["step"] for line in lines(folder) if "step" in line].count("conformance") == 1
        killed = with_scripts(build, folder, device_tests="kill -9 $$")
        code, _ = run(killed, folder, "--budget", "30", "--from", "device-tests")
        assert code == 1 and steps(folder)["device-tests"] == "wrong", (code, steps(folder))
        # From the beginning, what was found before does not count. Goals are the benchmark's alone.
        missed = with_scripts(build, folder, gpu_bench="exit 3")
        code, _ = run(missed, folder)
        states = steps(folder)
        assert code == 3 and {states["bench-start"], states["paths"]} == {"missed"}, (code, states)
        assert set(states.values()) <= {"ok", "skipped", "missed"} and states["device-tests"] == "ok", states
        broken = with_scripts(build, folder, device_tests="exit 3")
        code, _ = run(broken, folder, "--from", "device-tests")
        states = steps(folder)
        assert code == 1 and states["device-tests"] == "wrong" and states["device-process-tests"] == "ok", (code, states)
        code, _ = run(killed, folder, "--from", "conformance", "--to", "device-tests")
        assert [line["step"] for line in lines(folder)[-2:]] == ["conformance", "device-tests"], lines(folder)[-3:]
        # What is wrong is the result, whatever comes after.
        code, _ = run(broken, folder, "--from", "device-process-tests-NCCL_ALGO-tree")
        assert code == 1, code


def main(build):
    # The one waits for the other's sleepers.
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for check in [pool.submit(check_all, build), pool.submit(check_ends, build)]:
            check.result()
    for flag, code, stream in (("--help", 0, "stdout"), ("--helf", 2, "stderr")):
        told = subprocess.run([RUN, flag], capture_output=True, text=True)
        assert told.returncode == code and "--budget  ends in time" in getattr(told, stream), told
    # A part that there is not is no part without goals.
    assert subprocess.run([os.path.join(build, "tests", "cuda", "gpu-bench"), "--part", "larg"]).returncode == 2


if __name__ == "__main__":
    main(os.path.realpath(sys.argv[1]))
