/* A stage of a pipeline that passes frames of HD video (NV12) on, on the GPU: a decoder, which
 * only writes rings, a model, which reads and writes, or a post-processor, which only reads.
 * Runs until SIGTERM. A stage whose writer ends waits for the next one; other errors end it.
 *
 * usage: gpushm-pipeline-app [--in RING] [--out RING] [OPTION ...]
 *   --in RING        reads frames; without --out, checks all bytes and reports them each second
 *   --out RING       writes frames; without --in, it is the decoder
 *   --streams N      number of videos, in the rings RING-0, RING-1 ... (1, in RING)
 *   --size WxH       size of a frame (1920x1080)
 *   --keep-all       written frames wait for their reader; otherwise a slow reader loses frames
 *   --once           ends when its writers have ended
 * for a post-processor:
 *   --json           the last line is JSON: frames, lost ones, wrong ones, their latency in ms
 * for a decoder:
 *   --raw FILE       frames as `ffmpeg -pix_fmt nv12 -f rawvideo` writes them, "-" for stdin; a
 *                    file is repeated. Several: the videos share them. None: synthetic frames
 *   --per-second N   frames of each video (30)
 *   --frames N       ends after N frames of each
 *
 * A frame's latency is the time from the decoder's end_write until the post-processor's stream
 * has read all of it. */
#define _GNU_SOURCE /* pthread_timedjoin_np */
#include <inttypes.h>
#include <pthread.h>

#include "app.h"

enum { kSlots = 4, kMostStreams = 64 };

/* Travels with each frame. */
typedef struct Note {
  int64_t decoded_ns; /* CLOCK_MONOTONIC, which all containers of a node share. */
  uint64_t number;    /* Of the video's frames, from 0; lost frames have a number, too. */
  uint64_t hash;      /* Of all bytes. */
  int32_t video;
  uint32_t made_up;
} Note;
_Static_assert(sizeof(Note) <= GPUSHM_METADATA_BYTES, "a note fits a frame's metadata");

/* One video in this stage. */
typedef struct Video {
  char in_name[GPUSHM_NAME_BYTES];
  char out_name[GPUSHM_NAME_BYTES];
  Reader in;
  gpushm_ring* out;
  CUstream stream;
  unsigned char* host; /* A frame in memory that the GPU can read and write. */
  uint64_t next;       /* Number of the next frame; 0: any. */
} Video;

/* A post-processor's results, guarded by the mutex. */
typedef struct Found {
  uint64_t frames, lost, wrong, made_up;
  int64_t longest_ns;
} Found;

static gpushm_client* client;
static Video videos[kMostStreams];
static int streams = 1;
static FILE* raw[kMostStreams];
static int raws;
static size_t frame_bytes;
static uint64_t frames_of_each = UINT64_MAX;
static int64_t period_ns;
static int keep_all, once, json;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static Found lately, in_all;
static int64_t* ways_ns; /* For JSON: those of all frames. */
static size_t ways_room;

static gpushm_ring* OpenWriter(const char* name) {
  gpushm_ring* ring = NULL;
  gpushm_ring_options options;
  GPUSHM_INIT(&options);
  options.role = GPUSHM_RING_WRITER;
  options.policy = keep_all ? GPUSHM_RING_BACK_PRESSURE : GPUSHM_RING_OVERWRITE_OLDEST;
  options.need_readers = keep_all ? 1 : 0;
  options.frames = kSlots;
  options.frame_bytes = frame_bytes;
  options.timeout_ms = kOpenMs;
  Check(gpushm_ring_open(client, name, &options, &ring));
  return ring;
}

/* Whether there is a slot; if readers hold them all, the frame is dropped. */
static int BeginWrite(gpushm_ring* ring, gpushm_frame* frame) {
  gpushm_status status;
  GPUSHM_INIT(frame);
  do {
    status = gpushm_ring_begin_write(ring, frame, kLookMs);
  } while (status == GPUSHM_TIMEOUT && !ended);
  if (!NotYet(status)) Check(status);
  frame->bytes = frame_bytes;
  return status == GPUSHM_OK;
}

static uint64_t Hash(const unsigned char* bytes, size_t count) {
  uint64_t lanes[4] = {1, 2, 3, 4};
  for (size_t at = 0; at < count; at += sizeof lanes) {
    uint64_t words[4] = {0};
    memcpy(words, bytes + at, count - at < sizeof words ? count - at : sizeof words);
    for (int i = 0; i < 4; ++i) lanes[i] = (lanes[i] ^ words[i]) * 0x9e3779b97f4a7c15u;
  }
  return lanes[0] ^ lanes[1] >> 1 ^ lanes[2] >> 2 ^ lanes[3] >> 3;
}

/* ---- decoder: a thread for each source, which may serve several videos */

/* Whether there is another frame. */
static int NextFrame(FILE* from, unsigned char* frame, uint64_t number) {
  if (from != NULL) {
    if (fread(frame, frame_bytes, 1, from) == 1) return 1;
    return fseek(from, 0, SEEK_SET) == 0 && fread(frame, frame_bytes, 1, from) == 1;
  }
  memset(frame, (int)(number % 256), frame_bytes);
  memcpy(frame, &number, sizeof number);
  return 1;
}

static void WriteFrame(Video* video, CUstream stream, const unsigned char* bytes, Note* note) {
  gpushm_frame frame;
  if (!BeginWrite(video->out, &frame)) return;
  CALL(cuMemcpyHtoDAsync, frame.address, bytes, frame_bytes, stream);
  note->decoded_ns = NowNs();
  memcpy(frame.metadata, note, sizeof *note);
  Check(gpushm_ring_end_write(video->out, &frame, stream));
}

static void* Decode(void* first) {
  const int source = (int)((Video*)first - videos);
  const int sources = raws > 0 ? raws : streams;
  const Video* own = &videos[source];
  CALL(cuCtxSetCurrent, context);
  const int64_t start_ns = NowNs() + period_ns;
  for (uint64_t number = 0; !ended && number < frames_of_each; ++number) {
    if (!NextFrame(raw[source], own->host, number)) break;
    Note note = {.number = number, .hash = Hash(own->host, frame_bytes), .made_up = raws == 0};
    for (int i = source; i < streams && !ended; i += sources) {
      note.video = i;
      /* Cameras do not wait for each other. */
      const int64_t due_ns = start_ns + (int64_t)number * period_ns + i * period_ns / streams;
      const struct timespec due = {.tv_sec = due_ns / 1000000000, .tv_nsec = due_ns % 1000000000};
      clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
      WriteFrame(&videos[i], own->stream, own->host, &note);
    }
    CALL(cuStreamSynchronize, own->stream); /* The next frame uses the same memory. */
  }
  return NULL;
}

/* ---- model and post-processor: a thread for each video */

/* Only the stream waits for the GPU: it does frame, work and result one after the other. */
static void Infer(Video* video, const gpushm_frame* frame) {
  gpushm_frame result;
  if (!BeginWrite(video->out, &result)) {
    EndRead(&video->in, frame);
    return;
  }
  memcpy(result.metadata, frame->metadata, sizeof result.metadata);
  CALL(cuMemcpyDtoDAsync, result.address, frame->address, frame->bytes, video->stream);
  if (EndRead(&video->in, frame)) {
    Check(gpushm_ring_end_write(video->out, &result, video->stream));
  } else {
    Check(gpushm_ring_abandon_write(video->out));
  }
}

static void Count(Found* found, const Note* note, uint64_t lost, int wrong, int64_t way_ns) {
  ++found->frames;
  found->lost += lost;
  found->wrong += (uint64_t)wrong;
  found->made_up += note->made_up;
  if (way_ns > found->longest_ns) found->longest_ns = way_ns;
}

static void Process(Video* video, const gpushm_frame* frame) {
  Note note;
  memcpy(&note, frame->metadata, sizeof note);
  CALL(cuMemcpyDtoHAsync, video->host, frame->address, frame_bytes, video->stream);
  if (!EndRead(&video->in, frame)) return;
  CALL(cuStreamSynchronize, video->stream);
  const int64_t way_ns = NowNs() - note.decoded_ns;
  const int wrong = note.video != video - videos || frame->bytes != frame_bytes ||
                    Hash(video->host, frame_bytes) != note.hash;
  const uint64_t lost =
      video->next != 0 && note.number > video->next ? note.number - video->next : 0;
  video->next = note.number + 1;

  pthread_mutex_lock(&mutex);
  if (json && in_all.frames == ways_room) {
    ways_room = ways_room * 2 + 1024;
    ways_ns = realloc(ways_ns, ways_room * sizeof *ways_ns);
    if (ways_ns == NULL) Fail("no memory");
  }
  if (json) ways_ns[in_all.frames] = way_ns;
  Count(&lately, &note, lost, wrong, way_ns);
  Count(&in_all, &note, lost, wrong, way_ns);
  pthread_mutex_unlock(&mutex);
}

static void* ReadAll(void* argument) {
  Video* const video = argument;
  int had_writer = 0;
  CALL(cuCtxSetCurrent, context);
  while (!ended && !(once && had_writer && video->in.ring == NULL)) {
    gpushm_frame frame;
    const int there_is_one = BeginRead(&video->in, &frame, kLookMs);
    had_writer |= video->in.ring != NULL;
    if (!there_is_one) continue;
    if (video->out != NULL) {
      Infer(video, &frame);
    } else {
      Process(video, &frame);
    }
  }
  return NULL;
}

/* ---- reports */

static void Tell(const char* name) {
  pthread_mutex_lock(&mutex);
  const Found found = lately;
  lately = (Found){0};
  pthread_mutex_unlock(&mutex);
  if (found.frames == 0) return;
  printf("%s: %" PRIu64 " frames, %" PRIu64 " lost, %" PRIu64
         " wrong, at most %.1f ms on their way%s\n",
         name, found.frames, found.lost, found.wrong, (double)found.longest_ns / 1e6,
         found.made_up > 0 ? " (synthetic)" : "");
  fflush(stdout);
}

static int Compare(const void* a, const void* b) {
  const int64_t left = *(const int64_t*)a;
  const int64_t right = *(const int64_t*)b;
  return (left > right) - (left < right);
}

static double WayMs(double part) {
  if (in_all.frames == 0) return 0;
  return (double)ways_ns[(size_t)(part * (double)(in_all.frames - 1))] / 1e6;
}

static void TellJson(void) {
  if (in_all.frames > 0) qsort(ways_ns, in_all.frames, sizeof *ways_ns, Compare);
  printf("{\"streams\": %d, \"frame_bytes\": %zu, \"synthetic\": %s, \"frames\": %" PRIu64
         ", \"lost\": %" PRIu64 ", \"wrong\": %" PRIu64
         ", \"way_ms\": {\"p50\": %.3f, \"p99\": %.3f, \"max\": %.3f}}\n",
         streams, frame_bytes, in_all.made_up > 0 ? "true" : "false", in_all.frames, in_all.lost,
         in_all.wrong, WayMs(0.5), WayMs(0.99), WayMs(1));
}

/* ---- the stage */

static const char* Text(int count, char** words, const char* option) {
  const char* text = NULL;
  for (int i = 1; i + 1 < count; ++i) {
    if (strcmp(words[i], option) == 0) text = words[i + 1];
  }
  return text;
}

static int Has(int count, char** words, const char* option) {
  int has = 0;
  for (int i = 1; i < count; ++i) has |= strcmp(words[i], option) == 0;
  return has;
}

static void ReadOptions(int count, char** words) {
  unsigned width = 1920;
  unsigned height = 1080;
  const char* size = Text(count, words, "--size");
  const int64_t per_second = Number(count, words, "--per-second", 30);
  streams = (int)Number(count, words, "--streams", 1);
  frames_of_each = (uint64_t)Number(count, words, "--frames", INT64_MAX);
  keep_all = Has(count, words, "--keep-all");
  once = Has(count, words, "--once");
  json = Has(count, words, "--json");
  if (size != NULL && sscanf(size, "%ux%u", &width, &height) != 2) Fail("--size is like 1920x1080");
  if (per_second < 1 || streams < 1 || streams > kMostStreams) Fail("--streams or --per-second");
  period_ns = 1000000000 / per_second;
  frame_bytes = (size_t)width * height * 3 / 2;
  for (int i = 1; i + 1 < count; ++i) {
    if (strcmp(words[i], "--raw") != 0) continue;
    const char* path = words[i + 1];
    if (raws == streams) Fail("more files than videos");
    raw[raws] = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    if (raw[raws++] == NULL) Fail("a file cannot be opened");
  }
}

/* Done before any of them waits: a process whose streams wait may not get any more streams. */
static void PrepareVideo(int i, const char* in_name, const char* out_name) {
  Video* const video = &videos[i];
  const char* const format = streams == 1 ? "%s" : "%s-%d";
  CALL(cuStreamCreate, &video->stream, CU_STREAM_NON_BLOCKING);
  CALL(cuMemHostAlloc, (void**)&video->host, frame_bytes, 0);
  if (in_name != NULL) snprintf(video->in_name, sizeof video->in_name, format, in_name, i);
  if (out_name != NULL) snprintf(video->out_name, sizeof video->out_name, format, out_name, i);
  video->in = (Reader){client, video->in_name, video->stream, NULL};
  if (out_name != NULL) video->out = OpenWriter(video->out_name);
}

/* Whether it ends within a second. */
static int HasEnded(pthread_t thread) {
  struct timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  ++end.tv_sec;
  return pthread_timedjoin_np(thread, NULL, &end) == 0;
}

int main(int count, char** words) {
  const char* in_name = Text(count, words, "--in");
  const char* out_name = Text(count, words, "--out");
  if (in_name == NULL && out_name == NULL) {
    Fail("usage: gpushm-pipeline-app [--in RING] [--out RING] [OPTION ...]: see pipeline.c");
  }
  ReadOptions(count, words);
  EndOnSignals();
  MakeContext(0);
  client = OpenClient();
  for (int i = 0; i < streams; ++i) PrepareVideo(i, in_name, out_name);

  pthread_t threads[kMostStreams];
  const int working = in_name == NULL && raws > 0 ? raws : streams;
  for (int i = 0; i < working; ++i) {
    if (pthread_create(&threads[i], NULL, in_name == NULL ? Decode : ReadAll, &videos[i]) != 0) {
      Fail("no thread");
    }
  }
  for (int i = 0; i < working; ++i) {
    while (!HasEnded(threads[i])) Tell(in_name);
  }
  Tell(in_name);
  for (int i = 0; i < streams; ++i) {
    const int source = in_name == NULL ? i % working : i;
    if (videos[i].in.ring != NULL) CloseRing(videos[i].in.ring, videos[i].stream);
    if (videos[i].out != NULL) CloseRing(videos[i].out, videos[source].stream);
  }
  if (json && in_name != NULL && out_name == NULL) TellJson();
  gpushm_close(client);
  return 0;
}
