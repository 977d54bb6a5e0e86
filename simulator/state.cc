#include "simulator/state.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace gpushm::sim {
namespace {

constexpr uint64_t kMagic = 0x31304D49534D4853;  // "SHMSIM01"
constexpr uint32_t kVersion = 1;
constexpr uint64_t kRecordBytes = 4096;
constexpr uint64_t kLedgerCheck = 0x6C65646765722121;
constexpr long kOverlayfsMagic = 0x794c7630;

struct Ledger {
  uint64_t bytes = 0;
  uint64_t check = 0;
};

template <typename T>
T Random() {
  T value{};
  while (getrandom(&value, sizeof value, 0) != static_cast<ssize_t>(sizeof value)) {
  }
  return value;
}

// Opens a file, and makes it for every user if it does not exist.
int OpenShared(const std::string& path) {
  int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd >= 0 || errno != ENOENT) return fd;
  fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_CREAT, 0666);
  if (fd >= 0) fchmod(fd, 0666);  // Fails if another user made the file and did the same.
  return fd;
}

pthread_mutex_t* MapMutex(int fd) {
  void* const base =
      mmap(nullptr, sizeof(pthread_mutex_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return base == MAP_FAILED ? nullptr : static_cast<pthread_mutex_t*>(base);
}

// Puts an initialised mutex under its name, unless another process has done so.
bool MakeMutex(const std::string& card_folder) {
  const auto id = Random<UuidBytes>();
  const std::string draft = card_folder + "/mutex." + Hex(id.data(), id.size());
  const int fd = OpenShared(draft);
  if (fd < 0) return false;
  pthread_mutex_t* const mutex =
      ftruncate(fd, sizeof(pthread_mutex_t)) == 0 ? MapMutex(fd) : nullptr;
  close(fd);
  bool made = mutex != nullptr;
  if (made) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    made = pthread_mutex_init(mutex, &attributes) == 0 &&
           (link(draft.c_str(), (card_folder + "/mutex").c_str()) == 0 || errno == EEXIST);
    pthread_mutexattr_destroy(&attributes);
    munmap(mutex, sizeof *mutex);
  }
  unlink(draft.c_str());
  return made;
}

pthread_mutex_t* OpenMutex(const std::string& card_folder) {
  const std::string path = card_folder + "/mutex";
  int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) {
    if (mkdir(card_folder.c_str(), 0777) == 0) chmod(card_folder.c_str(), 0777);
    if (MakeMutex(card_folder)) fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  }
  if (fd < 0) return nullptr;
  pthread_mutex_t* const mutex = MapMutex(fd);
  close(fd);
  return mutex;
}

// The card's mutex, locked from construction to destruction, and the file of its ledger.
//
// The mutex is robust because that ends with its thread. A file lock ends when the process closes
// the file, and a killed process keeps its later files while the close of an earlier one blocks.
class CardLock {
 public:
  explicit CardLock(const std::string& card_folder) : mutex_(OpenMutex(card_folder)) {
    if (mutex_ == nullptr) return;
    // Not pthread_mutex_lock: the kernel frees a mutex that a killed thread waited for if the
    // owner, in another PID namespace, has the same thread ID.
    int locked = 0;
    while ((locked = pthread_mutex_trylock(mutex_)) == EBUSY) usleep(20);
    if (locked == EOWNERDEAD) locked = pthread_mutex_consistent(mutex_);  // See invariant 4.
    if (locked != 0) {
      munmap(mutex_, sizeof *mutex_);
      mutex_ = nullptr;
      return;
    }
    ledger_ = OpenShared(card_folder + "/ledger");
  }
  CardLock(const CardLock&) = delete;
  CardLock& operator=(const CardLock&) = delete;
  ~CardLock() {
    if (ledger_ >= 0) close(ledger_);
    if (mutex_ == nullptr) return;
    pthread_mutex_unlock(mutex_);
    munmap(mutex_, sizeof *mutex_);
  }
  // Negative if the mutex could not be locked, or the ledger not be opened.
  int ledger() const { return ledger_; }

 private:
  pthread_mutex_t* mutex_;
  int ledger_ = -1;
};

bool ReadLedger(int ledger_fd, uint64_t* bytes) {
  Ledger ledger;
  if (pread(ledger_fd, &ledger, sizeof ledger, 0) != static_cast<ssize_t>(sizeof ledger))
    return false;
  *bytes = ledger.bytes;
  return (ledger.bytes ^ kLedgerCheck) == ledger.check;
}

bool WriteLedger(int ledger_fd, uint64_t bytes) {
  const Ledger ledger{bytes, bytes ^ kLedgerCheck};
  return pwrite(ledger_fd, &ledger, sizeof ledger, 0) == static_cast<ssize_t>(sizeof ledger);
}

// True if `fd` is an allocation of a simulated driver.
bool ReadRecord(int fd, Record* record) {
  struct stat status{};
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return false;
  const auto size = static_cast<uint64_t>(status.st_size);
  if (size < kRecordBytes) return false;
  if (pread(fd, record, sizeof *record, static_cast<off_t>(size - kRecordBytes)) !=
      static_cast<ssize_t>(sizeof *record)) {
    return false;
  }
  return record->magic == kMagic && record->version == kVersion &&
         record->size_bytes == size - kRecordBytes && record->size_bytes > 0;
}

bool IsAllocationName(const char* name) {
  return std::strlen(name) == 32 && std::strspn(name, "0123456789abcdef") == 32;
}

void AddHolder(const Record& record, Usage* usage) {
  Holder* holder = nullptr;
  for (Holder& known : usage->holders) {
    if (known.process == record.process) holder = &known;
  }
  if (holder == nullptr) {
    usage->holders.push_back({.pid = record.pid, .process = record.process});
    holder = &usage->holders.back();
  }
  holder->bytes += record.size_bytes;
  holder->mps = holder->mps || record.kind == Kind::kMpsContext;
  holder->has_context = holder->has_context || holder->mps || record.kind == Kind::kContext;
}

bool MakeFolder(const std::string& path) {
  for (size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string part = path.substr(0, slash);
    if (mkdir(part.c_str(), 0777) == 0) {
      // Only for folders made here: every user's containers share them, whatever the umask.
      chmod(part.c_str(), 0777);
    } else if (errno != EEXIST) {
      return false;
    }
    if (slash == std::string::npos) return true;
  }
}

}  // namespace

std::string Hex(const uint8_t* bytes, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", bytes[i]);
    text += digits;
  }
  return text;
}

Backing::~Backing() {
  munmap(base_, mapped_bytes_);
  if (fd_ >= 0) close(fd_);
  state_->Reap(record_);
}

bool State::Prepare(std::string* error) {
  if (!MakeFolder(folder_) || !MakeFolder(folder_ + "/processes")) {
    *error = "cannot make " + folder_ + ": " + std::strerror(errno);
    return false;
  }
  struct statfs filesystem{};
  // A mapping of an overlayfs file keeps the underlying file open, not the one that carries the
  // lock.
  keep_descriptors_ = statfs(folder_.c_str(), &filesystem) == 0 &&
                      static_cast<long>(filesystem.f_type) == kOverlayfsMagic;
  return true;
}

bool State::RegisterProcess(std::string* error) {
  SweepProcesses();
  const auto token = Random<uint64_t>() | 1;
  char name[32];
  std::snprintf(name, sizeof name, "/processes/%016llx", static_cast<unsigned long long>(token));
  // Stays open permanently: closing any descriptor of the file would drop the lock.
  const int fd = open((folder_ + name).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  struct flock lock{};
  lock.l_type = F_WRLCK;
  if (fd < 0 || fcntl(fd, F_SETLK, &lock) != 0) {
    *error = "cannot write " + folder_ + name + ": " + std::strerror(errno);
    if (fd >= 0) close(fd);
    return false;
  }
  fchmod(fd, 0666);
  process_ = token;
  return true;
}

bool State::IsAlive(uint64_t process) const {
  if (process == process_) return true;
  char name[32];
  std::snprintf(name, sizeof name, "/processes/%016llx", static_cast<unsigned long long>(process));
  const int fd = open((folder_ + name).c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return false;
  struct flock lock{};
  lock.l_type = F_WRLCK;
  const bool alive = fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  close(fd);
  return alive;
}

void State::SweepProcesses() const {
  DIR* folder = opendir((folder_ + "/processes").c_str());
  if (folder == nullptr) return;
  while (const dirent* entry = readdir(folder)) {
    if (std::strlen(entry->d_name) != 16) continue;
    const uint64_t process = std::strtoull(entry->d_name, nullptr, 16);
    struct stat status{};
    const std::string path = folder_ + "/processes/" + entry->d_name;
    // A newer file may be between its creation and its lock.
    constexpr time_t kSettleSeconds = 10;
    if (stat(path.c_str(), &status) != 0 || status.st_mtime + kSettleSeconds > time(nullptr)) {
      continue;
    }
    if (!IsAlive(process)) unlink(path.c_str());
  }
  closedir(folder);
}

std::string State::CardFolder(const UuidBytes& card) const {
  return folder_ + "/" + Hex(card.data(), card.size());
}

Outcome State::Create(const Card& card, Kind kind, uint64_t size_bytes, uint32_t handle_types,
                      std::shared_ptr<Backing>* backing) const {
  const std::string card_folder = CardFolder(card.uuid);
  const CardLock lock(card_folder);
  if (lock.ledger() < 0) return Outcome::kSystem;
  const uint64_t room = card.memory_bytes - card.reserve_bytes;
  uint64_t bound = 0;
  if (!ReadLedger(lock.ledger(), &bound) || bound > room || size_bytes > room - bound) {
    bound = ProbeLocked(card_folder, lock.ledger()).used_bytes;
    if (bound > room || size_bytes > room - bound) return Outcome::kOutOfMemory;
  }
  if (!WriteLedger(lock.ledger(), bound + size_bytes)) return Outcome::kSystem;

  Record record;
  record.magic = kMagic;
  record.version = kVersion;
  record.kind = kind;
  record.size_bytes = size_bytes;
  record.process = process_;
  // Not getpid(), which may be told to answer otherwise: NVML lists real PIDs.
  record.pid = static_cast<int32_t>(syscall(SYS_getpid));
  record.handle_types = handle_types;
  record.card = card.uuid;
  record.id = Random<UuidBytes>();
  const std::string path = card_folder + "/" + Hex(record.id.data(), record.id.size());
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return Outcome::kSystem;
  fchmod(fd, 0666);
  const bool written = flock(fd, LOCK_SH | LOCK_NB) == 0 &&
                       ftruncate(fd, static_cast<off_t>(size_bytes + kRecordBytes)) == 0 &&
                       pwrite(fd, &record, sizeof record, static_cast<off_t>(size_bytes)) ==
                           static_cast<ssize_t>(sizeof record);
  const Outcome outcome = written ? Map(fd, record, backing) : Outcome::kSystem;
  if (outcome != Outcome::kOk) unlink(path.c_str());
  return outcome;
}

// Takes ownership of `fd`.
Outcome State::Map(int fd, const Record& record, std::shared_ptr<Backing>* backing) const {
  const bool bytes_used = record.kind == Kind::kVmm || record.kind == Kind::kLegacy;
  const size_t size = bytes_used ? record.size_bytes : kRecordBytes;
  void* const base = mmap(nullptr, size, bytes_used ? PROT_READ | PROT_WRITE : PROT_NONE,
                          MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (base == MAP_FAILED) {
    close(fd);
    return Outcome::kSystem;
  }
  madvise(base, size, MADV_DONTFORK);
  int kept = -1;
  if (keep_descriptors_) {
    kept = fd;
  } else {
    close(fd);
  }
  *backing = std::make_shared<Backing>(this, record, base, size, kept);
  return Outcome::kOk;
}

int State::OpenDescriptor(const Record& record) const {
  const std::string path = CardFolder(record.card) + "/" + Hex(record.id.data(), record.id.size());
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return -1;
  if (flock(fd, LOCK_SH | LOCK_NB) == 0) return fd;
  close(fd);
  return -1;
}

Outcome State::Adopt(int fd, std::shared_ptr<Backing>* backing) const {
  Record record;
  if (fd < 0 || !ReadRecord(fd, &record) || record.kind != Kind::kVmm) return Outcome::kForeign;
  if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR) return Outcome::kForeign;
  const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return Outcome::kSystem;
  return Map(copy, record, backing);
}

Outcome State::OpenById(const UuidBytes& card, const UuidBytes& id,
                        std::shared_ptr<Backing>* backing) const {
  const std::string card_folder = CardFolder(card);
  const CardLock lock(card_folder);
  if (lock.ledger() < 0) return Outcome::kSystem;
  Record wanted;
  wanted.card = card;
  wanted.id = id;
  const int fd = OpenDescriptor(wanted);
  if (fd < 0) return Outcome::kNotFound;
  Record record;
  if (!ReadRecord(fd, &record)) {
    close(fd);
    return Outcome::kNotFound;
  }
  return Map(fd, record, backing);
}

Usage State::Probe(const Card& card) const {
  const std::string card_folder = CardFolder(card.uuid);
  Usage usage;
  const CardLock lock(card_folder);
  if (lock.ledger() >= 0) usage = ProbeLocked(card_folder, lock.ledger());
  usage.used_bytes += card.reserve_bytes;
  return usage;
}

Usage State::ProbeLocked(const std::string& card_folder, int ledger_fd) const {
  Usage usage;
  DIR* folder = opendir(card_folder.c_str());
  if (folder == nullptr) return usage;
  while (const dirent* entry = readdir(folder)) {
    if (!IsAllocationName(entry->d_name)) continue;
    const int fd =
        openat(dirfd(folder), entry->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) continue;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
      unlinkat(dirfd(folder), entry->d_name, 0);
    } else if (Record record; ReadRecord(fd, &record)) {
      usage.used_bytes += record.size_bytes;
      AddHolder(record, &usage);
    }
    close(fd);
  }
  closedir(folder);
  WriteLedger(ledger_fd, usage.used_bytes);
  return usage;
}

void State::Reap(const Record& record) const {
  const std::string card_folder = CardFolder(record.card);
  const CardLock lock(card_folder);
  if (lock.ledger() < 0) return;
  const std::string path = card_folder + "/" + Hex(record.id.data(), record.id.size());
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return;
  uint64_t bound = 0;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0 && unlink(path.c_str()) == 0 &&
      ReadLedger(lock.ledger(), &bound) && bound >= record.size_bytes) {
    WriteLedger(lock.ledger(), bound - record.size_bytes);
  }
  close(fd);
}

}  // namespace gpushm::sim
