"""Tests of what finds and runs the commands of documents, and of the checks of documents."""

import pathlib
import subprocess
import tempfile
import unittest
import unittest.mock

import commands
from markdown_file import MarkdownFile, Unclosed


def blocks_of(text):
    return [(block.line, block.text) for block in commands.extract(MarkdownFile(text))]


class ExtractTest(unittest.TestCase):
    def test_takes_marked_blocks_in_order(self):
        text = ("# A\n<!-- run -->\n```sh\nfirst\n```\n```sh\nnot marked\n```\n"
                "<!-- run -->\n```bash\nsecond\n\nthird\n```\n")
        self.assertEqual(blocks_of(text), [(3, "first\n"), (10, "second\n\nthird\n")])
        self.assertEqual(list(commands.errors(MarkdownFile(text))), [])

    def test_takes_a_block_of_a_list_without_its_indentation(self):
        text = "1. Do\n\n   <!-- run -->\n   ```sh\n   if true; then\n     a\n   fi\n   ```\n"
        self.assertEqual(blocks_of(text), [(4, "if true; then\n  a\nfi\n")])

    def test_a_mark_inside_a_block_is_text(self):
        text = "````text\n<!-- run -->\n```sh\na\n```\n````\n"
        self.assertEqual(blocks_of(text), [])
        self.assertEqual(list(commands.errors(MarkdownFile(text))), [])

    def test_a_mark_that_leads_to_no_block_of_commands_is_an_error(self):
        for text, words in {
                "<!-- run -->\n\n```sh\na\n```\n": "directly above",
                "<!-- run -->\n": "directly above",
                "<!-- run -->\n```yaml\na: 1\n```\n": "begin it with ```sh",
                "<!-- run -->\n```\na\n```\n": "begin it with ```sh",
                "<!--run 5-->\n```sh\na\n```\n": "unknown mark \"<!--run 5-->\"",
                "<!-- not run -->\n```sh\na\n```\n": "unknown mark \"<!-- not run -->\"",
                "<!-- not run: b -->\n": "directly above",
        }.items():
            found = list(commands.errors(MarkdownFile(text)))
            self.assertEqual([line for line, _ in found], [1], text)
            self.assertIn(words, found[0][1])

    def test_a_reason_leaves_a_block_out(self):
        text = "<!-- not run: no GPU -->\n```sh\na\n```\n<!-- run -->\n```sh\nb\n```\n"
        self.assertEqual(blocks_of(text), [(6, "b\n")])
        self.assertEqual(commands.left_out(MarkdownFile(text)), [(1, "no GPU")])
        self.assertEqual(list(commands.errors(MarkdownFile(text))), [])

    def test_beside_a_reason_every_block_of_commands_needs_a_mark(self):
        text = "<!-- not run: no GPU -->\n```sh\na\n```\n```sh\nb\n```\n```text\nc\n```\n"
        self.assertEqual([line for line, _ in commands.errors(MarkdownFile(text))], [5])

    def test_a_block_without_an_end_is_an_error(self):
        with self.assertRaises(Unclosed) as caught:
            MarkdownFile("a\n```sh\nb\n")
        self.assertEqual(caught.exception.line, 2)


class ShellTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "work").mkdir()

    def shell(self, text):
        shell = commands.Shell("docs/a.md", commands.extract(MarkdownFile(text)),
                               self.root / "work", self.root)
        self.addCleanup(shell.close)
        return shell

    def failure(self, text):
        shell = self.shell(text)
        with self.assertRaises(commands.Failure) as caught:
            for number in range(len(shell.blocks)):
                shell.wait_for(number, 20)
        return caught.exception

    def test_blocks_share_one_shell_in_the_root(self):
        shell = self.shell("<!-- run -->\n```sh\nx=1; pwd >here\n```\n"
                           "<!-- run -->\n```sh\necho $x >>here\n```\n")
        shell.wait_for(0, 20)
        shell.wait_for(1, 20)
        self.assertEqual((self.root / "here").read_text(), f"{self.root.resolve()}\n1\n")

    def test_a_failure_names_the_line_and_shows_the_output(self):
        failure = self.failure("# A\n<!-- run -->\n```sh\necho before\ntrue\ncat missing\n"
                               "echo after\n```\n")
        self.assertEqual(failure.line, 6)
        self.assertIn("status 1", failure.reason)
        self.assertIn("before\ncat: missing", failure.output)
        self.assertNotIn("after", failure.output)

    def test_exit_is_not_success(self):
        self.assertIn("ends the shell", self.failure("<!-- run -->\n```sh\nexit 0\n```\n").reason)

    def test_a_process_in_the_background_does_not_hide_a_failure(self):
        failure = self.failure("<!-- run -->\n```sh\nsleep 600 &\nfalse\n```\n")
        self.assertEqual(failure.line, 4)

    def test_what_a_block_left_running_ends_with_the_file(self):
        """Also if it ignores SIGTERM. Method: each process holds a lock of its own file."""
        text = ("<!-- run -->\n```sh\n"
                "flock polite sleep 600 &\n"
                "(trap '' TERM; exec flock deaf sleep 600) &\n"
                "for file in polite deaf; do\n"
                "  until [ -e $file ] && ! flock -n $file true; do sleep 0.01; done\n"
                "done\n```\n")
        shell = self.shell(text)
        shell.wait_for(0, 20)
        with unittest.mock.patch.object(commands, "GRACE_S", 0.2):
            shell.close()
        for name in ("polite", "deaf"):
            subprocess.run(["flock", "--nonblock", str(self.root / name), "true"], check=True)


class AnchorTest(unittest.TestCase):
    def test_headings_in_blocks_are_none(self):
        document = MarkdownFile("# A\n```sh\n# b\n```\n## A\n<a id=\"x\"></a>\n")
        self.assertEqual(document.anchors(), {"a": 2, "x": 1})


class LinkTest(unittest.TestCase):
    def test_finds_links_outside_code_and_comments(self):
        document = MarkdownFile("[a](b.md#c) ![d](e.png \"title\") `[f](g)`\n<!-- [h](i) -->\n"
                                "[j]: k.md\n<img alt='l' src=\"m.svg\">\n```text\n[n](o)\n```\n"
                                "[`p`](q.md)\n")
        self.assertEqual([(link.target, link.line, link.column) for link in document.links()],
                         [("b.md#c", 1, 4), ("e.png", 1, 17), ("k.md", 3, 5), ("m.svg", 4, 18),
                          ("q.md", 8, 6)])


if __name__ == "__main__":
    unittest.main()
