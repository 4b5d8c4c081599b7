"""Tutti within MPI programs, under mpirun: all four thread levels, what forces MPI or TCP, deaths, aborts, MPI_Finalize; tutti-perf and tutti-train.

usage: mpi_test.py KIND CLIENT TUTTI_PERF [CASE]     KIND: openmpi or mpich
"""
import json
import os
import random
import re
import subprocess
import sys
import tempfile

from mpirun import LIMIT_S, Run, run_cases

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "hosts"))
from job import losses, trainer_command  # noqa: E402

# What the calls are in which a rank is lost: between two of them, by streams, and in the middle of one, by MPI from the buffers.
LOST_IN = ({"TEST_ELEMENTS": "30000", "TUTTI_MPI_DIRECT_BYTES": "0"}, {"TEST_ELEMENTS": "4000000"})
ONCE = "^initialised 1 times, ended 1 times$"  # by the program itself: Tutti does neither
LEVELS = {"plain": "MPI_THREAD_SINGLE", "single": "MPI_THREAD_SINGLE", "funneled": "MPI_THREAD_FUNNELED", "serialized": "MPI_THREAD_SERIALIZED"}


def case_multiple(kind, client, _):
    """MPI carries everything: a communicator, its halves, two at once."""
    for per_host in ("1", "2"):
        run = Run(kind, 4, [client, "multiple", "checks", per_host], {"NCCL_DEBUG": "INFO"})
        run.expect("transport", "^mpi$")
        run.expect("half", "^mpi$")
        run.expect("mpi", ONCE)
        run.expect_done()
        assert "over MPI" in run.text and "network: TCP" not in run.text, run.text


def case_lower_levels(kind, client, _):
    """Another thread level means TCP, which is said once, or an error where MPI is wanted."""
    for level, name in LEVELS.items():
        run = Run(kind, 2, [client, level, "checks"], {"NCCL_DEBUG": "INFO"})
        run.expect("transport", "^tcp$")
        run.expect("mpi", ONCE)
        run.expect_done()
        told = re.findall(r"network: TCP; .*", run.text)
        assert len(told) == 2 and all(name in line and "MPI_THREAD_MULTIPLE is needed" in line for line in told), told
        run = Run(kind, 2, [client, level, "checks"], {"TUTTI_NET": "mpi"})
        run.expect("refused", f"^5 .*{name}.*MPI_THREAD_MULTIPLE")


def case_not_initialised(kind, client, _):
    run = Run(kind, 2, [client, "none", "checks"], {"NCCL_DEBUG": "INFO"})
    run.expect("transport", "^tcp$")
    run.expect("mpi", "^initialised 0 times, ended 0 times$")
    run.expect_done()
    assert "not initialised" in run.text, run.text
    Run(kind, 2, [client, "none", "checks"], {"TUTTI_NET": "mpi"}).expect("refused", "^5 .*not initialised")


def case_told_to(kind, client, _):
    """The calls of tuttiLaunchInitMpi and tuttiLaunchFinalizeMpi are seen: what is counted as none elsewhere is none."""
    run = Run(kind, 2, [client, "none", "told-to"], {"TUTTI_NET": "mpi"})
    run.expect("transport", "^mpi$")
    run.expect("mpi", ONCE)
    run.expect_done()


def case_forced(kind, client, _):
    run = Run(kind, 2, [client, "multiple", "checks"], {"TUTTI_NET": "tcp"})
    run.expect("transport", "^tcp$")
    run.expect_done()
    run = Run(kind, 2, [client, "multiple", "subset", "8"], {"TUTTI_NET": "mpi"})
    run.expect("transport", "^local$", [1])
    run.expect_done()
    # One rank wants MPI, another TCP: both are told.
    script = f'test "${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}" = 0 && export TUTTI_NET=tcp || export TUTTI_NET=mpi; exec {client} multiple'
    Run(kind, 2, ["sh", "-c", script]).expect("refused", "^5 .*rank 1 has TUTTI_NET=mpi.*rank 0: TUTTI_NET=tcp")


def case_subset(kind, client, _):
    """Some ranks of the world, in another order."""
    run = Run(kind, 5, [client, "multiple", "subset"])
    run.expect("transport", "^mpi$", [1, 3])
    run.expect_done()


def case_posted(kind, client, _):
    """What Open MPI sends to make a communicator is among the program's own messages, at tags where these are not."""
    run = Run(kind, 3, [client, "multiple", "posted"])
    run.expect("transport", "^mpi$")
    run.expect_done()


def case_killed_early(kind, client, _):
    """A rank dies while the communicator is made: that is the reason, also where MPI has said before that it cannot make it."""
    if kind == "openmpi":  # mpiexec.hydra leaves them a tenth of a second
        run = Run(kind, 3, [client, "multiple", "killed-early"], options=["--enable-recovery"])
        run.expect("refused", "^6 .*rank 1 .*ended without leaving", [0, 2])


def case_ahead(kind, client, _):
    """What a rank has sent arrives while it computes, though MPI wants its help for that."""
    options = ["--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_eager_limit", "1024"] if kind == "openmpi" else []
    run = Run(kind, 3, [client, "multiple", "ahead"], options=options)
    run.expect("transport", "^mpi$")
    run.expect("left", "^0 calls$")
    found = run.expect("ahead", "s$")
    assert all(float(found[rank].split()[0]) < 1.5 for rank in (1, 2)), run.text
    run.expect_done()


def case_through(kind, client, _):
    """Who has made an all-reduce and computes owes the others nothing of it."""
    options = ["--mca", "pml", "ob1", "--mca", "btl", "self,tcp"] if kind == "openmpi" else []
    run = Run(kind, 3, [client, "multiple", "through"], options=options)
    run.expect("transport", "^mpi$")
    longest = run.expect("longest", "s$")
    times = {rank: float(text.split()[0]) for rank, text in longest.items()}
    assert all(times[rank] < times[0] + 0.45 for rank in times), run.text  # it computes for 0.6 s
    run.expect_done()


def case_differ(kind, client, _):
    """Long all-reduces of other lengths, of which MPI may find messages too long: the calls are the reason."""
    for ranks in (3, 4):
        Run(kind, ranks, [client, "multiple", "differ"]).expect_done()


def case_idle(kind, client, _):
    run = Run(kind, 3, [client, "multiple", "idle"])
    run.expect("transport", "^mpi$")
    run.expect("idle", "^0 calls$")
    run.expect_done()


def case_taken(kind, client, _):
    """Once MPI must not be called any more, what it has handed over already is still read."""
    run = Run(kind, 2, [client, "multiple", "taken"])
    run.expect("taken", "^1000 bytes, right, 0 calls$", [1])
    run.expect_done()


def case_pipes(kind, client, _):
    """A send to a rank that has just died ends nobody by SIGPIPE; elsewhere that signal does what it did."""
    for case in ("pipes", "pipes-ignored"):
        Run(kind, 2, [client, "multiple", case]).expect_done()


def until_told(kind, make_run):
    """mpiexec.hydra leaves the others a tenth of a second, in which none of them may have a processor: then once more."""
    for _ in range(3 if kind == "mpich" else 1):
        run = make_run()
        if run.lines("failed"):
            return run
    raise AssertionError(run.text)


def case_killed(kind, client, _):
    """Told by our own sockets; no MPI call after it; those who are left go on by TCP. mpirun is told to let them; mpiexec.hydra
    leaves them a tenth of a second in any case."""
    options = ["--enable-recovery"] if kind == "openmpi" else ["-disable-auto-cleanup"]
    # UCX, below MPICH, ends the process if the rank dies from whose memory it is copying just then.
    env = {} if kind == "openmpi" else {"UCX_TLS": "^cma"}

    for calls in LOST_IN:
        def run_once(calls=calls):
            with tempfile.TemporaryDirectory() as folder:
                return Run(kind, 4, [client, "multiple", "killed"], dict(env, **calls, TEST_ID_FILE=os.path.join(folder, "id")), options)

        expect_killed(kind, until_told(kind, run_once))


def expect_killed(kind, run):
    others = [0, 2, 3]
    run.expect("transport", "^mpi$")
    failed = "^6 .*rank 1 .*ended without leaving"
    if kind == "mpich":
        # Whoever was left the time to say it; of 0.1 s the second line needs most.
        run.expect("failed", failed, list(run.lines("failed")))
        if run.lines("quiet"):
            run.expect("quiet", "^0 calls$", list(run.lines("quiet")))
        return
    run.expect("failed", failed, others)
    run.expect("quiet", "^0 calls$", others)
    run.expect("rest", "^tcp after 0 calls$", others)


def case_many(kind, client, _):
    """Of more ranks than can all watch each other one is killed: all hear of it by those who watch it, and call MPI no more."""
    ranks = 20
    options = ["--enable-recovery"] if kind == "openmpi" else ["-disable-auto-cleanup"]
    env = {} if kind == "openmpi" else {"UCX_TLS": "^cma"}
    run = until_told(kind, lambda: Run(kind, ranks, [client, "multiple", "many"], env, options))
    run.expect("transport", "^mpi$")
    others = [rank for rank in range(ranks) if rank != 1]
    told = others if kind == "openmpi" else list(run.lines("failed"))  # whom mpiexec.hydra has left the time
    run.expect("failed", "^6 .*rank 1 .*ended without leaving", told)
    for word in ("quiet", "end"):
        run.expect(word, "^0 calls$", others if kind == "openmpi" else list(run.lines(word)))


def case_killed_by_default(kind, client, _):
    """Without that, mpirun ends the whole job, as docs/hosts.md says."""
    run = Run(kind, 3, [client, "multiple", "killed"])
    assert run.done.returncode != 0, run.text


def case_shrink(kind, client, _):
    """Without a rank that lives the new communicator has MPI too; without one that has died, TCP."""
    others = [0, 2, 3]
    run = Run(kind, 4, [client, "multiple", "shrink", "2"])
    run.expect("rest", "^mpi$", others)
    run.expect("last", "^mpi$", others)
    run.expect_done()
    if kind == "openmpi":  # mpiexec.hydra leaves them a tenth of a second
        Run(kind, 4, [client, "multiple", "shrink-dead"], options=["--enable-recovery"]).expect("rest", "^tcp$", others)


def case_abort(kind, client, _):
    for calls, said in zip(LOST_IN, ("has left .*ncclCommAbort", "called ncclCommAbort")):
        run = Run(kind, 3, [client, "multiple", "abort"], calls)
        run.expect("failed", f"^6 .*rank 1 {said}", [0, 2])
        run.expect("transport", "^mpi$")
        run.expect("mpi", ONCE)
        run.expect_done()


def case_silenced(kind, client, _):
    """Who may not call MPI any more tells of its abort by our own sockets. If it destroys instead, it is missed later, and by calls only."""
    if kind == "openmpi":  # mpiexec.hydra leaves them a tenth of a second
        for name, wanted in (("abort", "soon 6 .*rank 0 called ncclCommAbort"), ("destroy", "late 6 .*rank 0 .*has left the communicator, and")):
            Run(kind, 3, [client, "multiple", f"{name}-silenced"], options=["--enable-recovery"]).expect("failed", f"^{wanted}", [2])


def case_exits(kind, client, _):
    """A program that ends without MPI_Finalize is missed at once, and MPI is not called after that."""
    if kind == "openmpi":
        run = Run(kind, 3, [client, "multiple", "exits"], options=["--enable-recovery"])
        run.expect("failed", "^soon 6 .*rank 1 .*ended without leaving", [0, 2])
        run.expect("quiet", "^0 calls$", [0, 2])


def case_open_at_finalize(kind, client, _):
    """A communicator that outlives MPI fails, with the reason."""
    run = Run(kind, 2, [client, "multiple", "open-at-finalize"])
    run.expect("failed", "^6 .*MPI_Finalize")
    run.expect("finalized", "^after 0 calls$")
    run.expect("mpi", ONCE)
    run.expect_done()


def case_aborted_at_finalize(kind, client, _):
    """What a rank has aborted keeps nobody in MPI_Finalize, and leaves nothing there that MPICH would complain of."""
    run = Run(kind, 3, [client, "multiple", "aborted-at-finalize"])
    run.expect("finalized", "^soon$")
    assert "was not returned" not in run.text, run.text
    run.expect("mpi", ONCE)
    run.expect_done()


def case_perf(kind, _, perf):
    """tutti-perf, which is linked with no MPI, by --net mpi; by TCP otherwise. No place to meet has to be named."""
    with tempfile.TemporaryDirectory() as folder:
        for net, wanted in (("mpi", "mpi"), ("auto", "tcp"), ("tcp", "tcp")):
            rows = os.path.join(folder, net)
            script = (f'export NCCL_HOSTID=host-${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}; exec {perf} all_reduce -b 8 -e 1M '
                      f'-n 3 --net {net} --json {rows}')
            run = Run(kind, 3, ["sh", "-c", script])
            assert run.done.returncode == 0 and "FAILED" not in run.text, run.text
            with open(rows, encoding="utf-8") as file:
                found = json.load(file)
            assert found and all(row["transport"] == wanted and row["wire_bytes"] > 0 and row["wrong"] == 0 for row in found), found
    alone = subprocess.run([perf, "all_reduce", "--net", "mpi"], capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert alone.returncode == 2 and "mpirun or srun" in alone.stderr, alone.stderr


def check_rows(report, ranks, transport):
    with open(report, encoding="utf-8") as file:
        rows = json.load(file)
    assert rows and all(row["ranks"] == ranks and row["wrong"] == 0 and row["transport"] == transport for row in rows), rows


def case_pmi_port(kind, _, perf):
    """mpiexec.hydra -pmi-port tells the number of ranks to MPI alone: WORLD_SIZE says it, for want of which no rank takes itself for the only one."""
    if kind == "openmpi":
        return
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report")
        command = ["sh", "-c", f"NCCL_HOSTID=host-$PMI_ID exec {perf} all_reduce -b 8 -e 64K -f 64 -n 3 --net mpi --json {report}"]
        run = Run(kind, 3, command, options=["-pmi-port", "-genv", "WORLD_SIZE", "3"])
        assert run.done.returncode == 0, run.text
        check_rows(report, 3, "mpi")
        run = Run(kind, 3, command, options=["-pmi-port"])
        assert run.done.returncode != 0 and "WORLD_SIZE is not" in run.text, run.text


def case_programs(kind, _, perf):
    """The lines of docs/hosts.md for one host: mpirun -np 8 tutti-perf all_reduce, and mpirun tutti-train."""
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report")
        run = Run(kind, 8, [perf, "all_reduce", "-b", "8", "-e", "64K", "-f", "64", "-n", "3", "-w", "1", "--json", report])
        assert run.done.returncode == 0, run.text
        check_rows(report, 8, "local")
        if train := os.environ.get("TEST_TRAIN", ""):
            log = os.path.join(folder, "log")
            run = Run(kind, 2, [*trainer_command(train, os.path.join(folder, "text")), log])
            assert run.done.returncode == 0, run.text
            with open(log, encoding="utf-8") as file:
                assert losses(log) and "2 ranks" in run.text + file.read(), run.text


def case_variables(kind, _, perf):
    """mpirun's ways to give ranks a variable: Open MPI's -x, MPICH's -genv and -env."""
    where = f"tcp:127.0.0.1:{random.randrange(20000, 30000)}"
    ways = [["-x", f"TUTTI_RENDEZVOUS={where}"]]
    if kind == "mpich":
        ways = [["-genv", "TUTTI_RENDEZVOUS", where], ["-env", "TUTTI_RENDEZVOUS", where]]
    script = (f'test "$TUTTI_RENDEZVOUS" = {where} || exit 3; export NCCL_HOSTID=host-${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} NCCL_SOCKET_IFNAME=lo; '
              f'exec {perf} all_reduce -b 8 -e 64K -f 64 -n 3 --json "$0"')
    for way in ways:
        with tempfile.TemporaryDirectory() as folder:
            report = os.path.join(folder, "report")
            run = Run(kind, 3, ["sh", "-c", script, report], options=way)
            assert run.done.returncode == 0, run.text
            check_rows(report, 3, "tcp")


def case_gpu_memory(kind, _, perf):
    """Every collective on GPU memory, in several parts, by MPI between hosts: through pinned memory, on a driver without a GPU for each rank."""
    driver = os.environ.get("TEST_FAKE_DRIVER", "")
    if not driver:
        print("        gpu_memory: skipped: this build has no CUDA")
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = os.path.join(folder, "rows")
        # Those drivers have one GPU, all the same.
        script = (f'export NCCL_HOSTID=host-${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} NCCL_MULTI_RANK_GPU_ENABLE=1 LD_LIBRARY_PATH={driver}:$LD_LIBRARY_PATH; '
                  f'exec {perf} all --device cuda -b 8 -e 1M -f 512 -n 2 --net mpi --json {rows}')
        run = Run(kind, 3, ["sh", "-c", script], {"TUTTI_STAGING_BYTES": "131072"})
        assert run.done.returncode == 0 and "FAILED" not in run.text, run.text
        with open(rows, encoding="utf-8") as file:
            found = json.load(file)
    assert len({row["collective"] for row in found}) == 9, found
    for row in found:
        assert row["transport"] == "mpi" and row["device"].startswith("Fake") and row["wrong"] == 0, row
        assert row["wire_bytes"] > 0 or row["bytes"] == 0, row


if __name__ == "__main__":
    sys.exit(run_cases(sys.argv[1], sys.argv[4:], globals(), os.path.abspath(sys.argv[2]), os.path.abspath(sys.argv[3])))
