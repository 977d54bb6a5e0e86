/* gpushm/wait.h: waiting for several names, rings and signals at once, also in an event loop (poll,
 * epoll, asyncio, libuv). A waiter has one descriptor, which becomes readable when there is an
 * event. The library starts no thread for it.
 *
 *   gpushm_waiter* waiter;
 *   gpushm_waiter_open(client, &waiter);
 *   gpushm_waiter_add_name(waiter, "weights", info.generation, 1);
 *   gpushm_waiter_add_ring(waiter, frames, 2);
 *   struct pollfd descriptors[] = {{gpushm_waiter_descriptor(waiter), POLLIN, 0}, ...};
 *   for (;;) {
 *     poll(descriptors, sizeof descriptors / sizeof descriptors[0], -1);
 *     gpushm_event event;
 *     size_t count;
 *     GPUSHM_INIT(&event);
 *     while (!gpushm_waiter_wait(waiter, &event, 1, &count, GPUSHM_DONT_WAIT) && count == 1) {
 *       if (event.tag == 1) Reload(event.generation);
 *       if (event.tag == 2) TakeFrame();          // gpushm_ring_begin_read does not wait
 *     }
 *   }
 *
 * The rules of gpushm.h for statuses, options, timeouts and threads hold here too. Any thread may
 * use a waiter, also while another one waits with it; at its close, no other thread may.
 */
#ifndef GPUSHM_WAIT_H_
#define GPUSHM_WAIT_H_

#include "gpushm.h"
#include "sync.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gpushm_waiter gpushm_waiter;

typedef enum gpushm_event_kind {
  /* A name has a newer generation, its state has changed (GPUSHM_BUFFER_READY after LOADING, or
   * GPUSHM_BUFFER_WRITER_DIED), or it is gone (status NOT_FOUND). Each change is reported once; of
   * several, only the last. */
  GPUSHM_EVENT_NAME = 1,
  /* gpushm_ring_begin_read, or gpushm_ring_begin_write of a writer, would not wait. It is reported
   * as long as that is so. With several workers of a queue, another one may be faster: begin with
   * GPUSHM_DONT_WAIT. The status ENDED or PEER_DIED says that the writer has ended and no frame is
   * left, ORPHANED that the broker does not know this participant any more. It is reported once. */
  GPUSHM_EVENT_RING = 2,
  /* The signal has reached the value, or its writer has ended before (ENDED, PEER_DIED; ORPHANED as
   * above). It is reported once, and the signal is then removed: add it again for the next value.
   */
  GPUSHM_EVENT_SIGNAL = 3
} gpushm_event_kind;

typedef struct gpushm_event {
  size_t struct_size;
  uint64_t tag;        /* As it was added. */
  uint64_t generation; /* Of a name: its newest; after NOT_FOUND, its last. */
  uint32_t kind;       /* gpushm_event_kind */
  uint32_t status;     /* gpushm_status: GPUSHM_OK, or why a call would fail. */
  uint32_t state;      /* Of a name: gpushm_buffer_state. */
  uint32_t reserved;
} gpushm_event;

/* Opens a waiter, with nothing to wait for yet. It uses four descriptors, one for each name and one
 * for all names together, and two for each ring and signal. If the process has none left for those,
 * the waiter works, but it looks with a timer, ten times a second. gpushm_close closes it.
 * Errors: SYSTEM (no descriptor is left). */
GPUSHM_API gpushm_status gpushm_waiter_open(gpushm_client* client, gpushm_waiter** waiter);

/* The descriptor, for poll, select, epoll or an event loop. It is readable from an event on, until
 * a call of gpushm_waiter_wait returns none. It may also be readable without an event. It belongs
 * to the waiter: do not read or close it. In a child of fork(), do not wait for it. -1 for NULL. */
GPUSHM_API int gpushm_waiter_descriptor(const gpushm_waiter* waiter);

/* Waits for changes of a buffer. `generation` is the one that the program knows; a newer one is
 * reported, also if it exists already. 0: any. The name need not exist yet. `tag` identifies the
 * events, and is otherwise not interpreted.
 * Errors: INVALID_ARGUMENT (not a DNS label). */
GPUSHM_API gpushm_status gpushm_waiter_add_name(gpushm_waiter* waiter, const char* name,
                                                uint64_t generation, uint64_t tag);

/* Waits for a ring or queue that the same client has open, to read or to write it. A ring that is
 * closed is removed.
 * Errors: INVALID_ARGUMENT (of another client). */
GPUSHM_API gpushm_status gpushm_waiter_add_ring(gpushm_waiter* waiter, gpushm_ring* ring,
                                                uint64_t tag);

/* Waits until a signal that the same client has open has reached `value`. A signal that is closed
 * is removed.
 *
 * A value that a host sets (gpushm_signal_set) is reported at once. Nobody announces what a GPU
 * stores (gpushm_signal_record, gpushm/device.cuh), so a timer looks. The descriptor then becomes
 * readable late by at most half of the time that the program has waited, and by at most 2 ms. The
 * streams do nothing more for it.
 * Errors: INVALID_ARGUMENT (of another client, value above GPUSHM_SIGNAL_MAX). */
GPUSHM_API gpushm_status gpushm_waiter_add_signal(gpushm_waiter* waiter, gpushm_signal* signal,
                                                  uint64_t value, uint64_t tag);

/* Removes everything that was added with that tag.
 * Errors: NOT_FOUND (nothing has that tag, or it was removed already).
 * Experimental. */
GPUSHM_API gpushm_status gpushm_waiter_remove(gpushm_waiter* waiter, uint64_t tag);

/* Waits until there is an event, then stores up to `capacity` of them and their number in *count.
 * After the timeout it returns GPUSHM_OK, and *count is 0. With GPUSHM_DONT_WAIT it only returns
 * what there is. `events[0].struct_size` (GPUSHM_INIT sets it) is the distance between the entries;
 * the call sets that of the others. After something was added, and after the broker was replaced,
 * the call talks to the broker, for at most 0.1 s, also with GPUSHM_DONT_WAIT.
 * Errors: INVALID_ARGUMENT (capacity 0), SYSTEM. */
GPUSHM_API gpushm_status gpushm_waiter_wait(gpushm_waiter* waiter, gpushm_event* events,
                                            size_t capacity, size_t* count, int64_t timeout_ms);

/* Closes the waiter and its descriptor. Remove the descriptor from an epoll instance first. NULL is
 * allowed. */
GPUSHM_API void gpushm_waiter_close(gpushm_waiter* waiter);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* GPUSHM_WAIT_H_ */
