#!/usr/bin/env python3
"""Whether a tool that NVTX loads sees a range for each call.

    nvtx_test.py TUTTI_PERF TOOL     TOOL: nvtx_tool.c as a library
"""
import os
import subprocess
import sys
import unittest

PERF, TOOL = sys.argv.pop(1), sys.argv.pop(1)


def stderr_of(**variables):
    result = subprocess.run([PERF, "all_reduce", "sendrecv", "--ranks", "1", "--threads", "-b", "64", "-e", "64", "-n", "3"],
                            capture_output=True, text=True, timeout=60, env={**os.environ, **variables}, check=True)
    return result.stderr


class NvtxTest(unittest.TestCase):
    def test_each_call_is_a_range(self):
        lines = stderr_of(NVTX_INJECTION64_PATH=os.path.abspath(TOOL)).splitlines()
        ranges = [line.split()[2] for line in lines if line.startswith("range ")]
        self.assertEqual(sum(line.startswith("end ") for line in lines), len(ranges))
        for name in ("ncclCommInitRank", "ncclAllReduce", "ncclSend", "ncclRecv", "ncclGroupStart", "ncclGroupEnd", "ncclCommDestroy"):
            self.assertIn(name, ranges)
        self.assertGreaterEqual(ranges.count("ncclAllReduce"), 3)
        # One after another in a thread: none is left open.
        self.assertEqual({line.split()[1] for line in lines if line.startswith("range ")}, {"0"})

    def test_without_a_tool_nothing_is_said(self):
        self.assertEqual(stderr_of(), "")


if __name__ == "__main__":
    unittest.main()
