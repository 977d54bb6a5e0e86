#include "contract/tensors/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "contract/limits.h"
#include "contract/tensors/encode.h"
#include "contract/tensors/testing.h"
#include "platform/base/testing/code.h"

namespace gpushm::tensors {
namespace {

using gpushm::testing::CodeOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Make;
using ::testing::Pair;

SafetensorsFile File(std::string name, std::vector<Tensor> tensors, Metadata metadata = {}) {
  return {.name = std::move(name),
          .data_offset = 100,
          .tensors = std::move(tensors),
          .metadata = std::move(metadata)};
}

TEST(PlanLoadTest, AlignsEachTensor) {
  const auto plan =
      PlanLoad({File("m", {Make("a", DType::kU8, {10}), Make("b", DType::kU8, {256}, 10),
                           Make("c", DType::kU8, {1}, 266)})});
  ASSERT_TRUE(plan) << plan.error().ToString();
  EXPECT_THAT(plan->tensors,
              ElementsAre(Make("a", DType::kU8, {10}), Make("b", DType::kU8, {256}, 256),
                          Make("c", DType::kU8, {1}, 512)));
  // "b" fills whole blocks, so that "c" follows it in the file and in the buffer.
  EXPECT_THAT(plan->segments, ElementsAre(Segment{0, 100, 0, 10}, Segment{0, 110, 256, 257}));
  EXPECT_EQ(plan->buffer_bytes, 513U);
}

TEST(PlanLoadTest, PutsFilesOneBehindTheOther) {
  const auto plan =
      PlanLoad({File("m1", {Make("b", DType::kU8, {256})}, {{"format", "pt"}, {"x", "1"}}),
                File("m2", {Make("a", DType::kU8, {3})}, {{"format", "np"}, {"y", "2"}})});
  ASSERT_TRUE(plan) << plan.error().ToString();
  EXPECT_THAT(plan->segments, ElementsAre(Segment{0, 100, 0, 256}, Segment{1, 100, 256, 3}));
  EXPECT_THAT(plan->metadata, ElementsAre(Pair("format", "pt"), Pair("x", "1"), Pair("y", "2")));
  EXPECT_EQ(plan->buffer_bytes, 259U);
}

TEST(PlanLoadTest, EmptyTensorsHaveAnOffsetAndNoSegment) {
  const auto plan = PlanLoad({File("m", {Make("e", DType::kU8, {0}), Make("a", DType::kU8, {1}),
                                         Make("f", DType::kF32, {2, 0}, 1)})});
  ASSERT_TRUE(plan) << plan.error().ToString();
  EXPECT_THAT(plan->segments, ElementsAre(Segment{0, 100, 0, 1}));
  EXPECT_EQ(plan->tensors.at(2).offset, 256U);
  EXPECT_TRUE(EncodeTable(plan->tensors, plan->metadata, plan->buffer_bytes));
  EXPECT_EQ(PlanLoad({})->buffer_bytes, 0U);
}

TEST(PlanLoadTest, SkipsBytesOfTensorsThatTheIndexDoesNotList) {
  const auto plan =
      PlanLoad({File("m", {Make("a", DType::kU8, {256}), Make("c", DType::kU8, {256}, 512)})});
  ASSERT_TRUE(plan) << plan.error().ToString();
  EXPECT_THAT(plan->segments, ElementsAre(Segment{0, 100, 0, 256}, Segment{0, 612, 256, 256}));
}

TEST(PlanLoadTest, RefusesATensorInTwoFiles) {
  const auto plan = PlanLoad({File("m1", {Make("b", DType::kU8, {1}), Make("a", DType::kU8, {1})}),
                              File("m2", {Make("a", DType::kU8, {1})})});
  ASSERT_EQ(CodeOf(plan), Code::kInvalidArgument);
  EXPECT_THAT(plan.error().what(), HasSubstr("tensor \"a\" is in two files: \"m1\" and \"m2\""));
}

TEST(PlanLoadTest, KeepsTheLimits) {
  const auto plan = PlanLoad(
      {File("m", {Make("a", DType::kU8, {1}), Make("b", DType::kU8, {limits::kBufferBytes}, 1)})});
  ASSERT_EQ(CodeOf(plan), Code::kExhausted);
  EXPECT_THAT(plan.error().what(), HasSubstr("tensor \"b\" of 70368744177664 bytes"));
  EXPECT_EQ(CodeOf(PlanLoad(std::vector<SafetensorsFile>(limits::kTensorFiles + 1))),
            Code::kExhausted);
  std::vector<Tensor> half(limits::kTensors / 2 + 1);
  EXPECT_EQ(CodeOf(PlanLoad({File("m1", half), File("m2", half)})), Code::kExhausted);
}

// ---- saving

// The plan of a save of these tensors in a buffer of 2^62 bytes.
Result<SavePlan> Save(const std::vector<Tensor>& tensors, const Metadata& metadata = {}) {
  constexpr uint64_t kBuffer = uint64_t{1} << 62;
  const auto bytes = EncodeTable(tensors, metadata, kBuffer);
  EXPECT_TRUE(bytes) << bytes.error().ToString();
  const auto table = TensorTable::Open(*bytes, kBuffer);
  EXPECT_TRUE(table) << table.error().ToString();
  return PlanSave(*table);
}

TEST(PlanSaveTest, WritesTheHeaderOfTheReferenceImplementation) {
  const auto plan = Save({Make("a", DType::kF32, {2, 2}, 256), Make("b", DType::kU8, {3})},
                         {{"format", "pt"}, {"note", "a\"\n"}});
  ASSERT_TRUE(plan) << plan.error().ToString();
  const std::string header = R"({"__metadata__":{"format":"pt","note":"a\"\n"},)"
                             R"("b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                             R"("a":{"dtype":"F32","shape":[2,2],"data_offsets":[3,19]}})";
  EXPECT_EQ(plan->head.size() % 8, 0U);
  uint64_t length = 0;
  std::memcpy(&length, plan->head.data(), sizeof length);
  EXPECT_EQ(length, plan->head.size() - 8);
  EXPECT_EQ(plan->head.substr(8, header.size()), header);
  EXPECT_EQ(plan->head.find_first_not_of(' ', 8 + header.size()), std::string::npos);
  const uint64_t data = plan->head.size();
  EXPECT_THAT(plan->segments, ElementsAre(Segment{0, data, 0, 3}, Segment{0, data + 3, 256, 16}));
  EXPECT_EQ(plan->file_bytes, data + 19);
}

TEST(PlanSaveTest, MergesNeighbours) {
  const auto plan = Save({Make("b", DType::kU8, {256}, 256), Make("a", DType::kU8, {256}),
                          Make("e", DType::kU8, {0}, 256)});
  ASSERT_TRUE(plan) << plan.error().ToString();
  EXPECT_THAT(plan->segments, ElementsAre(Segment{0, plan->head.size(), 0, 512}));
}

TEST(PlanSaveTest, SharedBytesAreWrittenForEachTensor) {
  const auto plan = Save({Make("a", DType::kU8, {8}), Make("b", DType::kI32, {2})});
  ASSERT_TRUE(plan) << plan.error().ToString();
  const uint64_t data = plan->head.size();
  EXPECT_THAT(plan->segments, ElementsAre(Segment{0, data, 0, 8}, Segment{0, data + 8, 0, 8}));
  EXPECT_TRUE(ParseSafetensorsHeader(std::string_view(plan->head).substr(8), 16));
}

TEST(PlanSaveTest, AnEmptyTableIsAnEmptyFile) {
  const auto plan = Save({});
  ASSERT_TRUE(plan) << plan.error().ToString();
  EXPECT_EQ(plan->head.substr(8), "{}      ");
  EXPECT_EQ(plan->file_bytes, plan->head.size());
}

TEST(PlanSaveTest, RefusesWhatAFileCannotHold) {
  const auto plan = Save({Make("__metadata__", DType::kU8, {1})});
  ASSERT_EQ(CodeOf(plan), Code::kInvalidArgument);
  EXPECT_THAT(plan.error().what(), HasSubstr("\"__metadata__\""));
  const Tensor half = Make("a", DType::kU8, {uint64_t{1} << 60});
  std::vector<Tensor> many(5, half);
  for (size_t i = 0; i < many.size(); ++i) many[i].name += std::to_string(i);
  EXPECT_EQ(CodeOf(Save(many)), Code::kExhausted);
}

// Goal: what was saved is loaded again as the same tensors.
TEST(PlanSaveTest, ReadsBack) {
  const std::vector<Tensor> tensors = {Make("\xc3\xa4 \"q\" \\", DType::kF16, {2, 3}),
                                       Make("b", DType::kF6E2M3, {4}, 256),
                                       Make("c", DType::kC64, {}, 512)};
  const auto plan = Save(tensors, {{"", "\xe2\x82\xac"}});
  ASSERT_TRUE(plan) << plan.error().ToString();
  auto file = ParseSafetensorsHeader(std::string_view(plan->head).substr(8),
                                     plan->file_bytes - plan->head.size());
  ASSERT_TRUE(file) << file.error().ToString();
  const auto again = PlanLoad({std::move(*file)});
  ASSERT_TRUE(again) << again.error().ToString();
  EXPECT_EQ(again->tensors, tensors);
  EXPECT_THAT(again->metadata, ElementsAre(Pair("", "\xe2\x82\xac")));
  EXPECT_EQ(again->segments.size(), 3U);
}

}  // namespace
}  // namespace gpushm::tensors
