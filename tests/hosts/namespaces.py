"""Hosts in a box: network namespaces on one bridge, taken away again whatever happens."""
import atexit
import json
import os
import re
import shutil
import signal
import subprocess
import sys


def why_not():
    """Why no namespaces can be made here; "" if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no ip command (iproute2)"
    probe = f"tutti-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if made.returncode != 0:
        return "ip netns add: " + made.stderr.strip()
    subprocess.run(["ip", "netns", "del", probe], check=False)
    return ""


def is_gone(pid):
    """Whether there is no such process any more; one that is dead and not waited for yet is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rsplit(")", 1)[1].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def remove_namespace(name):
    """With all that runs in it."""
    pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False).stdout
    for pid in pids.split():
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            pass
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def remove_orphans():
    """What tests that were killed have left: each name has its owner's process in it."""
    found = os.listdir("/run/netns") if os.path.isdir("/run/netns") else []
    for name in found:
        owner = re.fullmatch(r"tutti-(?:probe-)?(\d+)(?:-\d+-\d+)?", name)
        if owner and is_gone(int(owner[1])):
            remove_namespace(name)
    for device in os.listdir("/sys/class/net"):
        owner = re.fullmatch(r"t[tu][bd]?(\d+)x\d+(?:-\d+)?", device)
        if owner and is_gone(int(owner[1])):
            subprocess.run(["ip", "link", "del", device], capture_output=True, check=False)


class Hosts:
    """`count` namespaces with the addresses 10.x.y.1 and so on; the bridge, in this namespace, has 10.x.y.254. With `ipv6` the
    addresses are fd..::1 and so on, and there are no others."""

    made = 0

    def __init__(self, count, ipv6=False):
        number = os.getpid() + 7 * Hosts.made
        Hosts.made += 1
        self.ipv6 = ipv6
        self.names = [f"tutti-{os.getpid()}-{Hosts.made}-{host}" for host in range(count)]
        self.bridge = f"ttb{os.getpid()}x{Hosts.made}"
        self.net = f"10.{64 + number % 128}.{number // 128 % 256}"
        self.links = [f"tt{os.getpid()}x{Hosts.made}-{host}" for host in range(count)]
        self.second_links = []
        remove_orphans()
        atexit.register(self.remove)
        for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(sign, lambda *_: sys.exit(1))
        for name in self.names:
            self.ip("netns", "add", name)
            self.ip("-n", name, "link", "set", "lo", "up")
        self.connect()

    def connect(self):
        self.ip("link", "add", self.bridge, "type", "bridge")
        if not self.ipv6:
            self.ip("addr", "add", f"{self.net}.254/24", "dev", self.bridge)
        self.ip("link", "set", self.bridge, "up")
        for host, name in enumerate(self.names):
            self.ip("link", "add", self.links[host], "type", "veth", "peer", "name", "eth0", "netns", name)
            self.ip("link", "set", self.links[host], "master", self.bridge, "up")
            self.bring_up(host, "eth0")

    def bring_up(self, host, device):
        length = ["64", "nodad"] if self.ipv6 else ["24"]
        self.ip("-n", self.names[host], "addr", "add", f"{self.address(host)}/{length[0]}", "dev", device, *length[1:])
        self.ip("-n", self.names[host], "link", "set", device, "up")

    def add_network(self):
        """A second network: an interface eth1 on each host, with the addresses 10.x.y.1 and so on of other x and y."""
        bridge = f"ttd{self.bridge[3:]}"
        net = f"10.{192 + int(self.net.split('.')[1]) % 56}.{self.net.split('.')[2]}"
        self.second_links = [bridge]
        self.ip("link", "add", bridge, "type", "bridge")
        self.ip("link", "set", bridge, "up")
        for host, name in enumerate(self.names):
            link = f"tu{self.links[host][2:]}"
            self.second_links.append(link)
            self.ip("link", "add", link, "type", "veth", "peer", "name", "eth1", "netns", name)
            self.ip("link", "set", link, "master", bridge, "up")
            self.ip("-n", name, "addr", "add", f"{net}.{host + 1}/24", "dev", "eth1")
            self.ip("-n", name, "link", "set", "eth1", "up")

    def sent(self, device):
        """Bytes that all hosts have sent by this interface."""
        total = 0
        for name in self.names:
            shown = subprocess.run(["ip", "-n", name, "-s", "-j", "link", "show", device], check=True, capture_output=True, text=True)
            total += json.loads(shown.stdout)[0]["stats64"]["tx"]["bytes"]
        return total

    def ip(self, *words):
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)

    def address(self, host):
        if self.ipv6:
            _, a, b = self.net.split(".")
            return f"fd00:{a}:{b}::{host + 1}"
        return f"{self.net}.{host + 1}"

    def link(self, host, state):
        """The cable of a host: "up" or "down"."""
        self.ip("link", "set", self.links[host], state)

    def start(self, host, command, env=None, **more):
        """A process on a host. Its network is the namespace's, its host name is told by NCCL_HOSTID."""
        surroundings = dict(os.environ, NCCL_HOSTID=f"host-{host}", **(env or {}))
        return subprocess.Popen(["ip", "netns", "exec", self.names[host], *command], env=surroundings, **more)

    def entering(self, host, name, names_file=os.devnull):
        """What a command begins with that runs on a host with this host name, and with `names_file` for /etc/hosts if one is given. Unlike
        ip netns exec this leaves /sys as it is."""
        script = f'[ {names_file} = {os.devnull} ] || mount --bind {names_file} /etc/hosts && hostname {name} && exec "$@"'
        return ["nsenter", f"--net=/run/netns/{self.names[host]}", "unshare", "--uts", "--mount", "sh", "-c", script, "sh"]

    def remove(self):
        for name in self.names:
            remove_namespace(name)
        for link in self.links + self.second_links:
            subprocess.run(["ip", "link", "del", link], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True, check=False)
