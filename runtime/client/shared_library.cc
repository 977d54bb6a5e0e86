// libgpushm.so consists of the objects of gpushm_client, but CMake needs a source file for it. This
// one also carries the version: `strings libgpushm.so | grep gpushm-version`.
#include "runtime/include/gpushm/gpushm.h"

// A program of version 0.1 binds to these: it wants the bytes of a safetensors file as they are. The
// other version of both is in gpushm.map.
__asm__(".symver gpushm_load_0_1, gpushm_load@GPUSHM_0.1");
__asm__(".symver gpushm_save_0_1, gpushm_save@GPUSHM_0.1");

#define GPUSHM_TEXT_OF(x) #x
#define GPUSHM_TEXT(x) GPUSHM_TEXT_OF(x)

[[gnu::used]] static const char kVersionText[] =
    "gpushm-version " GPUSHM_TEXT(GPUSHM_VERSION_MAJOR) "." GPUSHM_TEXT(
        GPUSHM_VERSION_MINOR) "." GPUSHM_TEXT(GPUSHM_VERSION_PATCH);
