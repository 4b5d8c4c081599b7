#!/usr/bin/env python3
"""Runs tutti-perf --tune as its users do, and programs with the file that it writes, and with bad ones.

    tune_test.py TUTTI_PERF
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

PERF = sys.argv.pop(1)
TIMEOUT_S = 120
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "OMPI_", "PMI", "MPI_", "SLURM_", "ENVIRONMENT", "TUTTI_",
             "NCCL_")
CHOICE = r"from (0|\d+[KM]?) (model|\w+ (slots|direct))"
RULE = re.compile(rf"(\w+) ranks 2 access (slots|single_copy|direct) (in_place|out_of_place): {CHOICE}(, {CHOICE})*")


def environment(**variables):
    return {**{name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}, **variables}


def run(*arguments, **variables):
    return subprocess.run([PERF, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, env=environment(**variables))


class TuneTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="tutti-tune-test-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.path = os.path.join(self.folder, "tuning.txt")

    def write(self, text):
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(text)
        return self.path

    def tuned(self, *arguments, **variables):
        result = run(*arguments, "--tune", self.path, "--ranks", "2", "-b", "4K", "-e", "1M", "-f", "16", "--tune-minutes", "0.5", **variables)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f"TUTTI_TUNING_FILE={self.path}", result.stdout)
        with open(self.path, encoding="utf-8") as file:
            lines = file.read().splitlines()
        self.assertEqual(lines[0], "tutti-tuning 1")
        self.assertRegex(lines[1], "^# written by tutti-perf --tune: 2 ranks as (processes|threads), ")
        rules = [RULE.fullmatch(line) for line in lines if not line.startswith("#")][1:]
        self.assertTrue(all(rules), lines)
        rows = [line for line in result.stdout.splitlines() if re.match(r" +\d+[KM]?  ", line)]
        self.assertTrue(rows)
        for row in rows:
            self.assertEqual((row.count("*"), row.count("m")), (1, 1), row)
        return {(rule[1], rule[2], rule[3]) for rule in rules}

    def test_tune_processes(self):
        keys = self.tuned("all_reduce", "broadcast", "sendrecv")
        self.assertEqual({(collective, form) for collective, _, form in keys},
                         {("all_reduce", "in_place"), ("all_reduce", "out_of_place"), ("broadcast", "in_place"),
                          ("broadcast", "out_of_place"), ("send", "out_of_place")})
        self.assertEqual({access for _, access, _ in keys} - {"single_copy", "slots"}, {"direct"})
        rows = os.path.join(self.folder, "rows.json")
        result = run("all_reduce", "broadcast", "sendrecv", "--ranks", "2", "-e", "1M", "-n", "3", "--json", rows,
                     TUTTI_TUNING_FILE=self.path)
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(rows, encoding="utf-8") as file:
            self.assertTrue(all(row["wrong"] == 0 for row in json.load(file)))

    def test_tune_threads(self):
        self.assertEqual(self.tuned("all_gather", "--threads"),
                         {("all_gather", "direct", "in_place"), ("all_gather", "direct", "out_of_place")})

    def test_tune_where_shared_memory_is_as_private(self):
        """As over hosts: nothing reaches the others' buffers, and there is one rule for both."""
        self.assertEqual(self.tuned("all_reduce", NCCL_P2P_DISABLE="1"),
                         {("all_reduce", "slots", "in_place"), ("all_reduce", "slots", "out_of_place")})

    def test_where_the_file_goes(self):
        words = ["all_gather", "--threads", "--ranks", "2", "-b", "4K", "-e", "4K", "--tune-minutes", "0.05", "--tune"]
        result = run(*words, "/dev/full")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout, r"\n +2K  ")  # what has been measured is shown all the same
        self.assertTrue(result.stderr.endswith("/dev/full: No space left on device\n"), result.stderr)
        result = subprocess.run([os.path.abspath(PERF), *words, "-"], capture_output=True, text=True, timeout=TIMEOUT_S, cwd=self.folder, check=True)
        self.assertTrue(result.stdout.startswith("tutti-tuning 1\n"), result.stdout)
        self.assertRegex(result.stderr, r"\n +2K  ")
        self.assertEqual(os.listdir(self.folder), [])

        result = run(*words, "/nonexistent/tuning")  # before anything is measured
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertEqual(result.stderr, "tutti-perf: --tune /nonexistent/tuning: No such file or directory\n")

    def test_only_rank_0_needs_the_folder(self):
        """Other hosts may not have it."""
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": f"tune-{os.getpid()}",
                 "TUTTI_RENDEZVOUS_TIMEOUT_S": "20", "WORLD_SIZE": "2"}
        os.mkdir(os.path.join(self.folder, "mine"))
        ranks = [subprocess.Popen([os.path.abspath(PERF), "all_gather", "-b", "4K", "-e", "4K", "--tune-minutes", "0.05", "--tune", "mine/tuning"],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder,
                                  env=environment(**place, RANK=str(rank), LOCAL_RANK=str(rank)))
                 for rank, folder in enumerate((self.folder, os.path.join(self.folder, "mine")))]
        for rank in ranks:
            self.addCleanup(rank.kill)
        said = [rank.communicate(timeout=TIMEOUT_S)[0] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], said)
        self.assertEqual(os.listdir(os.path.join(self.folder, "mine")), ["tuning"])

    def test_explain_names_the_rule(self):
        rule = "all_reduce ranks 2 access slots out_of_place: from 8K tree slots, from 64K model"
        path = self.write(f"# mine\n\ntutti-tuning 1\n{rule} # by hand\n")
        slots_only = {"TUTTI_SINGLE_COPY": "0", "TUTTI_CARRY_BYTES": "0"}
        sizes = ["--ranks", "2", "-b", "1K", "-e", "512K", "-f", "2", "--explain"]
        result = run("all_reduce", *sizes, TUTTI_TUNING_FILE=path, **slots_only)
        self.assertEqual(result.returncode, 0, result.stderr)
        parts = re.split(r"== all_reduce, (\d+) bytes", result.stdout)
        for size, text in zip(map(int, parts[1::2]), parts[2::2]):
            by_rule = f'chosen for the tuning, by its rule "{rule}"\n' in text and "\ntree: " in text
            self.assertEqual(by_rule, 8192 <= size < 65536, text)
            self.assertEqual("chosen for the lowest expected time" in text, not by_rule)
        result = run("all_reduce", *sizes, TUTTI_TUNING_FILE=path, NCCL_ALGO="ring", **slots_only)
        self.assertNotIn("chosen for the tuning", result.stdout)
        self.assertIn("NCCL_ALGO=ring leaves; the tuning's tree slots is overruled", result.stdout)

    def test_bad_files_fail_every_rank(self):
        cases = [("/nonexistent/tuning", "No such file"), (self.folder, "not a regular file"),
                 (lambda: self.write(""), "line 1"), (lambda: self.write("tutti-tuning 2\n"), "version 1"),
                 (lambda: self.write("tutti-tuning 1\nall_reduce ranks 2 access slots in_place: from 1K rign slots\n"), "line 2"),
                 (lambda: self.write("tutti-tuning 1\n" + "#" * 20000), "larger than 16384 bytes")]
        for file, words in cases:
            path = file() if callable(file) else file
            for how in ([], ["--threads"]):
                with self.subTest(words=words, how=how):
                    result = run("all_reduce", "--ranks", "3", "-e", "64", *how, TUTTI_TUNING_FILE=path)
                    self.assertEqual(result.returncode, 1)
                    for rank in range(3):
                        self.assertRegex(result.stderr, f"rank {rank}: .*TUTTI_TUNING_FILE={path}: .*{words}")

    def test_bad_command_lines(self):
        for arguments, words in [(["--tune", self.path, "--explain"], "--explain"),
                                 (["--tune", self.path, "-d", "all"], "one data type"),
                                 (["--tune", self.path, "-o", "mulsum", "all_reduce"], "one operation"),
                                 (["all_reduce", "--tune-minutes", "1"], "--tune"),
                                 (["--tune", self.path, "--tune-minutes", "nan"], "nan is not a number"),
                                 (["--tune", self.path, "gossip"], "gossip")]:
            with self.subTest(arguments=arguments):
                result = run(*arguments)
                self.assertEqual(result.returncode, 2, result.stdout)
                self.assertIn(words, result.stderr)
                self.assertFalse(os.path.exists(self.path))


if __name__ == "__main__":
    unittest.main(argv=[PERF, *(sys.argv[1:] or ["TuneTest"])])
