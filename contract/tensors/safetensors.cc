#include "contract/tensors/safetensors.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "contract/limits.h"
#include "contract/tensors/json.h"
#include "platform/base/quote.h"

namespace gpushm::tensors {
namespace {

// Collects the tensors of a header. It knows where it is by `in_` and, inside of an entry, by
// `field_`.
class HeaderHandler : public JsonHandler {
 public:
  explicit HeaderHandler(SafetensorsFile* file) : file_(file) {}

  bool start_object(std::size_t) override {
    switch (in_) {
      case In::kNothing:
        in_ = In::kFile;
        return true;
      case In::kFile:
        in_ = is_metadata_ ? In::kMetadata : In::kEntry;
        seen_ = 0;
        field_ = Field::kNone;
        return true;
      default:
        return Unexpected("object");
    }
  }

  bool key(string_t& name) override {
    switch (in_) {
      case In::kFile:
        return BeginMember(name);
      case In::kEntry:
        return BeginField(name);
      case In::kMetadata:
        key_ = std::move(name);
        return true;
      default:
        return Unexpected("key " + Quote(name));
    }
  }

  bool string(string_t& value) override {
    if (in_ == In::kMetadata) return AddMetadata(std::move(value));
    if (in_ != In::kEntry || field_ != Field::kDType) {
      return Unexpected("text " + Quote(value));
    }
    const auto dtype = ParseDType(value);
    if (!dtype) {
      return Corrupt(Concat(Quote(value), " is not one of the known types: ", DTypeNames()));
    }
    tensor().dtype = *dtype;
    return true;
  }

  bool start_array(std::size_t) override {
    if (in_ == In::kEntry && field_ == Field::kShape) {
      in_ = In::kShape;
    } else if (in_ == In::kEntry && field_ == Field::kOffsets) {
      in_ = In::kOffsets;
    } else {
      return Unexpected("array");
    }
    numbers_.clear();
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (in_ == In::kShape && numbers_.size() == limits::kTensorRank) {
      return Corrupt(Concat("more than ", limits::kTensorRank, " dimensions"));
    }
    if (in_ == In::kOffsets && numbers_.size() == 2) return Corrupt("more than two numbers");
    if (in_ != In::kShape && in_ != In::kOffsets) return JsonHandler::number_unsigned(value);
    numbers_.push_back(value);
    return true;
  }

  bool end_array() override {
    if (in_ == In::kShape) {
      tensor().shape.assign(numbers_.begin(), numbers_.end());
    } else if (numbers_.size() != 2 || numbers_[0] > numbers_[1]) {
      return Corrupt(Concat(ShapeText(numbers_), " is not [begin, end] with begin <= end"));
    } else {
      tensor().offset = numbers_[0];
      tensor().bytes = numbers_[1] - numbers_[0];
    }
    in_ = In::kEntry;
    return true;
  }

  bool end_object() override {
    if (in_ == In::kFile) {
      in_ = In::kNothing;
      return true;
    }
    if (in_ == In::kEntry && !EndEntry()) return false;
    in_ = In::kFile;
    return true;
  }

 protected:
  std::string Place() const override {
    std::string place;
    if (in_ == In::kNothing) return place;
    if (is_metadata_) return std::string(kMetadataKey);
    if (file_->tensors.empty()) return place;
    place = "tensor " + Quote(file_->tensors.back().name);
    if (in_ != In::kFile && field_ != Field::kNone) place += Concat(": ", FieldName(field_));
    return place;
  }

 private:
  enum class In { kNothing, kFile, kMetadata, kEntry, kShape, kOffsets };
  // Bits of seen_.
  enum class Field : uint8_t { kNone = 0, kDType = 1, kShape = 2, kOffsets = 4 };

  static constexpr std::string_view FieldName(Field field) {
    switch (field) {
      case Field::kDType:
        return "dtype";
      case Field::kShape:
        return "shape";
      case Field::kOffsets:
        return "data_offsets";
      case Field::kNone:
        break;
    }
    return "";
  }

  Tensor& tensor() { return file_->tensors.back(); }

  bool BeginMember(string_t& name) {
    is_metadata_ = name == kMetadataKey;
    if (is_metadata_) {
      if (std::exchange(has_metadata_, true)) return Corrupt("the key occurs twice");
      return true;
    }
    if (const char* const problem = NameProblem(name)) {
      return Refuse(Code::kCorrupt, Concat("invalid tensor name ", Quote(name), ": ", problem));
    }
    if (file_->tensors.size() == limits::kTensors) {
      return Refuse(Code::kExhausted, Concat("more tensors than the limit of ", limits::kTensors));
    }
    file_->tensors.emplace_back().name = name;
    return true;
  }

  bool BeginField(const string_t& name) {
    for (const Field field : {Field::kDType, Field::kShape, Field::kOffsets}) {
      if (name != FieldName(field)) continue;
      field_ = field;
      if ((seen_ & static_cast<uint8_t>(field)) != 0) return Corrupt("the key occurs twice");
      seen_ |= static_cast<uint8_t>(field);
      return true;
    }
    field_ = Field::kNone;
    return Corrupt(
        Concat("unknown key ", Quote(name), "; the keys are dtype, shape, data_offsets"));
  }

  bool AddMetadata(string_t value) {
    if (file_->metadata.size() == limits::kMetadataPairs) {
      return Refuse(Code::kExhausted,
                    Concat("more pairs of metadata than the limit of ", limits::kMetadataPairs));
    }
    for (const std::string* const text : {&key_, &value}) {
      if (const char* const problem = TextProblem(*text)) {
        return Corrupt(Concat("invalid text ", Quote(*text), ": ", problem));
      }
    }
    const auto [at, added] = file_->metadata.try_emplace(key_, std::move(value));
    return added || Corrupt(Concat("the key ", Quote(at->first), " occurs twice"));
  }

  bool EndEntry() {
    field_ = Field::kNone;
    for (const Field field : {Field::kDType, Field::kShape, Field::kOffsets}) {
      if ((seen_ & static_cast<uint8_t>(field)) == 0) {
        return Corrupt(Concat("no ", FieldName(field)));
      }
    }
    const Tensor& done = tensor();
    if (TensorBytes(done.dtype, done.shape) == done.bytes) return true;
    return Corrupt(Concat("its data_offsets span ", done.bytes, " bytes, which is not the size of ",
                          DTypeName(done.dtype), " ", ShapeText(done.shape)));
  }

  SafetensorsFile* const file_;
  In in_ = In::kNothing;
  Field field_ = Field::kNone;
  uint8_t seen_ = 0;          // Fields of the entry.
  bool is_metadata_ = false;  // The current member of the file.
  bool has_metadata_ = false;
  std::string key_;  // Of metadata.
  std::vector<uint64_t> numbers_;
};

Result<void> CheckNamesUnique(std::vector<Tensor>* tensors) {
  std::ranges::sort(*tensors, {}, &Tensor::name);
  const auto twice = std::ranges::adjacent_find(*tensors, {}, &Tensor::name);
  if (twice == tensors->end()) return {};
  return Fail(Code::kCorrupt, Concat("tensor ", Quote(twice->name), " occurs twice"));
}

// Sorts by offset. Empty tensors come before the one that begins at the same byte.
Result<void> CheckDataCovered(std::vector<Tensor>* tensors, uint64_t data_bytes) {
  std::ranges::sort(*tensors, [](const Tensor& a, const Tensor& b) {
    return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
  });
  uint64_t end = 0;
  for (const Tensor& tensor : *tensors) {
    if (tensor.offset != end) {
      return Fail(Code::kCorrupt,
                  Concat("tensor ", Quote(tensor.name), " begins at byte ", tensor.offset,
                         " of the data, ", tensor.offset < end ? "which overlaps" : "with a gap to",
                         " the one before it, which ends at ", end));
    }
    end += tensor.bytes;  // Both were numbers of data_offsets, so the sum is one of them.
    if (end > data_bytes) {
      return Fail(Code::kCorrupt, Concat("tensor ", Quote(tensor.name), " ends at byte ", end,
                                         " of the data, and the file has ", data_bytes));
    }
  }
  if (end == data_bytes) return {};
  return Fail(Code::kCorrupt, Concat("the last tensor ends at byte ", end,
                                     " of the data, and the file has ", data_bytes));
}

Result<void> CheckHeaderBytes(uint64_t bytes) {
  if (bytes <= limits::kSafetensorsHeaderBytes) return {};
  return Fail(Code::kCorrupt,
              Concat("a header of ", bytes, " bytes, and the largest one has ",
                     limits::kSafetensorsHeaderBytes),
              "check that it is a safetensors file");
}

Result<SafetensorsFile> Read(int fd, uint64_t size_bytes) {
  if (size_bytes < kLengthBytes) {
    return Fail(Code::kCorrupt,
                Concat("it has ", size_bytes, " bytes, and a safetensors file has at least ",
                       kLengthBytes));
  }
  const auto length = ReadText(fd, 0, kLengthBytes);
  if (!length) return std::unexpected(length.error());
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, length->data(), sizeof header_bytes);
  if (auto checked = CheckHeaderBytes(header_bytes); !checked) {
    return std::unexpected(checked.error());
  }
  if (header_bytes > size_bytes - kLengthBytes) {
    return Fail(Code::kCorrupt, Concat("a header of ", header_bytes,
                                       " bytes does not fit into its ", size_bytes, " bytes"));
  }
  const auto header = ReadText(fd, kLengthBytes, header_bytes);
  if (!header) return std::unexpected(header.error());
  return ParseSafetensorsHeader(*header, size_bytes - kLengthBytes - header_bytes);
}

}  // namespace

Result<SafetensorsFile> ParseSafetensorsHeader(std::string_view header, uint64_t data_bytes) {
  if (auto checked = CheckHeaderBytes(header.size()); !checked) {
    return std::unexpected(checked.error());
  }
  SafetensorsFile file;
  file.data_offset = kLengthBytes + header.size();
  HeaderHandler handler(&file);
  auto checked = ParseJsonObject(header, &handler);
  if (checked) checked = CheckNamesUnique(&file.tensors);
  if (checked) checked = CheckDataCovered(&file.tensors, data_bytes);
  if (!checked) return std::unexpected(checked.error());
  return file;
}

Result<SafetensorsFile> ReadSafetensors(int fd, uint64_t size_bytes, std::string_view name) {
  auto file = Read(fd, size_bytes);
  if (!file) return std::unexpected(file.error().WithContext(Concat("tensor file ", Quote(name))));
  file->name = name;
  return file;
}

}  // namespace gpushm::tensors
