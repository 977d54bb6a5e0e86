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

// The capsule of DLPack 1.0 for a consumer that works on `stream`.
nb::object ToDlpack(const Array& array, const nb::object& stream);
// The capsule of `__dlpack__`; its parameters are those of the Python array API standard.
nb::object ToDlpack(const Array& array, nb::object stream, nb::object max_version,
                    nb::object dl_device, nb::object copy);

void BindArray(nb::module_& module);

// Lets frameworks take a `T` as the array `view(t)`.
template <typename T, typename View, typename Device>
void BindAsArray(nb::class_<T>* type, View view, Device device, const char* dlpack_text,
                 const char* interface_text) {
  type->def(
          "__dlpack__",
          [view](const T& t, nb::object stream, nb::object max_version, nb::object dl_device,
                 nb::object copy) {
            return ToDlpack(view(t), stream, max_version, dl_device, copy);
          },
          nb::kw_only(), nb::arg("stream") = nb::none(), nb::arg("max_version") = nb::none(),
          nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none(),
          nb::sig(
              "def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | "
              "None = None, dl_device: tuple[int, int] | None = None, copy: bool | None = None) "
              "-> object"),
          dlpack_text)
      .def(
          "__dlpack_device__", [device](const T& t) { return nb::make_tuple(2, device(t)); },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"), "(2, device): a CUDA GPU.")
      .def_prop_ro(
          "__cuda_array_interface__",
          [view](const T& t) -> nb::object {
            return nb::cast(view(t)).attr("__cuda_array_interface__");
          },
          nb::sig("def __cuda_array_interface__(self) -> dict[str, object]"), interface_text);
}

}  // namespace gpushm::python
