"""What a script reads and writes: wrong command lines are told in a line, as the tools do it; results that cannot be written are told about, and
never look like success."""
import argparse
import atexit
import json
import os
import signal
import stat
import sys


class Parser(argparse.ArgumentParser):
    """`after`: what stands behind the options."""

    def __init__(self, tool, about, examples=None, after=""):
        super().__init__(prog=tool, usage=f"bench/{tool} [OPTIONS]{after}", description=about, epilog=examples, allow_abbrev=False,
                         formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message):
        self.exit(2, f"{self.prog}: {message.removeprefix('argument ')}\n")


def number(least, most):
    """What argparse takes for the type of such an option."""
    def convert(text):
        if not text.isdecimal() or len(text) > 20 or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f'"{text}" is not a number from {least} to {most}')
        return int(text)
    return convert


def why_unwritable(path):
    """None, or why a file cannot be written: asked before anything is measured. What is not there is not there afterwards."""
    if path == "-":
        return "standard output has the table; name a file"
    existed = os.path.exists(path)
    if existed and stat.S_ISFIFO(os.stat(path).st_mode):
        return None  # whoever reads from a pipe would take the end of this look for the end of all
    try:
        with open(path, "a", encoding="utf-8"):
            pass
    except OSError as problem:
        return problem.strerror
    if not existed:
        os.remove(os.path.realpath(path))  # of a link, what it leads to
    return None


def write_json(tool, path, document):
    """0, or 1 if the file cannot be written, which is said: then no part of it is left that could be taken for the whole."""
    text = json.dumps(document) + "\n"
    file = None
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as problem:
        if file and os.path.isfile(path):
            os.remove(os.path.realpath(path))
        print(f"{tool}: --json {path}: {problem.strerror}", file=sys.stderr)
        return 1
    return 0


class Ended(KeyboardInterrupt):
    """By a signal: what is there is still written. A shell's loop around a tool ends if the tool ends by SIGINT itself."""


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def catch_signals():
    """Raises Ended for those that ask the process to end; nohup has SIGHUP ignored. Shells and their terminals send some twice, which is not to
    cut short what is written then; Ctrl-C may."""
    def ended(number, _):
        for sign in SIGNALS:
            if sign != signal.SIGINT:
                signal.signal(sign, signal.SIG_IGN)
        raise Ended(number)
    for sign in SIGNALS:
        if sign != signal.SIGHUP or signal.getsignal(sign) != signal.SIG_IGN:
            signal.signal(sign, ended)


def die(sign):
    """By a signal, as if it had not been caught."""
    signal.signal(sign, signal.SIG_DFL)
    os.kill(os.getpid(), sign)


class Recorded:
    """An output that keeps what goes wrong for the end, so that what is to be written elsewhere still is."""

    def __init__(self, stream):
        self.stream, self.problem = stream, None

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def write(self, text):
        return self._try(self.stream.write, text)

    def flush(self):
        return self._try(self.stream.flush)

    def _try(self, what, *arguments):
        try:
            return what(*arguments)
        except OSError as problem:
            self.problem = self.problem or problem
            return 0


def end(tool, main, *arguments):
    """Ends the process with main's exit code, or with 1 where not all of standard output could be written, which is said."""
    if sys.stdout is None:  # closed by the shell: in its place what cannot be written to either, or the next file would get what is printed
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")
    output = sys.stdout = Recorded(sys.stdout)
    if sys.stderr is not None:
        sys.stderr = Recorded(sys.stderr)  # a terminal that is closed takes nothing more
    signs = []
    atexit.register(lambda: die(signs[0]) if signs else None)  # the first to be registered is the last to run: others tidy up
    try:
        code = main(*arguments)
    except SystemExit as ended:  # argparse's, after --help too
        code = ended.code or 0
    except Ended as ended:
        code = 1
        signs.append(ended.args[0])
        for sign in SIGNALS:
            signal.signal(sign, signal.SIG_IGN)
    output.flush()
    if output.problem:
        # Python would try once more on its way out, and speak of an exception.
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
        if isinstance(output.problem, BrokenPipeError):
            die(signal.SIGPIPE)
        print(f"{tool}: standard output: {output.problem.strerror}", file=sys.stderr)
        code = code or 1
    sys.exit(code)
