/* gpushm.h of version 0.1 without its comments. It never changes: tests/abi/program_0_1.c is
 * compiled with it, as programs that are still in use were. */
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

#define GPUSHM_NAME_BYTES 64
#define GPUSHM_UUID_BYTES 16

#define GPUSHM_DEFAULT_TIMEOUT_MS 10000

#define GPUSHM_DONT_WAIT (-1)

#define GPUSHM_INIT(pointer)                                                                      \
  do {                                                                                            \
    unsigned char* gpushm_bytes_ = (unsigned char*)(pointer);                                     \
    size_t gpushm_i_;                                                                             \
    for (gpushm_i_ = 0; gpushm_i_ < sizeof *(pointer); ++gpushm_i_) gpushm_bytes_[gpushm_i_] = 0; \
    (pointer)->struct_size = sizeof *(pointer);                                                   \
  } while (0)

typedef enum gpushm_status {
  GPUSHM_OK = 0,
  GPUSHM_INVALID_ARGUMENT = 1,
  GPUSHM_NOT_FOUND = 2,
  GPUSHM_ALREADY_EXISTS = 3,
  GPUSHM_DENIED = 4,
  GPUSHM_EXHAUSTED = 5,
  GPUSHM_CONTENDED = 6,
  GPUSHM_TIMEOUT = 7,
  GPUSHM_INCOMPATIBLE = 8,
  GPUSHM_CORRUPT = 9,
  GPUSHM_UNAVAILABLE = 10,
  GPUSHM_ORPHANED = 11,
  GPUSHM_STALE = 12,
  GPUSHM_PEER_DIED = 13,
  GPUSHM_DEVICE_LOST = 14,
  GPUSHM_BUSY = 15,
  GPUSHM_UNSUPPORTED = 16,
  GPUSHM_DRIVER = 17,
  GPUSHM_SYSTEM = 18,
  GPUSHM_FORKED = 19,
  GPUSHM_LOADING = 20,
  GPUSHM_INTERNAL = 21
} gpushm_status;

typedef struct gpushm_error {
  gpushm_status status;
  const char* text;
  const char* what;
  const char* remedy;
} gpushm_error;

GPUSHM_API const gpushm_error* gpushm_last_error(void);

GPUSHM_API const char* gpushm_status_name(gpushm_status status);

GPUSHM_API int gpushm_version(void);

typedef struct gpushm_client gpushm_client;
typedef struct gpushm_attachment gpushm_attachment;

typedef enum gpushm_access { GPUSHM_READ = 1, GPUSHM_READ_WRITE = 2 } gpushm_access;

typedef enum gpushm_transport {
  GPUSHM_VMM = 1,
  GPUSHM_CUIPC = 2,
  GPUSHM_HOST = 3
} gpushm_transport;

typedef enum gpushm_buffer_state {
  GPUSHM_STATE_LOADING = 1,
  GPUSHM_STATE_READY = 2,
  GPUSHM_STATE_WRITER_DIED = 3,
  GPUSHM_STATE_FAILED = 4
} gpushm_buffer_state;

typedef struct gpushm_open_options {
  size_t struct_size;
  const char* folder;
  const char* pod_uid;
  const char* driver;
  int64_t timeout_ms;
} gpushm_open_options;

GPUSHM_API gpushm_status gpushm_open(const gpushm_open_options* options, gpushm_client** client);

GPUSHM_API void gpushm_close(gpushm_client* client);

typedef struct gpushm_info {
  size_t struct_size;
  char name[GPUSHM_NAME_BYTES];
  uint64_t generation;
  uint64_t size_bytes;
  uint64_t mapped_bytes;
  uint64_t loaded_bytes;
  int64_t created_unix_ns;
  uint8_t gpu_uuid[GPUSHM_UUID_BYTES];
  uint32_t transport;
  uint32_t state;
  char creator[GPUSHM_NAME_BYTES];
} gpushm_info;

GPUSHM_API gpushm_status gpushm_lookup(gpushm_client* client, const char* name, gpushm_info* info);

GPUSHM_API gpushm_status gpushm_list(gpushm_client* client, gpushm_info* infos, size_t capacity,
                                     size_t* count);

typedef struct gpushm_wait_options {
  size_t struct_size;
  int64_t timeout_ms;
} gpushm_wait_options;

GPUSHM_API gpushm_status gpushm_wait(gpushm_client* client, const char* name,
                                     uint64_t min_generation, const gpushm_wait_options* options,
                                     gpushm_info* info);

typedef struct gpushm_holder {
  size_t struct_size;
  char buffer[GPUSHM_NAME_BYTES];
  char container[GPUSHM_NAME_BYTES];
  uint64_t generation;
  uint64_t client_id;
  uint64_t lease_id;
  uint32_t access;
  int64_t since_unix_ns;
  uint32_t peer_way;
} gpushm_holder;

GPUSHM_API gpushm_status gpushm_holders(gpushm_client* client, const char* name,
                                        gpushm_holder* holders, size_t capacity, size_t* count);

typedef struct gpushm_broker_info {
  size_t struct_size;
  char container[GPUSHM_NAME_BYTES];
  uint8_t gpu_uuid[GPUSHM_UUID_BYTES];
  uint64_t pool_bytes;
  uint64_t used_bytes;
  uint64_t broker_epoch;
  uint32_t protocol;
  uint32_t clients;
  uint32_t leases;
  uint32_t simulated;
} gpushm_broker_info;

GPUSHM_API gpushm_status gpushm_broker(gpushm_client* client, gpushm_broker_info* info);

typedef enum gpushm_peer_way {
  GPUSHM_PEER_NONE = 0,
  GPUSHM_PEER_NVLINK = 1,
  GPUSHM_PEER_PCIE = 2,
  GPUSHM_PEER_STAGED = 3
} gpushm_peer_way;

typedef struct gpushm_attach_options {
  size_t struct_size;
  uint32_t access;
  uint32_t reserved;
  uint64_t generation;
  int64_t timeout_ms;
  uint64_t peer_devices;
  uint32_t stage;
  uint32_t reserved1;
} gpushm_attach_options;

GPUSHM_API gpushm_status gpushm_attach(gpushm_client* client, const char* name,
                                       const gpushm_attach_options* options,
                                       gpushm_attachment** attachment);

GPUSHM_API uint64_t gpushm_address(const gpushm_attachment* attachment);

GPUSHM_API uint64_t gpushm_size(const gpushm_attachment* attachment);

GPUSHM_API gpushm_status gpushm_current(const gpushm_attachment* attachment);

typedef struct gpushm_attachment_info {
  size_t struct_size;
  char name[GPUSHM_NAME_BYTES];
  uint64_t address;
  uint64_t size_bytes;
  uint64_t mapped_bytes;
  uint64_t generation;
  uint64_t lease_id;
  uint32_t access;
  uint32_t transport;
  uint32_t status;
  uint32_t state;
  int32_t device;
  uint32_t count;
  uint64_t peer_devices;
  uint32_t peer_way;
} gpushm_attachment_info;

GPUSHM_API gpushm_status gpushm_attachment_get_info(const gpushm_attachment* attachment,
                                                    gpushm_attachment_info* info);

typedef struct gpushm_detach_options {
  size_t struct_size;
  void* const* streams;
  size_t stream_count;
  uint32_t defer;
  uint32_t reserved;
} gpushm_detach_options;

GPUSHM_API gpushm_status gpushm_detach(gpushm_attachment* attachment,
                                       const gpushm_detach_options* options);

typedef enum gpushm_writers { GPUSHM_WRITERS_CREATOR = 0, GPUSHM_WRITERS_ALL = 1 } gpushm_writers;

typedef enum gpushm_on_writer_exit {
  GPUSHM_MARK = 0,
  GPUSHM_KEEP = 1,
  GPUSHM_DROP = 2
} gpushm_on_writer_exit;

typedef struct gpushm_create_options {
  size_t struct_size;
  uint32_t writers;
  uint32_t one_writer;
  uint32_t on_writer_exit;
  uint32_t unpublished;
  int64_t timeout_ms;
} gpushm_create_options;

GPUSHM_API gpushm_status gpushm_create(gpushm_client* client, const char* name, uint64_t size_bytes,
                                       const gpushm_create_options* options,
                                       gpushm_attachment** attachment);

GPUSHM_API gpushm_status gpushm_replace(gpushm_client* client, const char* name,
                                        uint64_t size_bytes, const gpushm_create_options* options,
                                        gpushm_attachment** attachment);

GPUSHM_API gpushm_status gpushm_publish(gpushm_attachment* attachment);

typedef struct gpushm_offer_options {
  size_t struct_size;
  uint32_t writers;
  uint32_t one_writer;
  uint32_t on_writer_exit;
  uint32_t allow_copy;
  int64_t timeout_ms;
} gpushm_offer_options;

typedef struct gpushm_offer_result {
  size_t struct_size;
  uint32_t transport;
  uint32_t copied;
  uint64_t copied_bytes;
  int64_t copy_ns;
} gpushm_offer_result;

GPUSHM_API gpushm_status gpushm_offer(gpushm_client* client, const char* name, uint64_t address,
                                      uint64_t size_bytes, const gpushm_offer_options* options,
                                      gpushm_offer_result* result);

GPUSHM_API gpushm_status gpushm_delete(gpushm_client* client, const char* name,
                                       const gpushm_wait_options* options);

typedef int (*gpushm_progress)(void* user, uint64_t done_bytes, uint64_t total_bytes);

typedef enum gpushm_transfer_way {
  GPUSHM_WAY_AUTO = 0,
  GPUSHM_WAY_HERE = 1,
  GPUSHM_WAY_BROKER = 2
} gpushm_transfer_way;

typedef enum gpushm_file_way {
  GPUSHM_FILE_AUTO = 0,
  GPUSHM_FILE_CACHED = 1,
  GPUSHM_FILE_DIRECT = 2,
  GPUSHM_FILE_STREAM = 3,
  GPUSHM_FILE_GDS = 4,
  GPUSHM_FILE_AUTO_GDS = 5
} gpushm_file_way;

typedef enum gpushm_file_reason {
  GPUSHM_REASON_UNKNOWN = 0,
  GPUSHM_REASON_ASKED = 1,
  GPUSHM_REASON_SMALL = 2,
  GPUSHM_REASON_IN_CACHE = 3,
  GPUSHM_REASON_NOT_IN_CACHE = 4,
  GPUSHM_REASON_LARGE = 5,
  GPUSHM_REASON_REFUSED = 6,
  GPUSHM_REASON_IN_ORDER = 7
} gpushm_file_reason;

typedef struct gpushm_transfer_options {
  size_t struct_size;
  uint32_t way;
  uint32_t reserved;
  uint64_t chunk_bytes;
  gpushm_progress progress;
  void* user;
  int64_t timeout_ms;
  uint32_t file_way;
  uint32_t chunks;
  uint32_t threads;
  int32_t descriptor;
} gpushm_transfer_options;

typedef struct gpushm_transfer_result {
  size_t struct_size;
  uint32_t way;
  uint32_t reserved;
  uint64_t bytes;
  int64_t elapsed_ns;
  uint32_t file_way;
  uint32_t file_reason;
  int64_t moving_ns;
  uint64_t link_bytes_per_second;
} gpushm_transfer_result;

GPUSHM_API gpushm_status gpushm_load(gpushm_client* client, const char* name, const char* path,
                                     const gpushm_transfer_options* options,
                                     gpushm_transfer_result* result);

GPUSHM_API gpushm_status gpushm_save(gpushm_client* client, const char* name, const char* path,
                                     const gpushm_transfer_options* options,
                                     gpushm_transfer_result* result);

#ifdef __cplusplus
}
#endif

#endif
