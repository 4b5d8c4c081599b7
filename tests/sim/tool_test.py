#!/usr/bin/env python3
"""tutti-sim as a user sees it: what it prints, what it refuses, and its exit codes.

    tool_test.py TUTTI_SIM
"""
import json
import subprocess
import sys
import unittest

TOOL = sys.argv[1] if len(sys.argv) > 1 else "build/tutti-sim"


def run(*words):
    return subprocess.run([TOOL, *words], capture_output=True, text=True, timeout=60, check=False)


class Replay(unittest.TestCase):
    def test_the_same_text_every_time(self):
        first = run("--seed", "17")
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertEqual(first.stdout, run("--seed", "17").stdout)
        self.assertTrue(first.stdout.startswith("seed 17: "))
        self.assertIn("\nfine: ", first.stdout)
        self.assertNotEqual(first.stdout, run("--seed", "18").stdout)

    def test_a_failure_is_told_with_both_sides(self):
        result = run("--seed", "1", "--fault", "tail-without-release", "--protocol", "slots")
        self.assertEqual(result.returncode, 1)
        for text in ("FAILED: data race: rank ", "  now:     rank ", "  before:  rank ", "  missing: ", "no release"):
            self.assertIn(text, result.stdout)

    def test_output_that_cannot_be_written(self):
        for words in (["--seed", "17"], ["--seed", "17", "--json"], ["--seeds", "1..3"], ["--list-faults"], ["--help"]):
            with self.subTest(words=words), open("/dev/full", "w", encoding="utf-8") as full:
                result = subprocess.run([TOOL, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
                self.assertEqual(result.returncode, 1)
                self.assertEqual(result.stderr, "tutti-sim: standard output: No space left on device\n")

    def test_json(self):
        report = json.loads(run("--seed", "2", "--json").stdout)
        self.assertTrue(report["ok"])
        self.assertIn("acquires", report["trace"])


class Search(unittest.TestCase):
    def test_nothing_is_found_in_what_is_right(self):
        result = run("--seeds", "1..200")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertTrue(result.stdout.startswith("200 seeds, "))
        self.assertTrue(result.stdout.endswith(" 0 failed\n"))

    def test_a_failing_seed_comes_with_the_command_that_replays_it(self):
        pins = ["--fault", "no-drain", "--protocol", "direct"]
        result = run("--seeds", "1..60", *pins)
        self.assertEqual(result.returncode, 1)
        lines = result.stdout.splitlines()
        self.assertRegex(lines[0], r"^seed \d+: data race: rank \d")
        words = lines[1].split()
        self.assertEqual(words[0], "tutti-sim")
        again = run(*words[1:])
        self.assertEqual(again.returncode, 1)
        self.assertIn("FAILED: " + lines[0].split(": ", 1)[1], again.stdout)

    def test_first(self):
        result = run("--seeds", "1..1000", "--first", "--json", "--fault", "announce-ahead")
        self.assertEqual(len(json.loads(result.stdout)["failures"]), 1)


class Mistakes(unittest.TestCase):
    def test_each_is_refused_with_what_to_do(self):
        for words, text in [
            (["--fault", ""], "--fault is empty"),
            (["--fault", "gremlins"], 'no fault is called "gremlins"; --list-faults lists them'),
            (["--protocol", "pigeons"], 'no protocol is called "pigeons": slots, lines, direct, single-copy or announce'),
            (["--collective", "send"], '"send" is no collective that is simulated'),
            (["--seeds", "7"], ""),
            (["--seeds", "9..2"], "--seeds 9..2: the last comes before the first"),
            (["--seeds", "some"], '--seeds "some" is no range: write 1..1000'),
            (["--die", "1"], '--die "1" is no death: write 1@40'),
            (["--ranks", "17"], "17 ranks; a simulation has 1 to 16"),
            (["--in-place", "--out-of-place"], "exclude each other"),
            (["--algorithm", "ring", "--collective", "gather"], "no call has all that is pinned"),
            (["--algorithm", "nosuch"], 'no algorithm is called "nosuch": ring, tree, '),
            (["--algorithm", "rin", "--seed", "3"], ", p2p, pull_chain\n"),
            (["--fault", "line-flag-early", "--protocol", "slots"], "is none of slots"),
            (["--die", "99@4", "--seed", "3"], "rank 99 cannot die: seeds choose up to 8 ranks; --ranks makes more"),
            (["--seed", "1", "--seeds", "1..2"], "--seed excludes --seeds"),
            (["--seed", "-1"], "--seed: -1 is less than 0"),
            (["--seed", "99999999999999999999"], "--seed: 99999999999999999999 is more than 18446744073709551615"),
            *(([option, ""], f"{option} is empty") for option in ("--seed", "--ranks", "--count", "--abort-at")),
            (["--seed", "1.5"], "Could not convert: --seed = 1.5; write a whole number, 0 or more"),
            (["--list-faults", "--json"], "--list-faults excludes --json"),
            (["--nonsense"], "tutti-sim: The following argument was not expected: --nonsense"),
        ]:
            result = run("--quiet", *words)
            self.assertEqual(result.returncode, 2 if text else 0, words)
            self.assertIn(text, result.stderr, words)

    def test_a_rank_that_this_seed_does_not_have(self):
        result = run("--seed", "3", "--die", "7@4")
        self.assertEqual(result.returncode, 0)
        self.assertIn("seed 3: 7 ranks", result.stdout)
        self.assertIn("\nrank 7, which would die, is not there\n", result.stdout)

    def test_lists(self):
        self.assertRegex(run("--version").stdout, r"^Tutti \d+\.")
        faults = run("--list-faults")
        self.assertEqual(faults.returncode, 0)
        self.assertIn("tail-without-release", faults.stdout)
        self.assertIn("--seeds 1..5000", run("--help").stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
