#!/usr/bin/env python3
"""Every output that a document shows is made again and compared.

    outputs_test.py ROOT BUILD [DOCUMENT...]

A block that starts with ```console checked holds commands ("$ ", continued after a backslash) and what they print, standard
error included. build/ in a command is the build folder. In the output, ~ stands for one machine-dependent word, and a line
with nothing but ... for any number of lines; blanks are compared as they are, but on lines with a ~.
"""
import os
import re
import subprocess
import sys
import time

DOCUMENTS = ["docs/tour.md", "docs/schedule.md", "docs/testing.md", "docs/topology.md", "docs/scale.md"]
FENCE = "```"
MARKER = "```console checked"
SECONDS_MAX = 60


def blocks(text):
    """(line number, opening fence, lines) of each fenced block."""
    opened = None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(FENCE) and opened is None:
            opened = (number, line.rstrip(), [])
        elif line.startswith(FENCE):
            yield opened
            opened = None
        elif opened is not None:
            opened[2].append(line.rstrip())
    if opened is not None:
        raise SystemExit(f"the block that starts at line {opened[0]} never ends")


def commands(lines):
    """(command, expected lines) of a block."""
    found = []
    continued = False
    for line in lines:
        if continued:
            found[-1][0] += "\n" + line
        elif line.startswith("$ "):
            found.append([line[2:], []])
        elif not found:
            raise SystemExit(f"a checked block starts with {line!r} and not with a command")
        else:
            found[-1][1].append(line)
            continue
        continued = line.endswith("\\")
    return found


def pattern(line):
    if "~" not in line:
        return re.escape(line)
    words = [re.escape(word).replace(re.escape("~"), r"[^\s\"]+") for word in line.split()]
    return r"\s*" + r"\s+".join(words)


def matches(expected, printed):
    """Whether the printed lines are what the expected ones stand for."""
    if not expected:
        return not printed
    if expected[0].strip() == "...":
        return any(matches(expected[1:], printed[i:]) for i in range(len(printed) + 1))
    return bool(printed) and re.fullmatch(pattern(expected[0]), printed[0]) is not None and matches(expected[1:], printed[1:])


def run(command, root, build):
    # The path may be anything; a quoted variable keeps it one word.
    command = re.sub(r"(?<![\w/])build/", '"$BUILD"/', command)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "TUTTI_"))}
    environment["BUILD"] = build
    done = subprocess.run(["bash", "-c", command], cwd=root, env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS_MAX, check=False)
    lines = [line.rstrip() for line in done.stdout.decode("utf-8", "replace").split("\n")]
    return lines[:-1] if lines and not lines[-1] else lines


def check(document, root, build):
    """(commands run, complaints)."""
    with open(os.path.join(root, document), encoding="utf-8") as file:
        text = file.read()
    count, wrong = 0, 0
    for number, fence, lines in blocks(text):
        if fence != MARKER:
            if any(line.startswith("$ ") for line in lines):
                print(f"{document}:{number}: a block with a command is not marked: {MARKER}")
                wrong += 1
            continue
        for command, expected in commands(lines):
            count += 1
            printed = run(command, root, build)
            if matches(expected, printed):
                continue
            wrong += 1
            print(f"{document}:{number}: $ {command}\n  the document shows:")
            print("\n".join("    " + line for line in expected))
            print("  but it prints:\n" + "\n".join("    " + line for line in printed))
    return count, wrong


def main():
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    root, build = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    failed = False
    for document in sys.argv[3:] or DOCUMENTS:
        start = time.monotonic()
        count, wrong = check(document, root, build)
        print(f"{document}: {count} commands, {wrong} complaints, {time.monotonic() - start:.1f} s")
        failed = failed or wrong > 0 or count == 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
