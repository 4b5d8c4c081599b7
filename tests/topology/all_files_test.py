#!/usr/bin/env python3
"""Every machine file beside the repository gets a plan near its bound, or is refused with a message.

    all_files_test.py TOOL FOLDER
"""
import os
import sys

import machine_files

SKIPPED = 77
RATIO_MIN = 0.97
PLANNING_MS_MAX = {8: 100, 64: 1000}  # up to so many ranks
MACHINES_MIN = 100


def complaints_about(path, answer):
    name = os.path.basename(path)
    if answer["ranks"] < 2:
        if answer["bound_gbps"] is not None:
            yield f"{name}: one rank, but a bound"
        return
    if not answer["bound_gbps"] > 0:
        yield f"{name}: no bound above 0"
    if not RATIO_MIN <= answer["plan"]["ratio"] <= 1:
        yield f"{name}: {answer['collective']}: the plan reaches {answer['plan']['ratio']:.4f} of the bound"
    if answer["ring"]["gbps"] > answer["bound_gbps"] * (1 + 1e-6):
        yield f"{name}: rings above the bound"
    for ranks, limit in PLANNING_MS_MAX.items():
        if answer["ranks"] <= ranks:
            if answer["planning_ms"] > limit:
                yield f"{name}: planning took {answer['planning_ms']:.0f} ms for {answer['ranks']} ranks"
            break


def main():
    tool, folder = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    if not os.path.isdir(folder):
        print(f"skipped: there is no folder {folder}")
        return SKIPPED
    planned, single, refused, complaints = [], 0, 0, []
    for collective in ("all_reduce", "all_gather", "reduce_scatter"):
        for path in machine_files.machines(folder):
            answer, message = machine_files.plan(tool, path, collective)
            if answer is None:
                refused += collective == "all_reduce"
                print(message) if collective == "all_reduce" else None
                continue
            # Others use the machine too: what takes long is timed again, and the least counts.
            for _ in range(3):
                if answer["planning_ms"] > PLANNING_MS_MAX[8]:
                    again, _ = machine_files.plan(tool, path, collective)
                    answer["planning_ms"] = min(answer["planning_ms"], again["planning_ms"])
            complaints += complaints_about(path, answer)
            if answer["ranks"] < 2:
                single += collective == "all_reduce"
            else:
                planned.append((answer, os.path.basename(path)))
    worst = min(planned, key=lambda entry: entry[0]["plan"]["ratio"])
    slowest = max(planned, key=lambda entry: entry[0]["planning_ms"])
    print(f"{len(planned) // 3} machines planned, {single} with one rank, {refused} refused")
    print(f"worst ratio: {worst[0]['plan']['ratio']:.4f}, {worst[0]['collective']} on {worst[1]}")
    print(f"slowest: {slowest[0]['planning_ms']:.1f} ms, {slowest[0]['collective']} of {slowest[0]['ranks']} on {slowest[1]}")
    if len(planned) // 3 < MACHINES_MIN:
        complaints.append(f"only {len(planned) // 3} machines were planned, expected {MACHINES_MIN}")
    print("\n".join(complaints))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
