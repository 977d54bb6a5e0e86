#include "contract/tensors/safetensors.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "contract/limits.h"
#include "contract/tensors/testing.h"
#include "platform/base/testing.h"
#include "platform/base/testing/code.h"
#include "platform/base/unique_fd.h"

namespace gpushm::tensors {
namespace {

using gpushm::testing::CodeOf;
using gpushm::testing::TempFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Make;
using ::testing::Pair;

// A header with one tensor "a" of four bytes, with these members.
std::string Entry(const std::string& members) { return R"({"a":{)" + members + "}}"; }

std::string Refusal(const std::string& header, uint64_t data_bytes = 4,
                    Code code = Code::kInvalidArgument) {
  const auto file = ParseSafetensorsHeader(header, data_bytes);
  EXPECT_EQ(CodeOf(file), code) << header;
  return file ? "" : file.error().what();
}

TEST(SafetensorsHeaderTest, ListsTensorsInTheOrderOfTheirBytes) {
  const std::string header = R"({"__metadata__":{"format":"pt","note":"two\nlines"},)"
                             R"("b":{"dtype":"F32","shape":[2,3],"data_offsets":[2,26]},)"
                             R"("a\u00e4":{"shape":[],"data_offsets":[0,2],"dtype":"BF16"},)"
                             R"("empty":{"dtype":"I64","shape":[0,7],"data_offsets":[26,26]}}  )";
  const auto file = ParseSafetensorsHeader(header, 26);
  ASSERT_TRUE(file) << file.error().ToString();
  EXPECT_EQ(file->data_offset, 8 + header.size());
  EXPECT_THAT(file->tensors,
              ElementsAre(Make("a\xc3\xa4", DType::kBF16, {}, 0), Make("b", DType::kF32, {2, 3}, 2),
                          Make("empty", DType::kI64, {0, 7}, 26)));
  EXPECT_THAT(file->metadata, ElementsAre(Pair("format", "pt"), Pair("note", "two\nlines")));
}

TEST(SafetensorsHeaderTest, MayHaveNoTensor) {
  for (const char* const header : {"{}", "{}      ", R"({"__metadata__":{}})"}) {
    const auto file = ParseSafetensorsHeader(header, 0);
    ASSERT_TRUE(file) << file.error().ToString();
    EXPECT_TRUE(file->tensors.empty());
  }
}

// Goal: what safetensors 0.8.0 opens, opens. tests/foreign compares with that package itself.
TEST(SafetensorsHeaderTest, IsAsTolerantAsTheReferenceImplementation) {
  const std::string entry = R"({"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  for (const std::string& header : {
           R"({"__metadata__":null,"a":)" + entry + "}",
           R"({"a":)" + entry + R"(,"__metadata__":null})",
           " \t\r\n{\"a\":" + entry + "} \n",
           Entry(R"("dtype":"U8","strides":[1,[2,{"x":[]}]],"shape":[4],"data_offsets":[0,4])"),
           Entry(R"("x":null,"dtype":"U8","shape":[4],"data_offsets":[0,4],"y":{"dtype":"F64"})"),
           Entry(R"("x":-1,"x":1.5e3,"x":true,"x":"t","dtype":"U8","shape":[4],)"
                 R"("data_offsets":[0,4],"":7)"),
       }) {
    const auto file = ParseSafetensorsHeader(header, 4);
    ASSERT_TRUE(file) << header << file.error().ToString();
    EXPECT_THAT(file->tensors, ElementsAre(Make("a", DType::kU8, {4}))) << header;
    EXPECT_TRUE(file->metadata.empty());
  }
  for (const auto& [written, name] : {std::pair<std::string, std::string>{"", ""},
                                      {R"(a\tb\n)", "a\tb\n"},
                                      {R"(\u007f)", "\x7f"},
                                      {"..", ".."}}) {
    const auto file = ParseSafetensorsHeader("{\"" + written + "\":" + entry + "}", 4);
    ASSERT_TRUE(file) << written << file.error().ToString();
    EXPECT_EQ(file->tensors.at(0).name, name);
  }
}

TEST(SafetensorsHeaderTest, EmptyTensorsMayStandAtAnyBoundary) {
  const auto file =
      ParseSafetensorsHeader(R"({"e":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                             R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("f":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}})",
                             1);
  ASSERT_TRUE(file) << file.error().ToString();
  EXPECT_EQ(file->tensors.at(0).name, "e");
  EXPECT_EQ(file->tensors.at(2).name, "f");
}

TEST(SafetensorsHeaderTest, RefusesOtherThanOneJsonObject) {
  EXPECT_THAT(Refusal(""), HasSubstr("not a JSON object"));
  EXPECT_THAT(Refusal("[]"), HasSubstr("begins with \"[]\""));
  EXPECT_THAT(Refusal("\xef\xbb\xbf{}"), HasSubstr("not a JSON object"));
  EXPECT_THAT(Refusal("{"), HasSubstr("not JSON: byte 2"));
  EXPECT_THAT(Refusal("{}{}"), HasSubstr("not JSON: byte 3"));
  EXPECT_THAT(Refusal("{\"\xff\":{}}"), HasSubstr("not JSON: byte 3, near \"\"\\xff\""));
  EXPECT_THAT(Refusal(R"({"\ud800":{}})"), HasSubstr("not JSON"));
  EXPECT_THAT(Refusal(std::string("{}\0x", 4)), HasSubstr("byte 3 is NUL"));
  EXPECT_THAT(Refusal(std::string(limits::kSafetensorsHeaderBytes + 1, ' ')),
              HasSubstr("a header of 100000001 bytes"));
}

TEST(SafetensorsHeaderTest, RefusesWrongTypes) {
  EXPECT_THAT(Refusal(R"({"a":3})"), HasSubstr("tensor \"a\": unexpected 3"));
  EXPECT_THAT(Refusal(R"({"a":null})"), HasSubstr("unexpected null"));
  EXPECT_THAT(Refusal(R"({"a":[]})"), HasSubstr("unexpected array"));
  EXPECT_THAT(Refusal(R"({"__metadata__":"x"})"), HasSubstr("__metadata__: unexpected text \"x\""));
  EXPECT_THAT(Refusal(R"({"__metadata__":{"x":1}})"), HasSubstr("__metadata__: unexpected 1"));
  EXPECT_THAT(Refusal(R"({"__metadata__":{"x":{}}})"), HasSubstr("unexpected object"));
  EXPECT_THAT(Refusal(Entry(R"("dtype":15)")), HasSubstr("tensor \"a\": dtype: unexpected 15"));
  EXPECT_THAT(Refusal(Entry(R"("shape":4)")), HasSubstr("shape: unexpected 4"));
  EXPECT_THAT(Refusal(Entry(R"("shape":["4"])")), HasSubstr("shape: unexpected text \"4\""));
  EXPECT_THAT(Refusal(Entry(R"("shape":[[4]])")), HasSubstr("shape: unexpected array"));
  EXPECT_THAT(Refusal(Entry(R"("shape":[true])")), HasSubstr("shape: unexpected true"));
  EXPECT_THAT(Refusal(Entry(R"("data_offsets":{})")), HasSubstr("unexpected object"));
}

TEST(SafetensorsHeaderTest, RefusesNumbersThatAreNotWholeOrTooLarge) {
  EXPECT_THAT(Refusal(Entry(R"("shape":[-4])")), HasSubstr("shape: unexpected -4"));
  EXPECT_THAT(Refusal(Entry(R"("shape":[4.0])")), HasSubstr("unexpected number \"4.0\""));
  EXPECT_THAT(Refusal(Entry(R"("shape":[18446744073709551616])")),
              HasSubstr("number \"18446744073709551616\"; only whole numbers below 2^64"));
  EXPECT_THAT(Refusal(Entry(R"("data_offsets":[0,1e1])")), HasSubstr("number \"1e1\""));
  EXPECT_THAT(Refusal(Entry(R"("data_offsets":[0,1e999])")), HasSubstr("not JSON"));
}

TEST(SafetensorsHeaderTest, RefusesEntriesThatAreIncompleteOrAmbiguous) {
  EXPECT_THAT(Refusal(Entry(R"("shape":[4],"data_offsets":[0,4])")),
              HasSubstr("tensor \"a\": no dtype"));
  EXPECT_THAT(Refusal(Entry(R"("dtype":"U8","data_offsets":[0,4])")), HasSubstr("no shape"));
  EXPECT_THAT(Refusal(Entry(R"("dtype":"U8","shape":[4])")), HasSubstr("no data_offsets"));
  EXPECT_THAT(Refusal(Entry(R"("dtype":"U8","dtype":"I8")")),
              HasSubstr("tensor \"a\": dtype: the key occurs twice"));
  EXPECT_THAT(Refusal(Entry(R"("strides":[1])")), HasSubstr("tensor \"a\": no dtype"));
  EXPECT_THAT(Refusal(R"({"__metadata__":{},"__metadata__":{}})"),
              HasSubstr("__metadata__: the key occurs twice"));
  EXPECT_THAT(Refusal(R"({"__metadata__":{"x":"1","x":"1"}})"),
              HasSubstr("the key \"x\" occurs twice"));
}

TEST(SafetensorsHeaderTest, RefusesUnknownTypesAndNamesTheKnownOnes) {
  EXPECT_THAT(Refusal(Entry(R"("dtype":"F128")")),
              HasSubstr("dtype: \"F128\" is not one of the known types: BOOL, U8, I8, F8_E5M2"));
}

TEST(SafetensorsHeaderTest, RefusesShapesThatDoNotGiveTheSize) {
  EXPECT_THAT(Refusal(Entry(R"("dtype":"U8","shape":[5],"data_offsets":[0,4])")),
              HasSubstr("data_offsets span 4 bytes, which is not the size of U8 [5]"));
  EXPECT_THAT(Refusal(Entry(R"("dtype":"F4","shape":[3],"data_offsets":[0,1])")),
              HasSubstr("not the size of F4 [3]"));
  EXPECT_THAT(Refusal(Entry(R"("dtype":"U8","shape":[4294967296,4294967296,4],)"
                            R"("data_offsets":[0,4])")),
              HasSubstr("not the size of U8"));
  std::string ones = "1";
  for (uint32_t i = 1; i < limits::kTensorRank; ++i) ones += ",1";
  const auto with_shape = [](const std::string& shape) {
    return Entry(R"("dtype":"U8","data_offsets":[0,1],"shape":[)" + shape + "]");
  };
  EXPECT_TRUE(ParseSafetensorsHeader(with_shape(ones), 1));
  EXPECT_THAT(Refusal(with_shape(ones + ",1"), 1), HasSubstr("more than 32 dimensions"));
}

// The header of tensors "a", "b" ... of U8 in these ranges.
std::string Ranges(std::initializer_list<std::pair<uint64_t, uint64_t>> ranges) {
  std::string header = "{";
  char name = 'a';
  for (const auto& [begin, end] : ranges) {
    if (header.size() > 1) header += ',';
    header += Concat("\"", name++, R"(":{"dtype":"U8","shape":[)", end - begin,
                     R"(],"data_offsets":[)", begin, ",", end, "]}");
  }
  return header + "}";
}

TEST(SafetensorsHeaderTest, RefusesRangesThatDoNotCoverTheData) {
  EXPECT_TRUE(ParseSafetensorsHeader(Ranges({{1, 4}, {0, 1}}), 4));
  EXPECT_THAT(Refusal(Ranges({{0, 3}, {2, 4}})),
              HasSubstr("tensor \"b\" begins at byte 2 of the data, which overlaps the one before "
                        "it, which ends at 3"));
  EXPECT_THAT(Refusal(Ranges({{0, 2}, {0, 4}})), HasSubstr("overlaps"));
  EXPECT_THAT(Refusal(Ranges({{0, 2}, {3, 4}})), HasSubstr("\"b\" begins at byte 3"));
  EXPECT_THAT(Refusal(Ranges({{1, 4}})), HasSubstr("\"a\" begins at byte 1"));
  EXPECT_THAT(Refusal(Ranges({{0, 5}}), 4, Code::kBusy),
              HasSubstr("it has 65 of the 66 bytes that its header announces"));
  EXPECT_THAT(Refusal(Ranges({{0, 3}})), HasSubstr("it has 65 bytes, and its header announces 64"));
  EXPECT_THAT(Refusal("{}"), HasSubstr("it has 14 bytes, and its header announces 10"));
  EXPECT_THAT(Refusal(Entry(R"("data_offsets":[4,0])")),
              HasSubstr("data_offsets: [4, 0] is not [begin, end] with begin <= end"));
  EXPECT_THAT(Refusal(Entry(R"("data_offsets":[0])")), HasSubstr("[0] is not [begin, end]"));
  EXPECT_THAT(Refusal(Entry(R"("data_offsets":[0,4,8])")), HasSubstr("more than two numbers"));
}

TEST(SafetensorsHeaderTest, RefusesNamesThatAreNotUniqueOrHaveANul) {
  const std::string entry = R"(:{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  EXPECT_THAT(Refusal(R"({"a")" + entry + R"(,"b")" + entry + R"(,"\u0061")" + entry + "}", 0),
              HasSubstr("tensor \"a\" occurs twice"));
  EXPECT_THAT(Refusal(R"({"a\u0000b")" + entry + "}", 0),
              HasSubstr("invalid tensor name \"a\\x00b\": it has a NUL character"));
  const std::string refusal =
      Refusal("{\"" + std::string(5000, 'x') + "\\u0000\"" + entry + "}", 0);
  EXPECT_THAT(refusal, HasSubstr("xxx...\""));
  EXPECT_LT(refusal.size(), 200U);
  EXPECT_THAT(Refusal(R"({"__metadata__":{"x":"a\u0000"}})"),
              HasSubstr("\"a\\x00\": it has a NUL"));
}

TEST(SafetensorsHeaderTest, KeepsTheLimitOfMetadata) {
  std::string header = R"({"__metadata__":{)";
  for (uint32_t i = 0; i <= limits::kMetadataPairs; ++i) {
    header += Concat(i == 0 ? "\"" : ",\"", i, "\":\"\"");
  }
  EXPECT_EQ(CodeOf(ParseSafetensorsHeader(header + "}}", 0)), Code::kExhausted);
}

// ---- files

class SafetensorsFileTest : public ::testing::Test {
 protected:
  // A file with this length of the header, and this text behind it.
  UniqueFd Write(uint64_t length, const std::string& text) {
    UniqueFd file(open((folder_ / "f").c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    EXPECT_EQ(write(file.get(), &length, sizeof length), ssize_t{sizeof length});
    EXPECT_EQ(write(file.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    return file;
  }
  std::string Refusal(uint64_t length, const std::string& text, uint64_t size_bytes,
                      Code code = Code::kBusy) {
    const UniqueFd fd = Write(length, text);
    const auto file = ReadSafetensors(fd.get(), size_bytes, "m.safetensors");
    EXPECT_EQ(CodeOf(file), code);
    if (file) return "";
    EXPECT_THAT(file.error().what(), HasSubstr("tensor file \"m.safetensors\": "));
    return file.error().what();
  }

  const std::string header_ = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  TempFolder folder_;
};

TEST_F(SafetensorsFileTest, IsRead) {
  const UniqueFd fd = Write(header_.size(), header_ + "data");
  const auto file = ReadSafetensors(fd.get(), 8 + header_.size() + 4, "m.safetensors");
  ASSERT_TRUE(file) << file.error().ToString();
  EXPECT_EQ(file->name, "m.safetensors");
  EXPECT_EQ(file->data_offset, 8 + header_.size());
  EXPECT_THAT(file->tensors, ElementsAre(Make("a", DType::kU8, {4})));
}

// Goal: what is there of a file that is being written is told from a file that is wrong.
TEST_F(SafetensorsFileTest, MustBeAsLongAsItSays) {
  const uint64_t size = 8 + header_.size() + 4;
  EXPECT_THAT(Refusal(header_.size(), header_, 0), HasSubstr("it is empty"));
  EXPECT_THAT(Refusal(header_.size(), header_, 7), HasSubstr("it has 7 bytes"));
  EXPECT_THAT(Refusal(header_.size(), header_ + "dat", size - 1),
              HasSubstr(Concat("it has ", size - 1, " of the ", size, " bytes")));
  EXPECT_THAT(Refusal(size, header_ + "data", size),
              HasSubstr(Concat("it has ", size, " bytes, and its header ends at byte ", size + 8)));
  EXPECT_THAT(Refusal(0, std::string(header_.size(), '\0'), size),
              HasSubstr("its first bytes are zeroes"));
  EXPECT_THAT(Refusal(header_.size(), header_ + "data.", size + 1, Code::kInvalidArgument),
              HasSubstr(Concat("it has ", size + 1, " bytes, and its header announces ", size)));
  EXPECT_THAT(Refusal(UINT64_MAX, header_ + "data", size, Code::kInvalidArgument),
              HasSubstr("a header of 18446744073709551615 bytes, and the largest one has"));
}

TEST_F(SafetensorsFileTest, MayBecomeShorterMeanwhile) {
  EXPECT_THAT(Refusal(header_.size(), header_.substr(0, 10), 8 + header_.size() + 4),
              HasSubstr("it became shorter: it ends at byte 18"));
}

TEST_F(SafetensorsFileTest, MayBeUnreadable) {
  EXPECT_EQ(CodeOf(ReadSafetensors(-1, 100, "x")), Code::kSystem);
}

}  // namespace
}  // namespace gpushm::tensors
