#!/usr/bin/env python3
"""Runs tutti-topo as its users do: known bounds, JSON, subsets, reports, what it says when something is wrong.

    topo_test.py TOOL MODELS
"""
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

MODELS = os.path.abspath(sys.argv.pop(2))
TOOL = os.path.abspath(sys.argv.pop(1))
TIMEOUT_S = 60

KEYS = {"gpus", "nics", "numa_nodes", "ranks", "compute", "collective", "bound_gbps", "binding", "plan", "ring", "by_size", "other_bounds",
        "planning_ms", "warnings"}
SLOW_FOURTH = """tutti-topology 1
gpu gpu0
gpu gpu1
gpu gpu2
gpu gpu3
link gpu0 <-> gpu1 nvlink 100
link gpu0 <-> gpu2 nvlink 100
link gpu1 <-> gpu2 nvlink 100
link gpu2 <-> gpu3 nvlink 20
"""


def run(*arguments, text=None):
    return subprocess.run([TOOL, *arguments], input=text, capture_output=True, encoding="latin-1", timeout=TIMEOUT_S, check=False)


class TopoTest(unittest.TestCase):
    def answer(self, *arguments, text=None):
        result = run(*arguments, "--json", text=text)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr, "")
        document = json.loads(result.stdout)
        self.assertEqual(set(document), KEYS)
        self.assertEqual(set(document["plan"]), {"algorithm", "lanes", "gbps", "ratio", "waits"})
        self.assertEqual(set(document["ring"]), {"gbps", "limit_gbps"})
        if document["ring"]["gbps"] is not None:
            self.assertLessEqual(document["ring"]["gbps"], document["ring"]["limit_gbps"] * (1 + 1e-6))
        return document

    def check_bound(self, document, bound, ranks):
        self.assertAlmostEqual(document["bound_gbps"], bound, places=6)
        self.assertEqual(document["ranks"], ranks)
        self.assertAlmostEqual(document["plan"]["ratio"], document["plan"]["gbps"] / bound, places=6)
        self.assertGreaterEqual(document["plan"]["ratio"], 0.97)
        self.assertLessEqual(document["plan"]["ratio"], 1)
        self.assertLessEqual(document["ring"]["gbps"], bound * (1 + 1e-6))

    def test_known_all_reduce_bounds(self):
        for machine, ranks, bound in [("gpu:4 mesh:100", 4, 200), ("switch:1 gpu:8 nvlink:450", 8, 450 * 8 / 14),
                                      ("gpu:8 ring:50", 8, 2 * 50 * 8 / 14), ("gpu:4 line:50", 4, 50)]:
            with self.subTest(machine=machine):
                self.check_bound(self.answer("--synthetic", machine), bound, ranks)
        self.check_bound(self.answer("-", text=SLOW_FOURTH), 20, 4)
        document = self.answer(os.path.join(MODELS, "dgx-1v.topo"))
        self.check_bound(document, 600 / 7, 8)
        self.assertEqual(document["gpus"], 8)

    def test_rings_that_are_not_proved_the_best(self):
        self.assertEqual(self.answer("--synthetic", "gpu:4 line:50")["ring"], {"gbps": 0, "limit_gbps": 0})
        self.assertIn("no ring goes through all ranks\n", run("--synthetic", "gpu:4 line:50").stdout)
        self.assertEqual(self.answer("--synthetic", "gpu:17 line:50")["ring"], {"gbps": 0, "limit_gbps": 50})
        text = run("--synthetic", "gpu:17 line:50", "--compare").stdout
        self.assertIn("rings      none       no ring through all ranks was found; no rings exceed 50.0 GB/s\n", text)
        self.assertIn("left out: ring: no ring through all ranks was found\n", text)
        hosts = ("--synthetic", "host:2 switch:1 gpu:9 nvlink:450 nic:4x50")
        ring = self.answer(*hosts)["ring"]
        self.assertGreater(ring["limit_gbps"], 1.01 * ring["gbps"])
        self.assertRegex(run(*hosts).stdout, r"  rings +[\d.]+ GB/s  the best found: [\d.]+% of the bound; no rings exceed 200.0 GB/s\n")
        self.assertRegex(run(os.path.join(MODELS, "gb200-nvl72.topo")).stdout, r"  rings +456.3 GB/s  the best there are: 100.0% of the bound\n")

    def test_known_gather_bounds(self):
        # Reduce-scatter and all-gather one after the other: half of each.
        for collective in ("all_gather", "reduce_scatter"):
            self.check_bound(self.answer("--synthetic", "gpu:4 line:50", "--collective", collective), 2 * 100 / 3, 4)
            self.check_bound(self.answer("-", "--collective", collective, text=SLOW_FOURTH), 2 * 40 / 3, 4)

    def test_binding(self):
        document = self.answer("-", text=SLOW_FOURTH)
        self.assertEqual(document["binding"], [["gpu0", "gpu1", "gpu2"], ["gpu3"]])
        cut = self.answer("-", "--collective", "all_gather", text=SLOW_FOURTH)["binding"]
        self.assertEqual(cut, ["gpu0", "gpu1", "gpu2"])
        document = self.answer("--synthetic", "gpu:3 mesh:10")
        self.assertEqual(document["binding"], [["gpu0"], ["gpu1"], ["gpu2"]])

    def test_counts_and_kinds(self):
        document = self.answer("--synthetic", "host:2 switch:1 gpu:4 nvlink:450 nic:4x50")
        self.assertEqual((document["gpus"], document["nics"], document["ranks"], document["compute"]), (8, 8, 8, "gpu"))
        # What the NICs of a host have leaves it once and comes back once.
        self.check_bound(document, 4 * 50, 8)
        document = self.answer("--synthetic", "gpu:0 numa:2 cpu:20 cores:8") if run(
            "--synthetic", "gpu:0 numa:2 cpu:20 cores:8").returncode == 0 else self.answer(
                "-", text="tutti-topology 1\nnuma a cores=8\nnuma b cores=8\nlink a <-> b cpu 20\n")
        self.assertEqual((document["compute"], document["gpus"], document["numa_nodes"]), ("numa", 0, 2))
        self.check_bound(document, 20, 2)

    def test_subsets(self):
        whole = os.path.join(MODELS, "dgx-1v.topo")
        document = self.answer(whole, "--gpus", "0,1,4,5")
        self.assertEqual((document["gpus"], document["ranks"]), (8, 4))
        self.assertEqual(sorted(sum(document["binding"], [])), ["gpu0", "gpu1", "gpu4", "gpu5"])
        self.assertEqual(self.answer(whole, "--gpus", "5,4,0-1")["bound_gbps"], document["bound_gbps"])
        self.assertEqual(self.answer(whole, "--ranks", "3")["ranks"], 3)
        # NVLink alone joins all, so that PCI counts only when it is asked for.
        self.assertGreater(self.answer(whole, "--all-links")["bound_gbps"], self.answer(whole)["bound_gbps"])

    def test_one_rank(self):
        for collective in ("all_reduce", "all_gather"):
            document = self.answer("--synthetic", "gpu:4 mesh:100", "--gpus", "2", "--collective", collective)
            self.assertEqual(document["ranks"], 1)
            self.assertIsNone(document["bound_gbps"])
            self.assertIsNone(document["plan"]["ratio"])
            self.assertIsNone(document["ring"]["gbps"])
        words = run("--synthetic", "gpu:4 mesh:100", "--gpus", "2", "--explain", "--compare")
        self.assertEqual(words.returncode, 0)
        self.assertIn("One rank", words.stdout)
        self.assertIn("rank 0 lane 0", run("--synthetic", "gpu:1 switch:1 nvlink:1", "--schedule").stdout)

    def test_reports(self):
        text = run("-", "--explain", "--compare", text=SLOW_FOURTH).stdout
        self.assertIn("bound      20.0 GB/s  bound by the partition into 2 blocks: {gpu0..gpu2} {gpu3}", text)
        self.assertIn("40 / (2 (2 - 1)) = 20 GB/s", text)
        self.assertIn("gpu2 -> gpu3 20", text)
        self.assertRegex(text, r"packed_trees +\d+ +\d+ +20.0 +100.0%  gpu\d -> gpu\d   the plan")
        self.assertIn("left out: ring: no ring goes through all ranks", text)
        text = run("--synthetic", "gpu:4 line:50", "--collective", "all_gather", "--explain").stdout
        self.assertIn("4 x 50 / 3 = 66.67 GB/s", text)
        text = run("--synthetic", "switch:1 gpu:8 nvlink:450", "--explain").stdout
        self.assertIn("450 x 8 / 9 = 400", text)

    def test_links_that_are_no_limit_say_so(self):
        machine = "tutti-topology 1\n" + "".join(f"numa socket-number-{n} cores=8\npci p{n}\nlink socket-number-{n} <-> p{n} pci 5000\n" for n in (0, 1))
        text = run("-", "--explain", text=machine + "link socket-number-0 <-> socket-number-1 cpu 20\n").stdout
        self.assertIn("\n  socket-number-0 pci no limit to p0; cpu 20 to socket-number-1\n", text)
        self.assertNotIn("5000", text)
        self.assertIn("oneshot with 1 lane, 1 hop: 20 GB/s", text)
        bound = run("-", "--explain", text=machine + "link socket-number-0 <-> socket-number-1 cpu 5000\n").stdout
        self.assertIn("socket-number-0 -> socket-number-1 5000 (as good as no limit)", bound)

    def test_output_that_cannot_be_written(self):
        machine = ["--synthetic", "gpu:4 line:50"]
        for arguments in (machine, [*machine, "--json"], [*machine, "--svg", "-"], ["--bandwidths"], ["--help"]):
            with self.subTest(arguments=arguments), open("/dev/full", "w", encoding="utf-8") as full:
                result = subprocess.run([TOOL, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False)
                self.assertEqual(result.returncode, 1)
                self.assertEqual(result.stderr, "tutti-topo: standard output: No space left on device\n")

    def test_files_that_find_no_room(self):
        """As on a full disk: nothing is left that could be taken for the whole."""
        def small_files():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "file")
            for option in (["--svg"], ["--simulate", "-b", "1M", "-e", "1M", "--timeline"], ["--simulate", "-b", "1M", "-e", "1M", "--trace"]):
                result = subprocess.run([TOOL, "--synthetic", "gpu:4 mesh:100", *option, path], preexec_fn=small_files, capture_output=True,
                                        text=True, timeout=TIMEOUT_S, check=False)
                self.assertEqual((result.returncode, result.stderr), (1, f"tutti-topo: write {path}: File too large\n"))
                self.assertEqual(os.listdir(folder), [])

    def test_files_that_cannot_be_written_are_found_before_anything_is_simulated(self):
        with tempfile.TemporaryDirectory() as folder:
            made = os.path.join(folder, "drawing.svg")
            for option in ("--timeline", "--trace"):
                result = run("--synthetic", "gpu:4 mesh:100", "--svg", made, "--simulate", "-b", "1M", "-e", "1M", option, "/nonexistent/file")
                self.assertEqual((result.returncode, result.stderr), (1, "tutti-topo: write /nonexistent/file: No such file or directory\n"))
                self.assertEqual(os.listdir(folder), [])

    def test_several_hosts(self):
        pod = "host:4 switch:1 gpu:8 nvlink:450 nic:8x50"
        document = self.answer("--synthetic", pod)
        sizes = document["by_size"]
        self.assertEqual(sizes[0]["from_bytes"], 8)
        self.assertEqual(sorted(size["from_bytes"] for size in sizes), [size["from_bytes"] for size in sizes])
        self.assertIn("hierarchical", [size["algorithm"] for size in sizes])
        self.assertGreater(sizes[-1]["us"], sizes[0]["us"])
        text = run("--synthetic", pod, "--compare").stdout
        self.assertRegex(text, r"hierarchical \(ring\) +1 +8 ")
        self.assertIn("The cheapest by size", text)
        many = self.answer("--synthetic", "host:64 switch:1 gpu:8 nvlink:450 nic:8x50")
        self.assertEqual((many["ranks"], many["plan"]["algorithm"]), (512, "hierarchical"))
        self.assertGreaterEqual(many["plan"]["ratio"], 0.97)
        self.assertIsNone(many["ring"]["gbps"])

    def test_one_way_links(self):
        # What both directions have joins nothing here.
        ring = "tutti-topology 1\n" + "".join(f"gpu gpu{i}\n" for i in range(4))
        ring += "".join(f"link gpu{i} -> gpu{(i + 1) % 4} nvlink {4 if i % 2 == 0 else 2}\n" for i in range(4))
        for collective in ("all_reduce", "all_gather", "reduce_scatter"):
            document = self.answer("-", "--collective", collective, text=ring)
            self.assertGreater(document["plan"]["ratio"], 0.6)
            self.assertLessEqual(document["plan"]["ratio"], 1)
        self.assertIn("with any number of lanes 1.33 GB/s, the most that trees can", run("-", "--explain", text=ring).stdout)

    def test_other_bounds(self):
        others = self.answer("--synthetic", "switch:1 gpu:8 nvlink:450")["other_bounds"]
        self.assertAlmostEqual(others["nvls_gbps"], 450)
        self.assertAlmostEqual(others["nccl_nvls_gbps"], 400)
        pair = self.answer("--synthetic", "switch:1 gpu:2 nvlink:450")  # a switch that can do more allows no less
        self.assertGreaterEqual(pair["other_bounds"]["nvls_gbps"], pair["bound_gbps"])
        self.assertIn("would allow 450 GB/s; as NCCL uses it, 450 x 2 / 3 = 300.", run("--synthetic", "switch:1 gpu:2 nvlink:450", "--explain").stdout)
        self.assertIsNone(others["host_memory_gbps"])
        self.assertAlmostEqual(others["latency_us"], 0.6)
        self.assertAlmostEqual(others["latency_in_turn_us"], 3 * 0.6)
        memories = ("tutti-topology 1\nnuma numa0 cores=4 memory=100\nnuma numa1 cores=4 memory=80\n"
                    "link numa0 <-> numa1 cpu 300\n")
        document = self.answer("-", text=memories)
        self.assertAlmostEqual(document["other_bounds"]["host_memory_gbps"], 40)
        self.assertEqual((document["bound_gbps"], document["plan"]["gbps"], document["plan"]["ratio"]), (40, 40, 1))
        explained = run("-", "--explain", text=memories).stdout
        self.assertIn("allows 40 GB/s", explained)
        self.assertIn("bound by half of the slowest memory", explained)
        self.assertIn("= 300 GB/s. No other partition", explained)
        slow_link = self.answer("-", text=memories.replace("cpu 300", "cpu 30"))
        self.assertEqual(slow_link["bound_gbps"], 30)
        for collective, bound in (("all_reduce", 40), ("all_gather", 80 * 2 / 3), ("reduce_scatter", 80 * 2 / 3)):
            with self.subTest(collective=collective):
                document = self.simulated("-", "--collective", collective, "-b", "1G", "-e", "1G", text=memories)
                self.assertAlmostEqual(document["bound_gbps"], bound)
                self.assertAlmostEqual(document["plan"]["gbps"], bound)
                rates = [algorithm["algbw_gbps"] for algorithm in document["simulation"]["sizes"][0]["algorithms"].values()]
                self.assertLessEqual(max(rates), bound)
                self.assertGreater(max(rates), 0.9 * bound)
        gathered = run("-", "--explain", "--collective", "all_gather", text=memories).stdout
        self.assertIn("bound by 2/3 of the slowest memory", gathered)
        self.assertIn("= 600 GB/s. No other cut", gathered)

    def test_latencies_of_links_count_by_size(self):
        slow = "tutti-topology 1\ngpu a\ngpu b\nlink a <-> b nvlink 100 latency_ns=1000000\n"
        self.assertGreater(self.answer("-", text=slow)["by_size"][0]["us"], 1000)
        self.assertLess(self.answer("-", text=slow.replace(" latency_ns=1000000", ""))["by_size"][0]["us"], 100)

    def test_plans_that_wait_say_so(self):
        pod = ("--synthetic", "host:64 switch:1 gpu:8 nvlink:450 nic:8x50")
        self.assertTrue(self.answer(*pod)["plan"]["waits"])
        self.assertIn("of the bound, if its rounds did not wait for one another", run(*pod).stdout)
        self.assertIn("Its rounds wait for one another", run(*pod, "--explain").stdout)
        uneven = ("--synthetic", "host:4 gpu:5+1+5+1 nic:4x12.5 switch:1 nvlink:450 numa:1 cpu:10", "--collective", "all_gather")
        self.assertEqual((self.answer(*uneven)["plan"]["algorithm"], self.answer(*uneven)["plan"]["waits"]), ("packed_trees", False))
        self.assertIn("GB/s, if its rounds did not wait for one another.", run(*uneven, "--explain").stdout)
        self.assertIn("wait for one another: they come to less", run(*uneven, "--compare").stdout)

    def test_lanes_and_schedule(self):
        document = self.answer(os.path.join(MODELS, "dgx-1v.topo"), "--lanes", "3")
        self.assertLessEqual(document["plan"]["lanes"], 3)
        schedule = run("--synthetic", "gpu:4 line:50", "--schedule", "--units", "2").stdout
        self.assertTrue(schedule.startswith("schedule packed_trees all_reduce ranks 4 units 2 lanes 1 "), schedule[:80])
        default = run("--synthetic", "gpu:4 line:50", "--schedule").stdout
        self.assertGreater(len(default), 20 * len(schedule))

    def test_bandwidths_and_help(self):
        table = run("--bandwidths")
        self.assertEqual(table.returncode, 0)
        self.assertRegex(table.stdout, r"(?m)^NVLink, per link, sm 90 .* 20\.60  ")
        text = run("--help").stdout
        for word in ("--synthetic", "--gpus", "--all-links", "--explain", "--simulate", "--timeline", "tutti-topo dgx.xml", "Exit code"):
            self.assertIn(word, text)

    def test_standard_input_that_cannot_be_read(self):
        with tempfile.NamedTemporaryFile() as file, open(file.name, "wb") as write_only:
            result = subprocess.run([TOOL, "-"], stdin=write_only, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        self.assertEqual((result.returncode, result.stderr), (1, "tutti-topo: standard input: Bad file descriptor\n"))

    def test_sizes_have_units(self):
        machine = ("--synthetic", "gpu:2 mesh:100")
        for size in ("64K", "64k", "64KB", "64KiB", "65536", "65536b"):
            self.assertEqual(self.simulated(*machine, "-b", size, "-e", size)["simulation"]["sizes"][0]["bytes"], 65536, size)

    def test_bandwidths_as_json(self):
        rows = json.loads(run("--bandwidths", "--json").stdout)
        self.assertEqual(set(rows[0]), {"link", "gbps", "source"})
        self.assertEqual(len(rows), len(run("--bandwidths").stdout.splitlines()) - 1)
        self.assertTrue(all(row["gbps"] > 0 for row in rows))

    def test_slow_links_have_rates(self):
        text = run("--synthetic", "gpu:4 mesh:0.001", "--explain", "--compare").stdout
        self.assertIn("bound     0.002 GB/s", text)
        self.assertNotRegex(text, r" 0\.0+ GB/s|[ =] 0 GB/s")

    def test_byte_order_mark(self):
        mark = "\xef\xbb\xbf"
        matrix = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7\nGPU1\tNV4\t X \t0-7\n"
        xml = '<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" ' \
              'link_width="16"><gpu dev="0" sm="80" rank="0"/></pci></cpu></system>'
        for text in (SLOW_FOURTH, matrix, xml, "gpu:4 mesh:100"):
            with self.subTest(text=text[:20]):
                self.assertEqual(self.answer("-", text=mark + text)["ranks"], self.answer("-", text=text)["ranks"])

    def test_nvidia_smi_needs_no_bandwidths(self):
        matrix = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7\nGPU1\tNV4\t X \t0-7\n"
        document = self.answer("-", "--nvlink-gbps", "25", text=matrix)
        self.check_bound(document, 100, 2)

    def test_this_machine(self):
        result = run("--json")
        if result.returncode == 0:
            document = json.loads(result.stdout)
            self.assertEqual(set(document), KEYS)
            self.assertGreaterEqual(document["ranks"], 1)
        else:
            self.assertNotEqual(result.stderr, "")

    def test_mistakes(self):
        apart = "tutti-topology 1\ngpu gpu0\ngpu gpu1\ngpu gpu2\nlink gpu0 <-> gpu1 pci 12\n"
        for code, arguments, text, words in [
                (1, ["/nonexistent/machine.xml"], None, "/nonexistent/machine.xml"),
                (1, ["-"], "no machine at all", "no form of a topology"),
                (1, ["-"], "", ""),
                (1, ["-"], "<system version=\"1\"><cpu", "tutti-topo: standard input: XML: line 1"),
                (1, ["-"], apart, "gpu0 cannot reach gpu2"),
                (1, ["-"], "tutti-topology 1\npci p\n", "nothing on this machine computes"),
                (1, ["--synthetic", "gpu:x"], None, "gpu:x"),
                (2, ["--synthetic", "gpu:4 mesh:100", "--gpus", "0,4"], None, "gpu 4 is not there"),
                (2, ["--synthetic", "gpu:4 mesh:100", "--gpus", "1,1"], None, "chosen twice"),
                (2, ["--synthetic", "gpu:4 mesh:100", "--ranks", "9"], None, "the machine has 4 (0 to 3)"),
                (2, ["--synthetic", "gpu:4 mesh:100", "--ranks", "2000000000"], None, "1 to 65536"),
                (2, ["--nvlink-gbps", "-1"], None, '"-1" is no bandwidth'),
                (2, ["--nvlink-gbps", "nan"], None, '"nan" is no bandwidth'),
                (2, ["--nvlink-gbps", "1e300"], None, '"1e300" is no bandwidth'),
                (1, ["-", "--nvlink-gbps", "25"], SLOW_FOURTH, "--nvlink-gbps 25: only for the output of nvidia-smi topo -m"),
                (1, ["--synthetic", "gpu:300 line:50", "--simulate"], None,
                 "there is nothing to simulate: tree: some ranks reach each other through other ranks only; ring: some ranks"),
                (2, ["--bandwidths", "--explain"], None, "--bandwidths"),
                (1, ["-"], "\xff\xfet\0u\0", "UTF-16"),
                (2, ["--synthetic", "gpu:4 mesh:100", "--gpus", "1,x"], None, '"x" is no GPU'),
                (2, ["--synthetic", "gpu:4 mesh:100", "--gpus", "3-1"], None, '"3-1" is no GPU'),
                (2, ["--synthetic", "gpu:4 mesh:100", "--collective", "alltoall"], None, '"alltoall"'),
                (2, ["--synthetic", "gpu:4 mesh:100", "--collective", "broadcast"], None, '"broadcast"'),
                (2, ["--synthetic", "gpu:4 mesh:100", "x.xml"], None, "exclude each other"),
                (2, ["--json", "--explain"], None, "--json"),
                (2, ["--lanes", "0"], None, "--lanes"),
                (2, ["--simulate", "-b", "64", "-e", "8"], None, "-b 64 -e 8"),
                (2, ["--simulate", "-b", "0"], None, "-b 0"),
                *((2, ["--simulate", option, size], None, f'{option}: "{size}" is no size; write 8, 64K or 1G') for option in ("-b", "-e")
                  for size in ("", "-1", "1.5", "abc", "1X", "1kx", "1KKiB", "1ib", "8bb", "8bib", "K", "nan", "9" * 30)),
                (2, ["--simulate", "-e", "17T"], None, '"17T" is more than 16T'),
                (2, ["--simulate", "-f", ""], None, '"" is not a number from 1.1'),
                (2, ["--simulate", "--host-memory", ""], None, "--host-memory is empty; write a number from 2"),
                (2, ["--gpus", "0", "--gpus", "1"], None, "--gpus is given 2 times"),
                (2, ["--simulate", "-f", "1"], None, "-f"),
                (2, ["--simulate", "--schedule"], None, "--schedule"),
                (2, ["-b", "8"], None, "--simulate"),
                (2, ["--simulate", "--timeline", ""], None, "--timeline is empty"),
                (2, ["--simulate", "--host-memory", "1"], None, "--host-memory"),
                (2, ["--simulate", "--host-memory", "2", "x.xml"], None, "takes the place of a machine"),
                (2, ["--simulate", "--host-memory", "2", "--svg", "x.svg"], None, "takes the place of a machine"),
                (2, ["--simulate", "--host-memory", "2", "--compare"], None, "takes the place of a machine"),
                (2, ["--simulate", "--host-memory", "2", "--gpus", "0"], None, "takes the place of a machine"),
                (2, ["--simulate", "--host-memory", "2", "--lanes", "2"], None, "takes the place of a machine"),
                (2, ["--simulate", "--host-memory", "2", "--core-gbps", "nan"], None, '"nan" is no bandwidth'),
                (2, ["--simulate", "--host-memory", "2", "--core-gbps", "1e-300"], None, '"1e-300" is no bandwidth'),
                (2, ["--simulate", "--host-memory", "2", "--memory-gbps", "nan"], None, '"nan" is no bandwidth'),
                (2, ["--simulate", "-f", "nan"], None, "nan is not a number from 1.1"),
                (2, ["--simulate", "--svg", "-", "--timeline", "t.svg"], None, "--svg - prints the drawing alone"),
                (2, ["--simulate", "--svg", "a", "--timeline", "a"], None, "one file cannot hold two"),
                (2, ["--simulate", "--timeline", "a", "--trace", "a"], None, "one file cannot hold two"),
                (2, ["--simulate", "--timeline", "a", "--trace", "./a"], None, "one file cannot hold two"),
                (1, ["--synthetic", "gpu:4 mesh:100", "--ranks", "1", "--simulate", "--timeline", "x.svg"], None, "one rank"),
                (2, ["--bandwidths", "x.xml"], None, "--bandwidths"),
                (2, ["--bandwidths", "--gpus", "0"], None, "--bandwidths"),
                (2, ["--bandwidths", "--simulate"], None, "--bandwidths"),
                (2, ["--simulate", "--trace", "-"], None, "name a file"),
                (2, ["--synthetic", "gpu:4 mesh:100", "--units", "3"], None, "--units requires --schedule"),
                (2, ["--synthetic", "gpu:4 mesh:100", "--nvlink-gbps", "25"], None, "--nvlink-gbps requires FILE"),
                (2, ["--no-such-option"], None, "tutti-topo: The following argument was not expected: --no-such-option")]:
            with self.subTest(arguments=arguments):
                result = run(*arguments, text=text)
                self.assertEqual(result.returncode, code, result.stdout + result.stderr)
                self.assertLess(max(map(len, result.stderr.splitlines())), 400)
                self.assertEqual(result.stdout, "")
                self.assertIn(words, result.stderr)
                self.assertNotEqual(result.stderr, "")

    def test_version(self):
        self.assertRegex(run("--version").stdout, r"^Tutti \d+\.")

    def simulated(self, *arguments, text=None):
        result = run(*arguments, "--simulate", "--json", text=text)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr, "")
        return json.loads(result.stdout)

    def test_simulate(self):
        document = self.simulated("--synthetic", "switch:1 gpu:8 nvlink:450", "-b", "8", "-e", "64M", "-f", "8")
        self.assertEqual(set(document), KEYS | {"simulation"})
        sizes = document["simulation"]["sizes"]
        self.assertEqual([entry["bytes"] for entry in sizes], [8 ** k for k in range(1, 9)])
        for entry in sizes:
            times = {name: algorithm["us"] for name, algorithm in entry["algorithms"].items()}
            self.assertLessEqual({"ring", "tree", "twoshot", "oneshot", "packed_trees"}, set(times))
            self.assertEqual(times[entry["fastest"]], min(times.values()))
            for algorithm in entry["algorithms"].values():
                self.assertAlmostEqual(algorithm["algbw_gbps"], entry["bytes"] / algorithm["us"] / 1e3)
                self.assertAlmostEqual(algorithm["busbw_gbps"], algorithm["algbw_gbps"] * 14 / 8)
                self.assertLessEqual(algorithm["algbw_gbps"], document["bound_gbps"])
        # NCCL's own figure for a ring of small messages: 6.6 + 14 x 0.6 us.
        self.assertAlmostEqual(sizes[0]["algorithms"]["ring"]["us"], 15.0, delta=0.3)
        crossovers = document["simulation"]["crossovers"]
        self.assertEqual(crossovers[0]["bytes"], 8)
        for crossover in crossovers:
            entry = next(entry for entry in sizes if entry["bytes"] == crossover["bytes"])
            self.assertEqual(entry["fastest"], crossover["fastest"])

    def test_simulate_in_words(self):
        text = run("--synthetic", "gpu:4 line:50", "--simulate", "-b", "1M", "-e", "4M").stdout
        self.assertRegex(text, r"(?m)^ +1048576 +[0-9.]+")
        self.assertIn("packed_trees is the fastest at all these sizes.", text)
        held = run("--synthetic", "gpu:4 line:50", "--simulate", "-b", "64M", "-e", "64M", "--held").stdout
        self.assertIn("--held", held)
        host = run("--simulate", "--host-memory", "2", "-b", "8", "-e", "1M", "-f", "16")
        self.assertEqual(host.returncode, 0, host.stderr)
        self.assertRegex(host.stdout, r"oneshot is the fastest of small messages, halving_doubling from \d+ [KM]iB on, twoshot from \d+ [KM]iB on")
        self.assertEqual(self.simulated("--host-memory", "3", "-e", "64")["ranks"], 3)

    def test_timeline_and_trace(self):
        with tempfile.TemporaryDirectory() as folder:
            drawing, trace = os.path.join(folder, "call.svg"), os.path.join(folder, "call.json")
            document = self.simulated("--synthetic", "gpu:4 line:20", "-b", "1M", "-e", "1M", "--timeline", drawing, "--trace", trace)
            fastest = document["simulation"]["sizes"][0]["algorithms"]["packed_trees"]
            us, wire = fastest["us"], 2 if fastest["protocol"] == "lines" else 1
            root = xml.etree.ElementTree.parse(drawing).getroot()
            texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
            for word in ("gpu0", "gpu3", "gpu0 -> gpu1", "gpu3 -> gpu2"):
                self.assertIn(word, texts)
            with open(trace, encoding="utf-8") as file:
                events = json.load(file)["traceEvents"]
            steps = [event for event in events if event.get("cat") == "step"]
            self.assertEqual({event["pid"] for event in steps}, {0, 1, 2, 3})
            self.assertLessEqual(max(event["ts"] + event["dur"] for event in steps), us)
            self.assertGreater(max(event["ts"] + event["dur"] for event in steps), us - 10)
            sent = sum(event["args"]["bytes"] for event in events if event.get("cat") == "message")
            self.assertAlmostEqual(sent, wire * 6 * 2 ** 20, delta=1)  # three links, both ways
        result = run("--synthetic", "gpu:4 line:50", "--simulate", "-e", "8", "--trace", "/nonexistent/x.json")
        self.assertEqual(result.returncode, 1)
        self.assertIn("/nonexistent/x.json", result.stderr)

    def test_simulate_hierarchical_plans_by_what_goes_across(self):
        machine = ("--synthetic", "host:2 switch:1 gpu:2 nvlink:450 nic:2x50")
        size = self.simulated(*machine, "-b", "1M", "-e", "1M")["simulation"]["sizes"][0]
        hierarchical = [name for name in size["algorithms"] if name.startswith("hierarchical")]
        self.assertIn("hierarchical (ring)", hierarchical)
        self.assertGreater(len(hierarchical), 2)
        self.assertIn(size["fastest"], size["algorithms"])
        header, columns, times = run(*machine, "--simulate", "-b", "1M", "-e", "1M").stdout.split("\n\n")[2].splitlines()
        self.assertIn("hierarchical (twoshot)", header)
        self.assertEqual(columns.rindex("busbw") + 5, times.rindex("  ", 0, times.rindex(", ")))

    def test_simulate_a_thousand_ranks(self):
        document = self.simulated("--synthetic", "host:128 switch:1 gpu:8 nvlink:450 nic:8x50", "-e", "8")
        self.assertEqual((document["ranks"], document["plan"]["algorithm"]), (1024, "hierarchical"))
        self.assertAlmostEqual(document["bound_gbps"], 128 * 400 / (2 * 127))
        self.assertAlmostEqual(document["simulation"]["sizes"][0]["algorithms"]["tree"]["us"], 85, delta=8.5)

    def test_simulate_many_ranks_without_switches(self):
        document = self.simulated("--synthetic", "gpu:300 ring:50", "-e", "8")["simulation"]
        self.assertEqual(set(document["sizes"][0]["algorithms"]), {"ring"})
        self.assertIn("tree: some ranks reach each other through other ranks only", document["left_out"])
        self.assertEqual(len(set(document["left_out"])), len(document["left_out"]))

    def test_large_machines_end(self):
        document = self.answer("--synthetic", "host:8 switch:1 gpu:8 nvlink:450 nic:8x50")
        self.check_bound(document, 8 * 400 / 14, 64)
        self.assertTrue(math.isfinite(document["planning_ms"]))
        pod = self.answer("--synthetic", "host:300 gpu:8 switch:pod nvlink:450")
        self.assertEqual((pod["ranks"], pod["plan"]["algorithm"]), (2400, "hierarchical"))
        self.assertLessEqual(pod["plan"]["ratio"], 1)
        result = run("--synthetic", "host:600 gpu:8 switch:pod nvlink:450")
        self.assertEqual(result.returncode, 1)
        self.assertIn("at most", result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
