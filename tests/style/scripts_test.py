#!/usr/bin/env python3
"""What ./setup and .ci/run do when something goes wrong, in a folder that holds nothing else, with stand-ins for meson and others.

    scripts_test.py SOURCE_FOLDER
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = os.path.abspath(sys.argv.pop(1))
TIMEOUT_S = 60


class ScriptsTest(unittest.TestCase):
    def setUp(self):
        self.parent = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.parent, True)
        self.folder = os.path.realpath(os.path.join(self.parent, "a folder"))
        self.bin = os.path.join(self.parent, "bin")
        os.makedirs(os.path.join(self.folder, ".ci"))
        os.mkdir(self.bin)
        for script in ("setup", ".ci/run"):
            shutil.copy(os.path.join(SOURCE, script), os.path.join(self.folder, script))
        self.stand_in("ninja", "exit 0")

    def at(self, *path):
        return os.path.join(self.folder, *path)

    def stand_in(self, name, lines, folder=None):
        path = os.path.join(folder or self.bin, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/bash\necho "{name} $*" >>"{self.parent}/calls"\n{lines}\n')
        os.chmod(path, 0o755)

    def calls(self):
        path = os.path.join(self.parent, "calls")
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
        os.remove(path)
        return lines

    def start(self, *command, **more):
        env = {**os.environ, "PATH": self.bin + ":" + os.environ["PATH"], "TMPDIR": self.parent}
        return subprocess.Popen(command, cwd=more.pop("cwd", self.folder), env={**env, **more}, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run_script(self, *command, **more):
        """Exit status and what was printed."""
        process = self.start(*command, **more)
        text, _ = process.communicate(timeout=TIMEOUT_S)
        return process.returncode, text

    # ---- ./setup

    def fake_debian(self):
        """A package is missing until apt-get has run."""
        installed = os.path.join(self.parent, "installed")
        self.stand_in("dpkg-query", f'[ "${{@: -1}}" != libhwloc-dev ] || [ -e "{installed}" ] || exit 1; echo installed')
        self.stand_in("sudo", '"$@"')
        self.stand_in("apt-get", f'[[ "$*" != *" install "* ]] || touch "{installed}"')
        about = json.dumps({"directories": {"source": self.folder}})
        self.stand_in("meson", f"""mkdir -p build/meson-info; touch build/build.ninja; echo '{about}' >build/meson-info/meson-info.json""")

    def test_setup_twice(self):
        self.fake_debian()
        status, text = self.run_script("./setup")
        self.assertEqual(status, 0, text)
        self.assertIn("installing: libhwloc-dev", text)
        self.assertIn("meson setup build", self.calls())
        status, text = self.run_script(self.at("setup"), cwd="/")
        self.assertEqual(status, 0, text)
        self.assertFalse([call for call in self.calls() if call.startswith(("meson", "apt-get"))])

    def test_setup_with_peers_configures_once(self):
        self.fake_debian()
        self.assertEqual(self.run_script("./setup")[0], 0)
        self.calls()
        self.stand_in("meson", "echo 'build bench/compare-gloo: cpp_LINKER' >build/build.ninja")  # what it finds of them
        for configured in (True, False):
            status, text = self.run_script("./setup", "--peers")
            self.assertEqual(status, 0, text)
            self.assertEqual("meson setup --reconfigure build" in self.calls(), configured, text)

    def test_setup_interrupted_before_it_configures_again(self):
        self.fake_debian()
        os.makedirs(self.at("build/meson-info"))
        with open(self.at("build/meson-info/meson-info.json"), "w", encoding="utf-8") as file:
            json.dump({"directories": {"source": self.folder}}, file)
        with open(self.at("build/build.ninja"), "w", encoding="utf-8"):
            pass
        self.stand_in("meson", "kill -TERM $PPID; exit 1")
        self.assertNotEqual(self.run_script("./setup")[0], 0)
        self.calls()
        self.stand_in("meson", "exit 0")
        status, text = self.run_script("./setup")
        self.assertEqual(status, 0, text)
        self.assertIn("meson setup --reconfigure build", self.calls())
        self.assertEqual(self.run_script("./setup")[0], 0)
        self.assertNotIn("meson setup --reconfigure build", self.calls())

    def test_setup_is_that_of_its_own_folder(self):
        self.fake_debian()
        other = os.path.join(self.parent, "elsewhere")
        os.makedirs(os.path.join(other, "a folder"))
        status, text = self.run_script("bash", "a folder/setup", cwd=self.parent, CDPATH=other)
        self.assertEqual(status, 0, text)
        self.assertTrue(os.path.exists(self.at("build/build.ninja")), text)

    # ---- .ci/run

    def fake_build(self, meson):
        """A build whose one test passes; of the others what `meson` does."""
        self.stand_in("setup", "mkdir -p build/meson-logs", self.folder)
        test = json.dumps({"name": "a", "result": "OK", "duration": 1})
        self.stand_in("meson", f"""case "$*" in "test -C build "*) echo '{test}' >build/meson-logs/testlog.json; exit 0;; esac\n{meson}""")

    def test_ci_says_once_what_cannot_be_configured(self):
        self.fake_build('echo "ERROR: no such option"; exit 1')
        status, text = self.run_script(".ci/run")
        self.assertEqual(status, 1, text)
        self.assertEqual(text.splitlines()[-2:], ["FAIL: configure build-asan", "2 passed, 1 failed, 0 skipped"], text)
        self.assertIn("ERROR: no such option", text)
        self.assertNotIn("Traceback", text)

    def test_ci_says_what_setup_failed_with(self):
        self.stand_in("setup", "echo no compiler; exit 1", self.folder)
        status, text = self.run_script(".ci/run", "--quick")
        self.assertEqual(status, 1, text)
        self.assertIn("no compiler", text)
        self.assertEqual(text.splitlines()[-2:], ["FAIL: ./setup", "0 passed, 1 failed, 0 skipped"], text)

    def test_ci_takes_one_option(self):
        for options in (["--quick", "--thorough"], ["--fast"]):
            status, text = self.run_script(".ci/run", *options)
            self.assertEqual(status, 2, text)
            self.assertIn("Usage: .ci/run", text)

    def test_ci_leaves_nothing_behind(self):
        self.fake_build("")
        # In the foreground the tests, in the background the build with sanitizers; each has a process of its own.
        self.stand_in("meson", f'echo $$ >>"{self.parent}/pids"; sleep 300 & echo $! >>"{self.parent}/pids"; wait; sleep 301')
        process = self.start(".ci/run")
        self.addCleanup(process.stdout.close)
        pids = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(pids) < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
            if os.path.exists(os.path.join(self.parent, "pids")):
                with open(os.path.join(self.parent, "pids"), encoding="utf-8") as file:
                    pids = file.read().split()
        self.assertEqual(len(pids), 4)
        process.terminate()
        self.assertEqual(process.wait(timeout=TIMEOUT_S), -signal.SIGTERM)
        while (left := [pid for pid in pids if self.runs(pid)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in left:
            os.kill(int(pid), signal.SIGKILL)
        self.assertEqual(left, [])

    @staticmethod
    def runs(pid):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                return file.read().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            return False


if __name__ == "__main__":
    unittest.main(verbosity=2)
