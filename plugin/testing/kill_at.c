// Preloaded into a process that must be killed at each of its changes of the file system. Counts
// the calls that make changes, and kills the process with SIGKILL before call number GPUSHM_KILL_AT
// (from 1).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_int calls;

static void step(void) {
  static int at = -1;
  if (at < 0) {
    const char* text = getenv("GPUSHM_KILL_AT");
    at = text == NULL ? 0 : atoi(text);
  }
  if (at > 0 && atomic_fetch_add(&calls, 1) + 1 == at) kill(getpid(), SIGKILL);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int rename(const char* from, const char* to) {
  step();
  return REAL(rename)(from, to);
}
int unlink(const char* path) {
  step();
  return REAL(unlink)(path);
}
int unlinkat(int folder, const char* path, int flags) {
  step();
  return REAL(unlinkat)(folder, path, flags);
}
int rmdir(const char* path) {
  step();
  return REAL(rmdir)(path);
}
int mkdir(const char* path, mode_t mode) {
  step();
  return REAL(mkdir)(path, mode);
}
int chmod(const char* path, mode_t mode) {
  step();
  return REAL(chmod)(path, mode);
}
int fchmod(int fd, mode_t mode) {
  step();
  return REAL(fchmod)(fd, mode);
}
int bind(int socket, const struct sockaddr* address, socklen_t size) {
  step();
  return REAL(bind)(socket, address, size);
}
int listen(int socket, int backlog) {
  step();
  return REAL(listen)(socket, backlog);
}
ssize_t write(int fd, const void* bytes, size_t count) {
  struct stat info;
  if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) step();
  return REAL(write)(fd, bytes, count);
}
