#!/usr/bin/env python3
"""tutti-train as a user runs it: end_to_end.py PART PATH-OF-TUTTI-TRAIN MNIST-FOLDER

Parts: equivalence, learning, errors, outputs, signals, ranks-differ, memory, lost-rank, mnist. Exit code 77: skipped, the data is not there.
"""

import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time

import samples
from samples import check

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from asked_to_end import SIGNALS, heed_signals  # noqa: E402

PROGRAM = ""
MNIST = ""
FOLDER = ""


def path(name):
    return os.path.join(FOLDER, name)


def run(*arguments, code=0, timeout=120, **options):
    return samples.run(PROGRAM, *arguments, code=code, timeout=timeout, **options)


def log_lines(name):
    return samples.log_lines(path(name))


def write_images(count=500):
    return samples.write_images(FOLDER, count)


def write_text():
    return [*samples.write_text(FOLDER), "--context", "6", "--embedding", "8", "--hidden", "32"]


def equivalence():
    # 101 divides neither by 3 nor into 400: uneven shares, and a smaller last batch in each epoch.
    common = ["--steps", "23", "--batch", "101", "--check-every", "5"]
    for name, data in (("mlp", write_images() + ["--hidden", "24,12"]), ("lm", write_text())):
        runs = {
            "1x3": ["--ranks", "1", "--accumulate", "3"],
            "3 processes": ["--ranks", "3"],
            "3 processes, small buckets": ["--ranks", "3", "--bucket-mb", "0.0001"],
            "3 threads": ["--ranks", "3", "--threads"],
            "1x1": ["--ranks", "1"],
        }
        logs = {}
        for title, flags in runs.items():
            run(*data, *common, *flags, "--log", path("log"))
            logs[title] = log_lines("log")
        steps = logs["1x3"]
        check(len(steps) == 24 and steps[-1].keys() >= {"held_out_accuracy"}, f"{name}: 23 steps and a last line")
        compared = [line["step"] for line in steps if "param_hash" in line]
        check(compared == [5, 10, 15, 20, 23], f"{name}: compared after {compared}")
        for title in ("3 processes", "3 processes, small buckets", "3 threads"):
            for ours, theirs in zip(logs[title], steps):
                same = [ours.get(key) == theirs.get(key) for key in ("step", "loss", "lr", "param_hash", "held_out_accuracy")]
                check(all(same), f"{name}, {title}: {ours} is not {theirs}")
        # The same batches in other portions: only the rounding of sums may differ.
        for ours, theirs in zip(logs["1x1"][:-1], steps[:-1]):
            check(abs(ours["loss"] - theirs["loss"]) < 1e-4 * (1 + theirs["loss"]), f"{name}: {ours} is far from {theirs}")
        print(f"{name}: hash {steps[-2]['param_hash']} after 23 steps, 1 rank and 3")


def learning():
    for name, data in (("mlp", write_images()), ("lm", write_text())):
        for optimizer in ("sgd", "adam"):
            output = run(*data, "--steps", "120", "--ranks", "2", "--optimizer", optimizer, "--batch", "64",
                         "--log", path("log"), "--plot", path("loss.svg"))
            losses = [line["loss"] for line in log_lines("log") if "loss" in line]
            first, last = sum(losses[:5]) / 5, sum(losses[-5:]) / 5
            print(f"{name} {optimizer}: loss {first:.3f} to {last:.3f}")
            check(last < 0.6 * first, "the loss hardly fell")
            logged = log_lines("log")[-1]["held_out_accuracy"]
            printed = float(re.search(r"held-out accuracy: ([0-9.]+)", output).group(1))
            check(abs(logged - printed) < 1e-3, f"logged accuracy {logged}, printed {printed}")
            with open(path("loss.svg"), encoding="utf-8") as file:
                check("<svg" in file.read(200), "the plot is no SVG")
    # A text of long lines and blanks, which the model goes on with: shown in lines that can be read.
    with open(path("blanks"), "w", encoding="utf-8") as file:
        file.write((" " * 300 + "word" * 60 + "\n") * 30)
    output = run("--text", path("blanks"), "--context", "6", "--embedding", "8", "--hidden", "32", "--steps", "60", "--ranks", "2")
    shown = output.split("the model goes on from", 1)[1].splitlines()[1:]
    check(all(line[:4] in ("  | ", "  : ") and len(line) <= 104 for line in shown), output)
    # A tab is shown as four blanks.
    check(sum(len(line) - 4 for line in shown) + sum(line[2] == "|" for line in shown) - 1 >= 400, f"not all of the sample: {output}")
    # More ranks than samples in a batch: some ranks have nothing to do, and still take part.
    run(*write_images(count=50), "--steps", "3", "--batch", "2", "--ranks", "4")


def errors():
    data = write_images()
    with open(path("labels.gz"), "rb") as file:
        packed = file.read()
    with open(path("cut.gz"), "wb") as file:
        file.write(packed[: len(packed) // 2])
    with open(path("few"), "wb") as file:
        file.write(struct.pack(">II", 0x801, 3) + bytes(3))
    open(path("empty"), "wb").close()

    def fails(code, words, *arguments, **options):
        output = run(*arguments, code=code, timeout=30, **options)
        for word in words:
            check(word in output, f"no '{word}' in: {output}")

    images, labels = data[3], data[5]
    fails(1, ["missing", "No such file"], "--model", "mlp", "--images", path("missing"), "--labels", labels)
    fails(1, [images, "0x00000803", "0x00000801"], "--model", "mlp", "--images", images, "--labels", images)
    fails(1, [images, "500", path("few"), "3 labels"], "--model", "mlp", "--images", images, "--labels", path("few"))
    fails(1, [path("cut.gz"), "cut short"], "--model", "mlp", "--images", images, "--labels", path("cut.gz"))
    fails(1, [path("empty"), "0 bytes"], "--text", path("empty"))
    fails(1, [path("none/log"), "cannot write"], *data, "--ranks", "2", "--log", path("none/log"))
    fails(1, [path("none/plot"), "cannot write"], *data, "--ranks", "2", "--plot", path("none/plot"))
    # Rank 0 alone fails, in the middle of the run; the others must not wait for it.
    fails(1, ["rank 0: /dev/full: cannot write"], *data, "--ranks", "3", "--steps", "1000000", "--log", "/dev/full")
    fails(1, ["rank 0: /dev/full: cannot write"], *data, "--ranks", "3", "--threads", "--steps", "1000000", "--log", "/dev/full")
    with open("/dev/full", "w", encoding="utf-8") as full:
        fails(1, ["rank 0: standard output: cannot write"], *data, "--ranks", "3", "--steps", "1000000", stdout=full)
        fails(1, ["tutti-train: standard output: No space"], "--help", stdout=full)
    fails(1, ["diverged", "--lr"], *data, "--ranks", "2", "--optimizer", "sgd", "--lr", "100000", "--hidden", "64,64,64")
    # What the training has come to is told, all the same.
    fails(1, ["held-out accuracy: ", "rank 0: /dev/full: cannot write"], *data, "--ranks", "2", "--steps", "2", "--plot", "/dev/full")
    # By the last update, after which no loss is computed.
    last = ["--ranks", "2", "--optimizer", "sgd", "--lr", "1e6", "--schedule", "constant", "--holdout", "0"]
    fails(1, ["the loss after the last step is", "diverged"], *data, *last, "--hidden", "64,64,64", "--steps", "2")
    # On GPUs where there are none: built without CUDA, no driver, or one without a GPU.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    fails(1, ["tutti-train: --device cuda: "], *data, "--device", "cuda")
    fails(1, ["tutti-train: rank 0: --device cuda: "], *data, "--device", "cuda", "--ranks", "1")
    fails(1, ["missing: No such file"], "--text", path("missing"), "--log", path("log"), "--plot", path("plot"))
    check(not os.path.exists(path("log")) and not os.path.exists(path("plot")), "files are left of a run that had no data")
    os.symlink(path("log"), path("link"))
    fails(1, ["missing: No such file"], "--text", path("missing"), "--log", path("link"))
    check(os.path.islink(path("link")) and not os.path.exists(path("log")), "a link to what is not there has gone, or leads to something")
    fails(2, ["tutti-train: --model is empty; write one of {lm,mlp}"], "--model", "")
    fails(2, ["--images"], "--model", "mlp")
    fails(2, ["--ranks", "0"], "--ranks", "0")
    fails(2, ["--ranks", "x"], "--ranks", "x")
    fails(2, ["--batch", "-1"], "--batch", "-1")
    fails(2, ["--lr", "nan"], "--lr", "nan")
    fails(2, ["--optimizer", "adamw"], "--optimizer", "adamw")
    fails(2, ["--hidden", "0"], "--hidden", "64,0")
    for sizes in ("16,,8", ",8", "8,"):
        fails(2, [f'tutti-train: --hidden: "{sizes}" has an empty part'], "--hidden", sizes)
    fails(2, ["tutti-train: Could not convert: --ranks = 2.5; write a whole number"], "--ranks", "2.5")
    fails(2, ["tutti-train: --log -: ", "name a file"], "--log", "-")
    fails(2, ["tutti-train: --log: is empty; name a file"], *data, "--log", "")
    fails(2, ["tutti-train: --images: is empty; name a file"], "--images", "", "--labels", "")
    fails(2, ["tutti-train: --plot -: ", "name a file"], "--plot", "-")
    os.symlink(FOLDER, path("folder"))
    for other in (path("log"), os.path.relpath(path("log")), path("folder/log")):
        for there in (False, True):
            if there:
                open(path("log"), "w", encoding="ascii").close()
            fails(2, ["tutti-train: --plot ", "--log"], *data, "--log", path("log"), "--plot", other)
            check(os.path.exists(path("log")) == there, "the log was touched")
            if there:
                os.remove(path("log"))
    text = write_text()
    for option in ("--log", "--plot"):
        for common, read in ((data, images), (data, labels), (text, text[3])):
            size = os.path.getsize(read)
            fails(2, [f"tutti-train: {option} {read}: would overwrite"], *common, option, read)
            check(os.path.getsize(read) == size, f"{read} was overwritten")
        fails(2, [f"tutti-train: {option} {path('folder/log')}: lies in {FOLDER}, "], "--text", FOLDER, option, path("folder/log"))
    samples.run("bash", "-c", 'exec "$@" 2>&-', "bash", PROGRAM, "--images", "nosuch", "--labels", "nosuch", code=1)
    fails(2, ["tutti-train: --momentum: ", "--optimizer sgd"], *data, "--momentum", "0.5")
    for option in ("--context", "--embedding"):
        fails(2, [f"tutti-train: {option}: ", "--model lm"], *data, option, "8")
    fails(2, ["tutti-train: --threads: takes no value", "--ranks N"], *data, "--threads=4")
    run(*data, "--ranks", "2", "--steps", "2", "--log", "/dev/null", "--plot", "/dev/null")
    run(*data, "--ranks", "1", "--steps", "1", "--seed", "9000000000000000000")
    for seed in ("-1", "1.5", "9000000000000000001", "18446744073709551616"):
        fails(2, ["--seed"], "--seed", seed)
    fails(2, ["--frobnicate"], "--frobnicate")
    fails(2, ["--steps", "--epochs"], "--steps", "3", "--epochs", "2")
    check("Examples" in run("--help"), "the help has no examples")
    check(run("--version").startswith("Tutti "), "no version")


def signals():
    """It ends by the signal that asks it to, and nothing of it is left."""
    data = write_images()
    for sign in SIGNALS:
        with subprocess.Popen([PROGRAM, *data, "--ranks", "2", "--steps", "100000000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              start_new_session=True, preexec_fn=heed_signals) as process:
            process.stdout.readline()
            process.send_signal(sign)
            said = process.communicate(timeout=60)[1]
        check(process.returncode == -sign, f"signal {int(sign)}: {process.returncode}: {said}")
        check(f"was ended by signal {int(sign)} " in said, said)
        try:
            os.killpg(process.pid, 0)
            check(False, "a rank is left")
        except ProcessLookupError:
            pass


def outputs():
    """Where the log and what is printed may go, and what it says of little data."""
    data = write_images()
    os.mkfifo(path("pipe"))
    with subprocess.Popen(["cat", path("pipe")], stdout=subprocess.PIPE, text=True) as reader:
        run(*data, "--ranks", "2", "--steps", "2", "--log", path("pipe"), timeout=30)
        check(reader.stdout.read().count("\n") == 3, "not all of the log came through the pipe")
    # The first file that is opened would be standard output then.
    output = samples.run("bash", "-c", 'exec "$@" >&-', "bash", PROGRAM, *data, "--ranks", "2", "--steps", "2", "--log", path("log"), code=1)
    check("standard output: cannot write" in output, output)
    check(all("loss" in line for line in log_lines("log")), "there is more in the log than steps")
    output = run(*write_images(count=3), "--ranks", "4", "--steps", "2")
    check("2 steps of 3 samples" in output and "too few images" in output, output)
    with open(path("note"), "w", encoding="ascii") as file:
        file.write("a text of a few words")
    output = run("--text", path("note"), "--context", "4", "--hidden", "8", "--ranks", "2", "--steps", "2")
    check("2 steps of 17 samples" in output and "too little text" in output, output)
    # Whose reader leaves, as `| head -1`: the end of all ranks, without a word, unless files are wanted.
    data = write_images()
    for how in ([], ["--threads"]):
        for more, steps in (["--report-every", "1000"], "100000000"), (["--log", path("log")], "200"):
            with subprocess.Popen([PROGRAM, *data, "--ranks", "3", "--steps", steps, *how, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True, preexec_fn=heed_signals) as process:
                process.stdout.readline()
                process.stdout.close()
                said = process.stderr.read()
                check(process.wait(timeout=60) == -signal.SIGPIPE and said == "", f"{how} {more}: {process.returncode}: {said}")
        check(len(log_lines("log")) == 201, "the log has not all steps")


def ranks_differ():
    """Ranks that a launcher starts have command lines and data of their own."""
    text = write_text()
    with open(text[3], encoding="ascii") as file:
        written = file.read()
    with open(path("other"), "w", encoding="ascii") as file:
        file.write(written.replace("sum", "mus", 1))
    other_text = [*text[:3], path("other"), *text[4:]]
    images = write_images()

    def train(code, commands):
        processes = []
        for rank, command in enumerate(commands):
            variables = {"RANK": str(rank), "WORLD_SIZE": str(len(commands)), "TUTTI_RENDEZVOUS": "file:" + path("meet")}
            processes.append(subprocess.Popen([PROGRAM, *([] if "--epochs" in command else ["--steps", "3"]), *command], stdout=subprocess.PIPE,
                                              stderr=subprocess.STDOUT, text=True, env={**os.environ, **variables}))
        outputs = [process.communicate(timeout=60)[0] for process in processes]
        for process, output in zip(processes, outputs):
            check(process.returncode == code, f"exit code {process.returncode}, not {code}:\n{output}")
        return outputs

    train(0, [text, text, text])
    for what, common, odd in (("data", text, other_text), ("data", images, images + ["--holdout", "0.3"]),
                              ("--seed", text, text + ["--seed", "2"]), ("--accumulate", images, images + ["--accumulate", "3"]),
                              ("--batch", images, images + ["--batch", "64"]), ("--bucket-mb", text, text + ["--bucket-mb", "0.001"]),
                              ("number of steps (--steps", images + ["--epochs", "1"], images + ["--epochs", "2"]),
                              ("--check-every", text, text + ["--check-every", "2"]),
                              # As many parameters, of other layers.
                              ("model", images + ["--hidden", "16,592"], images + ["--hidden", "32,320"])):
        for rank, output in enumerate(train(1, [common, odd, common])):
            words = f"tutti-train: rank {rank}: the ranks differ in the {what}"
            check(words in output and "rank 1 (" in output and "against 2 others" in output, f"no '{words}' in: {output}")


def memory():
    # More than any machine has: told before any rank is there.
    text = samples.write_text(FOLDER)
    for common, words in ((write_images(), "(--hidden), "), (text, "(--hidden, --context, --embedding), ")):
        for how in (["--ranks", "64"], ["--ranks", "64", "--threads"]):
            output = samples.run("bash", "-c", 'ulimit -v 8000000; exec "$@"', "bash", PROGRAM, *common, "--hidden", ",".join(["65536"] * 9), *how, code=1)
            check(re.search(r"^tutti-train: 64 ranks of this model take at least \d+\.\d GB, and \d+(\.\d GB| MB) of memory are available; ", output), output)
            check(words in output and output.count("\n") == 1, output)
    output = run(*write_images(), "--hidden", "1000,1000", "--ranks", "2", "--steps", "1", "--batch", "100")
    check("2 ranks (processes, 22 MB of memory each or more), 1 steps" in output, output)
    # Both ranks ask for more than their limit, after they have joined.
    data = [*text, "--context", "1024", "--embedding", "512", "--hidden", "1"]
    for how in ([], ["--threads"]):
        output = samples.run("bash", "-c", 'ulimit -v 1200000; exec "$@"', "bash", PROGRAM, *data, "--batch", "512", "--steps", "1",
                             "--ranks", "2", *how, code=1)
        check(re.search(r"tutti-train: rank [01]: out of memory", output), output)

    def limited(kilobytes, *arguments):
        words = 'ulimit -s 8192; ulimit -v $0; exec "$@"'
        return samples.run("bash", "-c", words, str(kilobytes), PROGRAM, *arguments, code=1, timeout=60)

    # Not yet started: a file that is as large as it says.
    images = write_images()
    with open(path("labels"), "wb") as file:
        file.write(struct.pack(">II", 0x801, 2**32 - 1))
        file.truncate(8 + 2**32 - 1)
    output = limited(1000000, *images[:5], path("labels"))
    check("tutti-train: reading the data: out of memory" in output, output)
    # Threads that cannot start, or not what they need: those that have, wait for them.
    output = limited(300000, *images, "--ranks", "64", "--threads", "--steps", "2")
    check(re.search(r"tutti-train: .*(out of memory|starting rank|cannot)", output), output)


def lost_rank():
    samples.lose_a_rank([PROGRAM, *write_text(), "--ranks", "3", "--steps", "100000000", "--log", path("log")], path("log"))


def mnist():
    images = os.path.join(MNIST, "t10k-images-idx3-ubyte.gz")
    labels = os.path.join(MNIST, "t10k-labels-idx1-ubyte.gz")
    if not os.path.exists(images):
        print(f"skipped: {images} is not there")
        sys.exit(77)
    start = time.monotonic()
    output = run("--model", "mlp", "--images", images, "--labels", labels, "--holdout", "0.2", "--ranks", "4", timeout=200)
    accuracy = float(re.search(r"held-out accuracy: ([0-9.]+)", output).group(1))
    print(f"held-out accuracy {accuracy} in {time.monotonic() - start:.1f} s")
    check(accuracy > 0.93, output)


PARTS = {"equivalence": equivalence, "learning": learning, "errors": errors, "outputs": outputs, "signals": signals,
         "ranks-differ": ranks_differ, "memory": memory, "lost-rank": lost_rank, "mnist": mnist}

if __name__ == "__main__":
    PROGRAM, MNIST = sys.argv[2], sys.argv[3]
    with tempfile.TemporaryDirectory(prefix="tutti-train-") as FOLDER:
        PARTS[sys.argv[1]]()
