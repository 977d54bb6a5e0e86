/* sync.h of version 0.1 without its comments. It never changes: tests/abi/program_0_1.c is compiled
 * with it, as programs that are still in use were. */
#ifndef GPUSHM_SYNC_H_
#define GPUSHM_SYNC_H_

#include "gpushm.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GPUSHM_SIGNAL_MAX (UINT64_C(1) << 62)

typedef struct gpushm_signal gpushm_signal;

typedef enum gpushm_signal_role { GPUSHM_WAITER = 0, GPUSHM_WRITER = 1 } gpushm_signal_role;

typedef enum gpushm_signal_memory {
  GPUSHM_HOST_PAGE = 0,
  GPUSHM_DEVICE_MEMORY = 1
} gpushm_signal_memory;

typedef struct gpushm_signal_options {
  size_t struct_size;
  uint32_t role;
  uint32_t writers;
  int64_t timeout_ms;
  uint32_t memory;
  uint32_t reserved;
} gpushm_signal_options;

GPUSHM_API gpushm_status gpushm_signal_open(gpushm_client* client, const char* name,
                                            const gpushm_signal_options* options,
                                            gpushm_signal** signal);

GPUSHM_API gpushm_status gpushm_signal_close(gpushm_signal* signal);

GPUSHM_API gpushm_status gpushm_signal_record(gpushm_signal* signal, void* stream, uint64_t value);

GPUSHM_API gpushm_status gpushm_signal_set(gpushm_signal* signal, uint64_t value);

GPUSHM_API gpushm_status gpushm_signal_wait_on_stream(gpushm_signal* signal, void* stream,
                                                      uint64_t value);

GPUSHM_API gpushm_status gpushm_signal_wait(gpushm_signal* signal, uint64_t value,
                                            int64_t timeout_ms);

GPUSHM_API gpushm_status gpushm_signal_check(gpushm_signal* signal, uint64_t value);

typedef enum gpushm_signal_state {
  GPUSHM_SIGNAL_UNUSED = 0,
  GPUSHM_SIGNAL_LIVE = 1,
  GPUSHM_SIGNAL_DIED = 2,
  GPUSHM_SIGNAL_LEFT = 3
} gpushm_signal_state;

typedef struct gpushm_signal_info {
  size_t struct_size;
  char name[GPUSHM_NAME_BYTES];
  uint64_t generation;
  uint64_t value;
  uint32_t state;
  uint32_t role;
  uint64_t recorded;
  uint32_t memory;
  uint32_t reserved;
} gpushm_signal_info;

GPUSHM_API gpushm_status gpushm_signal_read(const gpushm_signal* signal, gpushm_signal_info* info);

GPUSHM_API gpushm_status gpushm_signal_device_address(gpushm_signal* signal, uint64_t* address);

typedef struct gpushm_barrier gpushm_barrier;

typedef struct gpushm_barrier_options {
  size_t struct_size;
  uint32_t participants;
  uint32_t reserved;
  int64_t timeout_ms;
} gpushm_barrier_options;

GPUSHM_API gpushm_status gpushm_barrier_open(gpushm_client* client, const char* name,
                                             const gpushm_barrier_options* options,
                                             gpushm_barrier** barrier);

GPUSHM_API gpushm_status gpushm_barrier_close(gpushm_barrier* barrier);

GPUSHM_API gpushm_status gpushm_barrier_wait(gpushm_barrier* barrier, int64_t timeout_ms);

GPUSHM_API gpushm_status gpushm_barrier_wait_on_stream(gpushm_barrier* barrier, void* stream);

GPUSHM_API gpushm_status gpushm_barrier_check(gpushm_barrier* barrier);

typedef struct gpushm_barrier_info {
  size_t struct_size;
  char name[GPUSHM_NAME_BYTES];
  uint64_t generation;
  uint64_t point;
  uint32_t participants;
  uint32_t joined;
  uint32_t cell;
  uint32_t reserved;
} gpushm_barrier_info;

GPUSHM_API gpushm_status gpushm_barrier_get_info(const gpushm_barrier* barrier,
                                                 gpushm_barrier_info* info);

typedef struct gpushm_ring gpushm_ring;

#define GPUSHM_NO_STREAM ((void*)~(uintptr_t)0)

#define GPUSHM_METADATA_BYTES 64

typedef enum gpushm_ring_role { GPUSHM_RING_READER = 0, GPUSHM_RING_WRITER = 1 } gpushm_ring_role;

typedef enum gpushm_ring_policy {
  GPUSHM_OVERWRITE_OLDEST = 0,
  GPUSHM_BACK_PRESSURE = 1,
  GPUSHM_QUEUE = 2
} gpushm_ring_policy;

typedef struct gpushm_ring_options {
  size_t struct_size;
  uint32_t role;
  uint32_t policy;
  uint32_t frames;
  uint32_t readers;
  uint64_t frame_bytes;
  uint32_t need_readers;
  uint32_t from_oldest;
  int64_t timeout_ms;
} gpushm_ring_options;

GPUSHM_API gpushm_status gpushm_ring_open(gpushm_client* client, const char* name,
                                          const gpushm_ring_options* options, gpushm_ring** ring);

GPUSHM_API gpushm_status gpushm_ring_close(gpushm_ring* ring);

typedef enum gpushm_frame_ready {
  GPUSHM_READY_ALREADY = 0,
  GPUSHM_READY_STREAM = 1,
  GPUSHM_READY_HOST = 2
} gpushm_frame_ready;

typedef struct gpushm_frame {
  size_t struct_size;
  uint64_t address;
  uint64_t capacity_bytes;
  uint64_t bytes;
  uint64_t number;
  int64_t time_ns;
  uint64_t lost;
  uint32_t delivery;
  uint32_t ready;
  unsigned char metadata[GPUSHM_METADATA_BYTES];
  uint32_t slot;
  uint32_t hold;
} gpushm_frame;

GPUSHM_API gpushm_status gpushm_ring_begin_write(gpushm_ring* ring, gpushm_frame* frame,
                                                 int64_t timeout_ms);

GPUSHM_API gpushm_status gpushm_ring_end_write(gpushm_ring* ring, const gpushm_frame* frame,
                                               void* stream);

GPUSHM_API gpushm_status gpushm_ring_abandon_write(gpushm_ring* ring);

GPUSHM_API gpushm_status gpushm_ring_begin_read(gpushm_ring* ring, void* stream,
                                                gpushm_frame* frame, int64_t timeout_ms);

GPUSHM_API gpushm_status gpushm_ring_begin_read_newest(gpushm_ring* ring, void* stream,
                                                       gpushm_frame* frame, int64_t timeout_ms);

GPUSHM_API gpushm_status gpushm_ring_end_read(gpushm_ring* ring, void* stream,
                                              const gpushm_frame* frame, int64_t timeout_ms);

typedef struct gpushm_ring_info {
  size_t struct_size;
  char name[GPUSHM_NAME_BYTES];
  uint64_t generation;
  uint32_t role;
  uint32_t policy;
  uint32_t frames;
  uint32_t readers;
  uint64_t frame_bytes;
  uint64_t newest;
  uint64_t dropped;
  uint64_t taken;
  uint64_t lost;
  uint32_t writer_state;
  uint32_t reserved;
} gpushm_ring_info;

GPUSHM_API gpushm_status gpushm_ring_get_info(const gpushm_ring* ring, gpushm_ring_info* info);

typedef enum gpushm_sync_kind {
  GPUSHM_SYNC_SIGNAL = 1,
  GPUSHM_SYNC_BARRIER = 2,
  GPUSHM_SYNC_RING = 3,
  GPUSHM_SYNC_QUEUE = 4
} gpushm_sync_kind;

typedef struct gpushm_sync_info {
  size_t struct_size;
  char name[GPUSHM_NAME_BYTES];
  uint64_t generation;
  uint64_t value;
  uint64_t writer_lease;
  uint32_t kind;
  uint32_t state;
  uint32_t joined;
  uint32_t places;
} gpushm_sync_info;

GPUSHM_API gpushm_status gpushm_sync_look(gpushm_client* client, const char* name,
                                          gpushm_sync_info* info);

#ifdef __cplusplus
}
#endif

#endif
