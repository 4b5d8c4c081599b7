"""Jobs that PyTorch's own torchrun starts: the ranks of one host, of two hosts, which are network namespaces called box-1 and box-2, with the line of
docs/hosts.md, and a rank that dies.

usage: torchrun_test.py TUTTI_PERF TUTTI_TRAIN [CASE]    ends with 77 where there is no torchrun. TUTTI_TRAIN: - where there is none
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job  # noqa: E402
import namespaces  # noqa: E402

SKIPPED = 77
LIMIT_S = 120
SIZES = ["-b", "8", "-e", "64K", "-f", "64", "-n", "3", "-w", "1"]
DOCUMENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/hosts.md")


class Agents:
    """torchrun's processes, each in a session of its own with the ranks that it starts; all gone at the end."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="tutti-torchrun-")
        self.running = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for agent in self.running:
            if agent.poll() is None:
                agent.terminate()  # it ends its ranks, which have sessions of their own
                try:
                    agent.communicate(timeout=40)
                except subprocess.TimeoutExpired:
                    agent.kill()
            agent.wait()
        self.folder.cleanup()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def start(self, command):
        prefixes = ("OMPI_", "PMI", "SLURM_", "TORCHELASTIC_", "NCCL_", "TUTTI_")
        exact = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(prefixes) and k not in exact}
        self.running.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                             text=True))
        return self.running[-1]

    def end(self):
        """What all of them have printed, and the exit codes."""
        end = time.monotonic() + LIMIT_S
        texts = [agent.communicate(timeout=max(1, end - time.monotonic()))[0] for agent in self.running]
        return "".join(texts), [agent.returncode for agent in self.running]


def check(report, text, ranks, transport):
    with open(report, encoding="utf-8") as file:
        rows = json.load(file)
    assert f"{ranks} ranks, torchrun" in text, text
    assert len(rows) == 6, f"{len(rows)} rows: {text}"
    for row in rows:
        assert row["ranks"] == ranks and row["wrong"] == 0 and row["transport"] == transport, row


def case_one_host(perf, _):
    with Agents() as agents:
        report = agents.path("report")
        agents.start(["torchrun", "--standalone", "--nproc-per-node", "2", "--no-python", perf, "all_reduce", *SIZES, "--json", report])
        text, codes = agents.end()
        assert codes == [0], text
        check(report, text, 2, "local")


def documented_line(program):
    """The words of the document's line that runs a program, up to the program."""
    with open(DOCUMENT, encoding="utf-8") as file:
        line = re.search(rf"^(torchrun .*--no-python) build/{program}( all_reduce)?$", file.read(), re.MULTILINE)
    assert line, f"{DOCUMENT} has no line in which torchrun starts {program}"
    return line[1].split()


def on_two_hosts(hosts, launch, command):
    """The same line on both; what they print."""
    with Agents() as agents:
        with open(agents.path("hosts"), "w", encoding="ascii") as file:
            file.write("127.0.0.1 localhost\n" + "".join(f"{hosts.address(n)} box-{n + 1}\n" for n in range(2)))
        for n in range(2):
            agents.start([*hosts.entering(n, f"box-{n + 1}", agents.path("hosts")), *launch, "--", *command])
        text, codes = agents.end()
        assert codes == [0, 0], text
        return text


def case_two_hosts(perf, train):
    reason = namespaces.why_not()
    if reason:
        print("two hosts: skipped:", reason)
        return
    hosts = namespaces.Hosts(2)
    try:
        with tempfile.TemporaryDirectory(prefix="tutti-torchrun-") as folder:
            report, text, log, alone = (os.path.join(folder, name) for name in ("report", "text", "log", "alone"))
            said = on_two_hosts(hosts, documented_line("tutti-perf"), [perf, "all_reduce", *SIZES, "--json", report])
            check(report, said, 4, "tcp")
            if train != "-":
                command = job.trainer_command(train, text)
                on_two_hosts(hosts, documented_line("tutti-train"), [*command, log])
                subprocess.run([*command, alone, "--ranks", "4"], check=True, capture_output=True, timeout=LIMIT_S)
                assert job.losses(log) == job.losses(alone), job.losses(log)
    finally:
        hosts.remove()


def case_killed_rank(perf, _):
    """The agent ends the others; with --max-restarts it starts all of them again, and they meet again."""
    for restarts in (0, 1):
        with Agents() as agents:
            said, report = agents.path("said"), agents.path("report")
            # The first time they go on until one is killed. torchrun makes one $ of two.
            script = (f'echo $$$$ > {said}-pid-$RANK; [ $TORCHELASTIC_RESTART_COUNT = 0 ] && exec {perf} all_reduce -b 8 -e 8 -c 0 -n 100000000 '
                      f'> {said}-$RANK; exec {perf} all_reduce {" ".join(SIZES)} --json {report}')
            agents.start(["torchrun", "--standalone", "--nproc-per-node", "3", "--max-restarts", str(restarts), "--no-python", "sh", "-c", script])
            job.wait_for_text(said + "-0", "# all_reduce: 3 ranks", LIMIT_S)
            with open(said + "-pid-1", encoding="ascii") as file:
                os.kill(int(file.read()), signal.SIGKILL)
            text, codes = agents.end()
            if restarts == 0:
                assert codes == [1], text
            else:
                assert codes == [0], text
                check(report, text, 3, "local")


def main():
    if shutil.which("torchrun") is None:
        print("SKIPPED: there is no torchrun (pip install torch)")
        sys.exit(SKIPPED)
    for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(sign, lambda *_: sys.exit(1))
    perf, train = (path if path == "-" else os.path.abspath(path) for path in sys.argv[1:3])
    sys.exit(1 if job.run_cases(globals(), sys.argv[3] if len(sys.argv) > 3 else "", perf, train) else 0)


main()
