#!/usr/bin/env python3
"""Compiles the readers once with libFuzzer's instrumentation and links each fuzz_*.cpp with them.

    build.py CXX OUT_FOLDER SOURCE_ROOT SOURCES...

Leaves OUT_FOLDER/fuzz_NAME and an empty OUT_FOLDER/found_NAME, where the fuzzer puts what it finds.
"""
import concurrent.futures
import os
import pathlib
import subprocess
import sys

FLAGS = ["-std=c++20", "-O1", "-g1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=undefined", "-D_GNU_SOURCE"]
# Without those of UBSan's checks of which AddressSanitizer finds what follows: they take as long to compile as all the rest.
SANITIZERS = ["-fsanitize=fuzzer-no-link,address,undefined",
              "-fno-sanitize=null,alignment,object-size,vptr,pointer-overflow,nonnull-attribute,returns-nonnull-attribute"]
LIBRARIES = ["-lpugixml", "-lhwloc", "-lfmt"]


def flags_for(root):
    # Clang before version 16 lacks what libstdc++'s <source_location> is made of.
    return [*FLAGS, *SANITIZERS, f"-I{root}/src", f"-I{root}", "-include", f"{root}/.ci/source_location_for_tidy.h"]


def precompile(compiler, root, folder):
    target = folder / "standard.pch"
    subprocess.run([compiler, *flags_for(root), "-x", "c++-header", f"{root}/src/pch/standard.h", "-o", target], check=True)
    return target


def compile_one(compiler, root, folder, source, standard):
    target = folder / (source.stem + ".o")
    subprocess.run([compiler, *flags_for(root), "-include-pch", standard, "-c", source, "-o", target], check=True)
    return target


def main():
    compiler, folder, root = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
    sources = [pathlib.Path(source) for source in sys.argv[4:]]
    fuzzers = [source for source in sources if source.stem.startswith("fuzz_")]
    objects = folder / "fuzz_objects"
    objects.mkdir(parents=True, exist_ok=True)
    standard = precompile(compiler, root, objects)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        made = dict(zip(sources, pool.map(lambda source: compile_one(compiler, root, objects, source, standard), sources)))
    readers = [made[source] for source in sources if source not in fuzzers]
    for fuzzer in fuzzers:
        (folder / fuzzer.stem.replace("fuzz_", "found_", 1)).mkdir(exist_ok=True)
        subprocess.run([compiler, "-fsanitize=fuzzer,address,undefined", made[fuzzer], *readers, *LIBRARIES,
                        "-o", folder / fuzzer.stem], check=True)


if __name__ == "__main__":
    main()
