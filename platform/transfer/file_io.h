// The file's side of a transfer: fills host memory from a file or a stream, and writes host memory
// to one.
//
// Threads: one; it has helpers of its own (crew.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "platform/base/status.h"
#include "platform/transfer/crew.h"
#include "platform/transfer/file_way.h"

namespace gpushm {

// Called while a stream has no data yet; an error ends the wait.
using StreamTick = std::function<Result<void>()>;

class FileReader {
 public:
  // `threads` and `size_bytes` as in TransferJob. `tick` must outlive the reader.
  FileReader(int file, FileWay way, uint32_t threads, uint64_t size_bytes, const StreamTick& tick);

  // Begins to read bytes [offset, offset + size_bytes) of the file, or the next ones of the stream.
  // With kDirect, `offset` and the memory must be multiples of kDirectAlignBytes, and the memory
  // must have room up to a whole block. The memory must stay valid until the matching End has
  // returned or the reader is destroyed.
  void Begin(std::byte* to, uint64_t size_bytes, uint64_t offset);
  // Waits for the oldest read that was begun. Fewer bytes than requested mean the end of the file.
  Result<uint64_t> End();
  // Whether End would return at once.
  bool IsReady() { return crew_.HasEnded(readings_.front().batch); }
  // Whether the reader reads anything between Begin and End.
  bool ReadsAhead() const { return crew_.helpers() > 0; }
  // Whether a stream has ended. Blocks until that is known.
  Result<bool> AtEnd();

 private:
  struct Part {
    uint64_t bytes = 0;
    int error = 0;
  };
  struct Reading {
    std::byte* to = nullptr;
    uint64_t size_bytes = 0;
    std::vector<Part> parts{};
    Crew::Batch batch{};
  };

  Part ReadPart(std::byte* to, uint64_t size_bytes, uint64_t offset) const;
  Result<uint64_t> ReadStream(std::byte* to, uint64_t size_bytes);

  const int file_;
  const FileWay way_;
  // Bytes that one thread reads at a time.
  const uint64_t part_bytes_;
  const StreamTick& tick_;
  std::deque<Reading> readings_;
  Crew crew_;  // Declared last: its helpers work on readings_.
};

class FileWriter {
 public:
  FileWriter(int file, FileWay way, const StreamTick& tick);

  // With kDirect, the memory must be as in FileReader::Begin; the bytes between the last one and
  // the end of its block are zeroed.
  Result<void> Write(std::byte* from, uint64_t size_bytes, uint64_t offset);
  // Sets the file's size to the bytes written, without what O_DIRECT rounded up.
  Result<void> Finish(uint64_t size_bytes) const;

 private:
  Result<void> WriteStream(const std::byte* from, uint64_t size_bytes);

  const int file_;
  const FileWay way_;
  const StreamTick& tick_;
};

}  // namespace gpushm
