/* The header and the library, used from C11 without a broker. */
#include <stdio.h>
#include <string.h>

#include "gpushm/gpushm.h"

#define CHECK(holds)                                              \
  do {                                                            \
    if (!(holds)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #holds); \
      return 1;                                                   \
    }                                                             \
  } while (0)

int main(void) {
  gpushm_open_options options;
  gpushm_client* client = NULL;
  GPUSHM_INIT(&options);
  CHECK(options.struct_size == sizeof options && options.folder == NULL);
  options.folder = "/nonexistent";
  options.timeout_ms = GPUSHM_DONT_WAIT;
  CHECK(gpushm_last_error()->status == GPUSHM_OK);
  CHECK(gpushm_open(&options, &client) == GPUSHM_UNAVAILABLE);
  CHECK(client == NULL);
  CHECK(gpushm_last_error()->status == GPUSHM_UNAVAILABLE);
  CHECK(strstr(gpushm_last_error()->text, "Remedy: ") != NULL);
  CHECK(strcmp(gpushm_status_name(GPUSHM_NOT_FOUND), "NOT_FOUND") == 0);
  CHECK(gpushm_version() == 100);
  CHECK(gpushm_attachment_detach(NULL, NULL) == GPUSHM_OK);
  gpushm_close(NULL);
  options.pod_uid = "../etc";
  CHECK(gpushm_open(&options, &client) == GPUSHM_INVALID_ARGUMENT);
  return 0;
}
