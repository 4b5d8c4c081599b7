#!/usr/bin/env python3
"""Does the style test see what it should see? Every rule is given a tree without a violation, and each of many seeded
violations by itself, which must be reported at its file and line, and nothing else."""
import os
import sys
import tempfile

import style_test

CLEAN = {
    "meson.build": "executable('x', 'src/trainer/main.cpp')\n",
    "README.md": "See [the tour](docs/tour.md#the-start-or-end) and [a site](https://example.org).\n```\n[not](a-link)\n```\n",
    "docs/tour.md": "# A tour\n## The *start*, or `end`\n# A tour\nBack to [the start](../README.md), or [here](#a-tour-1).\n"
                    "`src/base/config.h`, `src/base/`, `src/base/made.so.0`\n",
    "include/nccl.h": "/* The C API. */\n#ifndef NCCL_H_\n#define NCCL_H_\n#endif\n",
    "src/base/meson.build": "core_sources += files('config.cpp')\n",
    "src/base/config.h": "// Configuration.\n#pragma once\n",
    "src/base/config.cpp": '#include "base/config.h"\nconst char* value = std::getenv("X");\n',
    "src/base/dtype.h": "// Types.\n#pragma once\n",
    "src/base/result.h": "// Results.\n#pragma once\n",
    "src/schedule/step.h": "// Steps.\n#pragma once\n",
    "src/schedule/schedule.h": '// Programs.\n#pragma once\n#include "schedule/step.h"\n#include "base/result.h"\n',
    "src/protocol/lane.h": '// The interpreter.\n#pragma once\n#include "schedule/step.h"\n#include "base/dtype.h"\n',
    "src/transport/shared_memory.h": "// Shared memory.\n#pragma once\n",
    "src/transport/peer.h": "// Peers.\n#pragma once\n",
    "src/comm/comm.h": '// Communicators.\n#pragma once\n#include "transport/peer.h"\n#include "nccl.h"\n',
    "src/api/boundary.h": '// The edge.\n#pragma once\n#include "comm/comm.h"\n#include "transport/shared_memory.h"\n',
    "src/plot/svg.h": "// The writer.\n#pragma once\n",
    "src/trainer/main.cpp": '#include "plot/svg.h"\n#include "nccl.h"\n// getenv and goto in a comment\n'
                            'const char* text = "goto /* getenv";  // \' quote\nint many = 1\'000;\n',
    "bench/meson.build": "executable('b', 'perf.cpp', 'lane_bench.cpp')\n",
    "bench/options.h": "// Options.\n#pragma once\n",
    "bench/perf.cpp": '#include "options.h"\n#include "nccl.h"\n#include "base/result.h"\n',
    "bench/lane_bench.cpp": '#include "protocol/lane.h"\n',
    "tests/data/Some-Name.txt": "anything\n",
}

UNFINISHED = "TO" + "DO"
PLACE = "/wo" + "rk/"
WRITE = "write"      # replaces the file
APPEND = "append"    # adds lines at the end

# (what is done, file, text, file and line of the report or None for the last line, a part of the message)
SEEDS = [
    (APPEND, "src/base/config.h", '#include "schedule/step.h"\n', None, "src/base may not include src/schedule/step.h"),
    (APPEND, "src/schedule/step.h", '#include "transport/peer.h"\n', None, "src/schedule may not include"),
    (APPEND, "src/protocol/lane.h", '#include "schedule/schedule.h"\n', None, "src/protocol may not include"),
    (APPEND, "src/protocol/lane.h", '#include "base/result.h"\n', None, "src/protocol may not include"),
    (APPEND, "src/transport/peer.h", '#include "schedule/step.h"\n', None, "src/transport may not include"),
    (APPEND, "src/transport/peer.h", '#include "../schedule/step.h"\n', None, "src/transport may not include"),
    (APPEND, "src/api/boundary.h", '#include "transport/peer.h"\n', None, "src/api may not include"),
    (APPEND, "src/trainer/main.cpp", '#include "base/result.h"\n', None, "src/trainer may not include"),
    (APPEND, "bench/perf.cpp", '#  include "comm/comm.h"\n', None, "bench may not include"),
    (APPEND, "include/nccl.h", '#include "base/dtype.h"\n', None, "include may not include"),
    (APPEND, "src/base/config.h", '#include "no_such_file.h"\n', None, "no file of this repository"),
    (WRITE, "src/novelty/thing.h", "// A thing.\n#pragma once\n", ("src/novelty/thing.h", 1), "no row in the table"),
    (APPEND, "src/trainer/main.cpp", 'auto x = getenv("A");\n', None, "getenv"),
    (APPEND, "src/comm/comm.h", 'auto x = secure_getenv ("A");\n', None, "getenv"),
    (APPEND, "src/comm/comm.h", "\n" * 500, None, "504 lines"),
    (WRITE, "tests/data/long_test.py", "pass\n" * 501, None, "501 lines"),
    (APPEND, "src/comm/comm.h", f"// {UNFINISHED}: later\n", None, UNFINISHED),
    (APPEND, "docs/tour.md", f"{UNFINISHED}\n", None, UNFINISHED),
    (WRITE, "src/plot/svg.h", "#pragma once\n", None, "first line of a header"),
    (WRITE, "src/plot/svg.h", "// The writer.\nint x;\n", ("src/plot/svg.h", 1), "include guard"),
    (WRITE, "src/plot/svg.h", "// #pragma once\n", ("src/plot/svg.h", 1), "include guard"),
    (WRITE, "include/nccl.h", "/* x */\n#ifndef A\n#define B\n#endif\n", ("include/nccl.h", 1), "include guard"),
    (APPEND, "src/trainer/main.cpp", "goto end;\n", None, "goto"),
    (APPEND, "src/trainer/main.cpp", "/* two\nlines */ goto end;\n", None, "goto"),
    (WRITE, "src/plot/SvgAxis.h", "// Axes.\n#pragma once\n", ("src/plot/SvgAxis.h", 1), "snake_case"),
    (WRITE, "tests/data/two-words.py", "pass\n", None, "snake_case"),
    (WRITE, "src/plot/utils.h", "// Things.\n#pragma once\n", ("src/plot/utils.h", 1), "utils"),
    (WRITE, "src/plot/buffer_manager.h", "// Things.\n#pragma once\n", ("src/plot/buffer_manager.h", 1), "manager"),
    (APPEND, "README.md", f"cd {PLACE}main\n", None, PLACE),
    (APPEND, "src/comm/comm.h", f'const char* where = "{PLACE}x";\n', None, PLACE),
    (WRITE, "src/base/orphan.cpp", "int x;\n", None, "no meson.build lists"),
    (WRITE, "bench/orphan.cpp", "int x;\n", None, "no meson.build lists"),
    (APPEND, "docs/tour.md", "[gone](gone.md)\n", None, "gone.md leads nowhere"),
    (APPEND, "README.md", "[gone](docs/tour.md#gone)\n", None, "docs/tour.md has no such heading"),
    (APPEND, "docs/tour.md", "[gone](#a-tour-2)\n", None, "docs/tour.md has no such heading"),
    (APPEND, "README.md", "`bench/perf.cpp` and `src/base/gone.h`\n", None, "no src/base/gone.h"),
    (APPEND, "README.md", "`bench/gone/`\n", None, "no bench/gone/"),
    (APPEND, "README.md", '<img alt="x" src="docs/images/gone.svg">\n', None, "gone.svg leads nowhere"),
]


def write(root, path, text):
    full = os.path.join(root, path)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    with open(full, "w", encoding="utf-8") as file:
        file.write(text)


def try_seed(seed):
    """None, or what went wrong."""
    action, path, text, place, message = seed
    with tempfile.TemporaryDirectory() as root:
        for name, content in CLEAN.items():
            write(root, name, content)
        content = CLEAN.get(path, "") + text if action == APPEND else text
        write(root, path, content)
        expected = place or (path, len(content.splitlines()))
        found = style_test.violations(root)
    if len(found) != 1 or found[0][:2] != expected or message not in found[0][2]:
        return f"expected one report at {expected} with '{message}', found {found}"
    return None


def main():
    with tempfile.TemporaryDirectory() as root:
        for name, content in CLEAN.items():
            write(root, name, content)
        found = style_test.violations(root)
    problems = [f"the clean tree has violations: {found}"] if found else []
    problems += [f"seed {seed[:3]}: {problem}" for seed in SEEDS if (problem := try_seed(seed))]
    for problem in problems:
        print(problem)
    print(f"{len(SEEDS)} seeds for {len(style_test.RULES)} rules, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
