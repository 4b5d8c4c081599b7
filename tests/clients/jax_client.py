#!/usr/bin/env python3
"""JAX over the library: sums and gathers over all devices in jax.shard_map, in two processes that share the first GPU.

    jax_client.py LIBNCCL    ends with 77 where JAX's CUDA plug-in is not installed. Without a GPU it looks at what can be seen without one, and
                             does the rest on JAX's CPU devices, so that this client is known to be right
"""
import ctypes
import glob
import importlib.util
import mmap
import os
import re
import sys

import client

RANKS = 2
COUNT = 1000


def plugin_file():
    """XLA for CUDA; JAX's wheels are called after CUDA's version."""
    for name in ("xla_cuda13", "xla_cuda12"):
        found = importlib.util.find_spec("jax_plugins") and importlib.util.find_spec(f"jax_plugins.{name}")
        if found:
            return glob.glob(os.path.join(found.submodule_search_locations[0], "*.so"))[0]
    return None


def check_import(library, plugin):
    """XLA opens libnccl.so.2 by its name, and looks each function up; JAX has opened that of NVIDIA's wheel by its path before."""
    import jax  # noqa: F401

    ctypes.CDLL(plugin)
    client.check_taken(library, [ctypes.CDLL("libnccl.so.2")])
    opened = ctypes.CDLL("libnccl.so.2")
    with open(plugin, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as text:
        names = sorted({name.decode() for name in re.findall(rb"\0(nccl[A-Z][A-Za-z]+)(?=\0)", text)})
    assert "ncclAllReduce" in names, f"{plugin} has no names of NCCL's functions"
    missing = [name for name in names if not hasattr(opened, name)]
    assert not missing, f"XLA looks for {missing}"
    print(f"XLA looks for {len(names)} functions; all are there", flush=True)


def be_rank(platform):
    import jax
    import numpy
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if platform == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{os.environ['MASTER_PORT']}", ranks, rank, local_device_ids=[0])
    assert len(jax.devices()) == ranks, jax.devices()
    mesh = Mesh(numpy.array(jax.devices()), ("ranks",))
    everywhere, by_rank = PartitionSpec(), PartitionSpec("ranks")
    mine = numpy.full((1, COUNT), rank + 1, dtype=numpy.float32)
    whole = jax.make_array_from_process_local_data(NamedSharding(mesh, by_rank), mine)

    def over_ranks(function, out):
        result = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=by_rank, out_specs=out, check_vma=False))(whole)
        return numpy.asarray(result.addressable_shards[0].data)

    assert (over_ranks(lambda block: jax.lax.psum(block, "ranks"), everywhere) == ranks * (ranks + 1) // 2).all()
    assert (over_ranks(lambda block: jax.lax.pmax(block, "ranks"), everywhere) == ranks).all()
    gathered = over_ranks(lambda block: jax.lax.all_gather(block, "ranks", tiled=True), everywhere)
    assert (gathered == numpy.arange(1, ranks + 1)[:, None]).all()
    passed = over_ranks(lambda block: jax.lax.ppermute(block, "ranks", [(n, (n + 1) % ranks) for n in range(ranks)]), by_rank)
    assert (passed == (rank - 1) % ranks + 1).all()
    scattered = over_ranks(lambda block: jax.lax.psum_scatter(block, "ranks", scatter_dimension=1, tiled=True), by_rank)
    assert (scattered == ranks * (ranks + 1) // 2).all() and scattered.size == COUNT // ranks
    jax.distributed.shutdown()
    print(f"{platform}: rank {rank} of {ranks} is right", flush=True)


def main():
    library = sys.argv[1]
    client.need("jax")
    plugin = plugin_file()
    if plugin is None:
        client.skip("JAX is installed without its CUDA plug-in")
    client.take(library)
    if len(sys.argv) > 2:
        be_rank(sys.argv[2])
        return
    check_import(library, plugin)
    print(f"JAX has loaded {library}", flush=True)
    platform = "cuda" if client.gpus() else "cpu"
    os.environ.update(JAX_PLATFORMS=platform, XLA_PYTHON_CLIENT_PREALLOCATE="false")
    client.run_ranks(platform, RANKS)
    if platform == "cpu":
        print("without a GPU: the rest is JAX's own, on its CPU devices")


main()
