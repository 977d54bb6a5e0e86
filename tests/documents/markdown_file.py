"""A Markdown file as GitHub reads it: fenced blocks, anchors, links. Standard library only.

The site (tests/site/outside.py), the checks (check.py) and the commands' test (commands.py) read
documents with it, so that all three agree on what a block or a link is.
"""

import re
import typing

FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})\s*([^`]*)$")
HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)(?:\s+#+)?\s*$")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`)((?:(?!\n\s*\n).)+?)(?<!`)\1(?!`)", re.DOTALL)
# [text](target "title"), ![text](target), [name]: target
INLINE_LINK = re.compile(r"\]\(\s*<?([^()\s<>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
DEFINED_LINK = re.compile(r"^ {0,3}\[[^\]]+\]:\s+<?([^\s<>]+)>?")
HTML_LINK = re.compile(r"\b(?:src|srcset|href)=[\"']([^\"'\s]+)[\"']")
HTML_ANCHOR = re.compile(r"\b(?:id|name)=[\"']([^\"']+)[\"']")
LINK_TEXT = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
EMPHASIS = re.compile(r"\*+|(?<!\w)_+(?=\w)|(?<=\w)_+(?!\w)")
SCHEME = re.compile(r"^([a-z][a-z0-9+.-]*:|//)", re.IGNORECASE)


class Block(typing.NamedTuple):
    language: str
    text: str  # Without the fence's indentation.
    line: int  # Of the opening fence; the text begins in the next one.


class Link(typing.NamedTuple):
    target: str
    line: int
    column: int  # Where the target begins in that line, from 0.


class Unclosed(Exception):
    """A fenced block without an end; `line` is where it begins."""

    def __init__(self, line):
        super().__init__(line)
        self.line = line


def slug(heading):
    """The anchor that GitHub gives to a heading."""
    text = LINK_TEXT.sub(r"\1", heading)
    parts = re.split(r"`+", text)  # What is between backticks is not emphasis.
    parts[::2] = [EMPHASIS.sub("", part) for part in parts[::2]]
    return re.sub(r"[^\w\- ]", "", "".join(parts).strip().lower()).replace(" ", "-")


def is_external(target):
    return bool(SCHEME.match(target))


class MarkdownFile:
    """Raises `Unclosed`."""

    def __init__(self, text):
        self.lines = text.splitlines()
        self.blocks = []
        outside = self._read_blocks()
        # Code, then comments, as spaces: a link keeps its line and column.
        self.prose = _blank(COMMENT, _blank(CODE_SPAN, "\n".join(outside))).split("\n")
        self.headings = [(match[1], number) for number, line in enumerate(outside, 1)
                         if (match := HEADING.match(line))]

    def _read_blocks(self):
        """Fills `blocks`; returns the lines outside them, the others as empty ones."""
        outside = []
        start = fence = None
        for number, line in enumerate(self.lines, 1):
            match = FENCE.match(line)
            if start is None and match:
                start, fence = number, match
            elif start is not None and _closes(match, fence):
                indent = len(fence[1])
                text = [part[min(indent, len(part) - len(part.lstrip())):]
                        for part in self.lines[start:number - 1]]
                self.blocks.append(Block((fence[3].split() or [""])[0].lower(),
                                         "".join(part + "\n" for part in text), start))
                start = None
            elif start is None:
                outside.append(line)
                continue
            outside.append("")
        if start is not None:
            raise Unclosed(start)
        return outside

    def anchors(self):
        """Each anchor of the file, and how many headings would have it."""
        found = {}
        for heading, _ in self.headings:
            found[slug(heading)] = found.get(slug(heading), 0) + 1
        for line in self.prose:
            for name in HTML_ANCHOR.findall(line):
                found.setdefault(name, 1)
        return found

    def links(self):
        for number, line in enumerate(self.prose, 1):
            for pattern in (INLINE_LINK, DEFINED_LINK, HTML_LINK):
                for match in pattern.finditer(line):
                    yield Link(match[1], number, match.start(1))


def _closes(match, fence):
    return bool(match) and match[2].startswith(fence[2]) and not match[3].strip()


def _blank(pattern, text):
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
