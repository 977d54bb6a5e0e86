// The file's end of a transfer: fills host memory from a file or a stream, and empties it there.
//
// Threads: one; helpers of its own as crew.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "runtime/base/status.h"
#include "runtime/client/crew.h"
#include "runtime/client/file_way.h"

namespace gpushm {

// Called while a stream makes wait; an error ends the waiting.
using StreamTick = std::function<Result<void>()>;

class FileReader {
 public:
  // `threads` as in TransferJob. `tick` outlives the reader.
  FileReader(int file, FileWay way, uint32_t threads, const StreamTick& tick);

  // Bytes [offset, offset + size_bytes) of the file, or the next ones of the stream. Fewer than
  // asked for: the end. With kDirect the memory must be aligned to, and have room up to, whole
  // blocks of kDirectAlignBytes, and `offset` be a multiple.
  Result<uint64_t> Read(std::byte* to, uint64_t size_bytes, uint64_t offset);
  // Whether a stream has ended. Waits until that is known.
  Result<bool> AtEnd();

 private:
  Result<uint64_t> ReadFile(std::byte* to, uint64_t size_bytes, uint64_t offset);
  Result<uint64_t> ReadStream(std::byte* to, uint64_t size_bytes);

  const int file_;
  const FileWay way_;
  const StreamTick& tick_;
  Crew crew_;
};

class FileWriter {
 public:
  FileWriter(int file, FileWay way, const StreamTick& tick);

  // With kDirect as FileReader::Read; what is behind the last byte up to a whole block is zeroed.
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
