// The C ABI: buffers that hold tensors.
#include "runtime/include/gpushm/tensors.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "contract/limits.h"
#include "contract/tensors/encode.h"
#include "contract/tensors/model.h"
#include "contract/tensors/table.h"
#include "platform/base/quote.h"
#include "runtime/client/c_api/support.h"
#include "runtime/client/description.h"
#include "runtime/client/files/open_file.h"

namespace gpushm::client {
namespace {

// Checked once, when it is opened.
class Tensors {
 public:
  Tensors(std::unique_ptr<Description> description, const tensors::TensorTable& of)
      : table(of), description_(std::move(description)) {}

  uint64_t generation() const { return description_->generation(); }
  const std::string& buffer() const { return description_->buffer(); }
  const Handle& handle() const { return handle_; }

  const tensors::TensorTable table;

 private:
  const std::unique_ptr<Description> description_;  // Keeps the table mapped.
  const Handle handle_{HandleKind::kTensors, this};
};

const Tensors* TensorsOf(const gpushm_tensors* handle) noexcept {
  return static_cast<const Tensors*>(Handle::Find(HandleKind::kTensors, handle));
}

Result<void> Fill(const tensors::TensorView& view, gpushm_tensor* tensor) {
  return FillInfo(tensor, "tensor", [&](gpushm_tensor* filled) -> Result<void> {
    filled->name = view.name.data();
    filled->shape = view.shape.data();
    filled->offset = view.offset;
    filled->size_bytes = view.bytes;
    filled->rank = static_cast<uint32_t>(view.shape.size());
    filled->dtype = std::to_underlying(view.dtype);
    return {};
  });
}

Result<std::unique_ptr<Tensors>> Open(Client& client, std::string_view name, uint64_t generation,
                                      const Wait& wait) {
  auto description = Describe(&client, name, generation, wait, /*required=*/true);
  if (!description) return std::unexpected(description.error());
  const std::span<const std::byte> bytes = (*description)->bytes();
  if (!tensors::TensorTable::IsTable(bytes)) {
    return Fail(Code::kNotFound,
                Concat("generation ", (*description)->generation(), " of \"", name, "\" has ",
                       bytes.empty() ? "no description" : "a description, but not of tensors"),
                "load a safetensors file into it: gpushmctl load model.safetensors NAME");
  }
  // What a tensor occupies is compared with the buffer by who attaches it, whose size may be known
  // to nobody here: an older generation has no record.
  auto table = tensors::TensorTable::Open(bytes, limits::kBufferBytes);
  if (!table) return std::unexpected(table.error());
  return std::make_unique<Tensors>(std::move(*description), *table);
}

// `at` has `stride` bytes, as many as the program's version of the struct.
Result<tensors::Tensor> ReadTensor(const void* at, size_t stride) {
  gpushm_tensor given{};
  std::memcpy(&given, at, std::min(stride, sizeof given));
  if (given.name == nullptr) return Fail(Code::kInvalidArgument, "its name is NULL");
  if (given.rank > limits::kTensorRank || (given.rank > 0 && given.shape == nullptr)) {
    return Fail(Code::kInvalidArgument,
                Concat(Quote(given.name), " has ", given.rank, " dimensions",
                       given.shape == nullptr ? " without a shape" : "", "; the limit is ",
                       limits::kTensorRank));
  }
  if (given.dtype > tensors::kMaxDType) {
    return Fail(Code::kInvalidArgument,
                Concat(Quote(given.name), " has the unknown type ", given.dtype),
                "use a number of gpushm_dtype");
  }
  tensors::Tensor tensor{.name = given.name,
                         .dtype = static_cast<tensors::DType>(given.dtype),
                         .shape = {given.shape, given.shape + given.rank},
                         .offset = given.offset,
                         .bytes = given.size_bytes};
  if (tensor.bytes == 0) {
    tensor.bytes = tensors::TensorBytes(tensor.dtype, tensor.shape).value_or(0);
  }
  return tensor;
}

Result<void> SetTensors(const Attachment& attachment, const gpushm_tensor* tensors, uint64_t count,
                        const char* const* metadata, uint64_t pairs) {
  if ((tensors == nullptr && count > 0) || (metadata == nullptr && pairs > 0)) {
    return Fail(Code::kInvalidArgument, Concat("tensors or metadata is NULL, but ", count,
                                               " tensors and ", pairs, " pairs are given"));
  }
  if (count > limits::kTensors || pairs > limits::kMetadataPairs) {
    return Fail(Code::kExhausted,
                Concat(count, " tensors and ", pairs, " pairs of metadata; the limits are ",
                       limits::kTensors, " and ", limits::kMetadataPairs));
  }
  const size_t stride = count > 0 ? tensors->struct_size : 0;
  if (count > 0) {
    if (auto valid = CheckStructSize(stride, "tensors[0]"); !valid) return valid;
  }
  std::vector<tensors::Tensor> all;
  all.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    auto tensor = ReadTensor(reinterpret_cast<const std::byte*>(tensors) + i * stride, stride);
    if (!tensor) return std::unexpected(tensor.error().WithContext(Concat("tensors[", i, "]")));
    all.push_back(std::move(*tensor));
  }
  tensors::Metadata texts;
  for (uint64_t i = 0; i < pairs; ++i) {
    const char* const key = metadata[2 * i];
    const char* const value = metadata[2 * i + 1];
    if (key == nullptr || value == nullptr || !texts.emplace(key, value).second) {
      return Fail(Code::kInvalidArgument,
                  key == nullptr || value == nullptr
                      ? Concat("metadata: the key or the value of pair ", i, " is NULL")
                      : Concat("metadata: the key ", Quote(key), " is given twice"));
    }
  }
  const auto table = tensors::EncodeTable(all, texts, attachment.facts().size_bytes);
  if (!table) return std::unexpected(table.error());
  return SetDescription(attachment, *table, Wait::ForMs(GPUSHM_DEFAULT_TIMEOUT_MS));
}

}  // namespace
}  // namespace gpushm::client

namespace gc = gpushm::client;
using gpushm::Code;
using gpushm::Concat;
using gpushm::Fail;
using gpushm::Quote;
using gpushm::Result;
using gpushm::UniqueFd;
namespace gt = gpushm::tensors;

extern "C" {

const char* gpushm_dtype_name(uint32_t dtype) {
  return gt::DTypeName(static_cast<gt::DType>(dtype > gt::kMaxDType ? 0 : dtype)).data();
}

uint32_t gpushm_dtype_bits(uint32_t dtype) {
  return gt::DTypeBits(static_cast<gt::DType>(dtype > gt::kMaxDType ? 0 : dtype));
}

gpushm_status gpushm_tensors_open(gpushm_client* client, const char* name,
                                  const gpushm_description_options* options,
                                  gpushm_tensors** tensors) {
  return gc::EnterClient(client, [&](gc::Client& of) -> Result<void> {
    if (name == nullptr || tensors == nullptr) {
      return Fail(Code::kInvalidArgument, "name or tensors is NULL");
    }
    *tensors = nullptr;
    const auto given = gc::ReadOptions(options, "description_options");
    if (!given) return std::unexpected(given.error());
    const auto wait = gc::Wait::From(given->timeout_ms, GPUSHM_DEFAULT_TIMEOUT_MS);
    if (!wait) return std::unexpected(wait.error());
    const std::string_view text(name, strnlen(name, gpushm::limits::kNameBytes + 2));
    auto opened = gc::Open(of, text, given->generation, *wait);
    if (!opened) return std::unexpected(opened.error());
    *tensors = opened->release()->handle().As<gpushm_tensors>();
    return {};
  });
}

uint64_t gpushm_tensors_generation(const gpushm_tensors* tensors) {
  const gc::Tensors* const t = gc::TensorsOf(tensors);
  return t == nullptr ? 0 : t->generation();
}

uint64_t gpushm_tensors_count(const gpushm_tensors* tensors) {
  const gc::Tensors* const t = gc::TensorsOf(tensors);
  return t == nullptr ? 0 : t->table.count();
}

gpushm_status gpushm_tensors_get(const gpushm_tensors* tensors, uint64_t index,
                                 gpushm_tensor* tensor) {
  const gc::Tensors* const t = gc::TensorsOf(tensors);
  if (t == nullptr) return gc::RememberWhyNot(gc::HandleKind::kTensors, tensors);
  return gc::Enter([&]() -> Result<void> {
    if (index >= t->table.count()) {
      return Fail(Code::kNotFound, Concat("index ", index, ": \"", t->buffer(), "\" has ",
                                          t->table.count(), " tensors"));
    }
    return gc::Fill(t->table.at(static_cast<uint32_t>(index)), tensor);
  });
}

gpushm_status gpushm_tensors_find(const gpushm_tensors* tensors, const char* name,
                                  gpushm_tensor* tensor) {
  const gc::Tensors* const t = gc::TensorsOf(tensors);
  if (t == nullptr) return gc::RememberWhyNot(gc::HandleKind::kTensors, tensors);
  return gc::Enter([&]() -> Result<void> {
    if (auto valid = gc::CheckArgument(name != nullptr, "name is NULL"); !valid) return valid;
    const auto found = t->table.Find(name);
    if (found) return gc::Fill(*found, tensor);
    return Fail(Code::kNotFound, Concat("no tensor ", Quote(name), " in \"", t->buffer(), '"'),
                Concat("gpushmctl ls --tensors ", t->buffer(), " shows the names"));
  });
}

const char* gpushm_tensors_metadata(const gpushm_tensors* tensors, const char* key) {
  const gc::Tensors* const t = gc::TensorsOf(tensors);
  if (t == nullptr || key == nullptr) return nullptr;
  const auto value = t->table.FindMetadata(key);
  return value ? value->data() : nullptr;
}

gpushm_status gpushm_tensors_metadata_get(const gpushm_tensors* tensors, uint64_t index,
                                          const char** key, const char** value) {
  const gc::Tensors* const t = gc::TensorsOf(tensors);
  if (t == nullptr) return gc::RememberWhyNot(gc::HandleKind::kTensors, tensors);
  return gc::Enter([&]() -> Result<void> {
    if (key == nullptr || value == nullptr) {
      return Fail(Code::kInvalidArgument, "key or value is NULL");
    }
    if (index >= t->table.metadata_count()) {
      return Fail(Code::kNotFound, Concat("index ", index, ": \"", t->buffer(), "\" has ",
                                          t->table.metadata_count(), " pairs of metadata"));
    }
    const auto pair = t->table.metadata(static_cast<uint32_t>(index));
    *key = pair.first.data();
    *value = pair.second.data();
    return {};
  });
}

gpushm_status gpushm_attachment_set_tensors(gpushm_attachment* attachment,
                                            const gpushm_tensor* tensors, uint64_t tensor_count,
                                            const char* const* metadata, uint64_t metadata_count) {
  gc::Attachment* const a = gc::FromHandle(attachment);
  if (a == nullptr) return gc::RememberWhyNot(gc::HandleKind::kAttachment, attachment);
  return gc::Enter(a->facts().client, [&]() -> Result<void> {
    auto done = gc::SetTensors(*a, tensors, tensor_count, metadata, metadata_count);
    if (done) return done;
    return std::unexpected(
        done.error().WithContext(Concat("set the tensors of \"", a->facts().name, "\"")));
  });
}

void gpushm_tensors_close(gpushm_tensors* tensors) { delete gc::TensorsOf(tensors); }

gpushm_status gpushm_tensors_measure(const char* path, uint64_t* size_bytes,
                                     uint64_t* tensor_count) {
  return gc::Enter([&]() -> Result<void> {
    if (path == nullptr || size_bytes == nullptr) {
      return Fail(Code::kInvalidArgument, "path or size_bytes is NULL");
    }
    *size_bytes = 0;
    const auto model = gt::OpenModel(path, gc::OpenPath);
    if (!model) return std::unexpected(model.error());
    *size_bytes = model->buffer_bytes;
    if (tensor_count != nullptr) *tensor_count = model->tensors;
    return {};
  });
}

}  // extern "C"
