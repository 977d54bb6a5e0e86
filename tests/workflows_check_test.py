"""Goal: workflows_check finds calls that do not exist, suites that no workflow runs, actions that are not
pinned, and rights that nobody needs; and finds nothing in what is right."""

import unittest

import workflows_check

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WORKFLOW = f"""name: test
on:
  pull_request:
permissions:
  contents: read
concurrency:
  group: all
jobs:
  suite:
    timeout-minutes: 5
    steps:
      - uses: actions/checkout@{COMMIT} # v7.0.1
        with:
          persist-credentials: false
      - uses: ./.github/actions/prepare
      - run: ./run test asan
      - run: ./run abi
"""


class CallsTest(unittest.TestCase):
    def found(self, text):
        return list(workflows_check.check_calls("w.yml", text, {"setup", "lint", "abi", "test"}, {"dev", "asan", "soak"}))

    def test_what_exists_is_right(self):
        self.assertEqual(self.found(WORKFLOW), [])
        self.assertEqual(self.found("./run setup --ci && ./run lint\n./run test"), [])

    def test_what_does_not_exist_is_found(self):
        self.assertEqual(self.found("a\n- run: ./run lin"), ["w.yml:2: `./run lin` does not exist: see `./run help`"])
        self.assertEqual(len(self.found("./run test asam")), 1)
        self.assertEqual(len(self.found("./run test other")), 1)

    def test_a_suite_that_no_workflow_runs_is_found(self):
        ci = "step 9 lint ./run lint\nstep 9 asan ./run test asan\nstep 9 b ./run build dev\n"
        self.assertEqual(list(workflows_check.check_suites(ci, [WORKFLOW])),
                         [".ci/run:1: no workflow runs `./run lint`: add it to .github/workflows/test.yml"])
        self.assertEqual(list(workflows_check.check_suites(ci, [WORKFLOW, "./run lint"])), [])


class PinsTest(unittest.TestCase):
    def found(self, text):
        return list(workflows_check.check_pins("w.yml", text))

    def test_a_commit_with_its_release_is_right(self):
        self.assertEqual(self.found(WORKFLOW), [])

    def test_all_else_is_found(self):
        for uses in ("actions/checkout@v7", f"actions/checkout@{COMMIT}", f"actions/checkout@{COMMIT[1:]} # v7.0.1",
                     f"actions/checkout@{COMMIT} # newest"):
            with self.subTest(uses=uses):
                self.assertEqual(len(self.found(f"- uses: {uses}")), 1)


class RightsTest(unittest.TestCase):
    def found(self, old="", new=""):
        self.assertIn(old, WORKFLOW)
        return list(workflows_check.check_rights("w.yml", WORKFLOW.replace(old, new)))

    def test_the_workflow_is_right(self):
        self.assertEqual(self.found(), [])

    def test_what_is_missing_or_too_much_is_found(self):
        for old, new, words in [
                ("pull_request", "pull_request_target", "use pull_request"),
                ("permissions:\n  contents: read\n", "", "every job may write"),
                ("  contents: read", "  packages: write", "every job may write"),
                ("concurrency:\n  group: all\n", "", "no `concurrency`"),
                ("    timeout-minutes: 5\n", "", "job suite has no timeout-minutes"),
                # That of a step is none of the job.
                ("    timeout-minutes: 5\n    steps:\n", "    steps:\n      - run: ./run abi\n        timeout-minutes: 5\n",
                 "job suite has no timeout-minutes"),
                ("persist-credentials: false", "fetch-depth: 0", "job suite leaves its token")]:
            with self.subTest(new=new, words=words):
                found = self.found(old, new)
                self.assertEqual(len(found), 1, found)
                self.assertIn(words, found[0])


class TreeTest(unittest.TestCase):
    def test_the_workflows_of_this_tree_are_right(self):
        self.assertEqual(list(workflows_check.check()), [])


if __name__ == "__main__":
    unittest.main()
