/* gpushm: named GPU memory that the containers of a node share, as POSIX shm does for host memory.
 *
 *   gpushm_client* client;
 *   gpushm_attachment* weights;
 *   if (gpushm_open(NULL, &client) || gpushm_attach(client, "weights", NULL, &weights))
 *     return fprintf(stderr, "%s\n", gpushm_last_error()->text), 1;
 *   CUdeviceptr p = gpushm_attachment_address(weights);        // use it on the GPU
 *   gpushm_attachment_detach(weights, NULL);
 *   gpushm_close(client);
 *
 * Rules
 *   - Every function that can fail returns a gpushm_status; 0 is success. gpushm_last_error() then
 *     holds the cause and the remedy for the calling thread.
 *   - Options are structs whose first member is their size: set `struct_size = sizeof options`,
 *     zero the rest (GPUSHM_INIT does both), fill in what you need. NULL means all defaults. A
 *     program compiled against an older header keeps working with a newer library: fields are only
 *     ever appended, and the library reads and writes `struct_size` bytes of a struct at most.
 *   - Every call that can wait takes `timeout_ms`: 0 (the default) stands for
 *     GPUSHM_DEFAULT_TIMEOUT_MS, GPUSHM_DONT_WAIT for "answer at once". There is no "forever", but
 *     for a copy by gpushm_offer that is given no stream.
 *   - Thread-safe: any thread may call anything, also on the same client, except that no other
 *     thread may be using an attachment at its last detach, or a client and what was opened with it
 *     at its close. A call that comes after that returns GPUSHM_INVALID_ARGUMENT.
 *   - The library never exits, aborts or throws, installs no signal handlers and makes no CUDA
 *     context that outlives a call. Only gpushm_load starts threads, to read the file
 *     (gpushm_transfer_options.threads); it blocks their signals and joins them. The library
 *     depends on libc and loads libcuda.so.1 at the first attach.
 *   - After fork(), what the parent opened is the parent's: calls with it return GPUSHM_FORKED in
 *     the child, gpushm_close included, and change nothing. The child may open a client of its own.
 *     CUDA itself does not work in a child if it was initialised before the fork, by the
 *     application or by the first attach: then attaching returns GPUSHM_FORKED, too. Start such a
 *     child with exec (Python: the start method "spawn"), or fork before CUDA is used.
 *
 * Names are DNS labels (RFC 1123): 1 to 63 of a-z, 0-9 and '-', neither first nor last a '-'.
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

#define GPUSHM_VERSION_MAJOR 0
#define GPUSHM_VERSION_MINOR 1
#define GPUSHM_VERSION_PATCH 0

/* Bytes of a name with its terminating NUL. */
#define GPUSHM_NAME_BYTES 64
#define GPUSHM_UUID_BYTES 16
/* Bytes of a type, see gpushm_create_options. */
#define GPUSHM_TYPE_BYTES 16

/* Milliseconds that a call waits when its options do not say otherwise. */
#define GPUSHM_DEFAULT_TIMEOUT_MS 10000
/* For `timeout_ms`: fail with the reason (NOT_FOUND, LOADING, UNAVAILABLE ...) instead of waiting.
 * A broker that is there gets one second to answer. */
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

/* What a call came to. Numbers are fixed for ever; new ones may be appended. */
typedef enum gpushm_status {
  GPUSHM_OK = 0,
  GPUSHM_INVALID_ARGUMENT = 1, /* The request makes no sense as given. */
  GPUSHM_NOT_FOUND = 2,        /* No buffer, file or GPU of that name. */
  GPUSHM_ALREADY_EXISTS = 3,   /* The name is taken. */
  GPUSHM_DENIED = 4,           /* The pod's annotations do not allow it to this container. */
  GPUSHM_EXHAUSTED =
      5, /* A limit (docs/reference/limits.md), the pod's pool or the card is used up. */
  GPUSHM_CONTENDED = 6,    /* Bounded retries ran out; try again. */
  GPUSHM_TIMEOUT = 7,      /* The deadline passed. */
  GPUSHM_INCOMPATIBLE = 8, /* Library and broker have no protocol version in common. */
  GPUSHM_CORRUPT = 9,      /* Shared or received bytes fail validation. */
  GPUSHM_UNAVAILABLE = 10, /* No broker answers. */
  GPUSHM_ORPHANED = 11,    /* The broker that gave this attachment is gone: bytes are history. */
  GPUSHM_STALE = 12,       /* Another generation is behind the name now. */
  GPUSHM_PEER_DIED = 13,   /* The process at the other end died. */
  GPUSHM_DEVICE_LOST = 14, /* The GPU must be reset. */
  GPUSHM_BUSY = 15,        /* Work is pending on it, or another writer holds it. */
  GPUSHM_UNSUPPORTED = 16, /* This driver, GPU, kernel or memory cannot do it. */
  GPUSHM_DRIVER = 17,      /* A CUDA call failed; the text says which and how. */
  GPUSHM_SYSTEM = 18,      /* A system call failed; the text says which and how. */
  GPUSHM_FORKED = 19,      /* Of the parent, in a child of fork(): see the rules above. */
  GPUSHM_LOADING = 20,     /* The buffer's content is not there yet. */
  GPUSHM_INTERNAL = 21,    /* A bug of gpushm: please report it. */
  GPUSHM_ENDED =
      22 /* Its writer closed it (a barrier: a participant): there is no more (sync.h). */
} gpushm_status;

/* Why the last failing call of this thread failed. */
typedef struct gpushm_error {
  gpushm_status status;
  const char* text;   /* "NOT_FOUND: no buffer "weigths". Remedy: ..." one line, for humans. */
  const char* what;   /* The cause alone. */
  const char* remedy; /* What to do about it; "" if there is nothing to say. */
} gpushm_error;

/* Never NULL; status GPUSHM_OK before the first failure. Valid until the thread's next gpushm call.
 */
GPUSHM_API const gpushm_error* gpushm_last_error(void);
/* "NOT_FOUND" ...; never NULL. */
GPUSHM_API const char* gpushm_status_name(gpushm_status status);
/* Version of the library in use: major * 10000 + minor * 100 + patch. */
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
  GPUSHM_TRANSPORT_CUIPC =
      2, /* A 64-byte cuIpc handle: only between processes whose PID numbers differ. */
  GPUSHM_TRANSPORT_HOST =
      3 /* No buffer: the page of a signal, barrier or ring (sync.h), host memory. */
} gpushm_transport;

typedef enum gpushm_buffer_state {
  GPUSHM_BUFFER_LOADING = 1, /* Content is still being loaded or written; attach waits. */
  GPUSHM_BUFFER_READY = 2,
  GPUSHM_BUFFER_WRITER_DIED = 3, /* A writer died: content may be half-written; attach works. */
  GPUSHM_BUFFER_FAILED = 4       /* Loading failed; attach says why. */
} gpushm_buffer_state;

/* ------------------------------------------------------------------ connecting */

typedef struct gpushm_open_options {
  size_t struct_size;
  /* Folder with the broker's socket. NULL: $GPUSHM_DIR, else /run/gpushm. */
  const char* folder;
  /* hostIPC pods: UID of the pod whose buffers are meant; looked up in /dev/shm (`folder` replaces
   * /dev/shm). Whoever listens there must be the user whose the pod's list is, or the call says
   * DENIED. NULL: the own pod's broker. */
  const char* pod_uid;
  /* Folder with libcuda.so.1. NULL: $GPUSHM_DRIVER, else where the loader finds it. */
  const char* driver;
  /* How long to wait for the broker to come up. */
  int64_t timeout_ms;
} gpushm_open_options;

/* Connects to the broker. Needs no GPU: listing works anywhere.
 * Errors: UNAVAILABLE (no socket, or nobody listens), DENIED (socket not accessible),
 * INCOMPATIBLE, EXHAUSTED (256 clients), TIMEOUT. */
GPUSHM_API gpushm_status gpushm_open(const gpushm_open_options* options, gpushm_client** client);

/* Detaches what is still attached and closes signals, barriers and rings that are still open (work
 * that uses them must have ended), then disconnects. A later detach or close of one of them returns
 * GPUSHM_INVALID_ARGUMENT and does nothing. NULL is allowed. */
GPUSHM_API void gpushm_close(gpushm_client* client);

/* ------------------------------------------------------------------ looking up */

typedef struct gpushm_info {
  size_t struct_size;
  char name[GPUSHM_NAME_BYTES];
  uint64_t generation;   /* Moves when other memory comes to stand behind the name. */
  uint64_t size_bytes;   /* As asked for. */
  uint64_t mapped_bytes; /* Rounded up to the GPU's granularity (2 MiB). */
  uint64_t loaded_bytes; /* While LOADING: how far it is. Afterwards see content_bytes. */
  int64_t created_unix_ns;
  uint8_t gpu_uuid[GPUSHM_UUID_BYTES];
  uint32_t transport;              /* gpushm_transport */
  uint32_t state;                  /* gpushm_buffer_state */
  char creator[GPUSHM_NAME_BYTES]; /* Container that made it; "" if declared by annotation. */
  /* So many bytes from the start are content: what the last load brought, or what
   * gpushm_attachment_set_content said; all of size_bytes where nobody said it, as in each new
   * generation and in what was offered. While LOADING, and FAILED: as loaded_bytes. A library of
   * version 0.1 leaves it 0. */
  uint64_t content_bytes;
  /* Of the generation's description (gpushm_description_open). 0: it has none, or its content is
   * LOADING or FAILED, or the library or the broker is older than version 0.2. */
  uint64_t description_bytes;
  uint32_t gpu;      /* Index of the GPU, among those of the pod, that holds the bytes: 0. */
  uint32_t reserved; /* 0. */
} gpushm_info;

/* Finds a buffer by name: no system call, tens of nanoseconds. While no broker answers, what the
 * last one said stands; a call that talks to the broker (or gpushm_wait, gpushm_list,
 * gpushm_attach) finds its successor.
 * Errors: NOT_FOUND, INVALID_ARGUMENT (no DNS label), CONTENDED, CORRUPT. */
GPUSHM_API gpushm_status gpushm_lookup(gpushm_client* client, const char* name, gpushm_info* info);

/* All buffers, ordered by name. Fills at most `capacity` entries and stores the number of buffers
 * in *count: call again with more room if it is larger. Set `infos[0].struct_size` (GPUSHM_INIT
 * does): it is the distance between the entries; that of the others is set by the call. */
GPUSHM_API gpushm_status gpushm_list(gpushm_client* client, gpushm_info* infos, size_t capacity,
                                     size_t* count);

typedef struct gpushm_wait_options {
  size_t struct_size;
  int64_t timeout_ms;
} gpushm_wait_options;

/* Waits until a buffer of that name exists, is not LOADING and has a generation of at least
 * `min_generation` (0: any); then fills `info` (may be NULL). "New weights are there":
 * gpushm_wait(client, "weights", seen.generation + 1, ...).
 * Errors: TIMEOUT, UNAVAILABLE (the broker went away), and the buffer's own failure. */
GPUSHM_API gpushm_status gpushm_wait(gpushm_client* client, const char* name,
                                     uint64_t min_generation, const gpushm_wait_options* options,
                                     gpushm_info* info);

/* One process that uses a buffer. */
typedef struct gpushm_holder {
  size_t struct_size;
  char buffer[GPUSHM_NAME_BYTES];
  char container[GPUSHM_NAME_BYTES];
  uint64_t generation;
  uint64_t client_id; /* Number of the connection, unique in the broker's life. */
  uint64_t lease_id;
  uint32_t access; /* gpushm_access */
  uint32_t reserved;
  int64_t since_unix_ns;
  uint32_t peer_method; /* gpushm_peer_method */
  uint32_t reserved1;
} gpushm_holder;

/* Who holds which buffer. `name` NULL: of all buffers. `capacity`, `count` and the first entry's
 * struct_size as in gpushm_list. */
GPUSHM_API gpushm_status gpushm_list_holders(gpushm_client* client, const char* name,
                                             gpushm_holder* holders, size_t capacity,
                                             size_t* count);

/* What the broker can tell about itself. */
typedef struct gpushm_broker_info {
  size_t struct_size;
  char container[GPUSHM_NAME_BYTES]; /* Who the broker says that we are. */
  uint8_t gpu_uuid[GPUSHM_UUID_BYTES];
  uint64_t pool_bytes;   /* Granted to the pod's buffers. */
  uint64_t used_bytes;   /* Of them, allocated now (rounded sizes, all generations). */
  uint64_t broker_epoch; /* Moves with every restart of the broker. */
  uint32_t protocol;     /* Version in use. */
  uint32_t clients;      /* Connected now. */
  uint32_t leases;
  uint32_t simulated; /* 1: the simulated driver. */
} gpushm_broker_info;
/* Asks the broker about itself; waits GPUSHM_DEFAULT_TIMEOUT_MS at most.
 * Errors: UNAVAILABLE, TIMEOUT. */
GPUSHM_API gpushm_status gpushm_broker_get_info(gpushm_client* client, gpushm_broker_info* info);

/* ------------------------------------------------------------------ attaching */

/* How the GPUs of an attachment get to the buffer's bytes; the slowest of them.
 * docs/guides/peers.md */
typedef enum gpushm_peer_method {
  GPUSHM_PEER_NONE = 0,   /* Only the buffer's own GPU uses it. */
  GPUSHM_PEER_NVLINK = 1, /* A GPU beside it reads and writes them in place, over NVLink. */
  GPUSHM_PEER_PCIE = 2,   /* The same over PCIe. */
  GPUSHM_PEER_STAGED = 3  /* A copy in that GPU's memory, made at the attach over the host. */
} gpushm_peer_method;

typedef struct gpushm_attach_options {
  size_t struct_size;
  uint32_t access;     /* gpushm_access; 0: GPUSHM_ACCESS_READ. */
  uint32_t reserved;   /* 0. */
  uint64_t generation; /* 0: the current one; else exactly this one, or STALE. */
  int64_t timeout_ms;  /* Also waits for a buffer that does not exist yet or is LOADING. */
  /* Bit i: the GPU with ordinal i of this process uses the buffer as well. 0: its own GPU alone. */
  uint64_t peer_devices;
  /* 1: where the one GPU of peer_devices cannot get to the bytes, give it a copy of them (access
   * GPUSHM_ACCESS_READ), which costs their size of that GPU's memory and shows later writes never.
   * 0: that is UNSUPPORTED. */
  uint32_t stage;
  uint32_t reserved1; /* 0. */
} gpushm_attach_options;

/* Maps a buffer. While the process holds the same buffer with the same access, a further attach
 * gives the same attachment, counted, in under a microsecond; one for more GPUs is another one.
 * Needs no CUDA context; a buffer of transport cuipc needs a current one.
 * Errors: NOT_FOUND or LOADING (with GPUSHM_DONT_WAIT), TIMEOUT, DENIED, BUSY (one-writer buffer
 * that has its writer), STALE, UNSUPPORTED (cuipc between equal PID numbers: offer with a copy; a
 * GPU of peer_devices that cannot get to it), EXHAUSTED, DRIVER, DEVICE_LOST, UNAVAILABLE, FORKED
 * (CUDA was initialised before fork()). */
GPUSHM_API gpushm_status gpushm_attach(gpushm_client* client, const char* name,
                                       const gpushm_attach_options* options,
                                       gpushm_attachment** attachment);

/* Device address (a CUdeviceptr); valid until the last detach. 0: it is not attached (any more). */
GPUSHM_API uint64_t gpushm_attachment_address(const gpushm_attachment* attachment);
/* Bytes, as the buffer was asked for. 0: it is not attached (any more). */
GPUSHM_API uint64_t gpushm_attachment_size(const gpushm_attachment* attachment);

/* GPUSHM_OK while this attachment is what stands behind its name, or waits for
 * gpushm_attachment_publish; STALE once another generation does (or the name was deleted); ORPHANED
 * once the broker that gave it is known to be gone without its bytes being taken over. One load; no
 * system call. The mapping stays valid in every case. */
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
  uint32_t status;       /* What gpushm_attachment_check says, or DEVICE_LOST. */
  uint32_t state;        /* gpushm_buffer_state of the name now; 0 if it is gone. */
  int32_t device;        /* Ordinal in this process of the GPU that has these bytes. */
  uint32_t count;        /* Attaches not yet detached. */
  uint64_t peer_devices; /* Others that use them: bit i is ordinal i. */
  uint32_t peer_method;  /* gpushm_peer_method */
  uint32_t reserved;
  uint64_t content_bytes; /* As in gpushm_info, of this generation, as far as is known here. */
} gpushm_attachment_info;
/* All that is known of an attachment. No message, no system call.
 * Errors: INVALID_ARGUMENT. */
GPUSHM_API gpushm_status gpushm_attachment_get_info(const gpushm_attachment* attachment,
                                                    gpushm_attachment_info* info);

typedef struct gpushm_detach_options {
  size_t struct_size;
  /* Streams (CUstream) with work that may still use the buffer. The library cannot see others. */
  void* const* streams;
  size_t stream_count;
  /* 0: pending work on them is GPUSHM_BUSY and nothing is detached. 1: detach once it has ended;
   * the mapping is undone by a later call on the client, or by gpushm_close. */
  uint32_t defer;
  uint32_t reserved; /* 0. */
} gpushm_detach_options;

/* Undoes one attach; the last one unmaps. Never synchronises: options say which streams used the
 * buffer. With NULL the caller vouches that all work has ended. NULL attachment is allowed. */
GPUSHM_API gpushm_status gpushm_attachment_detach(gpushm_attachment* attachment,
                                                  const gpushm_detach_options* options);

/* ------------------------------------------------------------------ making buffers */

typedef enum gpushm_writers {
  GPUSHM_WRITERS_CREATOR = 0, /* Only the creating container may attach for writing. */
  GPUSHM_WRITERS_ALL = 1      /* Every container of the pod. */
} gpushm_writers;

typedef enum gpushm_on_writer_exit {
  GPUSHM_WRITER_EXIT_MARK = 0, /* Keep the bytes, state WRITER_DIED. */
  GPUSHM_WRITER_EXIT_KEEP = 1, /* Keep the bytes, say nothing. */
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
  uint32_t on_writer_exit; /* gpushm_on_writer_exit, when a writer ends without detaching. */
  /* 1: others see the buffer (or its new generation) only after gpushm_attachment_publish; if this
   * process ends before, it is dropped. 0: at once, zeroed. */
  uint32_t unpublished;
  int64_t timeout_ms;
  uint32_t gpu;   /* Index of the GPU, among those of the pod. Others than 0 are UNSUPPORTED. */
  uint32_t exist; /* gpushm_exist, for gpushm_create. */
  /* What the content is, for a later version that compares it when a buffer is attached. All 0: not
   * said. Anything else is UNSUPPORTED. */
  unsigned char type[GPUSHM_TYPE_BYTES];
} gpushm_create_options;

/* Makes a buffer of `size_bytes` in the pod's pool and attaches it for writing. `attachment` may be
 * NULL: then it is only made (not with `unpublished`). With GPUSHM_EXIST_REPLACE an existing buffer
 * gets a new generation of `size_bytes` instead, and keeps its own `writers`, `one_writer` and
 * `on_writer_exit`.
 * Errors: ALREADY_EXISTS, UNSUPPORTED (`gpu`, `exist` or `type`: see there), TIMEOUT (also: other
 * processes made and deleted the name again and again), those of gpushm_replace, EXHAUSTED (pool or
 * card: what is free is in the text), INVALID_ARGUMENT.
 */
GPUSHM_API gpushm_status gpushm_create(gpushm_client* client, const char* name, uint64_t size_bytes,
                                       const gpushm_create_options* options,
                                       gpushm_attachment** attachment);

/* Puts new memory of `size_bytes` (0: the size it has) behind an existing name: a new generation.
 * Attachments of the old one stay valid and report STALE; its memory is freed with the last of
 * them. `writers`, `one_writer` and `on_writer_exit` of the options are ignored: the buffer keeps
 * its own. So is `exist`. Errors: NOT_FOUND, DENIED, EXHAUSTED. */
GPUSHM_API gpushm_status gpushm_replace(gpushm_client* client, const char* name,
                                        uint64_t size_bytes, const gpushm_create_options* options,
                                        gpushm_attachment** attachment);

/* Shows an `unpublished` buffer or generation to everybody. Work that writes it must have ended. */
GPUSHM_API gpushm_status gpushm_attachment_publish(gpushm_attachment* attachment);

/* Says how many bytes from the start of the buffer are content, for a writer that fills it by
 * itself: what others see in gpushm_info, and what gpushm_save writes. Before
 * gpushm_attachment_publish, or at any time later; the buffer is READY after it, whatever it was.
 * Work that writes the content must have ended. Waits GPUSHM_DEFAULT_TIMEOUT_MS at most. Errors:
 * INVALID_ARGUMENT (more than its size), DENIED (attached for reading), BUSY (somebody else loads
 * it), STALE, ORPHANED, TIMEOUT, UNAVAILABLE; UNSUPPORTED for what is not published where the
 * broker is older than version 0.2. */
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
 * one; after that it never changes. The format is yours. Begin it with a type and a version, as
 * gpushm does with tensors (gpushm/tensors.h).
 * Waits GPUSHM_DEFAULT_TIMEOUT_MS at most.
 * Errors: INVALID_ARGUMENT (size_bytes is 0 or too large), DENIED (attached for reading),
 * ALREADY_EXISTS (published, and has its description: replace the buffer), BUSY (another process
 * loads it), EXHAUSTED (256 MiB of descriptions in the pod), STALE, ORPHANED, UNSUPPORTED (the
 * broker is older than version 0.2), TIMEOUT, UNAVAILABLE. */
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
 * generation any more), CORRUPT, UNSUPPORTED (the broker is older than version 0.2), UNAVAILABLE,
 * and the buffer's own failure to load. */
GPUSHM_API gpushm_status gpushm_description_open(gpushm_client* client, const char* name,
                                                 const gpushm_description_options* options,
                                                 gpushm_description** description);
/* Its bytes, aligned to 4096; NULL if there is none. Valid until gpushm_description_close. */
GPUSHM_API const void* gpushm_description_data(const gpushm_description* description);
/* Number of its bytes; 0 if the generation has no description. */
GPUSHM_API uint64_t gpushm_description_size(const gpushm_description* description);
/* The generation that it describes: attach exactly that one (gpushm_attach_options.generation). */
GPUSHM_API uint64_t gpushm_description_generation(const gpushm_description* description);
/* NULL is allowed. No other thread may use it at that moment. */
GPUSHM_API void gpushm_description_close(gpushm_description* description);

typedef struct gpushm_offer_options {
  size_t struct_size;
  uint32_t writers; /* As in gpushm_create_options. */
  uint32_t one_writer;
  uint32_t on_writer_exit;
  /* 1: if the memory cannot be shared as it is, copy it into a new buffer of the pool (device to
   * device, once). 0: say UNSUPPORTED with the reason instead. */
  uint32_t allow_copy;
  int64_t timeout_ms; /* Also for the work on `stream`, and for a copy. */
  /* A stream (CUstream) whose work fills the memory: what is on it now is done before peers see the
   * buffer. Its context must be current; CU_STREAM_LEGACY is the default stream. NULL: a copy waits
   * for all work of the context, and that wait has no deadline, for CUDA has none for it; memory
   * that is shared as it is is offered at once. */
  void* stream;
  uint32_t gpu;      /* As in gpushm_create_options. */
  uint32_t reserved; /* 0. */
} gpushm_offer_options;

typedef struct gpushm_offer_result {
  size_t struct_size;
  uint32_t transport;    /* gpushm_transport */
  uint32_t copied;       /* 1: what the peers see is a copy. */
  uint64_t copied_bytes; /* 0 unless copied. */
  int64_t copy_ns;       /* What the copy cost. */
} gpushm_offer_result;

/* Offers memory that the application already has under a name. `address` must be the start of an
 * allocation of a GPU that the broker serves.
 *   cuMemCreate memory that allows POSIX descriptors: transport vmm, lives on if this process ends.
 *   cuMemAlloc/cudaMalloc memory: transport cuipc; peers need another PID number than this process,
 *   the buffer goes when this process ends, and the memory must not be freed before gpushm_delete.
 *   other memory: UNSUPPORTED, or a copy.
 * `result` may be NULL. Needs a current context for cuipc and for a copy.
 * Errors: TIMEOUT (work on the stream, or the copy, was not done in time: nothing is offered; a
 * copy may still read the memory, and holds the name, until the context's work is done), BUSY (the
 * same with GPUSHM_DONT_WAIT, which gives a copy one second; or a copy without a stream, while a
 * stream of this process waits for a peer), UNSUPPORTED (also: the stream is being captured),
 * ALREADY_EXISTS, INVALID_ARGUMENT, EXHAUSTED, DENIED, DRIVER. */
GPUSHM_API gpushm_status gpushm_offer(gpushm_client* client, const char* name, uint64_t address,
                                      uint64_t size_bytes, const gpushm_offer_options* options,
                                      gpushm_offer_result* result);

typedef struct gpushm_delete_options {
  size_t struct_size;
  int64_t timeout_ms;
} gpushm_delete_options;

/* Takes a name away. Attachments stay valid and report STALE; the memory is freed with the last of
 * them. Errors: NOT_FOUND, DENIED (not a writer of it). */
GPUSHM_API gpushm_status gpushm_delete(gpushm_client* client, const char* name,
                                       const gpushm_delete_options* options);

/* ------------------------------------------------------------------ files */

/* Called with 0 bytes when the buffer is there and the transfer begins, then between chunks, and
 * every 50 ms while a stream stands still, with the bytes moved so far; a return of non-zero stops
 * (GPUSHM_BUSY). `total_bytes` is 0 while it is unknown: a stream. */
typedef int (*gpushm_progress)(void* user, uint64_t done_bytes, uint64_t total_bytes);

typedef enum gpushm_transfer_method {
  GPUSHM_TRANSFER_AUTO = 0, /* Here if this process sees the GPU, else by the broker. */
  GPUSHM_TRANSFER_HERE =
      1, /* In this process: takes (or makes) the primary context for the time. */
  GPUSHM_TRANSFER_BROKER = 2 /* In a short-lived child of the broker. */
} gpushm_transfer_method;

/* How the file's bytes are read or written: docs/guides/transfers.md tells which is fast where. */
typedef enum gpushm_file_method {
  GPUSHM_FILE_AUTO = 0,   /* Options: what suits the file. */
  GPUSHM_FILE_CACHED = 1, /* Through the page cache. */
  GPUSHM_FILE_DIRECT = 2, /* O_DIRECT, past the page cache; UNSUPPORTED where that cannot be. */
  GPUSHM_FILE_STREAM = 3, /* Result: in order to its end, as a pipe. */
  /* GPUDirect Storage: from the disk to the GPU, with no copy in host memory. UNSUPPORTED where
   * that cannot be. cuFile starts threads of its own in the process that does it. */
  GPUSHM_FILE_GDS = 4,
  GPUSHM_FILE_AUTO_GDS = 5 /* Options: as AUTO, and GDS instead of DIRECT where it can be had. */
} gpushm_file_method;

/* Why the library or the broker chose that method. */
typedef enum gpushm_file_reason {
  GPUSHM_FILE_REASON_UNKNOWN = 0,      /* A broker of an older version. */
  GPUSHM_FILE_REASON_ASKED = 1,        /* The options said so. */
  GPUSHM_FILE_REASON_SMALL = 2,        /* Below 256 MiB. */
  GPUSHM_FILE_REASON_IN_CACHE = 3,     /* At least half of it was in the page cache. */
  GPUSHM_FILE_REASON_NOT_IN_CACHE = 4, /* Less than half of it was. */
  GPUSHM_FILE_REASON_LARGE = 5,        /* Saved: 256 MiB or more. */
  GPUSHM_FILE_REASON_REFUSED = 6, /* O_DIRECT would have been better; the file system refused it. */
  GPUSHM_FILE_REASON_IN_ORDER = 7 /* No file, or one that is open behind its start. */
} gpushm_file_reason;

/* What the bytes of a file are. */
typedef enum gpushm_format {
  /* To load: TENSORS for a path that ends in ".safetensors" or ".safetensors.index.json", and for a
   * folder; RAW for every other path and for a descriptor. To save: TENSORS if the buffer has
   * tensors and a path is given. Programs built for 0.1 always get RAW. */
  GPUSHM_FORMAT_AUTO = 0,
  GPUSHM_FORMAT_RAW = 1, /* The file as it is. */
  /* The tensors of a safetensors file, of the shards that an index names, or of a folder with
   * either. Each begins at a multiple of 256 bytes of the buffer. Names, types, shapes and offsets
   * become the buffer's description (gpushm/tensors.h). gpushm_tensors_measure tells the size that
   * the buffer needs. */
  GPUSHM_FORMAT_TENSORS = 2
} gpushm_format;

/* For gpushm_transfer_options.threads: the calling thread alone. Libraries of version 0.1 start
 * none with 0, and refuse this. */
#define GPUSHM_NO_THREADS 0xffffffffu

typedef struct gpushm_transfer_options {
  size_t struct_size;
  uint32_t method;          /* gpushm_transfer_method */
  uint32_t reserved;        /* 0. */
  uint64_t chunk_bytes;     /* Of pinned host memory. 0: 16 MiB, less for what is small. */
  gpushm_progress progress; /* May be NULL. */
  void* user;
  /* For the whole call, the wait for the buffer included. 0: ten minutes, of which
   * GPUSHM_DEFAULT_TIMEOUT_MS for the wait. GPUSHM_DONT_WAIT: no wait (NOT_FOUND; to save, also
   * LOADING), and ten minutes for the transfer. */
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
} gpushm_transfer_options;

typedef struct gpushm_transfer_result {
  size_t struct_size;
  uint32_t method; /* gpushm_transfer_method: the one that was used. */
  uint32_t reserved;
  uint64_t bytes;
  int64_t elapsed_ns;   /* Of the whole call. */
  uint32_t file_method; /* gpushm_file_method: CACHED, DIRECT, STREAM or GDS. */
  uint32_t file_reason; /* gpushm_file_reason */
  /* Of it, from the first byte to the last: without connecting, making a context, pinning memory,
   * measuring the link and fsync. 0: a broker of an older version. */
  int64_t moving_ns;
  /* What pinned memory and this GPU do in this direction with nothing else to do: measured with the
   * first chunk of at least 16 MiB, once in a client's life, in a few ms. 0: not measured. */
  uint64_t link_bytes_per_second;
} gpushm_transfer_result;

/* Fills a buffer from a file: its whole content from offset 0; a file larger than the buffer is
 * INVALID_ARGUMENT, a smaller one leaves the rest as it is. A stream is read to its end; one that
 * is longer is INVALID_ARGUMENT too, when the buffer is full. The buffer is LOADING meanwhile,
 * READY afterwards, FAILED if it ends otherwise. Needs write access. `path` NULL:
 * options->descriptor. `result` may be NULL. */
GPUSHM_API gpushm_status gpushm_load(gpushm_client* client, const char* name, const char* path,
                                     const gpushm_transfer_options* options,
                                     gpushm_transfer_result* result);

/* Writes a buffer's content to a file, which is replaced as a whole when it is complete. `path`
 * NULL: to options->descriptor, in order. A broker older than version 0.2, where it moves the bytes
 * (GPUSHM_TRANSFER_BROKER), writes all of the buffer. */
GPUSHM_API gpushm_status gpushm_save(gpushm_client* client, const char* name, const char* path,
                                     const gpushm_transfer_options* options,
                                     gpushm_transfer_result* result);

#ifdef __cplusplus
} /* extern "C" */
#endif

/* The names of version 0.1, marked as deprecated. Define GPUSHM_NO_DEPRECATED to leave them out. */
#ifndef GPUSHM_NO_DEPRECATED
#include "deprecated.h"
#endif

#endif /* GPUSHM_GPUSHM_H_ */
