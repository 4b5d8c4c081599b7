#!/usr/bin/env python3
"""Runs bench/compare as its users do, tiny: its rows, JSON, charts, exit codes, and what it says when something is wrong.

    compare_test.py COMPARE BUILD
"""
import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import types
import unittest
import xml.etree.ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from asked_to_end import SIGNALS, heed_signals  # noqa: E402

BUILD = os.path.abspath(sys.argv.pop(2))
COMPARE = os.path.abspath(sys.argv.pop(1))
sys.path.insert(0, os.path.dirname(COMPARE))
sys.dont_write_bytecode = True
import compare_run  # noqa: E402

QUICK = ["--rounds", "1", "--budget", "1"]
OURS = ["--peers", "tutti,floor", *QUICK]
TIMEOUT_S = 120


def run(*arguments, build=BUILD):
    return subprocess.run([sys.executable, COMPARE, "--build", build, *arguments], capture_output=True, text=True,
                          timeout=TIMEOUT_S, check=False)


def has_group(leader):
    """Whether any process is left of those that a worker of its own session was, or started."""
    try:
        os.killpg(leader, 0)
        return True
    except ProcessLookupError:
        return False


class CompareTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="tutti-compare-test-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.json = os.path.join(self.folder, "rows.json")

    def document(self, *arguments):
        result = run(*arguments, "--json", self.json)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        with open(self.json, encoding="utf-8") as file:
            return json.load(file), result

    def test_rows_and_table(self):
        document, result = self.document("--ranks", "2", "--sizes", "64K,8", *OURS)
        rows = document["rows"]
        self.assertEqual([(row["bytes"], row["in_place"], row["ranks"]) for row in rows],
                         [(8, False, 2), (65536, False, 2), (8, True, 2), (65536, True, 2)])
        for row in rows:
            self.assertEqual(set(row["values"]), {"tutti", "direct"} | ({"lines"} if row["bytes"] == 8 else set()))
            self.assertIsNone(row["best_peer"])
            for name, value in row["values"].items():
                sample = value["rounds"][0]
                self.assertEqual(sample["wrong"], 0, name)
                self.assertLessEqual(sample["fastest_us"], sample["us"])
                self.assertLessEqual(sample["us"], sample["slowest_us"])
                self.assertGreaterEqual(sample["batches"], 3)
                self.assertAlmostEqual(value["busbw_gbps"], row["bytes"] / value["us"] / 1000)
            floor = min(row["values"][name]["us"] for name in row["values"] if name != "tutti")
            # Where cores moved meanwhile, measurements of near ones are compared with each other.
            if len({sample["near"] for value in row["values"].values() for sample in value["rounds"]}) == 1:
                self.assertAlmostEqual(row["tutti_over_floor"], row["values"]["tutti"]["us"] / floor)
            self.assertGreater(row["tutti_over_floor"], 0)
        kernels = {(entry["kernel"], entry["bytes"]) for entry in document["memory"]}
        self.assertLessEqual({("copy", 262144), ("copy_nt", 262144), ("add", 262144), ("add_nt", 262144)}, kernels)
        self.assertTrue(all(entry["gbps"] > 0 for entry in document["memory"]))
        lines = [line.split() for line in result.stdout.splitlines() if line and not line.startswith("#")]
        self.assertEqual([line[0] for line in lines if len(line) < 9], ["size", "8", "64K", "size", "8", "64K"])

    def test_near_cores_are_those_that_are_common(self):
        measured = compare_run.Run.__new__(compare_run.Run)
        measured.options = types.SimpleNamespace(near=None)
        for name, trips, near, others in (("one distance", [200] * 30, 200, (124, 321)),
                                          ("threads of one core, for moments", [60] * 5 + [200] * 15 + [800] * 20, 200, (60, 800)),
                                          ("threads of one core, often", [60] * 10 + [200] * 25, 60, (200,)),
                                          ("one probe", [90], 90, (50, 150)), ("no probe", [], 0, (1,))):
            measured.round_trips_ns = trips
            self.assertTrue(measured.is_near({"round_trip_ns": [None, near]}), name)
            for other in others:
                self.assertFalse(measured.is_near({"round_trip_ns": [near, other]}), (name, other))

    def test_every_collective_of_ours_is_right(self):
        for collective, forms in [("all_gather", 2), ("reduce_scatter", 2), ("broadcast", 1), ("reduce", 2), ("all_to_all", 1),
                                  ("sendrecv", 1)]:
            with self.subTest(collective=collective):
                document, _ = self.document("--collective", collective, "--ranks", "3", "--sizes", "8,30000", *OURS)
                self.assertEqual(len(document["rows"]), 2 * forms)
                # The first round is checked; one more, where cores were far from each other, is not.
                for row in document["rows"]:
                    for name, value in row["values"].items():
                        self.assertEqual([sample["wrong"] for sample in value["rounds"] if "wrong" in sample], [0], name)

    def test_types_threads_and_registered_buffers(self):
        document, _ = self.document("--ranks", "2", "--sizes", "100,8K", "--dtype", "double", "--out-of-place", "--buffers", "registered",
                                    "--peers", "tutti,tutti_threads,floor", *QUICK)
        self.assertEqual([sorted(row["values"]) for row in document["rows"]],
                         [["direct", "lines", "tutti", "tutti_threads"], ["direct", "tutti", "tutti_threads"]])
        document, result = self.document("--ranks", "2", "--sizes", "8K", "--dtype", "bfloat16", *OURS)
        self.assertEqual([sorted(row["values"]) for row in document["rows"]], [["tutti"], ["tutti"]])
        self.assertIn("floor: it does not add bfloat16", result.stdout)

    def test_many_ranks(self):
        """Sums stay exact in bfloat16, and the floor has no sums of so many."""
        document, _ = self.document("--ranks", "48", "--sizes", "1K", "--dtype", "bfloat16", "--out-of-place", "--peers", "tutti", *QUICK)
        self.assertEqual(document["rows"][0]["values"]["tutti"]["rounds"][0]["wrong"], 0)
        document, _ = self.document("--ranks", "5", "--sizes", "8,1K", "--out-of-place", *OURS)
        self.assertEqual([sorted(row["values"]) for row in document["rows"]], [["lines", "tutti"], ["tutti"]])
        self.assertIn({"who": "direct, 5 ranks", "why": "it adds up 2, 3, 4, 8, 16 ranks only"}, document["left_out"])

    def test_charts(self):
        prefix = os.path.join(self.folder, "chart")
        self.document("--ranks", "2", "--sizes", "8,1K", "--in-place", "--svg-prefix", prefix, *OURS)
        root = xml.etree.ElementTree.parse(prefix + "-all_reduce-2-in.svg").getroot()
        texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        for text in ("Tutti", "floor", "us per call", "GB/s"):
            self.assertIn(text, texts)
        self.assertEqual(os.listdir(self.folder).count("chart-all_reduce-2-out.svg"), 0)

    def fake_build(self, **scripts):
        """A build folder with the real workers, but for those given: name=shell script, or None for none."""
        folder = os.path.join(self.folder, "build")
        os.makedirs(os.path.join(folder, "bench"))
        for name in ("compare-floor", "compare-nccl"):
            os.symlink(os.path.join(BUILD, "bench", name), os.path.join(folder, "bench", name))
        for name, script in scripts.items():
            path = os.path.join(folder, "bench", name.replace("_", "-"))
            if os.path.islink(path):
                os.unlink(path)
            if script is not None:
                with open(path, "w", encoding="ascii") as file:
                    file.write("#!/bin/sh\n" + script + "\n")
                os.chmod(path, stat.S_IRWXU)
        return folder

    def test_missing_peers_are_named(self):
        result = run("--ranks", "2", "--sizes", "8", "--peers", "tutti,floor,gloo,mpich", *QUICK, "--json", self.json,
                     build=self.fake_build())
        self.assertEqual(result.returncode, 0, result.stderr)
        for name, program in (("Gloo", "compare-gloo"), ("MPICH", "compare-mpich")):
            self.assertRegex(result.stdout, f"# left out: {name}: .*{program} is not there; run: ./setup --peers")
        with open(self.json, encoding="utf-8") as file:
            self.assertEqual(len(json.load(file)["left_out"]), 2)

    def test_workers_that_fail_are_named(self):
        build = self.fake_build(compare_gloo="echo rank 0: no network here >&2; exit 1")
        result = run("--ranks", "2", "--sizes", "8", "--peers", "tutti,gloo", *QUICK, build=build)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("# left out: gloo, 2 ranks: does not start: rank 0: no network here", result.stdout)

    def test_our_own_failure_is_a_failure(self):
        build = self.fake_build(compare_nccl="echo rank 1: broken >&2; exit 1")
        result = run("--ranks", "2", "--sizes", "8", *OURS, build=build)
        self.assertEqual(result.returncode, 1)
        self.assertIn("# FAILED: tutti: does not start: rank 1: broken", result.stdout)

    def test_wrong_values_are_a_failure(self):
        # A worker that answers as a library with a wrong result would.
        answer = '{"us": 1, "fastest_us": 1, "slowest_us": 1, "batches": 5, "calls": 1, "bytes": 8, "wrong": 3}'
        script = f"""while [ $# -gt 0 ]; do case $1 in --commands) c=$2;; --replies) r=$2;; esac; shift; done
exec 3<$c 4>$r; echo '{{"ready": true}}' >&4
while read line <&3; do [ "$line" = end ] && exit 0; echo '{answer}' >&4; done"""
        result = run("--ranks", "2", "--sizes", "8", "--in-place", *OURS, build=self.fake_build(compare_nccl=script))
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertIn("# FAILED: tutti: 3 wrong elements", result.stdout)

    def test_nothing_is_left_behind(self):
        def places():
            return {name for folder in ("/dev/shm", tempfile.gettempdir()) for name in os.listdir(folder)
                    if name.startswith("tutti-compare-") and not name.startswith("tutti-compare-test-")}
        before = places()
        self.document("--ranks", "2", "--sizes", "8", *OURS)
        self.assertEqual(places() - before, set())

    def test_bad_command_lines(self):
        for arguments, words in [
                (["--collective", "all_redcue"], "all_redcue"),
                (["--sizes", "4X"], '"4X" is not a size'),
                (["--sizes", "0"], '"0" is not a size'),
                (["--ranks", "1"], '"1" is not a number from 2 to 64'),
                (["--peers", "tutti,nobody"], 'no peer "nobody"'),
                (["--dtype", "complex"], "complex"),
                (["--rounds", "0"], '"0" is not a number'),
                (["-b", "1M", "-e", "1K"], "-e 1024 is less than -b 1048576"),
                (["--sizes", "8", "-b", "8"], "not both"),
                (["--in-place", "--out-of-place"], "leave both out"),
                (["--collective", "all_to_all", "--in-place"], "all_to_all has no form but out of place"),
                (["--json", "/nonexistent/rows.json"], "--json /nonexistent/rows.json: No such file"),
                (["--json", ""], "--json : No such file"),
                (["--svg-prefix", ""], "--svg-prefix is empty"),
                (["--json", "-"], "--json -: standard output has the table; name a file"),
                (["--sizes", "8,,16"], '"" is not a size'),
                (["--sizes", "9" * 5000], "is not a size"),
                (["--ranks", "\u00b2"], '"\u00b2" is not a number from 2 to 64'),
                (["--ranks", ""], '"" is not a number from 2 to 64'),
                (["--rank", "2"], "--rank"),
                (["--json"], "--json: expected one argument"),
                (["extra"], "extra")]:
            with self.subTest(arguments=arguments):
                result = run(*arguments)
                self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
                self.assertIn(words, result.stderr)
                self.assertRegex(result.stderr, r"\Acompare: .*\n\Z")
        result = run("--help")
        self.assertEqual(result.returncode, 0)
        self.assertIn("bench/compare --quick", result.stdout)
        self.assertIn("usage: bench/compare [OPTIONS]\n", result.stdout)

    def test_output_that_cannot_be_written(self):
        words = ["--ranks", "2", "--sizes", "8", "--in-place", *OURS]
        with open("/dev/full", "w", encoding="utf-8") as full:
            for arguments in ([*words, "--json", self.json], ["--help"]):
                result = subprocess.run([sys.executable, COMPARE, "--build", BUILD, *arguments], stdout=full, stderr=subprocess.PIPE, text=True,
                                        timeout=TIMEOUT_S, check=False)
                self.assertEqual(result.returncode, 1)
                self.assertTrue(result.stderr.endswith("compare: standard output: No space left on device\n"), result.stderr)
        with open(self.json, encoding="utf-8") as file:
            self.assertEqual(len(json.load(file)["rows"]), 1)
        result = subprocess.run(["bash", "-c", 'exec "$@" >&-', "bash", sys.executable, COMPARE, "--build", BUILD, *words, "--json", self.json],
                                stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False)
        self.assertEqual(result.returncode, 1)
        self.assertTrue(result.stderr.endswith("compare: standard output: Bad file descriptor\n"), result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        result = run(*words, "--json", "/dev/full")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout, "\nsize .* Tutti")
        self.assertTrue(result.stderr.endswith("compare: --json /dev/full: No space left on device\n"), result.stderr)

    def test_rows_that_find_no_room(self):
        """As on a full disk: no file is left that could be taken for the whole."""
        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        for length, code, left in ((100, 0, ["rows.json"]), (2000, 1, [])):
            words = f"import sys, tool_output; sys.exit(tool_output.write_json('a tool', {self.json!r}, 'x' * {length}))"
            result = subprocess.run([sys.executable, "-B", "-c", words], preexec_fn=small_files, cwd=os.path.dirname(COMPARE), capture_output=True,
                                    text=True, timeout=TIMEOUT_S, check=False)
            self.assertEqual((result.returncode, result.stderr), (code, f"a tool: --json {self.json}: File too large\n" if code else ""))
            self.assertEqual(os.listdir(self.folder), left)

    def test_figures_names_a_folder_that_cannot_be_made(self):
        place = os.path.join(self.folder, "file")
        with open(place, "w", encoding="utf-8"):
            pass
        result = subprocess.run([sys.executable, os.path.join(os.path.dirname(COMPARE), "figures"), "measure", place + "/x"],
                                capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        self.assertEqual((result.returncode, result.stderr), (1, f"figures: {place}/x: Not a directory\n"))

    def test_figures_names_a_file_that_is_broken(self):
        path = os.path.join(self.folder, "private.json")
        for text, words in (('{"rows": [', "Expecting value"), ("[1]", "not what bench/compare --json writes")):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            result = subprocess.run([sys.executable, os.path.join(os.path.dirname(COMPARE), "figures"), "tables", self.folder],
                                    capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
            self.assertEqual((result.returncode, result.stdout), (1, ""))
            self.assertTrue(result.stderr.startswith(f"figures: {path}: ") and words in result.stderr, result.stderr)

    def test_figures_compare_near_cores_with_near_ones(self):
        """What met far cores beside what met near ones counts in no goal and bears a star, as in bench/compare's own table."""
        figures = os.path.join(os.path.dirname(COMPARE), "figures")
        rows = [{"bytes": count, "in_place": False, "best_peer": "mpich", "best_peer_over_tutti": us / 2,
                 "values": {"tutti": {"peer": "tutti", "us": 2, "near": ours}, "mpich": {"peer": "mpich", "us": us, "near": theirs}}}
                for count, us, ours, theirs in ((8, 3, True, True), (32, 1, False, True), (128, 5, False, False))]
        means = {"best_peer_mean_from_8K": None, "openmpi_default_mean_from_8K": None}  # of sizes that were not measured
        with open(os.path.join(self.folder, "private.json"), "w", encoding="utf-8") as out:
            json.dump({"rows": rows, "summary": [{"in_place": False, "tutti": means}]}, out)
        for what, lines in (("goals", ["| private buffers: best peer / Tutti, least | 1, 1 | 1.50 (8) |"]),
                            ("tables", ["| 8 | 2.00 | 3.00 | **1.50** |", r"| 32 | 2.00\* | 1.00 | **0.50**\* |", r"| 128 | 2.00\* | 5.00\* | **2.50** |"])):
            result = subprocess.run([sys.executable, figures, what, self.folder], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
            self.assertEqual(result.returncode, 0, result.stderr)
            for line in lines:
                self.assertIn(line + "\n", result.stdout)

    def test_figures_leaves_out_folders_of_other_results(self):
        figures = os.path.join(os.path.dirname(COMPARE), "figures")
        report = {"rows": [], "summary": []}
        for name, file in (("ours", "private"), ("others", "hosts")):
            os.mkdir(os.path.join(self.folder, name))
            with open(os.path.join(self.folder, name, file + ".json"), "w", encoding="utf-8") as out:
                json.dump(report, out)
        ours, others = (os.path.join(self.folder, name) for name in ("ours", "others"))
        for folders, code, shown in (([ours, others], 0, "| out of place, in place | goal | ours |\n"), ([others], 1, "")):
            result = subprocess.run([sys.executable, figures, "goals", *folders], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
            self.assertEqual((result.returncode, result.stdout[:len(shown)]), (code, shown), result.stderr)
            self.assertIn(f"figures: left out: {others} has none of the files", result.stderr)

    def test_ends_by_the_signal_that_asks_for_it(self):
        """With what it has measured, and with all that it has started."""
        for sign in SIGNALS:
            with self.subTest(sign=sign):
                with subprocess.Popen([sys.executable, COMPARE, "--build", BUILD, "--ranks", "2", "--sizes", "8", "--rounds", "100", "--budget", "500",
                                       "--peers", "floor", "--json", self.json], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                      start_new_session=True, preexec_fn=heed_signals) as compare:
                    for line in compare.stderr:
                        if "round 2 of" in line:
                            break
                    with open(f"/proc/{compare.pid}/task/{compare.pid}/children", encoding="ascii") as file:
                        workers = [int(word) for word in file.read().split()]
                    compare.send_signal(sign)
                    said = compare.communicate(timeout=TIMEOUT_S)[1]
                self.assertEqual(compare.returncode, -sign, said)
                self.assertTrue(workers)
                until = time.monotonic() + 10
                while (left := [worker for worker in workers if has_group(worker)]) and time.monotonic() < until:
                    time.sleep(0.01)  # what was killed may be dying still
                self.assertEqual(left, [], "of processes that it has started some are left")
                with open(self.json, encoding="utf-8") as file:
                    self.assertEqual(json.load(file)["failures"], ["interrupted"])
                os.remove(self.json)

    def test_figures_that_are_ended_end_what_they_run(self):
        """By SIGTERM, which compare, here a script that waits, would not see."""
        for name in ("figures", "tool_output.py", "compare_report.py", "compare_peers.py"):
            shutil.copy(os.path.join(os.path.dirname(COMPARE), name), self.folder)
        waiting = os.path.join(self.folder, "compare")
        with open(waiting, "w", encoding="utf-8") as script:
            script.write("#!/bin/sh\necho waiting >&2\nexec sleep 100\n")
        os.chmod(waiting, 0o700)
        with subprocess.Popen([sys.executable, os.path.join(self.folder, "figures"), "measure", os.path.join(self.folder, "results")],
                              stderr=subprocess.PIPE, text=True) as figures:
            while figures.stderr.readline() not in ("waiting\n", ""):
                pass
            figures.terminate()
            figures.communicate(timeout=20)  # until the script has ended as well
        self.assertEqual(figures.returncode, -signal.SIGTERM)

    def test_sizes_that_do_not_fit(self):
        result = run("--ranks", "2", "--sizes", "99999999999G", *OURS)
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("# left out: sizes from 107374182398926258176 bytes on: 2 ranks need ", result.stdout)
        self.assertIn("# FAILED: nothing was measured", result.stdout)

    def test_a_build_folder_without_workers(self):
        result = run("--ranks", "2", "--sizes", "8", "--peers", "tutti", build=self.folder)
        self.assertEqual(result.returncode, 1)
        self.assertIn("compare-nccl is not there; run: ./setup", result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
