"""What bench/compare says: one table, JSON, charts."""
import argparse
import datetime
import math
import os
import platform
import statistics
import subprocess
import sys

from compare_peers import OURS, SETTINGS, TITLES

FACTORS = {"all_reduce": lambda n: 2 * (n - 1) / n, "broadcast": lambda n: 1, "reduce": lambda n: 1, "sendrecv": lambda n: 1}
# From here on geometric means are taken, in bytes: beside the peers, and beside the floor.
MEAN_FROM, FLOOR_MEAN_FROM = 8 << 10, 16 << 10


def size_of(text):
    digits, unit = text.rstrip("kKmMgG"), text[len(text.rstrip("kKmMgG")):].upper()
    if not digits.isdecimal() or len(digits) > 20 or unit not in ("", "K", "M", "G") or int(digits) == 0:
        raise argparse.ArgumentTypeError(f'"{text}" is not a size: write 8, 4K, 256M or 1G')
    return int(digits) << {"": 0, "K": 10, "M": 20, "G": 30}[unit]


def short_size(size):
    for shift, unit in ((30, "G"), (20, "M"), (10, "K")):
        if size >= 1 << shift and size % (1 << shift) == 0:
            return f"{size >> shift}{unit}"
    return str(size)


def short_time(us):
    return f"{us:.3f}" if us < 1 else f"{us:.2f}" if us < 100 else f"{us:.0f}"


def commit():
    """The tree that this file is of, if git knows it."""
    command = ["git", "-C", os.path.dirname(os.path.abspath(__file__)), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def first_line(path, prefix=""):
    try:
        with open(path, encoding="utf-8") as file:
            return next((line.split(":", 1)[-1].strip() for line in file if line.startswith(prefix)), None)
    except OSError:
        return None


class Value:
    """A setting's time in a cell: the median over the rounds with near cores, or over all if there was none."""

    def __init__(self, run, setting, samples):
        near = [sample for sample in samples if run.is_near(sample)]
        self.setting, self.near, self.samples = setting, bool(near), near or samples
        self.us = statistics.median(sample["us"] for sample in self.samples)
        self.bytes = samples[0]["bytes"]

    def text(self):
        return short_time(self.us) + ("" if self.near else "*")


class Row:
    """A cell's values by setting, and the best of each peer."""

    def __init__(self, run, cell):
        self.cell = cell
        by_name = {setting.name: setting for setting in SETTINGS}
        self.values = {name: Value(run, by_name[name], samples) for name, samples in run.samples[cell].items()}
        self.best = {}
        for value in self.values.values():
            peer = value.setting.peer
            # Far cores do not compete with near ones.
            if peer not in self.best or (not value.near, value.us) < (not self.best[peer].near, self.best[peer].us):
                self.best[peer] = value
        rivals = [value for peer, value in self.best.items() if peer not in OURS]
        self.rival = min(rivals, key=lambda value: (not value.near, value.us), default=None)
        self.bytes = max(value.bytes for value in self.values.values())

    def bandwidth(self, value):
        factor = FACTORS.get(self.cell.collective, lambda n: (n - 1) / n)(self.cell.ranks)
        return value.bytes / value.us / 1000 * factor

    def ratio(self, over, under):
        """(over / under, whether both had near cores or both far ones), or None."""
        return (over.us / under.us, over.near == under.near) if over and under else None

    def our(self):
        """The values that the table compares: Tutti's, and Tutti's with threads."""
        return {peer: self.best[peer] for peer in ("tutti", "tutti_threads") if peer in self.best}


class Report:
    def __init__(self, run, command):
        self.run, self.command = run, command
        self.rows = [Row(run, cell) for cell in run.samples]
        self.rows.sort(key=lambda row: (row.cell.ranks, row.cell.in_place, row.cell.bytes))

    def groups(self):
        """Rows by rank count and form."""
        keys = list(dict.fromkeys((row.cell.ranks, row.cell.in_place) for row in self.rows))
        return [(ranks, in_place, [row for row in self.rows if (row.cell.ranks, row.cell.in_place) == (ranks, in_place)])
                for ranks, in_place in keys]

    # ---- Text

    def text(self):
        parts = [self._heading()]
        for ranks, in_place, rows in self.groups():
            parts.append(self._title(ranks, in_place))
            parts.append(table(self._columns(rows), rows))
            parts += self._summary(rows)
        parts += ["", *self._machine()]
        parts += [f"# left out: {who}: {why}" for who, why in self.run.left_out]
        parts += [f"# FAILED: {failure}" for failure in self.run.failures]
        return "\n".join(parts)

    def _heading(self):
        return (f"# {self.command}\n# Times are us per call: medians of rounds, each the median of batches of their slowest rank. "
                "Ratios: how many times\n# as long the other takes (peers), or as Tutti takes (floor). *: cores were not near each other.")

    def _title(self, ranks, in_place):
        options = self.run.options
        shared = ", sharing cores" if ranks > len(self.run.cores) else ""
        return (f"\n{options.collective}, {options.dtype}, {ranks} ranks on {min(ranks, len(self.run.cores))} cores{shared}, "
                f"{'in place' if in_place else 'out of place'}, Tutti's buffers {options.buffers}, pages {options.pages}")

    def _columns(self, rows):
        """(title, row -> text)."""
        peers = [peer for peer in dict.fromkeys(setting.peer for setting in SETTINGS) if any(peer in row.best for row in rows)]
        columns = [("size", lambda row: short_size(row.bytes))]
        for peer in peers:
            names = {value.setting.name for row in rows for value in row.values.values() if value.setting.peer == peer}
            if peer in names and len(names) > 1:
                columns.append((TITLES[peer], lambda row, name=peer: row.values[name].text() if name in row.values else "-"))
            title = TITLES[peer] if len(names) == 1 else TITLES[peer] + ("" if peer == "floor" else " best")
            columns.append((title, lambda row, peer=peer: row.best[peer].text() if peer in row.best else "-"))
            if len(names) > 1:
                columns.append(("", lambda row, peer=peer: suffix(row.best[peer].setting) if peer in row.best else ""))
        for ours in ("tutti", "tutti_threads"):
            if ours not in peers:
                continue
            of = "" if ours == "tutti" else ", threads"
            if any(row.rival for row in rows):
                columns.append((f"best peer/Tutti{of}", lambda row, o=ours: ratio_text(row.ratio(row.rival, row.best.get(o)))))
            if any("floor" in row.best for row in rows):
                columns.append((f"Tutti{of}/floor", lambda row, o=ours: ratio_text(row.ratio(row.best.get(o), row.best.get("floor")))))
        return columns

    def summary(self, rows):
        """Figures over the rows of a group; ratios of near with far cores do not count."""
        def clean(ratios, least=0):
            return [ratio[0] for row, ratio in ratios if ratio and ratio[1] and row.bytes >= least]
        result = {}
        for ours in ("tutti", "tutti_threads"):
            best = [(row, row.ratio(row.rival, row.best.get(ours))) for row in rows]
            default = [(row, row.ratio(row.values.get("openmpi"), row.best.get(ours))) for row in rows]
            floor = [(row, row.ratio(row.best.get(ours), row.best.get("floor"))) for row in rows]
            if not any(ours in row.best for row in rows):
                continue
            result[ours] = {
                "rows": len(rows),
                "ahead_of_best_peer_in": sum(ratio >= 1 for ratio in clean(best)), "compared_with_peers": len(clean(best)),
                "best_peer_min": min(clean(best), default=None), "best_peer_mean_from_8K": geometric_mean(clean(best, MEAN_FROM)),
                "openmpi_default_mean_from_8K": geometric_mean(clean(default, MEAN_FROM)),
                "floor_max_from_16K": max(clean(floor, FLOOR_MEAN_FROM), default=None),
                "floor_max": max(clean(floor), default=None), "floor_mean_from_16K": geometric_mean(clean(floor, FLOOR_MEAN_FROM))}
        return result

    def _summary(self, rows):
        lines = []
        for ours, figures in self.summary(rows).items():
            said = []
            if figures["compared_with_peers"]:
                said.append(f"ahead of the best peer in {figures['ahead_of_best_peer_in']} of {figures['compared_with_peers']} rows, "
                            f"least {figures['best_peer_min']:.2f}")
            for key, words in (("best_peer_mean_from_8K", "geometric mean from 8K {:.2f}"),
                               ("openmpi_default_mean_from_8K", "beside Open MPI's default {:.2f}"),
                               ("floor_max", "floor: at most {:.2f} times it"), ("floor_max_from_16K", "from 16K {:.2f}"),
                               ("floor_mean_from_16K", "geometric mean {:.2f}")):
                if figures[key] is not None:
                    said.append(words.format(figures[key]))
            if said:
                lines.append(f"# {TITLES[ours]}: " + "; ".join(said))
        return lines

    def _machine(self):
        run = self.run
        lines = [f"# {key}: {value}" for key, value in self.machine().items() if value]
        if run.round_trips_ns:
            least, most = run.near_range_ns()
            others = sum(not run.is_near_trip(trip) for trip in run.round_trips_ns)
            lines.append(f"# cache line, there and back: {min(run.round_trips_ns):.0f} to {max(run.round_trips_ns):.0f} ns, median "
                         f"{statistics.median(run.round_trips_ns):.0f}; near is {least:.0f} to {most:.0f}; {others} of "
                         f"{len(run.round_trips_ns)} probes were not")
        for size in dict.fromkeys(row["bytes"] for row in run.memory):
            words = [f"{row['kernel']} {row['gbps']:.1f}" + (f" on {row['cores']} cores" if row["cores"] > 1 else "")
                     for row in run.memory if row["bytes"] == size]
            lines.append(f"# memory, GB/s, arrays of {short_size(size)}: " + ", ".join(words))
        return lines

    def machine(self):
        return {"date": datetime.date.today().isoformat(), "commit": commit(),
                "processor": first_line("/proc/cpuinfo", "model name"), "cores used": ",".join(map(str, self.run.cores)),
                "kernel": platform.release(),
                "huge pages": first_line("/sys/kernel/mm/transparent_hugepage/enabled"),
                "huge pages, shared memory": first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled")}

    # ---- JSON

    def document(self):
        run = self.run
        rows = []
        for row in self.rows:
            ours = row.best.get("tutti")
            against_peer, against_floor = row.ratio(row.rival, ours), row.ratio(ours, row.best.get("floor"))
            rows.append({
                "collective": row.cell.collective, "dtype": row.cell.dtype, "ranks": row.cell.ranks, "in_place": row.cell.in_place,
                "bytes": row.bytes,
                "values": {name: {"peer": value.setting.peer, "us": value.us, "busbw_gbps": row.bandwidth(value), "near": value.near,
                                  "rounds": [{**sample, "near": run.is_near(sample)} for sample in run.samples[row.cell][name]]}
                           for name, value in row.values.items()},
                "best": {peer: value.setting.name for peer, value in row.best.items()},
                "best_peer": row.rival.setting.name if row.rival else None,
                "best_peer_over_tutti": against_peer[0] if against_peer else None,
                "tutti_over_floor": against_floor[0] if against_floor else None})
        return {"command": self.command, "machine": self.machine(), "buffers": run.options.buffers, "pages": run.options.pages,
                "near_ns": run.near_range_ns()[1], "near_from_ns": run.near_range_ns()[0], "round_trips_ns": run.round_trips_ns, "memory": run.memory,
                "settings": {setting.name: setting.about for setting in run.settings},
                "left_out": [{"who": who, "why": why} for who, why in run.left_out], "failures": run.failures, "rows": rows,
                "summary": [{"ranks": ranks, "in_place": in_place, **self.summary(group)} for ranks, in_place, group in self.groups()]}

    # ---- Charts

    def draw(self, prefix, tool):
        collective = self.run.options.collective
        for ranks, in_place, rows in self.groups():
            path = f"{prefix}-{collective}-{ranks}-{'in' if in_place else 'out'}.svg"
            charts = self._chart(ranks, in_place, rows, "Time", "us per call", lambda row, value: value.us, logarithmic=True)
            charts += self._chart(ranks, in_place, rows, "Bus bandwidth", "GB/s", lambda row, value: row.bandwidth(value), logarithmic=False)
            if subprocess.run([tool, path], input="\n".join(charts) + "\n", text=True, check=False).returncode != 0:
                self.run.failures.append(f"cannot draw {path}")
            else:
                print(f"compare: {path}", file=sys.stderr)

    def _chart(self, ranks, in_place, rows, title, unit, measure, logarithmic):
        options = self.run.options
        lines = [f"panel {title}: {options.collective} of {options.dtype}, {ranks} ranks, {'in place' if in_place else 'out of place'}",
                 f"subtitle {min(ranks, len(self.run.cores))} cores, Tutti's buffers {options.buffers}; medians; the best setting of each "
                 "peer at each size", "x bytes per rank", f"y {unit}"]
        if logarithmic:
            lines.append("log-y")
        shown = [(peer, lambda row, peer=peer: row.best.get(peer)) for peer in TITLES]
        shown.insert(list(TITLES).index("openmpi") + 1, ("openmpi default", lambda row: row.values.get("openmpi")))
        shown.sort(key=lambda entry: entry[0] == "floor")
        for name, pick in shown:
            points = [(row.bytes, measure(row, pick(row))) for row in rows if pick(row)]
            if not points:
                continue
            best = " best" if name in ("openmpi", "mpich", "gloo") else ""
            lines.append("series " + ("Open MPI default" if name == "openmpi default" else TITLES[name] + best))
            if name in ("floor", "openmpi default"):
                lines.append("dashed")
            lines += [f"point {x} {y:.9g}" for x, y in points]
        return lines


def suffix(setting):
    """What tells a setting from its peer's default."""
    return "" if setting.name == setting.peer else setting.name.removeprefix(setting.peer + "-")


def ratio_text(ratio):
    return "-" if ratio is None else f"{ratio[0]:.2f}" + ("" if ratio[1] else "*")


def table(columns, rows):
    cells = [[title for title, _ in columns]] + [[text(row) for _, text in columns] for row in rows]
    widths = [max(len(line[n]) for line in cells) for n in range(len(columns))]
    # A name stands to the left, behind its number.
    named = [title == "" for title, _ in columns]
    return "\n".join("  ".join(word.ljust(width) if left else word.rjust(width)
                               for word, width, left in zip(line, widths, named)).rstrip() for line in cells)
