#include "tests/bench/handover/board.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

namespace gpushm::bench::handover {

Result<UniqueFd> BoardMapping::Make() {
  UniqueFd fd(memfd_create("gpushm-bench-board", MFD_CLOEXEC));
  if (!fd || ftruncate(fd.get(), sizeof(Board)) != 0) return FailSystem(errno, "memfd_create");
  return fd;
}

Result<BoardMapping> BoardMapping::Map(int fd) {
  void* const at = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return FailSystem(errno, "mmap");
  return BoardMapping(static_cast<Board*>(at));
}

BoardMapping::~BoardMapping() {
  if (board_ != nullptr) munmap(board_, sizeof(Board));
}

}  // namespace gpushm::bench::handover
