// Goal: files of the reference implementation load, and a buffer that is saved gives the same bytes
// as it would write. Method: the header below was written by the Python package safetensors 0.8.0:
//   safetensors.numpy.save({"layer.0.weight": 2x3 of float32, "bias": 3 of uint8, "scalar": int64,
//                           "empty": 0x4 of float16, "\u00e9": 2 of bool}, {"format": "np"})
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string_view>

#include "contract/tensors/encode.h"
#include "contract/tensors/plan.h"
#include "contract/tensors/safetensors.h"
#include "contract/tensors/table.h"
#include "contract/tensors/testing.h"
#include "platform/base/testing/must.h"

namespace gpushm::tensors {
namespace {

using ::gpushm::testing::Must;
using ::testing::ElementsAre;
using testing::Make;
using ::testing::Pair;

constexpr std::string_view kHeader =
    R"({"__metadata__":{"format":"np"},)"
    R"("scalar":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
    R"("layer.0.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]},)"
    R"("empty":{"dtype":"F16","shape":[0,4],"data_offsets":[32,32]},)"
    R"("bias":{"dtype":"U8","shape":[3],"data_offsets":[32,35]},)"
    "\"\xc3\xa9\":"
    R"({"dtype":"BOOL","shape":[2],"data_offsets":[35,37]}}   )";
constexpr uint64_t kDataBytes = 37;
static_assert(kHeader.size() == 336);

TEST(ReferenceTest, ItsFilesLoad) {
  const auto file = Must(ParseSafetensorsHeader(kHeader, kDataBytes));
  EXPECT_THAT(file.tensors,
              ElementsAre(Make("scalar", DType::kI64, {}, 0),
                          Make("layer.0.weight", DType::kF32, {2, 3}, 8),
                          Make("empty", DType::kF16, {0, 4}, 32), Make("bias", DType::kU8, {3}, 32),
                          Make("\xc3\xa9", DType::kBool, {2}, 35)));
  EXPECT_THAT(file.metadata, ElementsAre(Pair("format", "np")));
}

TEST(ReferenceTest, ItWouldWriteTheSameBytes) {
  const auto file = Must(ParseSafetensorsHeader(kHeader, kDataBytes));
  const auto bytes = Must(EncodeTable(file.tensors, file.metadata, kDataBytes));
  const auto table = Must(TensorTable::Open(bytes, kDataBytes));
  const auto plan = Must(PlanSave(table));
  EXPECT_EQ(std::string_view(plan.head).substr(8), kHeader);
  EXPECT_THAT(plan.segments, ElementsAre(Segment{0, 8 + kHeader.size(), 0, kDataBytes}));
}

}  // namespace
}  // namespace gpushm::tensors
