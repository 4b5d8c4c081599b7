#!/usr/bin/env python3
"""Runs tutti-perf as its users do, and checks its numbers, files and exit codes.

    perf_test.py TUTTI_PERF [mpirun]    `mpirun`: only the test under mpirun; 77 (skipped) where there is none
"""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest
import xml.etree.ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from asked_to_end import SIGNALS, heed_signals  # noqa: E402

PERF = sys.argv.pop(1)
COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "gather", "scatter",
               "sendrecv"]
ONLY_OUT_OF_PLACE = {"all_to_all", "sendrecv"}
FACTORS = {"all_reduce": lambda n: 2 * (n - 1) / n, "broadcast": lambda n: 1, "reduce": lambda n: 1, "sendrecv": lambda n: 1}
FIELDS = {"collective", "dtype", "redop", "root", "ranks", "bytes", "in_place", "iterations", "time_us", "p50_us", "p99_us", "algbw_gbps",
          "busbw_gbps", "device", "transport", "wire_bytes", "wrong"}
QUICK = ["-n", "3", "-w", "1"]
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "OMPI_", "PMI", "MPI_", "SLURM_", "ENVIRONMENT", "TUTTI_",
             "NCCL_")
TIMEOUT_S = 120


EXCHANGE = """schedule exchange all_reduce ranks 2 units 1 lanes 1 input 1 output 1 scratch 0
rank 0 lane 0
  in[0.0] -> send 1
  in[0.0] + recv 1 -> out[0.0] finish
rank 1 lane 0
  in[0.0] -> send 0
  recv 0 + in[0.0] -> out[0.0] finish
"""


def clean_environment(**more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    return {**kept, **more}


def run(*arguments, environment=None, prefix=(), input=None, stdout=subprocess.PIPE, folder=None):
    return subprocess.run([*prefix, os.path.abspath(PERF), *arguments], stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S,
                          input=input, env=environment or clean_environment(), cwd=folder)


class FolderTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="tutti-perf-test-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.json = os.path.join(self.folder, "rows.json")


class PerfTest(FolderTest):
    def rows(self, *arguments, **options):
        result = run(*arguments, *QUICK, "--json", self.json, **options)
        self.assertEqual(result.returncode, 0, result.stderr + result.stdout)
        with open(self.json, encoding="utf-8") as file:
            return json.load(file), result.stdout

    def check_rows(self, rows, ranks, sizes):
        for row in rows:
            self.assertEqual(set(row), FIELDS)
            self.assertEqual(row["wrong"], 0, row)
            self.assertEqual(row["ranks"], ranks)
            self.assertEqual((row["transport"], row["wire_bytes"]), ("local", 0))
            self.assertGreater(row["time_us"], 0)
            self.assertLessEqual(row["p50_us"], row["p99_us"])
            self.assertAlmostEqual(row["algbw_gbps"], row["bytes"] / row["time_us"] / 1000, delta=0.01 * row["algbw_gbps"] + 1e-6)
            factor = FACTORS.get(row["collective"], lambda n: (n - 1) / n)(ranks)
            self.assertAlmostEqual(row["busbw_gbps"], row["algbw_gbps"] * factor, places=6)
        for collective in COLLECTIVES:
            mine = [row for row in rows if row["collective"] == collective]
            forms = 1 if collective in ONLY_OUT_OF_PLACE else 2
            self.assertEqual(len(mine), sizes * forms, collective)

    def test_short_calls_are_timed_more_often_unless_told(self):
        for more, wanted in (([], {8: 500, 1 << 20: 20}), (["-n", "4"], {8: 4, 1 << 20: 4})):
            result = run("all_reduce", "--ranks", "2", "-b", "8", "-e", "1M", "-f", str(1 << 17), *more, "--json", self.json)
            self.assertEqual(result.returncode, 0, result.stderr)
            with open(self.json, encoding="utf-8") as file:
                self.assertEqual({row["bytes"]: row["iterations"] for row in json.load(file)}, wanted)
            self.assertIn("4 iterations after a tenth" if more else "20 to 500 iterations", result.stdout)

    def test_ranks_have_a_processor_each_where_there_are_as_many(self):
        few = sorted(os.sched_getaffinity(0))[:2]
        processors, prefix = len(few), ("taskset", "-c", ",".join(map(str, few)))
        for how, name in ([], "processes"), (["--threads"], "threads"):
            for ranks, more, bound in (processors, [], True), (processors, ["--no-bind"], False), (processors + 1, [], False):
                result = run("all_reduce", "--ranks", str(ranks), "-e", "8", *QUICK, *how, *more, prefix=prefix)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertIn(f", {name}, a processor each," if bound else f", {name}, private", result.stdout)

    def test_bound_ranks_are_on_different_processors(self):
        if len(os.sched_getaffinity(0)) < 2:
            self.skipTest("one processor")
        with subprocess.Popen([PERF, "all_reduce", "--ranks", "2", "-e", "8", "-n", "100000000", "-c", "0"], stdout=subprocess.PIPE, text=True,
                              env=clean_environment()) as perf:
            try:
                perf.stdout.readline()  # the head, when the ranks are at it
                with open(f"/proc/{perf.pid}/task/{perf.pid}/children", encoding="ascii") as file:
                    places = [os.sched_getaffinity(int(child)) for child in file.read().split()]
            finally:
                perf.terminate()
        self.assertEqual([len(place) for place in places], [1, 1])
        self.assertNotEqual(*places)

    def test_another_program_at_rank_0s_port_is_told_as_such(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            def greet():
                connection, _ = server.accept()
                with connection:
                    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                    connection.recv(4096)
            greeter = threading.Thread(target=greet)
            greeter.start()
            place = f"127.0.0.1:{server.getsockname()[1]}"
            result = run("all_reduce", "-e", "8", *QUICK, environment=clean_environment(NCCL_COMM_ID=place, RANK="1", WORLD_SIZE="2",
                                                                                          TUTTI_TIMEOUT_S="20"))
            greeter.join()
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn(f"the process at {place} sent bytes that are no bootstrap frame", result.stderr)
        self.assertIn("what listens there is no rank of this job; check the address and the port", result.stderr)

    def test_every_collective(self):
        for how in ([], ["--threads"], ["--memory", "shared"], ["--stream", "-R", "1"]):
            for ranks in (1, 2, 3):
                with self.subTest(how=how, ranks=ranks):
                    rows, text = self.rows("all", "--ranks", str(ranks), "-b", "8", "-e", "96K", "-f", "13", *how)
                    self.check_rows(rows, ranks, sizes=4)
                    self.assertIn("# Out of bounds values : 0 OK", text)
                    self.assertIn("# Avg bus bandwidth", text)

    def test_every_type_and_operation(self):
        rows, _ = self.rows("all_reduce", "reduce_scatter", "reduce", "--ranks", "3", "-d", "all", "-o", "all", "-b", "100",
                            "-e", "5000", "-f", "50", "-r", "-1")
        self.assertEqual({row["dtype"] for row in rows}, {"int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float",
                                                          "double", "bfloat16", "f8e4m3", "f8e5m2"})
        self.assertEqual({row["redop"] for row in rows}, {"sum", "prod", "max", "min", "avg", "mulsum"})
        self.assertEqual({row["root"] for row in rows if row["collective"] == "reduce"}, {0, 1, 2})
        self.assertTrue(all(row["wrong"] == 0 for row in rows))

    def test_sizes_and_table(self):
        rows, text = self.rows("all_reduce", "--ranks", "2", "-b", "1K", "-e", "4K", "-i", "1K", "--percentiles", "-a", "3", "-m", "2")
        self.assertEqual([row["bytes"] for row in rows if row["in_place"]], [1024, 2048, 3072, 4096])
        lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
        self.assertEqual(len(lines), 4)
        self.assertEqual(lines[0][:5], ["1024", "256", "float", "sum", "-1"])
        self.assertEqual(len(lines[0]), 5 + 2 * 6)
        rows, _ = self.rows("all_reduce", "--ranks", "2", "-b", "64", "-e", "64", "-c", "0")
        self.assertEqual([row["wrong"] for row in rows], [None, None])

    def test_a_step_beyond_what_a_size_holds(self):
        """32 GiB times 1 GiB is 2^65 bytes."""
        result = run("all_reduce", "--ranks", "2", "-b", "32G", "-e", "32G", "-f", str(1 << 30), "--explain")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(re.findall(r"^== all_reduce, (\d+) bytes", result.stdout, re.MULTILINE), [str(32 << 30)])

    def test_plot(self):
        plot = os.path.join(self.folder, "plot.svg")
        result = run("all_reduce", "all_gather", "--ranks", "2", "-e", "64K", *QUICK, "--plot", plot)
        self.assertEqual(result.returncode, 0, result.stderr)
        root = xml.etree.ElementTree.parse(plot).getroot()
        texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        self.assertIn("all_reduce sum in place", texts)
        self.assertIn("all_gather out of place", texts)

    def test_files_that_cannot_be_written_are_found_before_anything_is_measured(self):
        for option in ("--plot", "--json"):
            result = run("all_reduce", "--ranks", "2", "-e", "64", *QUICK, option, "/nonexistent/file")
            self.assertEqual(result.returncode, 1)
            self.assertIn(f"{option} /nonexistent/file: No such file", result.stderr)
            self.assertNotIn("float", result.stdout)

    def test_explain(self):
        for collective in COLLECTIVES:
            result = run(collective, "--ranks", "3", "-b", "1K", "-e", "1M", "-f", "1024", "--explain")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(result.stdout.count("== " + collective), 2)
        threads = run("all_reduce", "--ranks", "2", "--threads", "-b", "1M", "-e", "1M", "--explain", "--memory", "shared")
        self.assertEqual(threads.returncode, 0, threads.stderr)
        self.assertIn("every rank can load from and store to every other's buffers", threads.stdout)

    def test_rows_on_standard_output(self):
        result = run("all_reduce", "--ranks", "2", "-b", "64", "-e", "1K", *QUICK, "--json", "-", folder=self.folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([row["bytes"] for row in json.loads(result.stdout) if row["in_place"]], [64, 256, 1024])
        self.assertIn("# Out of bounds values : 0 OK", result.stderr)
        self.assertEqual(os.listdir(self.folder), [])

    def test_rows_through_a_pipe(self):
        pipe = os.path.join(self.folder, "pipe")
        os.mkfifo(pipe)
        with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as reader:
            result = run("all_reduce", "--ranks", "2", "-e", "8", *QUICK, "--json", pipe)
            if result.returncode != 0:
                reader.kill()  # nobody may have opened the pipe
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual([row["bytes"] for row in json.loads(reader.stdout.read())], [8, 8])

    def test_rows_of_a_run_that_fails_are_a_list_too(self):
        result = run("all_reduce", "--ranks", "2", "-e", "8", "-n", "1000000000", "-c", "0", "-T", "1", "--json", "-")
        self.assertEqual(result.returncode, 1)
        self.assertIn("all_reduce of 8 bytes took more than 1 s (-T)", result.stderr)
        self.assertEqual(json.loads(result.stdout), [])

    def test_threads_that_run_out_of_time(self):
        """Some may be at work still on the buffers of those that have seen it."""
        for memory in ("shared", "private"):
            result = run("all_reduce", "--ranks", "4", "--threads", "--memory", memory, "-b", "1M", "-e", "1M", "-n", "1000000", "-c", "0", "-T", "1")
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn("took more than 1 s (-T)", result.stderr)

    def test_output_that_cannot_be_written(self):
        for arguments in (["--help"], ["--version"], ["all_reduce", "--ranks", "2", "-e", "64", *QUICK],
                          ["all_reduce", "--ranks", "2", "--threads", "-e", "64", *QUICK], ["all_reduce", "--ranks", "2", "--explain"]):
            with self.subTest(arguments=arguments), open("/dev/full", "w", encoding="utf-8") as full:
                result = run(*arguments, stdout=full)
                self.assertEqual(result.returncode, 1)
                self.assertEqual(result.stderr, "tutti-perf: standard output: No space left on device\n")

    def test_reader_that_leaves(self):
        """As `| head -1`: an end without a word, of all ranks."""
        for how in ([], ["--threads"]):
            with self.subTest(how=how):
                with subprocess.Popen([PERF, "all_reduce", "--ranks", "2", "-e", "64", "-n", "200000", *how], text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment(), start_new_session=True, preexec_fn=heed_signals) as process:
                    self.assertIn("all_reduce: 2 ranks", process.stdout.readline())
                    process.stdout.close()
                    self.assertEqual(process.stderr.read(), "")
                    self.assertEqual(process.wait(timeout=TIMEOUT_S), -signal.SIGPIPE)
                with self.assertRaises(ProcessLookupError, msg="a rank is left"):
                    os.killpg(process.pid, 0)

    def test_ends_by_the_signal_that_asks_for_it(self):
        """Whoever ends it by Ctrl-C ends a shell's loop around it as well; nothing is left of it."""
        for sign in SIGNALS:
            with self.subTest(sign=sign):
                with subprocess.Popen([PERF, "all_reduce", "--ranks", "2", "-e", "64", "-n", "100000000"], text=True, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, env=clean_environment(), start_new_session=True) as process:
                    self.assertIn("all_reduce: 2 ranks", process.stdout.readline())
                    process.send_signal(sign)
                    said = process.communicate(timeout=TIMEOUT_S)[1]
                self.assertEqual(process.returncode, -sign)
                self.assertRegex(said, rf"tutti-perf: rank [01] was ended by signal {int(sign)} ")
                with self.assertRaises(ProcessLookupError, msg="a rank is left"):
                    os.killpg(process.pid, 0)

    def test_rows_are_written_where_nobody_reads_the_table(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            result = run("all_reduce", "--ranks", "2", "-e", "64", *QUICK, "--json", self.json, stdout=full)
            self.assertEqual((result.returncode, result.stderr), (1, "tutti-perf: standard output: No space left on device\n"))
            text = subprocess.run([PERF, "all_reduce", "--ranks", "2", "-e", "64", *QUICK, "--json", "-"], stdout=subprocess.PIPE, stderr=full,
                                  timeout=TIMEOUT_S, env=clean_environment(), check=True).stdout
        with open(self.json, encoding="utf-8") as file:
            self.assertEqual([row["bytes"] for row in json.load(file)], [8, 8, 32, 32])
        self.assertEqual([row["bytes"] for row in json.loads(text)], [8, 8, 32, 32])

    def test_where_children_are_ignored(self):
        result = run("all_reduce", "--ranks", "2", "-e", "8", *QUICK, prefix=["env", "--ignore-signal=CHLD"])
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_ranks_by_the_processors_that_may_be_used(self):
        result = run("all_reduce", "-e", "8", *QUICK, prefix=["taskset", "-c", str(min(os.sched_getaffinity(0)))])
        self.assertIn("all_reduce: 2 ranks", result.stdout)

    def test_bound_between_hosts(self):
        """No fewer bytes cross than a bound says, and where all of them have to, hardly more."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            where = "127.0.0.1:" + str(server.getsockname()[1])
        ranks = [subprocess.Popen([PERF, "all_reduce", "broadcast", "reduce", "gather", "scatter", "-b", "64K", "-e", "64K", *QUICK], text=True,
                                  stdout=subprocess.PIPE, env=clean_environment(NCCL_COMM_ID=where, TUTTI_SECRET="a word", WORLD_SIZE="2",
                                                                                RANK=str(rank), NCCL_HOSTID=f"host-{rank}"))
                 for rank in range(2)]
        texts = [rank.communicate(timeout=TIMEOUT_S)[0] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], texts)
        found = re.findall(r"([\d.]+) of the bound (\d+)", texts[0])
        self.assertEqual([int(bound) for _, bound in found], [65536, 32768, 32768, 16384, 16384], texts[0])
        self.assertTrue(all(1 <= float(part) < 1.1 for part, _ in found), found)

    def test_version_in_the_log(self):
        for level in ("VERSION", "WARN"):
            result = run("all_reduce", "--ranks", "2", "-e", "64", *QUICK, environment=clean_environment(NCCL_DEBUG=level))
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertRegex(result.stderr, r"\A\S+:\d+:\d+ \[VERSION\] Tutti \d+\.\d+\.\d+ \(NCCL API 2\.28\.9\)\n\Z")

    def plan_file(self, text):
        path = os.path.join(self.folder, "plan.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def test_plan(self):
        plan = self.plan_file(EXCHANGE)
        for how in ([], ["--threads"], ["--memory", "shared"]):
            # The collective and the number of ranks are the file's.
            rows, text = self.rows("--plan", plan, "-b", "4", "-e", "4M", "-f", "64", "-d", "bfloat16", "-o", "mulsum", *how)
            self.assertEqual({(row["collective"], row["ranks"], row["wrong"]) for row in rows}, {("all_reduce", 2, 0)})
            self.assertEqual({row["in_place"] for row in rows}, {False, True})
            self.assertIn(f"# Plan {plan}, proved: out of place through slots; in place through slots", text)
        result = run("--plan", "-", "-e", "64", *QUICK, input=EXCHANGE)
        self.assertEqual(result.returncode, 0, result.stderr)
        result = run("--plan", plan, "-b", "1K", "-e", "1K", "--explain")
        self.assertIn("exchange: set by tuttiCommSetSchedule", result.stdout)
        self.assertIn(EXCHANGE, result.stdout)

    def test_plan_that_explain_printed(self):
        for collective in COLLECTIVES:
            if collective == "sendrecv":
                continue
            explained = run(collective, "--ranks", "3", "-r", "2", "-b", "1M", "-e", "1M", "--explain")
            self.assertEqual(explained.returncode, 0, explained.stderr)
            plan = self.plan_file(explained.stdout)
            rows, _ = self.rows("--plan", plan, "-b", "1K", "-e", "1M", "-f", "32")
            self.assertTrue(rows)
            self.assertEqual({(row["collective"], row["ranks"], row["wrong"]) for row in rows}, {(collective, 3, 0)})
            again = run("--plan", plan, "-b", "1M", "-e", "1M", "--explain")
            # The certificate follows, with what was measured.
            schedule = explained.stdout[explained.stdout.index("\nschedule "):explained.stdout.index("\n# certificate ")]
            self.assertEqual(again.stdout[again.stdout.index("\nschedule "):again.stdout.index("\n# certificate ")], schedule)

    def test_plan_that_is_right_out_of_place_only(self):
        plan = self.plan_file(EXCHANGE.replace("in[0.0] -> send 1", "in[0.0] -> out[0.0], send 1"))
        rows, text = self.rows("--plan", plan, "-e", "4K")
        self.assertEqual({(row["in_place"], row["wrong"]) for row in rows}, {(False, 0)})
        self.assertIn("in place no", text)

    def test_wrong_plans(self):
        for text, code, words in [
                (EXCHANGE.replace("recv 0 + in", "in"), 1, ["rank 0, lane 0, step 0", "sends message number 1 to rank 1"]),
                (EXCHANGE.replace(" finish", ""), 1, ["lane 0, step 1", "expected finish"]),
                (EXCHANGE.replace("in[0.0] -> send 0", "in[0.0] -> sned 0"), 1, ["line 6", "sned"]),
                ("# a comment\n\n" + EXCHANGE.replace("-> send 0", "-> send 7"), 1, ["rank 1, lane 0, step 0", "peer 7"]),
                ("words\n" + EXCHANGE.replace("-> send 0", "-> sned 0"), 1, ["line 7", "sned"]),
                (EXCHANGE + EXCHANGE, 1, ["line 8"]),
                (EXCHANGE.replace("units 1", "units 1048576 ").replace("scratch 0", "scratch 131072"), 1, ["the verifier takes at most"]),
                (EXCHANGE.replace("ranks 2", "ranks 99999999999999999999"), 2, ["a number from 1 to 1024"]),
                (EXCHANGE.replace("all_reduce", "send"), 2, ["\"send\""]),
                ("", 2, ["no line starts with \"schedule\""]),
                ("schedule", 2, ["a schedule for \"\""]),
                ("\x00\x01", 2, ["zero bytes"])]:
            with self.subTest(text=text):
                result = run("--plan", self.plan_file(text), "-e", "64", *QUICK)
                self.assertEqual(result.returncode, code, result.stderr)
                self.assertEqual(result.stdout, "")
                self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
                for word in ["tutti-perf: ", "plan.txt", *words]:
                    self.assertIn(word, result.stderr)
        plan = self.plan_file(EXCHANGE)
        for arguments, words in [(["--plan", "/nonexistent/plan"], "/nonexistent/plan: No such file"),
                                 (["--plan", self.folder], "Is a directory"),
                                 (["all_gather", "--plan", plan], "is for all_reduce, not for all_gather"),
                                 (["--plan", plan, "--ranks", "3"], "is for 2 ranks, --ranks says 3")]:
            result = run(*arguments)
            self.assertEqual(result.returncode, 2)
            self.assertIn(words, result.stderr)

    def test_bad_command_lines(self):
        for arguments, words in [
                ([], "which collective"),
                (["all_redcue"], "all_redcue"),
                (["all_reduce", "-b", "4X"], "4X"),
                (["all_reduce", "-b", "1M", "-e", "1K"], "-e 1K is less than -b 1M"),
                (["all_reduce", "-d", "complex"], "complex"),
                (["all_reduce", "-o", "xor"], "xor"),
                (["all_reduce", "--ranks", "0"], "ranks"),
                (["broadcast", "--ranks", "2", "-r", "2"], "-r 2"),
                (["all_reduce", "-f", "1"], "--stepfactor"),
                (["all_reduce", "-i", "0"], "-i 0"),
                (["all_reduce", "-e", "1G", "-i", "1"], "-i 1 makes more than 1048576 sizes"),
                (["all_reduce", "--explain", "--json", "rows.json"], "--explain prints plans"),
                (["all_reduce", "--explain", "--plot", "rows.svg"], "--explain prints plans"),
                (["all_reduce", "--explain", "--memory", "shared"], "--explain prints the plan for private buffers"),
                (["all_reduce", "--plot", "-"], "--plot -: the picture goes to a file"),
                (["all_reduce", "--json", "rows", "--plot", "./rows"], "--plot ./rows: is --json's file"),
                (["all_reduce", "-n", "many"], "many"),
                (["all_reduce", "-n"], "--iters needs a value"),
                *((["all_reduce", "-b", size], f'-b "{size}" is not a size: write') for size in ("1Q", "-1", "8bb", "99999999T", "9" * 30)),
                (["all_reduce", "--net", ""], "--net is empty; write one of {auto,tcp,mpi}"),
                (["all_reduce", "-f", ""], "--stepfactor is empty; write a number from 2"),
                (["all_reduce", "--ranks", "2", "--ranks", "3"], "--ranks is given 2 times"),
                *((["all_reduce", option, value], f"Value {value} not in range 0 to 1") for option in ("-z", "-C") for value in ("2", "-1")),
                (["all_reduce", "broadcast", "all_reduce"], "all_reduce is named twice"),
                (["all", "broadcast"], "broadcast is named twice"),
                (["all_reduce", "--memory", "holographic"], "holographic"),
                *((["all_reduce", option, ""], f"{option} is empty; name a file") for option in ("--json", "--plot", "--plan", "--against")),
                (["--tune", ""], "--tune is empty; name a file"),
                (["all_reduce", "-e", ""], "is empty: write 8, 4K, 256M or 1G"),
                (["all_reduce", "--no-such-flag"], "--no-such-flag")]:
            result = run(*arguments)
            with self.subTest(arguments=arguments):
                self.assertEqual(result.returncode, 2)
                self.assertEqual(result.stdout, "")
                self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
                self.assertTrue(result.stderr.startswith("tutti-perf: "))
                self.assertIn(words, result.stderr)
        self.assertEqual(run("--help").returncode, 0)
        self.assertEqual(run("--version").returncode, 0)

    def test_buffers_that_are_more_than_there_is(self):
        """Told before the kernel kills ranks, or other programs, for it."""
        for more in ([], ["--memory", "shared"], ["--threads"], ["--tune", self.json]):
            result = run("all_reduce", "--ranks", "2", "-b", "64T", "-e", "64T", *more)
            self.assertEqual(result.returncode, 1, more)
            self.assertRegex(result.stderr, r"^tutti-perf: the buffers of 2 ranks take 262144\.0 GiB, and \d+\.\d GiB of memory are available; "
                                            r"choose a smaller -e\n$")

    def started_by_hand(self, variables):
        """Two processes with a launcher's variables; rank 0's rows."""
        processes = [subprocess.Popen([PERF, "all_reduce", "-e", "4K", *QUICK, "--json", self.json], text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment(**variables(rank)))
                     for rank in (1, 0)]
        outputs = [process.communicate(timeout=TIMEOUT_S) for process in processes]
        self.assertEqual([process.returncode for process in processes], [0, 0], outputs)
        self.assertEqual(outputs[0][0], "", "only rank 0 prints")
        with open(self.json, encoding="utf-8") as file:
            rows = json.load(file)
        self.assertTrue(rows and all(row["ranks"] == 2 and row["wrong"] == 0 for row in rows))
        return outputs[1][0]

    def test_torchrun(self):
        text = self.started_by_hand(lambda rank: {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": f"perf-test-{os.getpid()}", "TORCHELASTIC_RESTART_COUNT": "0"})
        self.assertIn("2 ranks, torchrun", text)

    def test_srun(self):
        text = self.started_by_hand(lambda rank: {
            "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_NTASKS": "2", "SLURM_NNODES": "1",
            "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0"})
        self.assertIn("2 ranks, srun", text)

    def test_all_ranks_plan_by_rank_0s_tuning_file(self):
        """A rank that took another algorithm than the others would wait for ever; rank 1's own file is not even read."""
        rule = "all_reduce ranks 2 access {} {}: from 0 {} slots\n"
        tuning = "tutti-tuning 1\n" + "".join(rule.format(access, form, "halving_doubling") for access in ("slots", "single_copy")
                                              for form in ("in_place", "out_of_place"))
        path = self.plan_file(tuning)
        self.started_by_hand(lambda rank: {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": f"tuning-test-{os.getpid()}", "TORCHELASTIC_RESTART_COUNT": "0",
            "TUTTI_TIMEOUT_S": "20", "TUTTI_CARRY_BYTES": "0", "TUTTI_TUNING_FILE": path if rank == 0 else "/nonexistent"})

    def test_launcher_and_flags_that_disagree(self):
        environment = clean_environment(RANK="0", WORLD_SIZE="2", MASTER_PORT="1")
        self.assertEqual(run("all_reduce", "--ranks", "4", environment=environment).returncode, 2)
        self.assertEqual(run("all_reduce", "--threads", environment=environment).returncode, 2)
        plan = self.plan_file(EXCHANGE)
        result = run("--plan", plan, environment=clean_environment(RANK="0", WORLD_SIZE="3", MASTER_PORT="1"))
        self.assertEqual((result.returncode, result.stderr), (2, f"tutti-perf: torchrun started 3 ranks, --plan {plan} is for 2\n"))

    def test_a_launcher_of_one_process(self):
        """As a shell on a node of a Slurm job: it may start ranks, and says so where it starts none."""
        alone = clean_environment(SLURM_PROCID="0", SLURM_NTASKS="1", SLURM_STEP_ID="0", SLURM_JOB_ID="1")
        self.assertIn("all_reduce: 2 ranks", run("all_reduce", "--ranks", "2", "-e", "8", *QUICK, environment=alone).stdout)
        result = run("all_reduce", "-e", "8", *QUICK, environment=alone)
        self.assertIn("all_reduce: 1 rank,", result.stdout)
        self.assertEqual(result.stderr, "tutti-perf: srun started one process: one rank; --ranks N starts more\n")


class MpirunTest(FolderTest):
    def test_mpirun(self):
        result = run("all_reduce", "-e", "4K", *QUICK, "--json", self.json,
                     prefix=["mpirun", "-np", "2", "--oversubscribe", "--allow-run-as-root"])
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.count("# Out of bounds values : 0 OK"), 1)
        self.assertIn("2 ranks, mpirun", result.stdout)
        with open(self.json, encoding="utf-8") as file:
            self.assertTrue(all(row["ranks"] == 2 and row["wrong"] == 0 for row in json.load(file)))


if __name__ == "__main__":
    if sys.argv[1:] == ["mpirun"]:
        if not shutil.which("mpirun"):
            print("skipped: there is no mpirun on this machine")
            sys.exit(77)
        names = ["MpirunTest.test_mpirun"]
    else:
        names = sys.argv[1:] or ["PerfTest"]
    unittest.main(argv=[PERF, *names])
