// Descriptions, and the tensors that they name.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "client.h"

using namespace nanobind::literals;

namespace gpushm::python {
namespace {

gpushm_description_options DescriptionOptions(uint64_t generation) {
  auto options = Sized<gpushm_description_options>();
  options.generation = generation;
  return options;
}

// The description of a buffer, and its generation.
std::pair<nb::bytes, uint64_t> Description(const Client& client, const std::string& name,
                                           uint64_t generation, Timeout timeout) {
  Collect();
  auto options = DescriptionOptions(generation);
  gpushm_description* description = nullptr;
  const std::shared_ptr<Session> session = client.session();
  Check(Wait(timeout, [&](int64_t timeout_ms) {
    options.timeout_ms = timeout_ms;
    return Api().description_open_(session->get(), name.c_str(), &options, &description);
  }));
  const struct Guard {
    gpushm_description* description;
    ~Guard() { Api().description_close_(description); }
  } guard{description};
  return {nb::bytes(static_cast<const char*>(Api().description_data_(description)),
                    Api().description_size_(description)),
          Api().description_generation_(description)};
}

// Names, types, shapes and offsets of a buffer's tensors: (generation, [(name, dtype, shape,
// offset, nbytes)]), in the order of their names.
std::pair<uint64_t, nb::list> Table(const Client& client, const std::string& name,
                                    uint64_t generation, Timeout timeout) {
  Collect();
  auto options = DescriptionOptions(generation);
  gpushm_tensors* tensors = nullptr;
  const std::shared_ptr<Session> session = client.session();
  Check(Wait(timeout, [&](int64_t timeout_ms) {
    options.timeout_ms = timeout_ms;
    return Api().tensors_open_(session->get(), name.c_str(), &options, &tensors);
  }));
  const struct Guard {
    gpushm_tensors* tensors;
    ~Guard() { Api().tensors_close_(tensors); }
  } guard{tensors};
  nb::list table;
  auto tensor = Sized<gpushm_tensor>();
  const uint64_t count = Api().tensors_count_(tensors);
  for (uint64_t i = 0; i < count; ++i) {
    Check(Api().tensors_get_(tensors, i, &tensor));
    nb::list shape;
    for (uint32_t d = 0; d < tensor.rank; ++d) shape.append(tensor.shape[d]);
    table.append(nb::make_tuple(tensor.name, DTypeName(tensor.dtype), nb::tuple(shape),
                                tensor.offset, tensor.size_bytes));
  }
  return {Api().tensors_generation_(tensors), table};
}

}  // namespace

void BindTensors(nb::module_& module, nb::class_<Client>& client) {
  client
      .def("description", &Description, "name"_a, nb::kw_only(), "generation"_a = 0,
           "timeout"_a = 10.0,
           nb::sig(
               "def description(self, name: str, *, generation: int = 0, timeout: float | None = "
               "10.0) -> tuple[bytes, int]"),
           "The description of a buffer, and the generation that it describes. Empty: it has none. "
           "It needs no GPU.\n\nRaises Timeout, Denied, Stale, NotFound and Loading (timeout=0).")
      .def("_tensors", &Table, "name"_a, nb::kw_only(), "generation"_a = 0, "timeout"_a = 10.0,
           "The generation and the tensors of a buffer; see gpushm.tensors.");
  module.def(
      "measure",
      [](const nb::object& path) {
        const auto text = nb::cast<std::string>(nb::module_::import_("os").attr("fspath")(path));
        uint64_t bytes = 0;
        uint64_t count = 0;
        Check(Released([&] { return Api().tensors_measure_(text.c_str(), &bytes, &count); }));
        return std::make_pair(bytes, count);
      },
      "path"_a, nb::sig("def measure(path: str | os.PathLike[str]) -> tuple[int, int]"),
      "Bytes that a buffer needs for the tensors of a safetensors file, an index of shards or a folder, "
      "and the number of tensors.\n\nRaises NotFound, Corrupt, Exhausted, InvalidArgument.");
  module.def("dtype_number", &ParseDType, "name"_a, "gpushm's number of a type of elements.");
  module.def(
      "dtype_nbytes",
      [](const std::string& name, std::vector<uint64_t> shape) {
        return DTypeBytes(ParseDType(name), shape);
      },
      "name"_a, "shape"_a, "Bytes of `shape` elements of a type.");
}

}  // namespace gpushm::python
