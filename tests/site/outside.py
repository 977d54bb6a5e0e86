"""MkDocs hook: what documents link to outside docs/ becomes part of the site.

Documents of docs/ link to headers, manifests and READMEs all over the tree, as GitHub shows them.
MkDocs knows only docs/, and would refuse such links. They could lead to the repository's address
instead, but the project has none yet, and a page there can be of another commit. So each linked
file becomes a page below tree/, with its links followed in the same way. So does a folder without
a README, also of docs/. No plugin does that.
"""

import logging
import pathlib
import posixpath
import re
import sys
import urllib.parse

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, InclusionLevel

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "documents"))
from markdown_file import MarkdownFile, is_external  # noqa: E402

log = logging.getLogger("mkdocs.hooks.outside")
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DOCS = "docs/"
TREE = "tree/"
LARGE_FILE_BYTES = 100_000  # A list of a folder only names larger files (dashboards).
LANGUAGES = {".c": "c", ".cc": "cpp", ".cuh": "cuda", ".h": "cpp", ".hpp": "cpp", ".json": "json",
             ".py": "python", ".sh": "bash", ".yaml": "yaml"}

# Path in the site's sources -> path in the repository, of pages outside docs/; and the reverse.
origins = {}
places = {}


def on_files(files, config):
    origins.clear()
    places.clear()
    todo = [DOCS + page.src_uri for page in files.documentation_pages()]
    while todo:
        name = todo.pop()
        for link in MarkdownFile(text_of(name)).links():
            path = target_in_tree(name, link.target)
            if path is None or path in places or not (ROOT / path).exists():
                continue  # MkDocs names a link that leads nowhere, and fails.
            if path.startswith(DOCS) and not (ROOT / path).is_dir():
                continue
            place, content = page_of(path)
            page = File.generated(config, place, content=content,
                                  inclusion=InclusionLevel.NOT_IN_NAV)
            files.append(page)
            origins[place], places[path] = path, place
            todo.append(place)
    return files


def text_of(name):
    """NAME: of a file of docs/ in the repository, or of a page that on_files makes."""
    if name in origins:
        return page_of(origins[name])[1]
    return (ROOT / name).read_text(encoding="utf-8")


def origin_of(name):
    """The folder's or file's path in the repository, for which links in it are meant."""
    origin = origins.get(name, name)
    return origin + "/README.md" if (ROOT / origin).is_dir() else origin


def target_in_tree(name, target):
    """The path in the repository that a link means, or None if it stays in its file or leaves."""
    path = urllib.parse.unquote(target.partition("#")[0])
    if not path or is_external(target):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(origin_of(name)), path))
    if path.startswith(".."):
        return None
    if (ROOT / path / "README.md").exists():
        path = posixpath.normpath(path + "/README.md")
    return path


def page_of(path):
    """Where the page of a file or folder is, and its Markdown."""
    full = ROOT / path
    if full.is_dir():
        lines = [f"# {path}", ""]
        for entry in sorted(full.iterdir()):
            linked = entry.is_file() and entry.stat().st_size <= LARGE_FILE_BYTES
            lines.append(f"- [{entry.name}]({entry.name})" if linked else f"- {entry.name}")
        place = path[len(DOCS):] if path.startswith(DOCS) else TREE + path
        return f"{place}/README.md", "\n".join(lines) + "\n"
    try:
        text = full.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise PluginError(f"{path}: not a text file: link to the folder that it is in") from error
    if path.endswith(".md"):
        return TREE + path, text
    fence = "```"
    while fence in text:
        fence += "`"
    language = LANGUAGES.get(full.suffix, "text")
    return (f"{TREE}{path}.md", f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n"
            f"{fence}{language}\n{text.rstrip()}\n{fence}\n")


def on_page_markdown(markdown, page, **_):
    """Turns links between docs/ and what is outside into links between pages of the site."""
    place = page.file.src_uri
    name = place if place in origins else DOCS + place
    lines = markdown.split("\n")
    for link in sorted(MarkdownFile(markdown).links(), key=lambda each: each.column, reverse=True):
        path = target_in_tree(name, link.target)
        if path is None:
            continue
        target = places.get(path)
        if target is None and path.startswith(DOCS):
            target = path[len(DOCS):]
        if target is None:
            continue
        _, mark, anchor = link.target.partition("#")
        relative = posixpath.relpath(target, posixpath.dirname(place) or ".") + mark + anchor
        line = lines[link.line - 1]
        end = link.column + len(link.target)
        lines[link.line - 1] = line[:link.column] + relative + line[end:]
    return "\n".join(map(unescape_code, lines))


def unescape_code(line):
    r"""On GitHub `a\|b` in a row of a table is a|b; Python-Markdown would print the backslash."""
    if not line.startswith("|"):
        return line
    return re.sub(r"`[^`]+`", lambda span: span[0].replace(r"\|", "|"), line)
