/* A program of version 0.1. It is compiled with the headers of that version and linked with a
 * library that exports the symbols of that version only, then it runs with today's library. It
 * calls every function that version 0.1 had.
 *
 * usage: program_0_1 FILE, with a broker in $GPUSHM_DIR and the driver in $GPUSHM_DRIVER. The
 * program writes and reads FILE. It exits with 0 if every call did what it did in version 0.1. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpushm/gpushm.h"
#include "gpushm/sync.h"

#define CHECK(holds)                                                                 \
  do {                                                                               \
    if (!(holds)) {                                                                  \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #holds,                 \
              gpushm_last_error()->text != NULL ? gpushm_last_error()->text : "OK"); \
      exit(1);                                                                       \
    }                                                                                \
  } while (0)
#define OK(call) CHECK((call) == GPUSHM_OK)

enum { kMiB = 1 << 20, kFrameBytes = 4096, kRoom = 8, kPatienceMs = 20000 };

/* The driver, loaded at run time as applications do that must start without one. */
static void* driver;
static uint64_t memory; /* 2 MiB from cuMemAlloc. */
static void* stream;
static int (*synchronize)(void*);

/* Converts a symbol to a function pointer, which ISO C does not allow directly. */
static void Find(const char* name, void* function) {
  void* const symbol = dlsym(driver, name);
  CHECK(symbol != NULL);
  memcpy(function, &symbol, sizeof symbol);
}

static void LoadDriver(void) {
  char path[4096];
  int (*init)(unsigned);
  int (*retain)(void**, int);
  int (*set_current)(void*);
  int (*allocate)(uint64_t*, size_t);
  int (*create_stream)(void**, unsigned);
  void* context = NULL;
  snprintf(path, sizeof path, "%s/libcuda.so.1", getenv("GPUSHM_DRIVER"));
  driver = dlopen(path, RTLD_NOW);
  CHECK(driver != NULL);
  Find("cuInit", &init);
  Find("cuDevicePrimaryCtxRetain", &retain);
  Find("cuCtxSetCurrent", &set_current);
  Find("cuMemAlloc_v2", &allocate);
  Find("cuStreamCreate", &create_stream);
  Find("cuStreamSynchronize", &synchronize);
  CHECK(init(0) == 0 && retain(&context, 0) == 0 && set_current(context) == 0);
  CHECK(allocate(&memory, 2 * kMiB) == 0);
  CHECK(create_stream(&stream, 1) == 0);
}

static gpushm_client* Open(void) {
  gpushm_client* client = NULL;
  gpushm_open_options options;
  GPUSHM_INIT(&options);
  options.timeout_ms = kPatienceMs;
  OK(gpushm_open(&options, &client));
  return client;
}

static void Errors(void) {
  CHECK(gpushm_version() >= 100);
  CHECK(strcmp(gpushm_status_name(GPUSHM_NOT_FOUND), "NOT_FOUND") == 0);
  CHECK(gpushm_last_error()->status == GPUSHM_OK);
}

static void Buffers(gpushm_client* client, const char* path) {
  gpushm_create_options making;
  gpushm_attach_options reading;
  gpushm_detach_options detaching;
  gpushm_wait_options waiting;
  gpushm_transfer_options transfer;
  gpushm_transfer_result moved;
  gpushm_offer_options offering;
  gpushm_offer_result offered;
  gpushm_attachment_info attached;
  gpushm_broker_info broker;
  gpushm_info info, infos[kRoom];
  gpushm_holder holders[kRoom];
  gpushm_attachment *made = NULL, *held = NULL;
  FILE* file = NULL;
  size_t count = 0;

  GPUSHM_INIT(&making);
  making.writers = GPUSHM_WRITERS_ALL;
  making.on_writer_exit = GPUSHM_KEEP;
  making.unpublished = 1;
  OK(gpushm_create(client, "weights", kMiB, &making, &made));
  CHECK(gpushm_size(made) == kMiB && gpushm_address(made) != 0);
  OK(gpushm_publish(made));
  OK(gpushm_current(made));
  CHECK(gpushm_create(client, "weights", kMiB, &making, &held) == GPUSHM_ALREADY_EXISTS);

  GPUSHM_INIT(&info);
  OK(gpushm_lookup(client, "weights", &info));
  CHECK(info.size_bytes == kMiB && info.transport == GPUSHM_VMM);
  CHECK(info.state == GPUSHM_STATE_READY);
  GPUSHM_INIT(&waiting);
  waiting.timeout_ms = kPatienceMs;
  OK(gpushm_wait(client, "weights", info.generation, &waiting, &info));
  GPUSHM_INIT(&infos[0]);
  OK(gpushm_list(client, infos, kRoom, &count));
  CHECK(count == 1 && strcmp(infos[0].name, "weights") == 0);

  GPUSHM_INIT(&reading);
  reading.access = GPUSHM_READ;
  OK(gpushm_attach(client, "weights", &reading, &held));
  GPUSHM_INIT(&attached);
  OK(gpushm_attachment_get_info(held, &attached));
  CHECK(attached.access == GPUSHM_READ && attached.peer_way == GPUSHM_PEER_NONE);
  GPUSHM_INIT(&holders[0]);
  OK(gpushm_holders(client, "weights", holders, kRoom, &count));
  CHECK(count == 2 && holders[0].peer_way == GPUSHM_PEER_NONE);
  GPUSHM_INIT(&broker);
  OK(gpushm_broker(client, &broker));
  CHECK(broker.leases == 2 && broker.simulated == 1);

  GPUSHM_INIT(&detaching);
  detaching.streams = (void* const*)&stream;
  detaching.stream_count = 1;
  OK(gpushm_detach(held, &detaching));
  OK(gpushm_replace(client, "weights", 0, NULL, &held));
  CHECK(gpushm_current(made) == GPUSHM_STALE);
  OK(gpushm_detach(held, NULL));
  OK(gpushm_detach(made, NULL));

  file = fopen(path, "wb");
  CHECK(file != NULL && fwrite("0123456789", 1, 10, file) == 10 && fclose(file) == 0);
  GPUSHM_INIT(&transfer);
  transfer.way = GPUSHM_WAY_HERE;
  transfer.file_way = GPUSHM_FILE_CACHED;
  GPUSHM_INIT(&moved);
  OK(gpushm_load(client, "weights", path, &transfer, &moved));
  CHECK(moved.bytes == 10 && moved.way == GPUSHM_WAY_HERE);
  CHECK(moved.file_way == GPUSHM_FILE_CACHED && moved.file_reason == GPUSHM_REASON_ASKED);
  OK(gpushm_save(client, "weights", path, &transfer, &moved));
  OK(gpushm_delete(client, "weights", &waiting));
  CHECK(gpushm_lookup(client, "weights", &info) == GPUSHM_NOT_FOUND);

  GPUSHM_INIT(&offering);
  offering.on_writer_exit = GPUSHM_DROP;
  GPUSHM_INIT(&offered);
  OK(gpushm_offer(client, "own", memory, 2 * kMiB, &offering, &offered));
  CHECK(offered.transport == GPUSHM_CUIPC && offered.copied == 0);
  OK(gpushm_delete(client, "own", NULL));
}

static void Signals(gpushm_client* client) {
  gpushm_signal_options writing;
  gpushm_signal_info info;
  gpushm_sync_info looked;
  gpushm_signal *signal = NULL, *waiter = NULL;
  uint64_t address = 0;
  GPUSHM_INIT(&writing);
  writing.role = GPUSHM_WRITER;
  writing.memory = GPUSHM_HOST_PAGE;
  OK(gpushm_signal_open(client, "ready", &writing, &signal));
  OK(gpushm_signal_open(client, "ready", NULL, &waiter));
  OK(gpushm_signal_set(signal, 1));
  OK(gpushm_signal_record(signal, stream, 2));
  OK(gpushm_signal_wait(waiter, 2, kPatienceMs));
  OK(gpushm_signal_check(waiter, 2));
  /* The writer is this process, so an event of CUDA is the right means. */
  CHECK(gpushm_signal_wait_on_stream(waiter, stream, 3) == GPUSHM_INVALID_ARGUMENT);
  OK(gpushm_signal_device_address(waiter, &address));
  CHECK(address != 0);
  GPUSHM_INIT(&info);
  OK(gpushm_signal_read(waiter, &info));
  CHECK(info.value == 2 && info.role == GPUSHM_WAITER && info.state == GPUSHM_SIGNAL_LIVE);
  GPUSHM_INIT(&looked);
  OK(gpushm_sync_look(client, "ready", &looked));
  CHECK(looked.kind == GPUSHM_SYNC_SIGNAL && looked.value == 2);
  OK(gpushm_signal_close(waiter));
  OK(gpushm_signal_close(signal));
}

static void Barriers(gpushm_client* client) {
  gpushm_barrier_options joining;
  gpushm_barrier_info info;
  gpushm_barrier* barrier = NULL;
  GPUSHM_INIT(&joining);
  joining.participants = 1;
  OK(gpushm_barrier_open(client, "step", &joining, &barrier));
  OK(gpushm_barrier_wait(barrier, kPatienceMs));
  OK(gpushm_barrier_wait_on_stream(barrier, stream));
  CHECK(synchronize(stream) == 0);
  OK(gpushm_barrier_wait(barrier, kPatienceMs));
  OK(gpushm_barrier_check(barrier));
  GPUSHM_INIT(&info);
  OK(gpushm_barrier_get_info(barrier, &info));
  CHECK(info.point == 3 && info.participants == 1);
  OK(gpushm_barrier_close(barrier));
}

static void Rings(gpushm_client* client) {
  gpushm_ring_options writing;
  gpushm_ring_info info;
  gpushm_frame frame, seen;
  gpushm_ring *writer = NULL, *reader = NULL;
  GPUSHM_INIT(&writing);
  writing.role = GPUSHM_RING_WRITER;
  writing.policy = GPUSHM_BACK_PRESSURE;
  writing.frame_bytes = kFrameBytes;
  OK(gpushm_ring_open(client, "video", &writing, &writer));
  OK(gpushm_ring_open(client, "video", NULL, &reader));
  GPUSHM_INIT(&frame);
  OK(gpushm_ring_begin_write(writer, &frame, kPatienceMs));
  OK(gpushm_ring_abandon_write(writer));
  OK(gpushm_ring_begin_write(writer, &frame, kPatienceMs));
  frame.bytes = 100;
  frame.metadata[0] = 42;
  OK(gpushm_ring_end_write(writer, &frame, GPUSHM_NO_STREAM));
  GPUSHM_INIT(&seen);
  OK(gpushm_ring_begin_read(reader, GPUSHM_NO_STREAM, &seen, kPatienceMs));
  CHECK(seen.bytes == 100 && seen.metadata[0] == 42);
  OK(gpushm_ring_end_read(reader, GPUSHM_NO_STREAM, &seen, kPatienceMs));
  OK(gpushm_ring_begin_write(writer, &frame, kPatienceMs));
  OK(gpushm_ring_end_write(writer, &frame, GPUSHM_NO_STREAM));
  OK(gpushm_ring_begin_read_newest(reader, GPUSHM_NO_STREAM, &seen, kPatienceMs));
  OK(gpushm_ring_end_read(reader, GPUSHM_NO_STREAM, &seen, kPatienceMs));
  GPUSHM_INIT(&info);
  OK(gpushm_ring_get_info(reader, &info));
  CHECK(info.taken == 2 && info.policy == GPUSHM_BACK_PRESSURE);
  OK(gpushm_ring_close(reader));
  OK(gpushm_ring_close(writer));
}

int main(int argc, char** argv) {
  gpushm_client* client = NULL;
  CHECK(argc == 2);
  LoadDriver();
  Errors();
  client = Open();
  Buffers(client, argv[1]);
  Signals(client);
  Barriers(client);
  Rings(client);
  gpushm_close(client);
  puts("program_0_1: ok");
  return 0;
}
