#!/usr/bin/env python3
"""Sources that are compiled together: a file for each group, which includes them. A compiler then reads headers and makes the same
templates once for a group, which takes half the time.

    together.py SIZE FOLDER INCLUDES NAME SOURCE...

Writes FOLDER/NAME-1.cpp and so on, and prints what to compile, a path a line. INCLUDES are the folders of the project's own headers,
with colons between. At most SIZE files are a group. Files whose names of their own clash (those of unnamed namespaces, mostly) are kept
apart: which names a file declares is read off its lines, not understood, so whoever compiles the groups has to be ready for errors.
"""
import functools
import os
import re
import sys

NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
TYPE = re.compile(r"\b(?:struct|class|enum|union)\s+(?:class\s+)?(\w+)")
ALIAS = re.compile(r"\busing\s+(\w+)\s*=")
# Of another namespace; the same name again may mean the same.
BORROWED = re.compile(r"^using\s+[\w:]*::(\w+)\s*;", re.MULTILINE)
DEFINED_TYPE = re.compile(r"^(?:struct|class|enum|union)\s+(?:class\s+)?(\w+)\s*(?!::)(?:[:{]|final\b)", re.MULTILINE)
# A variable or a function: a name with something before it, and what may follow one.
VALUE = re.compile(r"(?<![:\w.>~])(\w+)\s*(?=[=({\[,;])")
ENUMERATORS = re.compile(r"\benum\s+(?:\w+\s*)?(?::\s*[\w:]+\s*)?\{(.*?)\}", re.DOTALL)
MACRO = re.compile(r"^\s*#\s*define\s+(\w+)", re.MULTILINE)
NO_NAMES = {"if", "for", "while", "switch", "return", "sizeof", "decltype", "noexcept", "alignas", "requires", "operator", "template",
            "TEST_CASE", "TEMPLATE_TEST_CASE", "namespace", "defined"}


@functools.cache
def code_of(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    return text, NOT_CODE.sub(lambda match: '""' if match.group(0)[0] in "R\"'" else " ", text)


@functools.cache
def declared(path):
    """Names that a file declares outside of classes and functions, or so it seems: on lines that are not indented."""
    _, code = code_of(path)
    names = set(MACRO.findall(code))
    for listed in ENUMERATORS.findall(code):
        names |= set(re.findall(r"\b([A-Za-z_]\w*)\b\s*(?:=[^,]*)?(?:,|$)", listed.strip()))
    for line in code.splitlines():
        if not line or line[0] in " \t#}" or line.startswith("namespace"):
            continue
        names |= set(TYPE.findall(line)) | set(ALIAS.findall(line))
        # What stands in parentheses are parameters.
        head = line.split("(")[0] + "(" if "(" in line else line
        names |= {name for name in VALUE.findall(head) if not name[0].isdigit()}
    return frozenset(names - NO_NAMES)


@functools.cache
def headers_of(path, folders):
    """The project's own headers that a file includes, and those that these include."""
    found, left = set(), [path]
    while left:
        at = left.pop()
        for name in INCLUDE.findall(code_of(at)[0]):
            for folder in (os.path.dirname(at), *folders):
                header = os.path.normpath(os.path.join(folder, name))
                if os.path.isfile(header):
                    if header not in found:
                        found.add(header)
                        left.append(header)
                    break
    return frozenset(found)


def names_of_headers(path, folders):
    return frozenset().union(*(declared(header) for header in headers_of(path, folders)))


class Names:
    """What decides whether files go together: names of their own, names that they take from elsewhere, names of the headers that they read."""

    def __init__(self, path=None, folders=()):
        self.own, self.borrowed, self.of_headers = set(), set(), set()
        if path:
            _, code = code_of(path)
            self.of_headers |= names_of_headers(path, folders)
            # Functions that its headers declare it defines for all; a type it has beside theirs.
            self.own |= (declared(path) - self.of_headers) | set(DEFINED_TYPE.findall(code))
            self.borrowed |= set(BORROWED.findall(code))

    def clash_with(self, other):
        return bool(self.own & (other.own | other.borrowed | other.of_headers) or other.own & (self.borrowed | self.of_headers))

    def add(self, other):
        self.own |= other.own
        self.borrowed |= other.borrowed
        self.of_headers |= other.of_headers


def groups_of(sources, size, folders):
    if size == 1:
        return [[source] for source in sources]
    groups = []
    for source in sources:
        names = Names(source, folders)
        for group, names_of_group in groups:
            if len(group) < size and not names_of_group.clash_with(names):
                group.append(source)
                names_of_group.add(names)
                break
        else:
            groups.append(([source], names))
    return [group for group, _ in groups]


def write(path, text):
    """Not again where it is the same: nothing is older than it then."""
    try:
        with open(path, encoding="utf-8") as file:
            if file.read() == text:
                return
    except OSError:
        pass
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def main():
    size, folder, folders, name = int(sys.argv[1]), sys.argv[2], tuple(sys.argv[3].split(":")), sys.argv[4]
    sources = [os.path.abspath(source) for source in sys.argv[5:]]
    os.makedirs(folder, exist_ok=True)
    for number, group in enumerate(groups_of(sources, size, folders), 1):
        if len(group) == 1:
            print(group[0])
            continue
        path = os.path.join(folder, f"{name}-{number}.cpp")
        write(path, "".join(f'#include "{source}"\n' for source in group))
        print(path)


if __name__ == "__main__":
    main()
