#include "array.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "call.h"

using namespace nanobind::literals;

namespace gpushm::python {
namespace {

// ---- types of elements

struct DType {
  uint32_t number;      // gpushm_dtype
  const char* name;     // NumPy's and PyTorch's.
  const char* typestr;  // Of __cuda_array_interface__; null: it has none.
  uint8_t code;         // Of DLPack.
  uint8_t bits;
  uint32_t minor;  // DLPack 1.minor introduced the code.
};

// dlpack.h: DLDataTypeCode.
constexpr uint8_t kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kComplex = 5, kBool = 6;
constexpr uint8_t kF8E4M3 = 10, kF8E4M3Fnuz = 11, kF8E5M2 = 12, kF8E5M2Fnuz = 13, kF8E8M0 = 14;
constexpr uint8_t kPacked = 255;  // Elements that share bytes: they reach a framework as bytes.

constexpr auto kDTypes = std::to_array<DType>({
    {GPUSHM_DTYPE_BOOL, "bool", "|b1", kBool, 8, 0},
    {GPUSHM_DTYPE_U8, "uint8", "|u1", kUInt, 8, 0},
    {GPUSHM_DTYPE_I8, "int8", "|i1", kInt, 8, 0},
    {GPUSHM_DTYPE_F8_E5M2, "float8_e5m2", nullptr, kF8E5M2, 8, 1},
    {GPUSHM_DTYPE_F8_E4M3, "float8_e4m3fn", nullptr, kF8E4M3, 8, 1},
    {GPUSHM_DTYPE_F8_E8M0, "float8_e8m0fnu", nullptr, kF8E8M0, 8, 1},
    {GPUSHM_DTYPE_F8_E4M3FNUZ, "float8_e4m3fnuz", nullptr, kF8E4M3Fnuz, 8, 1},
    {GPUSHM_DTYPE_F8_E5M2FNUZ, "float8_e5m2fnuz", nullptr, kF8E5M2Fnuz, 8, 1},
    {GPUSHM_DTYPE_I16, "int16", "<i2", kInt, 16, 0},
    {GPUSHM_DTYPE_U16, "uint16", "<u2", kUInt, 16, 0},
    {GPUSHM_DTYPE_F16, "float16", "<f2", kFloat, 16, 0},
    {GPUSHM_DTYPE_BF16, "bfloat16", nullptr, kBfloat, 16, 0},
    {GPUSHM_DTYPE_I32, "int32", "<i4", kInt, 32, 0},
    {GPUSHM_DTYPE_U32, "uint32", "<u4", kUInt, 32, 0},
    {GPUSHM_DTYPE_F32, "float32", "<f4", kFloat, 32, 0},
    {GPUSHM_DTYPE_C64, "complex64", "<c8", kComplex, 64, 0},
    {GPUSHM_DTYPE_F64, "float64", "<f8", kFloat, 64, 0},
    {GPUSHM_DTYPE_I64, "int64", "<i8", kInt, 64, 0},
    {GPUSHM_DTYPE_U64, "uint64", "<u8", kUInt, 64, 0},
    {GPUSHM_DTYPE_F4, "float4_e2m1fn", nullptr, kPacked, 4, 0},
    {GPUSHM_DTYPE_F6_E2M3, "float6_e2m3fn", nullptr, kPacked, 6, 0},
    {GPUSHM_DTYPE_F6_E3M2, "float6_e3m2fn", nullptr, kPacked, 6, 0},
});

const DType& Known(uint32_t number) {
  const auto found = std::find_if(kDTypes.begin(), kDTypes.end(),
                                  [&](const DType& dtype) { return dtype.number == number; });
  if (found == kDTypes.end()) {
    Raise(GPUSHM_UNSUPPORTED, "unknown type of elements " + std::to_string(number),
          "update gpushm: a later version wrote this tensor");
  }
  return *found;
}

// ---- DLPack's structures (dlpack.h, version 1.1)

struct DLTensor {
  void* data;
  int32_t device_type;
  int32_t device_id;
  int32_t ndim;
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

struct DLManagedTensor {
  DLTensor tensor;
  void* context;
  void (*deleter)(DLManagedTensor*);
};

struct DLManagedTensorVersioned {
  uint32_t major;
  uint32_t minor;
  void* context;
  void (*deleter)(DLManagedTensorVersioned*);
  uint64_t flags;
  DLTensor tensor;
};

constexpr int32_t kCpu = 1, kCuda = 2;
constexpr uint64_t kReadOnly = 1, kIsCopied = 2;
constexpr uint32_t kMajor = 1, kMinor = 1;

// What a capsule owns: the description of the tensor, and the memory.
template <typename Managed>
struct Exported {
  Managed managed{};
  std::vector<int64_t> numbers{};    // Shape, then strides.
  std::shared_ptr<Memory> memory{};  // Of the device; or else
  std::unique_ptr<void, void (*)(void*)> host{nullptr, std::free};

  static void Delete(Managed* managed) { delete static_cast<Exported*>(managed->context); }
};

template <typename Managed>
constexpr const char* kCapsuleName =
    std::is_same_v<Managed, DLManagedTensor> ? "dltensor" : "dltensor_versioned";

template <typename Managed>
void DestroyCapsule(PyObject* capsule) {
  // A consumer renames the capsule that it takes, and then calls the deleter itself.
  if (PyCapsule_IsValid(capsule, kCapsuleName<Managed>) == 0) return;
  auto* const managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, kCapsuleName<Managed>));
  managed->deleter(managed);
}

template <typename Managed>
nb::object MakeCapsule(const Array& array, const DType& dtype, bool to_host) {
  auto owned = std::make_unique<Exported<Managed>>();
  const size_t rank = array.shape.size();
  owned->numbers.resize(2 * rank);
  int64_t stride = 1;
  for (size_t i = rank; i-- > 0;) {
    owned->numbers[i] = static_cast<int64_t>(array.shape[i]);
    owned->numbers[rank + i] = stride;
    stride *= std::max<int64_t>(1, owned->numbers[i]);
  }
  void* data = reinterpret_cast<void*>(array.address);
  if (to_host) {
    constexpr size_t kAlignment = 256;  // As DLPack asks for.
    const size_t bytes = array.bytes();
    owned->host.reset(std::aligned_alloc(kAlignment, (bytes / kAlignment + 1) * kAlignment));
    if (owned->host == nullptr) throw std::bad_alloc();
    data = owned->host.get();
    if (bytes != 0) {
      Released([&] { CopyToHost(array.device, data, array.address, bytes, array.producer); });
    }
  } else {
    owned->memory = array.memory;
  }
  owned->managed.context = owned.get();
  owned->managed.deleter = Exported<Managed>::Delete;
  if constexpr (std::is_same_v<Managed, DLManagedTensorVersioned>) {
    owned->managed.major = kMajor;
    owned->managed.minor = kMinor;
    owned->managed.flags = to_host ? kIsCopied : array.readonly ? kReadOnly : 0;
  }
  owned->managed.tensor = DLTensor{.data = data,
                                   .device_type = to_host ? kCpu : kCuda,
                                   .device_id = to_host ? 0 : array.device,
                                   .ndim = static_cast<int32_t>(rank),
                                   .code = dtype.code,
                                   .bits = dtype.bits,
                                   .lanes = 1,
                                   .shape = owned->numbers.data(),
                                   .strides = owned->numbers.data() + rank,
                                   .byte_offset = 0};
  PyObject* const capsule =
      PyCapsule_New(&owned->managed, kCapsuleName<Managed>, DestroyCapsule<Managed>);
  if (capsule == nullptr) throw nb::python_error();
  owned.release();
  return nb::steal(capsule);
}

// The rules of DLPack for the stream of a consumer: what it gets is complete for that stream.
void PrepareFor(const Array& array, const nb::object& stream) {
  constexpr int64_t kNoSynchronisation = -1;
  const int64_t number = stream.is_none() ? 1 : nb::cast<int64_t>(stream);
  if (number == kNoSynchronisation) return;
  if (number == 0) {
    throw nb::value_error(
        "invalid stream 0: DLPack's number of the default stream is 1, or 2 for "
        "the default stream of each thread");
  }
  const auto consumer = reinterpret_cast<Stream>(number);
  if (array.producer != nullptr && array.producer != consumer) {
    Released([&] { OrderAfter(array.device, consumer, array.producer); });
  }
  // A consumer that names no stream has used none: None is also what a mere look at an array gives.
  if (!stream.is_none()) array.memory->UsedOn(consumer);
}

bool WantsHost(const Array& array, const nb::object& dl_device, const nb::object& copy) {
  const bool to_host = !dl_device.is_none() && nb::cast<int>(dl_device[nb::int_(0)]) == kCpu;
  const bool same = dl_device.is_none() || (nb::cast<int>(dl_device[nb::int_(0)]) == kCuda &&
                                            nb::cast<int>(dl_device[nb::int_(1)]) == array.device);
  if (!to_host && !same) {
    throw nb::buffer_error("cannot export to that device: only to the array's own, or to the host");
  }
  if (!copy.is_none() && nb::cast<bool>(copy) != to_host) {
    throw nb::buffer_error(to_host
                               ? "an array in GPU memory reaches the host only by a copy: leave "
                                 "out copy=False"
                               : "an array is exported without a copy: copy it in your framework");
  }
  return to_host;
}

std::vector<uint64_t> ByteShape(const Array& array) {
  std::vector<uint64_t> shape = array.shape;
  const uint32_t bits = Api().dtype_bits_(array.dtype);
  if (bits == 8) return shape;
  if (shape.empty()) return {array.bytes()};
  if (shape.back() * bits % 8 != 0) return {array.bytes()};
  shape.back() = shape.back() * bits / 8;
  return shape;
}

nb::dict CudaArrayInterface(const Array& array) {
  const DType& dtype = Known(array.dtype);
  if (dtype.typestr == nullptr) {
    // As for any missing attribute: consumers then try DLPack.
    throw nb::attribute_error((std::string("__cuda_array_interface__ has no type for ") +
                               dtype.name + ": use DLPack, or .bytes()")
                                  .c_str());
  }
  nb::list shape;
  for (const uint64_t dimension : array.shape) shape.append(dimension);
  nb::dict interface;
  interface["shape"] = nb::tuple(shape);
  interface["typestr"] = dtype.typestr;
  interface["data"] = nb::make_tuple(array.bytes() == 0 ? 0 : array.address, array.readonly);
  interface["strides"] = nb::none();
  interface["version"] = 3;
  interface["stream"] = array.producer == nullptr
                            ? nb::object(nb::none())
                            : nb::object(nb::int_(reinterpret_cast<uintptr_t>(array.producer)));
  return interface;
}

}  // namespace

uint32_t ParseDType(const std::string& name) {
  for (const DType& dtype : kDTypes) {
    if (name == dtype.name) return dtype.number;
  }
  for (const DType& dtype : kDTypes) {
    if (name == Api().dtype_name_(dtype.number)) return dtype.number;
  }
  throw nb::value_error(
      ("unknown dtype \"" + name + "\": for example \"float16\" or \"F16\"").c_str());
}

const char* DTypeName(uint32_t dtype) { return Known(dtype).name; }

uint64_t DTypeBytes(uint32_t dtype, const std::vector<uint64_t>& shape) {
  uint64_t bits = Known(dtype).bits;
  for (const uint64_t dimension : shape) {
    if (__builtin_mul_overflow(bits, dimension, &bits))
      throw nb::value_error("the shape is too large");
  }
  if (bits % 8 != 0) throw nb::value_error("the elements do not fill whole bytes");
  return bits / 8;
}

void Memory::UsedOn(Stream stream) {
  if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) {
    streams_.push_back(stream);
  }
}

namespace {

// Throws BufferError if a consumer of DLPack 1.`minor` has no such type.
void CheckType(const DType& dtype, uint32_t minor) {
  if (dtype.code != kPacked && dtype.minor <= minor) return;
  throw nb::buffer_error((std::string("this consumer's DLPack has no type for ") + dtype.name +
                          ": take .bytes(), and view it there")
                             .c_str());
}

}  // namespace

nb::object ToDlpack(const Array& array, const nb::object& stream) {
  const DType& dtype = Known(array.dtype);
  CheckType(dtype, 0);
  PrepareFor(array, stream);
  return MakeCapsule<DLManagedTensorVersioned>(array, dtype, /*to_host=*/false);
}

nb::object ToDlpack(const Array& array, nb::object stream, nb::object max_version,
                    nb::object dl_device, nb::object copy) {
  const DType& dtype = Known(array.dtype);
  const bool to_host = WantsHost(array, dl_device, copy);
  const bool versioned =
      !max_version.is_none() && nb::cast<uint32_t>(max_version[nb::int_(0)]) >= 1;
  const uint32_t minor = versioned ? nb::cast<uint32_t>(max_version[nb::int_(1)]) : 0;
  CheckType(dtype, minor);
  if (!to_host) {
    if (!versioned && array.readonly) {
      throw nb::buffer_error(
          "the array is read-only, and this consumer's DLPack (before 1.0) cannot say so: take "
          ".unsafe_writable(), and never write to it");
    }
    PrepareFor(array, stream);
  }
  return versioned ? MakeCapsule<DLManagedTensorVersioned>(array, dtype, to_host)
                   : MakeCapsule<DLManagedTensor>(array, dtype, to_host);
}

void BindArray(nb::module_& module) {
  nb::class_<Array>(
      module, "Array",
      "A typed view of GPU memory: contiguous, without a copy.\n\n"
      "Frameworks take it by DLPack (`torch.from_dlpack`, `cupy.from_dlpack`, "
      "`jax.dlpack.from_dlpack`) or by `__cuda_array_interface__`. While an array, or "
      "what a framework made of it, lives, its memory stays mapped. Any thread may "
      "use it.")
      .def_prop_ro(
          "shape",
          [](const Array& a) {
            nb::list shape;
            for (const uint64_t dimension : a.shape) shape.append(dimension);
            return nb::tuple(shape);
          },
          nb::sig("def shape(self) -> tuple[int, ...]"),
          "Number of elements in each dimension, the slowest first.")
      .def_prop_ro(
          "dtype", [](const Array& a) { return DTypeName(a.dtype); },
          "Type of the elements, as NumPy and PyTorch name it: \"float16\".")
      .def_prop_ro(
          "ndim", [](const Array& a) { return a.shape.size(); }, "Number of dimensions.")
      .def_prop_ro("nbytes", &Array::bytes, "Size in bytes.")
      .def_prop_ro(
          "ptr", [](const Array& a) { return a.address; },
          "Device address of the first byte, valid while the array lives.")
      .def_prop_ro(
          "device", [](const Array& a) { return a.device; },
          "Ordinal, in this process, of the GPU that holds the bytes.")
      .def_prop_ro(
          "readonly", [](const Array& a) { return a.readonly; },
          "Whether a store by a kernel would be an illegal access.")
      .def(
          "bytes",
          [](const Array& a) {
            Array bytes = a;
            bytes.shape = ByteShape(a);
            bytes.dtype = GPUSHM_DTYPE_U8;
            return bytes;
          },
          "The same memory as uint8, the last dimension in bytes. For types that a framework's "
          "DLPack does not know, such as FP8 and FP4.")
      .def(
          "unsafe_writable",
          [](const Array& a) {
            Array writable = a;
            writable.readonly = false;
            return writable;
          },
          "The same memory, without the mark that it is read-only, for consumers whose DLPack is "
          "older than 1.0. A kernel that then writes to it ends with an illegal access, and the "
          "process loses its CUDA context.")
      .def(
          "view",
          [](const Array& a, const std::string& dtype, std::vector<uint64_t> shape) {
            Array view = a;
            view.dtype = ParseDType(dtype);
            view.shape = std::move(shape);
            if (view.bytes() > a.bytes()) {
              throw nb::value_error(("the view has " + std::to_string(view.bytes()) +
                                     " bytes, and the array has " + std::to_string(a.bytes()))
                                        .c_str());
            }
            return view;
          },
          "dtype"_a, "shape"_a,
          "The same memory with another type and shape.\n\n"
          "Raises ValueError if that needs more bytes than the array has.")
      .def(
          "numpy",
          [](nb::object self) { return nb::module_::import_("gpushm._numpy").attr("copy")(self); },
          nb::sig("def numpy(self) -> numpy.ndarray"),
          "Copies the array to the host, as a NumPy array, and waits for the copy. Types that NumPy "
          "lacks need the package ml_dtypes; without it, it raises Unsupported.")
      .def(
          "__dlpack__",
          nb::overload_cast<const Array&, nb::object, nb::object, nb::object, nb::object>(
              &ToDlpack),
          nb::kw_only(), "stream"_a = nb::none(), "max_version"_a = nb::none(),
          "dl_device"_a = nb::none(), "copy"_a = nb::none(),
          nb::sig(
              "def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | "
              "None = None, dl_device: tuple[int, int] | None = None, copy: bool | None = None) "
              "-> object"),
          "A DLPack capsule. Work on `stream` that uses it holds up the end of the mapping. "
          "`dl_device=(1, 0)` copies to the host.\n\n"
          "Raises BufferError: the array is read-only or of a type that the consumer's DLPack does "
          "not know, or the device is another one.")
      .def(
          "__dlpack_device__", [](const Array& a) { return nb::make_tuple(kCuda, a.device); },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"), "(2, device): a CUDA GPU.")
      .def_prop_ro("__cuda_array_interface__", &CudaArrayInterface,
                   nb::sig("def __cuda_array_interface__(self) -> dict[str, object]"),
                   "Version 3. AttributeError for types that it lacks, such as bfloat16. It cannot "
                   "say when a consumer's work ends: DLPack can.")
      .def("__len__",
           [](const Array& a) {
             if (a.shape.empty()) throw nb::type_error("an array without dimensions has no length");
             return a.shape[0];
           })
      .def("__repr__", [](nb::object self) {
        return nb::str("<gpushm.Array {} {}{}>")
            .format(self.attr("dtype"), self.attr("shape"),
                    nb::cast<bool>(self.attr("readonly")) ? " read-only" : "");
      });
}

}  // namespace gpushm::python
