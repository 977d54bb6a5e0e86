#include "contract/registry/host_list.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "contract/registry/checksum.h"
#include "contract/registry/layout.h"
#include "platform/base/unique_fd.h"

namespace gpushm::registry {
namespace {

constexpr char kPrefix[] = "gpushm.";
constexpr uint64_t kListMagic = 0x315453494c535047;  // "GPSLIST1", read as little-endian
constexpr uint32_t kListVersion = 1;

// The start of the file. `count` records of `record_words` words follow, as in a slot (layout.h has
// the rules of change). The checksum covers all words of the file except itself.
struct ListHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t header_words;
  uint32_t record_words;
  uint32_t count;
  uint32_t incompat_flags;
  uint32_t reserved;
  Name pod_uid;
  std::array<uint64_t, 2> segment_id;
  uint64_t table_version;
  uint64_t written_unix_ns;
  uint64_t checksum;
};
constexpr size_t kHeaderWords = sizeof(ListHeader) / 8;
constexpr size_t kMaxHeaderWords = 64;
constexpr size_t kChecksumWord = offsetof(ListHeader, checksum) / 8;
static_assert(sizeof(ListHeader) == 136 && kChecksumWord == 16 && kHeaderWords == 17);

constexpr size_t kMaxBytes = 8 * (kMaxHeaderWords + size_t{kMaxRecordWords} * kMaxSlots);

// Folder entries that ListHostPods reads at most, because every user may create files in /dev/shm.
constexpr int kMaxEntries = 65536;

uint64_t ListChecksum(std::span<const uint64_t> words) {
  return Checksum(words.subspan(kChecksumWord + 1), Checksum(words.first(kChecksumWord)));
}

std::string TemporaryFile(std::string_view pod_uid) { return HostListFile(pod_uid) + ".tmp"; }

Result<void> CheckPodUid(std::string_view pod_uid) {
  if (IsPodUid(pod_uid)) return {};
  return Fail(Code::kInvalidArgument, Concat("\"", pod_uid, "\" is not a pod's UID"),
              "use the value of metadata.uid: 1 to 63 of a-z, 0-9 and -");
}

Result<UniqueFd> OpenDir(const std::string& dir) {
  UniqueFd fd(open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return FailSystem(errno, Concat("open ", dir), "check that the pod has hostIPC: true");
  return fd;
}

std::unexpected<Status> Corrupt(std::string_view pod_uid, std::string_view problem) {
  return Fail(Code::kCorrupt, Concat("the list of pod ", pod_uid, " is broken: ", problem),
              "restart that pod");
}

// The UID in a list that is not that of `pod_uid`. Every hostIPC pod can write the file, so its
// bytes are shown only if they are a UID.
std::string OtherPod(const Name& found) {
  return IsPodUid(found.view()) ? Concat("it belongs to pod ", found.view())
                                : std::string("the UID in it is not a pod's UID");
}

std::string WrongSize(int64_t bytes) {
  return Concat("it has ", bytes, " bytes, but must have a multiple of 8, from ",
                sizeof(ListHeader), " to ", kMaxBytes);
}

Result<void> WriteAll(const UniqueFd& fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FailSystem(errno, "write the list for hostIPC pods");
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return {};
}

// Reads at most `bytes.size()` bytes; returns their number.
Result<size_t> ReadUpTo(const UniqueFd& fd, std::span<std::byte> bytes) {
  size_t total = 0;
  while (total < bytes.size()) {
    const ssize_t got =
        pread(fd.get(), bytes.data() + total, bytes.size() - total, static_cast<off_t>(total));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FailSystem(errno, "read the list of a hostIPC pod");
    if (got == 0) break;
    total += static_cast<size_t>(got);
  }
  return total;
}

// Creates a new file. An existing one could have been prepared by somebody else, because every
// hostIPC pod can write to /dev/shm.
Result<UniqueFd> CreateTemporary(const UniqueFd& dir, const std::string& file) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  UniqueFd fd(openat(dir.get(), file.c_str(), kFlags, 0600));
  if (!fd && errno == EEXIST &&
      unlinkat(dir.get(), file.c_str(), 0) == 0) {  // Left by a killed broker.
    fd.Reset(openat(dir.get(), file.c_str(), kFlags, 0600));
  }
  if (!fd) return FailSystem(errno, Concat("create ", file));
  return fd;
}

}  // namespace

bool IsPodUid(std::string_view text) {
  return !text.empty() && text.size() <= 63 && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
}

std::string HostListFile(std::string_view pod_uid) { return Concat(kPrefix, pod_uid); }
std::string HostSocketFile(std::string_view pod_uid) { return Concat(kPrefix, pod_uid, ".sock"); }

Result<std::vector<uint64_t>> EncodeHostList(std::string_view pod_uid, const HostList& list) {
  if (list.buffers.size() > kMaxSlots) {
    return Fail(Code::kExhausted,
                Concat("the list of pod ", pod_uid, " has ", list.buffers.size(),
                       " buffers, but may have ", kMaxSlots),
                "delete unused buffers");
  }
  ListHeader header{
      .magic = kListMagic,
      .version = kListVersion,
      .header_words = kHeaderWords,
      .record_words = kRecordWords,
      .count = static_cast<uint32_t>(list.buffers.size()),
      .incompat_flags = 0,
      .reserved = 0,
      .pod_uid = Name(pod_uid),
      .segment_id = list.segment_id,
      .table_version = list.table_version,
      .written_unix_ns = list.written_unix_ns,
      .checksum = 0,
  };
  std::vector<uint64_t> words(kHeaderWords);
  words.reserve(kHeaderWords + list.buffers.size() * kRecordWords);
  std::memcpy(words.data(), static_cast<const void*>(&header), sizeof(header));
  for (const BufferRecord& buffer : list.buffers) {
    const Result<RecordWords> record = EncodeRecord(buffer);
    if (!record) return std::unexpected(record.error());
    words.insert(words.end(), record->begin(), record->end());
  }
  words[kChecksumWord] = ListChecksum(words);
  return words;
}

Result<HostList> DecodeHostList(std::string_view pod_uid, std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(ListHeader) || bytes.size() > kMaxBytes || bytes.size() % 8 != 0) {
    return Corrupt(pod_uid, WrongSize(static_cast<int64_t>(bytes.size())));
  }
  std::vector<uint64_t> words(bytes.size() / 8);
  std::memcpy(words.data(), bytes.data(), bytes.size());
  ListHeader header;
  std::memcpy(static_cast<void*>(&header), words.data(), sizeof(header));
  if (header.magic != kListMagic) {
    return Corrupt(
        pod_uid, Concat("bad magic number 0x", std::hex, header.magic, ", must be 0x", kListMagic));
  }
  if (header.incompat_flags != 0) {
    return Fail(
        Code::kIncompatible,
        Concat("the list of pod ", pod_uid, " has version ", header.version, ", with features 0x",
               std::hex, header.incompat_flags, " that this version does not support"),
        "restart the container, so that it gets the library of the node's gpushm");
  }
  if (header.header_words < kHeaderWords || header.header_words > kMaxHeaderWords ||
      header.record_words < kMinRecordWords || header.record_words > kMaxRecordWords ||
      header.count > kMaxSlots ||
      words.size() != header.header_words + size_t{header.record_words} * header.count) {
    return Corrupt(pod_uid, Concat("its sizes contradict each other or the limits: ", words.size(),
                                   " words in all, ", header.header_words, " of the header (",
                                   kHeaderWords, " to ", kMaxHeaderWords, "), ", header.count,
                                   " records (at most ", kMaxSlots, ") of ", header.record_words,
                                   " (", kMinRecordWords, " to ", kMaxRecordWords, ")"));
  }
  if (const uint64_t checksum = ListChecksum(words); checksum != header.checksum) {
    return Corrupt(pod_uid, Concat("its checksum is 0x", std::hex, checksum, ", but it says 0x",
                                   header.checksum));
  }
  if (header.pod_uid != Name(pod_uid)) return Corrupt(pod_uid, OtherPod(header.pod_uid));

  HostList list{.segment_id = header.segment_id,
                .table_version = header.table_version,
                .written_unix_ns = header.written_unix_ns,
                .buffers = {}};
  list.buffers.reserve(header.count);
  std::span<const uint64_t> rest = std::span(words).subspan(header.header_words);
  for (; !rest.empty(); rest = rest.subspan(header.record_words)) {
    const Result<BufferRecord> record = DecodeRecord(rest.first(header.record_words));
    if (!record) return std::unexpected(record.error().WithContext(Concat("pod ", pod_uid)));
    list.buffers.push_back(*record);
  }
  return list;
}

Result<void> WriteHostList(const std::string& dir, std::string_view pod_uid, const HostList& list) {
  if (auto valid = CheckPodUid(pod_uid); !valid) return valid;
  const Result<std::vector<uint64_t>> words = EncodeHostList(pod_uid, list);
  if (!words) return std::unexpected(words.error());
  const Result<UniqueFd> dir_fd = OpenDir(dir);
  if (!dir_fd) return std::unexpected(dir_fd.error());

  const std::string temporary = TemporaryFile(pod_uid);
  const Result<UniqueFd> file = CreateTemporary(*dir_fd, temporary);
  if (!file) return std::unexpected(file.error());
  Result<void> written = WriteAll(*file, std::as_bytes(std::span(*words)));
  // By fchmod, because the umask would mask the mode given to open.
  if (written && fchmod(file->get(), 0640) != 0) {
    written = FailSystem(errno, Concat("set the mode of ", temporary));
  }
  if (written && renameat(dir_fd->get(), temporary.c_str(), dir_fd->get(),
                          HostListFile(pod_uid).c_str()) != 0) {
    written = FailSystem(errno, Concat("put ", HostListFile(pod_uid), " into ", dir));
  }
  if (!written) unlinkat(dir_fd->get(), temporary.c_str(), 0);
  return written;
}

Result<HostList> ReadHostList(const std::string& dir, std::string_view pod_uid) {
  if (auto valid = CheckPodUid(pod_uid); !valid) return std::unexpected(valid.error());
  const std::string path = dir + "/" + HostListFile(pod_uid);
  // O_NONBLOCK, because somebody may have put a FIFO there. The file is checked before it is read.
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file && errno == ENOENT) {
    return Fail(Code::kNotFound, Concat("pod ", pod_uid, " has no list in ", dir),
                "check that it is running and has the annotation gpushm.io/host-ipc");
  }
  if (!file && errno == EACCES) {
    return Fail(Code::kDenied,
                Concat("the list of pod ", pod_uid, " is not readable: permission denied"),
                "both pods need the same group (the injector's runAsGroup)");
  }
  if (!file) return FailSystem(errno, Concat("open ", path));
  struct stat status{};
  if (fstat(file.get(), &status) != 0) return FailSystem(errno, Concat("stat ", path));
  if (!S_ISREG(status.st_mode)) {
    return Corrupt(pod_uid,
                   Concat("it is not a regular file, but has mode 0", std::oct, status.st_mode));
  }
  if (status.st_size < 0 || static_cast<uint64_t>(status.st_size) > kMaxBytes) {
    return Corrupt(pod_uid, WrongSize(status.st_size));
  }
  std::vector<std::byte> bytes(static_cast<size_t>(status.st_size));
  const Result<size_t> got = ReadUpTo(file, bytes);
  if (!got) return std::unexpected(got.error());
  return DecodeHostList(pod_uid, std::span(bytes).first(*got));
}

Result<std::vector<std::string>> ListHostPods(const std::string& dir) {
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(opendir(dir.c_str()), closedir);
  if (entries == nullptr) return FailSystem(errno, Concat("open ", dir));
  std::vector<std::string> pods;
  for (int count = 0; count < kMaxEntries; ++count) {
    errno = 0;
    const dirent* entry = readdir(entries.get());
    if (entry == nullptr && errno != 0) return FailSystem(errno, Concat("read ", dir));
    if (entry == nullptr) {
      std::ranges::sort(pods);
      return pods;
    }
    std::string_view name = entry->d_name;
    if (!name.starts_with(kPrefix)) continue;
    name.remove_prefix(std::strlen(kPrefix));
    if (!IsPodUid(name)) continue;  // A socket or a half-written list: a UID has no dot.
    if (pods.size() == kHostPods) {
      return Fail(Code::kExhausted,
                  Concat("more than ", kHostPods, " pods in ", dir, " (limit kHostPods)"),
                  Concat("remove the files ", kPrefix, "UID of pods that have ended"));
    }
    pods.emplace_back(name);
  }
  return Fail(Code::kExhausted, Concat(dir, " has more than ", kMaxEntries, " entries"),
              "remove the files that killed programs left there");
}

Result<void> RemoveHostFiles(const std::string& dir, std::string_view pod_uid) {
  if (auto valid = CheckPodUid(pod_uid); !valid) return valid;
  const Result<UniqueFd> dir_fd = OpenDir(dir);
  if (!dir_fd) return std::unexpected(dir_fd.error());
  Result<void> removed;
  for (const std::string& file :
       {HostListFile(pod_uid), HostSocketFile(pod_uid), TemporaryFile(pod_uid)}) {
    if (unlinkat(dir_fd->get(), file.c_str(), 0) != 0 && errno != ENOENT) {
      removed = FailSystem(errno, Concat("remove ", file, " from ", dir));
    }
  }
  return removed;
}

}  // namespace gpushm::registry
