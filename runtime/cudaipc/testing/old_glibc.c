// The library as it is with a glibc before 2.35 and with musl, which have no _dl_find_object.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#define __asm__(symbol) __asm__("gpushm_no_such_function")
#include "runtime/cudaipc/cudaipc.c"
