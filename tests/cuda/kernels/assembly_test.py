#!/usr/bin/env python3
"""What the compiler makes of the kernels, without a GPU: payload goes 16 bytes at a time, nothing is spilled, the module is small.

    assembly_test.py ROOT --nvcc NVCC --flags "FLAG, a line each" --arch N --images FILE...

PTX shows the width of accesses; ptxas reports registers, spills and stack. Where cuobjdump is, machine code is read as well.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

DTYPES = ("float32", "bfloat16", "float8e4m3")
KINDS = ("fold", "lines", "lanes")
MODULE_BYTES_MAX = 20 << 20
THREADS = 512
REGISTERS = 65536

# A tile is 4 chunks: loaded of the first source, of the second and of each one after it; a tile of a copy; single chunks of both. Lines:
# a batch of 8 peers' units.
WIDE_LOADS_MIN = {"fold": 16, "lanes": 16, "lines": 8}
WIDE_STORES_MIN = {"fold": 9, "lanes": 9, "lines": 3}

# The interpreter keeps its state in local memory, one thread's; the hot kernels may keep a word or two.
STACK_BYTES_MAX = {"fold": 16, "lines": 16, "lanes": 1024}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root")
    parser.add_argument("--nvcc", required=True)
    parser.add_argument("--flags", required=True)
    parser.add_argument("--arch", required=True)
    parser.add_argument("--images", nargs="+", required=True)
    return parser.parse_args()


def compile_kernels(arguments, dtype, folder):
    """Returns (PTX, ptxas's report, the cubin's path)."""
    source = os.path.join(arguments.root, "cuda/kernels.cu")
    common = [arguments.nvcc, *arguments.flags.splitlines(), f"-DTUTTI_DTYPE_NAME={dtype}", "-DTUTTI_WITH_MEASUREMENTS=0"]
    ptx = os.path.join(folder, "kernels.ptx")
    cubin = os.path.join(folder, "kernels.cubin")
    # As cuda/meson.build has them made: the one PTX, and machine code of that.
    subprocess.run([*common, "-arch=compute_80", "-ptx", source, "-o", ptx], check=True)
    made = subprocess.run([*common, f"-arch=sm_{arguments.arch}", "-Xptxas", "-v", "-cubin", ptx, "-o", cubin], check=True,
                          capture_output=True, text=True)
    with open(ptx, encoding="utf-8") as file:
        return file.read(), made.stderr, cubin


def functions(ptx):
    """Name and body of every entry and function."""
    for match in re.finditer(r"\.(?:entry|func)\s+(?:\([^)]*\)\s*)?(\w+)[^{;]*\n\{(.*?)\n\}", ptx, re.DOTALL):
        yield match.group(1), match.group(2)


def accesses(body, verb):
    """Bytes of each access to global memory, by count."""
    widths = {}
    for vector, bits in re.findall(r"\b" + verb + r"(?:\.\w+)*?\.global(?:\.\w+)*?(?:\.(v[24]))?\.[busf](\d+)\s", body):
        width = int(bits) // 8 * (int(vector[1]) if vector else 1)
        widths[width] = widths.get(width, 0) + 1
    return widths


def check_widths(dtype, ptx):
    by_name = dict(functions(ptx))
    share = next((name for name in by_name if "do_share" in name), None)
    bodies = {"fold": by_name.get(f"tutti_fold_{dtype}"), "lanes": by_name.get(share), "lines": by_name.get(f"tutti_lines_{dtype}")}
    for kind, body in bodies.items():
        if body is None:
            yield f"{kind} {dtype}: its code is not found in the PTX"
            continue
        loads, stores = accesses(body, "ld"), accesses(body, "st")
        print(f"{kind} {dtype}: loads {loads}, stores {stores} (bytes: count)")
        for what, found, wanted in (("loads", loads, WIDE_LOADS_MIN[kind]), ("stores", stores, WIDE_STORES_MIN[kind])):
            if found.get(16, 0) < wanted:
                yield f"{kind} {dtype}: {found.get(16, 0)} {what} of 16 bytes, at least {wanted} are expected"
    # What stores 8 bytes there is a chunk in two halves.
    if share and accesses(by_name[share], "st").get(8, 0) != 0:
        yield f"{share}: payload is stored 8 bytes at a time"


def check_spills(dtype, report):
    for kind in KINDS:
        name = f"tutti_{kind}_{dtype}"
        match = re.search(name + r"'? for.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers",
                          report, re.DOTALL)
        if not match:
            yield f"{name}: ptxas has no report of it:\n{report[:500]}"
            continue
        stack, spill_stores, spill_loads, registers = (int(number) for number in match.groups())
        print(f"{name}: {registers} registers, stack {stack}, spills {spill_stores} and {spill_loads} bytes")
        if spill_stores or spill_loads:
            yield f"{name}: spills {spill_stores} bytes of stores, {spill_loads} of loads"
        if stack > STACK_BYTES_MAX[kind]:
            yield f"{name}: a stack frame of {stack} bytes, at most {STACK_BYTES_MAX[kind]}: is an array of registers indexed at run time?"
        if registers * THREADS > REGISTERS:
            yield f"{name}: {registers} registers are too many for blocks of {THREADS} threads"
    for stores, loads in re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", report):
        if int(stores) or int(loads):
            yield f"{dtype}: a function spills {stores} bytes of stores, {loads} of loads"


def check_machine_code(dtype, cubin):
    cuobjdump = shutil.which("cuobjdump") or "/usr/local/cuda/bin/cuobjdump"
    if not os.path.exists(cuobjdump):
        print("no cuobjdump: machine code is not looked at")
        return
    text = subprocess.run([cuobjdump, "-sass", cubin], check=True, capture_output=True, text=True).stdout
    for verb in ("LDG", "STG"):
        if not re.search(verb + r"\S*\.128", text):
            yield f"{dtype}: no {verb} of 128 bits in the machine code"


def main():
    arguments = parse_arguments()
    problems = []
    for dtype in DTYPES:
        with tempfile.TemporaryDirectory() as folder:
            ptx, report, cubin = compile_kernels(arguments, dtype, folder)
            problems += check_widths(dtype, ptx)
            problems += check_spills(dtype, report)
            problems += check_machine_code(dtype, cubin)
    total = sum(os.path.getsize(image) for image in arguments.images)
    print(f"all images: {total / 2**20:.1f} MiB")
    if total > MODULE_BYTES_MAX:
        problems.append(f"the images have {total} bytes, at most {MODULE_BYTES_MAX}")
    for problem in problems:
        print("WRONG " + problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
