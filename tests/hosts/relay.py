"""A network of our own for hosts in namespaces: every packet passes through a process here, which delays it, loses it, lets others
overtake it, or holds all of them back to a rate; or drops all that go from one host to another, when it is told. The kernel's netem does the same where it is; this is on every kernel with TAP
devices, and TCP meets real losses.
"""
import ctypes
import fcntl
import heapq
import os
import random
import select
import signal
import struct
import sys
import time
from dataclasses import dataclass

import namespaces

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
FRAME_MAX = 2048


@dataclass
class Weather:
    delay_s: float = 0  # each way
    loss: float = 0  # of packets
    overtaken: float = 0  # of packets: they come 4 ms later than their like
    bytes_per_s: float = 0  # out of each host; 0: as fast as it goes
    queue_s: float = 0.2  # what does not go out within this is lost
    barred: tuple = ()  # (from, to): what goes there is lost from bar() on
    seed: int = 0


class Hosts(namespaces.Hosts):
    """Hosts whose eth0 leads to the relay."""

    def __init__(self, count, weather):
        self.weather = weather
        self.relay = 0
        super().__init__(count)

    def connect(self):
        ready, said = os.pipe()
        self.relay = os.fork()
        if self.relay == 0:
            os.close(ready)
            self._be_relay(said)
        os.close(said)
        if not os.read(ready, 1):
            raise OSError("the relay has not started: are there TAP devices (/dev/net/tun)?")
        os.close(ready)
        for host in range(len(self.names)):
            self.bring_up(host, "eth0")

    def _be_relay(self, said):
        status = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            bars = []
            signal.signal(signal.SIGUSR1, lambda *_: bars.append(self.weather.barred))
            # Ends with who made it.
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
            taps = [open_tap(name) for name in self.names]
            os.write(said, b"1")
            relay(taps, self.weather, bars)
        except OSError as problem:
            print("relay:", problem, file=sys.stderr, flush=True)
        finally:
            os._exit(status)

    def bar(self):
        """From here on the weather's barred packets are lost."""
        os.kill(self.relay, signal.SIGUSR1)

    def remove(self):
        if self.relay > 0:
            os.kill(self.relay, signal.SIGKILL)
            os.waitpid(self.relay, 0)
            self.relay = 0
        super().remove()


def open_tap(name):
    """A TAP device eth0 in a namespace, which this thread enters."""
    libc = ctypes.CDLL(None, use_errno=True)
    space = os.open(f"/run/netns/{name}", os.O_RDONLY)
    if libc.setns(space, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"setns to {name}")
    os.close(space)
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH", b"eth0", IFF_TAP | IFF_NO_PI))
    return tap


def relay(taps, weather, bars):
    """Moves packets for ever, each to the host that has its address, or to all. `bars`: (from, to) between which it moves none; more may come."""
    chance = random.Random(weather.seed)
    homes = {}
    under_way = []  # (when, number, tap, frame)
    free_at = dict.fromkeys(taps, 0.0)
    number = 0
    while True:
        now = time.monotonic()
        while under_way and under_way[0][0] <= now:
            _, _, tap, frame = heapq.heappop(under_way)
            try:
                os.write(tap, frame)
            except OSError:
                pass  # the device is down
        wait = max(0, under_way[0][0] - now) if under_way else 1
        for tap in select.select(taps, [], [], wait)[0]:
            try:
                frame = os.read(tap, FRAME_MAX)
            except OSError:
                continue
            homes[frame[6:12]] = tap
            if chance.random() < weather.loss:
                continue
            when = time.monotonic()
            if weather.bytes_per_s > 0:
                if free_at[tap] - when > weather.queue_s:
                    continue
                free_at[tap] = max(free_at[tap], when) + len(frame) / weather.bytes_per_s
                when = free_at[tap]
            when += weather.delay_s + (0.004 if chance.random() < weather.overtaken else 0)
            to = homes.get(frame[0:6])
            for target in [to] if to is not None else [other for other in taps if other != tap]:
                if (taps.index(tap), taps.index(target)) in bars:
                    continue
                number += 1
                heapq.heappush(under_way, (when, number, target, frame))
