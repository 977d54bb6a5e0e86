"""Goal: words_check finds what the glossary refuses, in pages and comments, and paths that do not exist,
and nothing else."""

import unittest

import words_check

GLOSSARY = """**Link (plugin link).** A socket ([link.h](link.h)). Not: "broker link", "keeper link".

**Sync page.** Host memory. Not: "signal page".

**Unit.** Not a phrase: nothing is refused here.
"""
WORDS = words_check.refused(GLOSSARY)


class WordsTest(unittest.TestCase):
    def found(self, name, text):
        return list(words_check.check_words(name, text, WORDS))

    def test_the_list_is_read(self):
        self.assertEqual(WORDS, [("broker link", "Link (plugin link)"),
                                 ("keeper link", "Link (plugin link)"), ("signal page", "Sync page")])

    def test_what_is_refused_is_found(self):
        for name, text, line in [
                ("docs/page.md", "# A page\nThe Broker link ends.\n", 2),
                ("a.cc", "int a;\n// Two signal pages.\n", 2),
                ("a.h", "int a;  // The signal\n// page of it.\n", 1),
                ("a.c", "/* One\n * keeper link. */\n", 2)]:
            with self.subTest(name=name, text=text):
                found, = self.found(name, text)
                self.assertTrue(found.startswith(f"{name}:{line}: "), found)

    def test_what_is_not_is_not(self):
        for name, text in [("docs/page.md", "The broker's end of the plugin link. Signals, page 2."),
                           ("docs/page.md", "```\nsignal page\n```\n"),
                           ("docs/page.md", "`sidecar/broker/link.cc`"),
                           ("docs/glossary.md", "Not: \"signal page\"."),
                           ("a.cc", "int signal_page;\nSay(\"signal page\");\n"),
                           ("a.cc", "// The signal\nint page;\n"), ("a.py", "# signal page\n")]:
            with self.subTest(name=name, text=text):
                self.assertEqual(self.found(name, text), [])


class PathsTest(unittest.TestCase):
    def found(self, text, name="docs/design/page.md"):
        return list(words_check.check_paths(name, text, {"tests", "plugin"}))

    def test_what_does_not_exist_is_found(self):
        for path in ["tests/no_such.py", "plugin/no_such/", "tests/no_*.py"]:
            with self.subTest(path=path):
                self.assertEqual(len(self.found(f"Text.\nSee `{path}`.")), 1)

    def test_what_exists_is_not(self):
        for text in ["`tests/words_check.py`", "`plugin/`", "`tests/words_check`", "`tests/*_check.py`",
                     "`tests/words_check.py --write`", "`gpushm.io/memory`", "`other/no_such.py`",
                     "```\n`tests/no_such.py`\n```\n"]:
            with self.subTest(text=text):
                self.assertEqual(self.found(text), [])
        self.assertEqual(self.found("`tests/no_such.py`", "docs/guides/page.md"), [])


if __name__ == "__main__":
    unittest.main()
