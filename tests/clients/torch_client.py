#!/usr/bin/env python3
"""torch.distributed's "nccl" backend over the library: collectives, send and receive, and DistributedDataParallel, with 1 rank and with 4 that
share a GPU; training must end with the losses of a single process that has the whole batch.

    torch_client.py LIBNCCL    ends with 77 where PyTorch for CUDA is not installed. Without a GPU it looks at what can be seen without one,
                               and does the rest by PyTorch's own Gloo, so that this client is known to be right
"""
import ctypes
import os
import sys

import client

STEPS = 5
BATCH = 16


def check_import(library):
    """`import torch` needs every name that libtorch_cuda.so imports."""
    import torch
    import torch.distributed as dist

    assert dist.is_nccl_available()
    binary = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cuda.so")
    client.check_taken(library, [ctypes.CDLL(None), ctypes.CDLL(binary)])
    first, second = torch.cuda.nccl.unique_id(), torch.cuda.nccl.unique_id()
    assert len(first) == 128 and first != second
    if not torch.cuda.is_available():
        try:
            dist.init_process_group("nccl", rank=0, world_size=1, init_method=f"tcp://127.0.0.1:{client.free_port()}")
            dist.barrier()
        except (RuntimeError, ValueError) as refusal:
            print("without a GPU, PyTorch says:", str(refusal).splitlines()[0])
        else:
            raise AssertionError("a process group of NCCL without a GPU")


def check_collectives(dist, torch, device, rank, ranks):
    def of(value, count=1000):
        return torch.full((count,), float(value), device=device)

    def same(tensor, value):
        assert torch.equal(tensor, of(value, tensor.numel())), f"rank {rank}: {tensor[:4]} is not {value}"

    total = ranks * (ranks + 1) // 2
    summed = of(rank + 1)
    dist.all_reduce(summed)
    same(summed, total)
    largest = of(rank + 1).to(torch.bfloat16)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    same(largest.float(), ranks)
    gathered = of(0, 1000 * ranks)
    dist.all_gather_into_tensor(gathered, of(rank + 1))
    scattered = of(0)
    dist.reduce_scatter_tensor(scattered, torch.cat([of(block + rank) for block in range(ranks)]))
    same(scattered, ranks * rank + total - ranks)
    for block in range(ranks):
        same(gathered[1000 * block:1000 * (block + 1)], block + 1)
    for root in range(ranks):
        told = of(rank)
        dist.broadcast(told, src=root)
        same(told, root)
    dist.barrier()
    if ranks > 1:
        received = of(-1)
        both = [dist.P2POp(dist.isend, of(rank), (rank + 1) % ranks), dist.P2POp(dist.irecv, received, (rank - 1) % ranks)]
        for request in dist.batch_isend_irecv(both):
            request.wait()
        same(received, (rank - 1) % ranks)
    if rank == 0 and ranks > 1:
        dist.send(of(17), dst=1)
    elif rank == 1:
        received = of(-1)
        dist.recv(received, src=0)
        same(received, 17)


def train(torch, device, wrap, share):
    """Losses, as sums over this process's `share` of each batch, step by step."""
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)).to(device)
    inputs = torch.randn(STEPS, BATCH, 8).to(device)
    targets = torch.randn(STEPS, BATCH, 4).to(device)
    model = wrap(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        optimiser.zero_grad()
        errors = torch.nn.functional.mse_loss(model(inputs[step][share]), targets[step][share], reduction="none").mean(1)
        errors.mean().backward()
        optimiser.step()
        losses.append(errors.sum().detach())
    return torch.stack(losses)


def check_training(dist, torch, device, rank, ranks):
    from torch.nn.parallel import DistributedDataParallel

    alone = train(torch, device, lambda model: model, slice(None))
    together = train(torch, device, DistributedDataParallel, slice(rank, None, ranks))
    dist.all_reduce(together)
    # The sums are taken in another order.
    assert torch.allclose(together, alone, rtol=1e-4), f"{together} is not {alone}"


def be_rank(backend):
    import torch
    import torch.distributed as dist

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", 0) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    check_collectives(dist, torch, device, rank, ranks)
    check_training(dist, torch, device, rank, ranks)
    dist.destroy_process_group()
    print(f"{backend}: rank {rank} of {ranks} is right", flush=True)


def main():
    library = sys.argv[1]
    client.need("torch")
    client.take(library)
    if len(sys.argv) > 2:
        be_rank(sys.argv[2])
        return
    import torch
    if torch.version.cuda is None:
        client.skip(f"PyTorch {torch.__version__} is built without CUDA")
    check_import(library)
    print(f"PyTorch {torch.__version__}, built for NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}, has loaded {library}", flush=True)
    if not torch.cuda.is_available():
        client.run_ranks("gloo", 4)
        print("without a GPU: the rest is PyTorch's own Gloo")
        return
    for ranks in (1, 4):
        client.run_ranks("nccl", ranks)


main()
