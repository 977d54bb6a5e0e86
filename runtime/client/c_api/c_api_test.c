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
#define CHECK_NAME(name) CHECK(strcmp(gpushm_status_name(GPUSHM_##name), #name) == 0)
  CHECK_NAME(OK);
  CHECK_NAME(INVALID_ARGUMENT);
  CHECK_NAME(NOT_FOUND);
  CHECK_NAME(ALREADY_EXISTS);
  CHECK_NAME(DENIED);
  CHECK_NAME(EXHAUSTED);
  CHECK_NAME(CONTENDED);
  CHECK_NAME(TIMEOUT);
  CHECK_NAME(INCOMPATIBLE);
  CHECK_NAME(CORRUPT);
  CHECK_NAME(UNAVAILABLE);
  CHECK_NAME(ORPHANED);
  CHECK_NAME(STALE);
  CHECK_NAME(PEER_DIED);
  CHECK_NAME(DEVICE_LOST);
  CHECK_NAME(BUSY);
  CHECK_NAME(UNSUPPORTED);
  CHECK_NAME(DRIVER);
  CHECK_NAME(SYSTEM);
  CHECK_NAME(FORKED);
  CHECK_NAME(LOADING);
  CHECK_NAME(INTERNAL);
  CHECK_NAME(ENDED);
  CHECK(gpushm_version() ==
        GPUSHM_VERSION_MAJOR * 10000 + GPUSHM_VERSION_MINOR * 100 + GPUSHM_VERSION_PATCH);
  CHECK(gpushm_attachment_detach(NULL, NULL) == GPUSHM_OK);
  gpushm_close(NULL);
  options.pod_uid = "../etc";
  CHECK(gpushm_open(&options, &client) == GPUSHM_INVALID_ARGUMENT);
  return 0;
}
