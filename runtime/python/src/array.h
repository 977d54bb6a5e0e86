// Typed views of device memory, and how frameworks take them: DLPack and __cuda_array_interface__.
//
// Threads: with the GIL held, except for the deleters of DLPack, which any thread may call. They
// make no CUDA call.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "driver.h"
#include "resource.h"

namespace gpushm::python {

namespace nb = nanobind;

// A type of elements, by any of its names: "F16", "float16".
uint32_t ParseDType(const std::string& name);
// "float16", as NumPy and PyTorch name it.
const char* DTypeName(uint32_t dtype);
// Bytes of `shape` elements. Throws ValueError if that is not a whole number, or overflows.
uint64_t DTypeBytes(uint32_t dtype, const std::vector<uint64_t>& shape);

// Mapped memory that arrays share. The streams on which consumers use it hold up its release.
class Memory : public Resource {
 public:
  // Called with the GIL held.
  void UsedOn(Stream stream);
  const std::vector<Stream>& streams() const { return streams_; }

 private:
  std::vector<Stream> streams_;
};

struct Array {
  std::shared_ptr<Memory> memory;
  uint64_t address = 0;
  uint32_t dtype = 0;  // gpushm_dtype
  int device = 0;
  bool readonly = true;
  // A stream whose present work completes the bytes; null: they are complete.
  Stream producer = nullptr;
  std::vector<uint64_t> shape{};  // Contiguous, the slowest dimension first.

  uint64_t bytes() const { return DTypeBytes(dtype, shape); }
};

// The capsule of `__dlpack__`; its parameters are those of the Python array API standard.
nb::object ToDlpack(const Array& array, nb::object stream, nb::object max_version,
                    nb::object dl_device, nb::object copy);

void BindArray(nb::module_& module);

}  // namespace gpushm::python
