#include "sidecar/broker/transfer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <utility>

#include "platform/base/clock.h"
#include "platform/base/sealed_memory.h"
#include "platform/daemon/process.h"
#include "sidecar/broker/loader.h"

namespace gpushm::broker {
namespace {

// Results kept for clients that have not asked for them yet.
constexpr size_t kKept = 64;
// Checks of a transfer within the time that it may stall.
constexpr int64_t kStallLooks = 4;
// Time for a loader to exit after it has reported that everything is moved.
constexpr int64_t kExitMs = 1'000;
// How long a load of the broker's own may stall while other transfers want its place.
constexpr int64_t kGiveWayMs = 2'000;

Result<void> FitsIntoBuffer(const TransferJob& job, uint64_t file_bytes) {
  if (file_bytes <= job.size_bytes) return {};
  return Fail(Code::kInvalidArgument,
              Concat("the file has ", file_bytes, " bytes, but buffer \"", job.buffer,
                     "\" has only ", job.size_bytes),
              Concat("declare buffers.gpushm.io/", job.buffer, " with at least this size"));
}

std::string_view NameOfType(mode_t mode) {
  if (S_ISDIR(mode)) return "folder";
  if (S_ISSOCK(mode)) return "socket";
  if (S_ISCHR(mode)) return "character device";
  if (S_ISBLK(mode)) return "block device";
  return "file of another type";  // Such as an anonymous inode: an eventfd, an epoll descriptor.
}

// The bytes to move: the whole file when loading, the whole buffer when saving. For a pipe, whose
// size is unknown, at most the buffer.
Result<uint64_t> TotalBytes(const TransferJob& job) {
  if (job.direction == protocol::Direction::kSave) return job.size_bytes;
  // Uses only what the kernel already knows, because a file system may be slow or a client's own
  // (FUSE).
  struct statx file{};
  if (statx(job.file, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_SIZE, &file) !=
      0) {
    return FailSystem(errno, "statx");
  }
  if (S_ISFIFO(file.stx_mode)) return job.size_bytes;
  if (!S_ISREG(file.stx_mode)) {
    return Fail(Code::kInvalidArgument,
                Concat("only files and pipes can be loaded through the broker, not a ",
                       NameOfType(file.stx_mode)),
                "write it to a file first");
  }
  if (auto fits = FitsIntoBuffer(job, file.stx_size); !fits) return std::unexpected(fits.error());
  return file.stx_size;
}

// Bytes that the process has read and written, as the kernel counts them; 0 if the kernel does not
// provide this. The child reports only whole chunks, and a slow pipe can take minutes for one of 1
// GiB.
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
  const int flags = fcntl(job.file, F_GETFL);
  if (flags < 0) return FailSystem(errno, "fcntl");
  const int mode = flags & O_ACCMODE;
  const bool fits =
      mode == O_RDWR || mode == (job.direction == protocol::Direction::kLoad ? O_RDONLY : O_WRONLY);
  if (fits) return {};
  const char* const opened = mode == O_RDONLY   ? "only for reading"
                             : mode == O_WRONLY ? "only for writing"
                                                : "neither for reading nor for writing";
  return Fail(Code::kInvalidArgument,
              Concat("the file is open ", opened, ", so its descriptor has the wrong access mode"),
              "open the file for reading to load, for writing to save");
}

}  // namespace

Transfers::Transfers(EventLoop* loop, Children* children, Settings settings, Events events)
    : loop_(loop),
      children_(children),
      settings_(std::move(settings)),
      events_(std::move(events)) {}

Transfers::~Transfers() {
  for (auto& [id, transfer] : transfers_) loop_->Cancel(transfer.timer);
}

Result<void> Transfers::HasRoom(const TransferJob& job) {
  std::erase_if(hanging_, [](const auto& item) { return *item.second; });
  if (job.client_id != 0 && hanging_.contains(job.container)) {
    return Fail(
        Code::kBusy,
        Concat("an earlier loader of container \"", job.container,
               "\" hangs in the kernel, in a call on its file"),
        "make that file's file system respond, or abort it (FUSE: "
        "/sys/fs/fuse/connections); the event child-hangs in the sidecar's log shows the call");
  }
  if (running_ < settings_.at_once && !IsTaken(job.gpu)) return {};
  if (FindSlow(job.gpu) != transfers_.end()) return {};
  if (settings_.gpus.size() == 1) {
    return Fail(Code::kBusy, "another load or save of this pod is in progress",
                "wait until it has ended");
  }
  if (IsTaken(job.gpu)) {
    return Fail(Code::kBusy,
                Concat("another load or save on GPU ", job.gpu, " of this pod is in progress"),
                "wait until it has ended");
  }
  return Fail(Code::kBusy,
              Concat(running_,
                     " loads and saves of this pod are in progress, as many as the "
                     "sidecar has host memory for"),
              "wait until one has ended, or annotate the pod with more sidecar.gpushm.io/memory: "
              "512Mi for each GPU, and 64Mi");
}

Result<uint64_t> Transfers::Start(const TransferJob& job) {
  if (auto room = HasRoom(job); !room) return std::unexpected(room.error());
  if (auto fits = CheckFileMode(job); !fits) return std::unexpected(fits.error());
  const Result<uint64_t> total = TotalBytes(job);
  if (!total) return std::unexpected(total.error());
  std::vector<std::string> arguments =
      LoaderArguments(job.direction, settings_.gpus.at(job.gpu), settings_.driver_folder,
                      job.chunk_bytes, job.file_way);
  if (job.description) arguments.emplace_back("--described");
  auto loader = children_->Start(arguments, {});
  if (!loader) return std::unexpected(loader.error());
  OpenedFile file{.loader = std::move(*loader), .bytes = *total, .is_pipe = false};
  return Run(job, &file);
}

Result<uint64_t> Transfers::Start(const TransferJob& job, OpenedFile* file) {
  if (file->is_pipe) file->bytes = job.size_bytes;
  if (auto fits = FitsIntoBuffer(job, file->bytes); !fits) return std::unexpected(fits.error());
  if (auto room = HasRoom(job); !room) return std::unexpected(room.error());
  return Run(job, file);
}

Result<uint64_t> Transfers::Run(const TransferJob& job, OpenedFile* file) {
  std::vector<int> descriptors = {job.memory};
  if (job.file >= 0) descriptors.push_back(job.file);
  std::shared_ptr<LoadDescription> description = job.description;
  if (file->description_bytes > 0) {
    Result<UniqueFd> memory = MakeEmpty("description");
    if (!memory) return std::unexpected(memory.error());
    description = std::make_shared<LoadDescription>(std::move(*memory), file->description_bytes);
  }
  if (description) descriptors.push_back(description->memory.get());
  const std::string order = Concat(file->bytes, ' ', job.mapped_bytes);
  if (auto sent = file->loader->Send(order, descriptors); !sent) {
    return std::unexpected(sent.error());
  }
  // From here on nothing can be refused.
  if (running_ == settings_.at_once || IsTaken(job.gpu)) GiveWay(job.gpu);
  // A client that gave up never asks for its result.
  for (auto kept = transfers_.begin(); transfers_.size() >= kKept && kept != transfers_.end();) {
    kept = kept->second.loader ? std::next(kept) : transfers_.erase(kept);
  }
  const uint64_t id = next_id_++;
  Transfer& transfer = transfers_[id];
  transfer.state.client_id = job.client_id;
  transfer.state.total_bytes = file->bytes;
  transfer.state.description = std::move(description);
  transfer.forget = job.client_id == 0;
  transfer.container = job.container;
  transfer.buffer = job.buffer;
  transfer.gpu = job.gpu;
  transfer.direction = job.direction;
  transfer.loader = std::move(file->loader);
  transfer.loader->SetEvents({.on_line = [this, id](const std::string& line) { OnLine(id, line); },
                              .on_end = [this, id](int status) { OnLoaderEnded(id, status); }});
  // The broker's own files are in the pod's volumes, which may be slow for a while. A pipe there
  // may not.
  transfer.may_stall = job.client_id == 0 && !file->is_pipe;
  transfer.moved_ns = MonotonicNs();
  ++running_;
  LookForStall(id);
  return id;
}

void Transfers::OnLine(uint64_t id, const std::string& line) {
  Transfer& transfer = transfers_.at(id);
  if (line.starts_with("ok ")) {
    const std::array<uint64_t, 4> said = Numbers<4>(line.substr(3));
    transfer.said_ok = said[0] <= transfer.state.total_bytes && said[2] <= INT64_MAX &&
                       said[1] <= static_cast<uint64_t>(FileWay::kGds);
    transfer.state.done_bytes = said[0];
    transfer.state.file_way = static_cast<FileWay>(said[1]);
    transfer.state.moving_ns = said[2];
    transfer.state.link_bytes_per_second = said[3];
    // Closing its file may hang, but the bytes are moved.
    loop_->Cancel(transfer.timer);
    transfer.timer = loop_->After(kExitMs, [&transfer] { transfer.loader->Kill(); });
  } else if (line.starts_with("error ")) {
    transfer.failure = std::unexpected(ErrorOfLoader(line));
  } else {
    const uint64_t done = Numbers<1>(line)[0];
    if (done > transfer.state.total_bytes) return;
    transfer.state.done_bytes = done;
    events_.on_progress(transfer.buffer, transfer.direction, done);
  }
}

void Transfers::OnLoaderEnded(uint64_t id, int status) {
  Transfer& transfer = transfers_.at(id);
  loop_->Cancel(transfer.timer);
  const std::unique_ptr<Child> loader = std::move(transfer.loader);
  --running_;
  transfer.state.finished = true;
  transfer.state.loader_ended = loader->ended();
  if (!*loader->ended() && transfer.state.client_id != 0) {
    hanging_[transfer.container] = loader->ended();
  }
  SetResult(transfer, status);
  const TransferState state = transfer.state;
  const std::string buffer = transfer.buffer;
  const protocol::Direction direction = transfer.direction;
  if (transfer.forget) transfers_.erase(id);
  events_.on_end(buffer, direction, state);
}

void Transfers::SetResult(Transfer& transfer, int status) const {
  const bool exited = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  if (transfer.said_ok && (exited || killed)) {
    transfer.state.total_bytes = transfer.state.done_bytes;
  } else if (transfer.stalled) {
    transfer.state.result =
        Fail(Code::kTimeout,
             Concat("no byte moved for ", settings_.stall_ms, " ms, and other loads wait for this"),
             "check that the process at the other end of the pipe writes or reads, "
             "or that the file's disk responds");
  } else if (!transfer.failure) {
    transfer.state.result = transfer.failure;
  } else {
    transfer.state.result = Fail(Code::kPeerDied, Concat("the loader ", HowItEnded(status)),
                                 "check the sidecar's log and memory limit");
  }
}

// Checks often enough to know how long the transfer has stalled.
void Transfers::LookForStall(uint64_t id) {
  Transfer& transfer = transfers_.at(id);
  const int64_t now_ns = MonotonicNs();
  const uint64_t moved = transfer.state.done_bytes + BytesMovedBy(transfer.loader->pid());
  if (moved != transfer.moved) {
    transfer.moved = moved;
    transfer.moved_ns = now_ns;
  } else if (!transfer.may_stall && now_ns - transfer.moved_ns >= settings_.stall_ms * 1'000'000) {
    transfer.stalled = true;
    transfer.loader->Kill();
    return;
  }
  const int64_t limit_ms = transfer.may_stall ? kGiveWayMs : settings_.stall_ms;
  transfer.timer =
      loop_->After(std::max<int64_t>(limit_ms / kStallLooks, 1), [this, id] { LookForStall(id); });
}

bool Transfers::IsTaken(uint32_t gpu) const {
  return std::any_of(transfers_.begin(), transfers_.end(), [gpu](const auto& item) {
    return item.second.loader && item.second.gpu == gpu;
  });
}

std::map<uint64_t, Transfers::Transfer>::iterator Transfers::FindSlow(uint32_t gpu) {
  const bool is_taken = IsTaken(gpu);
  return std::find_if(transfers_.begin(), transfers_.end(), [&](const auto& item) {
    const Transfer& transfer = item.second;
    return transfer.loader && transfer.may_stall && (!is_taken || transfer.gpu == gpu) &&
           MonotonicNs() - transfer.moved_ns >= kGiveWayMs * 1'000'000;
  });
}

void Transfers::GiveWay(uint32_t gpu) {
  const auto slow = FindSlow(gpu);  // HasRoom has checked that there is one.
  slow->second.state.gave_way = true;
  slow->second.loader->Kill();
  OnLoaderEnded(slow->first, SIGKILL);  // It ends soon, or hangs; nobody waits for it.
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
  if (found->second.loader) found->second.loader->Kill();
  return {};
}

void Transfers::EndClient(uint64_t client_id) {
  for (auto transfer = transfers_.begin(); transfer != transfers_.end();) {
    const auto next = std::next(transfer);
    if (transfer->second.state.client_id == client_id) {
      transfer->second.forget = true;
      if (transfer->second.loader) {
        transfer->second.loader->Kill();
      } else {
        transfers_.erase(transfer);
      }
    }
    transfer = next;
  }
}

}  // namespace gpushm::broker
