#!/usr/bin/env python3
"""tutti-train --device cuda as a user runs it, on whatever driver there is:

    cuda_train.py TUTTI_TRAIN PART

Parts: losses (beside the host's; small models), gpu (the same of larger ones, with what a step takes; exit code 77: there is no cuBLAS), ranks, errors
and lost-rank (of the fake driver).
"""
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile

import samples
from samples import check

PROGRAM = ""
FOLDER = ""
# Of a loss after at most so many steps, for the rounding of float32 sums in another order: times 1 + the loss.
TOLERANCE = 1e-3
STEPS = 6


def train(data, *flags, batch=37):
    """The log's lines of a run."""
    log = os.path.join(FOLDER, "log")
    samples.run(PROGRAM, *data, "--steps", str(STEPS), "--batch", str(batch), "--check-every", "3", *flags, "--log", log)
    return samples.log_lines(log)


def check_follows(title, ours, theirs):
    """The largest difference of two runs' losses."""
    check(len(ours) == STEPS + 1 and len(theirs) == STEPS + 1, f"{title}: {len(ours)} and {len(theirs)} lines")
    keys = ["loss"] * STEPS + ["held_out_loss"]
    off = [abs(a[key] - b[key]) / (1 + b[key]) for key, a, b in zip(keys, ours, theirs)]
    check(max(off) < TOLERANCE, f"{title}: step {off.index(max(off)) + 1} is off by {max(off):.1e}: {ours} {theirs}")
    return max(off)


def same_bits(ours, theirs):
    keys = ("step", "loss", "param_hash", "held_out_accuracy")
    return [[line.get(key) for key in keys] for line in ours] == [[line.get(key) for key in keys] for line in theirs]


def models(large=False):
    yield "mlp", samples.write_images(FOLDER) + ["--hidden", "512,256" if large else "24,12"]
    sizes = ["16", "24", "512"] if large else ["6", "8", "20"]
    yield "lm", [*samples.write_text(FOLDER, 6000 if large else 600), "--context", sizes[0], "--embedding", sizes[1], "--hidden", sizes[2],
                 "--holdout", "0.4"]


def losses(large=False):
    """One rank, and two that share a GPU, as threads and as processes: beside the host, and each twice."""
    for name, data in models(large):
        for flags in (["--ranks", "1"], ["--ranks", "1", "--optimizer", "sgd"], ["--ranks", "2", "--threads"], ["--ranks", "2"]):
            title = f"{name} {' '.join(flags)}"
            on_gpu = [*flags, "--device", "cuda", "--ranks-per-gpu", "2"]
            first = train(data, *on_gpu)
            off = check_follows(title, first, train(data, *flags))
            check(same_bits(first, train(data, *on_gpu)), f"{title}: a second run has other bits")
            ms = statistics.median(line["step_ms"] for line in first[:-1])
            print(f"{title}: {ms:.3f} ms per step, losses within {off:.1e} of the host's, twice the same bits")


def gpu():
    found = subprocess.run([PROGRAM, "--device", "cuda", "--ranks", "1", "--steps", "1"], capture_output=True, text=True, timeout=120)
    if "no cuBLAS" in found.stderr:
        print(f"skipped: {found.stderr}")
        sys.exit(77)
    global STEPS
    STEPS = 50
    losses(large=True)


def ranks():
    """N ranks beside one rank that computes their parts, to the bit: on one GPU, on several, as threads and as processes."""
    for name, data in models():
        host = train(data, "--ranks", "1")
        alone = train(data, "--device", "cuda", "--ranks", "1")
        print(f"{name}: losses within {check_follows(name, alone, host):.1e} of the host's")
        for count, flags in ((2, ["--threads"]), (2, []), (4, ["--threads", "--ranks-per-gpu", "2", "--bucket-mb", "0.001"]),
                             (4, ["--ranks-per-gpu", "4"])):
            title = f"{name}, {count} ranks {' '.join(flags)}"
            parts = train(data, "--device", "cuda", "--ranks", "1", "--accumulate", str(count))
            together = train(data, "--device", "cuda", "--ranks", str(count), *flags)
            check(same_bits(together, parts), f"{title}: other bits than one rank with --accumulate {count}: {together} {parts}")
            check_follows(title, together, alone)
    output = samples.run(PROGRAM, *data, "--device", "cuda", "--steps", "1", "--ranks-per-gpu", "2", FAKE_CUDA_DEVICES="2")
    check("4 ranks (processes on Fake 0)" in output, f"two GPUs with two ranks each: {output}")
    # More ranks than samples in a batch: some ranks have nothing to do, and still take part.
    train(data, "--device", "cuda", "--ranks", "4", "--threads", batch=2)


def errors():
    data = [*samples.write_images(FOLDER, 100), "--device", "cuda", "--steps", "10"]

    def fails(words, *flags, code=1, **variables):
        output = samples.run(PROGRAM, *data, *flags, code=code, timeout=30, **variables)
        for word in words:
            check(word in output, f"no '{word}' in: {output}")

    fails(["cuInit", "CUDA_ERROR_NO_DEVICE"], FAKE_CUDA_DEVICES="0")
    fails(["rank 0: --device cuda", "CUDA_ERROR_NO_DEVICE"], "--ranks", "1", FAKE_CUDA_DEVICES="0")
    fails(["NCCL_MULTI_RANK_GPU_ENABLE=1"], "--ranks", "2", FAKE_CUDA_DEVICES="1", NCCL_MULTI_RANK_GPU_ENABLE="0")
    fails(["NCCL_MULTI_RANK_GPU_ENABLE=1"], "--ranks", "2", "--threads", FAKE_CUDA_DEVICES="1", NCCL_MULTI_RANK_GPU_ENABLE="0")
    fails(["cublasCreate", "CUBLAS_STATUS_NOT_INITIALIZED"], "--ranks", "1", FAKE_CUBLAS="broken")
    fails(["diverged", "--lr"], "--ranks", "2", "--optimizer", "sgd", "--lr", "1e5", "--hidden", "24,24,24")
    # A driver of CUDA 12 does not run what was made for 13.
    try:
        ctypes.CDLL("libcublas.so.12")
    except OSError:
        fails(["no cuBLAS for a driver of CUDA 12.4", "libcublas.so.12", "LD_LIBRARY_PATH"], "--ranks", "1", FAKE_CUDA_VERSION="12040")
    samples.run(PROGRAM, "--ranks-per-gpu", "2", code=2)
    samples.run(PROGRAM, "--device", "tpu", code=2)
    samples.run(PROGRAM, "--device", "cuda", "--ranks-per-gpu", "17", code=2)


def lost_rank():
    """A killed rank ends the others, which name it: as on the host, though they wait for streams."""
    log = os.path.join(FOLDER, "log")
    command = [PROGRAM, *samples.write_images(FOLDER), "--device", "cuda", "--ranks", "3", "--steps", "100000000", "--log", log]
    samples.lose_a_rank(command, log)


if __name__ == "__main__":
    PROGRAM = sys.argv[1]
    with tempfile.TemporaryDirectory(prefix="tutti-train-cuda-") as FOLDER:
        {"losses": losses, "gpu": gpu, "ranks": ranks, "errors": errors, "lost-rank": lost_rank}[sys.argv[2]]()
