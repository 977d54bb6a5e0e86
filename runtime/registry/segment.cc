#include "runtime/registry/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <span>

#include "runtime/base/clock.h"
#include "runtime/registry/checksum.h"

namespace gpushm::registry {
namespace {

// From linux/fcntl.h, memfd.h and magic.h; older C libraries lack some of them.
constexpr int kSealSeal = 0x0001;
constexpr int kSealShrink = 0x0002;
constexpr int kSealGrow = 0x0004;
constexpr int kSealFutureWrite = 0x0010;  // Linux 5.1
constexpr int kSeals = kSealSeal | kSealShrink | kSealGrow | kSealFutureWrite;
constexpr unsigned kMemfdNoexecSeal = 0x0008;  // Linux 6.3
constexpr decltype(std::declval<struct statfs>().f_type) kTmpfsMagic = 0x01021994;

constexpr char kForeignSegment[] = "the broker is of another version or not a broker";

UniqueFd CreateMemfd() {
  constexpr char kName[] = "gpushm-registry";
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  // A node may require it (sysctl vm.memfd_noexec=2); kernels before 6.3 do not know it.
  UniqueFd fd(memfd_create(kName, kFlags | kMemfdNoexecSeal));
  if (!fd && errno == EINVAL) fd.Reset(memfd_create(kName, kFlags));
  return fd;
}

const char* HeaderProblem(const HeaderConstants& header, uint64_t bytes) {
  if (header.header_size < kHeaderSize || header.header_size > kMaxHeaderSize ||
      header.header_size % 64 != 0) {
    return "header_size";
  }
  if (header.record_words < kMinRecordWords || header.record_words > kMaxRecordWords) {
    return "record_words";
  }
  if (header.slot_stride < SlotStride(header.record_words) || header.slot_stride > kMaxSlotStride ||
      header.slot_stride % 64 != 0) {
    return "slot_stride";
  }
  if (header.slot_count == 0 || header.slot_count > kMaxSlots) return "slot_count";
  if (header.change_log_entries != 0 &&
      (!std::has_single_bit(header.change_log_entries) ||
       header.change_log_entries >
           (header.header_size - offsetof(SegmentHeader, change_log)) / sizeof(uint32_t))) {
    return "change_log_entries";
  }
  if (SegmentBytes(header) != bytes) return "the file's size";
  return nullptr;
}

}  // namespace

Mapping::~Mapping() {
  if (address_ != nullptr) munmap(address_, bytes_);
}

Result<WritableSegment> MakeSealedSegment(uint64_t bytes) {
  UniqueFd fd = CreateMemfd();
  if (!fd) return FailSystem(errno, "memfd_create for the registry");
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return FailSystem(errno, "size the registry");
  }
  if (fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0) {
    return FailSystem(errno, "allocate the registry",
                      "raise the sidecar's memory limit; the registry needs 3 MiB");
  }
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) return FailSystem(errno, "map the registry");
  WritableSegment segment{std::move(fd), Mapping(address, bytes)};
  if (fcntl(segment.fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return FailSystem(errno, "seal the registry", "gpushm needs Linux 5.1 or later");
  }
  return segment;
}

Result<Mapping> MapSealedSegment(const UniqueFd& fd) {
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0) {
    return FailSystem(errno, "the registry received is no memfd", kForeignSegment);
  }
  if ((seals & kSeals) != kSeals) {
    return Fail(Code::kCorrupt, "the registry received is not sealed", kForeignSegment);
  }
  struct statfs file_system{};
  struct stat file{};
  if (fstatfs(fd.get(), &file_system) != 0 || fstat(fd.get(), &file) != 0) {
    return FailSystem(errno, "stat the registry received");
  }
  constexpr uint64_t kMaxBytes = kMaxHeaderSize + uint64_t{kMaxSlotStride} * kMaxSlots;
  const auto bytes = static_cast<uint64_t>(file.st_size);
  if (file.st_size < int64_t{kHeaderSize} || bytes > kMaxBytes) {
    return Fail(Code::kCorrupt, Concat("the registry received has ", bytes, " bytes"),
                kForeignSegment);
  }
  // Huge pages, and pages not there yet, can be missing when touched: SIGBUS.
  if (file_system.f_type != kTmpfsMagic || file.st_blocks * 512 < file.st_size) {
    return Fail(Code::kCorrupt, "the registry received has no memory behind it", kForeignSegment);
  }
  void* address = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) return FailSystem(errno, "map the registry received");
  return Mapping(address, bytes);
}

Result<HeaderConstants> NewHeaderConstants(uint32_t slot_count, uint64_t generation_floor) {
  if (slot_count == 0 || slot_count > kMaxSlots) {
    return Fail(Code::kInvalidArgument,
                Concat("a registry of ", slot_count, " slots; 1 to ", kMaxSlots, " can be had"));
  }
  HeaderConstants constants{
      .magic = kMagic,
      .layout_version = kLayoutVersion,
      .header_size = kHeaderSize,
      .slot_stride = SlotStride(kRecordWords),
      .record_words = kRecordWords,
      .slot_count = slot_count,
      .incompat_flags = 0,
      .compat_flags = 0,
      .change_log_entries = kChangeLogEntries,
      .segment_id = {},
      .created_unix_ns = static_cast<uint64_t>(UnixNs()),
      .generation_floor = generation_floor,
      .checksum = 0,
  };
  if (getrandom(constants.segment_id.data(), sizeof(constants.segment_id), 0) !=
      ssize_t{sizeof(constants.segment_id)}) {
    return FailSystem(errno, "getrandom for the registry's id");
  }
  return constants;
}

Result<HeaderConstants> ValidateHeader(const void* address, uint64_t bytes) {
  if (bytes < kHeaderSize) return Fail(Code::kCorrupt, "the registry is shorter than its header");
  HeaderConstants header;
  std::memcpy(&header, address, sizeof(header));
  if (header.magic != kMagic) {
    return Fail(Code::kCorrupt, "the registry received is none", kForeignSegment);
  }
  if ((header.incompat_flags & ~kKnownIncompatFlags) != 0) {
    return Fail(Code::kIncompatible,
                Concat("the registry has layout ", header.layout_version, " with features 0x",
                       std::hex, header.incompat_flags, " that this version does not know"),
                "restart the container, so that it gets the library of the node's gpushm");
  }
  std::array<uint64_t, sizeof(HeaderConstants) / 8> words;
  std::memcpy(words.data(), &header, sizeof(header));
  if (Checksum(std::span(words).first(words.size() - 1)) != header.checksum) {
    return Fail(Code::kCorrupt, "the registry's header fails its checksum");
  }
  if (const char* problem = HeaderProblem(header, bytes)) {
    return Fail(Code::kCorrupt, Concat("the registry's header contradicts itself: ", problem));
  }
  return header;
}

}  // namespace gpushm::registry
