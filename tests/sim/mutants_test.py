#!/usr/bin/env python3
"""Mutants of the protocols: each makes one mistake in a copy of a header, and the simulator must find it.

    mutants_test.py ROOT --compile COMMAND --libraries FILE... [--jobs N] [--only TEXT] [--sample K]

A mutant is compiled into a tutti-sim of its own (one source file; the rest comes from the build folder), which searches seeds until
one fails. For each mutant the table shows the seed and the first line of its failure.
"""
import os
import shlex
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import mutants  # pylint: disable=wrong-import-position

LANE, BINDING, LINES, ANNOUNCE, EXCHANGE = "lane.h", "binding.h", "lines.h", "announce.h", "exchange.h"

# (name, header, text, what it becomes, options of tutti-sim). The text must be there exactly once.
MUTANTS = [
    ("receiver does not wait", LANE, "m.load_acquire(&c.theirs->tail) > c.received",
     "m.load_acquire(&c.theirs->tail) >= c.received", ""),
    ("one credit too many", LANE, "c.owed - m.load_acquire(&c.theirs->head) < call_.slot_shape.slots",
     "c.owed - m.load_acquire(&c.theirs->head) <= call_.slot_shape.slots", ""),
    ("tail loaded relaxed", LANE, "m.load_acquire(&c.theirs->tail) > c.received",
     "m.load_word(&c.theirs->tail) > c.received", ""),
    ("credit loaded relaxed", LANE, "c.owed - m.load_acquire(&c.theirs->head)", "c.owed - m.load_word(&c.theirs->head)", ""),
    ("head stored relaxed", LANE, "m.store_release(&c.mine->head, ++c.acknowledged)",
     "m.store_word(&c.mine->head, ++c.acknowledged)", ""),
    ("head not counted", LANE, "m.store_release(&c.mine->head, ++c.acknowledged)",
     "m.store_release(&c.mine->head, c.acknowledged)", ""),
    ("head counted twice", LANE, "m.store_release(&c.mine->head, ++c.acknowledged)",
     "m.store_release(&c.mine->head, (++c.acknowledged) + 1)", ""),
    ("tail stored relaxed", LANE, "m.store_release(&c.mine->tail, c.sent)",
     "m.store_word(&c.mine->tail, c.sent)", ""),
    ("tail not counted", LANE, "  ++c.sent;\n", "\n", ""),
    ("tail for pulls that need none, and for no others", LANE, "if (side.message != Message::kInput) m.store_release",
     "if (side.message == Message::kInput) m.store_release", ""),
    ("receiver reads the next slot", LANE, "slot_of(c, c.acknowledged, message_bytes(side))",
     "slot_of(c, c.acknowledged + 1, message_bytes(side))", ""),
    ("sender writes the next slot", LANE, "slot_of(c, c.owed, bytes)", "slot_of(c, c.owed + 1, bytes)", ""),
    ("slots one too many", LANE, "slot_of(c, c.owed, bytes)",
     "c.owed % (call_.slot_shape.slots + 1) * call_.slot_shape.slot_bytes", ""),
    ("turns of the sender alone", LANE, "slot_of(c, c.owed, bytes)", "slot_of(c, c.owed, 0)", ""),
    ("no drain", LANE, "return drained(machine) ? Progress::kDone : progress", "return Progress::kDone", ""),
    ("drain one message short", LANE, "m.load_acquire(&c.theirs->head) < c.unread_until",
     "m.load_acquire(&c.theirs->head) + 1 < c.unread_until", ""),
    ("drain loads relaxed", LANE, "m.load_acquire(&c.theirs->head) < c.unread_until",
     "m.load_word(&c.theirs->head) < c.unread_until", ""),
    ("drain does not know its last message", LANE, "    c.unread_until = c.owed;\n", "", ""),
    ("drain forgets all but one peer", LANE, "    --pulled_count_;\n", "    pulled_count_ = 0;\n", ""),
    ("pushes count as owed by the sender alone", LANE, "if (side.message != Message::kPush) ++c.owed", "++c.owed",
     "--protocol direct"),
    ("pushes are acknowledged by the receiver alone", LANE,
     "if (sources[i].message != Message::kPush) m.store_release(&c.mine->head", "m.store_release(&c.mine->head",
     "--protocol direct"),
    ("outputs are there from the start too", BINDING,
     "return e.remote == Place::kInput ? Message::kInput : Message::kPull", "return Message::kInput", "--protocol direct"),
    ("elements of the last step count as done", LANE, "    done_elements_ = 0;\n", "", ""),
    ("a step is ready because the last one was", LANE, "    ready_ = false;\n", "", ""),
    ("a line's words count as arrived since the last step", LANE, "call_.workspace.arrived[i] = 0", "(void)i", "--protocol lines"),
    ("received lines are not counted", LANE, "if (sources[i].message == Message::kLine) ++c.lines_received;\n", "", "--protocol lines"),
    ("sent lines are not counted", LANE, "      ++c.lines_sent;\n", "", "--protocol lines"),
    ("a line is sent under its predecessor's number", LANE, "return c.lines_sent + 1",
     "return c.lines_sent", "--protocol lines"),
    ("lines of two sources share a tile", LANE, "call_.workspace.line_tiles + source * call_.line_shape.payload_bytes()",
     "call_.workspace.line_tiles + 0 * source", "--protocol lines"),
    ("rounds are not counted", LANE, "        ++round_;\n", "", ""),
    ("a remote block is not found", BINDING, "return (e.block * t.count + share_offset_",
     "return ((e.place != Place::kPeer) * e.block * t.count + share_offset_", ""),
    ("the last, shorter round is taken for a whole one", LANE, "round_ + 1 < rounds_ ? call_.tiling.slab : last_count_",
     "call_.tiling.slab", ""),
    ("every round is at the first one's place", BINDING, "    side.round_bytes = call_.tiling.slab * call_.tiling.element_bytes;\n", "",
     ""),
    ("scratch moves on with the rounds", BINDING, "side.address = reinterpret_cast<std::uint64_t>(call_.scratch)",
     "side.round_bytes = call_.tiling.element_bytes, side.address = reinterpret_cast<std::uint64_t>(call_.scratch)", ""),
    ("single copies start over in every tile", LANE, "m.write_remote(side.peer, address(side) + done_bytes(false), sum, bytes)",
     "m.write_remote(side.peer, address(side), sum, bytes)", "--protocol single-copy --count 20000 --ranks 2"),
    ("fetches start over in every tile", LANE, "m.read_remote(side.peer, address(side) + at, pointer, bytes)",
     "m.read_remote(side.peer, address(side), pointer, bytes)", "--protocol single-copy --count 20000 --ranks 2"),
    ("a failed copy is tried for ever", LANE, "return machine.aborted() ? Progress::kFailed : Progress::kAdvanced",
     "return Progress::kAdvanced", "--protocol single-copy --die 1@30"),
    ("sums of announced inputs leave out the last", ANNOUNCE, "static_cast<int>(board.ranks), &destination",
     "static_cast<int>(board.ranks) - 1, &destination", "--protocol announce"),
    ("whole vectors go to the output", ANNOUNCE, "void* destination = exact ? call.output : sum",
     "void* destination = call.output", "--protocol announce"),
    ("announced blocks at the wrong place", ANNOUNCE, "call, from) + block * bytes", "call, from) + 0 * block", "--protocol announce"),
    ("a flag that is newer is as good", LINES, "if (word >> 32 != flag) return false", "if (word >> 32 < flag) return false",
     "--protocol lines"),
    ("any flag is good", LINES, "if (word >> 32 != flag) return false", "if (word >> 32 == 0) return false", "--protocol lines"),
    ("slots are never filled", LINES, "return number % period < slots", "return period == 0", "--protocol lines"),
    ("one slot is not filled", LINES, "return number % period < slots", "return number % period + 1 < slots",
     "--protocol lines"),
    ("flags repeat after half their period", LINES, "return number % (2 * period)", "return number % period",
     "--protocol lines --slots 3"),
    ("slots of a line overlap", LINES, "return lines + number % slots * words", "return lines + number % slots",
     "--protocol lines"),
    ("a line without data is not waited for", LINES, "return bytes == 0 ? 1 :", "return bytes == 0 ? 0 :", "--protocol lines"),
    ("line data one word off", LINES, "__builtin_memcpy(&data, from + at, 4)", "__builtin_memcpy(&data, from, 4)",
     "--protocol lines"),
    ("one announce line instead of several", ANNOUNCE, "return std::size_t{sequence % kAnnounceDepth} * ranks + rank",
     "return rank", "--protocol announce"),
    ("announce lines change every other call only", ANNOUNCE, "std::size_t{sequence % kAnnounceDepth}",
     "std::size_t{(sequence >> 1) % kAnnounceDepth}", "--protocol announce"),
    ("carried inputs of two ranks overlap", ANNOUNCE, "return inputs + index(rank, sequence) * input_stride",
     "return inputs + index(0, sequence) * input_stride", "--protocol announce"),
    ("one carried input instead of several", ANNOUNCE, "return inputs + index(rank, sequence) * input_stride",
     "return inputs + index(rank, 0) * input_stride", "--protocol announce"),
    ("any announcement is good", ANNOUNCE, "if (sequence_of(found) != sequence_) return false",
     "if (sequence_of(found) == 0) return false", "--protocol announce --calls 20"),
    ("announcement stored relaxed", ANNOUNCE, "m.store_release(&line.word, word)", "m.store_word(&line.word, word)",
     "--protocol direct"),
    ("announcement loaded relaxed", ANNOUNCE, "m.load_acquire(&lines[unseen_].word)", "m.load_word(&lines[unseen_].word)",
     "--protocol announce"),
    ("the last rank is not waited for", ANNOUNCE, "for (; unseen_ < reads_.end; ++unseen_)",
     "for (; unseen_ + 1 < reads_.end; ++unseen_)", "--protocol announce"),
    ("the second call waits for nobody", ANNOUNCE, "    unseen_ = reads_.first;\n", "    if (sequence_ == 1) unseen_ = reads_.first;\n",
     "--protocol announce"),
    ("the root's line is not waited for", ANNOUNCE, "LinesRead{root, root + 1}", "LinesRead{0, 0}", "--protocol announce"),
    ("the root reads one line less", ANNOUNCE, "return {0, rank == root ? ranks : 0}", "return {0, rank == root ? ranks - 1 : 0}",
     "--protocol announce"),
    ("room for one line too many", ANNOUNCE, "return sequence - met_ < kAnnounceDepth", "return sequence - met_ <= kAnnounceDepth",
     "--protocol announce"),
    ("room is never looked for", ANNOUNCE, "return has_room(sequence_) ? Room::kThere : look_for_room(m)", "return Room::kThere",
     "--protocol announce"),
    ("room is looked for at one rank only", ANNOUNCE, "for (; unseen_ < board_.ranks; ++unseen_)",
     "for (; unseen_ < 2; ++unseen_)", "--protocol announce"),
    ("room is loaded relaxed", ANNOUNCE, "std::uint64_t found = m.load_acquire(&board_.line(unseen_, at).word)",
     "std::uint64_t found = m.load_word(&board_.line(unseen_, at).word)", "--protocol announce"),
    ("room of a rank that is ahead is loaded relaxed", ANNOUNCE, "        found = m.load_acquire(&board_.line(unseen_, at).word)",
     "        found = m.load_word(&board_.line(unseen_, at).word)", "--protocol announce --expect-equivalent"),
    ("room that is not there is taken", ANNOUNCE, "if (sequence_of(found) != at) return Room::kNotYet", "(void)at",
     "--protocol announce"),
    ("a rank that is ahead is taken for one that lags", ANNOUNCE, "        at = sequence_ - 1;", "        return Room::kNotYet;",
     "--protocol announce"),
    ("more is believed to be met than was seen", ANNOUNCE, "    met_ = wanted;\n", "    met_ = sequence_ - 1;\n", "--protocol announce"),
    ("one rank that was met counts for all", ANNOUNCE, "reads_.end - reads_.first + 1 >= board_.ranks",
     "reads_.end - reads_.first + 2 >= board_.ranks", "--protocol announce"),
    ("an exchange does not wait for what is pushed", EXCHANGE, "m.load_acquire(&c.theirs->tail) > c.received",
     "m.load_acquire(&c.theirs->tail) >= c.received", "--protocol direct --ranks 2"),
    ("an exchange ends before its input was read", EXCHANGE, " && m.load_acquire(&c.theirs->head) >= c.owed", "",
     "--protocol direct --ranks 2 --expect-equivalent"),  # no algorithm pushes before it has read
    ("an exchange loads tail relaxed", EXCHANGE, "m.load_acquire(&c.theirs->tail)", "m.load_word(&c.theirs->tail)",
     "--protocol direct --ranks 2"),
    ("an exchange stores tail relaxed", EXCHANGE, "m.store_release(&c.mine->tail, c.sent)", "m.store_word(&c.mine->tail, c.sent)",
     "--protocol direct --ranks 2"),
    ("an exchange does not say that it has read", EXCHANGE, "  c.acknowledged += exchange.read;\n", "", "--protocol direct --ranks 2"),
    ("an exchange does not count what it lends", EXCHANGE, "  c.owed += exchange.lent;\n", "", "--protocol direct --ranks 2"),
    ("an exchange does not sum", EXCHANGE, "if (exchange.sum != nullptr) m.reduce(*exchange.sum);", "", "--protocol direct --ranks 2"),
    ("the root forgets its own input", ANNOUNCE, "if (rank == call.rank && call.own_input != nullptr) return call.own_input;", "",
     "--protocol announce"),
]
SEEDS_MAX = 600


def changes_of(mutant):
    _, header, text, replacement, _ = mutant
    return "src/protocol/" + header, [(text, replacement)]


def build(arguments, folder):
    program = os.path.join(folder, "mutant")
    compiler = shlex.split(arguments.compile)
    source = os.path.join(arguments.root, "src/sim/runner.cpp")
    includes = ["-I" + folder, "-I" + os.path.join(arguments.root, "src"), "-I" + os.path.join(arguments.root, "include")]
    command = compiler + ["-O1", "-w", *includes, source, "-o", program, *arguments.libraries, "-lpthread"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return (program, None) if result.returncode == 0 else (None, result.stderr[-2000:])


def search(program, options):
    command = [program, "--seeds", f"1..{SEEDS_MAX}", "--first", "--quiet", *options]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return None


def try_mutant(arguments, mutant):
    """Returns (is as it should be, text)."""
    name, *_, options = mutant
    words = options.split()
    equivalent = "--expect-equivalent" in words
    words = [word for word in words if word != "--expect-equivalent"]
    with tempfile.TemporaryDirectory() as folder:
        problem = mutants.write(arguments.root, *changes_of(mutant), folder)
        if problem:
            return False, f"{name}: {problem}"
        program, problem = build(arguments, folder)
        if problem:
            return False, f"{name}: does not compile\n{problem}"
        result = search(program, words)
    if result is None:
        return not equivalent, f"{name}: never ends"
    if result.returncode == 0:
        return equivalent, f"{name}: not found in {SEEDS_MAX} seeds" + (", as it should be" if equivalent else "")
    first = result.stdout.splitlines()[0] if result.stdout else f"status {result.returncode} {result.stderr[-300:]}"
    return not equivalent and result.returncode == 1, f"{name}: {first}"


if __name__ == "__main__":
    sys.exit(mutants.run(mutants.parse_arguments(__doc__), MUTANTS, changes_of, try_mutant))
