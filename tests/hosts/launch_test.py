"""Jobs over several hosts as launchers start them, in network namespaces: torchrun's and srun's variables, mpirun of Open MPI and
of MPICH, and by hand.

usage: launch_test.py TUTTI_PERF TUTTI_TRAIN [CASE]     TUTTI_TRAIN: - where there is none
"""
import json
import os
import random
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import launchers  # noqa: E402
import namespaces  # noqa: E402

SKIPPED = 77
HOSTS = 2
PER_HOST = 2
RANKS = HOSTS * PER_HOST
LIMIT_S = 60


class Skipped(Exception):
    pass


def perf_command(perf, report):
    return [perf, "all_reduce", "-b", "8", "-e", "64K", "-f", "64", "-n", "3", "-w", "1", "--json", report]


def check_report(report, text, transport="tcp"):
    """Four ranks, right sums, and bytes that crossed the network."""
    with open(report, encoding="utf-8") as file:
        rows = json.load(file)
    assert len(rows) == 6, f"{len(rows)} rows: {text}"
    for row in rows:
        assert row["ranks"] == RANKS and row["wrong"] == 0, row
        assert row["transport"] == transport and row["wire_bytes"] > 0, row


def without_launchers():
    """This process's environment without what a launcher around the tests may have left there."""
    prefixes = ("OMPI_", "PMI", "SLURM_", "TORCHELASTIC_", "NCCL_", "TUTTI_")
    exact = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return {k: v for k, v in os.environ.items() if not k.startswith(prefixes) and k not in exact}


def run_ranks(hosts, command, variables_of):
    """A process for each rank with the variables that its launcher would set; what they print. The last rank comes first."""
    ranks = []
    try:
        for rank in reversed(range(RANKS)):
            host = rank // PER_HOST
            environment = dict(without_launchers(), NCCL_HOSTID=f"host-{host}", **variables_of(rank, host))
            ranks.append(subprocess.Popen(["ip", "netns", "exec", hosts.names[host], *command], env=environment,
                                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        end = time.monotonic() + LIMIT_S
        texts = [process.communicate(timeout=max(1, end - time.monotonic()))[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    text = "".join(texts)
    assert all(process.returncode == 0 for process in ranks), text
    return text


def measure(hosts, perf, variables_of):
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        check_report(report, run_ranks(hosts, perf_command(perf, report), variables_of))


def torchrun(hosts):
    """What torchrun sets: MASTER_ADDR says where the ranks meet."""
    port = random.randrange(20000, 30000)
    return lambda rank, host: {
        "RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank % PER_HOST), "LOCAL_WORLD_SIZE": str(PER_HOST),
        "MASTER_ADDR": hosts.address(0), "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "job",
        "TORCHELASTIC_RESTART_COUNT": "0"}


def by_hand(hosts):
    """The line of docs/hosts.md."""
    place = f"{hosts.address(0)}:{random.randrange(20000, 30000)}"
    return lambda rank, host: {"NCCL_COMM_ID": place, "TUTTI_SECRET": "a word", "RANK": str(rank), "WORLD_SIZE": str(RANKS)}


def without_counts(hosts):
    """What a container of its own for each rank may have, or a line by hand: nothing tells how many ranks are on a host."""
    told = torchrun(hosts)
    left_out = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    return lambda rank, host: {k: v for k, v in told(rank, host).items() if k not in left_out}


def case_torchrun(hosts, perf, _):
    for variables in (torchrun(hosts), without_counts(hosts)):
        measure(hosts, perf, variables)


def case_by_hand(hosts, perf, _):
    measure(hosts, perf, by_hand(hosts))


def losses(log):
    """By step: what is the same wherever the ranks are."""
    with open(log, encoding="utf-8") as file:
        steps = [json.loads(line) for line in file]
    return [{key: step[key] for key in ("step", "loss", "param_hash", "held_out_accuracy") if key in step} for step in steps]


def train_command(train, folder):
    if train == "-":
        raise Skipped("this build has no tutti-train")
    words = random.Random(5)
    text = os.path.join(folder, "text")
    with open(text, "w", encoding="ascii") as file:
        file.write(" ".join(words.choice(["the", "sum", "of", "all", "ranks"]) for _ in range(6000)))
    return [train, "--model", "lm", "--text", text, "--context", "6", "--embedding", "8", "--hidden", "32", "--steps", "40",
            "--batch", "64", "--check-every", "10", "--bucket-mb", "0.01", "--log"]


def alone(command, folder):
    """The losses of as many ranks on one host."""
    log = os.path.join(folder, "one")
    subprocess.run([*command, log, "--ranks", str(RANKS)], env=without_launchers(), check=True, capture_output=True, timeout=LIMIT_S)
    found = losses(log)
    assert len(found) > 40 and all("loss" in step for step in found[:40]), found
    return found


def case_train(hosts, _, train):
    """Two hosts of two ranks learn what four ranks of one host do, bit by bit."""
    with tempfile.TemporaryDirectory() as folder:
        command = train_command(train, folder)
        wanted = alone(command, folder)
        for variables in (torchrun(hosts), by_hand(hosts)):
            log = os.path.join(folder, "log")
            run_ranks(hosts, [*command, log], variables)
            found = losses(log)
            assert found == wanted, f"{found[:3]} is not {wanted[:3]}"
            os.unlink(log)


def case_srun(hosts, perf, _):
    """What srun sets, and TUTTI_RENDEZVOUS."""
    port = random.randrange(20000, 30000)
    measure(hosts, perf, lambda rank, host: {
        "SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank), "SLURM_NTASKS": str(RANKS),
        "SLURM_STEP_NUM_TASKS": str(RANKS), "SLURM_LOCALID": str(rank % PER_HOST), "SLURM_NODEID": str(host),
        "SLURM_NNODES": str(HOSTS), "TUTTI_RENDEZVOUS": f"tcp:{hosts.address(0)}:{port}", "TUTTI_SECRET": "a word"})


def mpirun(hosts, folder, *options):
    command = launchers.open_mpi(hosts, folder, PER_HOST, *options)
    if not command:
        raise Skipped("there is no mpirun of Open MPI")
    return command


def launch(command, fails=False):
    done = subprocess.run(command, env=dict(without_launchers(), LC_ALL="C.UTF-8"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode != 0) == fails, done.stdout
    return done.stdout


def case_mpirun(hosts, perf, _):
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        place = f"TUTTI_RENDEZVOUS=tcp:{hosts.address(0)}:{random.randrange(20000, 30000)}"
        check_report(report, launch([*mpirun(hosts, folder, "-x", place), *perf_command(perf, report)]))


def by_mpi(hosts, folder):
    """mpirun with none of UCX's networks, which a namespace may seem to have."""
    if "openmpi" not in os.environ.get("TEST_MPI", "openmpi"):
        raise Skipped("this build has no plug-in for Open MPI")
    return mpirun(hosts, folder, "--mca", "pml", "ob1", "--mca", "btl", "self,vader,tcp")


def case_nothing_named(hosts, perf, _):
    """Open MPI's mpirun over hosts and no word of where they meet: MPI brings them together, unless it is ruled out."""
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        command = by_mpi(hosts, folder)
        check_report(report, launch([*command, *perf_command(perf, report)]), "mpi")
        for more in (["--net", "tcp"], []):
            ruled_out = [*command, *([] if more else ["-x", "TUTTI_NET=tcp"]), *perf_command(perf, report), *more]
            text = launch(ruled_out, fails=True)
            assert "TUTTI_RENDEZVOUS=tcp:host:port" in text and "--net mpi" in text, text


def case_nothing_named_to_mpich(hosts, perf, _):
    """MPICH's has to be asked for: the error says how."""
    with tempfile.TemporaryDirectory() as folder:
        command = launchers.mpich(hosts, folder, PER_HOST)
        if not command:
            raise Skipped("there is no mpirun of MPICH")
        text = launch([*command, *perf_command(perf, os.path.join(folder, "report.json"))], fails=True)
        assert "TUTTI_RENDEZVOUS=tcp:host:port" in text and "--net mpi" in text, text


def case_mpirun_of_mpich(hosts, perf, _):
    """A variable for all by -genv. By default ranks talk to the launcher by a descriptor, PMI_FD, else by a port of each host."""
    for more in ([], ["-pmi-port", "-genv", "WORLD_SIZE", str(RANKS)]):
        with tempfile.TemporaryDirectory() as folder:
            report = os.path.join(folder, "report.json")
            place = f"tcp:{hosts.address(0)}:{random.randrange(20000, 30000)}"
            command = launchers.mpich(hosts, folder, PER_HOST, "-genv", "TUTTI_RENDEZVOUS", place, *more)
            if not command:
                raise Skipped("there is no mpirun of MPICH")
            check_report(report, launch([*command, *perf_command(perf, report)]))


def case_train_by_mpi(hosts, _, train):
    """The same with mpirun, and MPI for the data, which nobody has to ask for."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*by_mpi(hosts, folder), *train_command(train, folder)]
        wanted = alone(train_command(train, folder), folder)
        for options in (["--net", "mpi"], []):
            log = os.path.join(folder, "mpi")
            launch([*command, log, *options])
            found = losses(log)
            assert found == wanted, f"{found[:3]} is not {wanted[:3]}"
            os.unlink(log)


def main():
    reason = namespaces.why_not()
    if reason:
        print("SKIPPED:", reason)
        sys.exit(SKIPPED)
    perf = os.path.abspath(sys.argv[1])
    train = sys.argv[2] if sys.argv[2] == "-" else os.path.abspath(sys.argv[2])
    wanted = sys.argv[3] if len(sys.argv) > 3 else ""
    hosts = namespaces.Hosts(HOSTS)
    failed = 0
    for name, case in list(globals().items()):
        if not name.startswith("case_") or wanted not in name:
            continue
        start = time.monotonic()
        try:
            case(hosts, perf, train)
            outcome = "ok"
        except Skipped as why:
            outcome = f"skipped: {why}"
        except (AssertionError, OSError, KeyError, TypeError, subprocess.SubprocessError) as problem:
            outcome = f"FAILED: {problem!r}"
            failed += 1
        print(f"{name[5:]:<12} {time.monotonic() - start:5.1f} s  {outcome}", flush=True)
    sys.exit(1 if failed else 0)


main()
