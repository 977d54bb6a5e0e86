/* New weights behind the same name, on the GPU. A trainer publishes a new generation with each
 * step; a rollout waits for it, takes it and releases the old one. A rollout that is busy with
 * the old one keeps it: with room for two generations, the trainer waits for the slowest
 * rollout, and every rollout gets every step. Runs until SIGTERM.
 *
 * usage: gpushm-weights-app --trainer NAME [--steps N] [--every-ms N] [--patience-ms N]
 *        gpushm-weights-app --rollout NAME [--busy-ms N]
 *   --steps N         ends after N steps
 *   --every-ms N      duration of a step (2000)
 *   --patience-ms N   how long it waits for room before it ends with the error (60000)
 *   --busy-ms N       how long a rollout works between two checks for new weights (100) */
#include <inttypes.h>

#include "app.h"

enum { kChunkBytes = 1 << 20 };

static gpushm_client* client;
static CUstream stream;

/* The first word; every word of a step's weights is the step's number. */
static uint32_t StepOf(gpushm_attachment* weights) {
  uint32_t step;
  CALL(cuMemcpyDtoH, &step, gpushm_attachment_address(weights), sizeof step);
  return step;
}

static int AreWhole(gpushm_attachment* weights, uint32_t step) {
  static uint32_t chunk[kChunkBytes / sizeof(uint32_t)];
  int whole = 1;
  for (uint64_t at = 0; at < gpushm_attachment_size(weights); at += kChunkBytes) {
    const uint64_t left = gpushm_attachment_size(weights) - at;
    const size_t bytes = left < kChunkBytes ? left : kChunkBytes;
    CALL(cuMemcpyDtoH, chunk, gpushm_attachment_address(weights) + at, bytes);
    for (size_t i = 0; i < bytes / sizeof *chunk; ++i) whole &= chunk[i] == step;
  }
  return whole;
}

static uint64_t GenerationOf(gpushm_attachment* weights) {
  gpushm_attachment_info info;
  GPUSHM_INIT(&info);
  Check(gpushm_attachment_get_info(weights, &info));
  return info.generation;
}

/* ---- trainer */

/* Continues where an earlier trainer ended. */
static uint32_t LastStep(const char* name) {
  gpushm_attachment* weights = NULL;
  gpushm_attach_options options;
  GPUSHM_INIT(&options);
  options.timeout_ms = kOpenMs;
  Check(gpushm_attach(client, name, &options, &weights));
  const uint32_t step = StepOf(weights);
  Check(gpushm_attachment_detach(weights, NULL));
  return step;
}

/* Memory for a new generation, which nobody sees yet. There is room when no rollout holds the
 * generation before the last one any more. NULL: the trainer must end. */
static gpushm_attachment* Replace(const char* name, uint32_t step, int64_t patience_ms) {
  gpushm_attachment* weights = NULL;
  gpushm_create_options options;
  GPUSHM_INIT(&options);
  options.unpublished = 1;
  const int64_t end_ns = NowNs() + patience_ms * 1000000;
  for (int waits = 0; !ended; poll(NULL, 0, 1)) {
    const gpushm_status status = gpushm_replace(client, name, 0, &options, &weights);
    if (status == GPUSHM_OK) return weights;
    if (status != GPUSHM_EXHAUSTED || NowNs() > end_ns) Check(status);
    if (!waits) printf("%s: step %" PRIu32 " waits for room\n", name, step);
    fflush(stdout);
    waits = 1;
  }
  return NULL;
}

static void Train(const char* name, int64_t steps, int every_ms, int64_t patience_ms) {
  uint32_t step = LastStep(name);
  for (int64_t done = 0; !ended && done < steps; ++done) {
    gpushm_attachment* weights = Replace(name, ++step, patience_ms);
    if (weights == NULL) return;
    CALL(cuMemsetD32Async, gpushm_attachment_address(weights), step,
         gpushm_attachment_size(weights) / sizeof step, stream);
    CALL(cuStreamSynchronize, stream);
    Check(gpushm_attachment_publish(weights));
    printf("%s: step %" PRIu32 " is generation %" PRIu64 "\n", name, step, GenerationOf(weights));
    fflush(stdout);
    Check(gpushm_attachment_detach(weights, NULL));
    poll(NULL, 0, every_ms);
  }
}

/* ---- rollout */

/* The next weights after generation `seen`; NULL: there are none for some time. */
static gpushm_attachment* TakeNext(const char* name, uint64_t seen) {
  gpushm_info info;
  GPUSHM_INIT(&info);
  gpushm_wait_options wait;
  GPUSHM_INIT(&wait);
  wait.timeout_ms = kLookMs;
  const gpushm_status waited = gpushm_wait(client, name, seen + 1, &wait, &info);
  if (waited == GPUSHM_TIMEOUT) return NULL;
  Check(waited);
  gpushm_attachment* weights = NULL;
  gpushm_attach_options options;
  GPUSHM_INIT(&options);
  options.generation = info.generation;
  const gpushm_status attached = gpushm_attach(client, name, &options, &weights);
  if (attached == GPUSHM_STALE) return NULL; /* There are newer ones already. */
  Check(attached);
  return weights;
}

static void RollOut(const char* name, int busy_ms) {
  gpushm_attachment* weights = NULL;
  uint64_t generation = 0;
  uint64_t taken = 0;
  uint64_t skipped = 0;
  uint64_t wrong = 0;
  uint32_t step = 0;
  while (!ended) {
    gpushm_attachment* const next = TakeNext(name, generation);
    if (next != NULL) {
      const uint32_t last = step;
      step = StepOf(next);
      if (weights != NULL && step > last + 1) skipped += step - last - 1;
      if (weights != NULL) Check(gpushm_attachment_detach(weights, NULL));
      weights = next;
      generation = GenerationOf(weights);
      ++taken;
    }
    if (weights == NULL) continue;
    poll(NULL, 0, busy_ms);
    wrong += !AreWhole(weights, step); /* The trainer may be any number of steps ahead. */
    if (next == NULL) continue;
    printf("%s: step %" PRIu32 ", generation %" PRIu64 ", %" PRIu64 " taken, %" PRIu64
           " skipped, %" PRIu64 " wrong\n",
           name, step, generation, taken, skipped, wrong);
    fflush(stdout);
  }
  if (weights != NULL) Check(gpushm_attachment_detach(weights, NULL));
}

int main(int count, char** words) {
  const int trainer = count > 2 && strcmp(words[1], "--trainer") == 0;
  const int rollout = count > 2 && strcmp(words[1], "--rollout") == 0;
  if (!(trainer || rollout)) {
    Fail(
        "usage: gpushm-weights-app --trainer NAME [--steps N] [--every-ms N] [--patience-ms N]\n"
        "       gpushm-weights-app --rollout NAME [--busy-ms N]");
  }
  EndOnSignals();
  MakeContext(0);
  CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  client = OpenClient();
  if (trainer) {
    Train(words[2], Number(count, words, "--steps", INT64_MAX),
          (int)Number(count, words, "--every-ms", 2000),
          Number(count, words, "--patience-ms", kOpenMs));
  } else {
    RollOut(words[2], (int)Number(count, words, "--busy-ms", 100));
  }
  gpushm_close(client);
  return 0;
}
