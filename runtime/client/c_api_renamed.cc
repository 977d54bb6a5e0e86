// The C ABI: the functions of version 0.1 under their names of that time, for programs that were
// compiled then. Their headers no longer declare them, so this file does.
#define GPUSHM_NO_DEPRECATED
#include "runtime/include/gpushm/gpushm.h"
#include "runtime/include/gpushm/sync.h"

extern "C" {

GPUSHM_API uint64_t gpushm_address(const gpushm_attachment* attachment);
GPUSHM_API uint64_t gpushm_size(const gpushm_attachment* attachment);
GPUSHM_API gpushm_status gpushm_current(const gpushm_attachment* attachment);
GPUSHM_API gpushm_status gpushm_publish(gpushm_attachment* attachment);
GPUSHM_API gpushm_status gpushm_detach(gpushm_attachment* attachment,
                                       const gpushm_detach_options* options);
GPUSHM_API gpushm_status gpushm_broker(gpushm_client* client, gpushm_broker_info* info);
GPUSHM_API gpushm_status gpushm_holders(gpushm_client* client, const char* name,
                                        gpushm_holder* holders, size_t capacity, size_t* count);
GPUSHM_API gpushm_status gpushm_signal_read(const gpushm_signal* signal, gpushm_signal_info* info);
GPUSHM_API gpushm_status gpushm_sync_look(gpushm_client* client, const char* name,
                                          gpushm_sync_info* info);

uint64_t gpushm_address(const gpushm_attachment* attachment) {
  return gpushm_attachment_address(attachment);
}

uint64_t gpushm_size(const gpushm_attachment* attachment) {
  return gpushm_attachment_size(attachment);
}

gpushm_status gpushm_current(const gpushm_attachment* attachment) {
  return gpushm_attachment_check(attachment);
}

gpushm_status gpushm_publish(gpushm_attachment* attachment) {
  return gpushm_attachment_publish(attachment);
}

gpushm_status gpushm_detach(gpushm_attachment* attachment, const gpushm_detach_options* options) {
  return gpushm_attachment_detach(attachment, options);
}

gpushm_status gpushm_broker(gpushm_client* client, gpushm_broker_info* info) {
  return gpushm_broker_get_info(client, info);
}

gpushm_status gpushm_holders(gpushm_client* client, const char* name, gpushm_holder* holders,
                             size_t capacity, size_t* count) {
  return gpushm_list_holders(client, name, holders, capacity, count);
}

gpushm_status gpushm_signal_read(const gpushm_signal* signal, gpushm_signal_info* info) {
  return gpushm_signal_get_info(signal, info);
}

gpushm_status gpushm_sync_look(gpushm_client* client, const char* name, gpushm_sync_info* info) {
  return gpushm_sync_lookup(client, name, info);
}

}  // extern "C"
