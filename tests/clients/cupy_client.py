#!/usr/bin/env python3
"""CuPy over the library: cupy.cuda.nccl's communicators, and cupyx.distributed, which stands on them.

    cupy_client.py LIBNCCL    ends with 77 where CuPy is not installed. Without a GPU, CuPy's communicators work on host memory
"""
import ctypes
import os
import pickle
import sys
import time

import client

COUNT = 1000


def check_import(library):
    from cupy.cuda import nccl
    from cupy_backends.cuda.libs import nccl as binary

    assert nccl.available
    client.check_taken(library, [ctypes.CDLL(None), ctypes.CDLL(binary.__file__)])
    assert nccl.get_version() == 22809, nccl.get_version()
    first, second = nccl.get_unique_id(), nccl.get_unique_id()
    assert len(first) == 128 and first != second


def check_communicators(array_of, address, stream, wait, comm, rank, ranks):
    """`array_of(values)` and `address(array)`: memory that calls work on; `wait()`: until the stream has done them."""
    import numpy
    from cupy.cuda import nccl

    def filled(value, count=COUNT):
        return array_of(numpy.full(count, value, dtype=numpy.float32))

    def expect(array, wanted):
        wait()
        assert (numpy.asarray(array.get() if hasattr(array, "get") else array) == wanted).all(), f"rank {rank}: {array} is not {wanted}"

    total = ranks * (ranks + 1) // 2
    mine, result = filled(rank + 1), filled(-1)
    comm.allReduce(address(mine), address(result), COUNT, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream)
    expect(result, total)
    comm.reduce(address(mine), address(result), COUNT, nccl.NCCL_FLOAT32, nccl.NCCL_MAX, 0, stream)
    expect(result, ranks if rank == 0 else total)
    comm.broadcast(address(mine), address(result), COUNT, nccl.NCCL_FLOAT32, ranks - 1, stream)
    expect(result, ranks)
    gathered = filled(-1, COUNT * ranks)
    comm.allGather(address(mine), address(gathered), COUNT, nccl.NCCL_FLOAT32, stream)
    expect(gathered, numpy.repeat(numpy.arange(1, ranks + 1), COUNT))
    comm.reduceScatter(address(gathered), address(result), COUNT, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream)
    expect(result, ranks * (rank + 1))
    nccl.groupStart()
    comm.send(address(mine), COUNT, nccl.NCCL_FLOAT32, (rank + 1) % ranks, stream)
    comm.recv(address(result), COUNT, nccl.NCCL_FLOAT32, (rank - 1) % ranks, stream)
    nccl.groupEnd()
    expect(result, (rank - 1) % ranks + 1)


def communicator(rank, ranks):
    """The id goes to the others as a file named after the job."""
    from cupy.cuda import nccl

    path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"cupy-client-{os.environ['MASTER_PORT']}-{os.getppid()}")
    if rank == 0:
        with open(path + ".part", "wb") as file:
            pickle.dump(nccl.get_unique_id(), file)  # bytes, or in older versions a tuple
        os.rename(path + ".part", path)
    end = time.monotonic() + 60
    while not os.path.exists(path):
        assert time.monotonic() < end, f"rank 0 has not written {path}"
        time.sleep(0.01)
    with open(path, "rb") as file:
        unique = pickle.load(file)
    comm = nccl.NcclCommunicator(ranks, unique, rank)
    if rank == 0:
        os.unlink(path)
    assert (comm.size(), comm.rank_id()) == (ranks, rank)
    return comm


def check_distributed(rank, ranks):
    """cupyx.distributed has a server of its own, in rank 0's process, at MASTER_PORT."""
    import cupy
    from cupyx.distributed import init_process_group

    group = init_process_group(ranks, rank, host="127.0.0.1", port=int(os.environ["MASTER_PORT"]))
    mine, result = cupy.full(COUNT, rank + 1, dtype=cupy.float32), cupy.zeros(COUNT, dtype=cupy.float32)
    group.all_reduce(mine, result)
    assert (result == ranks * (ranks + 1) // 2).all()
    group.broadcast(result, root=0)
    gathered = cupy.zeros((ranks, COUNT), dtype=cupy.float32)
    group.all_gather(mine, gathered, COUNT)
    assert (gathered == cupy.arange(1, ranks + 1, dtype=cupy.float32)[:, None]).all()
    group.reduce_scatter(gathered, result, COUNT)
    assert (result == ranks * (rank + 1)).all()
    swapped = cupy.zeros((ranks, COUNT), dtype=cupy.float32)
    group.all_to_all(gathered, swapped)
    assert (swapped == rank + 1).all()
    group.barrier()


def be_rank(where):
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if where == "host":
        comm = communicator(rank, ranks)
        check_communicators(lambda values: values, lambda array: array.ctypes.data, 0, lambda: None, comm, rank, ranks)
    else:
        import cupy
        stream = cupy.cuda.Stream(non_blocking=True)
        comm = communicator(rank, ranks)
        with stream:
            check_communicators(cupy.asarray, lambda array: array.data.ptr, stream.ptr, stream.synchronize, comm, rank, ranks)
        check_distributed(rank, ranks)
    comm.destroy()
    print(f"{where}: rank {rank} of {ranks} is right", flush=True)


def main():
    library = sys.argv[1]
    client.need("cupy", "numpy")
    client.take(library)
    if len(sys.argv) > 2:
        be_rank(sys.argv[2])
        return
    check_import(library)
    print(f"CuPy has loaded {library}", flush=True)
    where = "GPU" if client.gpus() > 0 else "host"
    for ranks in (1, 4):
        client.run_ranks(where, ranks)
    if where == "host":
        print("without a GPU: CuPy's communicators work on host memory")


main()
