#!/usr/bin/env python3
"""Runs tutti-perf on the GPUs of the driver that LD_LIBRARY_PATH names: the fake one in tests.

    perf_gpu_test.py TUTTI_PERF LIBNCCL LIBTUTTI
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

PERF = sys.argv.pop(1)
LIBRARIES = [sys.argv.pop(1), sys.argv.pop(1)]
TIMEOUT_S = 120


def run(*arguments, **variables):
    environment = {name: value for name, value in os.environ.items() if name != "NCCL_MULTI_RANK_GPU_ENABLE"}
    arguments = [*arguments] if "-n" in arguments else [*arguments, "-n", "2"]
    return subprocess.run([PERF, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S,
                          env={**environment, **variables})


class PerfGpuTest(unittest.TestCase):
    def rows(self, *arguments, **variables):
        with tempfile.TemporaryDirectory(prefix="tutti-perf-gpu-") as folder:
            path = os.path.join(folder, "rows.json")
            result = run(*arguments, "--device", "cuda", "--json", path, **variables)
            self.assertEqual(result.returncode, 0, result.stderr + result.stdout)
            self.assertIn("Out of bounds values : 0 OK", result.stdout)
            with open(path, encoding="utf-8") as file:
                rows = json.load(file)
        self.assertEqual({row["wrong"] for row in rows}, {0})
        self.assertEqual({row["device"] for row in rows}, {"Fake 0"})
        return rows

    def test_every_collective_among_threads(self):
        rows = self.rows("all", "--threads", "--ranks", "3", "-b", "0", "-e", "4K", "-f", "64")
        self.assertEqual(len({row["collective"] for row in rows}), 9)

    def test_every_collective_among_processes(self):
        rows = self.rows("all", "--ranks", "2", "-e", "8K", "-f", "1024")
        self.assertEqual(len({row["collective"] for row in rows}), 9)

    def test_a_rank_for_each_gpu_or_several(self):
        self.assertEqual(self.rows("all_reduce", "-b", "64", "-e", "64", FAKE_CUDA_DEVICES="2")[0]["ranks"], 2)
        shared = self.rows("all_reduce", "-b", "64", "-e", "64", "--ranks-per-gpu", "2", FAKE_CUDA_DEVICES="2")
        self.assertEqual(shared[0]["ranks"], 4)

    def test_types_operations_and_registered_memory(self):
        self.rows("all_reduce", "reduce_scatter", "--threads", "--ranks", "2", "-d", "half", "-o", "all", "-b", "1000", "-e", "1000")
        self.rows("all_reduce", "--ranks", "2", "-d", "bfloat16", "--memory", "shared", "-b", "1000", "-e", "64000", "-f", "64")

    def test_graphs_are_replayed(self):
        rows = self.rows("all_reduce", "--ranks", "2", "--graph", "3", "--percentiles", "-b", "1K", "-e", "1K")
        self.assertGreater(rows[0]["p50_us"], 0)

    def test_graphs_end_when_time_is_over(self):
        """Aborted ones say nothing of it, and there are minutes of them."""
        over = run("all_reduce", "--device", "cuda", "--ranks", "2", "--graph", "3", "-b", "64K", "-e", "64K", "-n", "100000", "-w", "1", "-c", "0", "-T", "1")
        self.assertEqual(over.returncode, 1)
        self.assertIn("took more than 1 s (-T)", over.stderr)

    def test_another_library(self):
        with tempfile.TemporaryDirectory(prefix="tutti-perf-gpu-") as folder:
            for library, name in zip(LIBRARIES, ("libnccl.so.2", "libtutti.so.0")):
                shutil.copy(library, os.path.join(folder, name))
            rows = self.rows("all_reduce", "all_gather", "--ranks", "2", "-b", "64", "-e", "6400", "-f", "100",
                             "--against", os.path.join(folder, "libnccl.so.2"))
        self.assertEqual({row["against_wrong"] for row in rows}, {0})
        self.assertTrue(all(row["against_time_us"] > 0 for row in rows))
        # NVIDIA's needs more of a driver than there is, and its own words for that are told.
        refused = run("all_reduce", "--device", "cuda", "--ranks", "2", "-e", "64", "--against", "nccl")
        self.assertNotEqual(refused.returncode, 0)
        if "no libnccl.so.2 but Tutti's" not in refused.stderr:
            self.assertRegex(refused.stderr, "rank [01]: nccl.* of /.*/libnccl.so.*: .*cuda error")

    def test_what_cannot_be_is_refused(self):
        shared = run("all_reduce", "--device", "cuda", "--ranks", "2", FAKE_CUDA_DEVICES="1")
        self.assertEqual(shared.returncode, 1)
        self.assertIn("NCCL_MULTI_RANK_GPU_ENABLE=1", shared.stderr)
        none = run("all_reduce", "--device", "cuda", LD_LIBRARY_PATH="")
        if "no CUDA driver" in none.stderr:  # where there is none beside the fake one
            self.assertEqual(none.returncode, 1)
        none = run("all_reduce", "--device", "cuda", FAKE_CUDA_DEVICES="0")
        self.assertEqual((none.returncode, none.stderr), (1, "tutti-perf: --device cuda: the CUDA driver finds no GPU\n"))
        for arguments, words in ((["--graph", "2"], "--graph is for --device cuda"),
                                 (["--ranks-per-gpu", "2"], "--ranks-per-gpu is for --device cuda"),
                                 (["--device", "cuda", "--stream"], "always go to a stream"),
                                 (["--device", "cuda", "--graph", "2", "--threads"], "leave out --threads"),
                                 (["--device", "cuda", "--graph", "4096", "-m", "4096"], "16777216 calls in one graph; at most 65536"),
                                 (["--device", "tpu"], "tpu")):
            refused = run("all_reduce", *arguments)
            self.assertEqual(refused.returncode, 2, arguments)
            self.assertIn(words, refused.stderr)


if __name__ == "__main__":
    unittest.main()
