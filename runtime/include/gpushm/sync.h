/* gpushm, synchronisation: signals, barriers and rings between the containers of a pod.
 * docs/guides/synchronisation.md says which one to use, what blocks, and what each costs.
 *
 *   gpushm_signal* ready;                              // Producer
 *   gpushm_signal_options options;
 *   GPUSHM_INIT(&options);
 *   options.role = GPUSHM_SIGNAL_WRITER;
 *   gpushm_signal_open(client, "frame-ready", &options, &ready);
 *   Launch(stream);                                    // writes the buffer
 *   gpushm_signal_record(ready, stream, 1);            // the signal is 1 when that is done
 *
 *   gpushm_signal_open(client, "frame-ready", NULL, &ready);   // Consumer
 *   gpushm_signal_wait_on_stream(ready, stream, 1);    // later work on the stream runs after it
 *   Launch(stream);                                    // reads the buffer
 *   cuStreamSynchronize(stream);
 *   gpushm_signal_check(ready, 1);                     // OK: the result is valid; otherwise not
 *
 * The rules of gpushm.h for statuses, options, timeouts and threads hold here too. Any thread may
 * use a signal, barrier or ring at any time. At its close, no other thread may be in a call with
 * it: a thread that waits there must have returned first, at the latest by its timeout. Streams are
 * CUstream or cudaStream_t, and their context must be current on the calling thread.
 */
#ifndef GPUSHM_SYNC_H_
#define GPUSHM_SYNC_H_

#include "gpushm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The largest value of a signal. */
#define GPUSHM_SIGNAL_MAX (UINT64_C(1) << 62)

/* ------------------------------------------------------------------ signals
 *
 * A signal is a 64-bit value with a name. One process writes it, and the value only increases, from
 * 0. Any number of processes wait for it: on the host with a deadline, or in a stream.
 *
 * A wait in a stream has no deadline, because CUDA has none. It ends when the value is reached, and
 * also when the writer ends in any way. So the work after it is valid only if gpushm_signal_check
 * returns GPUSHM_OK afterwards.
 *
 * The status says how a writer ended, here and with barriers and rings. GPUSHM_ENDED: it closed
 * what it wrote, and nothing more comes. GPUSHM_PEER_DIED: its process ended without that, also by
 * exit(). The next writer makes a new generation of the signal, which begins at 0. Who waits for
 * the old generation gets one of the two statuses, and opens the signal again. */

typedef struct gpushm_signal gpushm_signal;

typedef enum gpushm_signal_role {
  GPUSHM_SIGNAL_WAITER = 0, /* Reads and waits; the sync page is mapped read-only. */
  GPUSHM_SIGNAL_WRITER = 1  /* Writes the value. One process at a time. */
} gpushm_signal_role;

typedef struct gpushm_signal_options {
  size_t struct_size;
  uint32_t role; /* gpushm_signal_role */
  /* gpushm_writers, if this call makes the signal: which containers may write it. One that the pod
   * declares (signals.gpushm.io/<name>) has the rules of the pod. */
  uint32_t writers;
  /* A waiter waits until a signal of that name exists whose writer has not ended. A writer waits
   * until the former writer has ended. */
  int64_t timeout_ms;
} gpushm_signal_options;

/* Opens a signal. A writer makes it if it does not exist, or if its former writer has ended. It
 * needs no GPU.
 * Errors: TIMEOUT; NOT_FOUND and BUSY (its writer lives) with GPUSHM_DONT_WAIT; DENIED;
 * INVALID_ARGUMENT (the name is that of a buffer); EXHAUSTED (docs/reference/limits.md);
 * UNAVAILABLE. */
GPUSHM_API gpushm_status gpushm_signal_open(gpushm_client* client, const char* name,
                                            const gpushm_signal_options* options,
                                            gpushm_signal** signal);

/* Closes a signal. If the writer closes it, waits that are not satisfied end with ENDED. NULL is
 * allowed.
 * Errors: BUSY (work of this process still records it, or waits for it in a stream; nothing is
 * done, so synchronise and call again). */
GPUSHM_API gpushm_status gpushm_signal_close(gpushm_signal* signal);

/* Sets the signal to `value` when all work that is on `stream` now is done, and its writes are
 * visible everywhere. `value` must be larger than the last one of this writer. It does not wait.
 * Errors: INVALID_ARGUMENT (not the writer, or not larger); UNSUPPORTED (the stream is being
 * captured: a graph would give the same value with each launch, see gpushm/device.cuh); ORPHANED (a
 * new broker does not know the signal); DRIVER. */
GPUSHM_API gpushm_status gpushm_signal_record(gpushm_signal* signal, void* stream, uint64_t value);

/* Sets the signal to `value` from the host, at once.
 * Errors: as gpushm_signal_record; BUSY (a recorded value has not arrived yet). */
GPUSHM_API gpushm_status gpushm_signal_set(gpushm_signal* signal, uint64_t value);

/* Later work on `stream` runs once the signal is at least `value`. The call itself does not wait. A
 * process may have at most CUDA_DEVICE_MAX_CONNECTIONS - 1 streams that wait (7 by default, 1 by
 * default under MPS, 31 at most).
 * Errors: EXHAUSTED (too many streams wait; the text says what to do); INVALID_ARGUMENT (this
 * process is the writer: use a CUDA event); BUSY (no process writes it yet, so nothing would end
 * the wait: wait for its first value on the host); UNSUPPORTED (the stream is being captured);
 * ENDED, PEER_DIED (the value never comes); DRIVER. */
GPUSHM_API gpushm_status gpushm_signal_wait_on_stream(gpushm_signal* signal, void* stream,
                                                      uint64_t value);

/* Waits on the host until the signal is at least `value`. With GPUSHM_DONT_WAIT it checks once. It
 * spins for 20 us, then sleeps in steps of up to 200 us.
 * Errors: TIMEOUT, ENDED, PEER_DIED. */
GPUSHM_API gpushm_status gpushm_signal_wait(gpushm_signal* signal, uint64_t value,
                                            int64_t timeout_ms);

/* Whether the work after a wait in a stream is valid. OK: the signal reached `value`. BUSY: it has
 * not yet. ENDED, PEER_DIED: it never will. */
GPUSHM_API gpushm_status gpushm_signal_check(gpushm_signal* signal, uint64_t value);

typedef enum gpushm_signal_state {
  GPUSHM_SIGNAL_UNUSED = 0, /* No process has written it yet. */
  GPUSHM_SIGNAL_LIVE = 1,
  GPUSHM_SIGNAL_DIED = 2, /* Its writer's process ended. */
  GPUSHM_SIGNAL_LEFT = 3  /* Its writer closed it. */
} gpushm_signal_state;

typedef struct gpushm_signal_info {
  size_t struct_size;
  char name[GPUSHM_NAME_BYTES];
  uint64_t generation;
  uint64_t value;    /* After its end: the last value before it. */
  uint32_t state;    /* gpushm_signal_state */
  uint32_t role;     /* gpushm_signal_role of this handle. */
  uint64_t recorded; /* Writer: the last value of a record or set. */
} gpushm_signal_info;

/* Fills in what is known about a signal, without a system call.
 * Errors: INVALID_ARGUMENT.
 * Experimental. */
GPUSHM_API gpushm_status gpushm_signal_get_info(const gpushm_signal* signal,
                                                gpushm_signal_info* info);

/* Where kernels (gpushm/device.cuh) and memory operation nodes of graphs find the value: an address
 * of the current context, valid until the signal is closed. A waiter may only read there.
 * Errors: UNSUPPORTED (no current context). */
GPUSHM_API gpushm_status gpushm_signal_device_address(gpushm_signal* signal, uint64_t* address);

/* ------------------------------------------------------------------ barriers
 *
 * `participants` processes pass the points of a barrier together, one point after the other: the
 * n-th wait of each belongs to the n-th point. All participants are equal, and the first one makes
 * the barrier.
 *
 * A participant that ends in any way breaks the barrier for all, permanently. At the first point at
 * which it had not arrived, the others get ENDED if it closed the barrier, or PEER_DIED if it died.
 * Then all of them close the barrier and open it again, which makes a new generation. */

typedef struct gpushm_barrier gpushm_barrier;

typedef struct gpushm_barrier_options {
  size_t struct_size;
  uint32_t participants; /* 1 to 128; the same number in each process. */
  uint32_t reserved;     /* 0. */
  int64_t timeout_ms;    /* Until a place is free, for example of a former participant. */
} gpushm_barrier_options;

/* Takes part in a barrier. It does not wait for the other participants, and needs no GPU.
 * Errors: TIMEOUT, or BUSY with GPUSHM_DONT_WAIT (all participants have joined, and live);
 * INVALID_ARGUMENT (another number of participants, or the name is that of something else); DENIED;
 * EXHAUSTED (docs/reference/limits.md); UNAVAILABLE. */
GPUSHM_API gpushm_status gpushm_barrier_open(gpushm_client* client, const char* name,
                                             const gpushm_barrier_options* options,
                                             gpushm_barrier** barrier);

/* Leaves a barrier, which breaks it for the others. NULL is allowed.
 * Errors: BUSY (a stream of this process is still to arrive, or waits for the others; nothing is
 * done, so synchronise and call again). */
GPUSHM_API gpushm_status gpushm_barrier_close(gpushm_barrier* barrier);

/* Arrives at the next point, and waits on the host until all have arrived. After TIMEOUT, whose
 * text says who is missing, another call waits for the same point and does not arrive again.
 * Errors: TIMEOUT; ENDED, PEER_DIED; BUSY (a stream is still to arrive); ORPHANED (a new broker
 * does not know the barrier: close and open it again). */
GPUSHM_API gpushm_status gpushm_barrier_wait(gpushm_barrier* barrier, int64_t timeout_ms);

/* The stream arrives at the next point when its present work is done, and its later work runs when
 * all others have arrived. The call itself does not wait. The later work is valid only if
 * gpushm_barrier_check returns GPUSHM_OK. It counts as one stream that waits, see
 * gpushm_signal_wait_on_stream. The wait for a participant ends when that one arrives or ends, or
 * when it learns that another one ended.
 * Errors: BUSY (not all have joined: pass the first point with gpushm_barrier_wait; or another
 * stream is still to arrive; or the host still waits for a point); INVALID_ARGUMENT (another
 * participant is in this process); EXHAUSTED (too many streams wait); UNSUPPORTED (the stream is
 * being captured); ENDED, PEER_DIED; ORPHANED. After these the stream has not arrived. DRIVER:
 * later work does not wait.
 * Experimental. */
GPUSHM_API gpushm_status gpushm_barrier_wait_on_stream(gpushm_barrier* barrier, void* stream);

/* Whether all passed the last point of this participant. OK: they did. BUSY: not yet. ENDED,
 * PEER_DIED: they never will.
 * Experimental. */
GPUSHM_API gpushm_status gpushm_barrier_check(gpushm_barrier* barrier);

typedef struct gpushm_barrier_info {
  size_t struct_size;
  char name[GPUSHM_NAME_BYTES];
  uint64_t generation;
  uint64_t point; /* Number of the last point of this participant; 0: none. */
  uint32_t participants;
  uint32_t joined; /* Participants so far, also those that have ended. */
  uint32_t cell;   /* The place of this participant, from 0. */
  uint32_t reserved;
} gpushm_barrier_info;

/* Fills in what is known about a barrier, without a system call.
 * Errors: INVALID_ARGUMENT.
 * Experimental. */
GPUSHM_API gpushm_status gpushm_barrier_get_info(const gpushm_barrier* barrier,
                                                 gpushm_barrier_info* info);

/* ------------------------------------------------------------------ rings and queues
 *
 * A ring passes frames from one writer to any number of readers, without a copy. The frames are in
 * slots of a buffer. A frame has up to `frame_bytes` bytes, a number (1, 2, 3 ...) and 64 bytes of
 * metadata from the writer. It is complete when the writer's stream reaches the end of the write.
 * There are three policies:
 *   - GPUSHM_RING_OVERWRITE_OLDEST: the writer never waits. Each reader gets the frames that it is
 *     in time for, and each frame says how many were lost before it.
 *   - GPUSHM_RING_BACK_PRESSURE: no reader loses a frame. The writer waits for the slowest reader.
 *   - GPUSHM_RING_QUEUE: each frame goes to one reader, a worker. If that worker dies or gives the
 *     frame back (gpushm_ring_abandon_read), another worker gets it.
 *
 * The work of a read or a write goes between a begin and an end, which take its stream:
 *
 *   gpushm_frame frame;                                       // Writer
 *   GPUSHM_INIT(&frame);
 *   gpushm_ring_begin_write(ring, &frame, 0);
 *   Launch(stream, frame.address);
 *   frame.bytes = ...;
 *   gpushm_ring_end_write(ring, &frame, stream);
 *
 *   gpushm_ring_begin_read(ring, stream, &frame, 0);          // Reader
 *   Launch(stream, frame.address);                            // runs when the frame is complete
 *   if (gpushm_ring_end_read(ring, stream, &frame, 0)) ...    // not OK: the result is not valid
 */

typedef struct gpushm_ring gpushm_ring;

/* In place of a stream, if the host does the work: an end means that the work is done, and a begin
 * waits until it may begin. */
#define GPUSHM_NO_STREAM ((void*)~(uintptr_t)0)

/* Bytes of metadata that travel with a frame. */
#define GPUSHM_METADATA_BYTES 64

typedef enum gpushm_ring_role {
  GPUSHM_RING_READER = 0, /* Reads frames. In a queue it is a worker. */
  GPUSHM_RING_WRITER = 1  /* One process at a time. */
} gpushm_ring_role;

typedef enum gpushm_ring_policy {
  GPUSHM_RING_OVERWRITE_OLDEST = 0,
  GPUSHM_RING_BACK_PRESSURE = 1,
  GPUSHM_RING_QUEUE = 2
} gpushm_ring_policy;

typedef struct gpushm_ring_options {
  size_t struct_size;
  uint32_t role; /* gpushm_ring_role */
  /* What a writer makes. Readers leave these 0. */
  uint32_t policy;      /* gpushm_ring_policy */
  uint32_t frames;      /* Slots: 2 to 1,024. 0: 8. */
  uint32_t readers;     /* Maximum at a time: 1 to 127. 0: 15. */
  uint64_t frame_bytes; /* Maximum size of a frame. */
  /* Back-pressure: every frame waits while there are fewer readers than this, also after a reader
   * has closed the ring or died. 0: the writer does not wait for readers that have gone. For a
   * common start use start_readers. */
  uint32_t need_readers;
  /* Reader of a ring. 1: it begins with the oldest frame that exists. 0: with the next one. */
  uint32_t from_oldest;
  /* A reader waits until a ring of that name exists whose writer has not ended. A writer waits
   * until the former writer has ended, and the pool has room in addition to what readers of the
   * former one hold. */
  int64_t timeout_ms;
  /* Back-pressure: the first frame waits until this many readers are present at the same time.
   * Later frames wait only as need_readers says. 0: the writer begins at once. */
  uint32_t start_readers;
  /* 1: when no process has the ring open any more, its memory stays until both its names are
   * deleted. 0: it goes back to the pool then. */
  uint32_t keep;
  /* What the frames are, for a later version that compares it when a ring is opened. All 0: not
   * said. Anything else is UNSUPPORTED. */
  unsigned char type[GPUSHM_TYPE_BYTES];
  /* The number of the GPU, among those of the pod, that holds the frames which a writer makes.
   * Those of a declared buffer, and of a successor, are on the GPU of that buffer. */
  uint32_t gpu;
  uint32_t reserved; /* 0. */
} gpushm_ring_options;

/* Takes part in a ring. A writer makes it if it does not exist, or if its former writer has ended.
 * Then it has new memory, so readers of the former one are not disturbed. The frames are the buffer
 * `name`: declared in the pod's annotations, or made here in its pool (`frames` x `frame_bytes`,
 * each rounded up to 512). Their state is the sync page "<name>-ring". When no process has the ring
 * open any more, both are deleted, except for a buffer that existed before.
 * Errors: TIMEOUT; NOT_FOUND and BUSY with GPUSHM_DONT_WAIT; EXHAUSTED (the pool, or all places of
 * readers are taken); DENIED; INVALID_ARGUMENT; UNSUPPORTED (`type` is set). */
GPUSHM_API gpushm_status gpushm_ring_open(gpushm_client* client, const char* name,
                                          const gpushm_ring_options* options, gpushm_ring** ring);

/* Leaves a ring. If the writer closes it, readers get the frames that are complete, then ENDED.
 * NULL is allowed.
 * Errors: BUSY (frames are open, or streams of this process still work on some; nothing is done, so
 * synchronise and call again). */
GPUSHM_API gpushm_status gpushm_ring_close(gpushm_ring* ring);

typedef enum gpushm_frame_ready {
  GPUSHM_FRAME_READY_ALREADY = 0, /* It was complete when the read began. */
  GPUSHM_FRAME_READY_STREAM = 1,  /* The stream waits for it. */
  GPUSHM_FRAME_READY_HOST = 2     /* The host waited: there is no stream, or too many wait. */
} gpushm_frame_ready;

typedef struct gpushm_frame {
  size_t struct_size;
  uint64_t address;        /* Device address of its first byte. */
  uint64_t capacity_bytes; /* Bytes available there. */
  uint64_t bytes;          /* Bytes in use; set it before gpushm_ring_end_write. */
  uint64_t number;         /* From 1, in each generation of the ring. */
  int64_t time_ns;         /* CLOCK_MONOTONIC when its write ended. */
  uint64_t lost;           /* Frames between the last one of this reader and this one. */
  uint32_t delivery;       /* Queue: how often a worker got it, including this time. */
  uint32_t ready;          /* gpushm_frame_ready */
  unsigned char metadata[GPUSHM_METADATA_BYTES]; /* Of the writer, who sets it before end_write. */
  uint32_t slot;                                 /* For the library; do not change it. */
  uint32_t hold;                                 /* For the library; do not change it. */
} gpushm_frame;

/* Gets a slot for the next frame, which no reader uses. A writer has at most one frame open.
 * Errors: BUSY (overwrite-oldest: readers hold all slots, so the frame is dropped and counted);
 * TIMEOUT (back-pressure, queue: the text names the slowest reader); ORPHANED (a new broker does
 * not know this writer: close and open the ring again). */
GPUSHM_API gpushm_status gpushm_ring_begin_write(gpushm_ring* ring, gpushm_frame* frame,
                                                 int64_t timeout_ms);
/* Ends the frame: it is complete when all work that is on `stream` now is done. Readers learn of it
 * at once.
 * Errors: INVALID_ARGUMENT (more bytes than fit, or no frame is open); UNSUPPORTED (the stream is
 * being captured); DRIVER; ORPHANED. After these the frame is still open, and no reader has seen
 * it. */
GPUSHM_API gpushm_status gpushm_ring_end_write(gpushm_ring* ring, const gpushm_frame* frame,
                                               void* stream);
/* Gives up the open frame. No reader sees it, and the next frame gets its number.
 * Errors: INVALID_ARGUMENT (no frame is open). */
GPUSHM_API gpushm_status gpushm_ring_abandon_write(gpushm_ring* ring);

/* Gets the next frame, which does not change until gpushm_ring_end_read. Later work on `stream`
 * runs when the frame is complete. A reader may have eight frames of a ring open, and any number of
 * frames of a queue.
 * Errors: TIMEOUT (a frame that was begun, but is not complete, is not lost: the next call gets
 * it); ENDED, PEER_DIED (the writer closed the ring or died, and nothing more comes); EXHAUSTED
 * (too many frames are open); ORPHANED. */
GPUSHM_API gpushm_status gpushm_ring_begin_read(gpushm_ring* ring, void* stream,
                                                gpushm_frame* frame, int64_t timeout_ms);
/* As gpushm_ring_begin_read, but gets the newest frame; the frames before it are lost. It is not
 * for queues. */
GPUSHM_API gpushm_status gpushm_ring_begin_read_newest(gpushm_ring* ring, void* stream,
                                                       gpushm_frame* frame, int64_t timeout_ms);
/* Gives the frame back when all work that is on `stream` now is done. It waits until the frame is
 * complete, for which the stream waits as well.
 * OK: what was read is the frame. ENDED, PEER_DIED: the writer ended before the frame was complete;
 * the frame is given back, and what was read is not valid. ORPHANED: a new broker does not know
 * this reader; the frame has ended, what was read is not valid, and another worker gets an item of
 * a queue. Close the ring and open it again. After all of these the frame has ended.
 * TIMEOUT: nothing is done, so call again. DRIVER (it refused the store), UNSUPPORTED (the stream
 * is being captured): the frame is still open. INVALID_ARGUMENT: the frame is not open, for example
 * because it was ended before. */
GPUSHM_API gpushm_status gpushm_ring_end_read(gpushm_ring* ring, void* stream,
                                              const gpushm_frame* frame, int64_t timeout_ms);

/* Gives back a frame that was not used. It does not wait, and does not say whether the frame was
 * valid. A frame of a ring is released when all work that is on `stream` now is done. An item of a
 * queue goes to the next worker that requests one, which may be this one, with a higher `delivery`.
 * That happens at once, so work on a stream that still reads it may see the bytes of another item.
 * An item that makes every worker fail comes back indefinitely. A worker that sees a `delivery`
 * higher than it wants to try should end the item (gpushm_ring_end_read) and report it.
 * Errors: INVALID_ARGUMENT (not open); UNSUPPORTED (the stream is being captured). */
GPUSHM_API gpushm_status gpushm_ring_abandon_read(gpushm_ring* ring, void* stream,
                                                  const gpushm_frame* frame);

typedef struct gpushm_ring_info {
  size_t struct_size;
  char name[GPUSHM_NAME_BYTES];
  uint64_t generation; /* Of its sync page. */
  uint32_t role;       /* gpushm_ring_role */
  uint32_t policy;     /* gpushm_ring_policy */
  uint32_t frames;
  uint32_t readers; /* Maximum at a time. */
  uint64_t frame_bytes;
  uint64_t newest;       /* Number of the newest frame; 0: none yet. */
  uint64_t dropped;      /* Frames that the writer dropped. */
  uint64_t taken;        /* Frames that this reader got. */
  uint64_t lost;         /* Frames that this reader lost. */
  uint32_t writer_state; /* gpushm_signal_state */
  uint32_t reserved;
} gpushm_ring_info;
/* Fills in what is known about a ring, without a system call.
 * Errors: INVALID_ARGUMENT.
 * Experimental. */
GPUSHM_API gpushm_status gpushm_ring_get_info(const gpushm_ring* ring, gpushm_ring_info* info);

/* ------------------------------------------------------------------ inspecting
 *
 * For a process that does not take part: what kind of object a name refers to, and its state. For
 * such a name, gpushm_info.transport is GPUSHM_TRANSPORT_HOST. */

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
  /* Signal: its value. Ring, queue: the newest complete frame. Barrier: the last point at which all
   * have arrived. After its end: the last one before. */
  uint64_t value;
  uint64_t writer_lease; /* As in gpushm_holder. 0: no writer so far, or a barrier. */
  uint32_t kind;         /* gpushm_sync_kind */
  uint32_t state;        /* gpushm_signal_state of the writer, or of who broke a barrier. */
  uint32_t joined;       /* Participants that live, writer and readers. */
  uint32_t places;       /* For participants. A signal's waiters need none. */
} gpushm_sync_info;

/* Attaches the sync page for reading, reads it, and detaches it again, which takes messages to the
 * broker.
 * Errors: NOT_FOUND, DENIED, INVALID_ARGUMENT (it is a buffer), UNAVAILABLE.
 * Experimental. */
GPUSHM_API gpushm_status gpushm_sync_lookup(gpushm_client* client, const char* name,
                                            gpushm_sync_info* info);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* GPUSHM_SYNC_H_ */
