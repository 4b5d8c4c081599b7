"""The objects of the reduction kernels may define kernel() and conversion() of their own namespace, and nothing else
that another object could link to: an inline function compiled for AVX-512, kept by the linker for everybody, crashes
older processors."""
import subprocess
import sys

libraries = sys.argv[1:]
wrong = []
for library in libraries:
    lines = subprocess.run(["nm", "--defined-only", "-C", library], capture_output=True, text=True, check=True).stdout
    symbols = [line.split(maxsplit=2)[1:] for line in lines.splitlines() if len(line.split(maxsplit=2)) == 3]
    shared = [name for kind, name in symbols if kind not in "abdrtn"]
    # Sanitizers add markers of their own to every object.
    shared = [name for name in shared if not name.startswith(("__asan_", "__odr_asan", "DW.ref.", "__sancov"))]
    own = [name.split("::", 2)[2] for name in shared if name.startswith("tutti::") and name.count("::") > 2]
    if sorted(own) != ["conversion(tutti::DataType)", "kernel(tutti::DataType, tutti::ReduceOp, tutti::ReduceVariant)"] or len(shared) != 2:
        wrong.append(f"{library}: exports {shared}, not just kernel() and conversion()")
print("\n".join(wrong) or f"{len(libraries)} libraries export kernel() and conversion() only")
sys.exit(1 if wrong or not libraries else 0)
