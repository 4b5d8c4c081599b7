"""A sample of the conformance suite over hosts: TCP across network namespaces, by IPv4, by IPv6 and through networks that are far or lose
packets, MPI on one machine and across namespaces, hosts with different numbers of ranks.

usage: conformance_test.py SUITE tcp|uneven|openmpi|mpich [--all] [--seed N] [CASE]
--all runs every case instead of a sample; --seed repeats a sample, whose seed is printed.
"""
import argparse
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import namespaces  # noqa: E402
import relay  # noqa: E402

SKIPPED = 77
HOSTS = 4
UNEVEN = ((2, 1), (1, 2, 1))


class Skipped(Exception):
    pass


class Suite:
    def __init__(self, options):
        self.program = os.path.abspath(options.suite)
        self.all, self.seed = options.all, options.seed
        self.folder = tempfile.TemporaryDirectory(prefix="tutti-conformance-")

    def run(self, backend, sample, *more, **env):
        cases = [] if self.all else ["--sample", str(sample), "--seed", str(self.seed)]
        surroundings = dict(os.environ, TUTTI_HEARTBEAT_TIMEOUT_S="40", TEST_STARTER="", TEST_RANKS_PER_HOST="")
        for name in ("NCCL_HOSTID", "TUTTI_NET", "NCCL_COMM_ID", "NCCL_SOCKET_IFNAME"):
            surroundings.pop(name, None)
        surroundings.update(env)
        done = subprocess.run([self.program, "--backend", backend, *cases, *more], env=surroundings, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False, timeout=36000 if self.all else 200)
        assert done.returncode == 0, f"{env}\n{done.stdout}"
        counts = next(line for line in done.stdout.splitlines() if line.startswith(backend) and " run " in line)
        print("  ", *(f"{name}={value}" for name, value in env.items() if name != "TEST_STARTER"), *more, counts, flush=True)

    def script(self, name, text):
        path = os.path.join(self.folder.name, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\n{text}\n")
        os.chmod(path, stat.S_IRWXU)
        return path


def need_namespaces():
    if reason := namespaces.why_not():
        raise Skipped(reason)


class Wires:
    """Namespaces, and that what ran in them has used their cables."""

    def __init__(self):
        need_namespaces()
        self.hosts = namespaces.Hosts(HOSTS)

    def __enter__(self):
        self.before = self.bytes()
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            crossed = self.bytes() - self.before
            print(f"   {crossed >> 10} KiB have crossed", flush=True)
            assert crossed > 1 << 20, f"only {crossed} bytes have crossed between the namespaces"

    def bytes(self):
        total = 0
        for link in self.hosts.links:
            with open(f"/sys/class/net/{link}/statistics/rx_bytes", encoding="ascii") as file:
                total += int(file.read())
        return total


def case_tcp(suite):
    """Every rank in a namespace of its own, and two in each; IPv4; one socket for a pair, and four; sends without copies."""
    wires = Wires()
    names = ",".join(wires.hosts.names)
    for backend, sample in (("hosts-slots", 200), ("hosts-pairs", 200)):
        with wires:
            suite.run(backend, sample, TEST_NAMESPACES=names)
    suite.run("hosts-announce", 60, TEST_NAMESPACES=names)
    suite.run("hosts-slots", 100, TEST_NAMESPACES=names, NCCL_SOCKET_NTHREADS="2", NCCL_NSOCKS_PERTHREAD="2")
    suite.run("hosts-slots", 60, TEST_NAMESPACES=names, TUTTI_ZEROCOPY_BYTES="1")


def run_uneven(suite, names, sample):
    """Hosts of 2 ranks and 1, of 1, 2 and 1."""
    for places in UNEVEN:
        suite.run("hosts-pairs", sample, "--ranks", str(sum(places)), TEST_NAMESPACES=names, TEST_RANKS_PER_HOST=",".join(map(str, places)))


def case_tcp_ipv6(suite):
    """No IPv4 address but loopback's."""
    need_namespaces()
    names = ",".join(namespaces.Hosts(HOSTS, ipv6=True).names)
    suite.run("hosts-slots", 60, TEST_NAMESPACES=names)
    run_uneven(suite, names, 20)


def case_tcp_weather(suite):
    """A link that loses 1% of all packets, and one of 50 ms there and back."""
    need_namespaces()
    for weather, sample in ((relay.Weather(loss=0.01, seed=suite.seed), 10), (relay.Weather(delay_s=0.025), 2)):
        print(f"   {weather}", flush=True)
        hosts = relay.Hosts(HOSTS, weather)
        run_uneven(suite, ",".join(hosts.names), sample)
        hosts.remove()


def case_uneven_namespaces(suite):
    need_namespaces()
    run_uneven(suite, ",".join(namespaces.Hosts(HOSTS).names), 60)


def case_uneven(suite):
    """Hosts of 7 and 8 ranks, of 1 and 16, of 1, 2 and 3; so many of 1 that their lines go by others, and of 1 and otherwise 2."""
    for places, ranks, sample in (("7,8", 15, 40), ("1,16", 17, 40), ("1,2,3", 6, 120), ("1", 18, 30), ("1,2", 25, 20)):
        suite.run("hosts-pairs", sample, "--ranks", str(ranks), TEST_RANKS_PER_HOST=places)


def mpirun(kind):
    """The launcher's command line, up to where its ranks run."""
    if kind == "mpich":
        program = shutil.which("mpiexec.mpich") or shutil.which("mpiexec.hydra")
        words = []
    else:
        program = shutil.which("mpirun.openmpi") or shutil.which("orterun")
        words = ["--oversubscribe", "--mca", "btl_base_warn_component_unused", "0"]
        words += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    if program is None:
        raise Skipped(f"there is no launcher of {kind}")
    run = subprocess.run([program, *words, "-np", "1", "true"], capture_output=True, text=True, timeout=60, check=False)
    if run.returncode != 0:
        raise Skipped(f"{program} does not start a process here: {run.stderr.strip()[:200]}")
    return [program, *words]


def mpi_on_one_machine(suite, kind):
    starter = suite.script("start", f'ranks=$1; shift; exec {" ".join(mpirun(kind))} -np "$ranks" "$@"')
    suite.run("hosts-mpi", 40, TEST_STARTER=starter)
    suite.run("hosts-mpi-messages", 40, TEST_STARTER=starter)
    suite.run("hosts-mpi-pairs", 40, TEST_STARTER=starter)


def mpi_over_namespaces(suite, kind):
    """With a script in ssh's place, which enters a host's namespace and gives it a name of its own."""
    launch = mpirun(kind)
    wires = Wires()
    hosts = wires.hosts
    where = "".join(f"*{hosts.address(host)}) name={name} ;;\n" for host, name in enumerate(hosts.names))
    agent = suite.script("agent", f"""while [ "${{1#-}}" != "$1" ]; do shift; done
where=$1
shift
case $where in
{where}*) echo "no such host: $where" >&2; exit 1 ;;
esac
mkdir -p {suite.folder.name}/$name
exec ip netns exec $name env TMPDIR={suite.folder.name}/$name unshare --uts /bin/sh -c "hostname $name; $*\"""")
    net = f"{hosts.net}.0/24"
    env = {}
    if kind == "mpich":
        # UCX, below MPICH, would take memory of the machine that the namespaces are on. By its TCP, MPICH 4.0.2 hangs in
        # MPI_Finalize, that of programs without Tutti too.
        env = {"UCX_TLS": "tcp,self", "TEST_LEAVE_MPI": "1"}

    def start(places):
        """The starter of so many ranks on each host."""
        listed = ",".join(f"{hosts.address(host)}:{count}" for host, count in enumerate(places))
        if kind == "openmpi":
            words = ["-H", listed, "--mca", "plm", "rsh", "--mca", "plm_rsh_agent", agent, "--mca", "oob_tcp_if_include", net,
                     "--mca", "routed", "direct", "--mca", "pml", "ob1", "--mca", "btl", "self,vader,tcp", "--mca",
                     "btl_tcp_if_include", net, "--map-by", "slot", "-x", "TEST_RANKS_PER_HOST"]
        else:
            words = ["-hosts", listed, "-launcher", "ssh", "-launcher-exec", agent, "-localhost", f"{hosts.net}.254"]
        return suite.script("start-" + "-".join(map(str, places)), f'ranks=$1; shift; exec {" ".join(launch + words)} -np "$ranks" "$@"')

    for backend, per_host in (("hosts-mpi", 1), ("hosts-mpi-pairs", 2)):
        with wires:
            suite.run(backend, 40, TEST_STARTER=start([per_host] * HOSTS), **env)
    for places in UNEVEN:
        suite.run("hosts-mpi-pairs", 20, "--ranks", str(sum(places)), TEST_STARTER=start(places),
                  TEST_RANKS_PER_HOST=",".join(map(str, places)), **env)


def case_openmpi(suite):
    mpi_on_one_machine(suite, "openmpi")


def case_openmpi_namespaces(suite):
    mpi_over_namespaces(suite, "openmpi")


def case_mpich(suite):
    mpi_on_one_machine(suite, "mpich")


def case_mpich_namespaces(suite):
    mpi_over_namespaces(suite, "mpich")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("suite")
    parser.add_argument("what", choices=["tcp", "uneven", "openmpi", "mpich"])
    parser.add_argument("case", nargs="?", default="")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    suite = Suite(options)
    print(f"--seed {options.seed}", flush=True)
    outcomes = []
    for name, case in list(globals().items()):
        if not name.startswith("case_" + options.what) or options.case not in name:
            continue
        start = time.monotonic()
        try:
            case(suite)
            outcome = "ok"
        except Skipped as why:
            outcome = f"skipped: {why}"
        except (AssertionError, OSError, StopIteration, subprocess.SubprocessError) as problem:
            outcome = f"FAILED: {problem} {getattr(problem, 'stdout', '') or ''}"
        outcomes.append(outcome.split(":")[0])
        print(f"{name[5:]:<20} {time.monotonic() - start:5.1f} s  {outcome}", flush=True)
    if "FAILED" in outcomes:
        return 1
    return SKIPPED if outcomes and set(outcomes) == {"skipped"} else 0


sys.exit(main())
