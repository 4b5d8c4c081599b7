"""Runs reductions on the library through fold-client and hands back what every rank got."""
import os
import subprocess


class Client:
    """Collects calls for ranks in a `layout` such as "2,1" (processes with so many threads), then runs them. `asking`: which
    ranks ask for a reproducible communicator, "all" or "first"."""

    def __init__(self, program, layout, asking=None, **environment):
        self.command = [program, layout] + ([asking] if asking else [])
        self.layout = layout
        self.ranks = sum(int(threads) for threads in layout.split(","))
        # What the tests set, and nothing of the caller's.
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith(("NCCL_", "TUTTI_"))}
        self.environment.update(environment)
        self.lines = []
        self.sizes = []
        self.element_bytes = 0

    def data(self, element_bytes, codes):
        """codes[rank]: the elements that calls from now on take their inputs from."""
        assert len(codes) == self.ranks
        self.element_bytes = element_bytes
        self.lines.append(f"data {element_bytes} {len(codes[0])}")
        self.lines += [b"".join(code.to_bytes(element_bytes, "little") for code in row).hex() for row in codes]

    def call(self, type_number, operation, count, first=0, collective="all_reduce", root=0, memory="private", send_shift=0,
             receive_shift=0, in_place=0, scales=()):
        words = ["call", collective, type_number, operation, root, first, count, memory, send_shift, receive_shift, in_place]
        words += [scale.to_bytes(self.element_bytes, "little").hex() for scale in scales]
        self.lines.append(" ".join(map(str, words)))
        self.sizes.append(self.element_bytes)

    def run(self):
        """For each call a list of codes for each rank; None for a rank that gets nothing."""
        done = subprocess.run(self.command, input="\n".join(self.lines) + "\n", capture_output=True,
                              text=True, env=self.environment, timeout=110, check=False)
        if done.returncode != 0:
            raise SystemExit(f"fold-client {self.layout} ended with {done.returncode}:\n{done.stderr}")
        lines = done.stdout.splitlines()
        assert len(lines) == self.ranks * len(self.sizes), "fold-client printed too little"
        results = []
        for number, size in enumerate(self.sizes):
            rows, first = [], None
            for line in lines[number * self.ranks:(number + 1) * self.ranks]:
                row = None if line == "-" else first if line == "=" else codes_of(bytes.fromhex(line), size)
                first = row if first is None else first
                rows.append(row)
            results.append(rows)
        return results


def codes_of(data, size):
    return [int.from_bytes(data[i:i + size], "little") for i in range(0, len(data), size)]
