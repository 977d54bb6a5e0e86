// Where the bytes of tensors go: from files into a buffer, and from a buffer into a file.
// Threads: pure functions; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "contract/tensors/safetensors.h"
#include "contract/tensors/table.h"
#include "contract/tensors/tensor.h"
#include "platform/base/status.h"

namespace gpushm::tensors {

// One range of bytes that moves as a whole.
struct Segment {
  uint32_t file = 0;         // Index of the file, as given to PlanLoad; 0 of a save.
  uint64_t file_offset = 0;  // From the start of the file.
  uint64_t buffer_offset = 0;
  uint64_t bytes = 0;  // Not 0.

  friend bool operator==(const Segment&, const Segment&) = default;
};

struct LoadPlan {
  // In the order of their bytes in the buffer. Offsets are multiples of kTensorAlignBytes.
  std::vector<Tensor> tensors{};
  // Of all files. If several files have a key, the value of the first one counts.
  Metadata metadata{};
  // In the same order. Tensors that follow each other without a gap in the file and in the buffer
  // share one.
  std::vector<Segment> segments{};
  // The size that the buffer needs; 0 if all tensors are empty.
  uint64_t buffer_bytes = 0;
};

// Lays out the tensors of all files, in the order of the files and then of their bytes. Callers
// give the files in the order of their names. Empty tensors have an offset but no segment.
// kInvalidArgument: two files have a tensor of one name. kExhausted: more than limits::kTensors,
// limits::kTensorFiles or limits::kBufferBytes.
Result<LoadPlan> PlanLoad(std::vector<SafetensorsFile> files);

struct SavePlan {
  // What the file begins with: the length of the header, and the header.
  std::string head{};
  // In the order of the file and of the buffer.
  std::vector<Segment> segments{};
  uint64_t file_bytes = 0;
};

// A safetensors file of these tensors, in the order of their bytes in the buffer. Tensors that
// share bytes in the buffer each have their own in the file. kInvalidArgument: a tensor has the
// name
// "__metadata__". kExhausted: the header exceeds limits::kSafetensorsHeaderBytes, or the data
// exceeds 2^62 bytes.
Result<SavePlan> PlanSave(const TensorTable& table);

}  // namespace gpushm::tensors
