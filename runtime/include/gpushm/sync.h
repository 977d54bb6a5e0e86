/* gpushm: handing over in time. Signals, barriers and rings between the containers of a pod;
 * docs/guides/synchronisation.md says when to use which, what blocks and what each costs.
 *
 *   gpushm_signal* ready;                              // Producer
 *   gpushm_signal_options options;
 *   GPUSHM_INIT(&options);
 *   options.role = GPUSHM_SIGNAL_WRITER;
 *   gpushm_signal_open(client, "frame-ready", &options, &ready);
 *   Launch(stream);                                    // writes the buffer
 *   gpushm_signal_record(ready, stream, 1);            // when that is done, the signal is at 1
 *
 *   gpushm_signal_open(client, "frame-ready", NULL, &ready);   // Consumer
 *   gpushm_signal_wait_on_stream(ready, stream, 1);    // what follows on the stream runs after it
 *   Launch(stream);                                    // reads the buffer
 *   cuStreamSynchronize(stream);
 *   gpushm_signal_check(ready, 1);                     // OK: the result counts. Else not
 *
 * The rules of gpushm.h hold: statuses, options, timeouts, threads. Any thread may use a signal,
 * barrier or ring at any time, but at its close no other thread may be in a call with it: a thread
 * that waits there must have come back first, by its timeout if nothing else ends the wait.
 * Streams are CUstream or cudaStream_t; their context must be current on the calling thread.
 */
#ifndef GPUSHM_SYNC_H_
#define GPUSHM_SYNC_H_

#include "gpushm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Largest value of a signal. */
#define GPUSHM_SIGNAL_MAX (UINT64_C(1) << 62)

/* ------------------------------------------------------------------ signals
 *
 * A signal is a 64-bit counter with a name. One process writes it: only upwards, from 0. Any number
 * wait for it: on the host with a deadline, or in a stream.
 *
 * A wait in a stream has no deadline, as nothing in CUDA has: it ends when the value is reached or
 * when the writer ends, however it ends. What the stream did behind it then is worth something only
 * if gpushm_signal_check says GPUSHM_OK.
 *
 * How a writer ended is in the status, here and with barriers and rings: GPUSHM_ENDED, it closed
 * what it wrote and there is no more; GPUSHM_PEER_DIED, its process ended without that, by exit()
 * too. The writer's successor makes a new generation of the signal, at 0 again; whoever waits for
 * the old one gets one of the two and opens the signal again. */

typedef struct gpushm_signal gpushm_signal;

typedef enum gpushm_signal_role {
  GPUSHM_SIGNAL_WAITER = 0, /* Reads and waits: the page is mapped read-only. */
  GPUSHM_SIGNAL_WRITER = 1  /* Moves it. One process at a time. */
} gpushm_signal_role;

/* Where streams wait for the counter. Hosts wait on the page, whichever it is.
 *
 * GPUSHM_SIGNAL_HOST_PAGE is right for streams and hosts: both move it, it needs no GPU memory, and
 * a writer's end releases whoever waits at once.
 *
 * GPUSHM_SIGNAL_DEVICE_MEMORY is for kernels that
 * look at the counter themselves (gpushm/device.cuh) and stay off PCIe so; from stream to stream it
 * is no faster. Only streams move it (_record), it takes 2 MiB of the pool, and a writer's end
 * releases streams as soon as a process that the sidecar starts for it has made a context, which
 * takes about 0.2 s. */
typedef enum gpushm_signal_memory {
  GPUSHM_SIGNAL_HOST_PAGE = 0,
  GPUSHM_SIGNAL_DEVICE_MEMORY = 1
} gpushm_signal_memory;

typedef struct gpushm_signal_options {
  size_t struct_size;
  uint32_t role;    /* gpushm_signal_role */
  uint32_t writers; /* gpushm_writers, for one that this call makes: whose containers may write.
                       One that the pod declares (signals.gpushm.io/<name>) has the pod's rules. */
  /* Waiter: until a signal of that name is there and its writer has not ended. Writer: until the
   * former writer has ended, and the pool has room beside what its waiters still hold. */
  int64_t timeout_ms;
  uint32_t memory;   /* gpushm_signal_memory, for one that this call makes. Waiters find out. */
  uint32_t reserved; /* 0. */
} gpushm_signal_options;

/* Opens a signal; a writer makes it if it is not there, or if its former writer has ended. Needs no
 * GPU, but for the writer of one in device memory; a waiter of such a one that sees no GPU can wait
 * on the host. That memory is the buffer "<name>-signal".
 * Errors: TIMEOUT; NOT_FOUND and BUSY (its writer lives) with GPUSHM_DONT_WAIT; DENIED;
 * INVALID_ARGUMENT (the name is a buffer's, or "<name>-signal" is another's); EXHAUSTED
 * (docs/reference/limits.md, or the pool); UNSUPPORTED (the sidecar is older, or has not the host
 * memory that a signal in device memory needs when its writer ends); UNAVAILABLE. */
GPUSHM_API gpushm_status gpushm_signal_open(gpushm_client* client, const char* name,
                                            const gpushm_signal_options* options,
                                            gpushm_signal** signal);

/* Lets go of it. A writer's close ends the signal: waits that are not satisfied end with ENDED.
 * Errors: BUSY: work of this process still records it or waits for it in a stream; nothing is done,
 * synchronise and call again. NULL is allowed. */
GPUSHM_API gpushm_status gpushm_signal_close(gpushm_signal* signal);

/* When all work that is on `stream` now is done, and its writes are visible everywhere, the signal
 * gets `value`: larger than the last one that this writer gave. Does not wait.
 * Errors: INVALID_ARGUMENT (not its writer; not larger); UNSUPPORTED (the stream is being captured:
 * a graph would give the same value with each launch, see gpushm/device.cuh); ORPHANED (a new
 * broker does not know it); DRIVER. */
GPUSHM_API gpushm_status gpushm_signal_record(gpushm_signal* signal, void* stream, uint64_t value);

/* The same from the host, now. Errors: as above; BUSY: a recorded value is still on its way;
 * UNSUPPORTED: it is in device memory. */
GPUSHM_API gpushm_status gpushm_signal_set(gpushm_signal* signal, uint64_t value);

/* What is put on `stream` from now on runs once the signal is at `value` or above. Does not wait
 * itself. Streams that wait are scarce: a process may have CUDA_DEVICE_MAX_CONNECTIONS - 1 of them
 * (that is 7 unless set; 31 at most).
 * Errors: EXHAUSTED (too many streams wait: the text says what to do); INVALID_ARGUMENT (its writer
 * is this process: use an event); BUSY (nobody writes it yet, and nobody would end the wait: wait
 * for its first value on the host); UNSUPPORTED (the stream is being captured); ENDED, PEER_DIED
 * (it will never be there); DRIVER; in device memory those of gpushm_attach, where this process
 * could not map it. */
GPUSHM_API gpushm_status gpushm_signal_wait_on_stream(gpushm_signal* signal, void* stream,
                                                      uint64_t value);

/* Waits on the host until the signal is at `value` or above. `timeout_ms` as everywhere: 0 is the
 * default, GPUSHM_DONT_WAIT looks once. Spins for 20 us, then sleeps in steps of up to 200 us.
 * Errors: TIMEOUT, ENDED, PEER_DIED. */
GPUSHM_API gpushm_status gpushm_signal_wait(gpushm_signal* signal, uint64_t value,
                                            int64_t timeout_ms);

/* Whether what comes after a wait in a stream counts. OK: the signal got to `value`. BUSY: not yet.
 * ENDED, PEER_DIED: it never will. */
GPUSHM_API gpushm_status gpushm_signal_check(gpushm_signal* signal, uint64_t value);

typedef enum gpushm_signal_state {
  GPUSHM_SIGNAL_UNUSED = 0, /* Nobody has written it yet. */
  GPUSHM_SIGNAL_LIVE = 1,
  GPUSHM_SIGNAL_DIED = 2, /* Its writer's process ended. */
  GPUSHM_SIGNAL_LEFT = 3  /* Its writer closed it. */
} gpushm_signal_state;

typedef struct gpushm_signal_info {
  size_t struct_size;
  char name[GPUSHM_NAME_BYTES];
  uint64_t generation;
  uint64_t value;    /* If it has ended: the last one before. */
  uint32_t state;    /* gpushm_signal_state */
  uint32_t role;     /* gpushm_signal_role of this handle. */
  uint64_t recorded; /* Writer: the last value that was given. */
  uint32_t memory;   /* gpushm_signal_memory */
  uint32_t reserved;
} gpushm_signal_info;

/* One look, no system call. */
GPUSHM_API gpushm_status gpushm_signal_get_info(const gpushm_signal* signal,
                                                gpushm_signal_info* info);

/* Where kernels find the counter (gpushm/device.cuh): an address of the current context, valid
 * until the signal is closed. A waiter's may only be read. In device memory, hosts do not see what
 * a writer's kernel stores there: record the value as well. Errors: UNSUPPORTED (no current
 * context). */
GPUSHM_API gpushm_status gpushm_signal_device_address(gpushm_signal* signal, uint64_t* address);

/* ------------------------------------------------------------------ barriers
 *
 * A barrier lets `participants` processes pass a point together, again and again: the n-th wait of
 * each belongs to the n-th point. All are equal; whoever comes first makes it.
 *
 * A participant that ends, however it ends, breaks the barrier for all and for good: at the first
 * point that it had not arrived at the others get ENDED if it closed the barrier, PEER_DIED if a
 * participant died. All close it and open it again, which
 * makes a new generation. */

typedef struct gpushm_barrier gpushm_barrier;

typedef struct gpushm_barrier_options {
  size_t struct_size;
  uint32_t participants; /* 1 to 128; all give the same number. */
  uint32_t reserved;     /* 0. */
  int64_t timeout_ms;    /* Until there is a place: one of a former participant, say. */
} gpushm_barrier_options;

/* Takes part in a barrier. Does not wait for the others. Needs no GPU.
 * Errors: TIMEOUT, BUSY with GPUSHM_DONT_WAIT (all participants are there, and live);
 * INVALID_ARGUMENT (it is for another number; the name is another thing's); DENIED; EXHAUSTED
 * (docs/reference/limits.md); UNSUPPORTED (the sidecar is older); UNAVAILABLE. */
GPUSHM_API gpushm_status gpushm_barrier_open(gpushm_client* client, const char* name,
                                             const gpushm_barrier_options* options,
                                             gpushm_barrier** barrier);

/* Leaves it, which breaks it for the others. Errors: BUSY: a stream of this process is still to
 * arrive, or waits for the others; nothing is done, synchronise and call again. NULL is allowed. */
GPUSHM_API gpushm_status gpushm_barrier_close(gpushm_barrier* barrier);

/* Arrives at the next point and waits on the host until all have. After TIMEOUT, whose text says
 * who is missing, a further call waits for the same point and does not arrive again.
 * Errors: TIMEOUT; ENDED, PEER_DIED; BUSY (a stream is still to arrive); ORPHANED (a new broker
 * does not know it: close and open again). */
GPUSHM_API gpushm_status gpushm_barrier_wait(gpushm_barrier* barrier, int64_t timeout_ms);

/* The stream arrives at the next point when its work is done, and what is put on it from now on
 * runs when all others have arrived. Does not wait itself. What the stream did behind it is worth
 * something only if gpushm_barrier_check says GPUSHM_OK. Counts as one stream that waits, see
 * gpushm_signal_wait_on_stream. The wait for a participant ends when it arrives or ends, or when it
 * is told of another one's end.
 * Errors: BUSY (not all have joined: pass a first point with gpushm_barrier_wait; another stream is
 * still to arrive; the host still waits for a point); INVALID_ARGUMENT (another participant is in
 * this process); EXHAUSTED (too many streams wait); UNSUPPORTED (the stream is being captured);
 * ENDED, PEER_DIED; ORPHANED. With these it has not arrived. DRIVER: what follows does not wait. */
GPUSHM_API gpushm_status gpushm_barrier_wait_on_stream(gpushm_barrier* barrier, void* stream);

/* Whether the last point that this participant was told to arrive at was passed. OK: by all. BUSY:
 * not yet. ENDED, PEER_DIED: it never will be. */
GPUSHM_API gpushm_status gpushm_barrier_check(gpushm_barrier* barrier);

typedef struct gpushm_barrier_info {
  size_t struct_size;
  char name[GPUSHM_NAME_BYTES];
  uint64_t generation;
  uint64_t point; /* The last one that this participant was told to arrive at; 0: none. */
  uint32_t participants;
  uint32_t joined; /* So many have come, also those that have ended. */
  uint32_t cell;   /* This participant's place: from 0. */
  uint32_t reserved;
} gpushm_barrier_info;

/* One look, no system call. */
GPUSHM_API gpushm_status gpushm_barrier_get_info(const gpushm_barrier* barrier,
                                                 gpushm_barrier_info* info);

/* ------------------------------------------------------------------ rings and queues
 *
 * A ring hands frames on: one writer, any number of readers, no copy. Its frames lie in slots of a
 * buffer; a frame of up to `frame_bytes` has a number (1, 2, 3 ...), 64 bytes of the writer's own,
 * and is complete when the writer's stream gets there. Three policies:
 *   - GPUSHM_RING_OVERWRITE_OLDEST: the writer never waits. Each reader gets the frames that it is
 *     in time for, and each frame says how many were lost before it.
 *   - GPUSHM_RING_BACK_PRESSURE: no reader loses a frame. The writer waits for the slowest reader.
 *   - GPUSHM_RING_QUEUE: each frame goes to one reader, a worker. If that worker dies or gives the
 *     frame back (gpushm_ring_abandon_read), another worker gets it.
 *
 * Reading and writing go between a begin and an end, which take the stream that does the work:
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
 *   if (gpushm_ring_end_read(ring, stream, &frame, 0)) ...    // not OK: the result does not count
 */

typedef struct gpushm_ring gpushm_ring;

/* In place of a stream, where the host does the work: an end says that it is done, a begin waits
 * until it may begin. */
#define GPUSHM_NO_STREAM ((void*)~(uintptr_t)0)

/* Bytes that travel with a frame. */
#define GPUSHM_METADATA_BYTES 64

typedef enum gpushm_ring_role {
  GPUSHM_RING_READER = 0, /* Of a queue: a worker. */
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
  /* What a writer makes; readers leave these 0. */
  uint32_t policy;      /* gpushm_ring_policy */
  uint32_t frames;      /* Slots: 2 to 1,024. 0: 8. */
  uint32_t readers;     /* At most so many at a time: 1 to 127. 0: 15. */
  uint64_t frame_bytes; /* Largest frame. */
  /* Back-pressure: every frame waits while there are fewer readers than this, also after one has
   * closed or died. 0: readers that have gone hold nobody up. For a start together take
   * start_readers. */
  uint32_t need_readers;
  /* Reader of a ring. 1: begins with the oldest frame that is there. 0: with the next one. */
  uint32_t from_oldest;
  /* Reader: until a ring of that name is there whose writer has not ended. Writer: until the former
   * writer has ended, and the pool has room beside what its readers still hold. */
  int64_t timeout_ms;
  /* Back-pressure: the first frame waits until so many readers are there at a time; afterwards the
   * writer goes on with those that are left (need_readers). 0: it begins at once. */
  uint32_t start_readers;
  /* 1: the ring's memory stays when nobody has the ring open any more, until both its names are
   * deleted. 0: it goes back to the pool then. */
  uint32_t keep;
  /* What the frames are, for a later version that compares it when a ring is opened. All 0: not
   * said. Anything else is UNSUPPORTED. */
  unsigned char type[GPUSHM_TYPE_BYTES];
} gpushm_ring_options;

/* Takes part in a ring. A writer makes it if it is not there, or if its former writer has ended:
 * then with new memory, so that readers of the former one are not disturbed. The frames are the
 * buffer `name`, declared in the pod's annotations or made here in its pool (`frames` x
 * `frame_bytes`, each rounded up to 512); their state is a page, "<name>-ring".
 * When nobody has the ring open any more, both go back, but for a buffer that was there before.
 * Errors: TIMEOUT; NOT_FOUND and BUSY with GPUSHM_DONT_WAIT; EXHAUSTED (the pool, or all places of
 * readers are taken); DENIED; INVALID_ARGUMENT; UNSUPPORTED (the sidecar is older). */
GPUSHM_API gpushm_status gpushm_ring_open(gpushm_client* client, const char* name,
                                          const gpushm_ring_options* options, gpushm_ring** ring);

/* Leaves it. A writer's close ends the ring: readers get the frames that are complete, then
 * ENDED. Errors: BUSY: frames are open, or streams of this process still work on some; nothing
 * is done, synchronise and call again. NULL is allowed. */
GPUSHM_API gpushm_status gpushm_ring_close(gpushm_ring* ring);

typedef enum gpushm_frame_ready {
  GPUSHM_FRAME_READY_ALREADY = 0, /* It was complete when the read began. */
  GPUSHM_FRAME_READY_STREAM = 1,  /* The stream waits for it. */
  GPUSHM_FRAME_READY_HOST = 2     /* The host waited for it: no stream, or too many wait already. */
} gpushm_frame_ready;

typedef struct gpushm_frame {
  size_t struct_size;
  uint64_t address;        /* Of its first byte on the GPU. */
  uint64_t capacity_bytes; /* Room from there. */
  uint64_t bytes;          /* Used: set before gpushm_ring_end_write. */
  uint64_t number;         /* From 1; of a ring's generation. */
  int64_t time_ns;         /* CLOCK_MONOTONIC when its write ended. */
  uint64_t lost;           /* Frames between the last one that this reader got and this. */
  uint32_t delivery;       /* Queue: how often it was given to a worker, this time included. */
  uint32_t ready;          /* gpushm_frame_ready */
  unsigned char metadata[GPUSHM_METADATA_BYTES]; /* The writer's: set before end_write. */
  uint32_t slot;                                 /* The library's own, do not change. */
  uint32_t hold;                                 /* The library's own, do not change. */
} gpushm_frame;

/* A slot for the next frame, which nobody else uses. One frame of a writer is open at a time.
 * Errors: BUSY (overwrite-oldest: readers hold all slots, the frame is dropped and counted);
 * TIMEOUT (back-pressure, queue: the text names the slowest reader); ORPHANED (a new broker does
 * not know this writer: close and open again). */
GPUSHM_API gpushm_status gpushm_ring_begin_write(gpushm_ring* ring, gpushm_frame* frame,
                                                 int64_t timeout_ms);
/* The frame is complete when all work that is on `stream` now is done; readers know of it at once.
 * Errors: INVALID_ARGUMENT (more bytes than fit; not open); UNSUPPORTED (the stream is being
 * captured); DRIVER; ORPHANED. With these the frame is still open, and nobody has seen it. */
GPUSHM_API gpushm_status gpushm_ring_end_write(gpushm_ring* ring, const gpushm_frame* frame,
                                               void* stream);
/* Gives the open frame up: nobody saw it, its number is the next one's. */
GPUSHM_API gpushm_status gpushm_ring_abandon_write(gpushm_ring* ring);

/* The next frame, which stays as it is until gpushm_ring_end_read. Work put on `stream` from now on
 * runs when it is complete. A reader may have eight frames of a ring open, any number of a queue's.
 * Errors: TIMEOUT (a frame that is announced, but not complete, is not lost: the next call gets
 * it); ENDED, PEER_DIED (the writer has closed it or died, and there is no more); EXHAUSTED (too
 * many are open); ORPHANED. */
GPUSHM_API gpushm_status gpushm_ring_begin_read(gpushm_ring* ring, void* stream,
                                                gpushm_frame* frame, int64_t timeout_ms);
/* As above, but the newest frame; those before it are lost. Not of a queue. */
GPUSHM_API gpushm_status gpushm_ring_begin_read_newest(gpushm_ring* ring, void* stream,
                                                       gpushm_frame* frame, int64_t timeout_ms);
/* Gives the frame back when all work that is on `stream` now is done. Waits until the frame is
 * complete, which the stream waits for as well.
 * OK: what was read was the frame. ENDED, PEER_DIED: the writer ended before it was complete; the
 * frame is given back, and what was read is worth nothing. ORPHANED: a new broker does not know
 * this reader; the frame is over, what was read is worth nothing, and a queue's item goes to
 * another worker: close the ring and open it again. With these the frame has ended.
 * TIMEOUT: nothing is done, call again. DRIVER (it refused the store), UNSUPPORTED (the stream is
 * being captured): the frame is still open. INVALID_ARGUMENT: it is not open, it was ended before,
 * say. */
GPUSHM_API gpushm_status gpushm_ring_end_read(gpushm_ring* ring, void* stream,
                                              const gpushm_frame* frame, int64_t timeout_ms);

/* Gives a frame back that was not used: no wait, no answer whether it counted. A ring's is released
 * when all work that is on `stream` now is done. A queue's item goes to whichever worker asks next,
 * this one too, with a higher `delivery`, at once: what still reads it on a stream may see another
 * item's bytes. An item that makes every worker fail would come back for ever: a worker that sees a
 * `delivery` higher than it wants to try ends the item (gpushm_ring_end_read) and reports it.
 * Errors: INVALID_ARGUMENT (not open); UNSUPPORTED (the stream is being captured). */
GPUSHM_API gpushm_status gpushm_ring_abandon_read(gpushm_ring* ring, void* stream,
                                                  const gpushm_frame* frame);

typedef struct gpushm_ring_info {
  size_t struct_size;
  char name[GPUSHM_NAME_BYTES];
  uint64_t generation; /* Of its page. */
  uint32_t role;       /* gpushm_ring_role */
  uint32_t policy;     /* gpushm_ring_policy */
  uint32_t frames;
  uint32_t readers; /* At most. */
  uint64_t frame_bytes;
  uint64_t newest;       /* Number of the newest frame; 0: none yet. */
  uint64_t dropped;      /* By the writer. */
  uint64_t taken;        /* By this reader. */
  uint64_t lost;         /* To this reader. */
  uint32_t writer_state; /* gpushm_signal_state */
  uint32_t reserved;
} gpushm_ring_info;
/* One look, no system call. */
GPUSHM_API gpushm_status gpushm_ring_get_info(const gpushm_ring* ring, gpushm_ring_info* info);

/* ------------------------------------------------------------------ looking
 *
 * What a name stands for and where it is, for whoever takes no part in it: gpushm_info of such a
 * name says GPUSHM_TRANSPORT_HOST. */

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
  /* Signal: its counter. Ring, queue: the newest complete frame. Barrier: the last point that all
   * have arrived at. If it has ended: the last one before. */
  uint64_t value;
  uint64_t writer_lease; /* That of gpushm_holder; 0: nobody has written it. Barrier: 0. */
  uint32_t kind;         /* gpushm_sync_kind */
  uint32_t state;        /* gpushm_signal_state of its writer; barrier: of one that broke it. */
  uint32_t joined;       /* Participants that live: writer and readers. */
  uint32_t places;       /* For participants. A signal's waiters need none. */
} gpushm_sync_info;

/* Attaches its page for reading, looks, and detaches again: messages to the broker.
 * Errors: NOT_FOUND, DENIED, INVALID_ARGUMENT (it is a buffer), UNAVAILABLE. */
GPUSHM_API gpushm_status gpushm_sync_lookup(gpushm_client* client, const char* name,
                                            gpushm_sync_info* info);

#ifdef __cplusplus
} /* extern "C" */
#endif

/* The names of version 0.1, as in gpushm.h. */
#ifndef GPUSHM_NO_DEPRECATED
#include "deprecated_sync.h"
#endif

#endif /* GPUSHM_SYNC_H_ */
