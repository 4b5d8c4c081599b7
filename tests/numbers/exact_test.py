#!/usr/bin/env python3
"""The library's sums against exact fractions: docs/numerics.md, checked by arithmetic that shares nothing with it.

    exact_test.py FOLD_CLIENT PART      PART: formats, folds, bounds or places
"""
import random
import sys
from fractions import Fraction

import float_model as model
from fold_calls import Client

SEED = 20
# NCCL's numbers.
TYPES = {6: model.FLOAT16, 7: model.FLOAT32, 8: model.FLOAT64, 9: model.BFLOAT16, 10: model.FLOAT8E4M3, 11: model.FLOAT8E5M2}
OPERATIONS = {model.SUM: "sum", model.PRODUCT: "product", model.AVERAGE: "average", model.SCALED_SUM: "PreMulSum"}
wrong = 0


def complain(text):
    global wrong
    wrong += 1
    if wrong <= 20:
        print(text)


def same(format, a, b):
    """A NaN equals any NaN."""
    return a == b or (format.decode(a) is model.NAN and format.decode(b) is model.NAN)


def compare(format, what, got, wanted):
    if got == wanted:
        return
    for i, (a, b) in enumerate(zip(got, wanted)):
        if not same(format, a, b):
            complain(f"{what}, element {i}: got {a:#x} = {format.decode(a)}, exactly {b:#x} = {format.decode(b)}")
            return


def compare_all(format, what, rows, wanted):
    for rank, row in enumerate(rows):
        if row is not None:
            compare(format, f"{what}, rank {rank}", row, wanted)


def number(random_, format, spread):
    """A finite number, not far from 1: sign, exponent within `spread`, mantissa."""
    exponent = random_.randint(max(format.bias - spread, 0), format.bias + spread)
    mantissa = random_.getrandbits(format.mantissa_bits)
    return random_.getrandbits(1) << (format.bits - 1) | exponent << format.mantissa_bits | mantissa


def anything(random_, format, spread=3):
    """Mostly numbers of middle size, every eighth any code at all."""
    return random_.getrandbits(format.bits) if random_.randrange(8) == 0 else number(random_, format, spread)


def test_formats(program):
    """Every code of the 8-bit formats with every other, every code of the 16-bit ones with some other."""
    random_ = random.Random(SEED)
    for type_number, format in TYPES.items():
        if format.bits > 16:
            continue
        pairs = [(a, b) for a in range(256) for b in range(256)] if format.bits == 8 else \
                [(a, number(random_, format, 12)) for a in range(65536)]
        client = Client(program, "2", TUTTI_REPRODUCIBLE="1")
        client.data(format.bytes, [[a for a, _ in pairs], [b for _, b in pairs]])
        operations = (model.SUM, model.PRODUCT) if format.bits == 8 else (model.SUM,)
        for operation in operations:
            client.call(type_number, operation, len(pairs))
        for operation, rows in zip(operations, client.run()):
            wanted = [model.left_fold(format, operation, pair) for pair in pairs]
            compare_all(format, f"{format.name} {OPERATIONS[operation]} of all codes", rows, wanted)


def test_folds(program):
    """Reproducible mode: exactly the left fold, for every float type and operation that rounds, in every collective."""
    random_ = random.Random(SEED)
    for layout, asking in (("2", None), ("1,1,1", "all"), ("3,2", "first"), ("9", None)):
        client = Client(program, layout, asking) if asking else Client(program, layout, TUTTI_REPRODUCIBLE="1")
        n, count = client.ranks, 40
        checks = []
        for type_number, format in TYPES.items():
            codes = [[anything(random_, format) for _ in range(count * n)] for _ in range(n)]
            client.data(format.bytes, codes)
            for operation in OPERATIONS:
                scales = [anything(random_, format, 1) if operation == model.SCALED_SUM else 0 for _ in range(n)]
                used = scales if operation == model.SCALED_SUM else ()
                folds = [model.left_fold(format, operation, [row[i] for row in codes], scales) for i in range(count * n)]
                # The first is small enough for an announce line.
                for collective, length in (("all_reduce", 3), ("all_reduce", count), ("reduce", count), ("reduce_scatter", count)):
                    client.call(type_number, operation, length, collective=collective, root=n - 1, scales=used)
                    checks.append((format, operation, collective, length, folds))
        for (format, operation, collective, length, folds), rows in zip(checks, client.run()):
            what = f"reproducible {collective} of {format.name}, {OPERATIONS[operation]}, layout {layout}, count {length}"
            for rank, row in enumerate(rows):
                start = rank * length if collective == "reduce_scatter" else 0
                if row is not None:
                    compare(format, f"{what}, rank {rank}", row, folds[start:start + length])


def longest_path(algorithm, n):
    """(operations, roundings) as docs/numerics.md has them, for all-reduce."""
    up, down = (n - 1).bit_length(), n.bit_length() - 1
    return {"ring": (n - 1, n - 1), "oneshot": (n - 1, 1), "twoshot": (n - 1, 1), "halving_doubling": (up, up),
            "grouped": (n - 1, 2),
            "tree": (2 * down - (1 if n == 2 ** down else 0), down)}[algorithm]


def bound(format, operation, algorithm, n, exact, magnitude, wide_wire):
    operations, roundings = longest_path(algorithm, n)
    roundings = 1 if wide_wire else roundings
    if operation == model.PRODUCT:
        operations, roundings, magnitude = n - 1, 1 if roundings == 1 else n - 1, abs(exact)
    if operation in (model.AVERAGE, model.SCALED_SUM):
        operations += 1
    narrow = model.accumulator(format) is not format
    unit, least = Fraction(1, 2 ** (format.mantissa_bits + 1)), Fraction(2) ** (format.lowest_exponent - format.mantissa_bits - 1)
    growth = (1 + (Fraction(1, 2 ** 24) if narrow else unit)) ** operations
    if narrow:
        growth *= (1 + unit) ** (roundings + (1 if operation == model.SCALED_SUM else 0))
    return (growth - 1) * magnitude + (2 * n + 1) * growth * least


def test_bounds(program):
    """By default, every algorithm: within the bound of the exact result, and the same bits on every rank."""
    random_ = random.Random(SEED)
    for algorithm, wire in [(name, "datatype") for name in ("ring", "tree", "oneshot", "twoshot", "halving_doubling", "grouped")] + \
                           [("ring", "float32"), ("tree", "float32")]:
        for layout in ("3", "4,3"):
            client = Client(program, layout, NCCL_ALGO=algorithm, TUTTI_WIRE=wire)
            n, count, checks = client.ranks, 70, []
            for type_number, format in TYPES.items():
                codes = [[number(random_, format, 2) for _ in range(count)] for _ in range(n)]
                values = [[model.signed(format.decode(code)) for code in row] for row in codes]
                client.data(format.bytes, codes)
                for operation in OPERATIONS:
                    scaled = operation == model.SCALED_SUM
                    scales = [number(random_, format, 1) for _ in range(n)] if scaled else ()
                    client.call(type_number, operation, count, scales=scales)
                    factors = [model.signed(format.decode(scale)) for scale in scales] if scaled else [1] * n
                    checks.append((format, operation, values, factors))
            for (format, operation, values, factors), rows in zip(checks, client.run()):
                what = f"{algorithm} {format.name} {OPERATIONS[operation]} layout {layout}, wire {wire}"
                if any(row != rows[0] for row in rows):
                    complain(f"{what}: not the same bits on every rank")
                for i, code in enumerate(rows[0]):
                    terms = [row[i] * factor for row, factor in zip(values, factors)]
                    exact, magnitude = sum(terms), sum(map(abs, terms))
                    if operation == model.PRODUCT:
                        exact = 1
                        for term in terms:
                            exact *= term
                    if operation == model.AVERAGE:
                        exact, magnitude = exact / n, magnitude / n
                    value = format.decode(code)
                    if abs(exact) > format.largest or (format.saturates and magnitude > format.largest):
                        continue
                    allowed = bound(format, operation, algorithm, n, exact, magnitude, wire == "float32")
                    if value is model.NAN or value[1] is model.INFINITY or abs(model.signed(value) - exact) > allowed:
                        complain(f"{what}, element {i}: {value}, exactly {exact}, allowed {allowed}")


# Where the ranks are and how bytes cross between them: layout, environment, kind of memory.
PLACES = [
    ("5", {}, "private"),
    ("1,1,1,1,1", {"TUTTI_SINGLE_COPY": "0"}, "private"),
    ("1,1,1,1,1", {"TUTTI_SINGLE_COPY": "0", "NCCL_PROTO": "Simple"}, "private"),
    ("1,1,1,1,1", {"TUTTI_SINGLE_COPY": "0", "TUTTI_SLOT_BYTES": "4096"}, "private"),
    ("1,1,1,1,1", {"TUTTI_SINGLE_COPY": "0", "TUTTI_SLOT_BYTES": "1M"}, "private"),
    ("1,1,1,1,1", {"TUTTI_SINGLE_COPY_MIN_BYTES": "1"}, "private"),
    ("1,1,1,1,1", {}, "shared"),
    ("1,1,1,1,1", {"NCCL_SHM_DISABLE": "1", "TUTTI_SINGLE_COPY": "0", "TUTTI_SLOT_BYTES": "12K"}, "shared"),
    ("2,3", {}, "private"),
    ("1,3,1", {"TUTTI_SINGLE_COPY": "0", "TUTTI_SLOT_BYTES": "64K"}, "private"),
    ("2,2,1", {"TUTTI_SINGLE_COPY_MIN_BYTES": "1", "TUTTI_SIMD": "portable"}, "shared"),
]
ALGORITHMS = ["", "oneshot", "twoshot", "^oneshot"]
# First element, count, shift of the send and of the receive buffer in bytes, in place.
PIECES = [(0, 20011, 0, 0, 0), (1, 20010, 1, 3, 0), (333, 8192, 0, 0, 1), (7, 1000, 5, 0, 0), (15000, 64, 0, 1, 1),
          (19990, 15, 0, 0, 0), (3, 14, 3, 3, 0), (11, 3, 1, 0, 0), (20010, 1, 0, 0, 1)]


def test_places(program):
    """Reproducible mode: an element has the same bits wherever it lies, in messages of any length, whatever carries them."""
    random_ = random.Random(SEED)
    total, n = 20011, 5
    for type_number, collective in ((7, "all_reduce"), (9, "all_reduce"), (10, "reduce")):
        format = TYPES[type_number]
        codes = [[anything(random_, format, 5) for _ in range(total)] for _ in range(n)]
        wanted = [model.left_fold(format, model.SUM, [row[i] for row in codes]) for i in range(total)]
        for place, (layout, environment, memory) in enumerate(PLACES):
            algorithm = ALGORITHMS[(place + type_number) % len(ALGORITHMS)]
            client = Client(program, layout, TUTTI_REPRODUCIBLE="1", NCCL_ALGO=algorithm, **environment)
            client.data(format.bytes, codes)
            for first, count, send_shift, receive_shift, in_place in PIECES:
                client.call(type_number, model.SUM, count, first, collective, place % n, memory, send_shift, receive_shift,
                            in_place if collective == "all_reduce" else 0)
            for (first, count, *_), rows in zip(PIECES, client.run()):
                compare_all(format, f"{collective} {format.name} of {count} from {first}, layout {layout}, NCCL_ALGO={algorithm!r}, "
                                    f"{environment}, {memory} memory", rows, wanted[first:first + count])


def main():
    parts = {"formats": test_formats, "folds": test_folds, "bounds": test_bounds, "places": test_places}
    if len(sys.argv) != 3 or sys.argv[2] not in parts:
        print(__doc__, file=sys.stderr)
        return 2
    print(f"exact_test {sys.argv[2]}: seed {SEED}")
    parts[sys.argv[2]](sys.argv[1])
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
