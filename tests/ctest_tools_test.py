"""Goal: CI's numbers are correct, and an unexpected skip is a failure.
Method: synthetic JUnit files, as CTest and GoogleTest write them."""

import contextlib
import io
import json
import pathlib
import tempfile
import unittest
from xml.sax.saxutils import escape

import ctest_tools

RAN = """[==========] Running 3 tests from 1 test suite.
[ RUN      ] A.Passes
[       OK ] A.Passes (0 ms)
[ RUN      ] A.NeedsRoot
x_test.cc:1: Skipped
needs root
[  SKIPPED ] A.NeedsRoot (0 ms)
[ RUN      ] A/B.Each/0
[       OK ] A/B.Each/0 (0 ms)
[==========] 3 tests from 1 test suite ran. (1 ms total)
[  PASSED  ] 2 tests.
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] A.NeedsRoot
"""
ALL_PASSED = RAN.replace("[  SKIPPED ] A.NeedsRoot (0 ms)", "[       OK ] A.NeedsRoot (0 ms)").replace(
    "2 tests.\n[  SKIPPED ] 1 test, listed below:\n[  SKIPPED ] A.NeedsRoot\n", "3 tests.\n")


def program(name, output, status="run", inner=""):
    return (f'<testcase name="{name}" status="{status}">{inner}'
            f"<system-out>{escape(output)}</system-out></testcase>")


class ToolsTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.expect({"suites": ["dev"], "cases": ["A.NeedsRoot"], "why": "it needs root"})

    def expect(self, *entries):
        (self.folder / "expected_skips.json").write_text(json.dumps(entries), encoding="utf-8")

    def results(self, *programs):
        path = self.folder / "result.xml"
        path.write_text(f"<testsuite>{''.join(programs)}</testsuite>", encoding="utf-8")
        return path

    def skips(self, suite, *programs):
        """(whether it is fine, what was printed)"""
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            fine = ctest_tools.check_skips(suite, self.results(*programs) if programs else None,
                                           self.folder / "expected_skips.json")
        return fine, said.getvalue()

    def tally(self, *programs):
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
            ctest_tools.print_tally([self.results(*programs)])
        return said.getvalue().split()

    def test_cases_are_counted_one_by_one(self):
        self.assertEqual(self.tally(program("x_test", RAN), program("script", "fine")),
                         ["3", "0", "1"])
        self.assertEqual(self.tally(program("script", "", inner="<skipped/>")), ["0", "0", "1"])

    def test_a_program_that_did_not_get_to_its_end_has_failed(self):
        cut = RAN[:RAN.index("[==========] 3")]
        self.assertEqual(self.tally(program("x_test", cut)), ["0", "1", "0"])
        self.assertEqual(self.tally(program("x_test", "", "fail")), ["0", "1", "0"])

    def test_a_failed_case_is_named_with_the_end_of_what_it_printed(self):
        said = io.StringIO()
        bad = RAN.replace("[       OK ] A/B.Each/0", "[  FAILED  ] A/B.Each/0")
        with contextlib.redirect_stdout(said):
            ctest_tools.print_failed("dev", self.results(program("x_test", bad, "fail"),
                                                         program("y_test", RAN)))
        self.assertIn("dev: x_test failed: A/B.Each/0\n    ", said.getvalue())
        self.assertNotIn("y_test", said.getvalue())

    def test_an_expected_skip_is_fine(self):
        self.assertEqual(self.skips("dev", program("x_test", RAN)), (True, ""))

    def test_a_skipped_case_that_is_not_in_the_list_fails_with_its_name(self):
        fine, said = self.skips("dev", program("x_test", RAN.replace("NeedsRoot", "NeedsGpu")))
        self.assertFalse(fine)
        self.assertIn("A.NeedsGpu was skipped", said)

    def test_the_list_is_for_each_suite(self):
        fine, said = self.skips("asan", program("x_test", RAN))
        self.assertFalse(fine)
        self.assertIn("asan: A.NeedsRoot was skipped", said)

    def test_cases_with_parameters_have_names_too(self):
        skipped = RAN.replace("[       OK ] A/B.Each/0", "[  SKIPPED ] A/B.Each/0")
        self.assertIn("A/B.Each/0 was skipped", self.skips("dev", program("x_test", skipped))[1])

    def test_a_whole_program_that_was_skipped_is_a_case(self):
        fine, said = self.skips("dev", program("video_test", "", inner="<skipped/>"))
        self.assertFalse(fine)
        self.assertIn("video_test was skipped", said)
        self.assertFalse(self.skips("dev", program("video_test", "", "notrun"))[0])

    def test_a_list_that_is_too_long_is_only_a_note(self):
        fine, said = self.skips("dev", program("x_test", ALL_PASSED))
        self.assertTrue(fine)
        self.assertIn("note: A.NeedsRoot ran", said)

    def test_a_suite_that_was_skipped_as_a_whole(self):
        self.assertFalse(self.skips("page")[0])
        self.expect({"suites": ["page"], "cases": ["*"], "why": "no browser"})
        self.assertEqual(self.skips("page"), (True, ""))

    def test_the_list_of_the_tree_has_a_reason_for_each(self):
        entries = json.loads(ctest_tools.EXPECTED_SKIPS.read_text(encoding="utf-8"))
        names = [(suite, case) for entry in entries for suite in entry["suites"]
                 for case in entry["cases"]]
        self.assertEqual(len(names), len(set(names)))
        for entry in entries:
            self.assertEqual(entry.keys(), {"suites", "cases", "why"})
            self.assertGreater(len(entry["why"]), 10)


if __name__ == "__main__":
    unittest.main()
