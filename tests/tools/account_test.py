#!/usr/bin/env python3
"""account_test.py SCRIPT BUILD: bench/account's tables add up, and wrong arguments are refused."""
import re
import subprocess
import sys


def account(*arguments):
    return subprocess.run([sys.executable, sys.argv[1], *arguments], capture_output=True, text=True, timeout=150, check=False)


def check(condition, what, result):
    if not condition:
        sys.exit(f"{what}\n{result.stdout}\n{result.stderr}")


def main():
    good = account("--build", sys.argv[2], "8", "32K")
    check(good.returncode == 0, "bench/account failed", good)
    tables = re.split(r"(?=^all_reduce of )", good.stdout, flags=re.MULTILINE)[1:]
    check([re.match(r"all_reduce of (\d+) bytes", table)[1] for table in tables] == ["8", "32768"], "not one table per size", good)
    for table in tables:
        *shares, call = [float(row) for row in re.findall(r"^\|.*\| (-?\d+) \| [^|]*\|$", table, flags=re.MULTILINE)]
        check(call > 0 and abs(sum(shares) - call) <= len(shares), "the parts and the rest are not the call", good)
    for wrong, said in (("8X", "is no size"), ("0", "is no size"), ("3", "holds no float32, which has 4 bytes")):
        bad = account("--build", sys.argv[2], wrong)
        check(bad.returncode == 2 and said in bad.stderr and bad.stderr.startswith("account: ") and bad.stderr.count("\n") == 1,
              f"{wrong} is taken, or not told in a line", bad)
    large = account("--build", sys.argv[2], "100000000M")
    check(large.returncode == 1 and re.fullmatch(r"account: 104857600000000 bytes take 488281\.2 GiB in all, and \d+\.\d GiB of memory are available\n", large.stderr),
          "more than there is is tried", large)
    missing = account("--build", "/nonexistent", "8")
    check(missing.returncode == 1 and "account-parts is missing" in missing.stderr, "a build folder that is not there is taken", missing)


main()
