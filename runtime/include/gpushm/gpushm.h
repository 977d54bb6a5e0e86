/* gpushm: named GPU memory that the containers of a pod share, as POSIX shm does for host memory.
 *
 *   gpushm_client* client;
 *   gpushm_attachment* weights;
 *   if (gpushm_open(NULL, &client) || gpushm_attach(client, "weights", NULL, &weights))
 *     return fprintf(stderr, "%s\n", gpushm_last_error()->text), 1;
 *   CUdeviceptr p = gpushm_attachment_address(weights);  // use it on the GPU
 *   gpushm_attachment_detach(weights, NULL);
 *   gpushm_close(client);
 *
 * Rules
 *   - Every function that can fail returns a gpushm_status; 0 is success. After a failure,
 *     gpushm_last_error() has the cause and the remedy for the calling thread.
 *   - Options are structs whose first member is their size. GPUSHM_INIT sets it and zeroes the
 * rest; then set what you need. NULL means all defaults. Reserved fields stay 0. A program that was
 *     compiled with an older header keeps working with a newer library: structs only grow at their
 *     end, and the library reads and writes at most `struct_size` bytes
 *     (docs/reference/compatibility.md).
 *   - Every call that can wait has a `timeout_ms`, in milliseconds, in its options or as its last
 *     parameter. 0, the default, is GPUSHM_DEFAULT_TIMEOUT_MS. GPUSHM_DONT_WAIT does not wait. No
 *     wait is without a limit, except for a copy by gpushm_offer without a stream.
 *   - Any thread may call any function at any time, also on the same client, with two exceptions.
 * At its last detach, no other thread may use an attachment. At its close, no other thread may use
 *     a client or anything that was opened with it. Later calls return GPUSHM_INVALID_ARGUMENT.
 *   - The library never exits, aborts or throws, installs no signal handlers, and keeps no CUDA
 *     context after a call. Only loads and saves start threads, for the file
 *     (gpushm_transfer_options.threads). They block all signals and end with the call. The library
 *     needs libc, and loads libcuda.so.1 at the first attach.
 *   - After fork(), the child cannot use what the parent opened: calls with it, gpushm_close
 *     included, return GPUSHM_FORKED and change nothing. The child may open a client of its own. If
 *     CUDA was initialised before the fork, by the application or by the first attach, it does not
 *     work in the child, and attaching returns GPUSHM_FORKED as well. Fork before CUDA is used, or
 *     start the child with exec (in Python, the start method "spawn").
 *
 * Names are DNS labels (RFC 1123): 1 to 63 characters of a-z, 0-9 and '-', without a '-' at either
 * end.
 */
#ifndef GPUSHM_GPUSHM_H_
#define GPUSHM_GPUSHM_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(GPUSHM_BUILDING_LIBRARY)
#define GPUSHM_API __attribute__((visibility("default")))
#else
#define GPUSHM_API
#endif

#define GPUSHM_VERSION_MAJOR 1
#define GPUSHM_VERSION_MINOR 0
#define GPUSHM_VERSION_PATCH 0

/* Size of a name in bytes, with its terminating NUL. */
#define GPUSHM_NAME_BYTES 64
#define GPUSHM_UUID_BYTES 16
/* Bytes of the text of a digest, with its terminating NUL: "g1:" and 32 hexadecimal digits. */
#define GPUSHM_DIGEST_BYTES 40
/* Bytes of a type, see gpushm_create_options. */
#define GPUSHM_TYPE_BYTES 16

/* Milliseconds that a call waits if `timeout_ms` is 0. */
#define GPUSHM_DEFAULT_TIMEOUT_MS 10000
/* A value of `timeout_ms`: the call does not wait, and fails with the reason instead (NOT_FOUND,
 * LOADING, UNAVAILABLE ...). A broker that runs still has one second to answer. */
#define GPUSHM_DONT_WAIT (-1)

/* Zeroes an options or info struct and sets its size:
 *   gpushm_attach_options options; GPUSHM_INIT(&options); */
#define GPUSHM_INIT(pointer)                                                                      \
  do {                                                                                            \
    unsigned char* gpushm_bytes_ = (unsigned char*)(pointer);                                     \
    size_t gpushm_i_;                                                                             \
    for (gpushm_i_ = 0; gpushm_i_ < sizeof *(pointer); ++gpushm_i_) gpushm_bytes_[gpushm_i_] = 0; \
    (pointer)->struct_size = sizeof *(pointer);                                                   \
  } while (0)

/* The result of a call. The numbers never change, and later versions may add some. */
typedef enum gpushm_status {
  GPUSHM_OK = 0,
  GPUSHM_INVALID_ARGUMENT = 1, /* An argument is invalid; the text names it. */
  GPUSHM_NOT_FOUND = 2,        /* No buffer, file or GPU of that name. */
  GPUSHM_ALREADY_EXISTS = 3,   /* The name is taken. */
  GPUSHM_DENIED = 4,           /* The pod's annotations do not allow this container to do it. */
  GPUSHM_EXHAUSTED = 5, /* A limit (docs/reference/limits.md), the pod's pool or the GPU is full. */
  GPUSHM_CONTENDED = 6, /* Bounded retries ran out; try again. */
  GPUSHM_TIMEOUT = 7,   /* The deadline passed. */
  GPUSHM_INCOMPATIBLE = 8, /* The library and the broker have no protocol version in common. */
  GPUSHM_CORRUPT = 9,      /* Shared or received bytes are invalid. */
  GPUSHM_UNAVAILABLE = 10, /* No broker answers. */
  GPUSHM_ORPHANED = 11,    /* The broker restarted without this buffer. */
  GPUSHM_STALE = 12,       /* The name refers to another generation now, or was deleted. */
  GPUSHM_PEER_DIED = 13,   /* The process at the other end died. */
  GPUSHM_DEVICE_LOST = 14, /* The GPU must be reset. */
  GPUSHM_BUSY = 15,        /* Work still uses it, or another process writes it. */
  GPUSHM_UNSUPPORTED = 16, /* This driver, GPU, kernel or memory cannot do it. */
  GPUSHM_DRIVER = 17,      /* A CUDA call failed; the text says which and how. */
  GPUSHM_SYSTEM = 18,      /* A system call failed; the text says which and how. */
  GPUSHM_FORKED = 19,      /* A child of fork() used what its parent opened: see the rules above. */
  GPUSHM_LOADING = 20,     /* The buffer's content is still being loaded. */
  GPUSHM_INTERNAL = 21,    /* A bug in gpushm; please report it. */
  GPUSHM_ENDED = 22        /* Its writer, or a participant of a barrier, closed it (sync.h). */
} gpushm_status;

/* Why the last call of this thread that failed did so. */
typedef struct gpushm_error {
  gpushm_status status;
  const char* text;   /* "NOT_FOUND: no buffer "weigths". Remedy: ..." one line, for humans. */
  const char* what;   /* The cause alone. */
  const char* remedy; /* What to do about it; "" if there is nothing to say. */
} gpushm_error;

/* Never NULL. The status is GPUSHM_OK before the first failure. The texts are valid until the next
 * gpushm call of this thread. */
GPUSHM_API const gpushm_error* gpushm_last_error(void);
/* The name of a status without its prefix, such as "NOT_FOUND". "UNKNOWN" for a number that this
 * library does not know. Never NULL. */
GPUSHM_API const char* gpushm_status_name(gpushm_status status);
/* The version of the library in use: major * 10000 + minor * 100 + patch. */
GPUSHM_API int gpushm_version(void);

typedef struct gpushm_client gpushm_client;
typedef struct gpushm_attachment gpushm_attachment;

typedef enum gpushm_access {
  GPUSHM_ACCESS_READ = 1, /* Mapped PROT_READ: a store by a kernel faults (in this process only).
                      Transport cuipc cannot enforce it: see gpushm_info.transport. */
  GPUSHM_ACCESS_READ_WRITE = 2 /* Granted only to writers, see docs/reference/annotations.md. */
} gpushm_access;

typedef enum gpushm_transport {
  GPUSHM_TRANSPORT_VMM = 1, /* A file descriptor of cuMemCreate memory: works in every container. */
  GPUSHM_TRANSPORT_CUIPC = 2, /* A 64-byte cuIpc handle, for processes with other PID numbers. */
  GPUSHM_TRANSPORT_HOST = 3   /* The sync page of a signal, barrier or ring (sync.h). */
} gpushm_transport;

typedef enum gpushm_buffer_state {
  GPUSHM_BUFFER_LOADING = 1, /* Content is still being loaded or written; attach waits. */
  GPUSHM_BUFFER_READY = 2,
  GPUSHM_BUFFER_WRITER_DIED = 3, /* A writer died: content may be half-written; attach works. */
  GPUSHM_BUFFER_FAILED = 4       /* Loading failed; gpushm_lookup_reason says why. */
} gpushm_buffer_state;

/* ------------------------------------------------------------------ connecting */

typedef struct gpushm_open_options {
  size_t struct_size;
  /* Folder of the broker's socket. NULL: $GPUSHM_DIR, or else /run/gpushm. */
  const char* folder;
  /* For hostIPC pods: the UID of the pod whose buffers are meant. It is looked up in /dev/shm, or
   * in `folder` if that is set. The process that listens there must run as the user who owns that
   * pod's list, or else the call returns DENIED. NULL: the broker of the own pod. */
  const char* pod_uid;
  /* Folder of libcuda.so.1. NULL: $GPUSHM_DRIVER, or else where the dynamic loader finds it. */
  const char* driver;
  /* How long to wait for the broker to come up. */
  int64_t timeout_ms;
} gpushm_open_options;

/* Connects to the broker. It needs no GPU, so a process without one can look up and list buffers.
 * Errors: UNAVAILABLE (there is no socket, or no process listens on it), DENIED (the socket is not
 * accessible), INCOMPATIBLE, EXHAUSTED (256 clients), TIMEOUT. */
GPUSHM_API gpushm_status gpushm_open(const gpushm_open_options* options, gpushm_client** client);

/* Detaches what is still attached, closes signals, barriers and rings that are still open, and
 * disconnects. Work that uses them must have ended. A later detach or close of one of them returns
 * GPUSHM_INVALID_ARGUMENT and does nothing. NULL is allowed. */
GPUSHM_API void gpushm_close(gpushm_client* client);

/* ------------------------------------------------------------------ looking up */

typedef struct gpushm_info {
  size_t struct_size;
  char name[GPUSHM_NAME_BYTES];
  uint64_t generation;   /* Increases when the name gets other memory. */
  uint64_t size_bytes;   /* As requested. */
  uint64_t mapped_bytes; /* Rounded up to the GPU's granularity (2 MiB). */
  uint64_t loaded_bytes; /* While LOADING: bytes so far. Afterwards see content_bytes. */
  int64_t created_unix_ns;
  uint8_t gpu_uuid[GPUSHM_UUID_BYTES];
  uint32_t transport;              /* gpushm_transport */
  uint32_t state;                  /* gpushm_buffer_state */
  char creator[GPUSHM_NAME_BYTES]; /* The container that made it; "" if an annotation did. */
  /* Number of bytes, from the start, that are content. The last load sets it, or
   * gpushm_attachment_set_content. If nothing set it, as in each new generation and in offered
   * memory, it is size_bytes. While LOADING and if FAILED, it is loaded_bytes. */
  uint64_t content_bytes;
  /* Of the generation's description (gpushm_description_open). 0: it has none, or its content is
   * LOADING or FAILED. */
  uint64_t description_bytes;
  uint32_t gpu;      /* Number of the GPU, among those of the pod, that holds the bytes. */
  uint32_t reserved; /* 0. */
  /* Says in short what the content is (docs/design/digest.md): equal digests mean equal tensors, or
   * equal bytes, whatever the files were. It finds mistakes, not malice. A load by name makes it,
   * and gpushm_attachment_digest. "" if nobody made it, and after somebody attached the buffer for
   * writing. */
  char digest[GPUSHM_DIGEST_BYTES];
} gpushm_info;

/* Finds a buffer by name, without a system call, in tens of nanoseconds. While no broker runs, it
 * gives what the last one said. It does not notice a new broker by itself: a call that talks to the
 * broker does (gpushm_wait, gpushm_list, gpushm_attach ...).
 * Errors: NOT_FOUND, INVALID_ARGUMENT (not a DNS label), CONTENDED, CORRUPT. */
GPUSHM_API gpushm_status gpushm_lookup(gpushm_client* client, const char* name, gpushm_info* info);

/* Longest reason, with its NUL. */
#define GPUSHM_REASON_BYTES 256

typedef struct gpushm_reason {
  size_t struct_size;
  uint64_t generation; /* Current when the reason was read. */
  uint32_t state;      /* gpushm_buffer_state */
  uint32_t status;     /* gpushm_status: what kind of reason it is. GPUSHM_OK: nobody stated one. */
  char text[GPUSHM_REASON_BYTES]; /* One line of UTF-8 without control characters; "" if none. */
} gpushm_reason;

/* Why a buffer has no content: what its load waits for, or why it failed. The process that loads it
 * states it, and it is the text in the errors of gpushm_wait and gpushm_attach. There is none while
 * a load makes progress, nor once the content is there. Otherwise as gpushm_lookup.
 * Experimental. */
GPUSHM_API gpushm_status gpushm_lookup_reason(gpushm_client* client, const char* name,
                                              gpushm_reason* reason);

/* Lists all buffers, ordered by name. It fills at most `capacity` entries, and stores the number of
 * buffers in *count. If *count is larger, call again with more room. `infos[0].struct_size`
 * (GPUSHM_INIT sets it) is the distance between the entries; the call sets that of the others.
 * Errors: as gpushm_lookup. */
GPUSHM_API gpushm_status gpushm_list(gpushm_client* client, gpushm_info* infos, size_t capacity,
                                     size_t* count);

typedef struct gpushm_wait_options {
  size_t struct_size;
  int64_t timeout_ms;
} gpushm_wait_options;

/* Waits until a buffer of that name exists, is not LOADING, and has a generation of at least
 * `min_generation` (0: any). Then it fills `info`, which may be NULL. To wait for new weights, call
 * gpushm_wait(client, "weights", seen.generation + 1, ...).
 * Errors: TIMEOUT (with what the load waits for, if its loader stated that), UNAVAILABLE (the
 * broker ended), SYSTEM (the load failed; the text says why). */
GPUSHM_API gpushm_status gpushm_wait(gpushm_client* client, const char* name,
                                     uint64_t min_generation, const gpushm_wait_options* options,
                                     gpushm_info* info);

/* One use of a buffer by a process. */
typedef struct gpushm_holder {
  size_t struct_size;
  char buffer[GPUSHM_NAME_BYTES];
  char container[GPUSHM_NAME_BYTES];
  uint64_t generation;
  uint64_t client_id; /* Number of the process's connection, unique while the broker runs. */
  uint64_t lease_id;
  uint32_t access; /* gpushm_access */
  uint32_t reserved;
  int64_t since_unix_ns;
  uint32_t peer_method; /* gpushm_peer_method */
  uint32_t reserved1;
} gpushm_holder;

/* Lists which processes use a buffer. `name` NULL: those of all buffers. `capacity`, `count` and
 * the struct_size of the first entry are as in gpushm_list.
 * Errors: UNAVAILABLE, TIMEOUT.
 * Experimental. */
GPUSHM_API gpushm_status gpushm_list_holders(gpushm_client* client, const char* name,
                                             gpushm_holder* holders, size_t capacity,
                                             size_t* count);

/* What the broker knows about itself. */
typedef struct gpushm_broker_info {
  size_t struct_size;
  char container[GPUSHM_NAME_BYTES];   /* The container of this process, as the broker sees it. */
  uint8_t gpu_uuid[GPUSHM_UUID_BYTES]; /* Of the first GPU; see gpushm_list_gpus. */
  uint64_t pool_bytes;                 /* Memory for the pod's buffers, on all of its GPUs. */
  uint64_t used_bytes;                 /* Allocated now: rounded sizes of all generations. */
  uint64_t broker_epoch;               /* Increases with each restart of the broker. */
  uint32_t protocol;                   /* Version of the protocol in use. */
  uint32_t clients;                    /* Connected now. */
  uint32_t leases;
  uint32_t simulated; /* 1: the simulated driver. */
} gpushm_broker_info;
/* Requests the broker's state. It waits GPUSHM_DEFAULT_TIMEOUT_MS at most.
 * Errors: UNAVAILABLE, TIMEOUT. */
GPUSHM_API gpushm_status gpushm_broker_get_info(gpushm_client* client, gpushm_broker_info* info);

/* One of the pod's GPUs. */
typedef struct gpushm_gpu_info {
  size_t struct_size;
  uint8_t gpu_uuid[GPUSHM_UUID_BYTES];
  uint64_t pool_bytes; /* Memory for the pod's buffers there. */
  uint64_t used_bytes; /* Allocated now: rounded sizes of all generations there. */
  uint32_t gpu;        /* Its number: 0 for the first. */
  uint32_t lost;       /* 1: it is unhealthy, and what is on it is DEVICE_LOST. */
} gpushm_gpu_info;

/* Lists the pod's GPUs in the order of their numbers; a pod has one unless its annotation
 * gpushm.io/gpus says more. `capacity`, `count` and the struct_size of the first entry are as in
 * gpushm_list. It waits GPUSHM_DEFAULT_TIMEOUT_MS at most.
 * Errors: UNAVAILABLE, TIMEOUT. */
GPUSHM_API gpushm_status gpushm_list_gpus(gpushm_client* client, gpushm_gpu_info* infos,
                                          size_t capacity, size_t* count);

/* ------------------------------------------------------------------ attaching */

/* How the GPUs of an attachment reach the buffer's bytes. With several GPUs, the slowest method.
 * docs/guides/peers.md */
typedef enum gpushm_peer_method {
  GPUSHM_PEER_NONE = 0,   /* Only the buffer's own GPU uses it. */
  GPUSHM_PEER_NVLINK = 1, /* Another GPU uses them in place, over NVLink. */
  GPUSHM_PEER_PCIE = 2,   /* The same over PCIe. */
  GPUSHM_PEER_STAGED = 3  /* Another GPU uses a copy in its memory, made at the attach. */
} gpushm_peer_method;

typedef struct gpushm_attach_options {
  size_t struct_size;
  uint32_t access;     /* gpushm_access; 0: GPUSHM_ACCESS_READ. */
  uint32_t reserved;   /* 0. */
  uint64_t generation; /* 0: the current one. Otherwise exactly this one, or STALE. */
  int64_t timeout_ms;  /* Also waits for a buffer that does not exist yet or is LOADING. */
  /* Bit i: the GPU with ordinal i in this process uses the buffer as well. 0: only its own GPU. */
  uint64_t peer_devices;
  /* 1: if the one GPU of peer_devices cannot reach the bytes, it gets a copy (only with
   * GPUSHM_ACCESS_READ). The copy takes as much memory of that GPU, and later writes never appear
   * in it. 0: that is UNSUPPORTED. */
  uint32_t stage;
  uint32_t reserved1; /* 0. */
} gpushm_attach_options;

/* Maps a buffer into this process. While the process holds the buffer with the same access, a
 * further attach returns the same attachment and counts it, in less than a microsecond. An attach
 * for more GPUs is another attachment. It needs no CUDA context, except that a buffer of transport
 * cuipc needs a current one.
 * Errors: NOT_FOUND or LOADING (with GPUSHM_DONT_WAIT), TIMEOUT, DENIED, BUSY (a one-writer buffer
 * that has its writer), STALE, UNSUPPORTED (cuipc between equal PID numbers: offer with a copy; a
 * GPU of peer_devices that cannot reach it), EXHAUSTED, DRIVER, DEVICE_LOST, UNAVAILABLE, FORKED
 * (CUDA was initialised before fork()). */
GPUSHM_API gpushm_status gpushm_attach(gpushm_client* client, const char* name,
                                       const gpushm_attach_options* options,
                                       gpushm_attachment** attachment);

/* Device address (a CUdeviceptr), valid until the last detach. 0 if it is not attached. */
GPUSHM_API uint64_t gpushm_attachment_address(const gpushm_attachment* attachment);
/* Size in bytes, as requested when the buffer was made. 0 if it is not attached. */
GPUSHM_API uint64_t gpushm_attachment_size(const gpushm_attachment* attachment);

/* Whether the attachment is still what its name refers to: one load, no system call. OK also while
 * it waits for gpushm_attachment_publish. The mapping stays valid in every case.
 * Errors: STALE (the name has another generation, or was deleted), ORPHANED (the broker restarted
 * without these bytes; the library knows it once a call has reached the new broker). */
GPUSHM_API gpushm_status gpushm_attachment_check(const gpushm_attachment* attachment);

typedef struct gpushm_attachment_info {
  size_t struct_size;
  char name[GPUSHM_NAME_BYTES];
  uint64_t address;
  uint64_t size_bytes;
  uint64_t mapped_bytes;
  uint64_t generation;
  uint64_t lease_id;
  uint32_t access;       /* gpushm_access */
  uint32_t transport;    /* gpushm_transport */
  uint32_t status;       /* The result of gpushm_attachment_check, or DEVICE_LOST. */
  uint32_t state;        /* gpushm_buffer_state of the name now; 0 if it was deleted. */
  int32_t device;        /* Ordinal, in this process, of the GPU that holds the bytes. */
  uint32_t count;        /* Attaches not yet detached. */
  uint64_t peer_devices; /* Other GPUs that use them: bit i is ordinal i. */
  uint32_t peer_method;  /* gpushm_peer_method */
  uint32_t reserved;
  uint64_t content_bytes; /* As in gpushm_info, of this generation, as far as is known here. */
} gpushm_attachment_info;
/* Fills in everything known about an attachment, without a message or a system call.
 * Errors: INVALID_ARGUMENT. */
GPUSHM_API gpushm_status gpushm_attachment_get_info(const gpushm_attachment* attachment,
                                                    gpushm_attachment_info* info);

typedef struct gpushm_detach_options {
  size_t struct_size;
  /* Streams (CUstream) with work that may still use the buffer. The library cannot see others. */
  void* const* streams;
  size_t stream_count;
  /* 0: if work on them is pending, the call returns BUSY and detaches nothing. 1: the buffer is
   * detached once that work has ended; a later call on the client, or gpushm_close, then undoes the
   * mapping. */
  uint32_t defer;
  uint32_t reserved; /* 0. */
} gpushm_detach_options;

/* Undoes one attach; the last detach unmaps the buffer. It never synchronises: the options say
 * which streams used the buffer. With NULL, the caller guarantees that all work has ended. NULL as
 * the attachment is allowed.
 * Errors: BUSY (work on the streams is pending, and `defer` is 0), INVALID_ARGUMENT, DRIVER. */
GPUSHM_API gpushm_status gpushm_attachment_detach(gpushm_attachment* attachment,
                                                  const gpushm_detach_options* options);

typedef struct gpushm_advance_options {
  size_t struct_size;
  /* Streams (CUstream) with work that uses the buffer. The call waits until it has ended. The
   * library cannot see others. */
  void* const* streams;
  size_t stream_count;
  uint64_t generation; /* 0: the newest. Otherwise that one. */
  int64_t timeout_ms; /* For the streams, and for a generation that does not exist or is LOADING. */
} gpushm_advance_options;

/* New content at the same address: puts a newer generation of the buffer in place of the attached
 * one. Pointers, and CUDA graphs that were captured with them, then use the new bytes. All attaches
 * of this process with that name and access share the attachment, and see them, too. It costs 0.1
 * to 0.6 ms for 64 MiB to 16 GiB (../docs/benchmarks/README.md). If no newer generation exists, the
 * call changes nothing and returns OK; gpushm_attachment_get_info tells the generation.
 *
 * No work may use the buffer during the call, on any stream, and no other thread may be in a call
 * with this attachment. After an error, the attachment is as it was before, except after
 * DEVICE_LOST: then nothing is mapped at the address any more, and the attachment can only be
 * detached.
 * Errors: INVALID_ARGUMENT (the new generation has another size; an unpublished attachment),
 * UNSUPPORTED (transport cuipc, or peer GPUs), TIMEOUT, STALE (`generation` was replaced), DENIED,
 * DEVICE_LOST, DRIVER, UNAVAILABLE, and the buffer's own failure to load. */
GPUSHM_API gpushm_status gpushm_attachment_advance(gpushm_attachment* attachment,
                                                   const gpushm_advance_options* options);

/* ------------------------------------------------------------------ making buffers */

typedef enum gpushm_writers {
  GPUSHM_WRITERS_CREATOR = 0, /* Only the creating container may attach for writing. */
  GPUSHM_WRITERS_ALL = 1      /* Every container of the pod. */
} gpushm_writers;

typedef enum gpushm_on_writer_exit {
  GPUSHM_WRITER_EXIT_MARK = 0, /* Keep the bytes; the state becomes WRITER_DIED. */
  GPUSHM_WRITER_EXIT_KEEP = 1, /* Keep the bytes and the state. */
  GPUSHM_WRITER_EXIT_DROP = 2  /* Delete the buffer. */
} gpushm_on_writer_exit;

/* What gpushm_create does if a buffer of the name exists. */
typedef enum gpushm_exist {
  GPUSHM_EXIST_FAIL = 0,   /* It returns ALREADY_EXISTS. */
  GPUSHM_EXIST_REPLACE = 1 /* It makes a new generation of that buffer, as gpushm_replace does. */
} gpushm_exist;

typedef struct gpushm_create_options {
  size_t struct_size;
  uint32_t writers;        /* gpushm_writers */
  uint32_t one_writer;     /* 1: at most one process may hold it for writing. */
  uint32_t on_writer_exit; /* gpushm_on_writer_exit: if a writer ends without detaching. */
  /* 1: other processes see the buffer, or its new generation, only after gpushm_attachment_publish.
   * If this process ends before that, it is deleted. 0: they see it at once, zeroed. */
  uint32_t unpublished;
  int64_t timeout_ms;
  uint32_t gpu;   /* Number of the GPU among the pod's, for gpushm_create; 0 is the first. */
  uint32_t exist; /* gpushm_exist, for gpushm_create. */
  /* What the content is, for a later version that compares it when a buffer is attached. All 0: not
   * said. Anything else is UNSUPPORTED. */
  unsigned char type[GPUSHM_TYPE_BYTES];
} gpushm_create_options;

/* Makes a buffer of `size_bytes` in the pod's pool and attaches it for writing. If `attachment` is
 * NULL, the buffer is made but not attached, which is not possible with `unpublished`. With
 * GPUSHM_EXIST_REPLACE, a buffer that exists gets a new generation of `size_bytes`, and keeps its
 * own `gpu`, `writers`, `one_writer` and `on_writer_exit`.
 * Errors: ALREADY_EXISTS, EXHAUSTED (the pool or the GPU is full; the text says how much is free),
 * INVALID_ARGUMENT (also: the pod has no such `gpu`), UNSUPPORTED (`gpu`, `exist` or `type`),
 * TIMEOUT (also if other processes made and deleted the name until then); with GPUSHM_EXIST_REPLACE
 * also those of gpushm_replace. */
GPUSHM_API gpushm_status gpushm_create(gpushm_client* client, const char* name, uint64_t size_bytes,
                                       const gpushm_create_options* options,
                                       gpushm_attachment** attachment);

/* Gives an existing name new memory of `size_bytes` (0: its present size): a new generation.
 * Attachments of the old one stay valid and report STALE. Its memory is freed with the last of
 * them. The buffer keeps its own `gpu`, `writers`, `one_writer` and `on_writer_exit`, so the call
 * ignores these options, and `exist`.
 * Errors: NOT_FOUND, DENIED, EXHAUSTED, UNSUPPORTED (`type`). */
GPUSHM_API gpushm_status gpushm_replace(gpushm_client* client, const char* name,
                                        uint64_t size_bytes, const gpushm_create_options* options,
                                        gpushm_attachment** attachment);

/* Shows an `unpublished` buffer or generation to the other processes. Work that writes it must have
 * ended.
 * Errors: INVALID_ARGUMENT (it is published, or the last gpushm_attachment_load into it failed),
 * BUSY (gpushm_attachment_load is running on it), STALE, ORPHANED, UNAVAILABLE, TIMEOUT. */
GPUSHM_API gpushm_status gpushm_attachment_publish(gpushm_attachment* attachment);

/* For a writer that fills the buffer itself: sets how many bytes, from the start, are content.
 * Other processes see the number in gpushm_info, and gpushm_save writes as many bytes. Call it
 * before gpushm_attachment_publish or at any later time, when work that writes the content has
 * ended. The buffer is READY afterwards, whatever its state was. The call waits
 * GPUSHM_DEFAULT_TIMEOUT_MS at most.
 * Errors: INVALID_ARGUMENT (more than the buffer's size), DENIED (attached for reading), BUSY
 * (another process loads it), STALE, ORPHANED, TIMEOUT, UNAVAILABLE. */
GPUSHM_API gpushm_status gpushm_attachment_set_content(gpushm_attachment* attachment,
                                                       uint64_t content_bytes);

/* ------------------------------------------------------------------ descriptions */

/* Bytes of a description at most. */
#define GPUSHM_DESCRIPTION_BYTES (64u << 20)

/* Says what the bytes of the attached generation are: 1 to GPUSHM_DESCRIPTION_BYTES bytes of host
 * memory that belong to it. Everybody who may attach the buffer can read them, without a CUDA
 * context (gpushm_description_open). The bytes are copied, and charged to this container's memory.
 *
 * Call it for what is not published yet, or while this process loads the buffer; then readers see
 * content and description together. A published generation that has no description can be given
 * one; after that this call never changes it. Only a load into the same generation does: it removes
 * the description when it begins. The format is yours. Begin it with a type and a version, as
 * gpushm does with tensors (gpushm/tensors.h).
 * Waits GPUSHM_DEFAULT_TIMEOUT_MS at most.
 * Errors: INVALID_ARGUMENT (size_bytes is 0 or too large), DENIED (attached for reading),
 * ALREADY_EXISTS (published, and has its description: replace the buffer), BUSY (another process
 * loads it), EXHAUSTED (256 MiB of descriptions in the pod), STALE, ORPHANED, TIMEOUT, UNAVAILABLE.
 */
GPUSHM_API gpushm_status gpushm_attachment_set_description(gpushm_attachment* attachment,
                                                           const void* data, uint64_t size_bytes);

typedef struct gpushm_description gpushm_description;

typedef struct gpushm_description_options {
  size_t struct_size;
  /* 0: the current generation; the call waits until it exists and is not LOADING. Otherwise exactly
   * this one, which may be an older one that is still attached somewhere. */
  uint64_t generation;
  int64_t timeout_ms;
} gpushm_description_options;

/* Opens the description of a buffer. It needs the right to attach the buffer for reading, but no
 * GPU. The bytes never change, and stay readable until gpushm_description_close, also after the
 * generation or the client is gone.
 * A generation without a description is no error: gpushm_description_size is 0 then.
 * Errors: NOT_FOUND or LOADING (with GPUSHM_DONT_WAIT), TIMEOUT, DENIED, STALE (no such
 * generation any more), CORRUPT, UNAVAILABLE, and the buffer's own failure to load. */
GPUSHM_API gpushm_status gpushm_description_open(gpushm_client* client, const char* name,
                                                 const gpushm_description_options* options,
                                                 gpushm_description** description);
/* Its bytes, aligned to 4096; NULL if there is none. Valid until gpushm_description_close. */
GPUSHM_API const void* gpushm_description_data(const gpushm_description* description);
/* Number of its bytes; 0 if the generation has no description. */
GPUSHM_API uint64_t gpushm_description_size(const gpushm_description* description);
/* The generation that it describes: attach exactly that one (gpushm_attach_options.generation).
 * Experimental. */
GPUSHM_API uint64_t gpushm_description_generation(const gpushm_description* description);
/* NULL is allowed. No other thread may use it at that moment. */
GPUSHM_API void gpushm_description_close(gpushm_description* description);

typedef struct gpushm_offer_options {
  size_t struct_size;
  uint32_t writers; /* As in gpushm_create_options. */
  uint32_t one_writer;
  uint32_t on_writer_exit;
  /* 1: if the memory cannot be shared as it is, the call copies it once, on the GPU, into a new
   * buffer of the pool. 0: the call returns UNSUPPORTED with the reason. */
  uint32_t allow_copy;
  int64_t timeout_ms; /* Also for the work on `stream`, and for a copy. */
  /* A stream (CUstream) whose work fills the memory: work that is on it now is done before other
   * processes see the buffer. Its context must be current; CU_STREAM_LEGACY is the default stream.
   * NULL: a copy waits for all work of the context, without a limit, because CUDA has no such wait
   * with one. Memory that is shared as it is is offered at once. */
  void* stream;
  uint32_t gpu;      /* 0. The memory, or its copy, is on the GPU where the memory is. */
  uint32_t reserved; /* 0. */
} gpushm_offer_options;

typedef struct gpushm_offer_result {
  size_t struct_size;
  uint32_t transport;    /* gpushm_transport */
  uint32_t copied;       /* 1: other processes see a copy. */
  uint64_t copied_bytes; /* 0 unless copied. */
  int64_t copy_ns;       /* Time of the copy. */
  uint64_t generation;   /* For gpushm_offer_state. */
  /* Bytes that processes which attach it map: the whole allocations in which the range lies, or
   * the copy. What else lies in them is within their reach, see gpushm_offer. */
  uint64_t mapped_bytes;
  uint32_t allocations; /* How many they are. */
  uint32_t reserved;    /* 0. */
} gpushm_offer_result;

/* Offers, under a name, memory that the application already has: `size_bytes` from `address` on, on
 * a GPU that the broker serves. `result` may be NULL. The call needs a current context for
 * transport cuipc and for a copy.
 * - Memory of cuMemCreate that allows POSIX descriptors has transport vmm. It stays if this process
 *   ends. The range may lie within an allocation, or in up to 256 that are mapped side by side, as
 *   torch's expandable segments are; other processes map all of them, also side by side.
 * - Memory of cuMemAlloc or cudaMalloc has transport cuipc. Other processes need another PID number
 *   than this one. The buffer ends with this process, and the memory must not be freed before
 *   gpushm_delete.
 * - Other memory is UNSUPPORTED, or copied with `allow_copy`.
 * A GPU shares whole allocations. An allocator puts other data into them, which a process that
 * attaches can read, and with write access change. `mapped_bytes` of the result says how much is
 * shared. To share nothing else, allocate the memory with gpushm_create, or set `allow_copy` and
 * offer memory that cannot be shared.
 * Errors: TIMEOUT (work on the stream, or the copy, was not done in time; nothing is offered, but a
 * copy may still read the memory, and holds the name, until the context's work is done), BUSY (the
 * same with GPUSHM_DONT_WAIT, which gives a copy one second; or a copy without a stream while a
 * stream of this process waits for another process), UNSUPPORTED (also: the stream is being
 * captured, or `gpu` is not 0), ALREADY_EXISTS, INVALID_ARGUMENT, EXHAUSTED, DENIED, DRIVER. */
GPUSHM_API gpushm_status gpushm_offer(gpushm_client* client, const char* name, uint64_t address,
                                      uint64_t size_bytes, const gpushm_offer_options* options,
                                      gpushm_offer_result* result);

typedef struct gpushm_offer_info {
  size_t struct_size;
  uint32_t published; /* 1: the name still refers to this memory, so others can attach it. */
  uint32_t users;     /* Attaches by processes, this one included, that have not ended. */
  uint32_t unused;    /* 1: neither. The memory is its owner's alone, and stays so. */
  uint32_t reserved;
} gpushm_offer_info;

/* Says who uses offered memory still, so that its owner knows when it may be used again or freed:
 * delete the name, then call this until `unused` is 1. `generation` is that of gpushm_offer_result.
 * A process that is killed counts until the kernel has ended it, and with it its work on the GPU.
 * A process that detached before its work on the GPU was done does not count, nor does a save by
 * the broker that still runs.
 * Errors: NOT_FOUND (this client did not offer it), ORPHANED (the broker restarted and lost what it
 * knew), INVALID_ARGUMENT (generation 0), UNAVAILABLE, TIMEOUT (after GPUSHM_DEFAULT_TIMEOUT_MS).
 * Experimental. */
GPUSHM_API gpushm_status gpushm_offer_state(gpushm_client* client, const char* name,
                                            uint64_t generation, gpushm_offer_info* info);

typedef struct gpushm_delete_options {
  size_t struct_size;
  int64_t timeout_ms;
} gpushm_delete_options;

/* Deletes a name. Attachments stay valid and report STALE. The memory is freed with the last of
 * them.
 * Errors: NOT_FOUND, DENIED (this container may not write it), UNAVAILABLE, TIMEOUT. */
GPUSHM_API gpushm_status gpushm_delete(gpushm_client* client, const char* name,
                                       const gpushm_delete_options* options);

/* ------------------------------------------------------------------ files */

/* Reports the bytes moved so far. It is called with 0 bytes when the transfer begins, then between
 * chunks, and every 50 ms while a stream gives no bytes. `total_bytes` is 0 while it is unknown, as
 * with a stream. If it returns non-zero, the transfer stops with GPUSHM_BUSY. */
typedef int (*gpushm_progress)(void* user, uint64_t done_bytes, uint64_t total_bytes);

/* How the bytes of the file are read or written. docs/guides/transfers.md says which method is fast
 * where. */
typedef enum gpushm_file_method {
  GPUSHM_FILE_AUTO = 0,   /* Options only: gpushm chooses for the file. */
  GPUSHM_FILE_CACHED = 1, /* Through the page cache. */
  GPUSHM_FILE_DIRECT = 2, /* O_DIRECT, without the page cache; UNSUPPORTED if impossible. */
  GPUSHM_FILE_STREAM = 3, /* Results only: in order to the end, as a pipe. */
  /* GPUDirect Storage: from the disk to the GPU, without a copy in host memory. UNSUPPORTED if that
   * is impossible. cuFile starts threads of its own in the process that does it. */
  GPUSHM_FILE_GDS = 4,
  GPUSHM_FILE_AUTO_GDS = 5, /* Options only: as AUTO, with GDS for DIRECT if possible. */
  /* To load: the GPU fetches the pages of the page cache, without a copy by the processor; with
   * enough processors, helpers copy a part of the file meanwhile. UNSUPPORTED if the driver does
   * not register the file's pages. */
  GPUSHM_FILE_PAGES = 6
} gpushm_file_method;

/* Why the library chose that method. */
typedef enum gpushm_file_reason {
  GPUSHM_FILE_REASON_UNKNOWN = 0,      /* Not known. */
  GPUSHM_FILE_REASON_ASKED = 1,        /* The options requested it. */
  GPUSHM_FILE_REASON_SMALL = 2,        /* Below 256 MiB. */
  GPUSHM_FILE_REASON_IN_CACHE = 3,     /* At least half of it was in the page cache. */
  GPUSHM_FILE_REASON_NOT_IN_CACHE = 4, /* Less than half of it was. */
  GPUSHM_FILE_REASON_LARGE = 5,        /* Saved: 256 MiB or more. */
  GPUSHM_FILE_REASON_REFUSED = 6, /* O_DIRECT would have been better; the file system refused it. */
  GPUSHM_FILE_REASON_IN_ORDER = 7 /* No regular file, or one that is not at its start. */
} gpushm_file_reason;

/* What the bytes of a file are. */
typedef enum gpushm_format {
  /* To load: TENSORS for a path that ends in ".safetensors" or ".safetensors.index.json", and for a
   * folder; RAW for every other path and for a descriptor. To save: TENSORS if the buffer has
   * tensors and a path is given. */
  GPUSHM_FORMAT_AUTO = 0,
  GPUSHM_FORMAT_RAW = 1, /* The file as it is. */
  /* The tensors of a safetensors file, of the shards that an index names, or of a folder with
   * either. Each begins at a multiple of 256 bytes of the buffer. Names, types, shapes and offsets
   * become the buffer's description (gpushm/tensors.h). gpushm_tensors_measure tells the size that
   * the buffer needs. */
  GPUSHM_FORMAT_TENSORS = 2
} gpushm_format;

/* For gpushm_transfer_options.threads: the calling thread alone. */
#define GPUSHM_NO_THREADS 0xffffffffu

typedef struct gpushm_transfer_options {
  size_t struct_size;
  uint64_t chunk_bytes;     /* Of pinned host memory. 0: 16 MiB, less for what is small. */
  gpushm_progress progress; /* May be NULL. */
  void* user;
  /* For the whole call, the wait for the buffer included. 0: ten minutes, of which
   * GPUSHM_DEFAULT_TIMEOUT_MS for the wait. GPUSHM_DONT_WAIT: no wait (NOT_FOUND, BUSY; to save,
   * also LOADING), and ten minutes for the transfer. */
  int64_t timeout_ms;
  uint32_t file_method; /* gpushm_file_method, but STREAM. */
  uint32_t chunks;      /* 2 to 16; 0: 3. Each has a stream of its own. */
  /* To load: threads that read the file beside the calling one, 1 to 64, while the call lasts; they
   * take no signals, and where the system gives fewer, those are used. A core reads the page cache
   * at 5 to 7 GiB/s, PCIe 5 takes 51. 0: one for each further processor that the container may use
   * (its affinity and its cgroup's cpu.max), 8 at most. GPUSHM_NO_THREADS: none. */
  uint32_t threads;
  /* With `path` NULL: where the bytes come from or go to. A pipe, or a file from where it stands;
   * it stays open. */
  int32_t descriptor;
  /* To save. 0: the content (gpushm_info.content_bytes). 1: all of size_bytes. */
  uint32_t whole;
  uint32_t reserved1; /* 0. */
  uint32_t format;    /* gpushm_format */
  uint32_t reserved2; /* 0. */
  /* To load: how many bytes must come, neither less nor more: of the file, of all files of a model,
   * or of the stream. 0: not said. */
  uint64_t bytes;
  /* To load: the digest that the content must have (gpushm_info.digest, gpushm_file_digest). The
   * load of any other content fails with INVALID_ARGUMENT. NULL: any content. */
  const char* digest;
} gpushm_transfer_options;

typedef struct gpushm_transfer_result {
  size_t struct_size;
  uint64_t bytes;
  int64_t elapsed_ns;   /* Of the whole call. */
  uint32_t file_method; /* gpushm_file_method: CACHED, DIRECT, STREAM, GDS or PAGES. */
  uint32_t file_reason; /* gpushm_file_reason */
  /* Of it, from the first byte to the last: without connecting, making a context, pinning memory,
   * measuring the link and fsync. */
  int64_t moving_ns;
  /* What pinned memory and this GPU do in this direction with nothing else to do: measured with the
   * first chunk of at least 16 MiB, once in a client's life, in a few ms. 0: not measured. */
  uint64_t link_bytes_per_second;
  char digest[GPUSHM_DIGEST_BYTES]; /* Of what was loaded; "" if it was not made. */
} gpushm_transfer_result;

/* Fills a buffer from a file: its whole content from offset 0; a file larger than the buffer is
 * INVALID_ARGUMENT, a smaller one leaves the rest as it is. A stream is read to its end; one that
 * is longer is INVALID_ARGUMENT too, when the buffer is full, and so is one with nothing. The
 * buffer is LOADING meanwhile, READY afterwards, FAILED if it ends otherwise. Needs write access.
 * Whoever waits for the content is told what it waits for, or why it failed (gpushm_lookup_reason).
 * This process moves the bytes, with the primary context of the buffer's GPU for that time; a
 * process that does not see that GPU gets UNSUPPORTED, from gpushm_save too. `path` NULL:
 * options->descriptor. `result` may be NULL.
 *
 * What is not whole is never READY (docs/guides/transfers.md says what is whole). A call that may
 * wait (timeout_ms) waits for what may still come, and begins again when a file changes meanwhile.
 * A file that is not a model and that nothing announces (`bytes`) must not have changed for 3 s;
 * each call waits for these. Errors of files: NOT_FOUND (a file, or one of a model, is missing),
 * BUSY (it is shorter than it says, empty, being written, or changed meanwhile), INVALID_ARGUMENT
 * (as it is, it cannot be loaded), TIMEOUT. */
GPUSHM_API gpushm_status gpushm_load(gpushm_client* client, const char* name, const char* path,
                                     const gpushm_transfer_options* options,
                                     gpushm_transfer_result* result);

/* Writes a buffer's content to a file, which is replaced as a whole when it is complete. `path`
 * NULL: to options->descriptor, in order. */
GPUSHM_API gpushm_status gpushm_save(gpushm_client* client, const char* name, const char* path,
                                     const gpushm_transfer_options* options,
                                     gpushm_transfer_result* result);

/* Fills the attached generation from a file, as gpushm_load does for a name. It is meant for a
 * generation that is not published yet: new weights reach readers whole, or not at all.
 *
 *   gpushm_create_options next;
 *   GPUSHM_INIT(&next);
 *   next.unpublished = 1;
 *   gpushm_tensors_measure(folder, &bytes, NULL);  // tensors.h; or the size of a plain file
 *   gpushm_replace(client, "weights", bytes, &next, &made);
 *   gpushm_attachment_load(made, folder, NULL, NULL);
 *   gpushm_attachment_publish(made);  // readers have the former generation until now
 *
 * Until the publish, no other process sees the bytes, their number (content_bytes) or the
 * description of tensors. If the load fails, or this process ends, nothing changes for readers. A
 * generation whose load failed cannot be published: load again, or detach it, which frees its
 * memory. gpushm_attachment_set_content declares its bytes valid nevertheless.
 *
 * A published generation is filled as by gpushm_load: it is LOADING meanwhile, and FAILED if the
 * load fails. The load begins by removing the generation's description.
 *
 * No other thread may detach or advance the attachment during the call. `options` and `result` are
 * as for gpushm_load; no time is spent on waiting for a buffer. Errors: those of files
 * (gpushm_load), INVALID_ARGUMENT (also: the content does not fit), DENIED (attached for reading),
 * UNSUPPORTED (transport cuipc), BUSY (also: another load of it is running, or `progress` stopped
 * it), STALE (published, and replaced since), ORPHANED, EXHAUSTED, TIMEOUT, DRIVER, SYSTEM,
 * UNAVAILABLE. */
GPUSHM_API gpushm_status gpushm_attachment_load(gpushm_attachment* attachment, const char* path,
                                                const gpushm_transfer_options* options,
                                                gpushm_transfer_result* result);

/* Writes the content of the attached generation to a file, as gpushm_save does for a name. The
 * generation may be unpublished, or an older one.
 * Errors: as gpushm_attachment_load, but reading suffices; LOADING or SYSTEM (its content is being
 * loaded, or failed to load), NOT_FOUND (GPUSHM_FORMAT_TENSORS, and it has no tensors), ORPHANED
 * (with the broker its description is gone: use GPUSHM_FORMAT_RAW). */
GPUSHM_API gpushm_status gpushm_attachment_save(gpushm_attachment* attachment, const char* path,
                                                const gpushm_transfer_options* options,
                                                gpushm_transfer_result* result);

/* Makes the digest of the attached generation's content from what the GPU's memory has now. A
 * kernel reads that memory once. Work that writes there must have ended. An unpublished generation
 * keeps it, and gpushm_info has it after the publish: call this after the last write. For a
 * published one, nothing is kept. Errors: LOADING, SYSTEM (its content is being loaded, or failed
 * to load), UNSUPPORTED (transport cuipc), ORPHANED, TIMEOUT, DRIVER, UNAVAILABLE.
 * Experimental. */
GPUSHM_API gpushm_status gpushm_attachment_digest(gpushm_attachment* attachment,
                                                  char digest[GPUSHM_DIGEST_BYTES]);

/* The digest that a buffer has after a load of that path. It reads all files, and needs neither a
 * GPU nor a broker. `format`: gpushm_format.
 * Errors: NOT_FOUND, INVALID_ARGUMENT, CORRUPT, SYSTEM.
 * Experimental. */
GPUSHM_API gpushm_status gpushm_file_digest(const char* path, uint32_t format,
                                            char digest[GPUSHM_DIGEST_BYTES]);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* GPUSHM_GPUSHM_H_ */
