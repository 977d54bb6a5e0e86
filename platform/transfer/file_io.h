// The file's end of a transfer: fills host memory from a file or a stream, and empties it there.
//
// Threads: one; helpers of its own as crew.h.
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

// Called while a stream makes wait; an error ends the waiting.
using StreamTick = std::function<Result<void>()>;

class FileReader {
 public:
  // `threads` and `size_bytes` as in TransferJob. `tick` outlives the reader.
  FileReader(int file, FileWay way, uint32_t threads, uint64_t size_bytes, const StreamTick& tick);

  // Bytes [offset, offset + size_bytes) of the file, or the next ones of the stream. With kDirect
  // the memory must be aligned to, and have room up to, whole blocks of kDirectAlignBytes, and
  // `offset` be a multiple. The memory stays until its End has returned, or the reader has
  // gone.
  void Begin(std::byte* to, uint64_t size_bytes, uint64_t offset);
  // Waits for what was begun first. Fewer bytes than asked for: the end.
  Result<uint64_t> End();
  // Whether anything is read between Begin and End.
  bool ReadsAhead() const { return crew_.helpers() > 0; }
  // Whether a stream has ended. Waits until that is known.
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
  // What one thread reads at a time.
  const uint64_t part_bytes_;
  const StreamTick& tick_;
  std::deque<Reading> readings_;
  Crew crew_;  // The last one: its helpers are at work on readings.
};

class FileWriter {
 public:
  FileWriter(int file, FileWay way, const StreamTick& tick);

  // With kDirect the memory as in FileReader::Begin; what is behind the last byte up to a whole
  // block is zeroed.
  Result<void> Write(std::byte* from, uint64_t size_bytes, uint64_t offset);
  // The file's size is what was written, whatever O_DIRECT rounded up.
  Result<void> Finish(uint64_t size_bytes) const;

 private:
  Result<void> WriteStream(const std::byte* from, uint64_t size_bytes);

  const int file_;
  const FileWay way_;
  const StreamTick& tick_;
};

}  // namespace gpushm
