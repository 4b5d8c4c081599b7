"""Sends and receives of GPU memory between hosts by an MPI that takes it (TUTTI_CUDA_MPI), under mpirun: that nothing is staged, who decides,
calls that stay staged, and failures. On a driver without a GPU, whose memory any MPI takes.

usage: gpu_test.py KIND CLIENT TUTTI_PERF [CASE]     KIND: openmpi or mpich
"""
import json
import os
import re
import sys
import tempfile

from mpirun import Run, run_cases
from turn import has_turn

PARTS = {"TUTTI_STAGING_BYTES": "65536"}  # so that long messages have several
FORCED = dict(PARTS, TUTTI_CUDA_MPI="force")
POSTED = r"^(\d+) messages, (\d+) on the GPU, (\d+) bytes of (\d+), (\d+) without a context; (\d+) bytes staged, (flushed|not flushed)$"
# For those whom a death leaves alone, and so that UCX does not copy from the dead rank's memory.
SURVIVE = {"openmpi": (["--enable-recovery"], {}), "mpich": (["-disable-auto-cleanup"], {"UCX_TLS": "^cma"})}


def posted(run):
    """{rank: what it says of messages of users' memory}"""
    names = ("messages", "on_gpu", "bytes", "wanted", "without_context", "staged")
    found = {}
    for rank, text in run.expect("posted", POSTED).items():
        numbers = re.match(POSTED, text)
        found[rank] = dict(zip(names, map(int, numbers.groups()[:6])), flushed=numbers.group(7) == "flushed")
    return found


def expect_all_by_mpi(run):
    run.expect("wire", "^enough$")
    run.expect_done()
    for rank, said in posted(run).items():
        assert said["bytes"] == said["wanted"] > 0 and said["on_gpu"] == said["messages"] > 0, (rank, said)
        assert said["without_context"] == 0 and said["flushed"], (rank, said)


def expect_nothing_by_mpi(run):
    run.expect_done()
    for rank, said in posted(run).items():
        assert said["messages"] == 0 and said["staged"] > 0 and not said["flushed"], (rank, said)


def case_sends(kind, client, _):
    """Every byte goes as a message of its caller's memory, and none through pinned memory; of several ranks on a host, those to other hosts."""
    for ranks, per_host in ((2, "1"), (3, "1"), (4, "2")):
        run = Run(kind, ranks, [client, "sends", per_host], dict(FORCED, NCCL_DEBUG="INFO"))
        run.expect("transport", "^mpi$")
        expect_all_by_mpi(run)
        for rank, said in posted(run).items():
            assert (said["staged"] == 0) == (per_host == "1"), (rank, said)
        assert "copied between hosts is MPI's as it is: TUTTI_CUDA_MPI=force on rank 0" in run.text, run.text


def case_copies(kind, client, _):
    """All-gather, all-to-all, gather and scatter of hosts of one rank each likewise; with a rank more on a host they are staged, but for what goes by
    teams: slices of longer all-gathers."""
    for ranks in (2, 3):
        run = Run(kind, ranks, [client, "copies"], FORCED)
        expect_all_by_mpi(run)
        assert all(said["staged"] == 0 for said in posted(run).values()), run.text
    run = Run(kind, 3, [client, "all-collectives"], FORCED)
    run.expect_done()
    for said in posted(run).values():
        # An all-to-all in place is staged at its end.
        assert said["bytes"] == said["wanted"] and 0 < said["on_gpu"] < said["messages"] and said["staged"] > 0, said
    for apart in ("1", "0"):
        run = Run(kind, 3, [client, "all-collectives", "2"], dict(FORCED, NCCL_P2P_DISABLE=apart))
        run.expect_done()
        for rank, said in posted(run).items():
            assert (said["messages"] > 0) == (apart == "0" and rank != 1) and said["staged"] > 0, (rank, run.text)


def is_left_out(kind, place):
    """Of the three longest cases each MPI tries another one at a time (turn.py)."""
    if has_turn(place + (kind == "mpich"), 3):
        return False
    print("left to another commit")
    return True


def case_sums(kind, client, _):
    """Sums and broadcasts of hosts of one rank each: no byte is staged, and as many go as shares have, to the byte."""
    if is_left_out(kind, 0):
        return
    for ranks in (2, 3):
        run = Run(kind, ranks, [client, "sums"], FORCED)
        run.expect_done()
        for said in posted(run).values():
            assert said["bytes"] == said["wanted"] > 0 and said["staged"] == 0 and said["flushed"], said
            assert 0 < said["on_gpu"] < said["messages"] and said["without_context"] == 0, said  # scratch memory is not the program's
    run = Run(kind, 2, [client, "sums-staged"], FORCED)
    run.expect_done()
    found = posted(run)
    assert all(said["bytes"] == said["wanted"] for said in found.values()), found
    assert found[0]["staged"] == 0 < found[1]["staged"] and found[1]["on_gpu"] == 0, found
    run = Run(kind, 2, [client, "sums-side-by-side"], FORCED)
    run.expect_done()
    assert all(said["bytes"] == said["wanted"] > 0 == said["staged"] for said in posted(run).values()), run.text
    run = Run(kind, 3, [client, "captured-sums"], FORCED)
    run.expect_done()
    assert all(said["on_gpu"] == 0 < said["staged"] and said["messages"] > 0 for said in posted(run).values()), run.text


def case_sums_the_old_way(kind, client, _):
    """A rule that names schedules of the host's leaves sums to it; so it is where sums are to be reproducible, or nobody has asked, or hosts have
    several ranks and no teams."""
    if is_left_out(kind, 1):
        return
    for rule in ({"NCCL_ALGO": "Ring"}, {"TUTTI_REPRODUCIBLE": "1"}, {"TUTTI_CUDA_MPI": "0"}):
        run = Run(kind, 2, [client, "sums"], dict(FORCED, **rule))
        run.expect_done()
        assert all(said["messages"] == 0 < said["staged"] for said in posted(run).values()), run.text
    run = Run(kind, 3, [client, "sums", "2"], dict(FORCED, NCCL_P2P_DISABLE="1"))
    run.expect_done()
    assert all(said["messages"] == 0 < said["staged"] for said in posted(run).values()), run.text


def case_teams(kind, client, _):
    """Hosts of several ranks: their teams across go by messages, each with its share of the bytes. Only the factors are staged, for the
    messages and in words of the ranks' streams. A rank that is in none has nothing to send."""
    if is_left_out(kind, 2):
        return
    alone = Run(kind, 2, [client, "sums"], dict(FORCED, TUTTI_STAGING_BYTES="131072"))
    alone.expect_done()
    run = Run(kind, 4, [client, "sums", "2"], dict(FORCED, TUTTI_STAGING_BYTES="262144"))
    run.expect_done()
    for said in posted(run).values():
        assert said["bytes"] == posted(alone)[0]["bytes"] and 0 < said["staged"] < 200 and said["flushed"], (said, alone.text)
    run = Run(kind, 4, [client, "captured-sums", "2"], dict(FORCED, TUTTI_STAGING_BYTES="262144"))
    run.expect_done()
    run = Run(kind, 3, [client, "sums", "2"], dict(FORCED, TUTTI_STAGING_BYTES="131072"))
    run.expect_done()
    for rank, said in posted(run).items():
        assert (said["messages"] > 0) == (rank != 1) and said["staged"] < 200, (rank, said)


def case_off(kind, client, _):
    """By default; and the log says how it could be on, where it could."""
    run = Run(kind, 2, [client, "sends"], dict(PARTS, NCCL_DEBUG="INFO"))
    expect_nothing_by_mpi(run)
    assert "CUDA_MPI" not in run.text, run.text
    run = Run(kind, 2, [client, "sends"], dict(PARTS, NCCL_DEBUG="INFO", TEST_MPI_SAYS="1"))
    expect_nothing_by_mpi(run)
    assert "goes through pinned memory: all ranks' MPI says that it takes GPU memory; TUTTI_CUDA_MPI=1 uses that" in run.text, run.text


def case_asked(kind, client, _):
    """1: as MPI says. One rank's that cannot is enough for all."""
    asked = dict(PARTS, TUTTI_CUDA_MPI="1", NCCL_DEBUG="INFO")
    run = Run(kind, 2, [client, "sends"], dict(asked, TEST_MPI_SAYS="1"))
    expect_all_by_mpi(run)
    assert "TUTTI_CUDA_MPI=1 on rank 0, and all ranks' MPI says that it takes GPU memory" in run.text, run.text
    script = f'test "${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}" = 1 && export TEST_MPI_SAYS=0 || export TEST_MPI_SAYS=1; exec {client} sends'
    run = Run(kind, 3, ["sh", "-c", script], asked)
    expect_nothing_by_mpi(run)
    why = "goes through pinned memory: in spite of TUTTI_CUDA_MPI on rank 0: the MPI of rank 1 says that it does not take GPU memory"
    assert run.text.count(why) == 6, run.text  # each rank, for each communicator
    run = Run(kind, 2, [client, "sends"], dict(asked, TUTTI_CUDA_MPI="force", TUTTI_NET="tcp"))
    expect_nothing_by_mpi(run)
    assert "in spite of TUTTI_CUDA_MPI on rank 0: the network is TCP; rank 0: TUTTI_NET=tcp" in run.text, run.text


def case_as_the_mpi_says(kind, _, perf):
    """A program that answers for nobody: the MPI itself is asked."""
    script = (f'export NCCL_HOSTID=host-${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} NCCL_MULTI_RANK_GPU_ENABLE=1 LD_LIBRARY_PATH={driver()}:$LD_LIBRARY_PATH; '
              f'exec {perf} sendrecv --device cuda -b 8 -e 64K -f 64 -n 2 --net mpi')
    run = Run(kind, 2, ["sh", "-c", script], {"TUTTI_CUDA_MPI": "1", "NCCL_DEBUG": "INFO"})
    assert run.done.returncode == 0 and "FAILED" not in run.text, run.text
    assert re.search("between hosts (is MPI's as it is|goes through pinned memory: in spite of TUTTI_CUDA_MPI on rank 0: the MPI of rank 0 (says|cannot))", run.text), run.text


def case_rank_0_decides(kind, client, _):
    script = 'test "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = %d && export TUTTI_CUDA_MPI=force; exec ' + client + " sends"
    expect_all_by_mpi(Run(kind, 2, ["sh", "-c", script % 0], PARTS))
    expect_nothing_by_mpi(Run(kind, 2, ["sh", "-c", script % 1], PARTS))


def case_differ(kind, client, _):
    """Counts that differ are an error on both ranks, and nothing has moved."""
    run = Run(kind, 2, [client, "differ"], FORCED)
    run.expect("failed", "^5 .*send and recv differ, and nothing was done: rank 0 sends count 100 .*, rank 1 receives count 90 ")
    run.expect("before", "^untouched, 0 messages$")
    assert all(said["messages"] == 2 for said in posted(run).values()), run.text
    run.expect("gathered", "^5 .*the ranks' calls differ, and nothing was done: .*count 50.*count 51")
    run.expect("gather", "^0 messages$")
    run.expect_done()
    run = Run(kind, 2, [client, "differ-sums"], FORCED)
    run.expect("summed", "^5 .*the ranks' calls differ, and nothing was done: .*count 100002.*count 100003")
    run.expect("longer", "^0 messages$")
    run.expect("broadcast", "^5 .*the ranks' calls differ, and nothing was done: all_reduce count 100003.*broadcast count 100003")
    run.expect("other", "^0 messages$")
    run.expect_done()


def case_default_stream(kind, client, _):
    """Streams that the default stream waits for, where MPI may copy: the rank's data is staged, and MPI's message is of pinned memory."""
    run = Run(kind, 2, [client, "default-stream"], FORCED)
    run.expect_done()
    found = posted(run)
    assert all(said["bytes"] == said["wanted"] > 0 and said["staged"] > 0 for said in found.values()), found
    assert found[0]["on_gpu"] == 0 and 0 < found[1]["on_gpu"] < found[1]["messages"], found


def case_captured(kind, client, _):
    """Captured calls stay staged, whatever the other end does."""
    run = Run(kind, 2, [client, "captured"], FORCED)
    run.expect_done()
    for said in posted(run).values():
        assert said["on_gpu"] == 0 and said["bytes"] == said["wanted"] and said["staged"] > 0, said
    run.expect("mixed", "^0 on the GPU$", [0])
    run.expect("mixed", "^[1-9][0-9]* on the GPU$", [1])


def case_killed(kind, client, _):
    """A receive whose send never comes ends with the death of its sender, and MPI is not called any more."""
    options, env = SURVIVE[kind]
    run = Run(kind, 2, [client, "killed"], dict(FORCED, **env), options)
    if kind == "mpich" and not run.lines("quiet"):
        return  # mpiexec.hydra leaves a tenth of a second
    run.expect("failed", "^6 .*rank 0 .*ended without leaving", [1])
    run.expect("after", "^untouched, 0 cancelled$", [1])
    run.expect("quiet", "^0 calls$", [1])
    run.expect("pinned", "^0 regions$", [1])
    # Also where MPI has refused to go on before.
    for name in ("killed-refused", "killed-refused-sum"):
        run = Run(kind, 2, [client, name], dict(FORCED, **env), options)
        if kind == "openmpi" or run.lines("quiet"):
            run.expect("failed", "^6 .*rank 0 .*ended without leaving", [1])
    # Where MPI may go on to write to pinned memory, that stays.
    run = Run(kind, 2, [client, "killed-staged"], dict(FORCED, **env), options)
    if kind == "openmpi" or run.lines("quiet"):
        run.expect("quiet", "^0 calls$", [1])
        run.expect("pinned", "^1 regions$", [1])
    # So does scratch memory.
    run = Run(kind, 2, [client, "killed-sum"], dict(FORCED, **env), options)
    if kind == "openmpi" or run.lines("quiet"):
        run.expect("failed", "^6 .*rank 0 .*ended without leaving", [1])
        run.expect("quiet", "^0 calls$", [1])
        run.expect("scratch", "^1 allocations$", [1])


def case_abort(kind, client, _):
    """While a receive waits: it is cancelled, its memory stays as it was, and new communicators have MPI."""
    run = Run(kind, 2, [client, "abort"], FORCED)
    run.expect("failed", "^6 .*rank 0 called ncclCommAbort", [1])
    run.expect("after", "^untouched, 1 cancelled$", [1])
    run.expect_done()
    run = Run(kind, 2, [client, "abort-copy"], FORCED)
    run.expect("failed", "^6 .*rank 0 called ncclCommAbort", [1])
    run.expect("after", "1 cancelled$", [1])
    run.expect_done()
    run = Run(kind, 2, [client, "abort-sum"], FORCED)
    run.expect("failed", "^6 .*rank 0 called ncclCommAbort", [1])
    run.expect("after", "1 cancelled$", [1])
    run.expect_done()
    run = Run(kind, 2, [client, "abort-staged"], FORCED)
    run.expect("after", "1 cancelled$", [1])
    run.expect("pinned", "^1 regions$", [0])  # a send cannot be cancelled
    run.expect("pinned", "^0 regions$", [1])
    run.expect_done()
    run = Run(kind, 2, [client, "abort-self"], FORCED)
    run.expect("failed", "^6 .*rank 1 called ncclCommAbort", [0])
    run.expect("after", "^untouched, 1 cancelled$", [1])
    run.expect_done()


def case_error(kind, client, _):
    """MPI's own error is the communicator's, on all ranks."""
    run = Run(kind, 2, [client, "error"], FORCED)
    run.expect("failed", "send to rank 1 #1: MPI_Isend: ")
    run.expect("after", "^untouched, 1 cancelled$", [1])
    run.expect_done()


def driver():
    """The folder of the driver without a GPU, among those that Meson names."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":") + [os.path.join(os.path.dirname(sys.argv[2]), "../cuda")]
    return next(os.path.abspath(folder) for folder in folders if os.path.exists(os.path.join(folder, "libcuda.so.1")))


def case_perf(kind, _, perf):
    """Everything that tutti-perf measures, with messages where there can be some."""
    with tempfile.TemporaryDirectory() as folder:
        rows = os.path.join(folder, "rows")
        script = (f'export NCCL_HOSTID=host-${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} NCCL_MULTI_RANK_GPU_ENABLE=1 LD_LIBRARY_PATH={driver()}:$LD_LIBRARY_PATH; '
                  f'exec {perf} all --device cuda -b 8 -e 1M -f 512 -n 2 --net mpi --json {rows}')
        run = Run(kind, 3, ["sh", "-c", script], FORCED)
        assert run.done.returncode == 0 and "FAILED" not in run.text, run.text
        with open(rows, encoding="utf-8") as file:
            found = json.load(file)
    assert len({row["collective"] for row in found}) == 9 and all(row["wrong"] == 0 for row in found), found
    assert all(row["wire_bytes"] > 0 or row["bytes"] == 0 for row in found), found


if __name__ == "__main__":
    sys.exit(run_cases(sys.argv[1], sys.argv[4:], globals(), os.path.abspath(sys.argv[2]), os.path.abspath(sys.argv[3])))
