"""Communicators over bad and unusual networks: slow, lossy and reordering links, rates, IPv6 alone, interfaces that lead nowhere, ranks that
start in any order; and what crosses between two hosts.

usage: network_test.py LIBRARY [CASE]
"""
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import namespaces  # noqa: E402
import relay  # noqa: E402
from job import Job, expect_done, expect_failed, port_of, run_cases  # noqa: E402

SKIPPED = 77


def run_in(weather, library, seconds=2, count=50000, ready_s=30):
    """Three hosts of one rank for a while; the calls made."""
    weather.seed = random.randrange(1 << 30)
    print(f"   {weather}", flush=True)
    hosts = relay.Hosts(3, weather)
    try:
        job = Job(hosts, library, 3, seconds, count=count)
        start = time.monotonic()
        job.wait_ready(limit_s=ready_s)
        began = time.monotonic() - start
        results = job.results([0, 1, 2], 40)
        expect_done(results)
        print(f"   ready after {began:.1f} s, {results[0].split()[1]} calls of {4 * count} bytes", flush=True)
        job.end()
    finally:
        hosts.remove()


def case_no_weather(library):
    """The relay itself."""
    run_in(relay.Weather(), library, seconds=1)


def case_far(library):
    """50 ms each way."""
    run_in(relay.Weather(delay_s=0.05), library)


def case_far_measured(library):
    """Four hosts of one rank, 25 ms each way: each of the four pairs has the time to measure that, one after the other."""
    hosts = relay.Hosts(4, relay.Weather(delay_s=0.025, seed=1))
    try:
        with tempfile.TemporaryDirectory() as folder:
            env = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": os.path.join(folder, "%p")}
            job = Job(hosts, library, 4, 0.5, env, count=100)
            expect_done(job.results([0, 1, 2, 3], 60))
            job.end()
            logs = "".join(open(os.path.join(folder, name), encoding="utf-8").read() for name in os.listdir(folder))
        found = re.findall(r"measured from rank \d to rank \d: a message takes ([\d.]+) us", logs)
        assert len(found) == 4 and all(float(us) > 20000 for us in found), logs
    finally:
        hosts.remove()


def case_lossy(library):
    """1% of all packets are lost, from the first connection on."""
    run_in(relay.Weather(delay_s=0.002, loss=0.01), library)


def case_overtaking(library):
    """One packet of twenty is overtaken by others."""
    run_in(relay.Weather(delay_s=0.001, overtaken=0.05), library)


def case_narrow(library):
    """20 Mbit/s with short queues, far, and lossy."""
    run_in(relay.Weather(delay_s=0.01, loss=0.005, bytes_per_s=2.5e6, queue_s=0.05), library, count=20000)


def case_rate(library):
    """100 Mbit/s out of each host, by the kernel's tbf: sums are right, and no faster than that."""
    if shutil.which("tc") is None:
        print("   skipped: there is no tc command (iproute2)")
        return
    bits_per_s, burst = 100e6, 64 << 10
    hosts = namespaces.Hosts(2)
    for name in hosts.names:
        made = subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "100mbit", "burst", "64kb", "latency", "50ms"],
                              capture_output=True, text=True, check=False)
        if made.returncode != 0:
            print("   skipped: tc qdisc add ... tbf:", made.stderr.strip())
            hosts.remove()
            return
    count = 1 << 20
    job = Job(hosts, library, 2, 0.5, count=count)
    results = job.results([0, 1], 60)
    expect_done(results)
    for line in results.values():
        calls, seconds = int(line.split()[1]), float(line.split()[2])
        least = (calls * 4 * count - burst) * 8 / bits_per_s  # each host sends half the sum, and half of its input
        print(f"   {calls} calls of {4 * count} bytes: {seconds:.2f} s, {least:.2f} s at least", flush=True)
        assert seconds >= 0.99 * least, line
    job.end()
    hosts.remove()


def sent(hosts, host):
    """Bytes that have left a host by its cable."""
    with open(f"/sys/class/net/{hosts.links[host]}/statistics/rx_bytes", encoding="ascii") as file:
        return int(file.read())


def case_what_crosses(library):
    """Of an all-reduce of S bytes no more than S leave each of two hosts of two ranks, by the counters of their interfaces; with prices that are
    measured, as ever."""
    hosts = namespaces.Hosts(2)
    wrong = []
    for size in (64 << 10, 256 << 10, 2 << 20, 16 << 20):
        with tempfile.TemporaryDirectory() as folder:
            go = os.path.join(folder, "go")
            job = Job(hosts, library, 4, 0.2, {"TEST_GO": go}, count=size // 4)
            job.wait_ready()
            before = [sent(hosts, host) for host in range(2)]
            with open(go, "w", encoding="ascii"):
                pass
            assert job.read(lambda job=job: all("over" in text for text in job.text.values()), 40), job.text
            crossed = [sent(hosts, host) - before[host] for host in range(2)]
            os.unlink(go)
            results = job.results(range(4), 20)
            expect_done(results)
            calls = int(results[0].split()[1])
            job.end()
        for host in range(2):
            part = crossed[host] / calls / size
            print(f"   {size} bytes, host {host}: {part:.3f} of them, {calls} calls", flush=True)
            wrong += [(size, host, part)] if part > 1.1 else []
            assert part > 0.99, (size, host, part)
    assert not wrong, f"more has crossed than needs to: {wrong}"
    hosts.remove()


OWNER = """
import signal, sys, time
sys.path.insert(0, sys.argv[1])
import namespaces
hosts = namespaces.Hosts(2)
rank = hosts.start(0, ["sleep", "100"])
print(rank.pid, hosts.bridge, *hosts.names, flush=True)
time.sleep(100)
"""


def case_orphans(_):
    """What a test has left that was killed is taken away by the next one; what belongs to one that runs stays."""
    folder = os.path.dirname(os.path.abspath(__file__))

    def start():
        owner = subprocess.Popen([sys.executable, "-c", OWNER, folder], stdout=subprocess.PIPE, text=True)
        pid, bridge, *names = owner.stdout.readline().split()
        return owner, int(pid), [f"/sys/class/net/{bridge}", *(f"/run/netns/{name}" for name in names)]

    dead, dead_rank, left = start()
    alive, alive_rank, kept = start()
    try:
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        assert all(map(os.path.exists, left)) and not namespaces.is_gone(dead_rank), left
        hosts = namespaces.Hosts(1)
        assert not any(map(os.path.exists, left)), left
        assert all(map(os.path.exists, kept)) and not namespaces.is_gone(alive_rank), kept
        end = time.monotonic() + 5
        while not namespaces.is_gone(dead_rank):
            assert time.monotonic() < end, "the killed test's rank runs on"
            time.sleep(0.01)
        hosts.remove()
    finally:
        alive.terminate()
        alive.wait()
    assert not any(map(os.path.exists, kept)), kept


def case_one_way(library):
    """Nothing goes from host 1 to host 2 any more, all else does: all ranks name both, no other rank is to blame, and the others go on without either."""
    for victim in (1, 2):
        hosts = relay.Hosts(4, relay.Weather(barred=(1, 2)))
        try:
            with tempfile.TemporaryDirectory() as folder:
                victims = os.path.join(folder, "victims")
                job = Job(hosts, library, 4, 60, {"TUTTI_HEARTBEAT_TIMEOUT_S": "5", "TEST_VICTIMS": victims})
                job.wait_ready()
                with open(victims, "w", encoding="ascii") as file:
                    file.write(str(victim))
                hosts.bar()
                for rank, line in job.results([rank for rank in range(4) if rank != victim], 30).items():
                    assert line.startswith(f"done without {victim}:"), f"rank {rank}: {line}"
                    assert re.search(r"rank (1|2) has heard nothing of rank (?!\1)(1|2) ", line), f"rank {rank}: {line}"
                job.end()
        finally:
            hosts.remove()


def case_any_order(library):
    """Three ranks start in each order, 0.2 s after one another."""
    hosts = namespaces.Hosts(3)
    for order in itertools.permutations(range(3)):
        env = {"NCCL_COMM_ID": f"{hosts.address(0)}:{random.randrange(20000, 30000)}", "TUTTI_SECRET": "a word"}
        job = Job(hosts, library, 3, 0.1, env, id_file="-", last=0)
        for rank in order:
            job.begin(rank)
            time.sleep(0.2)
        try:
            expect_done(job.results([0, 1, 2], 40))
        except AssertionError as problem:
            raise AssertionError(f"started in the order {order}: {problem}") from problem
        finally:
            job.end()
    hosts.remove()


def case_ipv6_alone(library):
    """No IPv4 address but loopback's; by an id that is carried, and by an address that all know."""
    hosts = namespaces.Hosts(3, ipv6=True)
    for env, id_file in (({}, None),
                         ({"NCCL_COMM_ID": f"[{hosts.address(0)}]:{random.randrange(20000, 30000)}", "TUTTI_SECRET": "a word"}, "-")):
        job = Job(hosts, library, 3, 0.2, env, id_file=id_file)
        expect_done(job.results([0, 1, 2], 40))
        job.end()
    hosts.remove()


def add_dead_network(hosts):
    """A second interface on each host, in one network, whose cable leads nowhere. By its name and its address it comes first."""
    for host, name in enumerate(hosts.names):
        hosts.ip("-n", name, "link", "add", "dead0", "type", "veth", "peer", "name", "far0")
        hosts.ip("-n", name, "link", "set", "far0", "up")
        hosts.ip("-n", name, "addr", "add", f"10.1.1.{host + 1}/24", "dev", "dead0")
        hosts.ip("-n", name, "link", "set", "dead0", "up")


def case_dead_interface(library):
    """Each host has an interface that reaches nobody: the other one is found."""
    hosts = namespaces.Hosts(3)
    add_dead_network(hosts)
    for names in ("", "dead,eth"):
        job = Job(hosts, library, 3, 0.2, {"NCCL_SOCKET_IFNAME": names} if names else {})
        expect_done(job.results([0, 1, 2], 60))
        job.end()
    hosts.remove()


def case_only_dead_interfaces(library):
    """None works: the error names the address that was tried, and what went wrong with it."""
    hosts = namespaces.Hosts(2)
    add_dead_network(hosts)
    job = Job(hosts, library, 2, 1, {"NCCL_SOCKET_IFNAME": "=dead0", "TUTTI_TIMEOUT_S": "6"})
    results = job.results([1], 40)
    assert results[1].startswith("failed"), results
    for part in ("tried 10.1.1.1:", "timed out"):
        assert part in results[1], f'"{part}" is missing in: {results[1]}'
    expect_failed(job.results([0], 40), "rank 1")
    job.end()
    hosts.remove()


def case_many_interfaces(library):
    """The maker of the id has more interfaces than an id has room for, and the one that leads to the other host is the last: it is in the id,
    as nothing is at the others."""
    hosts = namespaces.Hosts(2)
    for number in range(9):
        hosts.ip("-n", hosts.names[0], "link", "add", f"inner{number}", "type", "bridge")
        hosts.ip("-n", hosts.names[0], "addr", "add", f"10.1.{number}.1/24", "dev", f"inner{number}")
        hosts.ip("-n", hosts.names[0], "link", "set", f"inner{number}", "up")
    hosts.add_network()
    hosts.ip("-n", hosts.names[0], "link", "set", "eth0", "down")
    job = Job(hosts, library, 2, 0.2, {"TUTTI_TIMEOUT_S": "30"})
    expect_done(job.results([0, 1], 60))
    job.end()
    hosts.remove()


def case_no_ports_to_connect(library):
    """A system's ports are all taken when its rank is to connect with the maker of the id: the error says so."""
    hosts = namespaces.Hosts(2)
    job = Job(hosts, library, 2, 1, {"TUTTI_TIMEOUT_S": "4"}, last=1)
    assert job.read(lambda: os.path.exists(job.id_file), 20)
    hosts.ip("netns", "exec", hosts.names[1], "sysctl", "-qw", "net.ipv4.ip_local_port_range=40000 40000")
    taken = subprocess.Popen(["ip", "netns", "exec", hosts.names[1], sys.executable, "-c",
                              f"import socket, time\ntaken = socket.create_connection(('{hosts.address(0)}', {port_of(job.id_file)}))\n"
                              "print('taken', flush=True)\ntime.sleep(60)"], stdout=subprocess.PIPE, text=True)
    try:
        assert taken.stdout.readline() == "taken\n"
        job.begin(1)
        found = job.results([1], 40)[1]
        assert found.startswith("failed") and "net.ipv4.ip_local_port_range" in found, found
    finally:
        taken.kill()
        taken.wait()
        job.end()
        hosts.remove()


def case_no_ports(library):
    """The systems have no port left for the ranks: the error says so, whichever rank gives up first."""
    hosts = namespaces.Hosts(2)
    for name in hosts.names:
        hosts.ip("netns", "exec", name, "sysctl", "-qw", "net.ipv4.ip_local_port_range=40000 40000")
    job = Job(hosts, library, 2, 1)
    for line in job.results([0, 1], 20).values():
        assert line.startswith("failed") and "find a free TCP port (net.ipv4.ip_local_port_range" in line, line
    job.end()
    hosts.remove()


def shares(hosts, library, ranks, env=None):
    """Of the bytes that hosts send in a job: what goes by eth0 and by eth1."""
    before = [hosts.sent("eth0"), hosts.sent("eth1")]
    job = Job(hosts, library, ranks, 0.5, env, count=250000)
    expect_done(job.results(range(ranks), 60))
    job.end()
    sent = [hosts.sent("eth0") - before[0], hosts.sent("eth1") - before[1]]
    assert sum(sent) > 1e6, sent
    print(f"   {ranks} ranks, {env or {}}: {sent[0] / 1e6:.1f} and {sent[1] / 1e6:.1f} MB", flush=True)
    return [one / sum(sent) for one in sent]


def case_two_networks(library):
    """Two hosts with two interfaces each: the two ranks of each take one each, or the two sockets of a pair; or the one that is named carries all."""
    hosts = namespaces.Hosts(2)
    hosts.add_network()
    for ranks, env in ((4, {}), (2, {"NCCL_NSOCKS_PERTHREAD": "2"})):
        found = shares(hosts, library, ranks, env)
        assert min(found) > 0.3, f"{ranks} ranks, {env}: {found}"
    for number in (0, 1):
        found = shares(hosts, library, 4, {"NCCL_SOCKET_IFNAME": f"=eth{number}"})
        assert found[number] > 0.99, found
    hosts.remove()


def case_one_of_two_networks(library):
    """One of two networks leads nowhere, or one cable of it is out: the other carries all."""
    for cut in (lambda hosts: [hosts.ip("link", "set", link, "nomaster") for link in hosts.links],
                lambda hosts: [hosts.ip("link", "set", hosts.second_links[1], "down")]):
        hosts = namespaces.Hosts(2)
        hosts.add_network()
        cut(hosts)
        for ranks, env in ((4, {}), (2, {"NCCL_NSOCKS_PERTHREAD": "2"})):
            found = shares(hosts, library, ranks, env)
            assert max(found) > 0.99, f"{ranks} ranks, {env}: {found}"
        hosts.remove()


def case_refused(library):
    """A rank is stopped in a call by rails, and the one that takes its part calls something short. When the former goes on both are through
    at once, though sockets hold little of what it sends, and nobody calls anything else."""
    hosts = namespaces.Hosts(2)
    jobs = []
    try:
        for name in hosts.names:
            for what in ("tcp_wmem", "tcp_rmem"):
                hosts.ip("netns", "exec", name, "sysctl", "-qw", f"net.ipv4.{what}=4096 16384 32768")
        with tempfile.TemporaryDirectory() as folder:
            paths = {name: os.path.join(folder, name) for name in ("id", "hold", "first", "others")}
            open(paths["hold"], "w", encoding="ascii").close()
            for first, last, go, count in ((0, 1, "first", 131072), (1, 2, "others", 100), (2, 4, "others", 131072)):
                env = {"TEST_HOLD": paths["hold"], "TEST_GO": paths[go]}
                jobs.append(Job(hosts, library, 4, 30, env, paths["id"], count, first, last))
            for job in jobs:
                job.wait_ready()
            stopped = jobs[0].processes[0]
            open(paths["first"], "w", encoding="ascii").close()
            time.sleep(0.5)
            stopped.send_signal(signal.SIGSTOP)
            open(paths["others"], "w", encoding="ascii").close()
            expect_failed(jobs[2].results([2, 3], 5), "calls differ", code=5)
            stopped.send_signal(signal.SIGCONT)
            expect_failed(jobs[0].results([0], 5), "calls differ", code=5)
            expect_failed(jobs[1].results([1], 5), "calls differ", code=5)
    finally:
        for job in jobs:
            job.end()
        hosts.remove()


def main():
    reason = namespaces.why_not()
    if reason:
        print("SKIPPED:", reason)
        sys.exit(SKIPPED)
    wanted = sys.argv[2] if len(sys.argv) > 2 else ""
    sys.exit(1 if run_cases(globals(), wanted, os.path.abspath(sys.argv[1])) else 0)


main()
