"""Small data sets that can be learnt, made anew for each test, and runs of tutti-train on them."""
import gzip
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import time


def check(condition, message):
    if not condition:
        sys.exit(f"FAILED: {message}")


def run(program, *arguments, code=0, timeout=120, stdout=subprocess.PIPE, **variables):
    """Output and errors of a run that must end with this exit code."""
    result = subprocess.run([program, *arguments], stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=timeout,
                            env={**os.environ, **variables})
    output = (result.stdout or "") + result.stderr
    if result.returncode != code:
        sys.exit(f"exit code {result.returncode}, not {code}: {' '.join(arguments)}\n{output}")
    return output


def log_lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def write_images(folder, count=500, side=6, classes=4, seed=3):
    """Each class has a bright place of its own, in noise. The options that name the files."""
    print(f"image seed {seed}")
    noise = random.Random(seed)
    pixels, labels = bytearray(), bytearray()
    for _ in range(count):
        label = noise.randrange(classes)
        labels.append(label)
        image = [noise.randrange(100) for _ in range(side * side)]
        for place in range(label, side * side, classes):
            image[place] += noise.randrange(40, 120)
        pixels += bytes(image)
    images_path, labels_path = os.path.join(folder, "images"), os.path.join(folder, "labels.gz")
    with open(images_path, "wb") as file:
        file.write(struct.pack(">IIII", 0x803, count, side, side) + pixels)
    with gzip.open(labels_path, "wb") as file:
        file.write(struct.pack(">II", 0x801, count) + labels)
    return ["--model", "mlp", "--images", images_path, "--labels", labels_path]


def write_text(folder, words=6000):
    chosen = random.Random(5)
    text = " ".join(chosen.choice(["the", "sum", "of", "all", "ranks", "is", "here"]) for _ in range(words))
    path = os.path.join(folder, "text")
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
    return ["--model", "lm", "--text", path]


def children_of(process):
    with open(f"/proc/{process}/task/{process}/children", encoding="ascii") as file:
        return [int(child) for child in file.read().split()]


def lose_a_rank(command, log):
    """Kills rank 1 of the three that the command starts, when there is something in its log: the others end soon, and name it."""
    output_path = log + ".output"
    with open(output_path, "w", encoding="utf-8") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 60
    while not os.path.exists(log) or os.path.getsize(log) < 2000:
        check(process.poll() is None and time.monotonic() < deadline, "the run did not start")
        time.sleep(0.05)
    ranks = children_of(process.pid)
    check(len(ranks) == 3, f"{len(ranks)} children, not 3")
    os.kill(ranks[1], signal.SIGKILL)
    start = time.monotonic()
    code = process.wait(timeout=30)
    seconds = time.monotonic() - start
    with open(output_path, encoding="utf-8") as output:
        text = output.read()
    print(f"ended {seconds:.2f} s after the kill")
    check(code == 1, f"exit code {code}, not 1:\n{text}")
    check(seconds < 5, f"took {seconds:.1f} s to end:\n{text}")
    check(re.search(r"tutti-train: rank [02]: .*rank 1", text), f"no survivor names rank 1:\n{text}")
    for rank in ranks:
        check(not os.path.exists(f"/proc/{rank}"), f"process {rank} is left")
