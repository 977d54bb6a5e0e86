// libgpushm.so consists of the objects of gpushm_client, but CMake needs a source file for it. This
// one also carries the version: `strings libgpushm.so | grep gpushm-version`.
#define GPUSHM_BUILDING_LIBRARY
#include "runtime/include/gpushm/gpushm.h"

// Version 0.1 of gpushm_load and gpushm_save, which programs of that time bind to: they want the
// bytes of a safetensors file as they are. gpushm.map has the other version of both.
extern "C" {

gpushm_status gpushm_load_0_1(gpushm_client* client, const char* name, const char* path,
                              const gpushm_transfer_options* options,
                              gpushm_transfer_result* result);
gpushm_status gpushm_save_0_1(gpushm_client* client, const char* name, const char* path,
                              const gpushm_transfer_options* options,
                              gpushm_transfer_result* result);

__asm__(".symver gpushm_old_load, gpushm_load@GPUSHM_0.1");
GPUSHM_API gpushm_status gpushm_old_load(gpushm_client* client, const char* name, const char* path,
                                         const gpushm_transfer_options* options,
                                         gpushm_transfer_result* result);
gpushm_status gpushm_old_load(gpushm_client* client, const char* name, const char* path,
                              const gpushm_transfer_options* options,
                              gpushm_transfer_result* result) {
  return gpushm_load_0_1(client, name, path, options, result);
}

__asm__(".symver gpushm_old_save, gpushm_save@GPUSHM_0.1");
GPUSHM_API gpushm_status gpushm_old_save(gpushm_client* client, const char* name, const char* path,
                                         const gpushm_transfer_options* options,
                                         gpushm_transfer_result* result);
gpushm_status gpushm_old_save(gpushm_client* client, const char* name, const char* path,
                              const gpushm_transfer_options* options,
                              gpushm_transfer_result* result) {
  return gpushm_save_0_1(client, name, path, options, result);
}

}  // extern "C"

#define GPUSHM_TEXT_OF(x) #x
#define GPUSHM_TEXT(x) GPUSHM_TEXT_OF(x)

[[gnu::used]] static const char kVersionText[] =
    "gpushm-version " GPUSHM_TEXT(GPUSHM_VERSION_MAJOR) "." GPUSHM_TEXT(
        GPUSHM_VERSION_MINOR) "." GPUSHM_TEXT(GPUSHM_VERSION_PATCH);
