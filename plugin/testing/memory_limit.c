// Preloaded into a process that must see another limit of its memory: the cgroup's files are those
// below the folder GPUSHM_CGROUP_ROOT.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE* open_below(FILE* (*open)(const char*, const char*), const char* path,
                        const char* mode) {
  const char* const root = getenv("GPUSHM_CGROUP_ROOT");
  char replaced[4096];
  if (root != NULL && (strcmp(path, "/proc/self/cgroup") == 0 ||
                       strncmp(path, "/sys/fs/cgroup/", strlen("/sys/fs/cgroup/")) == 0)) {
    snprintf(replaced, sizeof replaced, "%s%s", root, path);
    path = replaced;
  }
  return open(path, mode);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

FILE* fopen(const char* path, const char* mode) { return open_below(REAL(fopen), path, mode); }
FILE* fopen64(const char* path, const char* mode) { return open_below(REAL(fopen64), path, mode); }
