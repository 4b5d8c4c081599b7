"""What the mutant tests share: each compiles copies of a header with one mistake and demands that a search finds it.

Compiling takes a processor for seconds each, so a test tries every K-th (--sample K), from another one on after each commit; all of them
where the environment has TEST_ALL=1, as in `.ci/run --thorough`. That every mutant's text is still in its header is always looked at.
"""
import argparse
import concurrent.futures
import os
import subprocess


def parse_arguments(doc):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root")
    parser.add_argument("--compile", required=True, help="the compiler, with options")
    parser.add_argument("--libraries", nargs="+", required=True)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="mutants whose name holds this text")
    parser.add_argument("--sample", type=int, default=1, metavar="K", help="every K-th mutant only")
    return parser.parse_args()


def commits(root):
    try:
        result = subprocess.run(["git", "-C", root, "rev-list", "--count", "HEAD"], capture_output=True, text=True, check=False)
    except OSError:  # there is no git
        return 0
    return int(result.stdout) if result.returncode == 0 else 0


def sample(arguments, mutants):
    if os.environ.get("TEST_ALL") == "1" or arguments.sample == 1:
        return mutants
    return mutants[commits(arguments.root) % arguments.sample::arguments.sample]


def apply(root, header, changes):
    """Returns (the header with `changes`, which are (text, replacement), and what is wrong with them or None)."""
    with open(os.path.join(root, header), encoding="utf-8") as file:
        source = file.read()
    for text, replacement in changes:
        if source.count(text) != 1:
            return None, f'"{text.strip()}" is {source.count(text)} times in {header}, not once: adapt the mutant'
        source = source.replace(text, replacement)
    return source, None


def write(root, header, changes, folder):
    """Writes the mutant's header into `folder`, which comes before the true ones: files include each other by path from src/ or the root.
    Returns what is wrong with the mutant, or None."""
    source, problem = apply(root, header, changes)
    if problem:
        return problem
    path = os.path.join(folder, header.removeprefix("src/"))
    os.makedirs(os.path.dirname(path))
    with open(path, "w", encoding="utf-8") as file:
        file.write(source)
    return None


def run(arguments, mutants, changes_of, try_mutant):
    """`changes_of(mutant)` gives (header, changes); `try_mutant(arguments, mutant)` gives (is as it should be, text). Returns the exit status."""
    named = [mutant for mutant in mutants if arguments.only in mutant[0]]
    stale = [(mutant[0], problem) for mutant in named if (problem := apply(arguments.root, *changes_of(mutant))[1])]
    for name, problem in stale:
        print(f"WRONG {name}: {problem}")
    chosen = sample(arguments, named)
    failed = len(stale)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for right, text in pool.map(lambda mutant: try_mutant(arguments, mutant), chosen):
            failed += not right
            print(("ok    " if right else "WRONG ") + text[:230], flush=True)
    print(f"{len(chosen)} of {len(named)} mutants, {failed} not as they should be")
    return 1 if failed or not chosen else 0
