#!/usr/bin/env python3
"""A client that loads libnccl.so.2 by ctypes, as vLLM's does: every name is looked up first, the version's digits are read, then two ranks of
this process share device 0 and all-reduce in a group, eagerly and in a captured graph. Memory and streams come from the driver.

    ctypes_client.py LIBNCCL    ends with 77 where there is no CUDA driver
"""
import ctypes as c
import sys

NAMES = ["ncclGetErrorString", "ncclGetVersion", "ncclGetUniqueId", "ncclCommInitRank", "ncclAllReduce", "ncclAllGather", "ncclReduce",
         "ncclReduceScatter", "ncclSend", "ncclRecv", "ncclBroadcast", "ncclCommDestroy", "ncclGroupStart", "ncclGroupEnd",
         "ncclCommWindowRegister", "ncclCommWindowDeregister"]
COUNT = 1000
FLOAT, SUM = 7, 0


class UniqueId(c.Structure):
    _fields_ = [("internal", c.c_byte * 128)]


class Driver:
    """The few functions of the CUDA driver that a client needs."""

    def __init__(self):
        library = c.CDLL("libcuda.so.1")
        self.find = library.cuGetProcAddress
        self.call("cuInit", 2000, c.c_uint(0))
        context = c.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", 7000, c.byref(context), c.c_int(0))
        self.call("cuCtxSetCurrent", 4000, context)

    def call(self, name, version, *arguments):
        address = c.c_void_p()
        assert self.find(name.encode(), c.byref(address), c.c_int(version), c.c_uint64(0)) == 0 and address.value, name
        result = c.CFUNCTYPE(c.c_int)(address.value)(*arguments)
        assert result == 0, f"{name}: CUDA error {result}"

    def allocate(self, values):
        memory = c.c_uint64()
        self.call("cuMemAlloc", 3020, c.byref(memory), c.c_size_t(c.sizeof(values)))
        self.copy(memory.value, c.addressof(values), c.sizeof(values))
        return memory.value

    def copy(self, to, source, size):
        stream = self.stream()
        self.call("cuMemcpyAsync", 4000, c.c_uint64(to), c.c_uint64(source), c.c_size_t(size), stream)
        self.call("cuStreamSynchronize", 2000, stream)
        self.call("cuStreamDestroy", 4000, stream)

    def stream(self):
        stream = c.c_void_p()
        self.call("cuStreamCreate", 2000, c.byref(stream), c.c_uint(1))
        return stream


def main(path):
    try:
        driver = Driver()
    except OSError as failure:
        print(f"skipped: {failure}")
        return 77
    nccl = c.CDLL(path)
    functions = {name: getattr(nccl, name) for name in NAMES}
    functions["ncclGetErrorString"].restype = c.c_char_p
    nccl.ncclGetLastError.restype = c.c_char_p

    def check(result):
        assert result == 0, functions["ncclGetErrorString"](result).decode() + ": " + nccl.ncclGetLastError(None).decode()

    version = c.c_int()
    check(functions["ncclGetVersion"](c.byref(version)))
    assert len(str(version.value)) == 5, version.value
    unique = UniqueId()
    check(functions["ncclGetUniqueId"](c.byref(unique)))
    comms = [c.c_void_p(), c.c_void_p()]
    check(functions["ncclGroupStart"]())
    for rank, comm in enumerate(comms):
        check(functions["ncclCommInitRank"](c.byref(comm), c.c_int(2), unique, c.c_int(rank)))
    check(functions["ncclGroupEnd"]())

    Floats = c.c_float * COUNT
    sources = [driver.allocate(Floats(*[rank + i % 17 for i in range(COUNT)])) for rank in range(2)]
    results = [driver.allocate(Floats(*[-1] * COUNT)) for _ in range(2)]
    stream = driver.stream()

    def all_reduce():
        check(functions["ncclGroupStart"]())
        for rank, comm in enumerate(comms):
            check(functions["ncclAllReduce"](c.c_void_p(sources[rank]), c.c_void_p(results[rank]), c.c_size_t(COUNT),
                                             c.c_int(FLOAT), c.c_int(SUM), comm, stream))
        check(functions["ncclGroupEnd"]())

    def verify(what):
        driver.call("cuStreamSynchronize", 2000, stream)
        for result in results:
            found = Floats()
            driver.copy(c.addressof(found), result, c.sizeof(found))
            assert list(found) == [1 + 2 * (i % 17) for i in range(COUNT)], what
            driver.copy(result, c.addressof(Floats(*[-1] * COUNT)), c.sizeof(found))

    all_reduce()
    verify("eager")
    driver.call("cuStreamBeginCapture", 10010, stream, c.c_int(0))
    all_reduce()
    graph, executable = c.c_void_p(), c.c_void_p()
    driver.call("cuStreamEndCapture", 10000, stream, c.byref(graph))
    driver.call("cuGraphInstantiateWithFlags", 11040, c.byref(executable), graph, c.c_uint64(0))
    for _ in range(3):
        driver.call("cuGraphLaunch", 10000, executable, stream)
        verify("replayed")
    for comm in comms:
        check(functions["ncclCommDestroy"](comm))
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
