// Buffers from and to files: in this process, or in a child of the broker.
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "runtime/client/client.h"
#include "runtime/client/transfer_engine.h"

namespace gpushm::client {

using protocol::Direction;
using protocol::Kind;

namespace {

// Between questions how far the broker's child is.
constexpr int kFirstStatusStepMs = 1;
constexpr int kLastStatusStepMs = 50;
// Tries to find a free name for the temporary file.
constexpr int kTemporaryAttempts = 16;

Result<UniqueFd> OpenForReading(const std::string& path, uint64_t* size_bytes) {
  UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) {
    const int error = errno;
    if (error == ENOENT) return Fail(Code::kNotFound, Concat("there is no file ", path));
    return FailSystem(error, Concat("open ", path));
  }
  struct stat info{};
  if (fstat(file.get(), &info) != 0) return FailSystem(errno, Concat("stat ", path));
  if (!S_ISREG(info.st_mode)) {
    return Fail(Code::kInvalidArgument, Concat(path, " is no regular file"));
  }
  *size_bytes = static_cast<uint64_t>(info.st_size);
  return file;
}

// A file beside its final name, which it takes with Commit and is removed without.
class TemporaryFile {
 public:
  static Result<TemporaryFile> Create(const std::string& path) {
    for (int attempt = 0;; ++attempt) {
      std::string temporary = Concat(path, ".gpushm-", getpid(), "-", MonotonicNs());
      UniqueFd file(open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
      if (file) return TemporaryFile(std::move(file), std::move(temporary), path);
      if (errno != EEXIST || attempt == kTemporaryAttempts) {
        return FailSystem(errno, Concat("create ", temporary));
      }
    }
  }

  int fd() const { return file_.get(); }

  Result<void> Commit() {
    if (fsync(file_.get()) != 0) return FailSystem(errno, Concat("fsync ", temporary_));
    if (rename(temporary_.c_str(), path_.c_str()) != 0) {
      return FailSystem(errno, Concat("rename ", temporary_, " to ", path_));
    }
    temporary_.clear();
    return {};
  }

  TemporaryFile(TemporaryFile&& other) noexcept
      : file_(std::move(other.file_)),
        temporary_(std::exchange(other.temporary_, {})),
        path_(std::move(other.path_)) {}
  TemporaryFile& operator=(TemporaryFile&&) = delete;
  ~TemporaryFile() {
    if (!temporary_.empty()) unlink(temporary_.c_str());
  }

 private:
  TemporaryFile(UniqueFd file, std::string temporary, std::string path)
      : file_(std::move(file)), temporary_(std::move(temporary)), path_(std::move(path)) {}
  UniqueFd file_;
  std::string temporary_;
  std::string path_;
};

// The device's primary context, current on this thread for the time; the thread's own comes back.
class BorrowedContext {
 public:
  static Result<BorrowedContext> Push(const CudaApi& api, CUdevice device) {
    Result<PrimaryContext> context = PrimaryContext::Retain(api, device);
    if (!context) return std::unexpected(context.error());
    if (auto done = api.Check(api.cuCtxPushCurrent(context->context()), "cuCtxPushCurrent");
        !done) {
      return std::unexpected(done.error());
    }
    return BorrowedContext(api, std::move(*context));
  }
  BorrowedContext(BorrowedContext&& other) noexcept
      : api_(std::exchange(other.api_, nullptr)), context_(std::move(other.context_)) {}
  BorrowedContext& operator=(BorrowedContext&&) = delete;
  ~BorrowedContext() {
    CUcontext popped = nullptr;
    if (api_ != nullptr) api_->cuCtxPopCurrent(&popped);
  }

 private:
  BorrowedContext(const CudaApi& api, PrimaryContext context)
      : api_(&api), context_(std::move(context)) {}
  const CudaApi* api_;
  PrimaryContext context_;
};

Result<void> CallProgress(const TransferOptions& options, const Wait& wait, uint64_t done_bytes,
                          uint64_t total_bytes) {
  if (options.progress && !options.progress(done_bytes, total_bytes)) {
    return Fail(Code::kBusy, Concat("stopped by the caller after ", done_bytes, " bytes"));
  }
  if (done_bytes < total_bytes && wait.answer.Passed()) {
    return Fail(Code::kTimeout,
                Concat("the deadline passed after ", done_bytes, " of ", total_bytes, " bytes"),
                "allow more time");
  }
  return {};
}

}  // namespace

Result<TransferOutcome> Client::Load(std::string_view name, const std::string& path,
                                     const TransferOptions& options, const Wait& wait) {
  const int64_t start_ns = MonotonicNs();
  uint64_t file_bytes = 0;
  const Result<UniqueFd> file = OpenForReading(path, &file_bytes);
  if (!file) return std::unexpected(file.error());
  const Result<Seen> seen = Await(name, [](const auto&) { return Verdict{}; }, wait);
  if (!seen) return std::unexpected(seen.error());
  const registry::BufferRecord& record = seen->found.record;
  if (file_bytes > record.size_bytes) {
    return Fail(Code::kInvalidArgument,
                Concat(path, " has ", file_bytes, " bytes, the buffer ", record.size_bytes),
                "load into a larger buffer");
  }
  const GpuUuid gpu{record.gpu};
  const bool here =
      options.way == TransferWay::kHere || (options.way == TransferWay::kAuto && SeesDevice(gpu));
  Result<TransferOutcome> outcome =
      here
          ? WithContext(gpu, [&] { return LoadHere(name, file->get(), file_bytes, options, wait); })
          : TransferByBroker(name, Direction::kLoad, file->get(), options, wait);
  if (outcome) outcome->elapsed_ns = MonotonicNs() - start_ns;
  return outcome;
}

Result<TransferOutcome> Client::Save(std::string_view name, const std::string& path,
                                     const TransferOptions& options, const Wait& wait) {
  const int64_t start_ns = MonotonicNs();
  const Result<Seen> seen = Await(name, [](const auto&) { return Verdict{}; }, wait);
  if (!seen) return std::unexpected(seen.error());
  Result<TemporaryFile> file = TemporaryFile::Create(path);
  if (!file) return std::unexpected(file.error());
  const GpuUuid gpu{seen->found.record.gpu};
  const bool here =
      options.way == TransferWay::kHere || (options.way == TransferWay::kAuto && SeesDevice(gpu));
  Result<TransferOutcome> outcome =
      here ? WithContext(gpu, [&] { return SaveHere(name, file->fd(), options, wait); })
           : TransferByBroker(name, Direction::kSave, file->fd(), options, wait);
  if (!outcome) return outcome;
  if (auto done = file->Commit(); !done) return std::unexpected(done.error());
  outcome->elapsed_ns = MonotonicNs() - start_ns;
  return outcome;
}

// Around attach, copy and detach: a buffer of transport cuipc needs a context for all three.
Result<TransferOutcome> Client::WithContext(
    const GpuUuid& gpu, const std::function<Result<TransferOutcome>()>& transfer) {
  const Result<const CudaApi*> api = Driver();
  if (!api) return std::unexpected(api.error());
  const Result<DeviceInfo> device = FindDevice(gpu);
  if (!device) return std::unexpected(device.error());
  const Result<BorrowedContext> context = BorrowedContext::Push(**api, device->device);
  if (!context) return std::unexpected(context.error());
  return transfer();
}

Result<TransferOutcome> Client::LoadHere(std::string_view name, int file, uint64_t file_bytes,
                                         const TransferOptions& options, const Wait& wait) {
  const AttachOptions attaching{.access = Access::kReadWrite, .any_state = true};
  const Result<Attachment*> attachment = Attach(name, attaching, wait);
  if (!attachment) return std::unexpected(attachment.error());
  const Attachment::Facts& facts = (*attachment)->facts();
  const CudaApi& api = **Driver();  // Attach loaded it.
  const auto load = [&]() -> Result<uint64_t> {
    if (file_bytes > facts.size_bytes) {
      return Fail(Code::kStale, "the buffer was replaced by a smaller one meanwhile");
    }
    if (auto done = ReportContent(**attachment, 0, false, wait); !done) {
      return std::unexpected(done.error());
    }
    Result<void> going;
    const auto progress = [&](uint64_t done_bytes) {
      going = CallProgress(options, wait, done_bytes, file_bytes);
      if (going && done_bytes > 0 && done_bytes < file_bytes) {
        going = ReportContent(**attachment, done_bytes, false, wait);
      }
      return going.has_value();
    };
    Result<uint64_t> copied =
        CopyFileToDevice(api, file, facts.address, file_bytes, options.chunk_bytes, progress);
    if (!going) return std::unexpected(going.error());
    if (!copied) return copied;
    if (*copied != file_bytes) {
      return Fail(Code::kCorrupt,
                  Concat("the file ended after ", *copied, " of ", file_bytes, " bytes"),
                  "something shortened the file while it was read");
    }
    if (auto done = ReportContent(**attachment, *copied, true, wait); !done) {
      return std::unexpected(done.error());
    }
    return copied;
  };
  const Result<uint64_t> loaded = load();
  if (!loaded) GiveContentUp(*attachment);
  (void)Detach(*attachment, {}, /*defer=*/false);
  if (!loaded) return std::unexpected(loaded.error());
  return TransferOutcome{.way = TransferWay::kHere, .bytes = *loaded};
}

void Client::GiveContentUp(Attachment* attachment) {
  // The end of the lease tells the broker that nobody completes the content. A detach does that,
  // unless the process holds the buffer otherwise, too: then the lease is ended and taken again.
  if (CountOf(*attachment) == 1) return;
  const Deadline deadline = Deadline::AfterMs(kAnswerMs);
  const Result<SessionLock> lock = session_.Lock(deadline);
  if (!lock || !session_.connected(*lock) || attachment->orphaned()) return;
  const Lease lease = attachment->lease();
  if (lease.serial != session_.peer(*lock).serial) return;
  EndLease(*lock, lease, deadline);
  Renew(*lock, attachment, /*same_broker=*/true, deadline);
}

Result<TransferOutcome> Client::SaveHere(std::string_view name, int file,
                                         const TransferOptions& options, const Wait& wait) {
  const Result<Attachment*> attachment = Attach(name, AttachOptions{}, wait);
  if (!attachment) return std::unexpected(attachment.error());
  const Attachment::Facts& facts = (*attachment)->facts();
  const CudaApi& api = **Driver();
  const auto save = [&]() -> Result<uint64_t> {
    Result<void> going;
    const auto progress = [&](uint64_t done_bytes) {
      going = CallProgress(options, wait, done_bytes, facts.size_bytes);
      return going.has_value();
    };
    Result<uint64_t> copied =
        CopyDeviceToFile(api, facts.address, facts.size_bytes, file, options.chunk_bytes, progress);
    if (!going) return std::unexpected(going.error());
    return copied;
  };
  const Result<uint64_t> saved = save();
  (void)Detach(*attachment, {}, /*defer=*/false);
  if (!saved) return std::unexpected(saved.error());
  return TransferOutcome{.way = TransferWay::kHere, .bytes = *saved};
}

Result<void> Client::ReportContent(const Attachment& attachment, uint64_t loaded_bytes,
                                   bool complete, const Wait& wait) {
  const Result<SessionLock> lock = session_.Lock(wait.answer);
  if (!lock) return std::unexpected(lock.error());
  if (attachment.orphaned()) return Fail(Code::kOrphaned, "the broker is gone", "load again");
  const Lease lease = attachment.lease();
  const protocol::ContentRequest request{.lease_id = lease.id,
                                         .loaded_bytes = loaded_bytes,
                                         .complete = complete ? 1u : 0u,
                                         .reserved = 0};
  const auto reply =
      session_.Ask<protocol::EmptyReply>(*lock, Kind::kContent, request, wait.answer,
                                         {.loss = Call::Loss::kRepeatable, .serial = lease.serial});
  if (!reply) return std::unexpected(reply.error());
  return {};
}

Result<TransferOutcome> Client::TransferByBroker(std::string_view name, Direction direction,
                                                 int file, const TransferOptions& options,
                                                 const Wait& wait) {
  protocol::TransferRequest request{};
  request.name = protocol::ToNameField(name);
  request.direction = static_cast<uint32_t>(direction);
  request.chunk_bytes = std::min(options.chunk_bytes, kMaxTransferChunkBytes);
  uint64_t serial = 0;
  protocol::TransferStatusRequest question{};
  {
    const Result<SessionLock> lock = session_.Lock(wait.answer);
    if (!lock) return std::unexpected(lock.error());
    const auto started = session_.Ask<protocol::TransferReply>(
        *lock, Kind::kTransfer, request, wait.answer, {.descriptors = {&file, 1}});
    if (!started) return std::unexpected(started.error());
    question.transfer_id = started->transfer_id;
    serial = session_.peer(*lock).serial;
  }
  // Never with the lock held: the caller's progress function may call gpushm.
  const auto ask = [&](bool cancel,
                       const Deadline& deadline) -> Result<protocol::TransferStatusReply> {
    const Result<SessionLock> lock = session_.Lock(deadline);
    if (!lock) return std::unexpected(lock.error());
    question.cancel = cancel ? 1 : 0;
    return session_.Ask<protocol::TransferStatusReply>(
        *lock, Kind::kTransferStatus, question, deadline,
        {.loss = Call::Loss::kRepeatable, .serial = serial});
  };
  const auto stop = [&](const Status& why) -> Result<TransferOutcome> {
    // A cancel gets its own time: the deadline may have passed.
    (void)ask(/*cancel=*/true, Deadline::AfterMs(kAnswerMs));
    return std::unexpected(why);
  };
  for (int step_ms = kFirstStatusStepMs;; step_ms = std::min(2 * step_ms, kLastStatusStepMs)) {
    const auto status = ask(/*cancel=*/false, wait.answer);
    if (!status && status.error().code() == Code::kTimeout) return stop(status.error());
    if (!status) return std::unexpected(status.error());
    const auto go_on = CallProgress(options, wait, status->done_bytes, status->total_bytes);
    if (status->finished != 0) {
      return TransferOutcome{.way = TransferWay::kBroker, .bytes = status->done_bytes};
    }
    if (!go_on) return stop(go_on.error());
    if (wait.answer.Passed()) {
      return stop(Status(Code::kTimeout, "the deadline passed before the transfer had ended",
                         "allow more time"));
    }
    poll(nullptr, 0, std::min(step_ms, wait.answer.RemainingMs()));
  }
}

}  // namespace gpushm::client
