"""Words and paths of the documents. docs/glossary.md lists behind `Not:` what an entry must not be called;
the pages and the comments of the code do not say it. A path in backticks in docs/design exists.
repo_check.py runs this, and `./run lint` runs that.
"""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
GLOSSARY = "docs/glossary.md"
COMMENTED = {".cc", ".c", ".cu", ".h", ".hpp"}
COMMENT = re.compile(r"//.*?$|/\*.*?\*/", re.DOTALL | re.MULTILINE)
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
ENTRY = re.compile(r"^\*\*(.+?)\.?\*\*.*? Not: (.*)$", re.MULTILINE)
# What `./run` or a person puts there.
NOT_KEPT = {"tests/cluster/former.commit"}


def refused(glossary):
    """Pairs of what is refused and the entry that is meant."""
    return [(phrase, term) for term, phrases in ENTRY.findall(glossary)
            for phrase in re.findall(r'"([^"]+)"', phrases)]


def pattern(phrase):
    # A phrase may be broken into two lines of a comment.
    space = r"\s+(?:(?://+|\*)\s+)?"
    return re.compile(rf"\b{space.join(map(re.escape, phrase.split()))}s?\b", re.IGNORECASE)


def blanked(match):
    return re.sub(r"[^\n]", " ", match[0])


def check_words(name, text, words):
    """`words`: of refused()."""
    suffix = pathlib.PurePosixPath(name).suffix
    if suffix in COMMENTED:
        last = 0
        spoken = ""
        for comment in COMMENT.finditer(text):
            spoken += re.sub(r"[^\n]", " ", text[last:comment.start()]) + comment[0]
            last = comment.end()
    elif suffix == ".md" and name != GLOSSARY:
        spoken = FENCED.sub(blanked, text)
    else:
        return
    for phrase, term in words:
        for found in pattern(phrase).finditer(spoken):
            number = spoken.count("\n", 0, found.start()) + 1
            yield (f'{name}:{number}: "{phrase}" means another thing or nothing: say {term.lower()} '
                   f"({GLOSSARY})")


def check_paths(name, text, tops):
    """`tops`: the folders at the top of the tree."""
    if not re.fullmatch(r"docs/design/[\w-]+\.md", name):
        return
    spoken = FENCED.sub(blanked, text)
    for found in re.finditer(r"`([\w.-]+)/([\w./*-]*)`", spoken):
        path = f"{found[1]}/{found[2]}".rstrip("/")
        if found[1] not in tops or path in NOT_KEPT or path.startswith("build/"):
            continue
        # plugin/options stands for the header and its source.
        if not any(ROOT.glob(path)) and not any(ROOT.glob(path + ".*")):
            number = spoken.count("\n", 0, found.start()) + 1
            yield f"{name}:{number}: {path} does not exist: name the file that has it now"


def check(names):
    words = refused((ROOT / GLOSSARY).read_text())
    if not words:
        yield f"{GLOSSARY}: no entry has a list behind `Not:`"
    tops = {name.split("/")[0] for name in names if "/" in name}
    for name in names:
        if pathlib.PurePosixPath(name).suffix not in COMMENTED | {".md"}:
            continue
        text = (ROOT / name).read_text(errors="replace")
        yield from check_words(name, text, words)
        yield from check_paths(name, text, tops)
