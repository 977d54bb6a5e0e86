"""Goal: repo_check finds what the C++ headers lack, and nothing else."""

import unittest

import repo_check


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
