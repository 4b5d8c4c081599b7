#!/usr/bin/env python3
"""startup_test.py STARTUP: what bench/startup refuses before it measures, and where its results go."""
import json
import os
import subprocess
import sys
import tempfile


def startup(*arguments, **more):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    return subprocess.run([os.path.abspath(sys.argv[1]), *arguments], text=True, timeout=100, check=False, **streams)


def check(condition, what, result):
    if not condition:
        sys.exit(f"{what}\n{result.stdout}\n{result.stderr}")


def main():
    for words, said in (
            (["--json", "/nonexistent/x"], "startup: --json /nonexistent/x: No such file or directory\n"),
            (["--json", ""], "startup: --json is empty; name a file\n"),
            (["--ranks", "2,,4"], 'startup: --ranks: "2,,4" has an empty part\n'),
            (["--ranks", "2,65"], "startup: --ranks: Value 65 not in range 1 to 64\n"),
            (["--parts", "init,"], 'startup: --parts: "init," has an empty part\n'),
            (["--parts", "init,speed"], "startup: --parts: speed not in {init,memory,cycles,size}\n")):
        bad = startup(*words)
        check((bad.returncode, bad.stdout, bad.stderr) == (2, "", said), f"{words} is taken", bad)
    quick = ["--parts", "init,size", "--ranks", "1,2", "--launches", "1", "--rounds", "1"]
    with tempfile.TemporaryDirectory() as folder:
        good = startup(*quick, "--json", "-", cwd=folder)
        check(good.returncode == 0 and " processes      2 " in good.stderr, "no table beside JSON", good)
        check([(row["how"], row["ranks"]) for row in json.loads(good.stdout)["init"]] ==
              [(how, ranks) for ranks in (1, 2) for how in ("processes", "threads", "init_all")], "not what was asked for", good)
        check(not os.listdir(folder), "a file is there", good)
    # The goal is for the library without CUDA.
    check(("Built with CUDA; the goal of 3 MB" in good.stderr) != (". Goal: 3 MB" in good.stderr), "which goal?", good)
    full = startup(*quick, "--json", "/dev/full")
    check(full.returncode == 1 and " processes      2 " in full.stdout and "/dev/full: No space" in full.stderr, "the table is lost", full)


main()
