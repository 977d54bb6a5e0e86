#include "platform/base/sealed_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

namespace gpushm {
namespace {

// From linux/fcntl.h, memfd.h and magic.h; older C libraries lack some of them.
constexpr int kSealSeal = 0x0001;
constexpr int kSealShrink = 0x0002;
constexpr int kSealGrow = 0x0004;
constexpr int kSealWrite = 0x0008;
constexpr int kSealFutureWrite = 0x0010;  // Linux 5.1
constexpr int kSizeSeals = kSealSeal | kSealShrink | kSealGrow;
constexpr unsigned kMemfdNoexecSeal = 0x0008;  // Linux 6.3
constexpr decltype(std::declval<struct statfs>().f_type) kTmpfsMagic = 0x01021994;

constexpr char kForeign[] =
    "check that the socket belongs to a gpushm broker and that its "
    "version is compatible";

int SealsFor(Writers writers) {
  switch (writers) {
    case Writers::kMaker:
      return kSizeSeals | kSealFutureWrite;
    case Writers::kAll:
      return kSizeSeals;
    case Writers::kNobody:
      return kSizeSeals | kSealWrite;
  }
  return kSizeSeals | kSealWrite;
}

UniqueFd CreateMemfd(const std::string& name) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  // A node may require the flag (sysctl vm.memfd_noexec=2); kernels before 6.3 do not know it.
  UniqueFd fd(memfd_create(name.c_str(), kFlags | kMemfdNoexecSeal));
  if (!fd && errno == EINVAL) fd.Reset(memfd_create(name.c_str(), kFlags));
  return fd;
}

}  // namespace

void Mapping::Blank() noexcept {
  if (address_ == nullptr) return;
  // Atomic for other threads that read. If it fails, the memory stays mapped.
  (void)mmap(address_, bytes_, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
             -1, 0);
}

Mapping::~Mapping() {
  if (address_ != nullptr) munmap(address_, bytes_);
}

Result<WritableSegment> MakeSealed(std::string_view what, uint64_t bytes, Writers writers) {
  UniqueFd fd = CreateMemfd(Concat("gpushm-", what));
  if (!fd) return FailSystem(errno, Concat("memfd_create for the ", what));
  // A process with a descriptor for reading could otherwise reopen the file for writing
  // (/proc/self/fd), because a memfd starts with mode 0777.
  if (fchmod(fd.get(), S_IRUSR | S_IWUSR) != 0)
    return FailSystem(errno, Concat("chmod the ", what));
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return FailSystem(errno, Concat("size the ", what));
  }
  if (fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0) {
    return FailSystem(errno, Concat("allocate the ", what),
                      Concat("raise the sidecar's memory limit; this needs ", bytes, " bytes"));
  }
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) return FailSystem(errno, Concat("map the ", what));
  WritableSegment segment{std::move(fd), Mapping(address, bytes)};
  if (fcntl(segment.fd.get(), F_ADD_SEALS, SealsFor(writers)) != 0) {
    return FailSystem(errno, Concat("seal the ", what), "gpushm needs Linux 5.1 or later");
  }
  return segment;
}

Result<UniqueFd> SealBytes(std::string_view what, std::span<const std::byte> bytes) {
  Result<UniqueFd> fd = MakeEmpty(what);
  if (!fd) return fd;
  if (auto filled = FillAndSeal(*fd, what, bytes); !filled) return std::unexpected(filled.error());
  return fd;
}

Result<UniqueFd> MakeEmpty(std::string_view what) {
  UniqueFd fd = CreateMemfd(Concat("gpushm-", what));
  if (!fd) return FailSystem(errno, Concat("memfd_create for the ", what));
  if (fchmod(fd.get(), S_IRUSR | S_IWUSR) != 0)
    return FailSystem(errno, Concat("chmod the ", what));
  return fd;
}

Result<void> FillAndSeal(const UniqueFd& empty, std::string_view what,
                         std::span<const std::byte> bytes) {
  for (std::span<const std::byte> rest = bytes; !rest.empty();) {
    const ssize_t written = write(empty.get(), rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      return FailSystem(
          errno, Concat("write the ", what),
          Concat("raise the container's memory limit; this needs ", bytes.size(), " bytes"));
    }
    rest = rest.subspan(static_cast<size_t>(written));
  }
  if (fcntl(empty.get(), F_ADD_SEALS, SealsFor(Writers::kNobody)) != 0) {
    return FailSystem(errno, Concat("seal the ", what), "gpushm needs Linux 5.1 or later");
  }
  return {};
}

Result<uint64_t> CheckSealed(int fd, std::string_view what, uint64_t min_bytes, uint64_t max_bytes,
                             Writers writers) {
  const auto broken = [&](const std::string& rule) {
    return Fail(Code::kCorrupt, Concat("the ", what, " from the peer ", rule), kForeign);
  };
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0)
    return FailSystem(errno, Concat("the ", what, " from the peer is not a memfd"), kForeign);
  if ((seals & SealsFor(writers)) != SealsFor(writers)) return broken("is not sealed as required");
  struct statfs file_system{};
  struct stat file{};
  if (fstatfs(fd, &file_system) != 0 || fstat(fd, &file) != 0) {
    return FailSystem(errno, Concat("stat the ", what, " from the peer"));
  }
  const auto bytes = static_cast<uint64_t>(file.st_size);
  if (bytes < min_bytes || bytes > max_bytes) return broken(Concat("has ", bytes, " bytes"));
  // Touching huge pages, or pages that are not allocated yet, can fail: SIGBUS.
  if (file_system.f_type != kTmpfsMagic || file.st_blocks * 512 < file.st_size) {
    return broken("has unallocated pages, or is not on tmpfs");
  }
  return bytes;
}

Result<Mapping> MapSealed(const UniqueFd& fd, std::string_view what, uint64_t min_bytes,
                          uint64_t max_bytes, Writers writers, bool read_only) {
  const Result<uint64_t> checked = CheckSealed(fd.get(), what, min_bytes, max_bytes, writers);
  if (!checked) return std::unexpected(checked.error());
  const auto bytes = static_cast<size_t>(*checked);
  const bool writes = writers == Writers::kAll && !read_only;
  const int rights = writes ? PROT_READ | PROT_WRITE : PROT_READ;
  // Before Linux 6.7, memory that is sealed against writing cannot be mapped shared, not even for
  // reading. A private mapping for reading has the same pages.
  const int kind = writers == Writers::kNobody ? MAP_PRIVATE : MAP_SHARED;
  void* address = mmap(nullptr, bytes, rights, kind, fd.get(), 0);
  if (address == MAP_FAILED) return FailSystem(errno, Concat("map the ", what, " from the peer"));
  return Mapping(address, bytes);
}

}  // namespace gpushm
