#include "platform/daemon/testing/hung_fuse.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sched.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <new>
#include <string_view>
#include <utility>

#include "platform/base/clock.h"

namespace gpushm::testing {
namespace {

constexpr char kDevice[] = "/dev/fuse";
constexpr char kConnections[] = "/sys/fs/fuse/connections";
constexpr uint64_t kFileNode = FUSE_ROOT_ID + 1;
constexpr uint32_t kMaxWriteBytes = 128 << 10;
// The daemon ends by itself after this time if nobody ends it. No test takes as long.
constexpr unsigned kLongestTestSeconds = 900;
constexpr int kLookEveryMs = 2;

// The daemon's code, which runs in its own process.
class Daemon {
 public:
  Daemon(int device, int control, HangAt hang_at, uint64_t size_bytes, std::atomic<int>* count)
      : device_(device),
        control_(control),
        hang_at_(hang_at),
        size_bytes_(size_bytes),
        count_(count) {}

  // Returns when the connection ends.
  void Run() {
    std::vector<char> request(kMaxWriteBytes + 4096);
    for (;;) {
      std::array<pollfd, 2> sources = {pollfd{.fd = device_, .events = POLLIN, .revents = 0},
                                       pollfd{.fd = control_, .events = POLLIN, .revents = 0}};
      if (poll(sources.data(), sources.size(), -1) < 0) return;
      if (sources[1].revents != 0) {
        char byte = 0;
        if (read(control_, &byte, 1) != 1) return;  // The test has ended.
        StopHanging();
      }
      if (sources[0].revents == 0) continue;
      const ssize_t bytes = read(device_, request.data(), request.size());
      if (bytes < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT)) continue;
      if (bytes < static_cast<ssize_t>(sizeof(fuse_in_header))) return;  // ENODEV: it was aborted.
      request_.assign(request.data(), request.data() + bytes);
      Take();
    }
  }

 private:
  // The body of the current request. It is copied, because its bytes have no alignment.
  template <typename T>
  T Body() const {
    T body{};
    const size_t bytes = std::min(sizeof body, request_.size() - sizeof(fuse_in_header));
    memcpy(&body, request_.data() + sizeof(fuse_in_header), bytes);
    return body;
  }

  void Take() {
    memcpy(&header_, request_.data(), sizeof header_);
    if (Hangs()) {
      kept_back_.push_back(request_);
      count_->fetch_add(1);
    } else {
      Serve();
    }
  }

  void StopHanging() {
    hanging_ = false;
    count_->store(0);
    for (const std::vector<char>& request : std::exchange(kept_back_, {})) {
      request_ = request;
      Take();
    }
  }

  bool Hangs() const {
    if (!hanging_) return false;
    const bool at_file = header_.nodeid == kFileNode;
    switch (hang_at_) {
      case HangAt::kLookup:
        return header_.opcode == FUSE_LOOKUP;
      case HangAt::kGetattr:
        return at_file && header_.opcode == FUSE_GETATTR;
      case HangAt::kOpen:
        return at_file && header_.opcode == FUSE_OPEN;
      case HangAt::kRead:
        return at_file && header_.opcode == FUSE_READ;
      case HangAt::kFlush:
        return at_file && header_.opcode == FUSE_FLUSH;
      case HangAt::kAllOnceOpen:
        return opened_ && HasAnswer();
    }
    return false;
  }

  bool HasAnswer() const {
    return header_.opcode != FUSE_FORGET && header_.opcode != FUSE_BATCH_FORGET &&
           header_.opcode != FUSE_INTERRUPT;
  }

  void Serve() {
    switch (header_.opcode) {
      case FUSE_INIT:
        return Init();
      case FUSE_LOOKUP:
        return Lookup();
      case FUSE_GETATTR:
        return Getattr();
      case FUSE_READ:
        return Read();
      case FUSE_OPEN:
        opened_ = true;
        return Reply(fuse_open_out{});
      case FUSE_OPENDIR:
        return Reply(fuse_open_out{});
      case FUSE_READDIR:
      case FUSE_FLUSH:
      case FUSE_RELEASE:
      case FUSE_RELEASEDIR:
        return Done();
      case FUSE_STATFS:
        return Reply(fuse_statfs_out{});
      default:
        if (HasAnswer()) ReplyError(ENOSYS);
    }
  }

  void Init() {
    const auto in = Body<fuse_init_in>();
    fuse_init_out out{};
    out.major = FUSE_KERNEL_VERSION;
    out.minor = std::min<uint32_t>(in.minor, FUSE_KERNEL_MINOR_VERSION);
    out.max_readahead = in.max_readahead;
    out.max_write = kMaxWriteBytes;
    Reply(out);
  }

  void Lookup() {
    const std::string_view name(request_.data() + sizeof(fuse_in_header));
    if (name != HungFuse::kFile) return ReplyError(ENOENT);
    fuse_entry_out out{};  // Never cached: each path look-up sends a request.
    out.nodeid = kFileNode;
    out.attr = Attributes(kFileNode);
    Reply(out);
  }

  void Getattr() {
    fuse_attr_out out{};
    out.attr = Attributes(header_.nodeid);
    Reply(out);
  }

  void Read() {
    static const std::array<char, kMaxWriteBytes> kZeroes{};
    const auto in = Body<fuse_read_in>();
    const uint64_t left = in.offset < size_bytes_ ? size_bytes_ - in.offset : 0;
    Send(0, kZeroes.data(), std::min<uint64_t>({left, in.size, kZeroes.size()}));
  }

  fuse_attr Attributes(uint64_t node) const {
    fuse_attr attributes{};
    attributes.ino = node;
    attributes.nlink = 1;
    attributes.mode = node == kFileNode ? S_IFREG | 0666 : S_IFDIR | 0777;
    attributes.size = node == kFileNode ? size_bytes_ : 0;
    attributes.blocks = attributes.size / 512;
    attributes.blksize = 4096;
    return attributes;
  }

  template <typename T>
  void Reply(const T& body) {
    Send(0, &body, sizeof body);
  }
  void Done() { Send(0, nullptr, 0); }
  void ReplyError(int error) { Send(-error, nullptr, 0); }

  void Send(int error, const void* body, size_t bytes) {
    fuse_out_header out{};
    out.len = static_cast<uint32_t>(sizeof out + bytes);
    out.error = error;
    out.unique = header_.unique;
    const std::array<iovec, 2> parts = {
        iovec{.iov_base = &out, .iov_len = sizeof out},
        iovec{.iov_base = const_cast<void*>(body), .iov_len = bytes}};
    [[maybe_unused]] const ssize_t sent = writev(device_, parts.data(), bytes == 0 ? 1 : 2);
  }

  const int device_;
  const int control_;
  const HangAt hang_at_;
  const uint64_t size_bytes_;
  std::atomic<int>* const count_;
  bool hanging_ = true;
  bool opened_ = false;
  std::vector<char> request_;
  fuse_in_header header_{};
  std::vector<std::vector<char>> kept_back_;
};

Result<void> OwnMountNamespace() {
  static bool own = false;
  if (own) return {};
  if (unshare(CLONE_NEWNS) != 0) return FailSystem(errno, "unshare(CLONE_NEWNS)");
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return FailSystem(errno, "make the mounts private");
  }
  own = true;
  return {};
}

std::string AbortFile(unsigned connection) {
  return Concat(kConnections, '/', connection, "/abort");
}

Result<void> MountFusectl(const std::string& wanted) {
  if (access(wanted.c_str(), F_OK) == 0) return {};
  if (mount("fusectl", kConnections, "fusectl", 0, nullptr) != 0) {
    return FailSystem(errno, Concat("mount fusectl at ", kConnections));
  }
  return {};
}

}  // namespace

std::optional<std::string> HungFuse::MissingHere() {
  if (geteuid() != 0) return "needs root to mount FUSE";
  if (access(kDevice, R_OK | W_OK) != 0) return Concat("needs ", kDevice, ": ", strerror(errno));
  return std::nullopt;
}

Result<HungFuse> HungFuse::Mount(const std::string& folder, HangAt hang_at, uint64_t size_bytes) {
  if (const auto missing = MissingHere()) return Fail(Code::kUnsupported, *missing);
  HungFuse fuse;
  fuse.folder_ = folder;
  if (auto r = OwnMountNamespace(); !r) return std::unexpected(r.error());
  if (auto r = fuse.MountAndServe(hang_at, size_bytes); !r) return std::unexpected(r.error());
  return fuse;
}

Result<void> HungFuse::MountAndServe(HangAt hang_at, uint64_t size_bytes) {
  const UniqueFd device(open(kDevice, O_RDWR | O_CLOEXEC));
  if (!device) return FailSystem(errno, Concat("open ", kDevice));
  const std::string options =
      Concat("fd=", device.get(), ",rootmode=40000,user_id=0,group_id=0,allow_other");
  if (mount("gpushm-test", folder_.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) != 0) {
    return FailSystem(errno, Concat("mount FUSE at ", folder_));
  }
  void* const shared =
      mmap(nullptr, sizeof *kept_back_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return FailSystem(errno, "mmap");
  kept_back_ = new (shared) std::atomic<int>(0);
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return FailSystem(errno, "pipe2");
  const UniqueFd control(ends[0]);
  control_.Reset(ends[1]);
  device_ = device.get();
  daemon_ = fork();
  if (daemon_ < 0) return FailSystem(errno, "fork");
  if (daemon_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(kLongestTestSeconds);
    control_.Reset();
    Daemon(device.get(), control.get(), hang_at, size_bytes, kept_back_).Run();
    _exit(0);
  }
  struct stat root{};
  if (stat(folder_.c_str(), &root) != 0) return FailSystem(errno, Concat("stat ", folder_));
  connection_ = minor(root.st_dev);
  return MountFusectl(AbortFile(connection_));
}

HungFuse::HungFuse(HungFuse&& other) noexcept
    : folder_(std::exchange(other.folder_, {})),
      daemon_(std::exchange(other.daemon_, -1)),
      device_(other.device_),
      kept_back_(std::exchange(other.kept_back_, nullptr)),
      control_(std::move(other.control_)),
      connection_(other.connection_),
      files_(std::move(other.files_)) {}

HungFuse::~HungFuse() {
  if (folder_.empty()) return;
  Abort();
  files_.clear();
  umount2(folder_.c_str(), MNT_DETACH);
  if (kept_back_ != nullptr) munmap(kept_back_, sizeof *kept_back_);
}

Result<int> HungFuse::Open(int flags) {
  UniqueFd file(open(path().c_str(), flags | O_CLOEXEC));
  if (!file) return FailSystem(errno, Concat("open ", path()));
  return files_.emplace_back(std::move(file)).get();
}

bool HungFuse::WaitUntilHung(int count, int64_t wait_ms) const {
  const Deadline deadline = Deadline::AfterMs(wait_ms);
  for (;;) {
    if (kept_back_->load() >= count) return true;
    if (deadline.Passed()) return false;
    poll(nullptr, 0, kLookEveryMs);
  }
}

void HungFuse::Answer() { [[maybe_unused]] const ssize_t sent = write(control_.get(), "", 1); }

Result<UniqueFd> HungFuse::Device() const {
  const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, daemon_, 0)));
  if (!process) return FailSystem(errno, "pidfd_open");
  UniqueFd device(static_cast<int>(syscall(SYS_pidfd_getfd, process.get(), device_, 0)));
  if (!device) return FailSystem(errno, "pidfd_getfd");
  return device;
}

bool HungFuse::HasEnded() const {
  siginfo_t daemon{};
  return waitid(P_PID, static_cast<id_t>(daemon_), &daemon, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         daemon.si_pid == daemon_;
}

void HungFuse::KillDaemon() { kill(daemon_, SIGKILL); }

void HungFuse::Abort() {
  if (daemon_ < 0) return;
  std::ofstream(AbortFile(connection_)) << "1";
  kept_back_->store(0);
  // The last descriptor of the device is closed with the daemon, which ends the connection as well.
  kill(daemon_, SIGKILL);
  waitpid(daemon_, nullptr, 0);
  daemon_ = -1;
}

}  // namespace gpushm::testing
