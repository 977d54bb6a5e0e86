"""Goal: rooms_check finds a file of two rooms or of none, what a room may not include, a namespace of
another room and tables that differ, and nothing else."""

import unittest

import rooms_check

ROOMS = rooms_check.rooms_in("""# A comment.
base | gpushm gpushm::http | - | every program | what all use
wire | gpushm::wire | base | every program | messages
wire/table | gpushm::wire::table | base wire | every program | a table
tool | gpushm::tool | base wire | a shell | a tool
tests/** | - | all | - | what joins several
""")
FILES = ["base/a.cc", "wire/b.h", "wire/table/c.h", "tool/testing/fake.cc", "tests/x/y.cc"]


class FilesTest(unittest.TestCase):
    def found(self, names, rooms=None):
        return list(rooms_check.check_files(names, rooms or ROOMS))

    def test_each_file_in_one_room_is_right(self):
        self.assertEqual(self.found(FILES + ["tool/README.md", "docs/page.md", "wire/corpus/x/d.py"]), [])

    def test_a_folder_without_a_row_is_found(self):
        found, = self.found(FILES + ["tool/new/a.cc", "tool/new/testing/b.h"])
        self.assertTrue(found.startswith("tool/new/ has code and no row"), found)
        self.assertEqual(len(self.found(FILES + ["a.py"])), 1)

    def test_a_file_of_two_rooms_is_found(self):
        twice = ROOMS + rooms_check.rooms_in("tests/x | - | - | - | again")
        found, = self.found(FILES, twice)
        self.assertTrue(found.startswith("tests/x/y.cc: tests/ and tests/x/ both claim it"), found)

    def test_a_row_without_a_folder_is_found(self):
        found, = self.found([name for name in FILES if name != "wire/table/c.h"])
        self.assertIn("wire/table/ does not exist", found)

    def test_a_use_that_is_no_room_is_found(self):
        found, = self.found(FILES + ["odd/a.cc"], ROOMS + rooms_check.rooms_in("odd | - | bass | - | -"))
        self.assertIn("odd/ may use bass", found)


class IncludesTest(unittest.TestCase):
    def found(self, name, include):
        lines = ["// A comment.", f'#include "{include}"']
        return list(rooms_check.check_includes(name, lines, ROOMS))

    def test_what_a_room_may_not_use_is_found(self):
        for name, include in [("base/a.cc", "wire/b.h"), ("wire/b.h", "wire/table/c.h"),
                              ("wire/b.h", "tool/t.h"), ("wire/b_test.cc", "tests/x/y.h"),
                              ("tool/testing/fake.cc", "tests/x/y.h")]:
            with self.subTest(name=name, include=include):
                found, = self.found(name, include)
                self.assertTrue(found.startswith(f"{name}:2: "), found)
                self.assertIn(include, found)

    def test_what_it_may_use_is_not(self):
        for name, include in [("wire/table/c.h", "wire/b.h"), ("tool/t.cc", "wire/table/c.h"),
                              ("tool/t.cc", "tool/testing/fake.h"), ("tool/t.cc", "gpushm/gpushm.h"),
                              ("tests/x/y.cc", "tool/t.h"), ("tool/t.cc", "base/testing/z.h")]:
            with self.subTest(name=name, include=include):
                self.assertEqual(self.found(name, include), [])


class NamespacesTest(unittest.TestCase):
    def found(self, name, line):
        return list(rooms_check.check_namespaces(name, [line], ROOMS))

    def test_the_rooms_are_right(self):
        for name, line in [("base/a.cc", "namespace gpushm {"), ("base/a.cc", "namespace gpushm::http {"),
                           ("tool/testing/fake.h", "namespace gpushm::tool::testing {"),
                           ("tool/t.cc", "namespace fs = std::filesystem;"),
                           ("tool/t.cc", "namespace internal {"),
                           ("tests/x/y.cc", "namespace gpushm::anything {")]:
            with self.subTest(name=name, line=line):
                self.assertEqual(self.found(name, line), [])

    def test_that_of_another_room_is_found(self):
        for name, line in [("tool/t.cc", "namespace gpushm::wire {"), ("tool/t.cc", "namespace gpushm {"),
                           ("wire/table/c.h", "inline namespace gpushm::wire {")]:
            with self.subTest(name=name, line=line):
                found, = self.found(name, line)
                self.assertTrue(found.startswith(f"{name}:1: "), found)


class PageTest(unittest.TestCase):
    PAGE = "<!-- rooms -->\nold\n<!-- end of rooms -->\ntext\n<!-- uses -->\n<!-- end of uses -->\n"

    def test_tables_that_differ_are_found(self):
        self.assertEqual(len(list(rooms_check.check_page(self.PAGE, ROOMS))), 1)
        page = rooms_check.with_tables(self.PAGE, ROOMS)
        self.assertEqual(list(rooms_check.check_page(page, ROOMS)), [])
        self.assertIn("| `wire/table` | a table | every program |", page)
        self.assertIn("| `wire/table`, `tool` | `base`, `wire` |", page)
        self.assertIn("| `base` | nothing else |", page)
        self.assertIn("\ntext\n", page)


if __name__ == "__main__":
    unittest.main()
