#!/usr/bin/env python3
"""library_size_test.py LIBRARY MAX_BYTES [IMAGE...]: the library as installed, stripped, less the images of GPU kernels in it, has at most MAX_BYTES."""

import os
import subprocess
import sys
import tempfile


def main() -> int:
    library, most, images = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    with tempfile.TemporaryDirectory() as folder:
        stripped = os.path.join(folder, "library.so")
        subprocess.run(["strip", "-o", stripped, library], check=True)
        whole = os.path.getsize(stripped)
    device = sum(os.path.getsize(image) for image in images)
    print(f"{library}: {whole} bytes stripped, {device} of them GPU kernels, {whole - device} the rest; at most {most}")
    if whole - device > most:
        print("larger than promised; what is no part of a call can be compiled for size (core_small_sources in meson.build)")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
