#include "runtime/client/tensor_sink.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "platform/transfer/file_io.h"

namespace gpushm::client {
namespace {

constexpr uint64_t kChunkBytes = uint64_t{1} << 20;
constexpr int kStopMs = 50;  // How soon the helper notices that it must stop.

}  // namespace

Result<TensorSink> TensorSink::Start(const TensorsToSave& tensors, const OpenFile& to) {
  auto state = std::make_unique<State>(tensors, to);
  std::array<int, 2> ends{-1, -1};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return FailSystem(errno, "make a pipe");
  state->reader.Reset(ends[0]);
  state->writer.own.Reset(ends[1]);
  state->writer.fd = ends[1];
  state->writer.plan = {FileWay::kStream, FileReason::kInOrder};
  state->writer.name = to.name;
  state->crew = std::make_unique<Crew>(1);
  if (state->crew->helpers() == 0) {
    return Fail(Code::kExhausted, "the system allows this process no further thread",
                "raise the container's limit of processes (pids)");
  }
  state->batch.parts = 1;
  state->batch.work = [of = state.get()](size_t) { of->Write(); };
  state->crew->Start(&state->batch);
  return TensorSink(std::move(state));
}

TensorSink::~TensorSink() {
  if (state_) (void)Finish(/*stop=*/true);
}

Result<void> TensorSink::Finish(bool stop) {
  if (!state_->crew) return state_->result;
  if (stop) state_->stop.store(true, std::memory_order_relaxed);
  state_->writer.own.Reset();  // The broker has closed its own: the helper sees the end.
  state_->crew->Finish(&state_->batch);
  state_->crew.reset();
  return state_->result;
}

void TensorSink::State::Write() {
  result = TryWrite();
  if (!result) failed.store(true, std::memory_order_release);
}

Result<void> TensorSink::State::Read(std::byte* bytes, uint64_t size_bytes) {
  for (uint64_t at = 0; at < size_bytes;) {
    pollfd readable{.fd = reader.get(), .events = POLLIN, .revents = 0};
    if (stop.load(std::memory_order_relaxed)) return Fail(Code::kBusy, "the save has ended");
    if (poll(&readable, 1, kStopMs) <= 0) continue;
    const ssize_t got = read(reader.get(), bytes + at, size_bytes - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FailSystem(errno, "read what the broker saves");
    if (got == 0) {
      return Fail(Code::kUnavailable, "the broker's save ended before the last tensor",
                  "save it again");
    }
    at += static_cast<uint64_t>(got);
  }
  return {};
}

Result<void> TensorSink::State::TryWrite() {
  const StreamTick tick = [this]() -> Result<void> {
    if (!stop.load(std::memory_order_relaxed)) return {};
    return Fail(Code::kBusy, "the save has ended");
  };
  // O_DIRECT needs aligned writes, which these are not.
  const int flags = fcntl(to.fd, F_GETFL);
  if (flags >= 0 && (flags & O_DIRECT) != 0) fcntl(to.fd, F_SETFL, flags & ~O_DIRECT);
  FileWriter file(to.fd, to.is_stream() ? FileWay::kStream : FileWay::kCached, tick);
  std::vector<std::byte> chunk(kChunkBytes);
  for (uint64_t at = 0; at < tensors.head.size();) {
    const uint64_t bytes = std::min(tensors.head.size() - at, kChunkBytes);
    std::copy_n(std::as_bytes(std::span(tensors.head)).begin() + static_cast<ptrdiff_t>(at), bytes,
                chunk.begin());
    if (auto done = file.Write(chunk.data(), bytes, at); !done) return done;
    at += bytes;
  }
  uint64_t position = 0;  // In the buffer.
  for (const TransferSegment& segment : tensors.segments) {
    if (segment.buffer_offset < position) {
      return Fail(Code::kUnsupported, "the description has tensors that share bytes",
                  "save it in a container that sees the GPU");
    }
    while (position < segment.buffer_offset) {  // What lies between the tensors.
      const uint64_t bytes = std::min(segment.buffer_offset - position, kChunkBytes);
      if (auto done = Read(chunk.data(), bytes); !done) return done;
      position += bytes;
    }
    for (uint64_t at = 0; at < segment.bytes;) {
      const uint64_t bytes = std::min(segment.bytes - at, kChunkBytes);
      if (auto done = Read(chunk.data(), bytes); !done) return done;
      if (auto done = file.Write(chunk.data(), bytes, segment.file_offset + at); !done) return done;
      at += bytes;
      position += bytes;
    }
  }
  // The broker's child ends with the last byte, not with an error because nobody reads.
  for (;;) {
    const auto rest = Read(chunk.data(), 1);
    if (!rest) return rest.error().code() == Code::kUnavailable ? Result<void>() : rest;
  }
}

}  // namespace gpushm::client
