"""Goal: measured_check finds a number that differs from its file, that its page lacks, and that no table
has, and a result that no document cites; and nothing in what is right."""

import unittest

import measured_check

GOOGLE = {"benchmarks": [{"name": "FirstAttach/64MiB/iterations:9/manual_time", "p50_ns": 69308.0},
                         {"name": "FirstAttach/64MiB/linked", "p50_ns": 1.0}]}


class StepTest(unittest.TestCase):
    def test_a_row_of_google_benchmark_is_found_by_its_name(self):
        self.assertEqual(measured_check.step(GOOGLE, "FirstAttach/64MiB")["p50_ns"], 69308.0)
        self.assertEqual(measured_check.step(GOOGLE, "FirstAttach/64MiB/linked")["p50_ns"], 1.0)

    def test_items_are_found_by_number_and_by_members(self):
        rows = [{"way": "turns", "neighbour": "idle"}, {"way": "MPS", "neighbour": "idle", "us": 3}]
        self.assertEqual(measured_check.step(rows, "1")["us"], 3)
        self.assertEqual(measured_check.step(rows, "way=MPS,neighbour=idle")["us"], 3)


class ShownTest(unittest.TestCase):
    def test_a_value_has_the_unit_and_the_decimals_of_its_number(self):
        for number, path, value, wanted in [
                ("69 us", "FirstAttach/64MiB > p50_ns", 69308.0, "69"),
                ("0.27 us", "SecondAttach > p50_ns", 270.4, "0.27"),
                ("38.8 ms", "x > baseline_p50_ns", 38766058.0, "38.8"),
                ("2,228 us", "rows > 0 > signal_us", 2227.7, "2228"),
                ("0.6", "x > p50_ns in ms", 611213.0, "0.6"),
                ("59", "runs > placed_per_s", 59.0, "59"),
                ("7 GiB/s", "x > MiB_per_s", 7013.8, "7")]:
            with self.subTest(number=number):
                self.assertEqual(measured_check.shown(number, path, value)[1], wanted)


class CheckTest(unittest.TestCase):
    ROW = ["an attach", "69 us", "[README](../../README.md)", "[h200](h200-2026-11-21.json)",
           "FirstAttach/64MiB > p50_ns"]

    def found(self, at=None, cell=None):
        row = list(self.ROW)
        if at is not None:
            row[at] = cell
        return list(measured_check.check_row(row))

    def test_a_true_row_is_right(self):
        self.assertEqual(self.found(), [])

    def test_a_false_row_is_found(self):
        self.assertEqual(self.found(1, "27 us"),
                         ["an attach: README.md says 27 us, and h200-2026-11-21.json has 69"])
        self.assertEqual(self.found(1, "69 ns")[0], 'an attach: README.md does not have "69 ns"')
        self.assertEqual(self.found(4, "FirstAttach/63MiB > p50_ns"),
                         ["an attach: h200-2026-11-21.json has no FirstAttach/63MiB > p50_ns"])

    def test_a_number_in_no_table_is_found(self):
        text = "# A\n7 us [file](../benchmarks/a.json)\n## B\n1,234 us and 3 GiB/s\n```\n5 us\n```\n9 ms\n"
        found = list(measured_check.unlisted("page.md", text, {"3 GiB/s"}))
        self.assertEqual(len(found), 1)
        self.assertIn("page.md: 1,234 us: ", found[0])

    def test_a_result_that_no_document_cites_is_found(self):
        text = "[a](../benchmarks/a.json)\n| `k-1.2` | yes |\nb.json, c.txt\n"
        self.assertEqual(measured_check.uncited(text, ["docs/a.json", "docs/b.json", "docs/k-1.2.json", "docs/c.txt"]),
                         ["docs/b.json", "docs/c.txt"])


if __name__ == "__main__":
    unittest.main()
