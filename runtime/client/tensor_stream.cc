#include "runtime/client/tensor_stream.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "platform/transfer/file_io.h"

namespace gpushm::client {
namespace {

constexpr uint64_t kStreamBytes = uint64_t{1} << 20;

}  // namespace

Result<TensorStream> TensorStream::Start(const LoadSource& source) {
  auto state = std::make_unique<State>(source);
  std::array<int, 2> ends{-1, -1};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return FailSystem(errno, "make a pipe");
  state->reader.own.Reset(ends[0]);
  state->reader.fd = ends[0];
  state->reader.plan = {FileWay::kStream, FileReason::kInOrder};
  state->reader.name = source.name;
  state->writer.Reset(ends[1]);
  state->crew = std::make_unique<Crew>(1);
  if (state->crew->helpers() == 0) {
    return Fail(Code::kExhausted, "the system allows this process no further thread",
                "raise the container's limit of processes (pids)");
  }
  state->batch.parts = 1;
  state->batch.work = [of = state.get()](size_t) { of->Write(); };
  state->crew->Start(&state->batch);
  return TensorStream(std::move(state));
}

TensorStream::~TensorStream() {
  if (state_) (void)Finish();
}

Result<void> TensorStream::Finish() {
  state_->stop.store(true, std::memory_order_relaxed);
  state_->reader.own.Reset();
  if (state_->crew) {
    state_->crew->Finish(&state_->batch);
    state_->crew.reset();
  }
  state_->writer.Reset();
  return failed() ? state_->result : Result<void>();
}

void TensorStream::State::Write() {
  result = TryWrite();
  if (result) {
    writer.Reset();  // The broker sees the end of the pipe.
    return;
  }
  // Without a reader, the load has ended, and the broker knows why.
  const bool reader_gone =
      stop.load(std::memory_order_relaxed) || result.error().sys_errno() == EPIPE;
  if (!reader_gone) failed.store(true, std::memory_order_release);
}

Result<void> TensorStream::State::TryWrite() {
  const StreamTick tick = [this]() -> Result<void> {
    if (!stop.load(std::memory_order_relaxed)) return {};
    return Fail(Code::kBusy, "the load has ended");
  };
  FileWriter to(writer.get(), FileWay::kStream, tick);
  std::vector<std::byte> chunk(kStreamBytes);
  uint64_t written = 0;
  const auto pad = [&](uint64_t end) -> Result<void> {
    if (written < end) std::memset(chunk.data(), 0, std::min(end - written, kStreamBytes));
    while (written < end) {
      const uint64_t bytes = std::min(end - written, kStreamBytes);
      if (auto done = to.Write(chunk.data(), bytes, 0); !done) return done;
      written += bytes;
    }
    return {};
  };
  for (const LoadSource::Part& part : source.parts) {
    // O_DIRECT needs aligned reads, which these are not.
    const int flags = fcntl(part.file.fd, F_GETFL);
    if (flags >= 0 && (flags & O_DIRECT) != 0) fcntl(part.file.fd, F_SETFL, flags & ~O_DIRECT);
    for (const TransferSegment& segment : part.segments) {
      if (auto done = pad(segment.buffer_offset); !done) return done;
      for (uint64_t at = 0; at < segment.bytes;) {
        const ssize_t got =
            pread(part.file.fd, chunk.data(), std::min(segment.bytes - at, kStreamBytes),
                  static_cast<off_t>(segment.file_offset + at));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return FailSystem(errno, Concat("read ", part.file.name));
        if (got == 0) {
          return Fail(Code::kCorrupt, Concat(part.file.name, " was shortened during the load"),
                      "load it again");
        }
        if (auto done = to.Write(chunk.data(), static_cast<uint64_t>(got), 0); !done) return done;
        at += static_cast<uint64_t>(got);
        written += static_cast<uint64_t>(got);
      }
    }
  }
  return pad(source.buffer_bytes);
}

}  // namespace gpushm::client
