/* Shared by the demo's applications: how they end, their options, the driver (which comes into
 * the container with the GPU and is found at run time), and reading rings whose writers come and
 * go. */
#ifndef GPUSHM_DOCKER_APP_H_
#define GPUSHM_DOCKER_APP_H_

#include <cuda.h>
#include <dlfcn.h>
#include <gpushm/sync.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* kOpenMs: how long to wait until what an application needs exists. kLookMs: how often it checks
 * whether it must end. */
enum { kOpenMs = 60000, kLookMs = 500 };

static volatile sig_atomic_t ended;

static void End(int signal_number) {
  (void)signal_number;
  ended = 1;
}

/* PID 1 of a container has no default actions. */
static void EndOnSignals(void) {
  signal(SIGTERM, End);
  signal(SIGINT, End);
}

static void Fail(const char* what) {
  fprintf(stderr, "%s\n", what);
  exit(1);
}

static void Check(gpushm_status status) {
  if (status != GPUSHM_OK) Fail(gpushm_last_error()->text);
}

/* The number after the last `option`, if the words contain it. */
static inline int64_t Number(int count, char** words, const char* option, int64_t otherwise) {
  int64_t number = otherwise;
  for (int i = 1; i + 1 < count; ++i) {
    if (strcmp(words[i], option) == 0) number = atoll(words[i + 1]);
  }
  return number;
}

/* CLOCK_MONOTONIC, which all containers of a node share. */
static inline int64_t NowNs(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void* driver;

/* The driver's functions by the names that cuda.h gives them. */
#define TEXT_OF(name) #name
#define CALL(name, ...)                                                                   \
  do {                                                                                    \
    __typeof__(&name) function = (__typeof__(&name))dlsym(driver, TEXT_OF(name));         \
    if (function == NULL || function(__VA_ARGS__) != CUDA_SUCCESS) Fail(#name " failed"); \
  } while (0)

static CUcontext context;

/* An application's own work needs a context of the GPU that it uses, current on each of its
 * threads; attaching needs none. `ordinal`: the GPU's, in this process. */
static void MakeContext(int ordinal) {
  CUdevice device;
  driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == NULL) Fail(dlerror());
  CALL(cuInit, 0);
  CALL(cuDeviceGet, &device, ordinal);
  CALL(cuDevicePrimaryCtxRetain, &context, device);
  CALL(cuCtxSetCurrent, context);
}

static inline gpushm_client* OpenClient(void) {
  gpushm_client* client = NULL;
  gpushm_open_options options;
  GPUSHM_INIT(&options);
  options.timeout_ms = kOpenMs;
  Check(gpushm_open(&options, &client));
  return client;
}

/* ---- reading a ring or queue, from one writer after another */

typedef struct Reader {
  gpushm_client* client;
  const char* name;
  CUstream stream;
  gpushm_ring* ring; /* NULL while none exists with a living writer. */
} Reader;

static inline void CloseRing(gpushm_ring* ring, CUstream stream) {
  CALL(cuStreamSynchronize, stream);
  Check(gpushm_ring_close(ring));
}

/* Whether something merely does not exist yet. */
static inline int NotYet(gpushm_status status) {
  return status == GPUSHM_TIMEOUT || status == GPUSHM_NOT_FOUND || status == GPUSHM_BUSY;
}

/* Whether the other end has closed it or died. */
static inline int IsOver(gpushm_status status) {
  return status == GPUSHM_ENDED || status == GPUSHM_PEER_DIED;
}

/* Whether there is a frame. If its writer has gone, the ring is closed and the next one is
 * opened. */
static inline int BeginRead(Reader* reader, gpushm_frame* frame, int64_t timeout_ms) {
  gpushm_status status;
  if (reader->ring == NULL) {
    gpushm_ring_options options;
    GPUSHM_INIT(&options);
    options.timeout_ms = timeout_ms;
    status = gpushm_ring_open(reader->client, reader->name, &options, &reader->ring);
    if (NotYet(status)) return 0;
    Check(status);
  }
  GPUSHM_INIT(frame);
  status = gpushm_ring_begin_read(reader->ring, reader->stream, frame, timeout_ms);
  if (status == GPUSHM_OK) return 1;
  if (IsOver(status) || status == GPUSHM_ORPHANED) {
    printf("%s: its writer has gone\n", reader->name);
    fflush(stdout);
    CloseRing(reader->ring, reader->stream);
    reader->ring = NULL;
  } else if (!NotYet(status)) {
    Check(status);
  }
  return 0;
}

/* Whether the frame is whole; if not, results made from it are invalid. */
static inline int EndRead(Reader* reader, const gpushm_frame* frame) {
  const gpushm_status status = gpushm_ring_end_read(reader->ring, reader->stream, frame, kOpenMs);
  if (!IsOver(status)) Check(status);
  return status == GPUSHM_OK;
}

#endif /* GPUSHM_DOCKER_APP_H_ */
