/// gpushm for C++, buffers that hold tensors: an owner and values over the C functions of
/// tensors.h. The comments in tensors.h are the contract.
///
///     auto tensors = gpushm::Tensors::Open(*client, "weights");
///     if (!tensors) return Report(tensors.error());
///     auto weight = tensors->Find("model.embed_tokens.weight");
///     if (!weight) return Report(weight.error());
///     gpushm::AttachOptions options;
///     options.generation = tensors->generation();    // the one that has these offsets
///     auto attached = client->Attach("weights", options);
///     if (!attached) return Report(attached.error());
///     Launch(attached->address() + weight->offset, weight->size_bytes);
///
/// No function here needs a GPU. It needs C++17, as gpushm.hpp does.
///
/// Threads: open tensors never change, and any thread may read them. No other thread may use them
/// while they are moved or destroyed.
#ifndef GPUSHM_TENSORS_HPP_
#define GPUSHM_TENSORS_HPP_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpushm.hpp"
#include "tensors.h"

namespace gpushm {
inline namespace v0 {

/// The name in a safetensors file, such as "BF16"; "?" for a number that the library does not know.
inline const char* DtypeName(gpushm_dtype dtype) { return gpushm_dtype_name(dtype); }
/// Bits of one element; 0 for a number that the library does not know.
inline uint32_t DtypeBits(gpushm_dtype dtype) { return gpushm_dtype_bits(dtype); }

/// One tensor. Name and shape are views of the Tensors that it comes from, and end with them.
struct Tensor {
  std::string_view name{};              ///< UTF-8; may have control characters.
  Span<const uint64_t> shape{};         ///< The slowest dimension first; none: one element.
  uint64_t offset = 0;                  ///< Bytes from the start of the buffer.
  uint64_t size_bytes = 0;              ///< Elements are contiguous.
  gpushm_dtype dtype = gpushm_dtype{};  ///< Type of the elements.
};

/// What Tensors::Measure finds in a file.
struct TensorsSize {
  uint64_t size_bytes = 0;  ///< Of the buffer that the tensors need.
  uint64_t count = 0;       ///< Number of tensors.
};

/// The tensors of one generation of a buffer, in the order of their names' bytes.
///
/// The destructor unmaps the description. Then the names, shapes, metadata and iterators that came
/// from it are invalid, but a move keeps them valid. Open tensors hold no lease: the GPU memory and
/// the work that uses it do not depend on them, and they stay readable when the generation or the
/// Client is gone.
class Tensors {
 public:
  /// For range-based `for` and algorithms. It gives tensors by value.
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Tensor;
    using difference_type = std::ptrdiff_t;
    using pointer = void;
    using reference = Tensor;

    Iterator() = default;
    Tensor operator*() const { return Get(handle_, index_).value(); }
    Iterator& operator++() {
      ++index_;
      return *this;
    }
    Iterator operator++(int) {
      const Iterator before = *this;
      ++index_;
      return before;
    }
    friend bool operator==(const Iterator& a, const Iterator& b) { return a.index_ == b.index_; }
    friend bool operator!=(const Iterator& a, const Iterator& b) { return !(a == b); }

   private:
    friend Tensors;
    Iterator(const gpushm_tensors* handle, uint64_t index) : handle_(handle), index_(index) {}
    const gpushm_tensors* handle_ = nullptr;
    uint64_t index_ = 0;
  };

  /// None: size() is 0, and Find returns GPUSHM_INVALID_ARGUMENT.
  Tensors() = default;
  explicit Tensors(gpushm_tensors* handle) : handle_(handle) {}

  /// Errors: those of gpushm_description_open; GPUSHM_NOT_FOUND also if the generation has no
  /// description of tensors; GPUSHM_CORRUPT; GPUSHM_INCOMPATIBLE (a later version of gpushm wrote
  /// it).
  static Result<Tensors> Open(const Client& client, const std::string& name,
                              const DescriptionOptions& options = {}) {
    const gpushm_description_options raw = detail::Raw(options);
    gpushm_tensors* handle = nullptr;
    if (gpushm_tensors_open(client.get(), name.c_str(), &raw, &handle) != GPUSHM_OK) {
      return Error::Last();
    }
    return Tensors(handle);
  }

  /// The buffer that a safetensors file, an index of shards or a folder needs, to create it before
  /// Client::Load, or to replace it before Attachment::Load. It reads the files' headers.
  /// Errors: GPUSHM_NOT_FOUND, GPUSHM_CORRUPT (a file breaks a rule of the format),
  /// GPUSHM_EXHAUSTED (docs/reference/limits.md), GPUSHM_SYSTEM.
  static Result<TensorsSize> Measure(const std::string& path) {
    TensorsSize size;
    if (gpushm_tensors_measure(path.c_str(), &size.size_bytes, &size.count) != GPUSHM_OK) {
      return Error::Last();
    }
    return size;
  }

  /// Describes the tensors that the program writes into a generation, before it publishes. Offsets
  /// are the program's choice: multiples of 256. A size of 0 is the one of type and shape.
  /// Errors: GPUSHM_INVALID_ARGUMENT (the text names the tensor), GPUSHM_EXHAUSTED, and those of
  /// Attachment::SetDescription.
  static gpushm::Result<void> Describe(
      const Attachment& attachment, Span<const Tensor> tensors,
      Span<const std::pair<std::string, std::string>> metadata = {}) {
    std::vector<std::string> names;
    std::vector<gpushm_tensor> raw;
    names.reserve(tensors.size());
    raw.reserve(tensors.size());
    for (const Tensor& tensor : tensors) {
      names.emplace_back(tensor.name);
      auto& each = raw.emplace_back(detail::Sized<gpushm_tensor>());
      each.name = names.back().c_str();
      each.shape = tensor.shape.data();
      each.rank = static_cast<uint32_t>(tensor.shape.size());
      each.offset = tensor.offset;
      each.size_bytes = tensor.size_bytes;
      each.dtype = static_cast<uint32_t>(tensor.dtype);
    }
    std::vector<const char*> texts;
    texts.reserve(2 * metadata.size());
    for (const auto& [key, value] : metadata) {
      texts.push_back(key.c_str());
      texts.push_back(value.c_str());
    }
    return detail::ToResult(gpushm_attachment_set_tensors(attachment.get(), raw.data(), raw.size(),
                                                          texts.data(), metadata.size()));
  }

  explicit operator bool() const { return handle_ != nullptr; }
  /// The generation to which the offsets apply: attach exactly that one.
  uint64_t generation() const { return gpushm_tensors_generation(get()); }
  /// Number of tensors.
  uint64_t size() const { return gpushm_tensors_count(get()); }

  /// GPUSHM_NOT_FOUND: the index is not below size().
  Result<Tensor> operator[](uint64_t index) const { return Get(get(), index); }
  /// By binary search. GPUSHM_NOT_FOUND: no tensor has this name.
  Result<Tensor> Find(const std::string& name) const {
    auto raw = detail::Sized<gpushm_tensor>();
    return ToTensor(gpushm_tensors_find(get(), name.c_str(), &raw), raw);
  }
  Iterator begin() const { return Iterator(get(), 0); }
  Iterator end() const { return Iterator(get(), size()); }

  /// The value that the file's metadata has for a key, such as "pt" for "format".
  std::optional<std::string_view> Metadata(const std::string& key) const {
    const char* const value = gpushm_tensors_metadata(get(), key.c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  }

  /// A pair of the metadata, in the order of the keys' bytes. GPUSHM_NOT_FOUND: there are fewer.
  Result<std::pair<std::string_view, std::string_view>> MetadataAt(uint64_t index) const {
    const char* key = nullptr;
    const char* value = nullptr;
    if (gpushm_tensors_metadata_get(get(), index, &key, &value) != GPUSHM_OK) return Error::Last();
    return std::pair<std::string_view, std::string_view>(key, value);
  }

  gpushm_tensors* get() const { return handle_.get(); }

 private:
  static Result<Tensor> ToTensor(gpushm_status status, const gpushm_tensor& raw) {
    if (status != GPUSHM_OK) return Error::Last();
    return Tensor{raw.name,
                  {raw.shape, raw.rank},
                  raw.offset,
                  raw.size_bytes,
                  static_cast<gpushm_dtype>(raw.dtype)};
  }
  static Result<Tensor> Get(const gpushm_tensors* handle, uint64_t index) {
    auto raw = detail::Sized<gpushm_tensor>();
    return ToTensor(gpushm_tensors_get(handle, index, &raw), raw);
  }

  std::unique_ptr<gpushm_tensors, detail::Closer<gpushm_tensors_close>> handle_;
};

}  // namespace v0
}  // namespace gpushm

#endif  // GPUSHM_TENSORS_HPP_
