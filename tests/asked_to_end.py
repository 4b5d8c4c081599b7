"""The signals by which people and schedulers ask a program to end, and children that heed them."""
import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def heed_signals():
    """A Popen's preexec_fn: what nohup or a shell's & has had ignored ends the child all the same."""
    for sign in SIGNALS:
        signal.signal(sign, signal.SIG_DFL)
