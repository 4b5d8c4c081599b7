"""Float formats and their arithmetic, from their definitions, in exact fractions. Knows nothing of the library.

A value is (sign, magnitude): sign 0 or 1, magnitude a Fraction of 0 or more, or INFINITY; or NAN.
"""
from fractions import Fraction

INFINITY = "infinity"
NAN = "nan"


class Format:
    """Sign, exponent, mantissa. `infinity`: the largest exponent holds infinity and NaNs, as IEEE 754 has it; otherwise
    only the code with all bits set is a NaN. `saturates`: a finite number that is too large becomes the largest one."""

    def __init__(self, name, exponent_bits, mantissa_bits, infinity=True, saturates=False):
        self.name = name
        self.mantissa_bits = mantissa_bits
        self.exponent_bits = exponent_bits
        self.bits = 1 + exponent_bits + mantissa_bits
        self.bytes = self.bits // 8
        self.infinity = infinity
        self.saturates = saturates
        self.bias = 2 ** (exponent_bits - 1) - 1
        self.lowest_exponent = 1 - self.bias
        self.magnitude_mask = 2 ** (self.bits - 1) - 1
        # The first code that is no finite number.
        self.special = (2 ** exponent_bits - 1) << mantissa_bits if infinity else self.magnitude_mask
        self.largest = self.decode(self.special - 1)[1]

    def decode(self, code):
        sign, magnitude = code >> (self.bits - 1), code & self.magnitude_mask
        if magnitude >= self.special:
            return (sign, INFINITY) if self.infinity and magnitude == self.special else NAN
        exponent, mantissa = magnitude >> self.mantissa_bits, magnitude & (2 ** self.mantissa_bits - 1)
        if exponent == 0:
            exponent = 1
        else:
            mantissa += 2 ** self.mantissa_bits
        last_place = exponent - self.bias - self.mantissa_bits
        return sign, Fraction(mantissa << max(last_place, 0), 1 << max(-last_place, 0))

    def encode(self, value):
        """The code of the nearest number, ties to the even one. Any NaN for a NaN."""
        if value is NAN:
            return self.magnitude_mask
        sign, magnitude = value
        sign_bit = sign << (self.bits - 1)
        if magnitude is INFINITY:
            return sign_bit | (self.special if self.infinity else self.special - 1)
        exponent = max(floor_log2(magnitude), self.lowest_exponent)
        units = nearest(magnitude, exponent - self.mantissa_bits)
        # The leading one, or a carry, adds to the exponent by itself.
        code = ((exponent + self.bias - 1) << self.mantissa_bits) + units
        if code >= self.special:
            code = self.special - 1 if self.saturates else self.special
        return sign_bit | code

    def rounded(self, value):
        """The nearest number of this format."""
        return self.decode(self.encode(value))


def floor_log2(magnitude):
    p, q = magnitude.numerator, magnitude.denominator
    if p == 0:
        return -10 ** 6
    estimate = p.bit_length() - q.bit_length()
    return estimate if q << max(estimate, 0) <= p << max(-estimate, 0) else estimate - 1


def nearest(magnitude, last_place):
    """The integer nearest to magnitude / 2^last_place; the even one of two."""
    p, q = magnitude.numerator << max(-last_place, 0), magnitude.denominator << max(last_place, 0)
    whole, rest = divmod(p, q)
    return whole + int(2 * rest > q or (2 * rest == q and whole % 2 == 1))


def signed(value):
    return -value[1] if value[0] else value[1]


def add(a, b, format):
    if a is NAN or b is NAN:
        return NAN
    if INFINITY in (a[1], b[1]):
        if a[1] == b[1] and a[0] != b[0]:
            return NAN
        return a if a[1] is INFINITY else b
    total = signed(a) + signed(b)
    if total == 0:
        # Only two negative zeros make one.
        return (a[0] & b[0] if a[1] == 0 else 0), Fraction(0)
    return format.rounded((int(total < 0), abs(total)))


def multiply(a, b, format):
    if a is NAN or b is NAN:
        return NAN
    sign = a[0] ^ b[0]
    if INFINITY in (a[1], b[1]):
        return NAN if 0 in (a[1], b[1]) else (sign, INFINITY)
    return format.rounded((sign, a[1] * b[1]))


def divide(a, divisor, format):
    """By a positive integer."""
    if a is NAN or a[1] is INFINITY:
        return a
    return format.rounded((a[0], a[1] / divisor))


FLOAT32 = Format("float32", 8, 23)
FLOAT64 = Format("float64", 11, 52)
FLOAT16 = Format("float16", 5, 10)
BFLOAT16 = Format("bfloat16", 8, 7)
FLOAT8E4M3 = Format("float8e4m3", 4, 3, infinity=False, saturates=True)
FLOAT8E5M2 = Format("float8e5m2", 5, 2, saturates=True)


def accumulator(format):
    return format if format in (FLOAT32, FLOAT64) else FLOAT32


SUM, PRODUCT, MAX, MIN, AVERAGE, SCALED_SUM = range(6)  # NCCL's numbers, then PreMulSum


def left_fold(format, operation, codes, scales=()):
    """What docs/numerics.md promises of one element: each rank's code, in rank order, folded in the accumulator's precision,
    divided if it is an average, rounded once."""
    wide = accumulator(format)
    values = [format.decode(code) for code in codes]
    if operation == SCALED_SUM:
        values = [format.rounded(multiply(value, format.decode(scale), wide)) for value, scale in zip(values, scales)]
    total = values[0]
    for value in values[1:]:
        total = (multiply if operation == PRODUCT else add)(total, value, wide)
    if operation == AVERAGE:
        total = divide(total, len(codes), wide)
    return format.encode(total)
