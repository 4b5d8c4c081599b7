"""Runs tutti-topo over a folder of machines; what the check on all files and the table of machines share."""
import json
import os
import subprocess

SECONDS_MAX = 60
NO_MACHINES = (".bz2", ".gz", ".md", ".console")


def machines(folder):
    """Paths of the files that may describe a machine, by name."""
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if not name.endswith(NO_MACHINES)]


def plan(tool, path, collective="all_reduce"):
    """(the tool's JSON, "") or (None, what it says)."""
    done = subprocess.run([tool, path, "--collective", collective, "--json"], capture_output=True, text=True, timeout=SECONDS_MAX,
                          check=False)
    if done.returncode == 0:
        return json.loads(done.stdout), ""
    if done.returncode != 1 or not done.stderr.strip() or done.stdout:
        raise RuntimeError(f"{path}: exit status {done.returncode}, stdout {done.stdout[:200]!r}, stderr {done.stderr[:500]!r}")
    return None, done.stderr.strip()
