#include "sidecar/broker/transfer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <utility>

#include "runtime/base/clock.h"
#include "sidecar/broker/child.h"

namespace gpushm::broker {
namespace {

// Transfers at one time: each makes a context (523 MiB) and pins three chunks.
constexpr size_t kRunning = 1;
// Results kept for clients that have not asked for them yet.
constexpr size_t kKept = 64;
constexpr size_t kLineBytes = 4096;
// Looks at a transfer in the time that it may stand still.
constexpr int64_t kStallLooks = 4;

// The bytes to move: all of the file when loading, all of the buffer when saving; of a pipe, that
// nobody knows the size of, at most the buffer.
Result<uint64_t> TotalBytes(const TransferJob& job) {
  if (job.direction == protocol::Direction::kSave) return job.size_bytes;
  // What the kernel knows already: a file system that is slow or a client's own (FUSE) is not
  // asked.
  struct statx file{};
  if (statx(job.file.get(), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_SIZE,
            &file) != 0) {
    return FailSystem(errno, "statx");
  }
  if (S_ISFIFO(file.stx_mode)) return job.size_bytes;
  if (!S_ISREG(file.stx_mode)) {
    return Fail(Code::kInvalidArgument, "only files and pipes can be loaded through the broker",
                "write it to a file first");
  }
  const auto size = uint64_t{file.stx_size};
  if (size > job.size_bytes) {
    return Fail(
        Code::kInvalidArgument,
        Concat("the file has ", size, " bytes, buffer \"", job.buffer, "\" ", job.size_bytes),
        Concat("declare buffers.gpushm.io/", job.buffer, " at least as large"));
  }
  return size;
}

// The numbers that a line begins with; 0 for those that it lacks.
template <size_t kCount>
std::array<uint64_t, kCount> Numbers(std::string_view line) {
  std::array<uint64_t, kCount> numbers{};
  const char* at = line.data();
  const char* const end = line.data() + line.size();
  for (uint64_t& number : numbers) {
    const auto parsed = std::from_chars(at, end, number);
    if (parsed.ec != std::errc()) break;
    at = std::find(parsed.ptr, end, ' ');
    if (at != end) ++at;
  }
  return numbers;
}

bool IsPipe(int file) {
  struct statx info{};
  return statx(file, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &info) == 0 &&
         S_ISFIFO(info.stx_mode);
}

// Bytes that the process has read and written, as the kernel counts them; 0 where it does not say.
// The child tells only of whole chunks, and a slow pipe can take minutes for one of 1 GiB.
uint64_t BytesMovedBy(pid_t process) {
  std::ifstream file(Concat("/proc/", process, "/io"));
  uint64_t sum = 0;
  std::string name;
  uint64_t bytes = 0;
  while (file >> name >> bytes) {
    if (name == "rchar:" || name == "wchar:") sum += bytes;
  }
  return sum;
}

Result<void> CheckFileMode(const TransferJob& job) {
  const int flags = fcntl(job.file.get(), F_GETFL);
  if (flags < 0) return FailSystem(errno, "fcntl");
  const int mode = flags & O_ACCMODE;
  const bool fits =
      mode == O_RDWR || mode == (job.direction == protocol::Direction::kLoad ? O_RDONLY : O_WRONLY);
  if (fits) return {};
  return Fail(Code::kInvalidArgument, "the file's descriptor has the wrong mode",
              "open it for reading to load, for writing to save");
}

}  // namespace

Transfers::Transfers(EventLoop* loop, Worker* closer, Settings settings, Events events)
    : loop_(loop), closer_(closer), settings_(std::move(settings)), events_(std::move(events)) {}

Transfers::~Transfers() {
  for (auto& [id, transfer] : transfers_) {
    if (transfer.child <= 0) continue;
    loop_->Cancel(transfer.stall_timer);
    loop_->Unwatch(transfer.pipe.get());
    loop_->Unwatch(transfer.child_pidfd.get());
    kill(transfer.child, SIGKILL);
    waitpid(transfer.child, nullptr, 0);
  }
}

Result<uint64_t> Transfers::Start(TransferJob job) {
  const Result<uint64_t> started = TryStart(job);
  closer_->Close(std::move(job.file));  // A client made it.
  return started;
}

Result<uint64_t> Transfers::TryStart(TransferJob& job) {
  if (running_ >= kRunning) {
    return Fail(Code::kBusy, "another load or save of this pod is under way",
                "wait until it has ended");
  }
  // All that are kept have ended. A client that gave up never asks for the result of its own.
  while (transfers_.size() >= kKept) transfers_.erase(transfers_.begin());
  if (auto fits = CheckFileMode(job); !fits) return std::unexpected(fits.error());
  const Result<uint64_t> total = TotalBytes(job);
  if (!total) return std::unexpected(total.error());
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return FailSystem(errno, "pipe2");
  UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);  // Blocks: no line of the child's is lost, least of all its last.
  if (fcntl(reader.get(), F_SETFL, O_NONBLOCK) != 0) return FailSystem(errno, "fcntl");
  const Result<pid_t> child = Spawn(job, *total, writer.get());
  if (!child) return std::unexpected(child.error());

  const uint64_t id = next_id_++;
  Transfer& transfer = transfers_[id];
  transfer.state.client_id = job.client_id;
  transfer.state.total_bytes = *total;
  transfer.forget = job.client_id == 0;
  transfer.buffer = job.buffer;
  transfer.direction = job.direction;
  transfer.child = *child;
  // The child is ours and unreaped, so its number cannot be another process yet.
  transfer.child_pidfd.Reset(static_cast<int>(syscall(SYS_pidfd_open, *child, 0)));
  transfer.pipe = std::move(reader);
  ++running_;
  const auto reading =
      loop_->Watch(transfer.pipe.get(), EPOLLIN, [this, id](uint32_t) { OnReadable(id); });
  const auto ending =
      loop_->Watch(transfer.child_pidfd.get(), EPOLLIN, [this, id](uint32_t) { OnChildEnded(id); });
  if (!reading || !ending) {
    kill(*child, SIGKILL);
    OnChildEnded(id);
    return Fail(Code::kSystem, "the loader cannot be watched");
  }
  // The broker's own come from the pod's volumes, which may be slow for a while; a pipe there is
  // not.
  if (job.client_id != 0 || IsPipe(job.file.get())) WatchForStall(id);
  return id;
}

Result<pid_t> Transfers::Spawn(const TransferJob& job, uint64_t total_bytes, int pipe_end) const {
  const std::array descriptors = {job.memory, job.file.get(), pipe_end};
  return StartChild(
      settings_.command,
      {"--direction", job.direction == protocol::Direction::kLoad ? "load" : "save", "--device",
       std::to_string(settings_.device), "--size", std::to_string(total_bytes), "--mapped",
       std::to_string(job.mapped_bytes), "--chunk", std::to_string(job.chunk_bytes), "--plan",
       job.client_id == 0 ? "own" : "given", "--file-way",
       std::to_string(static_cast<uint32_t>(job.file_way)), "--driver", settings_.driver_folder},
      descriptors);
}

bool Transfers::OnReadable(uint64_t id) {
  Transfer& transfer = transfers_.at(id);
  std::array<char, 4096> bytes{};
  const ssize_t count = read(transfer.pipe.get(), bytes.data(), bytes.size());
  if (count <= 0) {
    if (count == 0 || errno != EAGAIN) loop_->Unwatch(transfer.pipe.get());
    return false;
  }
  for (const char c : std::string_view(bytes.data(), static_cast<size_t>(count))) {
    if (c == '\n') {
      OnLine(transfer, std::exchange(transfer.line, {}));
    } else if (transfer.line.size() < kLineBytes) {
      transfer.line += c;
    }
  }
  return true;
}

void Transfers::OnLine(Transfer& transfer, const std::string& line) {
  if (line.starts_with("ok ")) {
    const std::array<uint64_t, 4> said = Numbers<4>(line.substr(3));
    transfer.said_ok = said[0] <= transfer.state.total_bytes && said[2] <= INT64_MAX &&
                       said[1] <= static_cast<uint64_t>(FileWay::kGds);
    transfer.state.done_bytes = said[0];
    transfer.state.file_way = static_cast<FileWay>(said[1]);
    transfer.state.moving_ns = said[2];
    transfer.state.link_bytes_per_second = said[3];
  } else if (line.starts_with("error ")) {
    const uint64_t code = Numbers<1>(line.substr(6))[0];
    // No breach of the protocol, which CORRUPT would make of it: the client is not to blame.
    const bool known = code > 0 && code <= kMaxCode && static_cast<Code>(code) != Code::kCorrupt;
    const size_t text = line.find(' ', 6);
    transfer.failure = Fail(known ? static_cast<Code>(code) : Code::kDriver,
                            text == std::string::npos ? "no reason given" : line.substr(text + 1));
  } else {
    const uint64_t done = Numbers<1>(line)[0];
    if (done > transfer.state.total_bytes) return;
    transfer.state.done_bytes = done;
    events_.on_progress(transfer.buffer, transfer.direction, done);
  }
}

void Transfers::OnChildEnded(uint64_t id) {
  Transfer& transfer = transfers_.at(id);
  while (OnReadable(id)) {  // What it wrote last; at most one pipe's worth is left.
  }
  int status = 0;
  waitpid(transfer.child, &status, 0);
  loop_->Unwatch(transfer.pipe.get());
  loop_->Unwatch(transfer.child_pidfd.get());
  loop_->Cancel(transfer.stall_timer);
  transfer.pipe.Reset();
  transfer.child_pidfd.Reset();
  transfer.child = -1;
  --running_;
  transfer.state.finished = true;
  const bool exited = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (transfer.said_ok && exited) {
    transfer.state.total_bytes = transfer.state.done_bytes;
  } else if (transfer.stalled) {
    transfer.state.result =
        Fail(Code::kTimeout,
             Concat("no byte moved for ", settings_.stall_ms, " ms, and other loads wait for this"),
             "whoever is at the other end of the pipe must write or read; a file's disk may hang");
  } else if (!transfer.failure) {
    transfer.state.result = transfer.failure;
  } else {
    transfer.state.result =
        Fail(Code::kPeerDied,
             WIFSIGNALED(status) ? Concat("the loader was ended by signal ", WTERMSIG(status))
                                 : Concat("the loader ended with ", WEXITSTATUS(status)),
             "the sidecar's log and memory limit tell why");
  }
  const TransferState state = transfer.state;
  const std::string buffer = transfer.buffer;
  const protocol::Direction direction = transfer.direction;
  if (transfer.forget) transfers_.erase(id);
  events_.on_end(buffer, direction, state);
}

void Transfers::WatchForStall(uint64_t id) {
  transfers_.at(id).moved_ns = MonotonicNs();
  LookForStall(id);
}

void Transfers::LookForStall(uint64_t id) {
  Transfer& transfer = transfers_.at(id);
  const int64_t now_ns = MonotonicNs();
  const uint64_t moved = transfer.state.done_bytes + BytesMovedBy(transfer.child);
  if (moved != transfer.moved) {
    transfer.moved = moved;
    transfer.moved_ns = now_ns;
  } else if (now_ns - transfer.moved_ns >= settings_.stall_ms * 1'000'000) {
    transfer.stalled = true;
    kill(transfer.child, SIGKILL);
    return;
  }
  transfer.stall_timer = loop_->After(std::max<int64_t>(settings_.stall_ms / kStallLooks, 1),
                                      [this, id] { LookForStall(id); });
}

Result<TransferState> Transfers::Take(uint64_t client_id, uint64_t transfer_id) {
  const auto found = transfers_.find(transfer_id);
  if (found == transfers_.end() || found->second.state.client_id != client_id) {
    return Fail(Code::kNotFound, Concat("this client has no transfer ", transfer_id));
  }
  TransferState state = found->second.state;
  if (state.finished) transfers_.erase(found);
  return state;
}

Result<void> Transfers::Cancel(uint64_t client_id, uint64_t transfer_id) {
  const auto found = transfers_.find(transfer_id);
  if (found == transfers_.end() || found->second.state.client_id != client_id) {
    return Fail(Code::kNotFound, Concat("this client has no transfer ", transfer_id));
  }
  if (found->second.child > 0) kill(found->second.child, SIGKILL);
  return {};
}

void Transfers::EndClient(uint64_t client_id) {
  for (auto transfer = transfers_.begin(); transfer != transfers_.end();) {
    const auto next = std::next(transfer);
    if (transfer->second.state.client_id == client_id) {
      transfer->second.forget = true;
      if (transfer->second.child > 0) {
        kill(transfer->second.child, SIGKILL);
      } else {
        transfers_.erase(transfer);
      }
    }
    transfer = next;
  }
}

}  // namespace gpushm::broker
