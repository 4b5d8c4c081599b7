"""The order of things in bench/compare: which cell is measured when, by whom, how often."""
import os
import sys
import time

from compare_peers import Cell, DTYPES, SETTINGS, TITLES, why_missing, why_unfit, why_unfit_among
from compare_worker import Worker, WorkerFailed

CELL_S = 120
# A setting that is this much slower than the best one of its peer in the first round is not the best in the next either.
HOPELESS = 3
NEAR = 1.6  # times as far, or as near, and still the same distance
ONLY_IN_PLACE, ONLY_OUT_OF_PLACE = ("broadcast",), ("all_to_all", "sendrecv")
MEMORY_BYTES = (256 << 10, 4 << 20, 64 << 20, 256 << 20)


class CannotRun(Exception):
    """The text says why."""


def forms(collective):
    """in_place or not; which of the two there are."""
    return [True] if collective in ONLY_IN_PLACE else [False] if collective in ONLY_OUT_OF_PLACE else [False, True]


def available_bytes():
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))


class Run:
    """What was measured: samples[cell][setting name] = one dict per round."""

    def __init__(self, options):
        self.options = options
        self.cores = sorted(os.sched_getaffinity(0))
        self.samples = {}
        self.memory = []
        self.round_trips_ns = []
        self.left_out = []       # (who, why): settings that took no part, sizes that do not fit
        self.failures = []       # wrong values, and peers of ours that failed
        self.settings = self._choose_settings()
        self.probe_worker = None
        self.started = time.monotonic()

    def _choose_settings(self):
        chosen = []
        for peer in self.options.peers:
            why = why_missing(peer, self.options.build) or why_unfit(peer, self.options.collective, self.options.dtype)
            if why:
                self.left_out.append((TITLES[peer], why))
                self.say(f"left out: {TITLES[peer]}: {why}")
                continue
            chosen += [setting for setting in SETTINGS if setting.peer == peer
                       and (setting.name == peer or peer == "floor" or not self.options.defaults_only)]
        return chosen

    def say(self, text):
        print(f"compare: {text}", file=sys.stderr, flush=True)

    # ---- All of it

    def measure(self):
        if not self.settings:
            raise CannotRun("no peer can run")
        self._open_probe()
        try:
            shares = [len(self.options.sizes_with[ranks]) * self.options.rounds_with[ranks] for ranks in self.options.ranks]
            for number, ranks in enumerate(self.options.ranks, 1):
                until = self.started + 60 * self.options.minutes * sum(shares[:number]) / sum(shares)
                self._measure_ranks(ranks, until)
        finally:
            if self.probe_worker:
                self.probe_worker.close()

    def _open_probe(self):
        """The probe is the floor's worker with a rank on every core that the run uses."""
        ranks = min(len(self.cores), max(self.options.ranks))
        why = why_missing("floor", self.options.build)
        if why:
            raise CannotRun(why)
        try:
            self.probe_worker = Worker(SETTINGS[0], self.options.build, ranks, self.cores, False)
            largest = max(max(sizes) for sizes in self.options.sizes_with.values())
            for size in MEMORY_BYTES:
                if size > max(largest, MEMORY_BYTES[0]) or size * 3 * ranks > available_bytes() // 2:
                    continue
                for row in self.probe_worker.ask(f"memory {size}", CELL_S)["memory"]:
                    self.memory.append({"bytes": size, **row})
        except WorkerFailed as problem:
            raise CannotRun(f"the probe: {problem}") from problem

    def probe(self):
        """Nanoseconds of the slowest pair of cores; None on a single core."""
        try:
            trips = self.probe_worker.ask("probe", CELL_S)["round_trip_ns"]
        except WorkerFailed as problem:
            raise CannotRun(f"the probe: {problem}") from problem
        if not trips:
            return None
        self.round_trips_ns.append(max(trips))
        return max(trips)

    def near_range_ns(self):
        """From where to where cores are near each other."""
        if self.options.near:
            return 0.0, float(self.options.near)
        # The nearest distance that is common: threads of one core are nearer, for moments, and are no cores.
        trips = sorted(self.round_trips_ns)
        common = trips[len(trips) // 4] if trips else 0.0
        return common / NEAR, common * NEAR

    def is_near_trip(self, trip):
        least, most = self.near_range_ns()
        return least <= trip <= most

    # ---- One rank count

    def _measure_ranks(self, ranks, until):
        """One round in any case; then more, as long as there is time."""
        options = self.options
        cells = [Cell(options.collective, options.dtype, ranks, form, max(size, DTYPES[options.dtype]))
                 for size in self._sizes_that_fit(ranks) for form in options.forms]
        wanted = []
        for setting in self.settings:
            why = why_unfit_among(setting, options.collective, ranks)
            if why:
                self._leave_out(setting, ranks, why)
            elif any(setting.covers(cell) for cell in cells):
                wanted.append(setting)
        workers = self._start(wanted, ranks)
        try:
            for number in range(options.rounds_with[ranks]):
                if number > 0 and time.monotonic() > until:
                    self.left_out.append((f"{options.rounds_with[ranks] - number} of {options.rounds_with[ranks]} rounds with {ranks} ranks",
                                          f"--minutes {options.minutes} are over"))
                    break
                self.say(f"{ranks} ranks, round {number + 1} of {options.rounds_with[ranks]}, "
                         f"{time.monotonic() - self.started:.0f} s since the start")
                for cell in cells:
                    self._measure_cell(cell, workers, number)
            self._retry_far(cells, workers)
        finally:
            for worker in {id(worker): worker for worker in workers.values()}.values():
                worker.close()

    def _sizes_that_fit(self, ranks):
        """Two buffers per rank, and as much again inside a library."""
        sizes = self.options.sizes_with[ranks]
        fitting = [size for size in sizes if 4 * size * ranks < available_bytes()]
        if len(fitting) < len(sizes):
            why = f"{ranks} ranks need {4 * sizes[-1] * ranks >> 30} GiB, {available_bytes() >> 30} are free"
            self.left_out.append((f"sizes from {sizes[len(fitting)]} bytes on", why))
            self.say(f"left out: sizes from {sizes[len(fitting)]} bytes on: {why}")
        return fitting

    def _start(self, settings, ranks):
        workers, running = {}, {}
        for setting in settings:
            key = setting.worker_key()
            if key not in running:
                try:
                    running[key] = Worker(setting, self.options.build, ranks, self.cores, self.options.buffers == "registered")
                except WorkerFailed as problem:
                    self._lose(setting, ranks, f"does not start: {problem}")
                    running[key] = None
            if running[key]:
                workers[setting.name] = running[key]
        return workers

    def _leave_out(self, setting, ranks, why):
        self.left_out.append((f"{setting.name}, {ranks} ranks", why))
        self.say(f"left out: {setting.name}, {ranks} ranks: {why}")

    def _lose(self, setting, ranks, why):
        self._leave_out(setting, ranks, why)
        if setting.peer in ("tutti", "tutti_threads", "floor"):
            self.failures.append(f"{setting.name}: {why}")

    # ---- One cell

    def _measure_cell(self, cell, workers, number):
        """Everybody in turn; who begins changes with the round."""
        turn = [setting for setting in self.settings if setting.covers(cell) and setting.name in workers
                and not (number > 0 and self._hopeless(setting, cell))]
        first = number * 5 % len(turn) if turn else 0
        before = self.probe()
        for setting in turn[first:] + turn[:first]:
            before = self._measure_setting(setting, cell, workers, before, check=number == 0)

    def _measure_setting(self, setting, cell, workers, before, check):
        """Returns the round trip afterwards."""
        line = (f"run {cell.collective} {cell.dtype} {cell.bytes} {int(cell.in_place)} {self.options.pages} {int(check)} "
                f"{self.options.budget} {setting.variant}")
        worker = workers.get(setting.name)
        if not worker:
            return before  # lost with another setting of its worker
        try:
            sample = worker.ask(line, CELL_S)
        except WorkerFailed as problem:
            worker.kill()
            for name in [name for name, other in workers.items() if other is worker]:
                del workers[name]
            self._lose(setting, cell.ranks, f"failed at {cell.bytes} bytes{', in place' if cell.in_place else ''}: {problem}")
            return self.probe()
        after = self.probe()
        if sample.get("wrong"):
            self.failures.append(f"{setting.name}: {sample['wrong']} wrong elements, {cell}")
            self.say(f"WRONG: {self.failures[-1]}")
        sample["round_trip_ns"] = [before, after]
        self.samples.setdefault(cell, {}).setdefault(setting.name, []).append(sample)
        return after

    def _hopeless(self, setting, cell):
        if setting.name == setting.peer or setting.peer == "floor":
            return False
        times = {name: min(sample["us"] for sample in samples) for name, samples in self.samples.get(cell, {}).items()
                 if any(other.name == name and other.peer == setting.peer for other in self.settings)}
        return setting.name in times and times[setting.name] > HOPELESS * min(times.values())

    def is_near(self, sample):
        return all(trip is None or self.is_near_trip(trip) for trip in sample["round_trip_ns"])

    def _retry_far(self, cells, workers):
        """Cells that never met near cores get another chance, if the run has seen such cores at all."""
        for cell in cells:
            for setting in self.settings:
                samples = self.samples.get(cell, {}).get(setting.name)
                if not samples or self._hopeless(setting, cell) or any(map(self.is_near, samples)):
                    continue
                before = self.probe()
                if before is not None and self.is_near_trip(before):
                    self._measure_setting(setting, cell, workers, before, check=False)
