/* The names of sync.h in version 0.1, as deprecated.h has those of gpushm.h. sync.h includes this
 * header unless GPUSHM_NO_DEPRECATED is defined. */
#ifndef GPUSHM_DEPRECATED_SYNC_H_
#define GPUSHM_DEPRECATED_SYNC_H_

#include "deprecated.h"
#include "sync.h"

#ifdef __cplusplus
extern "C" {
#endif

/* clang-format off */
GPUSHM_OLD_ENUMERATOR_(gpushm_signal_role, GPUSHM_WAITER, GPUSHM_SIGNAL_WAITER)
GPUSHM_OLD_ENUMERATOR_(gpushm_signal_role, GPUSHM_WRITER, GPUSHM_SIGNAL_WRITER)
GPUSHM_OLD_ENUMERATOR_(gpushm_signal_memory, GPUSHM_HOST_PAGE, GPUSHM_SIGNAL_HOST_PAGE)
GPUSHM_OLD_ENUMERATOR_(gpushm_signal_memory, GPUSHM_DEVICE_MEMORY, GPUSHM_SIGNAL_DEVICE_MEMORY)
GPUSHM_OLD_ENUMERATOR_(gpushm_ring_policy, GPUSHM_OVERWRITE_OLDEST, GPUSHM_RING_OVERWRITE_OLDEST)
GPUSHM_OLD_ENUMERATOR_(gpushm_ring_policy, GPUSHM_BACK_PRESSURE, GPUSHM_RING_BACK_PRESSURE)
GPUSHM_OLD_ENUMERATOR_(gpushm_ring_policy, GPUSHM_QUEUE, GPUSHM_RING_QUEUE)
GPUSHM_OLD_ENUMERATOR_(gpushm_frame_ready, GPUSHM_READY_ALREADY, GPUSHM_FRAME_READY_ALREADY)
GPUSHM_OLD_ENUMERATOR_(gpushm_frame_ready, GPUSHM_READY_STREAM, GPUSHM_FRAME_READY_STREAM)
GPUSHM_OLD_ENUMERATOR_(gpushm_frame_ready, GPUSHM_READY_HOST, GPUSHM_FRAME_READY_HOST)
#ifndef __cplusplus
#define GPUSHM_WAITER ((gpushm_signal_role)GPUSHM_WAITER)
#define GPUSHM_WRITER ((gpushm_signal_role)GPUSHM_WRITER)
#define GPUSHM_HOST_PAGE ((gpushm_signal_memory)GPUSHM_HOST_PAGE)
#define GPUSHM_DEVICE_MEMORY ((gpushm_signal_memory)GPUSHM_DEVICE_MEMORY)
#define GPUSHM_OVERWRITE_OLDEST ((gpushm_ring_policy)GPUSHM_OVERWRITE_OLDEST)
#define GPUSHM_BACK_PRESSURE ((gpushm_ring_policy)GPUSHM_BACK_PRESSURE)
#define GPUSHM_QUEUE ((gpushm_ring_policy)GPUSHM_QUEUE)
#define GPUSHM_READY_ALREADY ((gpushm_frame_ready)GPUSHM_READY_ALREADY)
#define GPUSHM_READY_STREAM ((gpushm_frame_ready)GPUSHM_READY_STREAM)
#define GPUSHM_READY_HOST ((gpushm_frame_ready)GPUSHM_READY_HOST)
#endif
/* clang-format on */

GPUSHM_DEPRECATED_("use gpushm_signal_get_info")
static inline gpushm_status gpushm_signal_read(const gpushm_signal* signal,
                                               gpushm_signal_info* info) {
  return gpushm_signal_get_info(signal, info);
}

GPUSHM_DEPRECATED_("use gpushm_sync_lookup")
static inline gpushm_status gpushm_sync_look(gpushm_client* client, const char* name,
                                             gpushm_sync_info* info) {
  return gpushm_sync_lookup(client, name, info);
}

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* GPUSHM_DEPRECATED_SYNC_H_ */
