"""Goal: repo_check's rule for includes finds what a room of the tree may not use, and nothing else."""

import unittest

import repo_check


def breaches(name, include):
    return list(repo_check.check_includes(name, ["// A comment.", f'#include "{include}"']))


class IncludesTest(unittest.TestCase):
    def test_what_a_room_may_not_use_is_found(self):
        for name, include in [
                ("platform/daemon/log.cc", "contract/limits.h"),
                ("contract/sync/page.h", "platform/driver/device.h"),
                ("contract/sync/page.h", "runtime/client/client.h"),
                ("runtime/client/client.cc", "platform/daemon/log.h"),
                ("sidecar/injector/plan.cc", "sidecar/broker/ledger.h"),
                ("sidecar/broker/broker.cc", "runtime/client/client.h"),
                ("plugin/node.cc", "sidecar/broker/ledger.h"),
                ("plugin/node_test.cc", "tests/bench/harness.h"),
                ("simulator/cuda/memory.cc", "contract/limits.h")]:
            with self.subTest(name=name, include=include):
                found = breaches(name, include)
                self.assertEqual(len(found), 1)
                self.assertTrue(found[0].startswith(f"{name}:2: "), found)
                self.assertIn(include, found[0])

    def test_what_it_may_use_is_not(self):
        for name, include in [
                ("platform/daemon/log.cc", "platform/base/clock.h"),
                ("contract/annotations/keys.h", "platform/yaml/keyed_reader.h"),
                ("runtime/ctl/app.cc", "runtime/client/client.h"),
                ("runtime/ctl/app.cc", "gpushm/gpushm.h"),
                ("plugin/node.cc", "contract/limits.h"),
                ("tests/hostile/main.cc", "sidecar/broker/ledger.h")]:
            with self.subTest(name=name, include=include):
                self.assertEqual(breaches(name, include), [])


if __name__ == "__main__":
    unittest.main()
