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
// `field_`. The value of an unknown key passes as a whole: `unknown_` counts what is open of it.
class HeaderHandler : public JsonHandler {
 public:
  explicit HeaderHandler(SafetensorsFile* file) : file_(file) {}

  bool null() override {
    if (field_ == Field::kUnknown) return PassUnknown(0);
    return (in_ == In::kFile && is_metadata_) || JsonHandler::null();
  }
  bool boolean(bool value) override {
    return field_ == Field::kUnknown ? PassUnknown(0) : JsonHandler::boolean(value);
  }
  bool number_integer(number_integer_t value) override {
    return field_ == Field::kUnknown ? PassUnknown(0) : JsonHandler::number_integer(value);
  }
  bool number_float(number_float_t value, const string_t& text) override {
    return field_ == Field::kUnknown ? PassUnknown(0) : JsonHandler::number_float(value, text);
  }

  bool start_object(std::size_t) override {
    if (field_ == Field::kUnknown) return PassUnknown(1);
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
    if (field_ == Field::kUnknown) return true;
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
    if (field_ == Field::kUnknown) return PassUnknown(0);
    if (in_ == In::kMetadata) return AddMetadata(std::move(value));
    if (in_ != In::kEntry || field_ != Field::kDType) {
      return Unexpected("text " + Quote(value));
    }
    const auto dtype = ParseDType(value);
    if (!dtype) {
      return Invalid(Concat(Quote(value), " is not one of the known types: ", DTypeNames()));
    }
    tensor().dtype = *dtype;
    return true;
  }

  bool start_array(std::size_t) override {
    if (field_ == Field::kUnknown) return PassUnknown(1);
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
    if (field_ == Field::kUnknown) return PassUnknown(0);
    if (in_ == In::kShape && numbers_.size() == limits::kTensorRank) {
      return Invalid(Concat("more than ", limits::kTensorRank, " dimensions"));
    }
    if (in_ == In::kOffsets && numbers_.size() == 2) return Invalid("more than two numbers");
    if (in_ != In::kShape && in_ != In::kOffsets) return JsonHandler::number_unsigned(value);
    numbers_.push_back(value);
    return true;
  }

  bool end_array() override {
    if (field_ == Field::kUnknown) return PassUnknown(-1);
    if (in_ == In::kShape) {
      tensor().shape.assign(numbers_.begin(), numbers_.end());
    } else if (numbers_.size() != 2 || numbers_[0] > numbers_[1]) {
      return Invalid(Concat(ShapeText(numbers_), " is not [begin, end] with begin <= end"));
    } else {
      tensor().offset = numbers_[0];
      tensor().bytes = numbers_[1] - numbers_[0];
    }
    in_ = In::kEntry;
    return true;
  }

  bool end_object() override {
    if (field_ == Field::kUnknown) return PassUnknown(-1);
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
  // Bits of seen_, except kUnknown: of a key that the format does not know.
  enum class Field : uint8_t { kNone = 0, kDType = 1, kShape = 2, kOffsets = 4, kUnknown = 8 };

  static constexpr std::string_view FieldName(Field field) {
    switch (field) {
      case Field::kDType:
        return "dtype";
      case Field::kShape:
        return "shape";
      case Field::kOffsets:
        return "data_offsets";
      case Field::kNone:
      case Field::kUnknown:
        break;
    }
    return "";
  }

  Tensor& tensor() { return file_->tensors.back(); }

  bool BeginMember(string_t& name) {
    is_metadata_ = name == kMetadataKey;
    if (is_metadata_) {
      if (std::exchange(has_metadata_, true)) return Invalid("the key occurs twice");
      return true;
    }
    if (const char* const problem = TextProblem(name)) {
      return Refuse(Code::kInvalidArgument,
                    Concat("invalid tensor name ", Quote(name), ": ", problem));
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
      if ((seen_ & static_cast<uint8_t>(field)) != 0) return Invalid("the key occurs twice");
      seen_ |= static_cast<uint8_t>(field);
      return true;
    }
    field_ = Field::kUnknown;
    return true;
  }

  bool PassUnknown(int opened) {
    unknown_ += opened;
    if (unknown_ == 0) field_ = Field::kNone;
    return true;
  }

  bool AddMetadata(string_t value) {
    if (file_->metadata.size() == limits::kMetadataPairs) {
      return Refuse(Code::kExhausted,
                    Concat("more pairs of metadata than the limit of ", limits::kMetadataPairs));
    }
    for (const std::string* const text : {&key_, &value}) {
      if (const char* const problem = TextProblem(*text)) {
        return Invalid(Concat("invalid text ", Quote(*text), ": ", problem));
      }
    }
    const auto [at, added] = file_->metadata.try_emplace(key_, std::move(value));
    return added || Invalid(Concat("the key ", Quote(at->first), " occurs twice"));
  }

  bool EndEntry() {
    field_ = Field::kNone;
    for (const Field field : {Field::kDType, Field::kShape, Field::kOffsets}) {
      if ((seen_ & static_cast<uint8_t>(field)) == 0) {
        return Invalid(Concat("no ", FieldName(field)));
      }
    }
    const Tensor& done = tensor();
    if (TensorBytes(done.dtype, done.shape) == done.bytes) return true;
    return Invalid(Concat("its data_offsets span ", done.bytes, " bytes, which is not the size of ",
                          DTypeName(done.dtype), " ", ShapeText(done.shape)));
  }

  SafetensorsFile* const file_;
  In in_ = In::kNothing;
  Field field_ = Field::kNone;
  int64_t unknown_ = 0;       // Objects and arrays that are open in the value of an unknown key.
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
  return Fail(Code::kInvalidArgument, Concat("tensor ", Quote(twice->name), " occurs twice"));
}

// Sorts by offset. Empty tensors come before the one that begins at the same byte.
Result<void> CheckDataCovered(SafetensorsFile* file, uint64_t data_bytes) {
  std::ranges::sort(file->tensors, [](const Tensor& a, const Tensor& b) {
    return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
  });
  uint64_t end = 0;
  for (const Tensor& tensor : file->tensors) {
    if (tensor.offset != end) {
      return Fail(Code::kInvalidArgument,
                  Concat("tensor ", Quote(tensor.name), " begins at byte ", tensor.offset,
                         " of the data, ", tensor.offset < end ? "which overlaps" : "with a gap to",
                         " the one before it, which ends at ", end));
    }
    end += tensor.bytes;  // Both were numbers of data_offsets, so the sum is one of them.
  }
  if (end == data_bytes) return {};
  if (end > data_bytes) {
    return FailShort(Concat("it has ", file->data_offset + data_bytes, " of the ",
                            file->data_offset + end, " bytes that its header announces"));
  }
  return Fail(Code::kInvalidArgument,
              Concat("it has ", file->data_offset + data_bytes, " bytes, and its header announces ",
                     file->data_offset + end),
              "fetch it again: what follows its tensors does not belong to it");
}

Result<void> CheckHeaderBytes(uint64_t bytes) {
  if (bytes <= limits::kSafetensorsHeaderBytes) return {};
  return Fail(Code::kInvalidArgument,
              Concat("a header of ", bytes, " bytes, and the largest one has ",
                     limits::kSafetensorsHeaderBytes),
              "check that it is a safetensors file");
}

Result<SafetensorsFile> Read(int fd, uint64_t size_bytes) {
  if (size_bytes == 0) return FailShort("it is empty");
  if (size_bytes < kLengthBytes) {
    return FailShort(Concat("it has ", size_bytes, " bytes, and a safetensors file has at least ",
                            kLengthBytes));
  }
  const auto length = ReadText(fd, 0, kLengthBytes);
  if (!length) return std::unexpected(length.error());
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, length->data(), sizeof header_bytes);
  if (auto checked = CheckHeaderBytes(header_bytes); !checked) {
    return std::unexpected(checked.error());
  }
  // No header is empty: room was made for the file (fallocate), and its start is not written yet.
  if (header_bytes == 0) return FailShort("its first bytes are zeroes");
  if (header_bytes > size_bytes - kLengthBytes) {
    return FailShort(Concat("it has ", size_bytes, " bytes, and its header ends at byte ",
                            kLengthBytes + header_bytes));
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
  if (checked) checked = CheckDataCovered(&file, data_bytes);
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
