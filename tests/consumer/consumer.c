/* The C ABI as an external project uses it: without a broker, every call must report the error. */
#include <gpushm/gpushm.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  gpushm_open_options options;
  gpushm_client* client = NULL;
  GPUSHM_INIT(&options);
  options.folder = "/nonexistent/gpushm";
  options.timeout_ms = GPUSHM_DONT_WAIT;

  if (gpushm_version() !=
      GPUSHM_VERSION_MAJOR * 10000 + GPUSHM_VERSION_MINOR * 100 + GPUSHM_VERSION_PATCH) {
    fprintf(stderr, "header and library differ: %d\n", gpushm_version());
    return 1;
  }
  if (gpushm_open(&options, &client) != GPUSHM_UNAVAILABLE) {
    fprintf(stderr, "expected UNAVAILABLE, got %s\n", gpushm_last_error()->text);
    return 1;
  }
  if (strlen(gpushm_last_error()->remedy) == 0) {
    fprintf(stderr, "no remedy in: %s\n", gpushm_last_error()->text);
    return 1;
  }
  printf("C consumer: %s\n", gpushm_last_error()->text);
  gpushm_close(NULL);
  return 0;
}
