// libgpushm-cudaipc.so: CUDA IPC between the containers of a pod, whose programs are all PID 1.
//
// The driver writes getpid() into its handles, and refuses a handle with its own number. This
// library is loaded before libc. Its getpid gives CUDA another number in each process, and
// everybody else the real PID. Its sendmsg gives the kernel, which checks it, the real PID again.
// docs/design/cuda-ipc.md says who counts as CUDA, and why it is found out in this way.
//
// Invariants
//   (1) getpid and sendmsg take no lock and allocate nothing, and getpid keeps errno, so signal
//       handlers and children of vfork() may call them.
//   (2) getpid stores one word, once in a process: the number, in any case before main(). Children
//       of vfork() find it there.
//   (3) What getpid finds out about a caller is not kept, so a dlclose() makes nothing stale.
//   (4) All symbols that it imports are in glibc 2.28 and in musl, or weak. musl's loader ends the
//       program over a missing one.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
  kLargestPid = 1 << 22,     // Linux gives no larger one to a process.
  kSmallestPage = 4 * 1024,  // Of the supported processors.
  kLargestPage = 64 * 1024,
  kCodeBytes = 1024,  // Twice the largest distance that was found in a CUDA runtime.
  kStartedModules = 512,
  kControlBytes = 256,  // CUDA's messages with credentials have 32.
};

// ---- The number that CUDA is told.

static char room[2 * kLargestPage];

// On a page of its own, which the kernel clears in the child of a fork.
static _Atomic(pid_t)* Number(void) {
  return (void*)(((uintptr_t)room + kLargestPage - 1) & ~(uintptr_t)(kLargestPage - 1));
}

static unsigned Random(void) {
  unsigned random[4];
  if (syscall(SYS_getrandom, random, sizeof random, 1 /* GRND_NONBLOCK */) == sizeof random) {
    return random[0];
  }
  struct timespec now;  // Just after a boot, or behind a seccomp filter.
  clock_gettime(CLOCK_MONOTONIC, &now);
  memcpy(random, (const void*)getauxval(AT_RANDOM), sizeof random);
  return random[0] ^ ((unsigned)now.tv_nsec << 2);
}

static pid_t Told(void) {
  pid_t number = atomic_load(Number());
  if (number != 0) return number;
  const int kept_errno = errno;
  madvise(Number(), kLargestPage, MADV_WIPEONFORK);
  const pid_t drawn = kLargestPid + 1 + (pid_t)(Random() % (INT_MAX - kLargestPid));
  // Of several threads, the first one draws for all.
  if (atomic_compare_exchange_strong(Number(), &number, drawn)) number = drawn;
  errno = kept_errno;
  return number;
}

// The kernel has cleared the page already, unless it is older than Linux 4.14.
static void AfterFork(void) {
  atomic_store(Number(), 0);
  (void)Told();
}

// ---- Who asks.

struct Module {
  uintptr_t start, end;  // From its ELF header.
  int listed;
};

// The driver, and libraries that compare PIDs as the driver does.
static int IsListed(const char* path) {
  const char* const slash = strrchr(path, '/');
  const char* const file = slash != NULL ? slash + 1 : path;
  return strncmp(file, "libcuda.so", 10) == 0 || strncmp(file, "libuct_cuda", 11) == 0;
}

// glibc 2.35 and newer: which object an address is in. It takes no lock; signal handlers may call
// it.
struct FoundObject {
  unsigned long long flags;
  void *start, *end;
  struct link_map* map;
  void* rest[16];  // More than glibc writes.
};
extern int FindObject(void* address, struct FoundObject* found) __asm__("_dl_find_object")
    __attribute__((weak));

// Without it: the objects with which the program started. They are never unloaded.
static struct Module started[kStartedModules];
static size_t started_count;

static int AddStarted(struct dl_phdr_info* info, size_t size, void* data) {
  (void)size, (void)data;
  struct Module module = {UINTPTR_MAX, 0, IsListed(info->dlpi_name)};
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* const part = &info->dlpi_phdr[i];
    const uintptr_t start = info->dlpi_addr + part->p_vaddr;
    if (part->p_type != PT_LOAD) continue;
    if (start < module.start) module.start = start & ~(uintptr_t)(kSmallestPage - 1);
    if (start + part->p_memsz > module.end) module.end = start + part->p_memsz;
  }
  if (started_count < kStartedModules) started[started_count++] = module;
  return 0;
}

// Without it, and loaded later: a line of /proc/self/maps, which is read in pieces that fit on a
// small signal stack. The module starts where a run of lines with the same file does.
static int FindInMaps(uintptr_t address, struct Module* module) {
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC);
  enum { kStart, kEnd, kAccess, kOffset, kDevice, kInode, kPath };
  uintptr_t field[kPath] = {0}, device = 0, inode = 0, last_end = 0;
  char piece[256], name[16];
  size_t at = kStart, length = 0;
  int found = 0;
  for (long size = 1; fd >= 0 && !found && size > 0;) {
    size = syscall(SYS_read, fd, piece, sizeof piece);
    for (const char* c = piece; !found && c < piece + size; ++c) {
      if (*c == '\n') {
        name[length] = 0;
        if (field[kStart] != last_end) inode = 0;
        if (field[kInode] != 0 && (field[kInode] != inode || field[kDevice] != device)) {
          *module = (struct Module){field[kStart], 0, IsListed(name)};
          inode = field[kInode];
          device = field[kDevice];
        }
        last_end = field[kEnd];
        found = field[kInode] != 0 && field[kStart] <= address && address < last_end;
        memset(field, 0, sizeof field);
        at = length = 0;
      } else if (at < kPath) {
        if (*c == ' ' || (*c == '-' && at == kStart)) {
          ++at;
        } else {  // The fields that are not hexadecimal are only compared.
          field[at] = field[at] * 16 + (uintptr_t)(*c <= '9' ? *c - '0' : *c - 'a' + 10);
        }
      } else if (*c == '/') {
        length = 0;
      } else if (*c != ' ' && length + 1 < sizeof name) {
        name[length++] = *c;
      }
    }
  }
  if (fd >= 0) syscall(SYS_close, fd);
  return found;
}

static int Find(uintptr_t address, struct Module* module) {
  if (FindObject != NULL) {
    struct FoundObject object;
    if (FindObject((void*)address, &object) != 0) return 0;
    *module = (struct Module){(uintptr_t)object.start, (uintptr_t)object.end,
                              IsListed(object.map->l_name)};
    return 1;
  }
  for (const struct Module* one = started; one < started + started_count; ++one) {
    if (one->start <= address && address < one->end) {
      *module = *one;
      return 1;
    }
  }
  const int kept_errno = errno;
  const int found = FindInMaps(address, module);
  errno = kept_errno;
  return found;
}

// ---- The CUDA runtime, shared or linked into any module. It compares the PID that it gets with
// the driver's ("integrity checks failed", error 103). The function in which it does so is
// recognised by the key with which it asks the driver for the check.

static const unsigned char kKey[] = {0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b,
                                     0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1, 0xf2};

struct Image {
  uintptr_t bias;
  const ElfW(Phdr) * parts, *end;
};

static int IsKey(const struct Image* image, uintptr_t address) {
  for (const ElfW(Phdr)* part = image->parts; part < image->end; ++part) {
    const uintptr_t start = image->bias + part->p_vaddr;
    if (part->p_type == PT_LOAD && (part->p_flags & PF_R) && address >= start &&
        address - start + sizeof kKey <= part->p_filesz) {
      return memcmp((const void*)address, kKey, sizeof kKey) == 0;
    }
  }
  return 0;
}

// Whether the instructions from `low` up to `site` load the address of the key.
static int LoadsKey(const struct Image* image, const unsigned char* low,
                    const unsigned char* site) {
#if defined(__x86_64__)
  // lea REGISTER, [rip + OFFSET]: 48 or 4c, 8d, a byte, and the offset from the end.
  for (const unsigned char* at = low + 1; at + 6 <= site; ++at) {
    at = memchr(at, 0x8d, (size_t)(site - 5 - at));
    if (at == NULL) break;
    if ((at[-1] & 0xfb) != 0x48 || (at[1] & 0xc7) != 0x05) continue;
    int32_t offset;
    memcpy(&offset, at + 2, sizeof offset);
    if (IsKey(image, (uintptr_t)at + 6 + (uintptr_t)(intptr_t)offset)) return 1;
  }
#elif defined(__aarch64__)
  // adrp REGISTER, PAGE, and one add REGISTER, REGISTER, NUMBER or several, on any registers.
  uintptr_t value[32] = {0};
  for (const uint32_t* at = (const uint32_t*)low; at < (const uint32_t*)site; ++at) {
    uintptr_t* const result = &value[*at & 31];
    const uintptr_t operand = value[*at >> 5 & 31];
    if ((*at & 0x9f000000) == 0x90000000) {
      const uint64_t pages = (uint64_t)(*at >> 5 & 0x7ffff) << 2 | (*at >> 29 & 3);
      *result = ((uintptr_t)at & ~(uintptr_t)4095) + (uintptr_t)((int64_t)(pages << 43) >> 31);
    } else if ((*at & 0xff800000) == 0x91000000 && operand != 0) {
      *result = operand + ((uintptr_t)(*at >> 10 & 0xfff) << (*at >> 22 & 1 ? 12 : 0));
      if (IsKey(image, *result)) return 1;
    }
  }
#endif
  return 0;
}

static int IsIntegrityCheck(const struct Module* module, uintptr_t site) {
  const ElfW(Ehdr)* const head = (const void*)module->start;
  if (memcmp(head->e_ident, ELFMAG, SELFMAG) != 0 ||
      head->e_phoff + head->e_phnum * sizeof(ElfW(Phdr)) > kSmallestPage) {
    return 0;
  }
  struct Image image = {0, (const void*)(module->start + head->e_phoff), NULL};
  image.end = image.parts + head->e_phnum;
  const ElfW(Phdr)* part = image.parts;
  while (part < image.end && part->p_type != PT_LOAD) ++part;
  if (part == image.end) return 0;
  image.bias = module->start - (part->p_vaddr & ~(uintptr_t)(kSmallestPage - 1));
  for (; part < image.end; ++part) {
    const uintptr_t start = image.bias + part->p_vaddr;
    if (part->p_type != PT_LOAD || site <= start || site > start + part->p_filesz) continue;
    if (!(part->p_flags & PF_R)) return 0;  // Code that can be executed, and not read.
    const uintptr_t low = site - start > kCodeBytes ? site - kCodeBytes : start;
    return LoadsKey(&image, (const unsigned char*)low, (const unsigned char*)site);
  }
  return 0;
}

// ---- What is exported.

// libc's, or those of a library that was preloaded after this one.
static pid_t (*next_getpid)(void);
static ssize_t (*next_sendmsg)(int, const struct msghdr*, int);

__attribute__((visibility("default"))) pid_t getpid(void) {
  const uintptr_t site = (uintptr_t)__builtin_return_address(0);
  struct Module module = {0};
  // The call itself: the instruction after it may belong to nobody.
  if (Find(site - 1, &module) && (module.listed || IsIntegrityCheck(&module, site))) return Told();
  return next_getpid != NULL ? next_getpid() : (pid_t)syscall(SYS_getpid);
}

// A client of MPS sends its credentials to the daemon. The kernel refuses another PID than the real
// one, and so does the daemon.
__attribute__((visibility("default"))) ssize_t sendmsg(int fd, const struct msghdr* message,
                                                       int flags) {
  union {
    struct cmsghdr aligned;
    char bytes[kControlBytes];
  } control;
  struct msghdr corrected;
  if (message != NULL && message->msg_control != NULL &&
      message->msg_controllen <= sizeof control.bytes) {
    corrected = *message;
    corrected.msg_control =
        memcpy(control.bytes, message->msg_control, (size_t)message->msg_controllen);
    for (struct cmsghdr* part = CMSG_FIRSTHDR(&corrected); part != NULL;
         part = CMSG_NXTHDR(&corrected, part)) {
      struct ucred sender;
      if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_CREDENTIALS ||
          part->cmsg_len < CMSG_LEN(sizeof sender)) {
        continue;
      }
      memcpy(&sender, CMSG_DATA(part), sizeof sender);
      if (sender.pid != atomic_load(Number())) continue;
      sender.pid = (pid_t)syscall(SYS_getpid);
      memcpy(CMSG_DATA(part), &sender, sizeof sender);
      message = &corrected;
    }
  }
  return next_sendmsg != NULL ? next_sendmsg(fd, message, flags)
                              : (ssize_t)syscall(SYS_sendmsg, fd, message, flags);
}

// For libgpushm: the number in the handles of this process.
__attribute__((visibility("default"))) pid_t gpushm_cudaipc_pid(void) { return Told(); }

extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void*)
    __attribute__((weak));  // Not in musl.

__attribute__((constructor)) static void Prepare(void) {
  (void)Told();
  if (__register_atfork != NULL) __register_atfork(NULL, NULL, AfterFork, NULL);
  if (FindObject == NULL) dl_iterate_phdr(AddStarted, NULL);
  /* ISO C has no conversion of one to the other. */
  void* next = dlsym(RTLD_NEXT, "getpid");
  memcpy(&next_getpid, &next, sizeof next);
  next = dlsym(RTLD_NEXT, "sendmsg");
  memcpy(&next_sendmsg, &next, sizeof next);
}
