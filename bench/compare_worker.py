"""A worker of bench/compare: one peer's ranks, alive until it is closed, which measure a cell when told to."""
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time

from compare_peers import command_line, environment

START_S = 60


class WorkerFailed(Exception):
    """The worker has ended or does not answer; the text says why."""


class Worker:
    """`command`: what makes its command line of all that (compare_peers.command_line)."""

    def __init__(self, setting, build, ranks, cores, registered, command=command_line):
        self.name = setting.name
        self.folder = tempfile.mkdtemp(prefix="tutti-compare-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        self.process = None
        self.commands = self.replies = -1
        self.unread = b""
        try:
            self._start(setting, build, ranks, cores, registered, command)
        except BaseException:
            self.kill()
            raise

    def _start(self, setting, build, ranks, cores, registered, command):
        places = []
        for what in ("control", "commands", "replies"):
            path = os.path.join(self.folder, what)
            places += ["--" + what, path]
            if what == "control":
                open(path, "w", encoding="ascii").close()
            else:
                os.mkfifo(path)
        # Held open for both directions, a FIFO neither waits for the other side nor ends when that is late.
        self.commands = os.open(places[3], os.O_RDWR)
        self.replies = os.open(places[5], os.O_RDWR | os.O_NONBLOCK)
        self.errors = open(os.path.join(self.folder, "errors"), "w+", encoding="utf-8", errors="replace")
        try:
            self.process = subprocess.Popen(command(setting, build, ranks, cores, registered, places),
                                            env=environment(setting), stdin=subprocess.DEVNULL, stdout=self.errors,
                                            stderr=self.errors, start_new_session=True)
        except OSError as problem:
            raise WorkerFailed(str(problem)) from problem
        self._reply(START_S)

    def ask(self, line, timeout_s):
        """Gives a command; returns the reply."""
        os.write(self.commands, line.encode() + b"\n")
        return self._reply(timeout_s)

    def _reply(self, timeout_s):
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self.unread:
            if not select.select([self.replies], [], [], 0.1)[0]:
                if self.process.poll() is not None:
                    raise WorkerFailed(self._last_words() or f"it ended with status {self.process.returncode}")
                if time.monotonic() > deadline:
                    raise WorkerFailed(f"no answer within {timeout_s:g} s. {self._last_words()}".strip())
                continue
            self.unread += os.read(self.replies, 65536)
        line, self.unread = self.unread.split(b"\n", 1)
        return json.loads(line)

    def _last_words(self):
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors.read().splitlines() if line.strip().strip("-=")]
        said = [line for line in lines if line.startswith("rank ")]
        return " / ".join((said or lines)[:1] + (said or lines)[1:][-2:])

    def close(self):
        """Lets it end by itself, for a moment."""
        if self.process and self.process.poll() is None:
            try:
                os.write(self.commands, b"end\n")
                self.process.wait(timeout=5)
            except (OSError, subprocess.TimeoutExpired):
                pass
        self.kill()

    def kill(self):
        if self.process:
            if self.process.poll() is None:
                self.process.terminate()
                try:
                    self.process.wait(timeout=3)
                except subprocess.TimeoutExpired:
                    pass
            # What a launcher may have left.
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait()
            self.process = None
        for descriptor in (self.commands, self.replies):
            if descriptor >= 0:
                os.close(descriptor)
        self.commands = self.replies = -1
        if hasattr(self, "errors"):
            self.errors.close()
        shutil.rmtree(self.folder, ignore_errors=True)
