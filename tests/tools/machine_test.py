#!/usr/bin/env python3
"""Communicators and the machine they run on, as users see it: the log at NCCL_DEBUG=INFO, NCCL's topology files, the plug-in that
is not there, and ranks that are bound to the sockets of a made-up machine.

    machine_test.py TUTTI_PERF TUTTI_TOPO MODELS OTHER_PLUG_IN
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

PERF, TOPO, MODELS, OTHER = map(os.path.abspath, sys.argv[1:5])
del sys.argv[1:5]
TIMEOUT_S = 120
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "OMPI_", "PMI", "MPI_", "SLURM_", "ENVIRONMENT", "TUTTI_",
             "NCCL_", "HWLOC_")
CALLS = ("all_reduce", "-b", "64", "-e", "1M", "-f", "128", "-n", "2", "-w", "1")


def environment(**more):
    return {**{name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}, **more}


def perf(*arguments, ranks=2, **variables):
    return subprocess.run([PERF, *(arguments or CALLS), "--ranks", str(ranks)], capture_output=True, text=True, timeout=TIMEOUT_S,
                          env=environment(**variables))


def about(path):
    found = subprocess.run([TOPO, path, "--json"], capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    answer = json.loads(found.stdout)
    return {name: answer[name] for name in ("gpus", "nics", "numa_nodes", "ranks", "compute", "bound_gbps")}


class FolderTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="tutti-machine-test-")
        self.addCleanup(shutil.rmtree, self.folder)


class MachineTest(FolderTest):
    def good(self, result):
        self.assertEqual(result.returncode, 0, result.stderr + result.stdout)
        self.assertIn("# Out of bounds values : 0 OK", result.stdout)
        return result.stderr

    def test_info_tells_seats_machine_bound_and_algorithms(self):
        log = self.good(perf(NCCL_DEBUG="INFO"))
        for rank in range(2):
            self.assertRegex(log, rf"rank {rank} sits on (NUMA node \d+, )?processors [0-9,-]+")
        self.assertRegex(log, r"host \S+: \d+ NUMA nodes?, \d+ cores?, .*")
        self.assertRegex(log, r"all_reduce of large buffers: at most [0-9.]+ GB/s each, as memory gives")
        self.assertRegex(log, r"all_reduce of float32, out of place: announce lines from 4 B, ")
        self.assertEqual(len(re.findall(r"host \S+: \d+ NUMA", log)), 1, "the machine is told once, not by each rank")

    def test_subjects_of_the_log_are_chosen(self):
        graph, tuning, ready = "sits on", "out of place: announce lines", "ready:"
        for subjects, there, away in (("GRAPH", [graph], [tuning, ready]), ("INIT,TUNING", [tuning, ready], [graph]),
                                      ("^GRAPH", [tuning, ready], [graph]), ("ALL", [graph, tuning, ready], []),
                                      ("COLL", [], [graph, tuning, ready])):
            log = self.good(perf(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS=subjects))
            for part in there:
                self.assertIn(part, log, subjects)
            for part in away:
                self.assertNotIn(part, log, subjects)

    def test_without_info_nothing_is_said(self):
        self.assertEqual(self.good(perf()), "")

    def test_a_topology_file_stands_for_the_machine_and_is_written_back(self):
        for model in ("epyc-2socket.topo", "hgx-h100.topo", "pcie-8gpu-2socket.topo"):
            path, dump = os.path.join(MODELS, model), os.path.join(self.folder, model + ".xml")
            log = self.good(perf(NCCL_DEBUG="INFO", NCCL_TOPO_FILE=path, NCCL_TOPO_DUMP_FILE=dump))
            self.assertIn(f"NCCL_TOPO_FILE={path}: the machine is as this file says", log)
            self.assertIn(f"NCCL_TOPO_DUMP_FILE={dump}: the machine is written", log)
            self.assertEqual(about(dump), about(path))
            # What was written stands for the machine too.
            again = os.path.join(self.folder, "again.xml")
            self.good(perf(NCCL_TOPO_FILE=dump, NCCL_TOPO_DUMP_FILE=again))
            self.assertEqual(about(again), about(path))

    def test_the_live_machine_is_written_by_the_rank_that_is_asked(self):
        dump = os.path.join(self.folder, "live.%s.xml")
        self.good(perf(NCCL_TOPO_DUMP_FILE=dump % "two", NCCL_TOPO_DUMP_FILE_RANK="2", ranks=2))
        self.assertFalse(os.path.exists(dump % "two"), "there is no rank 2")
        self.good(perf(NCCL_TOPO_DUMP_FILE=dump % "one", NCCL_TOPO_DUMP_FILE_RANK="1"))
        self.assertGreaterEqual(about(dump % "one")["numa_nodes"], 1)
        log = self.good(perf(NCCL_DEBUG="WARN", NCCL_TOPO_DUMP_FILE=os.path.join(self.folder, "no/such/folder.xml")))
        self.assertRegex(log, r"\[WARN\] Tutti NCCL_TOPO_DUMP_FILE=\S*/no/such/folder.xml: not written: .*No such file")

    def test_a_wrong_topology_file_fails_every_rank_with_file_line_and_reason(self):
        path = os.path.join(self.folder, "wrong.topo")
        for content, reason in (("tutti-topology 1\nnuma a\nlunk a b\n", r'line 3: "lunk" is no kind of line'),
                                ("<system version=\"1\">\n<cpu numaid=\"0\">\n</system>\n", r"line 3"),
                                ("\x00\x01\x02 no machine", r"")):
            with open(path, "w", encoding="utf-8") as file:
                file.write(content)
            result = perf(NCCL_TOPO_FILE=path, ranks=3)
            self.assertNotEqual(result.returncode, 0)
            for rank in range(3):
                self.assertRegex(result.stderr, rf"rank {rank}: .*NCCL_TOPO_FILE: {re.escape(path)}: .*{reason}")

    def test_a_topology_file_that_cannot_be_read_is_a_warning(self):
        path = os.path.join(self.folder, "missing.xml")
        log = self.good(perf(NCCL_DEBUG="WARN", NCCL_TOPO_FILE=path))
        self.assertRegex(log, rf"\[WARN\] Tutti NCCL_TOPO_FILE: open {re.escape(path)}: .*: the machine is looked at instead")

    def test_nobody_waits_at_a_fifo(self):
        path = os.path.join(self.folder, "fifo")
        os.mkfifo(path)
        log = self.good(perf(NCCL_DEBUG="WARN", NCCL_TOPO_FILE=path))
        self.assertIn(f"NCCL_TOPO_FILE: {path}: not a regular file: the machine is looked at instead", log)
        log = self.good(perf(NCCL_DEBUG="WARN", NCCL_TOPO_DUMP_FILE=path))
        self.assertRegex(log, rf"NCCL_TOPO_DUMP_FILE={re.escape(path)}: not written: .*No such device or address")

    def test_without_the_plug_in_everything_works_and_info_says_so_once(self):
        broken = os.path.join(self.folder, "libtutti-topology.so")
        with open(broken, "w", encoding="utf-8") as file:
            file.write("no library")
        for path in ("none", os.path.join(self.folder, "missing.so"), broken):
            log = self.good(perf(NCCL_DEBUG="INFO", TUTTI_TOPOLOGY_LIBRARY=path))
            self.assertEqual(log.count("libtutti-topology.so cannot be used"), 1, log)
            self.assertEqual(self.good(perf(TUTTI_TOPOLOGY_LIBRARY=path)), "")
        log = self.good(perf(NCCL_DEBUG="INFO", TUTTI_TOPOLOGY_LIBRARY=OTHER))
        self.assertRegex(log, r'it is "Tutti 9.9.9, machine service 99", this library "Tutti [0-9.]+, .*install both from one build')
        log = self.good(perf(NCCL_DEBUG="WARN", TUTTI_TOPOLOGY_LIBRARY="none", NCCL_TOPO_FILE="/machine.xml"))
        self.assertIn("NCCL_TOPO_FILE is not read", log)

    def runs_what_tutti_topo_prints(self, path, ranks, collective, algorithm, lanes):
        given = {"ranks": ranks, "NCCL_TOPO_FILE": path}
        offered = perf(collective, "-b", "1M", "-e", "1M", "--explain", **given)
        self.assertRegex(offered.stdout, rf"\n[* ] {algorithm} +slots", offered.stderr)
        explained = perf(collective, "-b", "1M", "-e", "1M", "--explain", NCCL_ALGO=algorithm, **given)
        self.assertRegex(explained.stdout, rf"\n\* {algorithm}", explained.stderr)
        runs = explained.stdout[explained.stdout.index(f"schedule {algorithm}"):explained.stdout.index("# certificate")].strip()
        units, found = re.search(r" units (\d+) lanes (\d+) ", runs).groups()
        self.assertEqual(int(found), lanes)
        printed = subprocess.run([TOPO, path, "--collective", collective, "--schedule", "--units", units],
                                 capture_output=True, text=True, timeout=TIMEOUT_S, check=True).stdout.strip()
        self.assertEqual(runs, printed, f"{collective} on {path}")
        self.assertEqual(self.good(perf(collective, *CALLS[1:], NCCL_ALGO=algorithm, **given)), "")

    def test_communicators_run_the_packed_trees_that_tutti_topo_prints(self):
        for model, ranks, collective, lanes in (("power9-ac922", 4, "all_reduce", 2), ("power9-ac922", 4, "all_gather", 1),
                                                ("power9-ac922", 4, "reduce_scatter", 1), ("mi250x", 8, "all_reduce", 10),
                                                ("mi250x", 8, "all_gather", 5), ("dgx-1v", 8, "all_reduce", 24)):
            self.runs_what_tutti_topo_prints(os.path.join(MODELS, model + ".topo"), ranks, collective, "packed_trees", lanes)

    def test_and_its_pairs_of_trees_where_links_differ_in_their_two_directions(self):
        path = os.path.join(self.folder, "one-way.topo")
        with open(path, "w", encoding="utf-8") as file:
            file.write("tutti-topology 1\n" + "".join(f"gpu g{i}\n" for i in range(4)))
            for i in range(4):
                file.write(f"link g{i} -> g{(i + 1) % 4} nvlink 40\nlink g{(i + 1) % 4} -> g{i} nvlink 20\n")
        self.runs_what_tutti_topo_prints(path, 4, "all_reduce", "packed_pairs", 10)

    def test_what_tutti_topo_prints_for_more_than_eight_ranks_runs(self):
        """Links of such machines want more slots than channels among so many ranks have."""
        for machine, collective in (("gpu:3 host:3 line:50 nic:2x50", "all_gather"), ("gpu:2+4+3 nic:1x50", "reduce_scatter")):
            printed = subprocess.run([TOPO, "--synthetic", machine, "--collective", collective, "--schedule"], capture_output=True, text=True,
                                     timeout=TIMEOUT_S, check=True).stdout
            self.assertIn(f"schedule packed_trees {collective} ranks 9 ", printed)
            self.good(subprocess.run([PERF, "--plan", "-", "-b", "64K", "-e", "64K", "-n", "2"], input=printed, capture_output=True, text=True,
                                     timeout=TIMEOUT_S, env=environment()))

    def test_a_machine_of_other_ranks_has_no_trees_for_these(self):
        path = os.path.join(MODELS, "dgx-1v.topo")
        log = self.good(perf(NCCL_DEBUG="INFO", NCCL_TOPO_FILE=path, ranks=3))
        self.assertIn("no trees are planned for the machine: the machine has 8 gpus, but there are 3 ranks", log)
        explained = perf("all_reduce", "-b", "1M", "-e", "1M", "--explain", ranks=3, NCCL_TOPO_FILE=path)
        self.assertNotIn("packed_trees", explained.stdout)

    def test_explain_ends_with_a_certificate_that_plan_reads_over(self):
        result = perf("all_reduce", "-b", "1M", "-e", "1M", "--explain")
        self.assertEqual(result.returncode, 0, result.stderr)
        certificate = result.stdout[result.stdout.index("# certificate of all_reduce"):]
        self.assertRegex(certificate, r"#   bound +[0-9.]+ us  memory: 4 MiB read and written, each byte once, at [0-9.]+ GB/s")
        self.assertRegex(certificate, r"#   expected +[0-9.]+ us  \w+ (slots|direct)")
        self.assertRegex(certificate, r"#   chosen for ")
        plan = os.path.join(self.folder, "plan.txt")
        with open(plan, "w", encoding="utf-8") as file:
            file.write(result.stdout)
        read = subprocess.run([PERF, "--plan", plan, "-b", "1M", "-e", "1M", "-n", "2"], capture_output=True, text=True,
                              timeout=TIMEOUT_S, env=environment())
        self.good(read)

    def test_explain_says_what_shared_buffers_would_go_by(self):
        shared = r"shared buffers \(ncclMemAlloc, on every rank\) would go by: \w+ direct, expected us [0-9.]+\n"
        for size in ("8K", "1M"):  # beside the lines, and by a plan
            self.assertRegex(perf("all_reduce", "-b", size, "-e", size, "--explain", ranks=2).stdout, shared)
        self.assertNotRegex(perf("all_reduce", "-b", "8", "-e", "8", "--explain", ranks=2).stdout, shared)
        self.assertNotRegex(perf("all_reduce", "-b", "1M", "-e", "1M", "--explain", "--threads", ranks=2).stdout, shared)


class SocketsTest(FolderTest):
    """Four ranks, two of them bound to each of two processors that are made out to be sockets."""

    def setUp(self):
        super().setUp()
        usable = sorted(os.sched_getaffinity(0))
        if len(usable) < 2:
            self.skipTest("only one processor may be used: ranks cannot be bound to two")
        self.processors = usable[:2]
        self.root = os.path.join(self.folder, "root")
        self.describe()

    def write(self, path, line):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(line + "\n")

    def describe(self):
        first, second = self.processors
        halves = (range(0, first + 1), range(first + 1, second + 1))
        every = f"0-{second}"
        for name in ("online", "possible", "present"):
            self.write(f"sys/devices/system/cpu/{name}", every)
        self.write("sys/devices/system/node/online", "0-1")
        self.write("proc/meminfo", "MemTotal: 8388608 kB")
        self.write("proc/cpuinfo", "".join(f"processor\t: {n}\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\n\n"
                                           for n in range(second + 1)))
        for number, half in enumerate(halves):
            ranges = f"{half[0]}-{half[-1]}"
            bits = f"{sum(1 << n for n in half):08x}"
            node = f"sys/devices/system/node/node{number}"
            self.write(f"{node}/cpulist", ranges)
            self.write(f"{node}/cpumap", bits)
            self.write(f"{node}/meminfo", f"Node {number} MemTotal: 4194304 kB")
            self.write(f"{node}/distance", "10 20" if number == 0 else "20 10")
            for n in half:
                cpu = f"sys/devices/system/cpu/cpu{n}"
                self.write(f"{cpu}/online", "1")
                one = f"{1 << n:08x}"
                for name, value in (("physical_package_id", str(number)), ("core_id", str(n)), ("core_siblings_list", ranges),
                                    ("core_siblings", bits), ("package_cpus", bits), ("thread_siblings", one), ("core_cpus", one)):
                    self.write(f"{cpu}/topology/{name}", value)
                for name, value in (("level", "3"), ("type", "Unified"), ("size", "32768K"), ("shared_cpu_map", bits),
                                    ("shared_cpu_list", ranges), ("coherency_line_size", "64"), ("number_of_sets", "32768"),
                                    ("ways_of_associativity", "16")):
                    self.write(f"{cpu}/cache/index3/{name}", value)

    def launch(self, *arguments, seats=(0, 0, 1, 1), **variables):
        """(standard output, log) of ranks as a launcher starts them, each on its processor."""
        meeting = os.path.join(self.folder, "meeting")
        ranks = []
        for rank, seat in enumerate(seats):
            processor = self.processors[seat]
            ranks.append(subprocess.Popen(
                [PERF, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                preexec_fn=lambda processor=processor: os.sched_setaffinity(0, {processor}),
                env=environment(RANK=str(rank), WORLD_SIZE=str(len(seats)), LOCAL_RANK=str(rank), MASTER_ADDR="localhost", MASTER_PORT="1",
                                TUTTI_RENDEZVOUS="file:" + meeting, HWLOC_FSROOT=self.root, **variables)))
        outputs = [rank.communicate(timeout=TIMEOUT_S) for rank in ranks]
        for rank, (_, log) in zip(ranks, outputs):
            self.assertEqual(rank.returncode, 0, log)
        return "".join(output for output, _ in outputs), "".join(log for _, log in outputs)

    def test_ranks_of_two_sockets_are_two_groups_and_right(self):
        for seats in ((0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 1), (1, 1, 1, 0)):
            output, log = self.launch(*CALLS, seats=seats, NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="GRAPH")
            self.assertIn("# Out of bounds values : 0 OK", output)
            self.assertIn("ranks are in 2 groups, by socket", log)
            self.assertRegex(log, r"host \S+: 2 NUMA nodes")
            for rank, seat in enumerate(seats):
                self.assertIn(f"rank {rank} sits on NUMA node {seat}, processors {self.processors[seat]}", log)
            self.assertRegex(log, r"advice: ranks [0-9 -]+ are all bound to processor")
            self.assertRegex(log, r"at most [0-9.]+ GB/s each: links between NUMA nodes: numa0 \| numa1 allow")

    def test_the_grouped_schedule_is_a_candidate_and_gives_the_sums(self):
        output, _ = self.launch("all_reduce", "-b", "1M", "-e", "1M", "--explain")
        self.assertIn("groups: ranks are in 2, by socket", output)
        self.assertRegex(output, r"\n[* ] grouped +slots")
        self.assertRegex(output, r"us  links between NUMA nodes: numa0 \| numa1 allow")
        for seats in ((0, 0, 1, 1), (0, 1, 0, 1), (1, 0, 0)):
            output, _ = self.launch(*CALLS, seats=seats, NCCL_ALGO="grouped")
            self.assertIn("# Out of bounds values : 0 OK", output)

    def test_one_rank_in_each_node_is_offered_trees_over_the_nodes(self):
        for seats in ((0, 1), (1, 0)):
            output, _ = self.launch("all_reduce", "-b", "1M", "-e", "1M", "--explain", seats=seats)
            self.assertRegex(output, r"\n[* ] packed_trees +slots")
            output, _ = self.launch(*CALLS, seats=seats, NCCL_ALGO="packed_trees")
            self.assertIn("# Out of bounds values : 0 OK", output)

    def test_one_rank_in_each_socket_is_no_group(self):
        _, log = self.launch(*CALLS, seats=(0, 1), NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="GRAPH")
        self.assertNotIn("groups", log)


if __name__ == "__main__":
    unittest.main(verbosity=2)
