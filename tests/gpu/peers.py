#!/usr/bin/env python3
"""All-reduces of torch.distributed on ranks that share a GPU, float32, a process per rank: Tutti against NVIDIA's NCCL, which is told that each
rank is a host of its own (NCCL_HOSTID) as it refuses to share a GPU otherwise, and against Gloo on the same CUDA tensors. One table:
medians of whole calls, each waited for.

    peers.py LIBNCCL [RANKS] [--json FILE] [--place JSON]    ends with 3 where a peer is faster; with 77 where there is no PyTorch for CUDA, or no GPU.
                                                             --place: date, device, driver and commit, for FILE
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "clients"))
import client  # noqa: E402

SIZES = [8, 256, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20]
PEERS = ["tutti", "nccl", "gloo"]
MISSED = 3
LIMIT_S = 100


def be_rank(peer, results):
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    dist.init_process_group("gloo" if peer == "gloo" else "nccl")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for size in SIZES:
        values = (torch.arange(size // 4, device="cuda") % 1000 + rank).float()
        wanted = (torch.arange(size // 4, device="cuda") % 1000 * ranks + ranks * (ranks - 1) // 2).float()
        dist.all_reduce(values)
        assert torch.equal(values, wanted), f"{peer}: {size} bytes: wrong"
        times = []
        # In place again and again, as other work on the GPU would be in the way of ranks that are ahead: of 16 ranks 21 sums are 2^84-fold.
        for _ in range(20 if size <= 4 << 20 else 6):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            dist.all_reduce(values)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begun)
        if rank == 0:
            with open(results, "a", encoding="utf-8") as file:
                file.write(json.dumps({"peer": peer, "bytes": size, "us": round(statistics.median(times) * 1e6, 2)}) + "\n")
    dist.destroy_process_group()


def run(peer, ranks, library, results):
    """What kept the peer from running; empty: nothing."""
    port = client.free_port()
    processes = []
    try:
        for rank in range(ranks):
            place = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
            if peer == "tutti":
                place |= {"LD_PRELOAD": library, "NCCL_MULTI_RANK_GPU_ENABLE": 1}
            elif peer == "nccl":
                place |= {"NCCL_HOSTID": f"rank-{rank}", "NCCL_SOCKET_IFNAME": "lo"}
            command = [sys.executable, os.path.abspath(__file__), "--rank-of", peer, results]
            processes.append(subprocess.Popen(command, env={**os.environ, **{k: str(v) for k, v in place.items()}}))
        end = time.monotonic() + LIMIT_S
        for process in processes:
            try:
                if process.wait(max(0.1, end - time.monotonic())) != 0:
                    return f"a rank ended with {process.returncode}"
            except subprocess.TimeoutExpired:
                return f"not done after {LIMIT_S} s"
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return ""


def main():
    if sys.argv[1:2] == ["--rank-of"]:
        be_rank(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("ranks", type=int, nargs="?", default=4)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--place", metavar="JSON", type=json.loads, default={})
    options = parser.parse_args()
    client.need("torch")
    if client.gpus() == 0:
        client.skip("no GPU")
    with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as file:
        why = {peer: run(peer, options.ranks, os.path.realpath(options.library), file.name) for peer in PEERS}
        rows = [json.loads(line) for line in file]
    us = {(row["peer"], row["bytes"]): row["us"] for row in rows}
    for peer, reason in why.items():
        if reason:
            print(f"{peer}: {reason}")
    print(f"all-reduce, float32, {options.ranks} processes on one GPU, us\n{'bytes':>10}" + "".join(f"{peer:>12}" for peer in PEERS) + f"{'best/tutti':>12}")
    behind = bool(why["tutti"])
    for size in SIZES:
        peers = [us[peer, size] for peer in PEERS[1:] if (peer, size) in us]
        ratio = min(peers) / us["tutti", size] if peers and ("tutti", size) in us else None
        behind |= ratio is not None and ratio < 1
        print(f"{size:>10}" + "".join(f"{us.get((peer, size), '-'):>12}" for peer in PEERS) + (f"{ratio:>12.2f}" if ratio else f"{'-':>12}"))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump({**options.place, "ranks": options.ranks, "why": why, "rows": rows}, out, indent=1)
    if why["tutti"]:
        sys.exit(1)
    sys.exit(MISSED if behind else 0)


main()
