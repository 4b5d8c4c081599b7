"""What the clients share: taking the library that is tested, and saying what kept a client from running."""
import ctypes
import importlib.util
import os
import socket
import subprocess
import sys

SKIPPED = 77
LIMIT_S = 240


def skip(reason):
    print("skipped:", reason)
    sys.exit(SKIPPED)


def need(*modules):
    """Ends the client where a framework is not installed."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            skip(f"{module} is not installed for {sys.executable}")


def take(library):
    """Starts this program again with `library` loaded before anything else. Frameworks' wheels find NVIDIA's library by a path of their
    own (RPATH), which LD_LIBRARY_PATH does not change; a library that is loaded already serves all who need one of its name. Every name that
    is needed must be there at once."""
    library = os.path.realpath(library)
    if os.environ.get("LD_PRELOAD") != library:
        os.environ.update(LD_PRELOAD=library, LD_BIND_NOW="1", NCCL_MULTI_RANK_GPU_ENABLE="1")
        os.execv(sys.executable, [sys.executable, *sys.argv])


def gpus():
    """How many GPUs the driver finds; 0 without a driver too."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    return count.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


class Found(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p)]


def file_of(function):
    """The library that a function of ctypes is in."""
    found = Found()
    assert ctypes.CDLL(None).dladdr(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(found)) != 0
    return os.path.realpath(found.file.decode())


def check_taken(library, lookups):
    """`lookups`: libraries, as ctypes has them, in which the framework finds NCCL's functions. All must be those of `library`, which says
    that it is NCCL 2.28.9."""
    for lookup in lookups:
        found = file_of(lookup.ncclAllReduce)
        assert found == os.path.realpath(library), f"ncclAllReduce is that of {found}"
        version = ctypes.c_int()
        assert lookup.ncclGetVersion(ctypes.byref(version)) == 0 and version.value == 22809, version.value


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_ranks(what, ranks):
    """This program again, once for each rank, with `what` as one more argument and a launcher's variables. All must end well."""
    port = free_port()
    processes = []
    try:
        for rank in range(ranks):
            place = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
            processes.append(subprocess.Popen([sys.executable, *sys.argv, what], env={**os.environ, **{k: str(v) for k, v in place.items()}}))
        for process in processes:
            assert process.wait(LIMIT_S) == 0, f"{what}, {ranks} ranks: a rank ended with {process.returncode}"
    finally:
        for process in processes:
            process.kill()
            process.wait()
