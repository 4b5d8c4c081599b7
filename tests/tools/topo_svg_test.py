#!/usr/bin/env python3
"""Draws machines with tutti-topo --svg and looks at the pictures as a reader of XML would.

    topo_svg_test.py TOOL MODELS SHARED

SHARED: a folder with descriptions of machines; where it is not there, only the models and machines made here are drawn.
"""
import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

SHARED = os.path.abspath(sys.argv.pop(3))
MODELS = os.path.abspath(sys.argv.pop(2))
TOOL = os.path.abspath(sys.argv.pop(1))
TIMEOUT_S = 60
RED = "#dc2626"
NAMESPACE = "{http://www.w3.org/2000/svg}"
ELISION = re.compile(r"(\d+) more alike|(\d+) not drawn")
HOSTS = re.compile(r"(\d+) hosts like this")

SYNTHETIC = ["gpu:1 switch:1 nvlink:1", "gpu:8 ring:50", "gpu:4 line:50", "gpu:16 mesh:25", "gpu:200 switch:1 nvlink:450",
             "gpu:64 ring:50", "host:16 switch:1 gpu:8 nvlink:450 nic:8x50", "host:2 gpu:4 mesh:25 nic:1x12.5"]


def run(*arguments, text=None):
    return subprocess.run([TOOL, *arguments], input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def width_of(text, size, bold):
    """Of Liberation Sans or anything near it, which has these widths in thousandths of its size."""
    width = 0
    for c in text:
        if c in "ijl'|":
            width += 222
        elif c in " ,.:;!It/fr()[]-\"":
            width += 333
        elif c in "mwMW@%":
            width += 860
        elif c.isupper() or c in "+=<>&~":
            width += 700
        elif ord(c) >= 0x1100:
            width += 1000
        else:
            width += 556
    return width * size / 1000 * (1.06 if bold else 1)


class Picture:
    """The elements with their places."""

    def __init__(self, svg):
        self.root = ElementTree.fromstring(svg)
        left, top, self.width, self.height = map(float, self.root.get("viewBox").split())
        assert (left, top) == (0, 0)
        self.texts = []   # (words, left, top, right, bottom)
        self.points = []  # of everything else
        self.colours = []
        self.sizes = []  # of texts
        for element in self.root.iter():
            kind = element.tag.removeprefix(NAMESPACE)
            number = lambda name, e=element: float(e.get(name, "0"))
            self.colours.append(element.get("stroke", ""))
            if kind == "text":
                size, words = number("font-size"), element.text
                self.sizes.append(element.get("font-size"))
                width = width_of(words, size, element.get("font-weight") is not None)
                left = number("x") - {"start": 0, "middle": width / 2, "end": width}[element.get("text-anchor")]
                self.texts.append((words, left, number("y") - 0.72 * size, left + width, number("y") + 0.2 * size))
            elif kind == "rect":
                self.points += [(number("x"), number("y")), (number("x") + number("width"), number("y") + number("height"))]
            elif kind == "line":
                self.points += [(number("x1"), number("y1")), (number("x2"), number("y2"))]
            elif kind == "circle":
                r = number("r")
                self.points += [(number("cx") - r, number("cy") - r), (number("cx") + r, number("cy") + r)]
            elif kind == "path":
                # A horizontal line, one cubic whose controls stay at most a third outside the curve, a horizontal line.
                x0, y0, x1, control, _, _, y1, x2, _, x3 = map(
                    float, re.fullmatch(r"M(\S+) (\S+) H(\S+) C(\S+) (\S+) (\S+) (\S+) (\S+) (\S+) H(\S+)", element.get("d")).groups())
                bulge = x1 + 0.75 * (control - x1)
                self.points += [(x0, y0), (x1, y0), (bulge, y1), (x2, y1), (x3, y1)]
        self.words = [text[0] for text in self.texts]

    def outside(self):
        found = [text for text in self.texts if text[1] < 0 or text[2] < 0 or text[3] > self.width or text[4] > self.height]
        return found + [point for point in self.points
                        if not (-0.01 <= point[0] <= self.width + 0.01 and -0.01 <= point[1] <= self.height + 0.01)]

    def overlaps(self):
        found = []
        for i, a in enumerate(self.texts):
            for b in self.texts[i + 1:]:
                if a[1] < b[3] - 0.5 and b[1] < a[3] - 0.5 and a[2] < b[4] - 0.5 and b[2] < a[4] - 0.5:
                    found.append((a[0], b[0]))
        return found

    def elided(self):
        return sum(int(a or b) for a, b in ELISION.findall("\n".join(self.words)))


class SvgTest(unittest.TestCase):
    def check(self, *arguments, text=None, may_be_refused=False):
        """The picture, or None where the tool refuses the machine."""
        with tempfile.TemporaryDirectory() as folder:
            where = os.path.join(folder, "machine.svg")
            result = run(*arguments, "--json", "--svg", where, text=text)
            if may_be_refused and result.returncode == 1:
                return None
            self.assertEqual(result.returncode, 0, result.stderr)
            with open(where, encoding="utf-8") as file:
                picture = Picture(file.read())
        answer = json.loads(result.stdout)
        self.assertEqual(picture.outside(), [])
        self.assertEqual(picture.overlaps(), [])
        if answer["ranks"] > 1:
            self.assertTrue(RED in picture.colours, "nothing is shown to bind")
            self.assertIn("faster", " ".join(picture.words))
            self.assertTrue(any(re.match(r"[\d.e-]+ GB/s", word) for word in picture.words))
            self.assertTrue(any(word.startswith("Plan: " + answer["plan"]["algorithm"]) for word in picture.words))
            self.assertTrue(any(word.startswith("lane") for word in picture.words))
            numbers = any(re.fullmatch(r"\d+", word) and size in ("7.5", "9.5") for word, size in zip(picture.words, picture.sizes))
            self.assertEqual("Numbers are ranks" in " ".join(picture.words), numbers)
        self.check_all_there(picture, answer)
        return picture

    def check_all_there(self, picture, answer):
        """Every rank has its box, or is one of those that something says it stands for."""
        hidden = picture.elided() or any(HOSTS.search(word) or "are not drawn" in word for word in picture.words)
        if hidden or answer["collective"] != "all_reduce":
            return
        for block in answer["binding"]:
            for name in block:
                self.assertIn(name, picture.words)

    def test_pairs_of_trees(self):
        links = [(0, 1), (1, 2), (2, 0), (0, 3), (3, 4), (4, 0)]  # no ring goes through all
        text = "tutti-topology 1\n" + "".join(f"gpu g{i}\n" for i in range(5))
        text += "".join(f"link g{a} -> g{b} nvlink 50\nlink g{b} -> g{a} nvlink 1\n" for a, b in links)
        words = " ".join(self.check("-", text=text).words)
        self.assertIn("Plan: packed_pairs", words)
        self.assertIn("of two the left one", words)

    def test_directions_that_differ(self):
        text = "tutti-topology 1\ngpu a\ngpu b\ngpu c\nswitch s\nswitch t\n"
        text += "".join(f"link {gpu} -> {bar} nvlink {100 if gpu == 'a' else 80}\nlink {bar} -> {gpu} nvlink 60\n" for gpu in "abc" for bar in "st")
        words = self.check("-", text=text).words
        self.assertIn("NVLink 2 links: \u2192 200, \u2190 120 GB/s", words)
        self.assertIn("NVLink 2 links: \u2192 160, \u2190 120 GB/s", words)
        one = self.check("-", text="tutti-topology 1\ngpu a\ngpu b\nlink a -> b nvlink 40\nlink b -> a nvlink 30\n").words
        self.assertTrue(any("\u2193 40, \u2191 30" in word for word in one), one)

    def test_models(self):
        for path in sorted(glob.glob(os.path.join(MODELS, "*.topo"))):
            with self.subTest(machine=os.path.basename(path)):
                self.check(path)

    def test_synthetic(self):
        for machine in SYNTHETIC:
            with self.subTest(machine=machine):
                self.check("--synthetic", machine)

    def test_this_machine(self):
        self.check(may_be_refused=True)

    def test_shared_files(self):
        if not os.path.isdir(SHARED):
            self.skipTest(f"{SHARED} is not there")
        drawn = 0
        for path in sorted(glob.glob(os.path.join(SHARED, "*.xml")) + glob.glob(os.path.join(SHARED, "*.txt"))):
            with self.subTest(machine=os.path.basename(path)):
                drawn += self.check(path, may_be_refused=True) is not None  # other tests say which may be
        self.assertGreater(drawn, 100)

    def test_links_are_labelled(self):
        words = self.check(os.path.join(MODELS, "dgx-1v.topo")).words
        for name, count in {"2x25": 8, "25": 8, "x16, 12 GB/s": 16, "6 GB/s": 1, "12.5 GB/s": 4}.items():
            self.assertEqual(words.count(name), count, name)
        words = self.check(os.path.join(MODELS, "hgx-h100.topo")).words
        self.assertEqual(words.count("NVLink 18x25 GB/s"), 8)
        self.assertIn("8 direct NVLinks: 2x25 GB/s each", self.check(os.path.join(MODELS, "dgx-1v.topo")).words)

    def test_what_binds_is_red(self):
        # Between the sockets alone, not between GPUs and their sockets.
        picture = self.check(os.path.join(MODELS, "power9-ac922.topo"))
        self.assertEqual(picture.colours.count(RED), 2)  # the arc and the legend's line
        for arguments in (["--collective", "all_gather"], ["--collective", "reduce_scatter"]):
            words = self.check("-", *arguments, text="tutti-topology 1\ngpu a\ngpu b\ngpu c\nlink a <-> b nvlink 9\n"
                               "link b <-> c nvlink 4\n").words
            self.assertIn("inside the cut: a b", words)
            self.assertIn("outside: c", words)

    def test_alike_is_drawn_once_and_counted(self):
        picture = self.check("--synthetic", "gpu:200 switch:1 nvlink:450")
        drawn = sum(1 for word in picture.words if re.fullmatch(r"gpu\d+", word))
        self.assertLess(drawn, 40)
        self.assertEqual(drawn + picture.elided(), 200)
        words = " ".join(self.check("--synthetic", "host:16 switch:1 gpu:8 nvlink:450 nic:8x50").words)
        self.assertIn("16 hosts like this", words)
        self.assertIn("network 8 x 50 GB/s", words)
        # Hosts with seven and eight GPUs are two kinds.
        text = "tutti-topology 1\nhost a\nhost b\nhost c\nnetwork net\n"
        for host, gpus in enumerate((2, 3, 2)):
            for gpu in range(gpus):
                text += f"gpu h{host}g{gpu} host={host}\nlink h{host}g{gpu} <-> net network 5\n"
        words = self.check("-", text=text).words
        self.assertIn("2 hosts like this: also c", words)
        self.assertIn("h1g2", words)

    def test_links_among_many_alike_are_counted(self):
        lines = ["tutti-topology 1"] + [f"numa n{i} cores=4" for i in range(24)]
        lines += [f"link n{a} <-> n{b} cpu 6" for a in range(24) for b in range(a)]
        words = self.check("-", text="\n".join(lines) + "\n").words
        self.assertTrue(any("more alike" in word for word in words), words)
        self.assertIn("276 pairs", words)
        self.assertIn("20 more alike", words)

    def test_short_figures_are_not_cut(self):
        text = ('tutti-topology 1\nnuma n cores=48\npackage package0 in=n model="AuthenticAMD 23/1" cores=24\n'
                'package package1 in=n model="AuthenticAMD 23/1" cores=24\n'
                "cache c in=package0 bytes=8388608\ncache d in=package0 bytes=8388608\ncache e in=package1 bytes=8388608\nnic a in=n\nnetwork net\nlink a <-> n pci 24\nlink a <-> net network 25000\n")
        words = self.check("-", text=text).words
        self.assertIn("25000 GB/s", words)
        self.assertTrue(any(word.endswith("24 cores") for word in words), words)

    def test_what_is_no_limit_has_no_figure(self):
        matrix = "\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\t X \n"
        words = self.check("-", text=matrix).words
        self.assertIn("no limit", words)
        self.assertFalse([word for word in words if "5000" in word])

    def test_memory_that_binds(self):
        """The arithmetic is that of the links, and memory beside it."""
        memories = "tutti-topology 1\nnuma n0 memory=100\nnuma n1 memory=80\nlink n0 <-> n1 cpu 300\n"
        for collective, words in (("all_gather", ("than 2 x 300 / 1 = 600 GB/s. But memory allows 53.3 GB/s only, 2/3 of the slowest.")),
                                  ("all_reduce", "faster than 600 / 2 = 300 GB/s. But memory allows 40 GB/s only, half of the slowest.")):
            self.assertIn(words, " ".join(self.check("-", "--collective", collective, text=memories).words))

    def test_more_ranks_than_are_planned(self):
        for collective in ("all_reduce", "all_gather"):
            with tempfile.TemporaryDirectory() as folder:
                where = os.path.join(folder, "a.svg")
                result = run("--synthetic", "gpu:300 ring:50", "--collective", collective, "--simulate", "-e", "8", "--explain", "--svg", where)
                self.assertEqual(result.returncode, 0, result.stderr)
                with open(where, encoding="utf-8") as file:
                    drawn = " ".join(Picture(file.read()).words)
            for text in (drawn, result.stdout):
                self.assertIn("More than 256 ranks: neither bound nor plan is worked out.", text)
                for words in ("blocks", "is faster than", "The bound", "Plan: "):
                    self.assertNotIn(words, text)

    def test_all_different_and_too_many(self):
        lines = ["tutti-topology 1", "switch s"]
        for gpu in range(120):
            lines += [f"gpu g{gpu}", f"link g{gpu} <-> s nvlink {100 + gpu}"]
        picture = self.check("-", text="\n".join(lines) + "\n")
        self.assertTrue(any("not drawn" in word for word in picture.words))
        drawn = sum(1 for word in picture.words if re.fullmatch(r"g\d+", word))
        self.assertEqual(drawn + picture.elided(), 120)

    def test_subset(self):
        words = self.check(os.path.join(MODELS, "dgx-1v.topo"), "--gpus", "0,1,4,5").words
        self.assertEqual(words.count("not chosen"), 4)
        self.assertIn("rank 3", words)

    def test_names_are_escaped(self):
        name = 'a<b> & "c" \x01 \xff\xfe ü 日本'
        text = ('tutti-topology 1\nhost "a<b> & \\"c\\" \\x01 \\xff\\xfe ü 日本"\nnuma n model="<!--]]>"\ngpu g0 in=n\ngpu g1 in=n\n'
                "link g0 <-> g1 nvlink 5\nlink g0 <-> n pci 3\nlink g1 <-> n pci 3\n")
        words = self.check("-", text=text).words
        self.assertTrue(any(word.startswith('a<b> & "c"') and word.endswith("ü 日本") for word in words), words)
        self.assertIn("<!--]]>", words)
        self.assertNotIn(name, words)  # what XML cannot hold is replaced

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            where = os.path.join(folder, "a.svg")
            machine = ["--synthetic", "gpu:4 mesh:100"]
            result = run(*machine, "--svg", where)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("bound", result.stdout)  # what it prints otherwise
            with open(where, encoding="utf-8") as file:
                first = file.read()
            self.assertEqual(first, run(*machine, "--svg", "-").stdout)
            result = run(*machine, "--svg", where, "--json")
            self.assertEqual(json.loads(result.stdout)["ranks"], 4)
            result = run(*machine, "--svg", os.path.join(folder, "no", "a.svg"))
            self.assertEqual(result.returncode, 1)
            self.assertIn("a.svg", result.stderr)
            self.assertEqual(result.stdout, "")
        self.assertEqual(run(*machine, "--svg", "-", "--json").returncode, 2)
        self.assertEqual(run(*machine, "--svg", "").returncode, 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
