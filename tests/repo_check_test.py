"""Goal: repo_check finds what a room of the tree may not include, and what the C++ headers lack, and
nothing else."""

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


class CppHeadersTest(unittest.TestCase):
    C_HEADER = """
/* GPUSHM_API int gpushm_in_a_comment(void); */
GPUSHM_API gpushm_status gpushm_load(gpushm_client* client,
                                     const gpushm_load_options* options);
GPUSHM_API const char* gpushm_name(void);
typedef struct gpushm_load_options {
  size_t struct_size;
  uint32_t format; /* gpushm_format; */
  uint32_t gpu;
  void* const* streams;
  unsigned char type[16];
} gpushm_load_options;
"""

    def lacking(self, cpp_headers):
        return list(repo_check.lacking_in_cpp(self.C_HEADER, cpp_headers))

    def test_what_is_lacking_is_found(self):
        self.assertEqual(self.lacking("gpushm_load(); gpushm_names(); raw.streams = streams;"),
                         ["gpushm_name", "gpushm_load_options.format"])

    def test_what_is_there_is_not(self):
        self.assertEqual(self.lacking("gpushm_load(); gpushm_name(); options.streams = streams; "
                                      "raw.format = options.format;"), [])


if __name__ == "__main__":
    unittest.main()
