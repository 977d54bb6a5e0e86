"""Runs the commands of documents as they are printed.

usage: commands.py [--deadline SECONDS] [FILE ...]     `./run test documents` does it
A block of shell commands takes part if the line directly above it is `<!-- run -->`. All such
blocks of a file run in order in one bash, in the root of this clone, with `set -e`. What they start
and leave running is killed at the end of the file. They may write into build/ and outside the tree.

`<!-- not run: REASON -->` above a block says why it does not run. In a document with such a mark,
every block of shell commands needs one of the two. A script of STAND_INS comes before the blocks of
its document, and gives them what this machine lacks.
"""

import argparse
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import tempfile
import time

from markdown_file import Block, MarkdownFile, Unclosed

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# A first-time reader types what these print: each must have at least one block that runs.
# In this order, because each needs what the ones before have built.
REQUIRED = ("README.md", "docs/start/without-gpu.md", "docs/start/docker.md",
            "docs/guides/install-library.md")
# Documents for machines with something that is missing where tests run. Their stand-ins need root.
STAND_INS = {"docs/start/docker.md": "tests/documents/stand_ins/docker.sh"}
MARK = "<!-- run -->"
NOT_RUN = re.compile(r"<!-- not run: (\S.*) -->")
LIKE_MARK = re.compile(r"^\s*<!--\s*(not\s+)?run\b.*-->\s*$", re.IGNORECASE)
SHELL = {"sh", "bash"}
DEADLINE_S = 1200  # A first build and all tests take up to 10 minutes on 2 idle cores.
GRACE_S = 5       # For what is left running, from SIGTERM to SIGKILL.
SHOWN_LINES = 200


def errors(document):
    """Lines and reasons of marks in a document that lead to no block, and of blocks without one."""
    starts = {block.line: block for block in document.blocks}
    marks = _marks(document)
    for number, mark in marks.items():
        block = starts.get(number + 1)
        if mark != MARK and not NOT_RUN.fullmatch(mark):
            yield number, (f"unknown mark \"{mark}\": write it as \"{MARK}\" or "
                           "\"<!-- not run: REASON -->\"")
        elif block is None:
            yield number, f"no block of code follows \"{mark}\": write it directly above the block"
        elif block.language not in SHELL:
            yield number, (f"\"{mark}\" is above a block of language \"{block.language}\": mark a "
                           "block of commands, and begin it with ```sh")
    if not any(NOT_RUN.fullmatch(mark) for mark in marks.values()):
        return
    for block in document.blocks:
        if block.language in SHELL and block.line - 1 not in marks:
            yield block.line, (f"a block of commands without a mark: write \"{MARK}\" above it, or "
                               "\"<!-- not run: REASON -->\" as above others of this document")


def extract(document):
    """The blocks that are to run, in order."""
    marks = _marks(document)
    return [block for block in document.blocks
            if marks.get(block.line - 1) == MARK and block.language in SHELL]


def left_out(document):
    """Line and reason of each block that is not to run."""
    return [(number, found[1]) for number, mark in _marks(document).items()
            if (found := NOT_RUN.fullmatch(mark))]


def _marks(document):
    """Marks by line, also those that are spelled wrong."""
    inside = {number for block in document.blocks
              for number in range(block.line, block.line + block.text.count("\n") + 2)}
    return {number: line.strip() for number, line in enumerate(document.lines, 1)
            if LIKE_MARK.match(line) and number not in inside}


class Failure(Exception):
    """A block that failed: its line, why, and its output."""

    def __init__(self, line, reason, output):
        super().__init__(reason)
        self.line, self.reason, self.output = line, reason, output


class Shell:
    """One bash, in a process group of its own, that runs blocks from files of a folder.

    A file begins with so many empty lines that bash names the document's own lines in messages.
    """

    def __init__(self, name, blocks, folder, root=ROOT):
        self.folder = pathlib.Path(folder)
        self.blocks = blocks
        stem = self.folder / name.replace("/", "_")
        script = [f"trap 'echo $LINENO >{self.folder}/line' ERR", "set -eE"]
        reading, writing = os.pipe()
        for number, block in enumerate(blocks):
            path = f"{stem}.{number}"
            pathlib.Path(path).write_text("\n" * block.line + block.text, encoding="utf-8")
            # Without the pipe: its end is the end of this shell, whatever the block leaves running.
            script += [f". '{path}' </dev/null >{self.folder}/{number}.out 2>&1 {writing}>&-",
                       f"echo >&{writing}"]
        # bash runs its script from a file: commands from a pipe would be read one by one.
        (self.folder / "script").write_text("\n".join(script) + "\n", encoding="utf-8")
        self.process = subprocess.Popen(
            ["bash", str(self.folder / "script")], cwd=root, stdin=subprocess.DEVNULL,
            pass_fds=[writing], start_new_session=True)
        os.close(writing)
        self.done = reading

    def wait_for(self, number, deadline_s):
        """Returns when that block has ended; raises `Failure`."""
        block = self.blocks[number]
        ready, _, _ = select.select([self.done], [], [], deadline_s)
        if ready and os.read(self.done, 1):
            return
        if not ready:
            raise Failure(block.line, f"the commands still run after {deadline_s} s: make them "
                          "end by themselves, or move what must keep running to the background",
                          self.output(number))
        status = self.process.wait()
        if status == 0:
            raise Failure(block.line, "the block ends the shell: remove `exit`",
                          self.output(number))
        raise Failure(self.failed_line(block), f"a command failed with status {status}: correct "
                      "the command, or the program that it runs", self.output(number))

    def failed_line(self, block):
        path = self.folder / "line"
        text = path.read_text().split() if path.exists() else []
        line = int(text[-1]) if text else 0
        return line if block.line < line <= block.line + block.text.count("\n") else block.line

    def output(self, number):
        path = self.folder / f"{number}.out"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        if len(lines) > SHOWN_LINES:
            lines[:-SHOWN_LINES] = [f"... {len(lines) - SHOWN_LINES} lines are left out ..."]
        return "\n".join(lines)

    def close(self):
        """Ends bash and what it left running; the group's number stays taken while one lives."""
        if self.done is None:
            return
        os.close(self.done)
        self.done = None
        self._signal(signal.SIGTERM)
        start = time.monotonic()
        while self.process.poll() is None or self._signal(0):
            late = time.monotonic() - start
            if late > GRACE_S:
                self._signal(signal.SIGKILL)
            if late > 2 * GRACE_S:  # Stuck in the kernel, or a zombie that nobody collects.
                return
            time.sleep(0.02)

    def _signal(self, number):
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return False
        return True


def run_file(name, blocks, deadline_s):
    """Returns how many blocks passed; raises `Failure`."""
    with tempfile.TemporaryDirectory(prefix="gpushm-documents-") as folder:
        shell = Shell(name, blocks, folder)
        try:
            for number, block in enumerate(blocks):
                print(f"{name}:{block.line + 1}:", flush=True)
                print("".join(f"    {line}\n" for line in block.text.splitlines()), end="",
                      flush=True)
                start = time.monotonic()
                shell.wait_for(number, deadline_s)
                print(f"  passed in {time.monotonic() - start:.1f} s", flush=True)
        finally:
            shell.close()
    return len(blocks)


def tree_state():
    return subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, check=True,
                          capture_output=True, text=True).stdout


def test_file(name, deadline_s):
    """How many blocks passed, and messages about what failed."""
    if not (ROOT / name).is_file():
        return 0, [f"{name}: this document does not exist: write it, or correct the name"]
    try:
        document = MarkdownFile((ROOT / name).read_text(encoding="utf-8"))
    except Unclosed as error:
        return 0, [f"{name}:{error.line}: this block of code has no end: close it"]
    wrong = [f"{name}:{line}: {reason}" for line, reason in errors(document)]
    blocks = extract(document)
    if not blocks and not wrong:
        wrong = [f"{name}: no block of commands is marked: write \"{MARK}\" directly above each "
                 "```sh block that a reader can run without a GPU"]
    if wrong:
        return 0, wrong
    if name in STAND_INS and os.geteuid() != 0:
        print(f"{name}: SKIPPED: {STAND_INS[name]} needs root")
        return 0, []
    for line, reason in left_out(document):
        print(f"{name}:{line + 1}: not run: {reason}")
    if name in STAND_INS:
        blocks.insert(0, Block("sh", f". {STAND_INS[name]}\n", 0))
    before = tree_state()
    try:
        passed = run_file(name, blocks, deadline_s)
    except Failure as failure:
        print(failure.output)
        return 0, [f"{name}:{failure.line}: {failure.reason}"]
    after = tree_state()
    if after != before:
        return passed, [f"{name}: the commands change the tree: let them write into build/ or "
                        f"outside it; git status before:\n{before}and after:\n{after}"]
    return passed, []


def marked_files():
    """Documents with a mark, besides the required ones."""
    found = subprocess.run(["git", "grep", "--untracked", "-l", "-e", f"^ *{MARK} *$", "--", "*.md"], cwd=ROOT,
                           capture_output=True, text=True, check=False).stdout.split("\n")
    return [name for name in found if name and name not in REQUIRED]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, metavar="SECONDS",
                        help="for each block (default: %(default)s)")
    parser.add_argument("files", nargs="*", metavar="FILE")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # So that `close` runs.
    passed, wrong = 0, []
    for name in options.files or [*REQUIRED, *marked_files()]:
        blocks, messages = test_file(name, options.deadline)
        passed += blocks
        wrong += messages
    print("\n".join([*wrong, f"documents: {passed} blocks passed, {len(wrong)} errors"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
