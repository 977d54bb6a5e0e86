"""Checks all Markdown files of the tree: links, anchors, blocks of code, lists, spelling.

usage: check.py [--include FOLDER ...]     FOLDER: headers for complete C and C++ programs
`./run docs check` runs it in build/venv, which has PyYAML and codespell. Each line that it prints
names a file, a line, what is wrong and what to do.
"""

import argparse
import concurrent.futures
import difflib
import json
import os
import pathlib
import re
import subprocess
import sys
import urllib.parse

import commands
from markdown_file import MarkdownFile, Unclosed, is_external

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WORDS = "tests/documents/words.txt"
# A language that is spelled wrong would be checked by nobody.
UNCHECKED = {"", "text", "console", "diff", "cmake", "dockerfile", "go", "ini", "promql", "python",
             "toml"}
COMPILERS = {"c": (os.environ.get("CC", "gcc"), "c11"),
             "cpp": (os.environ.get("CXX", "g++"), "c++23")}
# In the first line of a program, in the command that a reader types to compile it.
STANDARD = re.compile(r"-std=([a-z0-9+]+)")
ITEM = re.compile(r" *([-*+]|\d+[.)])\s")
LIMIT_S = 300  # A hang, not a slow machine: a program takes 2 s alone.


def tree_files():
    """Tracked files and new ones that git does not ignore, and symbolic links to folders."""
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT,
                           check=True, capture_output=True).stdout.decode().split("\0")
    return sorted(name for name in set(names) if name and (ROOT / name).exists())


# ---------------------------------------------------------------- links


def nearest(word, words):
    match = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    return f"; did you mean \"{match[0]}\"?" if match else ""


def check_anchor(name, anchor, documents):
    """What is wrong with an anchor in the file NAME, or None."""
    if name not in documents:
        return (f"\"{name}\" is not a Markdown file and has no anchors: link to the file without "
                f"\"#{anchor}\"")
    anchors = documents[name].anchors()
    if anchor not in anchors:
        return (f"no heading of {name} has the anchor \"#{anchor}\": link to one that exists"
                + nearest(anchor, anchors))
    if anchors[anchor] > 1:
        return (f"{anchors[anchor]} headings of {name} have the anchor \"#{anchor}\": give them "
                "different names")
    return None


def check_link(name, target, names, documents):
    """What is wrong with a link in the file NAME, or None. NAMES: files and folders of the tree."""
    path, _, anchor = urllib.parse.unquote(target).partition("#")
    if path.startswith("/"):
        return f"the link \"{target}\" is absolute: write it relative to this file"
    full = os.path.normpath(os.path.join(os.path.dirname(name), path)) if path else name
    if full not in names:
        known = {os.path.relpath(each, os.path.dirname(name) or ".") for each in names}
        return (f"the link \"{target}\" leads to {full}, which is not in the repository: correct "
                "the path" + nearest(path, known))
    return check_anchor(full, anchor, documents) if anchor else None


def check_links(name, documents, names):
    for link in documents[name].links():
        if not is_external(link.target):
            wrong = check_link(name, link.target, names, documents)
            if wrong:
                yield f"{name}:{link.line}: {wrong}"


# ---------------------------------------------------------------- blocks of code


def check_yaml(name, block, _):
    import yaml  # Not in the standard library, with which the unit tests run.

    try:
        for _ in yaml.load_all(block.text, yaml.SafeLoader):
            pass
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = block.line + 1 + (mark.line if mark else 0)
        problem = getattr(error, "problem", None) or error
        yield f"{name}:{line}: invalid YAML: {problem}: correct the block"


def check_json(name, block, _):
    try:
        json.loads(block.text)
    except json.JSONDecodeError as error:
        yield (f"{name}:{block.line + error.lineno}: invalid JSON: {error.msg} (column "
               f"{error.colno}): correct the block, or mark it as ```text if it is an extract")


def check_shell(name, block, _):
    result = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True,
                            timeout=LIMIT_S, check=False)
    for line, problem in re.findall(r"line (\d+): (.*)", result.stderr):
        yield (f"{name}:{block.line + int(line)}: invalid shell command: {problem}: correct it, or "
               "write a placeholder as NAME instead of <name>")


def check_program(name, block, includes):
    """Only complete programs; the compiler's messages name the document's lines.

    The first line of a program may choose the standard. Variables may be unused: an example ends
    where the reader's own code begins.
    """
    if not re.search(r"\bint main\b", block.text):
        return
    compiler, standard = COMPILERS[block.language]
    chosen = STANDARD.search(block.text.split("\n", 1)[0])
    standard = chosen[1] if chosen else standard
    command = [compiler, "-x", "c++" if block.language == "cpp" else "c", f"-std={standard}",
               "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror",
               "-Wno-unused-variable",
               "-fdiagnostics-color=never",
               *(f"-I{folder}" for folder in includes), "-"]
    source = f"#line {block.line + 1} \"{name}\"\n{block.text}"
    result = subprocess.run(command, cwd=ROOT, input=source, capture_output=True, text=True,
                            timeout=LIMIT_S, check=False)
    if result.returncode == 0:
        return
    found = re.findall(rf"^{re.escape(name)}:(\d+):\d+: (?:fatal )?error: (.*)", result.stderr,
                       re.MULTILINE)
    for line, problem in found:
        yield f"{name}:{line}: this program does not compile: {problem}: correct the program"
    if not found:
        yield (f"{name}:{block.line}: this program does not compile: {result.stderr.strip()}: "
               "correct the program, or the header that it includes")


BLOCK_CHECKS = {"yaml": check_yaml, "yml": check_yaml, "json": check_json, "sh": check_shell,
                "bash": check_shell, "c": check_program, "cpp": check_program}


def check_block(name, block, includes):
    check = BLOCK_CHECKS.get(block.language)
    if check:
        return list(check(name, block, includes))
    if block.language in UNCHECKED:
        return []
    languages = sorted({*BLOCK_CHECKS, *UNCHECKED} - {""})
    return [f"{name}:{block.line}: unknown language \"{block.language}\" of a block: write one of "
            f"{', '.join(languages)}, or add it to tests/documents/check.py"]


# ---------------------------------------------------------------- lists


def check_lists(name, document):
    """GitHub takes lists that Python-Markdown, and so the site, would show as one paragraph."""
    inside = {number for block in document.blocks
              for number in range(block.line + 1, block.line + block.text.count("\n") + 2)}
    in_list, previous = False, ""
    for number, line in enumerate(document.lines, 1):
        if number in inside:
            line = "a block"
        elif line.strip():
            is_item = bool(ITEM.match(line))
            indent = len(line) - len(line.lstrip(" "))
            if in_list and 0 < indent < 4 and (is_item or not previous):
                yield (f"{name}:{number}: {indent} spaces before what belongs to an item of a list: "
                       "write 4, or the site ends the list here")
            if is_item and not in_list and previous and not previous.startswith(("#", "<!--")):
                yield (f"{name}:{number}: a list directly below a paragraph: put an empty line "
                       "between them, or the site shows no list")
            in_list = is_item or (in_list and (indent > 0 or bool(previous)))
        previous = line.strip()


# ---------------------------------------------------------------- spelling


def check_spelling(names):
    result = subprocess.run(
        [os.path.join(sys.prefix, "bin", "codespell"), "--ignore-words", WORDS, *names], cwd=ROOT,
        capture_output=True, text=True, timeout=LIMIT_S, check=False)
    for line in result.stdout.splitlines():
        match = re.match(r"(.+:\d+): (\S+) ==> (.*)", line)
        yield (f"{match[1]}: misspelled word \"{match[2]}\": write \"{match[3]}\", or add the word "
               f"to {WORDS} if it is a name") if match else line
    if result.returncode not in (0, 65):  # 65: it found a word.
        yield f"codespell failed with status {result.returncode}: {result.stderr.strip()}"


# ---------------------------------------------------------------- all of it


def read(names):
    """Documents by name, and what is wrong with those that cannot be read."""
    documents, breaches = {}, []
    for name in names:
        try:
            documents[name] = MarkdownFile((ROOT / name).read_text(encoding="utf-8"))
        except Unclosed as error:
            breaches.append(f"{name}:{error.line}: this block of code has no end: close it with "
                            "the same fence")
    return documents, breaches


def check(names, includes):
    documents, breaches = read(name for name in names if name.endswith(".md"))
    folders = {str(parent) for name in names for parent in pathlib.PurePath(name).parents}
    for name, document in documents.items():
        breaches += check_links(name, documents, {*names, *folders})
        breaches += check_lists(name, document)
        breaches += (f"{name}:{line}: {reason}" for line, reason in commands.errors(document))
    blocks = [(name, block) for name, document in documents.items() for block in document.blocks]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(lambda each: check_block(*each, includes), blocks):
            breaches += found
    breaches += check_spelling(documents)
    return breaches, len(documents), len(blocks)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--include", action="append", default=[])
    options = parser.parse_args()
    breaches, documents, blocks = check(tree_files(), options.include)
    print("\n".join([*breaches, f"documents: {documents} files, {blocks} blocks of code, "
                                f"{len(breaches)} errors"]))
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
