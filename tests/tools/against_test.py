#!/usr/bin/env python3
"""tutti-perf --against: beside a copy of the library under test, beside a library whose every call is known to take longer, and beside what is none.

    against_test.py TUTTI_PERF LIBNCCL LIBTUTTI OTHER    OTHER: other_nccl.c
"""
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

PERF, LIBNCCL, LIBTUTTI, OTHER = (os.path.abspath(path) for path in sys.argv[1:5])
TIMEOUT_S = 120


def run(*arguments, **variables):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "TUTTI_", "OTHER_"))}
    return subprocess.run([PERF, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, env={**kept, **variables})


class AgainstTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="tutti-against-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.json = os.path.join(self.folder, "rows.json")

    def copied(self):
        """Another Tutti."""
        for library, name in ((LIBNCCL, "libnccl.so.2"), (LIBTUTTI, "libtutti.so.0")):
            shutil.copy(library, os.path.join(self.folder, name))
        return os.path.join(self.folder, "libnccl.so.2")

    def rows(self, *arguments, returns=0, **variables):
        result = run(*arguments, "-n", "3", "--json", self.json, **variables)
        self.assertEqual(result.returncode, returns, result.stderr + result.stdout)
        with open(self.json, encoding="utf-8") as file:
            return json.load(file), result

    def test_a_copy_of_the_library(self):
        rows, result = self.rows("all", "--ranks", "3", "-b", "8", "-e", "96K", "-f", "100", "-d", "bfloat16", "-o", "mulsum", "--percentiles",
                                 "--against", self.copied(), NCCL_DEBUG="INFO", NCCL_NTHREADS="64")
        self.assertEqual(len({row["collective"] for row in rows}), 9)
        for row in rows:
            self.assertEqual((row["wrong"], row["against_wrong"]), (0, 0), row)
            self.assertGreater(row["against_time_us"], 0)
            self.assertAlmostEqual(row["against_ratio"], row["against_time_us"] / row["time_us"], delta=0.01 + 0.01 * row["against_ratio"])
        copy = os.path.join(os.path.realpath(self.folder), "libtutti.so.0")
        self.assertIn(f"# against {copy}, by turns", result.stdout)
        # Each library names what it ignores once in each process.
        self.assertEqual((result.stdout + result.stderr).count("NCCL_NTHREADS"), 2 * 3, result.stderr)
        lines = [line.split() for line in result.stdout.splitlines() if line.startswith("  ")]
        self.assertEqual({len(line) for line in lines}, {5 + 2 * 8})

    def test_under_launchers(self):
        """NCCL_COMM_ID is an address that only one library can have."""
        copy = self.copied()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        for place in ({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": f"against-{os.getpid()}"},
                      {"NCCL_COMM_ID": f"127.0.0.1:{port}", "TUTTI_SECRET": "a word"}):
            ranks = [subprocess.Popen([PERF, "all_reduce", "-e", "64", "-n", "2", "--against", copy], stdout=subprocess.PIPE, text=True,
                                      stderr=subprocess.STDOUT, env={**os.environ, **place, "WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank)})
                     for rank in range(2)]
            said = [rank.communicate(timeout=TIMEOUT_S)[0] for rank in ranks]
            self.assertEqual([rank.returncode for rank in ranks], [0, 0], said)
            self.assertIn("ratio", said[0])

    def test_times_are_told_apart(self):
        rows, result = self.rows("all_reduce", "--ranks", "2", "-b", "64", "-e", "64", "--against", OTHER)
        for row in rows:
            self.assertGreater(row["against_time_us"], 2000)
            self.assertGreater(row["against_ratio"], 1)
            self.assertEqual((row["wrong"], row["against_wrong"]), (0, 0), row)
        self.assertIn("Out of bounds values : 0 OK", result.stdout)

    def test_wrong_values_are_told_apart(self):
        rows, result = self.rows("all_reduce", "--ranks", "2", "-b", "64", "-e", "64", "--against", OTHER, returns=1, OTHER_NCCL_LIES="1")
        for row in rows:
            self.assertEqual(row["wrong"], 0, row)
            self.assertGreater(row["against_wrong"], 0, row)
        self.assertIn("FAILED", result.stdout)
        self.assertIn(f"by {OTHER}", result.stderr)

    def test_wrong_values_of_the_library_that_is_measured(self):
        """Whose all-reduce is then the other one's."""
        rows, result = self.rows("all_reduce", "--ranks", "2", "-b", "64", "-e", "64", returns=1, LD_PRELOAD=OTHER, OTHER_NCCL_LIES="1")
        self.assertEqual(len(rows), 2)
        for row in rows:
            self.assertEqual(row["wrong"], 2, row)
        self.assertIn("# Out of bounds values : 4 FAILED", result.stdout)
        self.assertRegex(result.stderr, r"rank 1: all_reduce of 16 elements in place: output block 0 element 0: 0x\w+ where 0x\w+ is right")

    def test_its_own_error_is_told(self):
        result = run("all_reduce", "--ranks", "2", "-e", "64", "--against", OTHER, OTHER_NCCL_REFUSES="1")
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr.strip(), f"tutti-perf: rank 0: ncclGetUniqueId of {OTHER}: the other library's own words")

    def test_what_is_refused(self):
        jumps = os.path.join(self.folder, "libnccl.so.2")
        shutil.copy(LIBNCCL, jumps)
        no_library = os.path.join(self.folder, "words.so")
        with open(no_library, "w", encoding="ascii") as file:
            file.write("words\n")
        with open("/proc/self/maps", encoding="ascii") as maps:
            libc = next(line.split()[-1] for line in maps if "/libc.so.6" in line)
        for file, code, words in ((LIBNCCL, 2, "the library that is measured already"), (LIBTUTTI, 2, "the library that is measured already"),
                                  (jumps, 1, "those of the library that is measured already"), ("/nonexistent", 2, "No such file"),
                                  (libc, 1, "it has no ncclAllGather"), (no_library, 1, "words.so")):
            result = run("all_reduce", "--ranks", "2", "-e", "64", "--against", file)
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertIn("--against ", result.stderr)
            self.assertIn(words, result.stderr)
            self.assertEqual(result.stdout, "")
        for other in (["--threads"], ["--memory", "shared"], ["--stream"], ["--explain"], ["-R", "1"]):
            result = run("all_reduce", "--against", OTHER, *other)
            self.assertEqual(result.returncode, 2, other)
            self.assertIn("--against", result.stderr)

    def test_the_one_that_is_installed(self):
        """A Tutti is never what "nccl" finds, and NVIDIA's works on GPUs."""
        result = run("all_reduce", "--ranks", "2", "-e", "64", "--against", "nccl", LD_LIBRARY_PATH=os.path.dirname(LIBNCCL))
        self.assertNotEqual(result.returncode, 0)
        self.assertNotIn(LIBNCCL, result.stderr)
        shutil.copy(OTHER, os.path.join(self.folder, "libnccl.so.2"))
        rows, _ = self.rows("all_reduce", "--ranks", "2", "-e", "8", "--against", "nccl", LD_LIBRARY_PATH=self.folder)
        self.assertGreater(rows[0]["against_time_us"], 2000)
        self.assertRegex(result.stderr, "no libnccl.so.2 but Tutti's|works on GPU memory only: --device cuda")


if __name__ == "__main__":
    unittest.main(argv=[PERF, *sys.argv[5:]])
