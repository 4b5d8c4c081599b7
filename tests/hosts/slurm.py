"""A Slurm cluster of one's own: munged, slurmctld and a slurmd for each node, with all of their files in one folder; gone again whatever happens."""
import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time

DAEMONS = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
START_S = 30
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LIBC = ctypes.CDLL(None)


def find(program):
    """Daemons are not always on a user's PATH."""
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def why_not():
    """Why no cluster can be started here; "" if it can."""
    missing = [name for name in DAEMONS if find(name) is None]
    if missing:
        return f"there is no {', '.join(missing)} (Debian: slurm-wlm, munge)"
    if not os.path.ismount("/sys/fs/cgroup"):
        return "slurmd does not start without control groups at /sys/fs/cgroup"
    return ""


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


class Node:
    """`prefix` is what a command has to begin with to run on the node; `address` is where the others reach it."""

    def __init__(self, name, address, prefix=()):
        self.name, self.address, self.prefix = name, address, list(prefix)


class Cluster:
    """Nodes of four processors each, whatever the machine has. `controller` is the address at which nodes reach slurmctld."""

    def __init__(self, nodes, controller):
        self.nodes = nodes
        self.folder = tempfile.mkdtemp(prefix="tutti-slurm-")
        self.daemons = []
        # What slurmd leaves behind when it ends becomes this process's, to be ended too.
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.environment = dict(os.environ, SLURM_CONF=self.path("slurm.conf"))
        self.write(controller)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, controller):
        with open(self.path("key"), "wb") as key:
            os.fchmod(key.fileno(), 0o400)
            key.write(os.urandom(128))
        os.mkdir(self.path("state"))
        user = pwd.getpwuid(os.geteuid()).pw_name
        names = ",".join(node.name for node in self.nodes)
        port = free_port()
        lines = ["ClusterName=tutti-test", f"SlurmctldHost={socket.gethostname().split('.')[0]}({controller})", f"SlurmctldPort={free_port()}",
                 f"SlurmUser={user}", f"SlurmdUser={user}", "AuthType=auth/munge", f"AuthInfo=socket={self.path('munge')}", "CredType=cred/munge",
                 f"StateSaveLocation={self.path('state')}", f"SlurmdSpoolDir={self.path('spool-%n')}",
                 f"SlurmctldPidFile={self.path('slurmctld.pid')}", f"SlurmdPidFile={self.path('slurmd-%n.pid')}",
                 "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "SelectType=select/linear", "SwitchType=switch/none", "MpiDefault=none",
                 "ReturnToService=2", "SlurmdParameters=config_overrides"]
        lines += [f"NodeName={node.name} NodeAddr={node.address} Port={port} CPUs=4 State=UNKNOWN" for node in self.nodes]
        lines += [f"PartitionName=all Nodes={names} Default=YES State=UP"]
        with open(self.path("slurm.conf"), "w", encoding="ascii") as file:
            file.write("\n".join(lines) + "\n")

    def __enter__(self):
        try:
            self.daemon("munged", [find("munged"), "--foreground", "--force", f"--key-file={self.path('key')}", f"--socket={self.path('munge')}",
                                   f"--pid-file={self.path('munged.pid')}", f"--log-file={self.path('munged.log')}",
                                   f"--seed-file={self.path('munged.seed')}"])
            self.wait("munged", lambda: os.path.exists(self.path("munge")))
            self.daemon("slurmctld", [find("slurmctld"), "-D"])
            for node in self.nodes:
                self.daemon("slurmd-" + node.name, [*node.prefix, find("slurmd"), "-D"])
            self.wait("slurmctld and slurmd", self.idle)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_):
        self.end()

    def daemon(self, name, command):
        with open(self.path(name + ".out"), "wb") as out:
            self.daemons.append((name, subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                                        preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))))

    def idle(self):
        states = subprocess.run([find("sinfo"), "--noheader", "--Node", "--format=%T"], env=self.environment, capture_output=True, text=True,
                                timeout=START_S, check=False).stdout.split()
        return states == ["idle"] * len(self.nodes)

    def wait(self, what, ready):
        end = time.monotonic() + START_S
        while not ready():
            ended = [name for name, process in self.daemons if process.poll() is not None]
            assert not ended and time.monotonic() < end, f"{what}: {ended or 'not'} ready after {START_S} s\n{self.said()}"
            time.sleep(0.1)

    def said(self):
        """The last lines of what the daemons have said."""
        texts = []
        for name, _ in self.daemons:
            with open(self.path(name + ".out"), encoding="utf-8", errors="replace") as file:
                texts.append(f"{name}: " + "".join(file.readlines()[-8:]))
        return "\n".join(texts)

    def start(self, arguments, **variables):
        """`srun ARGUMENTS`, under way. More variables are the job's."""
        job = {k: v for k, v in self.environment.items() if not k.startswith(("SLURM_", "NCCL_", "TUTTI_")) or k == "SLURM_CONF"}
        return subprocess.Popen([find("srun"), *arguments], env=dict(job, **variables), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def srun(self, arguments, limit_s, **variables):
        """The same, to its end, which must be with 0 within `limit_s`; what it printed."""
        running = self.start(arguments, **variables)
        try:
            out, errors = running.communicate(timeout=limit_s)
        finally:
            running.kill()
            running.wait()
        assert running.returncode == 0, f"srun ended with {running.returncode}: {errors}{out}\n{self.said()}"
        return out

    def end(self):
        for _, process in reversed(self.daemons):
            process.kill()
            process.wait()
        while children := children_of(os.getpid()):
            for child in children:
                try:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                except (ProcessLookupError, ChildProcessError):
                    pass
        shutil.rmtree(self.folder, ignore_errors=True)


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(child) for child in file.read().split()]
