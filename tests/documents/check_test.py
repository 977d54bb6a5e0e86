"""Tests of the checks of documents: each names the line of what is wrong and says what to do.

That what is right passes is what a run of the checks over the whole tree shows.
"""

import unittest

import check
from markdown_file import Block, MarkdownFile

NAMES = {".", "README.md", "docs", "docs/a.md", "docs/b.md", "run"}


class CheckLinkTest(unittest.TestCase):
    def setUp(self):
        self.documents = {
            "README.md": MarkdownFile("# Start\n"),
            "docs/a.md": MarkdownFile("# A\n## Twice\n## Twice\n"),
            "docs/b.md": MarkdownFile("# The broker's file\n"),
        }

    def wrong(self, name, target):
        return check.check_link(name, target, NAMES, self.documents)

    def test_names_what_does_not(self):
        for target, words in {
                "c.md": "leads to docs/c.md, which is not in the repository",
                "../../x": "which is not in the repository",
                "b.md#the-broker-file": "did you mean \"the-brokers-file\"?",
                "#twice": "2 headings of docs/a.md",
                "../run#usage": "not a Markdown file",
                "/docs/b.md": "write it relative",
        }.items():
            self.assertIn(words, self.wrong("docs/a.md", target) or "", target)

    def test_a_breach_has_a_line(self):
        self.documents["docs/a.md"] = MarkdownFile("# A\n\n[x](https://gpushm.example) [y](c.md)\n")
        found = list(check.check_links("docs/a.md", self.documents, NAMES))
        self.assertEqual(len(found), 1)
        self.assertTrue(found[0].startswith("docs/a.md:3: the link \"c.md\""), found)


class CheckBlockTest(unittest.TestCase):
    def breaches(self, language, text, includes=()):
        return check.check_block("a.md", Block(language, text, 10), includes)

    def test_names_the_line_of_what_is_wrong(self):
        for language, text, words in (
                ("json", "{\n\"a\": }\n", "a.md:12: invalid JSON"),
                ("sh", "true\nkubectl get <pod>\n", "a.md:12: invalid shell command"),
                ("c", "#include <stdio.h>\nint main(void) {\n  return x;\n}\n",
                 "a.md:13: this program does not compile"),
                ("c", "#include \"missing.h\"\nint main(void) {}\n", "a.md:11: this program"),
                ("ymal", "a: 1\n", "a.md:10: unknown language \"ymal\""),
        ):
            found = self.breaches(language, text)
            self.assertTrue(found and found[0].startswith(words), (language, found))

    def test_a_program_may_choose_its_standard(self):
        designators = "struct A { int a; };\nint main() { A a{.a = 1}; return a.a - 1; }\n"
        for first, expected in (("", 0), ("// a.cc: g++ -std=c++20 a.cc -o a\n", 0),
                                ("// a.cc: g++ -std=c++17 a.cc -o a\n", 1)):
            self.assertEqual(len(self.breaches("cpp", first + designators)), expected, first)


class CheckListTest(unittest.TestCase):
    def lines(self, text):
        return [int(breach.split(":")[1])
                for breach in check.check_lists("a.md", MarkdownFile(text))]

    def test_refuses_what_only_github_shows(self):
        self.assertEqual(self.lines("text\n- a\n- b\n"), [2])
        self.assertEqual(self.lines("- a\n  - b\n"), [2])
        self.assertEqual(self.lines("1. a\n\n   ```sh\n   b\n   ```\n2. c\n"), [3])


if __name__ == "__main__":
    unittest.main()
