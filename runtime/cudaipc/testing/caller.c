// Who asks for its PID, for the tests: an ordinary module, one that has a CUDA runtime inside
// (RUNTIME), or a program (PROGRAM) that has one.
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default"), noinline))
#ifdef RUNTIME
#define FIRST 0xd4
#else
#define FIRST 0xd5  // Nobody's key. All else is the same in both modules.
#endif
static const unsigned char key[16] = {FIRST, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b,
                                      0x8d,  0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1, 0xf2};

#ifdef __x86_64__
#define GO "jmp"
#else
#define GO "b"
#endif

// As the runtime's integrity check does.
EXPORTED pid_t Ask(void) {
  __asm__ volatile("" : : "r"(key));
  const pid_t pid = getpid();
  __asm__ volatile("");  // Not a jump to getpid: the return address would be the caller's.
  return pid;
}

// As everything else in the module does. The runtime is one object file of half a megabyte, so this
// is far from it.
EXPORTED pid_t AskElsewhere(void) {
  __asm__ volatile(GO " 1f\n.skip 4096, 0\n1:");
  const pid_t pid = getpid();
  __asm__ volatile("");
  return pid;
}

// As a client of MPS does: a byte with its credentials. 0, or -1 and errno.
EXPORTED int SendCredentials(int fd) {
  char byte = 7;
  struct iovec data = {&byte, 1};
  _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(struct ucred))] = {0};
  struct msghdr message = {
      .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  struct cmsghdr* const part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_CREDENTIALS;
  part->cmsg_len = CMSG_LEN(sizeof(struct ucred));
  const struct ucred sender = {getpid(), geteuid(), getegid()};
  memcpy(CMSG_DATA(part), &sender, sizeof sender);
  return sendmsg(fd, &message, 0) == 1 ? 0 : -1;
}

#ifdef PROGRAM
// Prints whether the two saw the real PID (1) or a number above all PIDs (2).
static int Kind(pid_t pid) { return pid == syscall(SYS_getpid) ? 1 : pid > 1 << 22 ? 2 : 0; }
int main(void) {
  printf("%d%d\n", Kind(Ask()), Kind(AskElsewhere()));
  return 0;
}
#endif
