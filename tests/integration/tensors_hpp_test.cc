// Goal: in C++17 and in C++23, a reader finds the tensors that another client loaded, and the
// description that another client set, and their bytes are where they say. Method: two clients of a
// real broker on a simulated card; the driver reads what is on the GPU.
#include "gpushm/tensors.hpp"

#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/integration/hpp_fixture.h"
#include "tests/integration/must.h"

namespace {

using gpushm::integration::Must;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A file of the safetensors format. `tensors`: its JSON, without braces.
void WriteShard(const std::string& path, const std::string& tensors, const std::string& data) {
  const std::string header = R"({"__metadata__":{"format":"pt"},)" + tensors + "}";
  const uint64_t header_bytes = header.size();
  std::string file(sizeof header_bytes, '\0');
  std::memcpy(&file[0], &header_bytes, sizeof header_bytes);
  std::ofstream(path, std::ios::binary) << file << header << data;
}

std::vector<uint64_t> ShapeOf(const gpushm::Tensor& tensor) {
  return {tensor.shape.begin(), tensor.shape.end()};
}

class TensorsHppTest : public gpushm::integration::HppTest {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(model_);
    WriteShard(model_ + "/model-1.safetensors",
               R"("matrix":{"dtype":"U8","shape":[3,1000],"data_offsets":[0,3000]},)"
               R"("scalar":{"dtype":"F32","shape":[],"data_offsets":[3000,3004]})",
               bytes_["matrix"] + bytes_["scalar"]);
    WriteShard(model_ + "/model-2.safetensors",
               R"("bias":{"dtype":"BF16","shape":[77],"data_offsets":[0,154]})", bytes_["bias"]);
    std::ofstream(model_ + "/model.safetensors.index.json")
        << R"({"weight_map":{"matrix":"model-1.safetensors","scalar":"model-1.safetensors",)"
        << R"("bias":"model-2.safetensors"}})";
  }
  void TearDown() override { (void)writer_.Delete("model"); }

  static gpushm::Client Connect() {
    gpushm::OpenOptions options;
    options.folder = run();
    return std::move(gpushm::Client::Open(options).value());
  }
  // Makes the buffer as large as the model, and loads it.
  void Load() {
    const auto size = Must(gpushm::Tensors::Measure(model_));
    EXPECT_EQ(size.count, 3U);
    ASSERT_TRUE(writer_.CreateUnattached("model", size.size_bytes));
    Must(writer_.Load("model", model_));
  }
  // An unpublished generation of "model": the first one, or the next one.
  gpushm::Attachment Make() {
    gpushm::CreateOptions options;
    options.unpublished = true;
    options.exist = GPUSHM_EXIST_REPLACE;
    return std::move(writer_.Create("model", 4096, options).value());
  }
  // The description of "model", or the error's text.
  std::string Read(uint64_t generation = 0) {
    gpushm::DescriptionOptions options;
    options.generation = generation;
    options.timeout = gpushm::Timeout::DontWait();
    const auto description = gpushm::Description::Open(reader_, "model", options);
    if (!description) return description.error().text();
    return std::string(description->text());
  }
  gpushm_status OpenTensors(const std::string& name, uint64_t generation = 0) {
    gpushm::DescriptionOptions options;
    options.generation = generation;
    options.timeout = gpushm::Timeout::DontWait();
    const auto tensors = gpushm::Tensors::Open(reader_, name, options);
    return tensors ? GPUSHM_OK : tensors.error().status();
  }

  const std::string model_ = folder() + "/model";
  std::map<std::string, std::string> bytes_{
      {"matrix", std::string(3000, 'm')}, {"scalar", "1234"}, {"bias", std::string(154, 'b')}};
  gpushm::Client writer_ = Connect();
  gpushm::Client reader_ = Connect();
};

TEST_F(TensorsHppTest, ALoadedModelIsFoundByNameAndItsBytesAreThere) {
  Load();
  const auto tensors = Must(gpushm::Tensors::Open(reader_, "model"));
  gpushm::AttachOptions exactly;
  exactly.generation = tensors.generation();
  const auto attached = Must(reader_.Attach("model", exactly));

  std::vector<std::string> names;
  for (const gpushm::Tensor& tensor : tensors) {
    names.emplace_back(tensor.name);
    EXPECT_EQ(tensor.offset % 256, 0U) << "tensor " << tensor.name;
    EXPECT_EQ(ReadDevice(attached.address() + tensor.offset, tensor.size_bytes),
              bytes_[names.back()])
        << "tensor " << tensor.name;
  }
  EXPECT_THAT(names, ElementsAre("bias", "matrix", "scalar"));
  EXPECT_EQ(tensors.size(), 3U);
  EXPECT_EQ(tensors[1]->name, "matrix");

  const auto matrix = Must(tensors.Find("matrix"));
  EXPECT_THAT(ShapeOf(matrix), ElementsAre(3, 1000));
  EXPECT_EQ(matrix.dtype, GPUSHM_DTYPE_U8);
  EXPECT_EQ(tensors.Find("scalar")->shape.size(), 0U) << "a scalar must have no dimensions";
  const auto bias = tensors.Find("bias");
  EXPECT_STREQ(gpushm::DtypeName(bias->dtype), "BF16");
  EXPECT_EQ(gpushm::DtypeBits(bias->dtype), 16U);
  EXPECT_EQ(tensors.Metadata("format"), "pt");
  EXPECT_EQ(tensors.Metadata("author"), std::nullopt);
}

TEST_F(TensorsHppTest, AlgorithmsTakeTheIterators) {
  Load();
  const auto tensors = Must(gpushm::Tensors::Open(reader_, "model"));
  const auto large = std::find_if(tensors.begin(), tensors.end(),
                                  [](const auto& tensor) { return tensor.size_bytes > 1000; });
  ASSERT_NE(large, tensors.end());
  EXPECT_EQ((*large).name, "matrix");
  auto next = large;
  EXPECT_EQ((*next++).name, "matrix");
  EXPECT_EQ((*next).name, "scalar");
  EXPECT_EQ(++next, tensors.end());
  const std::vector<gpushm::Tensor> all(tensors.begin(), tensors.end());
  EXPECT_EQ(all.size(), 3U);
}

TEST_F(TensorsHppTest, WhatIsNotThereIsAnError) {
  EXPECT_EQ(OpenTensors("model"), GPUSHM_NOT_FOUND) << "there is no buffer yet";
  EXPECT_EQ(OpenTensors("Model"), GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(gpushm::Tensors::Measure(model_ + "/none").error().status(), GPUSHM_NOT_FOUND);
  Load();
  const auto tensors = Must(gpushm::Tensors::Open(reader_, "model"));
  const auto nothing = tensors.Find("model.weight");
  ASSERT_FALSE(nothing);
  EXPECT_EQ(nothing.error().status(), GPUSHM_NOT_FOUND);
  EXPECT_THAT(nothing.error().text(), HasSubstr("model.weight"));
  EXPECT_EQ(tensors[3].error().status(), GPUSHM_NOT_FOUND);

  ASSERT_TRUE(writer_.Replace("model"));
  EXPECT_EQ(OpenTensors("model"), GPUSHM_NOT_FOUND)
      << "the new generation must have no description";
  EXPECT_EQ(OpenTensors("model", tensors.generation()), GPUSHM_STALE);
  EXPECT_EQ(tensors.Find("bias")->size_bytes, 154U)
      << "open tensors must stay valid when their buffer is replaced";
}

// A reader that starts first waits for the loader, also while the buffer exists and is still empty.
TEST_F(TensorsHppTest, AReaderThatComesFirstWaitsForTheLoad) {
  gpushm_status status = GPUSHM_INTERNAL;
  std::thread early([&] {
    gpushm::DescriptionOptions options;
    options.timeout = std::chrono::seconds(20);
    const auto tensors = gpushm::Tensors::Open(reader_, "model", options);
    status = tensors ? GPUSHM_OK : tensors.error().status();
  });
  const auto size = Must(gpushm::Tensors::Measure(model_));
  ASSERT_TRUE(writer_.Create("model", size.size_bytes));
  EXPECT_EQ(OpenTensors("model"), GPUSHM_NOT_FOUND)
      << "without a wait, tensors must not be found before the load";
  ASSERT_TRUE(writer_.Load("model", model_));
  early.join();
  EXPECT_EQ(status, GPUSHM_OK);
}

TEST_F(TensorsHppTest, TensorsMoveAndOutliveTheirClient) {
  Load();
  gpushm::Client client = Connect();
  auto opened = Must(gpushm::Tensors::Open(client, "model"));
  const gpushm::Tensor bias = *opened.Find("bias");
  const auto first = opened.begin();
  gpushm::Tensors tensors;
  EXPECT_FALSE(tensors);
  tensors = std::move(opened);
  EXPECT_TRUE(tensors);
  EXPECT_FALSE(opened);
  EXPECT_EQ(opened.size(), 0U);
  EXPECT_EQ(opened.begin(), opened.end());
  EXPECT_EQ(opened.Find("bias").error().status(), GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(opened.Metadata("format"), std::nullopt);

  {
    const gpushm::Client closed = std::move(client);
  }
  EXPECT_EQ(bias.name, "bias");
  EXPECT_THAT(ShapeOf(bias), ElementsAre(77));
  EXPECT_EQ((*first).name, "bias") << "an iterator must stay valid when its tensors are moved";
  EXPECT_EQ(tensors.Find("matrix")->size_bytes, 3000U);
}

TEST_F(TensorsHppTest, AFileIsLoadedAsItIs) {
  gpushm::TransferOptions raw;
  raw.format = GPUSHM_FORMAT_RAW;
  const std::string file = model_ + "/model-2.safetensors";
  const uint64_t size_bytes = std::filesystem::file_size(file);
  ASSERT_TRUE(writer_.CreateUnattached("model", size_bytes));
  const auto loaded = Must(writer_.Load("model", file, raw));
  EXPECT_EQ(loaded.bytes, size_bytes);
  EXPECT_EQ(OpenTensors("model"), GPUSHM_NOT_FOUND);
}

// Goal: a program that writes tensors by itself describes them as a load would, for readers and for
// files. Method: describe, publish, find, save as a safetensors file and load that again.
TEST_F(TensorsHppTest, AProgramDescribesTheTensorsThatItWrites) {
  gpushm::Attachment made = Make();
  const uint64_t matrix[] = {4, 8};
  const std::vector<gpushm::Tensor> tensors = {
      {"w", gpushm::Span<const uint64_t>(matrix), 256, 0, GPUSHM_DTYPE_F16},
      {"scale", {}, 0, 4, GPUSHM_DTYPE_F32},
  };
  const std::vector<std::pair<std::string, std::string>> metadata = {{"step", "7"}, {"by", "test"}};
  ASSERT_TRUE(gpushm::Tensors::Describe(made, tensors, metadata));
  ASSERT_TRUE(made.Publish());
  const auto opened = Must(gpushm::Tensors::Open(reader_, "model"));
  ASSERT_EQ(opened.size(), 2U);
  const auto weight = Must(opened.Find("w"));
  EXPECT_EQ(weight.offset, 256U);
  EXPECT_EQ(weight.size_bytes, 64U) << "the size must follow from type and shape";
  EXPECT_EQ(weight.shape[1], 8U);
  EXPECT_EQ(opened.Find("scale")->shape.size(), 0U);
  EXPECT_EQ(opened.MetadataAt(0)->first, "by");
  EXPECT_EQ(opened.MetadataAt(1)->second, "7");
  EXPECT_EQ(opened.MetadataAt(2).error().status(), GPUSHM_NOT_FOUND);
  const std::string path = folder() + "/made.safetensors";
  ASSERT_TRUE(reader_.Save("model", path));
  const auto size = Must(gpushm::Tensors::Measure(path));
  EXPECT_EQ(size.count, 2U);

  gpushm::Attachment other = Make();
  const auto refused = [&](const gpushm::Tensor& tensor) {
    const auto done =
        gpushm::Tensors::Describe(other, gpushm::Span<const gpushm::Tensor>(&tensor, 1));
    return done ? std::string() : done.error().text();
  };
  EXPECT_THAT(refused({"w", matrix, 256, 63, GPUSHM_DTYPE_F16}),
              HasSubstr("\"w\" has 63 bytes, which is not the size of F16 [4, 8]"));
  EXPECT_THAT(refused({"w", matrix, uint64_t{1} << 40, 0, GPUSHM_DTYPE_F16}),
              HasSubstr("ends outside of the buffer"));
  const std::vector<std::pair<std::string, std::string>> keys(2, {"step", "7"});
  EXPECT_THAT(gpushm::Tensors::Describe(other, tensors, keys).error().text(),
              HasSubstr("\"step\" is given twice"));
  EXPECT_EQ(gpushm_attachment_set_tensors(other.get(), nullptr, 1, nullptr, 0),
            GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(gpushm_attachment_set_tensors(nullptr, nullptr, 0, nullptr, 0),
            GPUSHM_INVALID_ARGUMENT);
  gpushm_tensor raw{};
  EXPECT_EQ(gpushm_attachment_set_tensors(other.get(), &raw, 1, nullptr, 0),
            GPUSHM_INVALID_ARGUMENT)
      << "a tensor whose struct_size is 0 must be refused";
  GPUSHM_INIT(&raw);
  raw.name = "w";
  raw.dtype = 99;
  EXPECT_EQ(gpushm_attachment_set_tensors(other.get(), &raw, 1, nullptr, 0),
            GPUSHM_INVALID_ARGUMENT);
  EXPECT_THAT(gpushm_last_error()->text, HasSubstr("tensors[0]: \"w\" has the unknown type 99"));
}

// The descriptions are a text and a struct, as an application's own format may begin with.
TEST_F(TensorsHppTest, ADescriptionIsATextOrAStruct) {
  gpushm::Attachment first = Make();
  ASSERT_TRUE(first.SetDescription("mycodec 1: nv12"));
  ASSERT_TRUE(first.Publish());
  const auto opened = Must(gpushm::Description::Open(reader_, "model"));
  EXPECT_EQ(opened.text(), "mycodec 1: nv12");
  EXPECT_EQ(opened.size(), 15U);
  EXPECT_EQ(opened.data()[0], 'm');
  EXPECT_EQ(opened.generation(), first.GetInfo()->generation);
  EXPECT_EQ(reader_.Lookup("model")->description_bytes, 15U);
  EXPECT_EQ(first.SetDescription("changed").error().status(), GPUSHM_ALREADY_EXISTS);
  EXPECT_EQ(OpenTensors("model"), GPUSHM_NOT_FOUND)
      << "a description of another format must not pass for tensors";
  const struct {
    char type[8];
    uint32_t version;
  } header{{'m', 'y', 'c', 'o', 'd', 'e', 'c', '\0'}, 2};
  gpushm::Attachment second = Make();
  ASSERT_TRUE(second.SetDescription(&header, sizeof header));
  ASSERT_TRUE(second.Publish());
  EXPECT_EQ(Read(), std::string(reinterpret_cast<const char*>(&header), sizeof header));
  EXPECT_EQ(Read(opened.generation()), "mycodec 1: nv12");
  EXPECT_EQ(opened.text(), "mycodec 1: nv12") << "an open description must keep its text";
}

// New weights as the next generation: measured, loaded where nobody sees them, published.
TEST_F(TensorsHppTest, AModelBecomesTheNextGeneration) {
  gpushm::Attachment first = Make();
  ASSERT_TRUE(first.Publish());
  const auto held = Must(reader_.Attach("model"));

  gpushm::CreateOptions unpublished;
  unpublished.unpublished = true;
  auto next =
      Must(writer_.Replace("model", gpushm::Tensors::Measure(model_)->size_bytes, unpublished));
  gpushm::TransferOptions stopped;
  stopped.progress = [](uint64_t, uint64_t) { return false; };
  EXPECT_EQ(next.Load(model_, stopped).error().status(), GPUSHM_BUSY);
  EXPECT_EQ(next.Publish().error().status(), GPUSHM_INVALID_ARGUMENT)
      << "a generation whose load was stopped must not be published";
  ASSERT_TRUE(next.Load(model_));
  EXPECT_EQ(held.Check(), GPUSHM_OK);
  EXPECT_EQ(OpenTensors("model"), GPUSHM_NOT_FOUND)
      << "tensors must not be found before their generation is published";
  const std::string copy = folder() + "/copy.safetensors";
  ASSERT_TRUE(next.Save(copy));
  EXPECT_EQ(gpushm::Tensors::Measure(copy)->count, 3U);
  ASSERT_TRUE(next.Publish());
  EXPECT_EQ(held.Check(), GPUSHM_STALE);
  const auto tensors = Must(gpushm::Tensors::Open(reader_, "model"));
  EXPECT_EQ(tensors.generation(), next.GetInfo()->generation);
  EXPECT_EQ(ReadDevice(next.address() + tensors.Find("bias")->offset, 154), bytes_["bias"]);

  // A descriptor of a plain file, into another generation and back.
  gpushm::Attachment plain = Make();
  const int in = open((model_ + "/model.safetensors.index.json").c_str(), O_RDONLY | O_CLOEXEC);
  const auto bytes = plain.Load(in);
  ASSERT_TRUE(bytes) << bytes.error().text();
  const int out = open(copy.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
  EXPECT_EQ(plain.Save(out)->bytes, bytes->bytes);
  close(in);
  close(out);
  EXPECT_EQ(std::filesystem::file_size(copy), bytes->bytes);
}

TEST_F(TensorsHppTest, NoDescriptionIsEmptyAndNoError) {
  ASSERT_TRUE(Make().Publish());
  auto opened = Must(gpushm::Description::Open(reader_, "model"));
  EXPECT_TRUE(opened);
  EXPECT_EQ(opened.size(), 0U);
  EXPECT_EQ(opened.data(), nullptr);
  EXPECT_EQ(opened.text(), "");
  const gpushm::Description moved = std::move(opened);
  EXPECT_FALSE(opened);
  EXPECT_EQ(opened.generation(), 0U);
  EXPECT_NE(moved.generation(), 0U);
}

TEST_F(TensorsHppTest, WhatIsNotPublishedEndsWithItsAttachment) {
  {
    const gpushm::Attachment unpublished = Make();
  }
  EXPECT_THAT(Read(), HasSubstr("NOT_FOUND"));
  EXPECT_TRUE(writer_.Create("model", 4096)) << "the name must be free again";
}

}  // namespace
