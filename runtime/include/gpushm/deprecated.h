/* The names of gpushm.h in version 0.1. Each is marked as deprecated, and the compiler's warning
 * says which name replaces it. gpushm.h includes this header unless GPUSHM_NO_DEPRECATED is
 * defined.
 *
 * The functions are inline and call their successors, so a program that is compiled today does not
 * need the old symbols. Members of structs have only their new names: `method`, `file_method` and
 * `peer_method` instead of `way`, `file_way` and `peer_way`. */
#ifndef GPUSHM_DEPRECATED_H_
#define GPUSHM_DEPRECATED_H_

#include "gpushm.h"

#if defined(__GNUC__)
#define GPUSHM_DEPRECATED_(text) __attribute__((deprecated(text), unused))
#else
#define GPUSHM_DEPRECATED_(text)
#endif

/* In C++, an old enumerator is a constant of its enumeration. In C, such a constant could not be a
 * case label, so it is an enumerator of its own, and a macro of the same name gives it its type. */
#ifdef __cplusplus
#define GPUSHM_OLD_ENUMERATOR_(type, old_name, new_name) \
  static const type old_name GPUSHM_DEPRECATED_("use " #new_name) = new_name;
#else
#define GPUSHM_OLD_ENUMERATOR_(type, old_name, new_name) \
  enum { old_name GPUSHM_DEPRECATED_("use " #new_name) = new_name };
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* clang-format off */
GPUSHM_OLD_ENUMERATOR_(gpushm_access, GPUSHM_READ, GPUSHM_ACCESS_READ)
GPUSHM_OLD_ENUMERATOR_(gpushm_access, GPUSHM_READ_WRITE, GPUSHM_ACCESS_READ_WRITE)
GPUSHM_OLD_ENUMERATOR_(gpushm_transport, GPUSHM_VMM, GPUSHM_TRANSPORT_VMM)
GPUSHM_OLD_ENUMERATOR_(gpushm_transport, GPUSHM_CUIPC, GPUSHM_TRANSPORT_CUIPC)
GPUSHM_OLD_ENUMERATOR_(gpushm_transport, GPUSHM_HOST, GPUSHM_TRANSPORT_HOST)
GPUSHM_OLD_ENUMERATOR_(gpushm_on_writer_exit, GPUSHM_MARK, GPUSHM_WRITER_EXIT_MARK)
GPUSHM_OLD_ENUMERATOR_(gpushm_on_writer_exit, GPUSHM_KEEP, GPUSHM_WRITER_EXIT_KEEP)
GPUSHM_OLD_ENUMERATOR_(gpushm_on_writer_exit, GPUSHM_DROP, GPUSHM_WRITER_EXIT_DROP)
GPUSHM_OLD_ENUMERATOR_(gpushm_buffer_state, GPUSHM_STATE_LOADING, GPUSHM_BUFFER_LOADING)
GPUSHM_OLD_ENUMERATOR_(gpushm_buffer_state, GPUSHM_STATE_READY, GPUSHM_BUFFER_READY)
GPUSHM_OLD_ENUMERATOR_(gpushm_buffer_state, GPUSHM_STATE_WRITER_DIED, GPUSHM_BUFFER_WRITER_DIED)
GPUSHM_OLD_ENUMERATOR_(gpushm_buffer_state, GPUSHM_STATE_FAILED, GPUSHM_BUFFER_FAILED)
GPUSHM_OLD_ENUMERATOR_(gpushm_transfer_method, GPUSHM_WAY_AUTO, GPUSHM_TRANSFER_AUTO)
GPUSHM_OLD_ENUMERATOR_(gpushm_transfer_method, GPUSHM_WAY_HERE, GPUSHM_TRANSFER_HERE)
GPUSHM_OLD_ENUMERATOR_(gpushm_transfer_method, GPUSHM_WAY_BROKER, GPUSHM_TRANSFER_BROKER)
GPUSHM_OLD_ENUMERATOR_(gpushm_file_reason, GPUSHM_REASON_UNKNOWN, GPUSHM_FILE_REASON_UNKNOWN)
GPUSHM_OLD_ENUMERATOR_(gpushm_file_reason, GPUSHM_REASON_ASKED, GPUSHM_FILE_REASON_ASKED)
GPUSHM_OLD_ENUMERATOR_(gpushm_file_reason, GPUSHM_REASON_SMALL, GPUSHM_FILE_REASON_SMALL)
GPUSHM_OLD_ENUMERATOR_(gpushm_file_reason, GPUSHM_REASON_IN_CACHE, GPUSHM_FILE_REASON_IN_CACHE)
GPUSHM_OLD_ENUMERATOR_(gpushm_file_reason, GPUSHM_REASON_NOT_IN_CACHE, GPUSHM_FILE_REASON_NOT_IN_CACHE)
GPUSHM_OLD_ENUMERATOR_(gpushm_file_reason, GPUSHM_REASON_LARGE, GPUSHM_FILE_REASON_LARGE)
GPUSHM_OLD_ENUMERATOR_(gpushm_file_reason, GPUSHM_REASON_REFUSED, GPUSHM_FILE_REASON_REFUSED)
GPUSHM_OLD_ENUMERATOR_(gpushm_file_reason, GPUSHM_REASON_IN_ORDER, GPUSHM_FILE_REASON_IN_ORDER)
#ifndef __cplusplus
#define GPUSHM_READ ((gpushm_access)GPUSHM_READ)
#define GPUSHM_READ_WRITE ((gpushm_access)GPUSHM_READ_WRITE)
#define GPUSHM_VMM ((gpushm_transport)GPUSHM_VMM)
#define GPUSHM_CUIPC ((gpushm_transport)GPUSHM_CUIPC)
#define GPUSHM_HOST ((gpushm_transport)GPUSHM_HOST)
#define GPUSHM_MARK ((gpushm_on_writer_exit)GPUSHM_MARK)
#define GPUSHM_KEEP ((gpushm_on_writer_exit)GPUSHM_KEEP)
#define GPUSHM_DROP ((gpushm_on_writer_exit)GPUSHM_DROP)
#define GPUSHM_STATE_LOADING ((gpushm_buffer_state)GPUSHM_STATE_LOADING)
#define GPUSHM_STATE_READY ((gpushm_buffer_state)GPUSHM_STATE_READY)
#define GPUSHM_STATE_WRITER_DIED ((gpushm_buffer_state)GPUSHM_STATE_WRITER_DIED)
#define GPUSHM_STATE_FAILED ((gpushm_buffer_state)GPUSHM_STATE_FAILED)
#define GPUSHM_WAY_AUTO ((gpushm_transfer_method)GPUSHM_WAY_AUTO)
#define GPUSHM_WAY_HERE ((gpushm_transfer_method)GPUSHM_WAY_HERE)
#define GPUSHM_WAY_BROKER ((gpushm_transfer_method)GPUSHM_WAY_BROKER)
#define GPUSHM_REASON_UNKNOWN ((gpushm_file_reason)GPUSHM_REASON_UNKNOWN)
#define GPUSHM_REASON_ASKED ((gpushm_file_reason)GPUSHM_REASON_ASKED)
#define GPUSHM_REASON_SMALL ((gpushm_file_reason)GPUSHM_REASON_SMALL)
#define GPUSHM_REASON_IN_CACHE ((gpushm_file_reason)GPUSHM_REASON_IN_CACHE)
#define GPUSHM_REASON_NOT_IN_CACHE ((gpushm_file_reason)GPUSHM_REASON_NOT_IN_CACHE)
#define GPUSHM_REASON_LARGE ((gpushm_file_reason)GPUSHM_REASON_LARGE)
#define GPUSHM_REASON_REFUSED ((gpushm_file_reason)GPUSHM_REASON_REFUSED)
#define GPUSHM_REASON_IN_ORDER ((gpushm_file_reason)GPUSHM_REASON_IN_ORDER)
#endif
/* clang-format on */

typedef gpushm_transfer_method gpushm_transfer_way GPUSHM_DEPRECATED_("use gpushm_transfer_method");
typedef gpushm_file_method gpushm_file_way GPUSHM_DEPRECATED_("use gpushm_file_method");
typedef gpushm_peer_method gpushm_peer_way GPUSHM_DEPRECATED_("use gpushm_peer_method");

GPUSHM_DEPRECATED_("use gpushm_attachment_address")
static inline uint64_t gpushm_address(const gpushm_attachment* attachment) {
  return gpushm_attachment_address(attachment);
}

GPUSHM_DEPRECATED_("use gpushm_attachment_size")
static inline uint64_t gpushm_size(const gpushm_attachment* attachment) {
  return gpushm_attachment_size(attachment);
}

GPUSHM_DEPRECATED_("use gpushm_attachment_check")
static inline gpushm_status gpushm_current(const gpushm_attachment* attachment) {
  return gpushm_attachment_check(attachment);
}

GPUSHM_DEPRECATED_("use gpushm_attachment_publish")
static inline gpushm_status gpushm_publish(gpushm_attachment* attachment) {
  return gpushm_attachment_publish(attachment);
}

GPUSHM_DEPRECATED_("use gpushm_attachment_detach")
static inline gpushm_status gpushm_detach(gpushm_attachment* attachment,
                                          const gpushm_detach_options* options) {
  return gpushm_attachment_detach(attachment, options);
}

GPUSHM_DEPRECATED_("use gpushm_broker_get_info")
static inline gpushm_status gpushm_broker(gpushm_client* client, gpushm_broker_info* info) {
  return gpushm_broker_get_info(client, info);
}

GPUSHM_DEPRECATED_("use gpushm_list_holders")
static inline gpushm_status gpushm_holders(gpushm_client* client, const char* name,
                                           gpushm_holder* holders, size_t capacity, size_t* count) {
  return gpushm_list_holders(client, name, holders, capacity, count);
}

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* GPUSHM_DEPRECATED_H_ */
