#include "platform/transfer/file_io.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "platform/base/clock.h"
#include "platform/driver/device.h"
#include "platform/transfer/transfer_engine.h"

namespace gpushm {
namespace {

// Large enough to keep a disk's queue busy.
constexpr uint64_t kDirectPartBytes = uint64_t{4} << 20;
// Small parts are copied as fast as large ones, and the threads end at about the same time.
constexpr uint64_t kCachedPartBytes = uint64_t{1} << 20;
// The most that /proc/sys/fs/pipe-max-size allows without privileges (default value).
constexpr int kPipeBytes = 1 << 20;
constexpr int64_t kTickNs = int64_t{kStreamStepMs} * 1'000'000;

// Waits until the stream has bytes or room, and calls the caller's tick regularly.
class StreamWait {
 public:
  StreamWait(int file, short events, const StreamTick& tick)
      : file_(file), events_(events), tick_(tick) {}

  Result<void> Wait() {
    for (;;) {
      if (MonotonicNs() - last_ns_ >= kTickNs) {
        if (auto done = tick_(); !done) return done;
        last_ns_ = MonotonicNs();
      }
      pollfd waiting{file_, events_, 0};
      const int ready = poll(&waiting, 1, kStreamStepMs);
      if (ready < 0 && errno != EINTR) return FailSystem(errno, "poll");
      if (ready > 0) return {};
    }
  }

 private:
  const int file_;
  const short events_;
  const StreamTick& tick_;
  int64_t last_ns_ = MonotonicNs();
};

// Writing to a pipe whose reader is gone raises SIGPIPE, which would end the application. This
// class removes the signal from this thread before anybody sees it.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigset_t pending;
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoSigpipe() {
    const timespec now{};
    if (!was_pending_) sigtimedwait(&pipe_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t before_{};
  bool was_pending_ = false;
};

// One helper for each part, except the part that the calling thread reads.
uint32_t HelpersWithWork(FileWay way, uint32_t threads, uint64_t size_bytes, uint64_t part_bytes) {
  if (way == FileWay::kStream || size_bytes == 0) return 0;
  return static_cast<uint32_t>(std::min<uint64_t>(threads, (size_bytes - 1) / part_bytes));
}

}  // namespace

FileReader::FileReader(int file, FileWay way, uint32_t threads, uint64_t size_bytes,
                       const StreamTick& tick)
    : file_(file),
      way_(way),
      part_bytes_(way == FileWay::kDirect ? kDirectPartBytes : kCachedPartBytes),
      tick_(tick),
      crew_(HelpersWithWork(way, threads, size_bytes, part_bytes_)) {
  // A larger pipe needs fewer switches to its writer. A descriptor that is not a pipe, or may not
  // grow, stays as it is.
  if (way == FileWay::kStream) fcntl(file, F_SETPIPE_SZ, kPipeBytes);
}

// O_DIRECT reads whole blocks, but still stops at the file's end.
FileReader::Part FileReader::ReadPart(std::byte* to, uint64_t size_bytes, uint64_t offset) const {
  const bool direct = way_ == FileWay::kDirect;
  Part part;
  while (part.bytes < size_bytes) {
    uint64_t left = size_bytes - part.bytes;
    if (direct) left = RoundUp(left, kDirectAlignBytes);
    const ssize_t got =
        pread(file_, to + part.bytes, left, static_cast<off_t>(offset + part.bytes));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) part.error = errno;
    if (got <= 0) break;
    part.bytes += static_cast<uint64_t>(got);
    // Less than whole blocks means the end of the file; the next read would not be aligned.
    if (direct && part.bytes % kDirectAlignBytes != 0) break;
  }
  part.bytes = std::min(part.bytes, size_bytes);
  return part;
}

void FileReader::Begin(std::byte* to, uint64_t size_bytes, uint64_t offset) {
  Reading& reading = readings_.emplace_back(Reading{.to = to, .size_bytes = size_bytes});
  if (way_ == FileWay::kStream) return;
  reading.parts.resize((size_bytes + part_bytes_ - 1) / part_bytes_);
  reading.batch.parts = reading.parts.size();
  reading.batch.work = [this, &reading, offset](size_t i) {
    const uint64_t at = i * part_bytes_;
    reading.parts[i] =
        ReadPart(reading.to + at, std::min(part_bytes_, reading.size_bytes - at), offset + at);
  };
  crew_.Start(&reading.batch);
}

Result<uint64_t> FileReader::End() {
  Reading& reading = readings_.front();
  if (way_ == FileWay::kStream) {
    const Reading whole = std::move(reading);
    readings_.pop_front();
    return ReadStream(whole.to, whole.size_bytes);
  }
  crew_.Finish(&reading.batch);
  const std::vector<Part> parts = std::move(reading.parts);
  const uint64_t size_bytes = reading.size_bytes;
  readings_.pop_front();
  uint64_t done = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].error != 0) return FailSystem(parts[i].error, "read the file");
    done += parts[i].bytes;
    // Bytes behind a gap in the middle do not count: the file was shortened meanwhile.
    if (done < std::min((i + 1) * part_bytes_, size_bytes)) break;
  }
  return done;
}

Result<uint64_t> FileReader::ReadStream(std::byte* to, uint64_t size_bytes) {
  StreamWait waiting(file_, POLLIN, tick_);
  uint64_t done = 0;
  while (done < size_bytes) {
    if (auto ready = waiting.Wait(); !ready) return std::unexpected(ready.error());
    const ssize_t got = read(file_, to + done, size_bytes - done);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) return FailSystem(errno, "read the stream");
    if (got == 0) break;
    done += static_cast<uint64_t>(got);
  }
  return done;
}

Result<bool> FileReader::AtEnd() {
  std::byte one{};
  const Result<uint64_t> got = ReadStream(&one, 1);
  if (!got) return std::unexpected(got.error());
  return *got == 0;
}

FileWriter::FileWriter(int file, FileWay way, const StreamTick& tick)
    : file_(file), way_(way), tick_(tick) {
  if (way == FileWay::kStream) fcntl(file, F_SETPIPE_SZ, kPipeBytes);
}

Result<void> FileWriter::Write(std::byte* from, uint64_t size_bytes, uint64_t offset) {
  if (way_ == FileWay::kStream) return WriteStream(from, size_bytes);
  uint64_t whole = size_bytes;
  if (way_ == FileWay::kDirect) {
    whole = RoundUp(size_bytes, kDirectAlignBytes);
    std::memset(from + size_bytes, 0, whole - size_bytes);
  }
  uint64_t done = 0;
  while (done < whole) {
    const ssize_t put = pwrite(file_, from + done, whole - done, static_cast<off_t>(offset + done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return FailSystem(errno, "write the file");
    done += static_cast<uint64_t>(put);
  }
  return {};
}

Result<void> FileWriter::WriteStream(const std::byte* from, uint64_t size_bytes) {
  const NoSigpipe quiet;
  StreamWait waiting(file_, POLLOUT, tick_);
  struct stat info{};
  // A file is always ready, and never gets the flag that a write must not wait, because some files
  // refuse it permanently.
  const bool is_file = fstat(file_, &info) == 0 && (S_ISREG(info.st_mode) || S_ISBLK(info.st_mode));
  bool can_try = !is_file;  // Whether the kernel can write what fits without waiting.
  uint64_t done = 0;
  while (done < size_bytes) {
    if (auto ready = waiting.Wait(); !ready) return ready;
    // A pipe that is ready takes this much without blocking; a larger write might never return.
    const uint64_t left = size_bytes - done;
    const iovec part{const_cast<std::byte*>(from + done),
                     can_try || is_file ? left : std::min<uint64_t>(left, PIPE_BUF)};
    const ssize_t put = can_try ? pwritev2(file_, &part, 1, -1, RWF_NOWAIT)
                                : write(file_, part.iov_base, part.iov_len);
    if (put < 0 && can_try &&
        (errno == EOPNOTSUPP || errno == EINVAL || errno == ENOSYS || errno == ESPIPE)) {
      can_try = false;
      continue;
    }
    if (put < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (put < 0) return FailSystem(errno, "write the stream");
    done += static_cast<uint64_t>(put);
  }
  return {};
}

Result<void> FileWriter::Finish(uint64_t size_bytes) const {
  if (way_ == FileWay::kDirect && ftruncate(file_, static_cast<off_t>(size_bytes)) != 0) {
    return FailSystem(errno, "ftruncate");
  }
  return {};
}

}  // namespace gpushm
