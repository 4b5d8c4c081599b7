"""Jobs that Slurm's own srun starts: the ranks of one node without any setting, and of two nodes, which are network namespaces, with the
line of docs/hosts.md.

usage: srun_test.py TUTTI_PERF TUTTI_TRAIN     TUTTI_TRAIN: - where there is none
"""
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job  # noqa: E402
import namespaces  # noqa: E402
import slurm  # noqa: E402

SKIPPED = 77
LIMIT_S = 60
SIZES = ["-b", "8", "-e", "64K", "-f", "64", "-n", "3", "-w", "1"]


def check(report, text, ranks, transport):
    with open(report, encoding="utf-8") as file:
        rows = json.load(file)
    assert f"{ranks} ranks, srun" in text, text
    assert len(rows) == 6, f"{len(rows)} rows: {text}"
    for row in rows:
        assert row["ranks"] == ranks and row["wrong"] == 0 and row["transport"] == transport, row


def case_one_node(perf, train):
    """Nothing has to be named: the ranks meet by what srun tells each of them, in two steps one after the other."""
    name = socket.gethostname().split(".")[0]
    with slurm.Cluster([slurm.Node(name, "127.0.0.1")], "127.0.0.1") as cluster:
        for ranks in (2, 4):
            report = cluster.path(f"report-{ranks}")
            check(report, cluster.srun(["-n", str(ranks), perf, "all_reduce", *SIZES, "--json", report], LIMIT_S), ranks, "local")
        if train != "-":
            command = job.trainer_command(train, cluster.path("text"))
            cluster.srun(["-n", "2", *command, cluster.path("by-srun")], LIMIT_S)
            subprocess.run([*command, cluster.path("by-itself"), "--ranks", "2"], check=True, capture_output=True, timeout=LIMIT_S)
            assert job.losses(cluster.path("by-srun")) == job.losses(cluster.path("by-itself")), job.losses(cluster.path("by-srun"))


def case_killed_rank(perf, _):
    """The others go on by default, and say who is missing; --kill-on-bad-exit ends them."""
    name = socket.gethostname().split(".")[0]
    with slurm.Cluster([slurm.Node(name, "127.0.0.1")], "127.0.0.1") as cluster:
        for option, goes_on in (("--kill-on-bad-exit=0", True), ("--kill-on-bad-exit=1", False), ("--label", True)):
            said = cluster.path("said" + option)
            script = f"""{perf} all_reduce -b 8 -e 8 -c 0 -n 100000000 > {said}-$SLURM_PROCID & echo $! > {said}-pid-$SLURM_PROCID; wait $!
                         [ $SLURM_PROCID != 1 ] || exit 1; sleep 4 && echo went on"""
            running = cluster.start(["--label", option, "-n", "3", "sh", "-c", script])
            try:
                job.wait_for_text(said + "-0", "# all_reduce: 3 ranks", LIMIT_S)
                with open(said + "-pid-1", encoding="ascii") as file:
                    os.kill(int(file.read()), signal.SIGKILL)
                out, errors = running.communicate(timeout=LIMIT_S)
            finally:
                running.kill()
                running.wait()
            wanted = ["0: went on", "2: went on"] if goes_on else []
            assert sorted(line for line in out.splitlines() if "went on" in line) == wanted, f"{option}: {out}{errors}"
            for rank in (0, 2) if goes_on else ():
                assert any(line.startswith(f"{rank}: tutti-perf: rank {rank}: ") and "rank 1" in line for line in errors.splitlines()), errors


def case_two_nodes(perf, _):
    reason = namespaces.why_not()
    if reason:
        print("two nodes: skipped:", reason)
        return
    hosts = namespaces.Hosts(2)
    try:
        # Where the nodes find each other's names.
        with tempfile.NamedTemporaryFile("w", encoding="ascii") as names:
            names.write("".join(f"{hosts.address(n)} {name}\n" for n, name in enumerate(hosts.names)))
            names.flush()
            # A host name of its own makes each a host for the library too.
            nodes = [slurm.Node(name, hosts.address(n), hosts.entering(n, name, names.name)) for n, name in enumerate(hosts.names)]
            with slurm.Cluster(nodes, f"{hosts.net}.254") as cluster:
                report = cluster.path("report")
                place = f"tcp:{hosts.address(0)}:{random.randrange(20000, 30000)}"
                for ranks, variables in ((4, {"TUTTI_RENDEZVOUS": place}), (4, {}), (3, {})):
                    command = ["-N", "2", "-n", str(ranks), perf, "all_reduce", *SIZES, "--json", report]
                    check(report, cluster.srun(command, LIMIT_S, **variables), ranks, "tcp")
    finally:
        hosts.remove()


def main():
    reason = slurm.why_not()
    if reason:
        print("SKIPPED:", reason)
        sys.exit(SKIPPED)
    for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(sign, lambda *_: sys.exit(1))
    perf, train = (path if path == "-" else os.path.abspath(path) for path in sys.argv[1:3])
    sys.exit(1 if job.run_cases(globals(), sys.argv[3] if len(sys.argv) > 3 else "", perf, train) else 0)


main()
