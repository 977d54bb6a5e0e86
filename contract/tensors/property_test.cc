// Goal: what is encoded or saved is what readers find again, for random tensors and for as many of
// them as the limits allow.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "contract/limits.h"
#include "contract/tensors/encode.h"
#include "contract/tensors/plan.h"
#include "contract/tensors/safetensors.h"
#include "contract/tensors/table.h"
#include "contract/tensors/testing.h"
#include "platform/base/quote.h"
#include "platform/base/testing.h"
#include "platform/base/testing/must.h"

namespace gpushm::tensors {
namespace {

using ::gpushm::testing::Must;
using gpushm::testing::TestSeed;
using testing::Make;

std::string RandomText(std::mt19937* random) {
  static const std::vector<std::string> kParts = {"a",
                                                  "b",
                                                  "Z",
                                                  "0",
                                                  ".",
                                                  "\"",
                                                  "\\",
                                                  " ",
                                                  "/",
                                                  "\x7e",
                                                  "\xc3\xa4",
                                                  "\xe2\x82\xac",
                                                  "\xf0\x9f\x98\x80"};
  std::string text;
  for (size_t i = (*random)() % 9; i > 0; --i) text += kParts[(*random)() % kParts.size()];
  if ((*random)() % 8 == 0) text += "\n\x01";
  return text;
}

Tensor RandomTensor(std::mt19937* random, std::string name) {
  std::vector<uint64_t> shape(std::min((*random)() % 12, (*random)() % 33));
  for (uint64_t& dimension : shape) dimension = (*random)() % 4;
  // A multiple of 4, so that elements of 4 and 6 bits fill whole bytes.
  shape.push_back(4 * ((*random)() % 3));
  return Make(std::move(name), static_cast<DType>(1 + (*random)() % kMaxDType), std::move(shape));
}

std::vector<Tensor> RandomTensors(std::mt19937* random, uint64_t* buffer_bytes) {
  std::vector<Tensor> tensors;
  std::set<std::string> names;
  for (size_t i = (*random)() % 20; i > 0; --i) {
    std::string name = RandomText(random);
    if (!names.insert(name).second) continue;
    Tensor tensor = RandomTensor(random, std::move(name));
    tensor.offset = *buffer_bytes + (*random)() % 3;
    *buffer_bytes = tensor.offset + tensor.bytes;
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

Metadata RandomMetadata(std::mt19937* random) {
  Metadata metadata;
  for (size_t i = (*random)() % 4; i > 0; --i) {
    metadata[RandomText(random)] = RandomText(random);
  }
  return metadata;
}

void ExpectSame(const TensorTable& table, const std::vector<Tensor>& tensors,
                const Metadata& metadata) {
  ASSERT_EQ(table.count(), tensors.size());
  for (const Tensor& tensor : tensors) {
    const auto found = table.Find(tensor.name);
    ASSERT_TRUE(found) << Quote(tensor.name);
    EXPECT_EQ(found->name, tensor.name);
    EXPECT_EQ(found->dtype, tensor.dtype);
    EXPECT_TRUE(std::ranges::equal(found->shape, tensor.shape)) << Quote(tensor.name);
    EXPECT_EQ(found->offset, tensor.offset);
    EXPECT_EQ(found->bytes, tensor.bytes);
  }
  ASSERT_EQ(table.metadata_count(), metadata.size());
  for (const auto& [key, value] : metadata) EXPECT_EQ(table.FindMetadata(key), value);
}

// The peak of the memory of a process that parses this header, in MiB; 0: it failed.
uint64_t PeakOfParsing(const std::string& header, uint64_t data_bytes) {
  const pid_t child = fork();
  if (child == 0) _exit(ParseSafetensorsHeader(header, data_bytes) ? 0 : 1);
  int status = 0;
  rusage usage{};
  if (wait4(child, &status, 0, &usage) != child || status != 0) return 0;
  return static_cast<uint64_t>(usage.ru_maxrss) / 1024;
}

// Goal: the largest header that the limits allow takes about three times its size in memory, so
// that a loader may have a small limit. Method: a child parses it, and the kernel counts. It is the
// first test of this program, because the child begins with the memory that its parent has.
TEST(SafetensorsMemoryTest, TheLargestHeader) {
#ifdef GPUSHM_SANITIZED
  GTEST_SKIP() << "a sanitizer needs memory of its own";
#endif
  std::string header;
  header.reserve(limits::kSafetensorsHeaderBytes);
  header = "{";
  uint64_t end = 0;
  for (uint32_t i = 0; i < limits::kTensors; ++i) {
    const std::string begin = std::to_string(end);
    end += 16;
    header += (i == 0 ? "\"layers." : ",\"layers.") + std::to_string(i) +
              R"(.mlp.weight":{"dtype":"BF16","shape":[2,4],"data_offsets":[)" + begin + "," +
              std::to_string(end) + "]}";
  }
  header += '}';
  ASSERT_LE(header.size(), limits::kSafetensorsHeaderBytes);
  header.resize(limits::kSafetensorsHeaderBytes, ' ');
  const uint64_t peak = PeakOfParsing(header, end);
  EXPECT_GT(peak, 100U);
  EXPECT_LT(peak, 300U);
}

TEST(TensorsPropertyTest, TablesReturnWhatWasEncoded) {
  std::mt19937 random(TestSeed(1));
  for (int round = 0; round < 2000; ++round) {
    uint64_t buffer_bytes = 0;
    const std::vector<Tensor> tensors = RandomTensors(&random, &buffer_bytes);
    const Metadata metadata = RandomMetadata(&random);
    const auto bytes = Must(EncodeTable(tensors, metadata, buffer_bytes));
    const auto table = Must(TensorTable::Open(bytes, buffer_bytes));
    ExpectSame(table, tensors, metadata);
  }
}

// Goal: a buffer that is saved and loaded again has the same tensors with the same bytes. Method:
// the bytes of buffers and file are copied as the plans say.
TEST(TensorsPropertyTest, SavedFilesLoadAsTheSameTensors) {
  std::mt19937 random(TestSeed(2));
  for (int round = 0; round < 1000; ++round) {
    uint64_t buffer_bytes = 0;
    const std::vector<Tensor> tensors = RandomTensors(&random, &buffer_bytes);
    const Metadata metadata = RandomMetadata(&random);
    const auto bytes = EncodeTable(tensors, metadata, buffer_bytes);
    ASSERT_TRUE(bytes) << bytes.error().ToString();
    const auto table = Must(TensorTable::Open(*bytes, buffer_bytes));
    const auto save = Must(PlanSave(table));

    std::string buffer(buffer_bytes, '\0');
    for (char& byte : buffer) byte = static_cast<char>(random());
    std::string file = save.head;
    for (const Segment& segment : save.segments) {
      ASSERT_EQ(file.size(), segment.file_offset);
      file += buffer.substr(segment.buffer_offset, segment.bytes);
    }
    ASSERT_EQ(file.size(), save.file_bytes);

    auto parsed = Must(ParseSafetensorsHeader(std::string_view(save.head).substr(8),
                                              save.file_bytes - save.head.size()));
    EXPECT_EQ(parsed.metadata, metadata);
    const auto load = Must(PlanLoad({std::move(parsed)}));
    std::string loaded(load.buffer_bytes, '\0');
    for (const Segment& segment : load.segments) {
      loaded.replace(segment.buffer_offset, segment.bytes,
                     file.substr(segment.file_offset, segment.bytes));
    }
    ASSERT_EQ(load.tensors.size(), tensors.size());
    for (const Tensor& tensor : load.tensors) {
      const auto original = table.Find(tensor.name);
      ASSERT_TRUE(original) << Quote(tensor.name);
      EXPECT_EQ(tensor.dtype, original->dtype);
      EXPECT_TRUE(std::ranges::equal(tensor.shape, original->shape));
      EXPECT_EQ(tensor.offset % kTensorAlignBytes, 0U);
      EXPECT_EQ(loaded.substr(tensor.offset, tensor.bytes),
                buffer.substr(original->offset, original->bytes));
    }
  }
}

// Goal: a table with one wrong byte is refused or answers every query.
TEST(TensorsPropertyTest, SpoiltTablesAreRefusedOrWhole) {
  std::mt19937 random(TestSeed(3));
  size_t refused = 0;
  for (int round = 0; round < 20000; ++round) {
    uint64_t buffer_bytes = 0;
    const std::vector<Tensor> tensors = RandomTensors(&random, &buffer_bytes);
    auto bytes = Must(EncodeTable(tensors, RandomMetadata(&random), buffer_bytes));
    bytes[random() % bytes.size()] ^= std::byte{static_cast<uint8_t>(1U << random() % 8)};
    const auto table = TensorTable::Open(bytes, buffer_bytes);
    if (!table) {
      ++refused;
      continue;
    }
    for (uint32_t i = 0; i < table->count(); ++i) {
      ASSERT_EQ(table->Find(table->at(i).name)->offset, table->at(i).offset);
    }
  }
  EXPECT_GT(refused, 1000U);
}

TEST(TensorsPropertyTest, AHundredThousandAndAMillionTensors) {
  for (const uint32_t count : {100'000U, limits::kTensors}) {
    std::vector<Tensor> tensors;
    tensors.reserve(count);
    for (uint32_t i = 0; i < count; ++i) {
      tensors.push_back(Make("t" + std::to_string(i), DType::kBF16, {2, 64}, uint64_t{256} * i));
    }
    const uint64_t buffer_bytes = uint64_t{256} * count;
    const auto bytes = Must(EncodeTable(tensors, {}, buffer_bytes));
    const auto table = Must(TensorTable::Open(bytes, buffer_bytes));
    ASSERT_EQ(table.count(), count);
    for (uint32_t i = 0; i < count; i += 997) {
      const auto found = table.Find("t" + std::to_string(i));
      ASSERT_TRUE(found) << i;
      EXPECT_EQ(found->offset, uint64_t{256} * i);
    }
    EXPECT_FALSE(table.Find("t" + std::to_string(count)));
  }
  const std::vector<Tensor> more(limits::kTensors + 1, Make("a", DType::kU8, {}));
  EXPECT_EQ(EncodeTable(more, {}, 1).error().code(), Code::kExhausted);
}

}  // namespace
}  // namespace gpushm::tensors
