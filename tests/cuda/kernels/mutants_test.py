#!/usr/bin/env python3
"""Mutants of the kernels: each makes one mistake in a copy of a header of cuda/, and the Block machine must find it.

    mutants_test.py ROOT --compile COMMAND --libraries FILE... [--jobs N] [--only TEXT] [--sample K]

Only the kernels are compiled anew for a mutant; the search for what is wrong (search.cpp) comes from the build folder.
"""
import os
import shlex
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
import mutants  # pylint: disable=wrong-import-position

FOLD, LINES, LANES = "fold_kernel.h", "lines_kernel.h", "lanes_kernel.h"
OPENING, WAITING, PAYLOAD, ARITHMETIC = "opening.h", "waiting.h", "payload.h", "arithmetic.h"

# (name, header, (text, what it becomes)...). Each text must be there exactly once.
MUTANTS = [
    ("pointers are used before all are there", FOLD, ("    t_.sync();\n    ReduceArgs args;", "    ReduceArgs args;")),
    ("pointers of the next part over those in use", FOLD, ("if (k != 0) t_.sync();", "")),
    ("a barrier that only some threads reach", FOLD,
     ("part.source];\n    }\n    t_.sync();", "part.source];\n      t_.sync();\n    }")),
    ("own buffers are read before they are there", FOLD, ("    take_own(call);\n    t_.sync();", "    take_own(call);")),
    ("nobody waits at the end", FOLD, ("    close_with_peers(t_, home, sequence);\n", "")),
    ("one member's part is done for all", FOLD, ("run_parts(call, false, rank);", "run_parts(call, false, home.rank);")),
    ("the next member's pointers over those in use", FOLD, ("      t_.sync();\n      run_parts(call, false, rank);", "      run_parts(call, false, rank);")),
    ("members' calls that differ are not compared", OPENING, ("if (theirs != (fingerprint | 1)) return", "if (false) return")),
    ("a member's output is its input", OPENING, ("t.store(&home.learned->outputs[peer], reinterpret_cast<void*>(output));", "t.store(&home.learned->outputs[peer], reinterpret_cast<void*>(input));")),
    ("every rank does the same unit", FOLD, ("tiling.unit_count(call_.count), rank_, 1)", "tiling.unit_count(call_.count), 0, 1)")),
    ("all blocks do the first block's share", FOLD, ("{(own + k) % call.block_count, call.block_count}", "{0, call.block_count}")),
    ("factors and sources of the wrong rank", FOLD, ("b.inputs[from_all ? rank : part.source]", "b.inputs[from_all ? rank : 0]")),

    ("the block does not wait for the others' lines", OPENING, ("return !t_.any(failed);", "return !failed;")),
    ("announcements are stored relaxed", OPENING, ("{ t_.store_release(word, value); }", "{ t_.store_word(word, value); }")),
    ("announcements are loaded relaxed", OPENING, ("{ return t_.load_acquire(word); }", "{ return t_.load_word(word); }")),
    ("every block announces", OPENING, ("if (t_.block() == 0 && is_peer(t_.index())) announce_to", "if (is_peer(t_.index())) announce_to")),
    ("calls that differ are not compared", OPENING, ("if (word != word_) {", "if (false) {")),
    ("closing before all threads are there", OPENING,
     ("  t.sync();\n  const std::uint32_t peer = t.index();\n  if (peer >= home.ranks", "  const std::uint32_t peer = t.index();\n  if (peer >= home.ranks")),
    ("closing is stored relaxed", OPENING, ("t.store_release(home.closings[peer]", "t.store_word(home.closings[peer]")),
    ("closing is loaded relaxed", OPENING, ("t.load_acquire(theirs) >= sequence", "t.load_word(theirs) >= sequence")),
    ("closing of the call before will do", OPENING, ("t.load_acquire(theirs) >= sequence", "t.load_acquire(theirs) + 1 >= sequence")),
    ("one closing for all blocks", OPENING, ("std::size_t{t.block()} * home.ranks;", "std::size_t{0} * home.ranks;")),

    ("every block counts the call", WAITING, ("t.add(&state.blocks_done, 1) + 1 != blocks", "t.add(&state.blocks_done, 1) == ~0u")),
    ("blocks that are done are not forgotten", WAITING, ("  t.store(&state.blocks_done, std::uint32_t{0});\n", "")),
    ("the call is not counted", WAITING, ("t.load(&counted) + 1)", "t.load(&counted))")),
    ("nobody looks at the abort word", WAITING, ("t_.load_acquire(home_.abort_word) == 0", "home_.abort_word != nullptr")),

    ("blocks do not take turns", PAYLOAD,
     ("begin < range.chunks; begin += workers_.count * tile", "begin < range.chunks; begin += tile")),
    ("blocks do the same few chunks", PAYLOAD,
     ("for (std::uint64_t chunk = std::uint64_t{workers_.index} * t_.count() + t_.index(); chunk < range.chunks;",
      "for (std::uint64_t chunk = t_.index(); chunk < range.chunks;")),
    ("a batch leaves out its last source", PAYLOAD, ("if (first + i >= args_.source_count) break;", "if (first + i + 1 >= args_.source_count) break;")),
    ("chunks overlap", PAYLOAD, ("static_cast<std::uint64_t>(chunk) * t_.count()", "static_cast<std::uint64_t>(chunk) * (t_.count() - 1)")),
    ("the last element is left out", PAYLOAD,
     ("i < left; i += stride) {\n      run_element", "i + 1 < left; i += stride) {\n      run_element")),
    ("the last tile is taken for a whole one", PAYLOAD, ("if (plain && begin + tile <= range.chunks)", "if (plain)")),
    ("elements behind the chunks begin too late", PAYLOAD, ("behind + (i - range.head)", "behind + i")),
    ("destinations are not looked at for alignment", PAYLOAD, ("if (!is_aligned(destination(d, head))) return", "if (false) return")),
    ("a source is added twice", PAYLOAD, ("load_chunks(next, s + 1, head, first);", "load_chunks(next, s, head, first);")),
    ("the tail of a copy is shifted", PAYLOAD, ("i < head ? i : units * sizeof(Unit) + i", "i < head ? i : units * sizeof(Unit) + i + 1")),
    ("copies overlap", PAYLOAD, ("held[i] = t_.load(in + static_cast<unsigned>(i) * t_.count());", "held[i] = t_.load(in + static_cast<unsigned>(i));")),

    ("one flag for both words", LINES, ("words[0] >> 32 == flag_ && words[1] >> 32 == flag_", "words[0] >> 32 == flag_")),
    ("one turn of memory", LINES, ("home_.line_memory.at(ranks_, sequence_, phase, sender)", "home_.line_memory.at(ranks_, 0, phase, sender)")),
    ("headers are not waited for", LINES, ("    if (t_.any(!headers_agree())) return;\n", "")),
    ("a header that differs will do", LINES, ("if (theirs == launch_.fingerprint) return true;", "return true;")),
    ("one unit too many of a share", LINES, ("return left < share ? left : share;", "return left < share ? left + 1 : share;")),
    ("a share that is short is filled as a whole one", LINES, ("fill(peer, 0, units);", "fill(peer, 0, launch_.two_shot ? share_units() : units);")),
    ("a sum that is short is filled as a whole share", LINES, ("launch_.two_shot ? units_in_share(rank_) : 0", "launch_.two_shot ? share_units() : 0")),
    ("the last unit is taken for a whole one", LINES, ("if (left >= kUnitBytes && reinterpret_cast<std::uintptr_t>(from)", "if (reinterpret_cast<std::uintptr_t>(from)")),
    ("both phases in one place", LINES, ("ranks_, 1, u, sum)", "ranks_, 0, u, sum)")),
    ("old flags are left", LINES, ("if (!shape().fills(sequence_)) return;", "return;")),
    ("blocks do each other's units", LINES, ("return std::uint64_t{block_} * t_.count() + t_.index();", "return t_.index();")),
    ("all ranks of a launch do the first one's part", LINES, ("member_(thread.block() / launch.blocks_per_rank)", "member_(0)")),
    ("all blocks of a launch wait for each other's count", LINES, ("home_.state->lines_sequence, launch_.blocks_per_rank);", "home_.state->lines_sequence, t_.blocks());")),
    ("a peer that announces in place of lines is not noticed", LINES, ("[&] { return announces_instead(peer, announced); }", "[] { return false; }")),
    ("lines of a peer that is ahead are taken for another call in place of this one", OPENING, ("if (announced_by(t_, home_, sequence_, peer) != 0) return false;", "")),
    ("a peer that sends lines in place of announcing is not noticed", OPENING, ("[&] { return sends_lines_instead(peer, lines); }", "[] { return false; }")),
    ("two-shot keeps another's sum", LINES, ("store_unit(0, own + u, sum);", "store_unit(0, u, sum);")),

    ("the leader posts behind the barrier", LANES,
     ("    posted_.over = false;\n    t_.sync_apart();", "    t_.sync_apart();\n    posted_.over = false;")),
    ("the arguments come behind the barrier", LANES,
     ("    posted_.args = args;\n    posted_.over = false;\n    t_.sync_apart();",
      "    posted_.over = false;\n    t_.sync_apart();\n    posted_.args = args;")),
    ("the leader does not wait for the others' shares", LANES,
     ("    do_share();\n    t_.sync_apart();\n  }\n  // No", "    do_share();\n  }\n  // No"),
     ("      do_share();\n      t_.sync_apart();\n", "      do_share();\n")),
    ("one barrier less for the others", LANES, ("      do_share();\n      t_.sync_apart();\n", "      do_share();\n")),
    ("a barrier for whole warps in a branch", LANES,
     ("    posted_.over = true;\n    t_.sync_apart();", "    posted_.over = true;\n    t_.sync();"),
     ("    for (;;) {\n      t_.sync_apart();", "    for (;;) {\n      t_.sync();")),
    ("the others do nothing", LANES, ("      if (posted_.over) return;\n      do_share();", "      if (posted_.over) return;")),
    ("all ranks of a launch are the first one", LANES, ("home_(*launch.homes[launch_rank_])", "home_(*launch.homes[0])")),
    ("all ranks of a launch run the first one's program", LANES, ("launch_.programs[launch_rank_]", "launch_.programs[0]")),
    ("calls through slots are not compared", LANES, ("if (launch_.announces) {", "if (launch_.announces && launch_.direct) {")),
    ("ranks announce where they reach nothing", OPENING, (" && home_.boards[rank] != nullptr;", ";")),
    ("all rows run the first program lane's share", LANES, ("call.lane = lane_index_;", "call.lane = 0;")),
    ("tails are stored relaxed", LANES, ("{ t_.store_release(word, value); }", "{ t_.store_word(word, value); }")),
    ("tails are loaded relaxed", LANES, ("{ return t_.load_acquire(word); }", "{ return t_.load_word(word); }")),
]


def changes_of(mutant):
    _, header, *changes = mutant
    return "cuda/" + header, changes


def build(arguments, folder):
    program = os.path.join(folder, "mutant")
    here = os.path.join(arguments.root, "tests/cuda/kernels")
    includes = ["-I" + folder] + ["-I" + os.path.join(arguments.root, name) for name in ("src", "include", ".")]
    command = [*shlex.split(arguments.compile), "-O1", "-w", "-DTUTTI_ONE_TYPE", *includes, "-I" + here,
               os.path.join(here, "kernel_bodies.cpp"), "-o", program, *arguments.libraries, "-lpthread"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return (program, None) if result.returncode == 0 else (None, result.stderr[-2000:])


def try_mutant(arguments, mutant):
    """Returns (is as it should be, text)."""
    name = mutant[0]
    with tempfile.TemporaryDirectory() as folder:
        problem = mutants.write(arguments.root, *changes_of(mutant), folder)
        if problem:
            return False, f"{name}: {problem}"
        program, problem = build(arguments, folder)
        if problem:
            return False, f"{name}: does not compile\n{problem}"
        try:
            result = subprocess.run([program], capture_output=True, text=True, timeout=120, check=False)
        except subprocess.TimeoutExpired:
            return False, f"{name}: never ends"
    first = result.stdout.splitlines()[0] if result.stdout else f"status {result.returncode} {result.stderr[-300:]}"
    # A signal is a find too: wild pointers are not only followed by payload accesses, which are checked.
    return (result.returncode != 0) == (name != UNCHANGED[0]), f"{name}: {first}"


# The search itself must find nothing.
UNCHANGED = ("no change", ARITHMETIC)


if __name__ == "__main__":
    sys.exit(mutants.run(mutants.parse_arguments(__doc__), [UNCHANGED, *MUTANTS], changes_of, try_mutant))
