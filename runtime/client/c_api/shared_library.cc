// libgpushm.so consists of the objects of gpushm_client, but CMake needs a source file for it. This
// one also carries the version: `strings libgpushm.so | grep gpushm-version`.
#define GPUSHM_BUILDING_LIBRARY
#include "runtime/include/gpushm/gpushm.h"

#define GPUSHM_TEXT_OF(x) #x
#define GPUSHM_TEXT(x) GPUSHM_TEXT_OF(x)

[[gnu::used]] static const char kVersionText[] =
    "gpushm-version " GPUSHM_TEXT(GPUSHM_VERSION_MAJOR) "." GPUSHM_TEXT(
        GPUSHM_VERSION_MINOR) "." GPUSHM_TEXT(GPUSHM_VERSION_PATCH);
