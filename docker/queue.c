/* Requests for any free worker, on the GPU. A gateway puts them into a queue, each goes to one
 * worker, and each worker has a ring for its answers. A request that a worker had and did not
 * answer before it died is delivered again. So a request may be answered twice, but is never
 * lost. Runs until SIGTERM.
 *
 * usage: gpushm-queue-app --gateway QUEUE ANSWERS ... [--requests N] [--per-second N]
 *        gpushm-queue-app --worker QUEUE ANSWERS [--busy-ms N]
 *   --requests N     ends when N requests are answered
 *   --per-second N   number of requests that it generates (100)
 *   --busy-ms N      how long a request keeps a worker busy (10) */
#include <inttypes.h>

#include "app.h"

enum { kSlots = 16, kItemBytes = 65536, kRemembered = 1024, kMostWorkers = 16 };

/* Travels with a request and its answer. */
typedef struct Note {
  uint64_t gateway; /* Generation of its queue, because answers may outlive the gateway that sent
                     * the request. */
  uint64_t request;
  uint32_t delivery; /* In an answer: how often the request had been delivered to a worker. */
} Note;
_Static_assert(sizeof(Note) <= GPUSHM_METADATA_BYTES, "a note fits a frame's metadata");

/* What the gateway knows of a request, until kRemembered later ones have been put. */
typedef struct Request {
  uint64_t number;
  uint32_t answers;
  uint32_t deliveries;
} Request;

static gpushm_client* client;
static CUstream stream;
static Request remembered[kRemembered];
static uint64_t asked, answered, again, twice, wrong, lost;

static gpushm_ring* OpenWriter(const char* name, gpushm_ring_policy policy) {
  gpushm_ring* ring = NULL;
  gpushm_ring_options options;
  GPUSHM_INIT(&options);
  options.role = GPUSHM_RING_WRITER;
  options.policy = policy;
  options.frames = kSlots;
  options.frame_bytes = kItemBytes;
  /* Answers wait for the gateway, also for one that is restarted. */
  options.need_readers = policy == GPUSHM_RING_BACK_PRESSURE;
  options.timeout_ms = kOpenMs;
  Check(gpushm_ring_open(client, name, &options, &ring));
  return ring;
}

/* Whether there is a free slot. */
static int BeginWrite(gpushm_ring* ring, gpushm_frame* frame, int64_t timeout_ms) {
  GPUSHM_INIT(frame);
  const gpushm_status status = gpushm_ring_begin_write(ring, frame, timeout_ms);
  if (!NotYet(status)) Check(status);
  return status == GPUSHM_OK;
}

/* ---- gateway */

static void Ask(gpushm_ring* queue, uint64_t gateway) {
  gpushm_frame frame;
  if (!BeginWrite(queue, &frame, GPUSHM_DONT_WAIT)) return; /* All workers have enough to do. */
  const Note note = {.gateway = gateway, .request = ++asked, .delivery = 0};
  memcpy(frame.metadata, &note, sizeof note);
  frame.bytes = (1 + asked % 64) * (kItemBytes / 64);
  CALL(cuMemsetD32Async, frame.address, (uint32_t)asked, frame.bytes / sizeof(uint32_t), stream);
  Check(gpushm_ring_end_write(queue, &frame, stream));

  Request* const request = &remembered[asked % kRemembered];
  if (request->number != 0 && request->answers == 0) ++lost;
  *request = (Request){.number = asked, .answers = 0, .deliveries = 0};
}

/* A second answer is only correct if the request was delivered a second time. */
static void Record(const Note* note, int right) {
  Request* const request = &remembered[note->request % kRemembered];
  if (note->delivery > 1) ++again;
  if (request->number != note->request) return; /* The request is too old. */
  if (note->delivery > request->deliveries) request->deliveries = note->delivery;
  ++request->answers;
  if (request->answers == 1) ++answered;
  if (request->answers > 1) ++twice;
  if (!right || request->answers > request->deliveries) ++wrong;
}

/* Whether there was an answer. */
static int TakeAnswer(Reader* answers, uint64_t gateway) {
  static uint32_t* seen; /* Memory to which the GPU can write. */
  if (seen == NULL) CALL(cuMemHostAlloc, (void**)&seen, kItemBytes, 0);
  gpushm_frame frame;
  if (!BeginRead(answers, &frame, GPUSHM_DONT_WAIT)) return 0;
  CALL(cuMemcpyDtoHAsync, seen, frame.address, frame.bytes, stream);
  if (!EndRead(answers, &frame)) return 1; /* Its worker died: another one gets the request. */
  CALL(cuStreamSynchronize, stream);
  Note note;
  memcpy(&note, frame.metadata, sizeof note);
  if (note.gateway != gateway) return 1;
  int right = frame.bytes == (1 + note.request % 64) * (kItemBytes / 64);
  for (uint64_t i = 0; i < frame.bytes / sizeof *seen; ++i) right &= seen[i] == note.request;
  Record(&note, right);
  return 1;
}

static void Tell(const char* name) {
  printf("%s: %" PRIu64 " asked, %" PRIu64 " answered, %" PRIu64 " delivered again, %" PRIu64
         " answered twice, %" PRIu64 " wrong, %" PRIu64 " lost\n",
         name, asked, answered, again, twice, wrong, lost);
  fflush(stdout);
}

static void RunGateway(const char* name, char** answers_names, int workers, uint64_t requests,
                       int64_t period_ns) {
  Reader answers[kMostWorkers];
  for (int i = 0; i < workers; ++i) answers[i] = (Reader){client, answers_names[i], stream, NULL};
  gpushm_ring* queue = OpenWriter(name, GPUSHM_RING_QUEUE);
  gpushm_ring_info info;
  GPUSHM_INIT(&info);
  Check(gpushm_ring_get_info(queue, &info));
  int64_t due_ns = NowNs();
  int64_t tell_ns = due_ns;
  while (!ended && answered < requests) {
    const int64_t now_ns = NowNs();
    if (asked < requests && now_ns >= due_ns) {
      Ask(queue, info.generation);
      due_ns += period_ns;
    }
    int took = 0;
    for (int i = 0; i < workers; ++i) took |= TakeAnswer(&answers[i], info.generation);
    if (now_ns >= tell_ns) {
      Tell(name);
      tell_ns = now_ns + 1000000000;
    }
    if (!took) poll(NULL, 0, 1);
  }
  Tell(name);
  for (int i = 0; i < workers; ++i) {
    if (answers[i].ring != NULL) CloseRing(answers[i].ring, stream);
  }
  CloseRing(queue, stream);
}

/* ---- worker */

/* The request is given back after its answer: if the worker dies in between, it is delivered
 * again. */
static void Answer(Reader* queue, gpushm_ring* answers, const gpushm_frame* request, int busy_ms) {
  gpushm_frame answer;
  Note note;
  memcpy(&note, request->metadata, sizeof note);
  note.delivery = request->delivery;
  if (note.delivery > 1) {
    printf("%s: request %" PRIu64 ", delivery %" PRIu32 "\n", queue->name, note.request,
           note.delivery);
    fflush(stdout);
  }
  poll(NULL, 0, busy_ms);
  while (!BeginWrite(answers, &answer, kLookMs)) {
    if (ended) exit(0); /* No gateway takes the answer. */
  }
  memcpy(answer.metadata, &note, sizeof note);
  answer.bytes = request->bytes;
  CALL(cuMemcpyDtoDAsync, answer.address, request->address, request->bytes, stream);
  Check(gpushm_ring_end_write(answers, &answer, stream));
  EndRead(queue, request);
}

static void RunWorker(const char* name, const char* answers_name, int busy_ms) {
  gpushm_ring* answers = OpenWriter(answers_name, GPUSHM_RING_BACK_PRESSURE);
  Reader queue = {client, name, stream, NULL};
  while (!ended) {
    gpushm_frame request;
    if (BeginRead(&queue, &request, kLookMs)) Answer(&queue, answers, &request, busy_ms);
  }
  if (queue.ring != NULL) CloseRing(queue.ring, stream);
  CloseRing(answers, stream);
}

int main(int count, char** words) {
  char** const names = words + 2;
  int named = 0;
  while (2 + named < count && names[named][0] != '-') ++named;
  const int gateway = named >= 2 && strcmp(words[1], "--gateway") == 0;
  const int worker = named == 2 && strcmp(words[1], "--worker") == 0;
  const int64_t per_second = Number(count, words, "--per-second", 100);
  if (!(gateway || worker) || named > 1 + kMostWorkers || per_second < 1) {
    Fail(
        "usage: gpushm-queue-app --gateway QUEUE ANSWERS ... [--requests N] [--per-second N]\n"
        "       gpushm-queue-app --worker QUEUE ANSWERS [--busy-ms N]");
  }
  EndOnSignals();
  MakeContext(0);
  CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  client = OpenClient();
  if (gateway) {
    RunGateway(names[0], names + 1, named - 1,
               (uint64_t)Number(count, words, "--requests", INT64_MAX), 1000000000 / per_second);
  } else {
    RunWorker(names[0], names[1], (int)Number(count, words, "--busy-ms", 10));
  }
  gpushm_close(client);
  return 0;
}
