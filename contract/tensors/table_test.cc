#include "contract/tensors/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "contract/limits.h"
#include "contract/tensors/encode.h"
#include "contract/tensors/testing.h"
#include "platform/base/quote.h"
#include "platform/base/testing/code.h"
#include "platform/base/testing/must.h"

namespace gpushm::tensors {
namespace {

using gpushm::testing::CodeOf;
using ::gpushm::testing::Must;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Make;
using Bytes = std::vector<std::byte>;

constexpr uint64_t kBuffer = 4096;

std::vector<Tensor> Two() {
  return {Make("layer.weight", DType::kF32, {2, 3}, 256), Make("bias", DType::kBF16, {}, 0)};
}

Bytes Encode(const std::vector<Tensor>& tensors, const Metadata& metadata = {}) {
  auto bytes = EncodeTable(tensors, metadata, kBuffer);
  EXPECT_TRUE(bytes) << bytes.error().ToString();
  return bytes.value_or(Bytes{});
}

// Two() with one pair of metadata, whose bytes tests spoil.
Bytes Table() { return Encode(Two(), {{"format", "pt"}}); }

template <typename T>
void Patch(Bytes* bytes, size_t offset, T value) {
  std::memcpy(bytes->data() + offset, &value, sizeof value);
}

// Of the entry with this index in the order of names.
size_t TensorField(size_t index, size_t field) {
  return sizeof(Header) + index * sizeof(TensorEntry) + field;
}
size_t PairField(size_t field) { return TensorField(2, field); }

std::string Refusal(const Bytes& bytes) {
  const auto table = TensorTable::Open(bytes, kBuffer);
  EXPECT_FALSE(table);
  if (table) return "";
  EXPECT_EQ(table.error().code(), Code::kCorrupt);
  return table.error().what();
}

TEST(TensorTableTest, AnswersWhatWasEncoded) {
  const Bytes bytes = Table();
  EXPECT_TRUE(TensorTable::IsTable(bytes));
  const auto table = Must(TensorTable::Open(bytes, kBuffer));
  ASSERT_EQ(table.count(), 2U);
  EXPECT_EQ(table.at(0).name, "bias");
  EXPECT_EQ(table.at(0).bytes, 2U);
  EXPECT_TRUE(table.at(0).shape.empty());
  const TensorView weight = table.at(1);
  EXPECT_EQ(weight.name, "layer.weight");
  EXPECT_EQ(weight.name.data()[weight.name.size()], '\0');
  EXPECT_EQ(weight.dtype, DType::kF32);
  EXPECT_THAT(weight.shape, ElementsAre(2, 3));
  EXPECT_EQ(weight.offset, 256U);
  EXPECT_EQ(weight.bytes, 24U);
  ASSERT_EQ(table.metadata_count(), 1U);
  EXPECT_EQ(table.metadata(0), TensorTable::Pair("format", "pt"));
}

TEST(TensorTableTest, FindsByName) {
  const Bytes bytes = Table();
  const auto table = Must(TensorTable::Open(bytes, kBuffer));
  ASSERT_TRUE(table.Find("layer.weight"));
  EXPECT_EQ(table.Find("layer.weight")->offset, 256U);
  for (const char* const absent : {"", "bia", "biasx", "layer", "z"}) {
    EXPECT_FALSE(table.Find(absent)) << absent;
  }
  EXPECT_EQ(table.FindMetadata("format"), "pt");
  EXPECT_FALSE(table.FindMetadata("other"));
}

TEST(TensorTableTest, MayBeEmpty) {
  const Bytes bytes = Encode({});
  const auto table = Must(TensorTable::Open(bytes, 0));
  EXPECT_EQ(table.count(), 0U);
  EXPECT_FALSE(table.Find("a"));
}

// Goal: names of other languages sort by their bytes, and above ASCII, on every platform.
TEST(TensorTableTest, SortsByBytes) {
  const Bytes bytes = Encode({Make("\xc3\xa4", DType::kU8, {1}), Make("z", DType::kU8, {1}),
                              Make("B", DType::kU8, {1}), Make("a", DType::kU8, {1})});
  const auto table = Must(TensorTable::Open(bytes, kBuffer));
  EXPECT_EQ(table.at(0).name, "B");
  EXPECT_EQ(table.at(3).name, "\xc3\xa4");
  EXPECT_TRUE(table.Find("\xc3\xa4"));
}

// Goal: tied weights, two names for the same bytes, are allowed.
TEST(TensorTableTest, TensorsMayShareBytes) {
  const Bytes bytes = Encode({Make("a", DType::kU8, {8}), Make("b", DType::kI32, {2})});
  EXPECT_TRUE(TensorTable::Open(bytes, kBuffer));
}

// Goal: a reader of this version accepts tables whose header and entries have further fields.
TEST(TensorTableTest, SkipsFieldsOfLaterVersions) {
  const Bytes old = Table();
  Header header;
  std::memcpy(&header, old.data(), sizeof header);
  constexpr uint32_t kMore = 8;
  const uint32_t moved = kMore * (1 + header.tensor_count + header.pair_count);
  Bytes bytes;
  const auto add = [&](size_t offset, size_t size, size_t more) {
    bytes.insert(bytes.end(), old.begin() + static_cast<ptrdiff_t>(offset),
                 old.begin() + static_cast<ptrdiff_t>(offset + size));
    bytes.resize(bytes.size() + more, std::byte{0xff});
  };
  add(0, sizeof(Header), kMore);
  for (size_t i = 0; i < 2; ++i) add(TensorField(i, 0), sizeof(TensorEntry), kMore);
  add(PairField(0), sizeof(PairEntry), kMore);
  const size_t rest = PairField(0) + sizeof(PairEntry);
  add(rest, old.size() - rest, 0);
  header.version = 2;
  header.header_bytes += kMore;
  header.tensor_bytes += kMore;
  header.pair_bytes += kMore;
  header.table_bytes += moved;
  header.tensors_offset += kMore;
  header.pairs_offset += kMore * (1 + header.tensor_count);
  Patch(&bytes, 0, header);
  for (size_t i = 0; i < 2; ++i) {
    const size_t at = header.tensors_offset + i * header.tensor_bytes;
    TensorEntry entry;
    std::memcpy(&entry, bytes.data() + at, sizeof entry);
    entry.name_offset += moved;
    entry.shape_offset += moved;
    Patch(&bytes, at, entry);
  }
  PairEntry pair;
  std::memcpy(&pair, bytes.data() + header.pairs_offset, sizeof pair);
  pair.key_offset += moved;
  pair.value_offset += moved;
  Patch(&bytes, header.pairs_offset, pair);

  const auto table = Must(TensorTable::Open(bytes, kBuffer));
  EXPECT_THAT(table.at(1).shape, ElementsAre(2, 3));
  EXPECT_EQ(table.Find("bias")->bytes, 2U);
  EXPECT_EQ(table.FindMetadata("format"), "pt");
}

TEST(TensorTableTest, RefusesOtherHeaders) {
  EXPECT_THAT(Refusal({}), HasSubstr("it has 0 bytes"));
  Bytes bytes = Table();
  Patch(&bytes, 0, 'X');
  EXPECT_THAT(Refusal(bytes), HasSubstr("its type is \"XSHTENS\\x00\""));
  EXPECT_FALSE(TensorTable::IsTable(bytes));
  const auto refused = [](size_t field, uint32_t value, const char* text) {
    Bytes spoilt = Table();
    Patch(&spoilt, field, value);
    EXPECT_THAT(Refusal(spoilt), HasSubstr(text)) << field;
  };
  refused(offsetof(Header, version), 0, "version is 0");
  refused(offsetof(Header, header_bytes), 40, "the header has 40 bytes");
  refused(offsetof(Header, header_bytes), 1 << 20, "the header has 1048576 bytes");
  refused(offsetof(Header, tensor_bytes), 24, "of a tensor has 24 bytes");
  refused(offsetof(Header, tensor_bytes), 33, "of a tensor has 33 bytes");
  refused(offsetof(Header, pair_bytes), 0, "of a metadata pair has 0 bytes");
  refused(offsetof(Header, table_bytes), UINT32_MAX, "claims 4294967295 bytes");
  refused(offsetof(Header, table_bytes), 40, "claims 40 bytes");
  refused(offsetof(Header, tensor_count), UINT32_MAX, "4294967295 tensors");
  refused(offsetof(Header, tensors_offset), 0, "tensors of 32 bytes at offset 0");
  refused(offsetof(Header, tensors_offset), 52, "at offset 52");
  refused(offsetof(Header, pair_count), 1000, "1000 metadata pairs");
  refused(offsetof(Header, pairs_offset), UINT32_MAX - 7, "at offset 4294967288");
}

TEST(TensorTableTest, RefusesWhatALaterVersionMustNotBeMisreadFor) {
  Bytes bytes = Table();
  Patch(&bytes, offsetof(Header, incompat_flags), uint32_t{4});
  EXPECT_EQ(CodeOf(TensorTable::Open(bytes, kBuffer)), Code::kIncompatible);
  bytes = Table();
  Patch(&bytes, TensorField(0, offsetof(TensorEntry, dtype)), uint16_t{kMaxDType + 1});
  const auto table = TensorTable::Open(bytes, kBuffer);
  ASSERT_EQ(CodeOf(table), Code::kIncompatible);
  EXPECT_THAT(table.error().what(), HasSubstr("tensor \"bias\" has the unknown type 23"));
}

TEST(TensorTableTest, RefusesATableThatStartsAtAnOddAddress) {
  Bytes bytes = Table();
  bytes.insert(bytes.begin(), std::byte{0});
  EXPECT_EQ(CodeOf(TensorTable::Open(std::span(bytes).subspan(1), kBuffer)),
            Code::kInvalidArgument);
}

TEST(TensorTableTest, RefusesTensorsThatLie) {
  const auto refused = [](size_t index, size_t field, auto value, const char* text) {
    Bytes bytes = Table();
    Patch(&bytes, TensorField(index, field), value);
    EXPECT_THAT(Refusal(bytes), HasSubstr(text));
  };
  refused(1, offsetof(TensorEntry, offset), uint64_t{kBuffer - 23},
          "24 bytes at offset 4073, ends outside of the buffer of 4096 bytes");
  refused(1, offsetof(TensorEntry, offset), UINT64_MAX, "ends outside of the buffer");
  refused(1, offsetof(TensorEntry, bytes), uint64_t{25},
          "has 25 bytes, which is not the size of F32 [2, 3]");
  refused(1, offsetof(TensorEntry, dtype), static_cast<uint16_t>(DType::kF64), "F64 [2, 3]");
  refused(1, offsetof(TensorEntry, rank), uint16_t{33}, "a shape of rank 33");
  refused(1, offsetof(TensorEntry, shape_offset), uint32_t{4}, "at offset 4 leaves");
  refused(1, offsetof(TensorEntry, shape_offset), UINT32_MAX - 7, "leaves the table");
  refused(1, offsetof(TensorEntry, name_offset), uint32_t{0}, "name of tensor 1");
  refused(1, offsetof(TensorEntry, name_offset), UINT32_MAX, "12 bytes at offset 4294967295");
  refused(1, offsetof(TensorEntry, name_bytes), uint32_t{11}, "lacks its NUL");
  refused(1, offsetof(TensorEntry, name_bytes), UINT32_MAX, "4294967295 bytes at offset");
  refused(0, offsetof(TensorEntry, name_bytes), uint32_t{17}, "a NUL character");
}

TEST(TensorTableTest, RefusesNamesThatAreNotSortedOrNotUnique) {
  for (const char* const name : {"zias", "layer.weight"}) {
    Bytes bytes = Encode({Make("a", DType::kU8, {1}), Make("bbbbbbbbbbbb", DType::kU8, {1}),
                          Make("layer.weight", DType::kU8, {1})});
    std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    std::memcpy(bytes.data() + text.find("bbbb"), name, std::strlen(name));
    EXPECT_THAT(Refusal(bytes), HasSubstr("must be unique and sorted"));
  }
}

// Goal: a hostile table cannot make readers check the same bytes again and again, because names do
// not overlap.
TEST(TensorTableTest, RefusesNamesThatOverlap) {
  Bytes bytes = Table();
  TensorEntry first;
  std::memcpy(&first, bytes.data() + TensorField(0, 0), sizeof first);
  Patch(&bytes, TensorField(1, offsetof(TensorEntry, name_offset)), first.name_offset + 1);
  Patch(&bytes, TensorField(1, offsetof(TensorEntry, name_bytes)), first.name_bytes - 1);
  EXPECT_THAT(Refusal(bytes), HasSubstr("overlaps another one"));
}

TEST(TensorTableTest, RefusesMetadataThatLies) {
  const auto refused = [](size_t field, uint32_t value) {
    Bytes bytes = Table();
    Patch(&bytes, PairField(field), value);
    EXPECT_THAT(Refusal(bytes), HasSubstr("metadata pair 0")) << field << " " << value;
  };
  refused(offsetof(PairEntry, key_offset), 0);
  refused(offsetof(PairEntry, key_bytes), UINT32_MAX);
  refused(offsetof(PairEntry, key_bytes), 5);
  refused(offsetof(PairEntry, value_offset), 8);
  refused(offsetof(PairEntry, value_bytes), 3);
}

std::string EncodeRefusal(const std::vector<Tensor>& tensors, const Metadata& metadata = {}) {
  const auto bytes = EncodeTable(tensors, metadata, kBuffer);
  EXPECT_EQ(CodeOf(bytes), Code::kInvalidArgument);
  return bytes ? "" : bytes.error().what();
}

TEST(EncodeTableTest, RefusesWhatOpenWouldRefuse) {
  EXPECT_THAT(EncodeRefusal({Make(std::string("a\0b", 3), DType::kU8, {1})}),
              HasSubstr("\"a\\x00b\": it has a NUL character"));
  EXPECT_THAT(EncodeRefusal({Make("\xff", DType::kU8, {1})}),
              HasSubstr("\"\\xff\": it is not UTF-8"));
  EXPECT_THAT(EncodeRefusal({Make("a", DType::kU8, {1}), Make("a", DType::kU8, {2})}),
              HasSubstr("two tensors have the name \"a\""));
  EXPECT_THAT(EncodeRefusal({Make("a", DType::kU8, {1}, kBuffer)}), HasSubstr("ends outside"));
  EXPECT_THAT(EncodeRefusal({{.name = "a", .shape = {3}, .bytes = 2}}),
              HasSubstr("has 2 bytes, which is not the size of U8 [3]"));
  EXPECT_THAT(EncodeRefusal({{.name = "a", .dtype = static_cast<DType>(0)}}),
              HasSubstr("unknown type 0"));
  EXPECT_THAT(EncodeRefusal({Make("a", DType::kU8, std::vector<uint64_t>(33, 1))}),
              HasSubstr("has 33 dimensions"));
  EXPECT_THAT(EncodeRefusal({}, {{"a", std::string(1, '\0')}}),
              HasSubstr("invalid value \"\\x00\" of metadata \"a\""));
  EXPECT_THAT(EncodeRefusal({}, {{"\xc3", "a"}}), HasSubstr("invalid metadata key \"\\xc3\""));
}

TEST(EncodeTableTest, KeepsTheLimits) {
  Metadata metadata;
  metadata["a"] = std::string(limits::kDescriptionBytes, 'x');
  EXPECT_EQ(CodeOf(EncodeTable({}, metadata, 0)), Code::kExhausted);
  metadata["a"].resize(limits::kDescriptionBytes - sizeof(Header) - sizeof(PairEntry) - 3);
  const auto largest = Must(EncodeTable({}, metadata, 0));
  EXPECT_EQ(largest.size(), limits::kDescriptionBytes);
  EXPECT_TRUE(TensorTable::Open(largest, 0));
  for (uint32_t i = 0; i < limits::kMetadataPairs; ++i) metadata[std::to_string(i)];
  EXPECT_EQ(CodeOf(EncodeTable({}, metadata, 0)), Code::kExhausted);
}

TEST(TextTest, IsUtf8WithoutNul) {
  for (const char* const good : {"a", "\xc2\x80", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xef\xbf\xbf",
                                 "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(TextProblem(good), nullptr) << Quote(good);
  }
  // Too long forms, halves of pairs, beyond Unicode, cut off, a lone second byte.
  for (const char* const bad :
       {"\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82", "\x80", "a\xc3"}) {
    EXPECT_NE(TextProblem(bad), nullptr) << Quote(bad);
  }
  EXPECT_EQ(TextProblem("a\nb\x7f"), nullptr);
  EXPECT_EQ(TextProblem(""), nullptr);
  EXPECT_NE(TextProblem(std::string_view("a\0", 2)), nullptr);
}

TEST(TextTest, IsShortInMessages) {
  EXPECT_EQ(Quote("a\"\xff\n"), "\"a\"\\xff\\x0a\"");
  EXPECT_EQ(Quote(std::string(200, 'x')), "\"" + std::string(96, 'x') + "...\"");
}

}  // namespace
}  // namespace gpushm::tensors
