// How JSON in files is read: as events of nlohmann's SAX parser, so that no tree of a large header
// is ever in memory. A handler overrides the events that it accepts. Every other one is refused,
// and the handler keeps the first failure.
//
// Threads: one for each handler. Nothing throws, except when memory is exhausted.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "contract/tensors/tensor.h"
#include "platform/base/quote.h"
#include "platform/base/status.h"

namespace gpushm::tensors {

class JsonHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return Unexpected("null"); }
  bool boolean(bool value) override { return Unexpected(value ? "true" : "false"); }
  // Only numbers with a minus arrive here.
  bool number_integer(number_integer_t value) override { return Unexpected(std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    return Unexpected(std::to_string(value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return Unexpected(Concat("number ", Quote(text), "; only whole numbers below 2^64 are valid"));
  }
  bool string(string_t& value) override { return Unexpected("text " + Quote(value)); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }
  bool start_object(std::size_t) override { return Unexpected("object"); }
  bool key(string_t& name) override { return Unexpected("key " + Quote(name)); }
  bool end_object() override { return Unexpected("end of an object"); }
  bool start_array(std::size_t) override { return Unexpected("array"); }
  bool end_array() override { return Unexpected("end of an array"); }
  bool parse_error(std::size_t position, const std::string& token,
                   const nlohmann::detail::exception&) override {
    error_at_ = position;
    return Refuse(Code::kInvalidArgument,
                  Concat("it is not JSON: byte ", position, ", near ", Quote(token)));
  }

  const std::optional<Status>& failure() const { return failure_; }
  // Of the byte where the text is no JSON, from 1; one more than its size if it only ends too
  // early.
  std::size_t error_at() const { return error_at_; }

 protected:
  // Where the parser is, for messages: "tensor \"a\": shape".
  virtual std::string Place() const = 0;

  bool Refuse(Code code, std::string what) {
    if (!failure_) failure_.emplace(code, std::move(what));
    return false;
  }
  bool Invalid(std::string_view why) {
    const std::string place = Place();
    return Refuse(Code::kInvalidArgument,
                  place.empty() ? std::string(why) : Concat(place, ": ", why));
  }
  bool Unexpected(std::string_view what) { return Invalid(Concat("unexpected ", what)); }

 private:
  std::optional<Status> failure_;
  std::size_t error_at_ = 0;
};

// Sends the events of `text` to the handler, and returns its failure. The text must be one JSON
// object, with nothing but white space before and after it.
Result<void> ParseJsonObject(std::string_view text, JsonHandler* handler);

// kBusy: a file of which only a part is there so far.
std::unexpected<Status> FailShort(std::string what);

// Reads `size_bytes` bytes of a file at `offset`, with pread. kBusy: the file ends before.
Result<std::string> ReadText(int fd, uint64_t offset, uint64_t size_bytes);

}  // namespace gpushm::tensors
