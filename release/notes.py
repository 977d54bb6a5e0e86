"""Prints the notes of a version: its section of CHANGELOG.md, and what the folder contains.

usage: notes.py VERSION [--trial]

If the changelog has no section of that version, it fails; with --trial the notes are what is unreleased,
and say so.
"""

import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent


def section(changelog, name):
    """The text below `## [name]`, without further headings of that level; None if it is missing."""
    found = re.search(rf"^## \[{re.escape(name)}\][^\n]*\n(.*?)(?=^## |\Z)", changelog,
                      re.MULTILINE | re.DOTALL)
    return found and found[1].strip()


def notes(changelog, contents, version, trial=False):
    changes = section(changelog, version)
    title = f"# gpushm {version}\n\n"
    if not changes:
        if not trial:
            raise ValueError(f"CHANGELOG.md has no section [{version}]: write it, or try with --dirty")
        changes = section(changelog, "Unreleased") or ""
        title += f"This is not a release: CHANGELOG.md has no section for {version}.\n\n"
    # Links to files of the tree lead nowhere outside of it.
    changes = re.sub(r"\[([^]]+)\]\((?!https?:)[^)]+\)", r"\1", changes)
    return f"{title}{contents.strip()}\n\n{changes}\n"


def main():
    version, *option = sys.argv[1:]
    contents = (HERE / "contents.md").read_text(encoding="utf-8").replace("VERSION", version)
    changelog = (HERE.parent / "CHANGELOG.md").read_text(encoding="utf-8")
    try:
        sys.stdout.write(notes(changelog, contents, version, option == ["--trial"]))
    except ValueError as error:
        sys.exit(f"notes.py: {error}")


if __name__ == "__main__":
    main()
