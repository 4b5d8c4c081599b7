#!/usr/bin/env python3
"""The rules of the repository that a compiler does not hold: layers, names, sizes, links. No dependencies.

    style_test.py ROOT    checks the tree at ROOT; each violation is one line "file:line: what is wrong and what to do"

Add a rule: a function that takes a Tree and yields (path, line, message), an entry in RULES, a seed in self_test.py.
"""
import itertools
import os
import re
import sys

# Which folder may include which: docs/architecture.md, "Layers". An entry is a folder (with all below it) or one file; a file belongs to the
# first row that it is in.
# "include" is include/. A folder may always include itself.
LAYERS = {
    "include": [],
    "src/pch": [],
    "src/base": [],
    "src/schedule": ["src/base"],
    "src/algorithm": ["src/schedule", "src/base"],
    "src/protocol": ["src/schedule/step.h", "src/schedule/tiling.h", "src/base/dtype.h", "src/base/reduce.h", "src/base/device_call.h"],
    "src/transport": ["src/base"],
    "src/executor": ["src/schedule", "src/protocol", "src/base"],
    "topology": ["src/base"],
    "cuda": ["src/base", "src/schedule", "src/protocol"],
    "src/planner": ["topology", "src/algorithm", "src/schedule", "src/base"],
    "src/sim": ["src/planner", "src/protocol", "src/algorithm", "src/schedule", "src/base"],
    "src/plot": ["src/base"],
    "src/drawing": ["src/planner", "src/plot", "topology", "src/schedule", "src/base"],
    "src/tools": ["src/sim", "src/drawing", "src/planner", "src/plot", "topology", "src/algorithm", "src/schedule", "src/base"],
    "src/comm": ["include", "src/base", "src/schedule", "src/algorithm", "src/protocol", "src/transport",
                 "src/executor", "topology", "cuda", "src/planner"],
    "src/api": ["include", "src/comm", "src/base", "src/executor/stream.h", "src/transport/shared_memory.h"],
    "src/trainer/cuda": ["src/trainer", "include", "cuda/driver.h", "src/base/result.h", "src/base/device_call.h"],
    "src/trainer": ["include", "src/plot", "src/base/standard_output.h", "src/base/command_line.h", "src/base/rank_threads.h",
                    "src/transport/memory_available.h"],
    "bench": ["include", "src/base", "src/plot", "src/transport/memory_available.h"],
}
# Micro-benchmarks time one layer each, and may include it.
MICRO_BENCHMARK = re.compile(r"^bench/\w+_bench\.cpp$")

GETENV_SITE = "src/base/config.cpp"
LINES_MAX = 500
VAGUE_WORDS = {"util", "utils", "common", "misc", "helper", "helpers", "manager"}
CODE_FOLDERS = ("include", "src", "cuda", "topology", "bench", "tests")
CODE_SUFFIXES = (".h", ".cpp", ".c", ".cu", ".cuh", ".py")
FOLDERS = CODE_FOLDERS + ("docs", ".ci")
TEXT_SUFFIXES = CODE_SUFFIXES + (".md", ".build", ".txt", ".svg", ".in", ".json", "")


class Tree:
    """The files of the repository: its known folders and the files at the top. Works without git."""

    def __init__(self, root):
        self.root = root
        self.paths = [name for name in sorted(os.listdir(root)) if os.path.isfile(os.path.join(root, name))]
        for folder in FOLDERS:
            for where, folders, files in os.walk(os.path.join(root, folder)):
                folders[:] = sorted(name for name in folders if name != "__pycache__")
                self.paths += [os.path.relpath(os.path.join(where, name), root) for name in sorted(files)]
        self.texts = {}

    def text(self, path):
        if path not in self.texts:
            with open(os.path.join(self.root, path), encoding="utf-8", errors="replace") as file:
                self.texts[path] = file.read()
        return self.texts[path]

    def lines(self, path):
        return enumerate(self.text(path).splitlines(), 1)

    def code_lines(self, path):
        """C++ without comments and without the insides of strings; line numbers stay."""
        return enumerate(strip_comments_and_strings(self.text(path)).splitlines(), 1)

    def code(self, *folders, suffixes=CODE_SUFFIXES):
        folders = folders or CODE_FOLDERS
        return [path for path in self.paths if path.startswith(tuple(name + "/" for name in folders))
                and path.endswith(suffixes)]

    def exists(self, path):
        return os.path.exists(os.path.join(self.root, path))


TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)


def strip_comments_and_strings(text):
    def blank(match):
        token = match.group()
        kept = '""' if token[0] == '"' else "' '" if token[0] == "'" else " "
        return kept + "\n" * token.count("\n")
    # A quote between digits separates them.
    return TOKEN.sub(blank, re.sub(r"(?<=[0-9a-fA-F])'(?=[0-9a-fA-F])", "", text))


INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')


def included_path(tree, path, name):
    """The repository's file that `#include "name"` in `path` means; None if it is not one of ours."""
    beside = os.path.normpath(os.path.join(os.path.dirname(path), name))
    for candidate in (beside, "src/" + name, "include/" + name, name):
        if tree.exists(candidate):
            return candidate
    return None


def within(path, entry):
    return path == entry or path.startswith(entry + "/")


def check_layers(tree):
    for path in tree.code("include", "src", "cuda", "topology", "bench", suffixes=(".h", ".cpp", ".c", ".cu", ".cuh")):
        layer = next((name for name in LAYERS if within(path, name)), None)
        if layer is None:
            yield path, 1, "this folder has no row in the table of layers (LAYERS in tests/style/style_test.py)"
            continue
        if MICRO_BENCHMARK.match(path):
            continue
        for number, line in tree.lines(path):
            match = INCLUDE.match(line)
            if not match:
                continue
            target = included_path(tree, path, match.group(1))
            if target is None:
                yield path, number, f'"{match.group(1)}" is no file of this repository; write <...> for others\' headers'
            elif not any(within(target, entry) for entry in [layer] + LAYERS[layer]):
                allowed = ", ".join([layer] + LAYERS[layer])
                yield path, number, f"{layer} may not include {target}; it may include {allowed}"


def check_getenv(tree):
    for path in tree.code("include", "src", "cuda", "topology", "bench"):
        if path == GETENV_SITE:
            continue
        for number, line in tree.code_lines(path):
            if re.search(r"\b(secure_)?getenv\b", line):
                yield path, number, f"getenv; only {GETENV_SITE} reads the environment: add a field to Config"


def check_sizes(tree):
    for path in tree.code():
        count = len(tree.text(path).splitlines())
        if count > LINES_MAX:
            yield path, count, f"{count} lines, at most {LINES_MAX}; look for the second idea in the file"


UNFINISHED = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK"]) + r")\b")


def check_unfinished(tree):
    for path in tree.paths:
        if not path.endswith(TEXT_SUFFIXES) or path == "LICENSE":
            continue
        for number, line in tree.lines(path):
            match = UNFINISHED.search(line)
            if match:
                yield path, number, f"{match.group()}: finish it, or open an issue"


def check_headers(tree):
    for path in tree.code(suffixes=(".h", ".cuh")):
        text = tree.text(path)
        if not text.startswith(("//", "/*")):
            yield path, 1, "the first line of a header says, in a comment, what the file is"
        directives = re.findall(r"^\s*#\s*(\w+)\s*(\S*)", strip_comments_and_strings(text), re.MULTILINE)
        guarded = (len(directives) >= 2 and directives[0][0] == "ifndef" and directives[1][0] == "define"
                   and directives[0][1] == directives[1][1])
        if ("pragma", "once") not in directives and not guarded:
            yield path, 1, "no #pragma once and no include guard"


def check_goto(tree):
    for path in tree.code(suffixes=(".h", ".cpp", ".c", ".cu", ".cuh")):
        for number, line in tree.code_lines(path):
            if re.search(r"\bgoto\b", line):
                yield path, number, "goto; let destructors clean up"


def check_names(tree):
    for path in tree.code():
        stem = os.path.basename(path).split(".")[0]
        if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", stem):
            yield path, 1, "file names are snake_case"
        vague = VAGUE_WORDS.intersection(stem.split("_"))
        if vague:
            yield path, 1, f"'{vague.pop()}' in a file's name says nothing; name its one idea"


# Places of one machine. In pieces, so that this file obeys its own rule.
MACHINE_PATH = re.compile(r"(?<![\w.}*/-])/(" + "|".join(["wo" + "rk", "ro" + "ot", "fa" + "rm", "ho" + "me"]) + ")/")


def check_machine_paths(tree):
    for path in tree.paths:
        if not path.endswith(TEXT_SUFFIXES):
            continue
        for number, line in tree.lines(path):
            match = MACHINE_PATH.search(line)
            if match:
                yield path, number, f"{match.group()} is a place on one machine; write a relative path or take an argument"


def check_built(tree):
    builds = {os.path.dirname(path): tree.text(path) for path in tree.paths if os.path.basename(path) == "meson.build"}
    for path in tree.code("src", "bench", "cuda", "topology", suffixes=(".cpp",)):
        folder = os.path.dirname(path)
        while True:
            if folder in builds and f"'{os.path.relpath(path, folder or '.')}'" in builds[folder]:
                break
            if not folder:
                yield path, 1, "no meson.build lists this file"
                break
            folder = os.path.dirname(folder)


def prose(tree, path):
    """The lines of a Markdown file outside of fences."""
    fenced = False
    for number, line in tree.lines(path):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def anchors(tree, path):
    """What links may name in a Markdown file: its headings, as GitHub spells them. Of those that are alike the second has -1, and so on."""
    found = set()
    for _, line in prose(tree, path):
        if heading := re.match(r"#+ (.*)", line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.group(1).strip().lower())
            first = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            names = itertools.chain([first], (f"{first}-{n}" for n in itertools.count(1)))
            found.add(next(name for name in names if name not in found))
    return found


LINK = re.compile(r'\[[^\]]*\]\(([^)\s]+)[^)]*\)|<img[^>]*\bsrc="([^"]+)"')


def check_links(tree):
    for path in tree.paths:
        if not path.endswith(".md"):
            continue
        for number, line in prose(tree, path):
            for match in LINK.finditer(re.sub(r"`[^`]*`", "", line)):
                link = match.group(1) or match.group(2)
                if re.match(r"[a-z]+:", link):
                    continue
                file, _, anchor = link.partition("#")
                target = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
                if not tree.exists(target):
                    yield path, number, f"the link {link} leads nowhere"
                elif anchor and target.endswith(".md") and anchor not in anchors(tree, target):
                    yield path, number, f"the link {link} leads nowhere: {target} has no such heading"


# A source or a folder: other names may be a build's.
NAMED_PATH = re.compile(r"(?<![\w/.$<-])(?:%s)/[\w./-]*(?:/|%s)(?![\w.])" % (
    "|".join(map(re.escape, FOLDERS)), "|".join(map(re.escape, (*CODE_SUFFIXES, ".md", ".build")))))


def check_named_paths(tree):
    """What stands in backquotes."""
    for path in tree.paths:
        if not path.endswith(".md"):
            continue
        for number, line in prose(tree, path):
            for code in re.findall(r"`([^`]+)`", line):
                for name in NAMED_PATH.findall(code):
                    if not any(known.startswith(name) for known in tree.paths):
                        yield path, number, f"there is no {name}"


RULES = [check_layers, check_getenv, check_sizes, check_unfinished, check_headers, check_goto, check_names,
         check_machine_paths, check_built, check_links, check_named_paths]


def violations(root):
    tree = Tree(root)
    return [(path, line, message) for rule in RULES for path, line, message in rule(tree)]


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    root = sys.argv[1]
    if not tree_is_complete(root):
        print(f"{root} is not the repository: it has no src/ or no meson.build", file=sys.stderr)
        return 2
    found = violations(root)
    for path, line, message in found:
        print(f"{path}:{line}: {message}")
    print(f"{len(found)} violations of {len(RULES)} rules in {len(Tree(root).paths)} files")
    return 1 if found else 0


def tree_is_complete(root):
    return os.path.isdir(os.path.join(root, "src")) and os.path.isfile(os.path.join(root, "meson.build"))


if __name__ == "__main__":
    sys.exit(main())
