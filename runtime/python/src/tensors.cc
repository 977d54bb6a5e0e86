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
// offset, nbytes)], metadata), in the order of their names.
nb::tuple Table(const Client& client, const std::string& name, uint64_t generation,
                Timeout timeout) {
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
  nb::dict metadata;
  const char* key = nullptr;
  const char* value = nullptr;
  while (Api().tensors_metadata_get_(tensors, metadata.size(), &key, &value) == GPUSHM_OK) {
    metadata[key] = value;
  }
  return nb::make_tuple(Api().tensors_generation_(tensors), table, metadata);
}

}  // namespace

void SetTensors(const Buffer& buffer, const nb::list& tensors,
                const std::vector<std::pair<std::string, std::string>>& metadata) {
  struct Text {
    std::string name;
    std::vector<uint64_t> shape;
  };
  std::vector<Text> texts;  // What the structs point to.
  std::vector<gpushm_tensor> raw;
  texts.reserve(tensors.size());
  raw.reserve(tensors.size());
  for (const nb::handle entry : tensors) {
    const auto given = nb::cast<nb::tuple>(entry);
    texts.push_back({nb::cast<std::string>(given[0]), nb::cast<std::vector<uint64_t>>(given[2])});
    auto& tensor = raw.emplace_back(Sized<gpushm_tensor>());
    tensor.name = texts.back().name.c_str();
    tensor.dtype = ParseDType(nb::cast<std::string>(given[1]));
    tensor.shape = texts.back().shape.data();
    tensor.rank = static_cast<uint32_t>(texts.back().shape.size());
    tensor.offset = nb::cast<uint64_t>(given[3]);
    tensor.size_bytes = nb::cast<uint64_t>(given[4]);
  }
  std::vector<const char*> pairs;
  for (const auto& [key, value] : metadata) {
    pairs.push_back(key.c_str());
    pairs.push_back(value.c_str());
  }
  const std::shared_ptr<Mapping> mapping = buffer.mapping();
  gpushm_attachment* const attachment = buffer.get();
  Check(Released([&] {
    return Api().attachment_set_tensors_(attachment, raw.data(), raw.size(), pairs.data(),
                                         metadata.size());
  }));
}

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
      "and the number of tensors. It does not wait.\n\nRaises NotFound, Busy (not whole), Exhausted, InvalidArgument.");
  module.def(
      "file_digest",
      [](const nb::object& path, const std::string& format) {
        const auto text = nb::cast<std::string>(nb::module_::import_("os").attr("fspath")(path));
        const uint32_t chosen = Choice("format", format, {"auto", "raw", "tensors"});
        char digest[GPUSHM_DIGEST_BYTES];
        Check(Released([&] { return Api().file_digest_(text.c_str(), chosen, digest); }));
        return std::string(digest);
      },
      "path"_a, "format"_a = "auto",
      nb::sig("def file_digest(path: str | os.PathLike[str], format: str = 'auto') -> str"),
      "The digest that a buffer has after a load of that path. Reads all of it.\n\n"
      "Raises NotFound, Busy (not whole), InvalidArgument.");
  module.def("dtype_number", &ParseDType, "name"_a, "gpushm's number of a type of elements.");
  module.def(
      "dtype_nbytes",
      [](const std::string& name, std::vector<uint64_t> shape) {
        return DTypeBytes(ParseDType(name), shape);
      },
      "name"_a, "shape"_a, "Bytes of `shape` elements of a type.");
}

}  // namespace gpushm::python
