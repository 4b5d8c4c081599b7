"""Which cases of long tests in Python have their turn, as turn.h has it for those in C++."""
import os


def is_in_turns():
    return bool(os.environ.get("TEST_TURN")) and os.environ.get("TEST_ALL") != "1"


def share_of_cases():
    return int(os.environ.get("TEST_TURN_OF_CASES") or 1)


def case_has_turn(number):
    """Whether a test's case `number` has: with TEST_TURN_OF_CASES=N one in N."""
    return not is_in_turns() or (int(os.environ["TEST_TURN"]) + number) % share_of_cases() == 0


def has_turn(number, share):
    """Whether part `number` of a case has, of which one in `share` is tried at a time."""
    return not is_in_turns() or (int(os.environ["TEST_TURN"]) // share_of_cases() + number) % share == 0
