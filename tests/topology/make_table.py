#!/usr/bin/env python3
"""Writes the table of machines, docs/topologies.md, to standard output.

    make_table.py TOOL MODELS [FOLDER]

MODELS has the machines that ship with Tutti, FOLDER further ones, in any form that tutti-topo reads.
"""
import os
import sys

import machine_files

HEAD = """# Machines and their all-reduces

What `build/tutti-topo` says of each machine: the bound on the algorithm bandwidth of a large all-reduce, what binds it, the best rings that
there are (which NCCL's do not exceed) or, beyond 16 ranks, what is known of them, the plan, and the time to make it. Figures are GB/s; links are counted as `build/tutti-topo --bandwidths`
lists them, where a file has no figures of its own. [topology.md](topology.md) says how bounds and plans come about. This page is made by

```
tests/topology/make_table.py build/tutti-topo topology/models FOLDER > docs/topologies.md
```

with FOLDER a folder of machine files: NCCL's and RCCL's topology XML, hwloc's XML, the text of `nvidia-smi topo -m`.
"""

COLUMNS = """
| machine | ranks | bound | binding | best rings | plan | lanes | GB/s | of the bound | ms |
|---|---|---|---|---|---|---|---|---|---|
"""


def binding(answer):
    """The partition, by the sizes of its blocks."""
    sizes = sorted((len(block) for block in answer["binding"]), reverse=True)
    if not sizes:
        return "memory"
    if sizes[0] == 1:
        return "each rank by itself"
    parts = []
    for size in dict.fromkeys(sizes):
        count = sizes.count(size)
        parts.append(f"{count} x {size}" if count > 1 else str(size))
    return "blocks of " + " + ".join(parts)


def rings(answer):
    """The best there are, or the best found and what none exceed."""
    found = f"{answer['ring']['gbps']:.1f}"
    limit = f"{answer['ring']['limit_gbps']:.1f}"
    if found == limit:
        return found if answer["ring"]["gbps"] > 0 else "none"
    return f"at least {found}, at most {limit}"


def row(path, answer):
    name = os.path.basename(path)
    ranks = f"{answer['ranks']} {'GPU' if answer['compute'] == 'gpu' else 'NUMA'}"
    if answer["bound_gbps"] is None:
        return f"| {name} | {ranks} | unlimited | one rank | - | - | - | - | - | {answer['planning_ms']:.1f} |"
    plan = answer["plan"]
    return (f"| {name} | {ranks} | {answer['bound_gbps']:.1f} | {binding(answer)} | {rings(answer)} | {plan['algorithm']} | {plan['lanes']} | "
            f"{plan['gbps']:.1f} | {100 * plan['ratio']:.1f}% | {answer['planning_ms']:.1f} |")


def section(tool, title, folder, lines):
    """Adds the folder's table and returns (answers, refusals)."""
    lines.append(f"\n## {title}\n{COLUMNS}".rstrip("\n"))
    answers, refusals = [], []
    for path in machine_files.machines(folder):
        answer, message = machine_files.plan(tool, path)
        if answer is None:
            refusals.append((os.path.basename(path), message.split(path + ": ")[-1]))
            continue
        answers.append(answer)
        lines.append(row(path, answer))
    return answers, refusals


def main():
    if len(sys.argv) == 2 and sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return 0
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    tool = os.path.abspath(sys.argv[1])
    try:
        print(table_page(tool, sys.argv[2], sys.argv[3:]))
    except OSError as problem:  # no tool, or no folder
        print(f"make_table.py: {problem.filename}: {problem.strerror}", file=sys.stderr)
        return 1
    return 0


def table_page(tool, models, folders):
    lines = [HEAD.rstrip("\n")]
    answers, refusals = section(tool, "Models that ship with Tutti", models, lines)
    for folder in folders:
        more, refused = section(tool, "Files of other machines", folder, lines)
        answers += more
        refusals += refused
    planned = [answer for answer in answers if answer["bound_gbps"] is not None]
    if not planned:
        sys.exit(f"make_table.py: {' '.join([models, *folders])}: no machine with two ranks or more")
    below = [answer for answer in planned if answer["ring"]["limit_gbps"] < 0.99 * answer["bound_gbps"]]
    below_bound = "Rings reach it on all."
    if below:
        below_bound = (f"On {len(below)} of them rings stay below the bound, at worst at "
                       f"{100 * min(answer['ring']['limit_gbps'] / answer['bound_gbps'] for answer in below):.0f}% of it.")
    lines += ["\n## In all\n",
              f"{len(planned)} machines with two ranks or more: the plan reaches at least "
              f"{100 * min(answer['plan']['ratio'] for answer in planned):.1f}% of the bound on each, and takes at most "
              f"{max(answer['planning_ms'] for answer in planned):.0f} ms to make. {below_bound}"]
    if refusals:
        lines += ["\nRefused, with what `tutti-topo` says:\n", *(f"- {name}: {message}" for name, message in refusals)]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
