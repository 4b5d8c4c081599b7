"""Which libraries bench/compare runs, with which settings, and how a worker of each is started."""
import dataclasses
import os
import shutil

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "sendrecv")
SUMS = ("all_reduce", "reduce_scatter", "reduce")
FLOOR_RANKS = (2, 3, 4, 8, 16)  # of which compare_floor.cpp has sums
DTYPES = {"float": 4, "double": 8, "int32": 4, "half": 2, "bfloat16": 2}
KI, MI = 1 << 10, 1 << 20

# Large temporary buffers stay mapped, so that a call does not fault them in again.
KEEP_MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "8589934592", "MALLOC_TOP_PAD_": "67108864"}
HUGE_MALLOC = {**KEEP_MALLOC, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
# A launcher that started this script must not speak to the ranks that it starts.
LAUNCHERS = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "MPI_", "MPIR_", "HYDRA_", "HYDI_", "SLURM_", "TORCHELASTIC_", "UCX_")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One thing to measure, whoever does it."""
    collective: str
    dtype: str
    ranks: int
    in_place: bool
    bytes: int


def tuned(algorithm):
    return ("--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", str(algorithm))


def always(cell):
    return True


def from_bytes(least):
    return lambda cell: cell.bytes >= least


def to_bytes(most):
    return lambda cell: cell.bytes <= most


def all_reduce_between(least, most, ranks=2):
    return lambda cell: cell.collective == "all_reduce" and least <= cell.bytes <= most and cell.ranks >= ranks


@dataclasses.dataclass(frozen=True)
class Setting:
    """A way to run a peer. The one that bears the peer's name is its default; the best one of each cell counts too."""
    peer: str
    name: str
    about: str
    covers: object = always           # cell -> worth measuring
    environment: dict = dataclasses.field(default_factory=dict)
    launcher_options: tuple = ()
    worker_options: tuple = ()
    variant: str = "-"                # told to the worker, which may serve several settings

    def worker_key(self):
        return (self.peer, tuple(self.environment.items()), self.launcher_options, self.worker_options)


UCX = ("--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any")
SMALL = all_reduce_between(0, 32 * KI)

SETTINGS = (
    Setting("floor", "direct", "by hand: every rank does its share on all ranks' buffers, two barriers", worker_options=("--registered",),
            variant="direct"),
    Setting("floor", "direct-nt", "direct, with non-temporal stores", from_bytes(256 * KI), worker_options=("--registered",),
            variant="direct_nt"),
    Setting("floor", "lines", "by hand: payload and number in cache lines", all_reduce_between(0, 512),
            worker_options=("--registered",), variant="lines"),
    Setting("tutti", "tutti", "as it comes"),
    Setting("tutti_threads", "tutti_threads", "ranks are threads of one process", worker_options=("--threads",)),
    Setting("openmpi", "openmpi", "as it comes"),
    Setting("openmpi", "openmpi-keep", "malloc keeps its memory", from_bytes(32 * KI), KEEP_MALLOC),
    Setting("openmpi", "openmpi-huge", "malloc keeps its memory, in huge pages", from_bytes(2 * MI), HUGE_MALLOC),
    Setting("openmpi", "openmpi-ucx", "pml ucx, any transport; malloc keeps its memory", to_bytes(MI),
            KEEP_MALLOC, UCX),
    Setting("openmpi", "openmpi-sm", "coll sm", to_bytes(32 * KI), {}, ("--mca", "coll_sm_priority", "100")),
    Setting("openmpi", "openmpi-doubling", "recursive doubling", SMALL, {}, tuned(3)),
    Setting("openmpi", "openmpi-ring", "ring; malloc keeps its memory", all_reduce_between(128 * KI, 1 << 40, ranks=3),
            KEEP_MALLOC, tuned(4)),
    Setting("openmpi", "openmpi-rabenseifner", "Rabenseifner's; malloc keeps its memory", all_reduce_between(128 * KI, 1 << 40),
            KEEP_MALLOC, tuned(6)),
    Setting("mpich", "mpich", "as it comes"),
    Setting("mpich", "mpich-keep", "malloc keeps its memory", from_bytes(32 * KI), KEEP_MALLOC),
    Setting("mpich", "mpich-huge", "malloc keeps its memory, in huge pages", from_bytes(2 * MI), HUGE_MALLOC),
    Setting("mpich", "mpich-doubling", "recursive doubling", SMALL,
            {"MPIR_CVAR_DEVICE_COLLECTIVES": "none", "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "recursive_doubling"}),
    Setting("gloo", "gloo", "TCP, ring", variant="ring"),
    Setting("gloo", "gloo-bcube", "TCP, bcube", all_reduce_between(0, 1 << 40), variant="bcube"),
)
PEERS = tuple(dict.fromkeys(setting.peer for setting in SETTINGS))
OURS = ("tutti", "tutti_threads", "floor")
DEFAULT_PEERS = tuple(peer for peer in PEERS if peer != "tutti_threads")
TITLES = {"floor": "floor", "tutti": "Tutti", "tutti_threads": "Tutti, threads", "openmpi": "Open MPI", "mpich": "MPICH",
          "gloo": "Gloo"}
PROGRAMS = {"floor": "compare-floor", "tutti": "compare-nccl", "tutti_threads": "compare-nccl", "openmpi": "compare-openmpi",
            "mpich": "compare-mpich", "gloo": "compare-gloo"}
MPIRUN = {"openmpi": "mpirun.openmpi", "mpich": "mpirun.mpich"}


def program(peer, build):
    return os.path.join(build, "bench", PROGRAMS[peer])


def why_missing(peer, build):
    """None, or why the peer cannot run at all."""
    if not os.access(program(peer, build), os.X_OK):
        hint = "run: ./setup" + (" --peers" if peer not in OURS else "")
        return f"{program(peer, build)} is not there; {hint}"
    if peer in MPIRUN and not shutil.which(MPIRUN[peer]):
        return f"{MPIRUN[peer]} is not in PATH; run: ./setup --peers"
    return None


def why_unfit(peer, collective, dtype):
    """None, or why the peer has no such call."""
    if peer in MPIRUN and dtype in ("half", "bfloat16"):
        return f"MPI has no {dtype}"
    if peer == "gloo" and dtype == "bfloat16":
        return "it has no bfloat16"
    if peer == "gloo" and collective == "reduce_scatter":
        return "it has no reduce_scatter of this form"
    if peer == "floor" and dtype in ("half", "bfloat16") and collective in SUMS:
        return f"it does not add {dtype}"
    return None


def why_unfit_among(setting, collective, ranks):
    """None, or why a setting has no such call among so many ranks."""
    if setting.peer == "floor" and setting.variant != "lines" and collective in SUMS and ranks not in FLOOR_RANKS:
        return f"it adds up {', '.join(map(str, FLOOR_RANKS))} ranks only"
    return None


def command_line(setting, build, ranks, cores, registered, places):
    """The command that starts a worker. `places`: what tells it where its control file and FIFOs are."""
    worker = [program(setting.peer, build), *places, "--ranks", str(ranks), "--cores", ",".join(map(str, cores)),
              *setting.worker_options]
    if registered and setting.peer in ("tutti", "tutti_threads"):
        worker.append("--registered")
    if setting.peer == "openmpi":
        as_root = ["--allow-run-as-root"] if os.getuid() == 0 else []
        shared = ["--oversubscribe"] if ranks > len(cores) else []
        return [MPIRUN["openmpi"], "-n", str(ranks), "--bind-to", "none", *as_root, *shared, *setting.launcher_options, *worker]
    if setting.peer == "mpich":
        return [MPIRUN["mpich"], "-launcher", "fork", "-n", str(ranks), "-bind-to", "none", *setting.launcher_options, *worker]
    return worker


def environment(setting):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS) and name not in HUGE_MALLOC}
    return {**clean, **setting.environment}
