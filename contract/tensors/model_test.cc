#include "contract/tensors/model.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "contract/tensors/table.h"
#include "platform/base/testing.h"
#include "platform/base/testing_code.h"

namespace gpushm::tensors {
namespace {

using gpushm::testing::CodeOf;
using ::testing::HasSubstr;

constexpr int As(Code code) { return static_cast<int>(code); }

// A safetensors file with one tensor of these bytes for each name.
std::string FileOf(const std::vector<std::pair<std::string, std::string>>& tensors) {
  std::string header = "{";
  std::string data;
  for (const auto& [name, bytes] : tensors) {
    header += Concat(header.size() > 1 ? "," : "", '"', name, R"(":{"dtype":"U8","shape":[)",
                     bytes.size(), R"(],"data_offsets":[)", data.size(), ',',
                     data.size() + bytes.size(), "]}");
    data += bytes;
  }
  header += "}";
  std::string file(8, '\0');
  const uint64_t size = header.size();
  std::memcpy(file.data(), &size, sizeof size);
  return file + header + data;
}

class ModelTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }
  Result<Model> Open(const std::string& name) {
    return OpenModel(name.empty() ? folder_.path() : folder_ / name,
                     [](const std::string& path) -> Result<UniqueFd> {
                       UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
                       if (fd) return fd;
                       if (errno == ENOENT) return Fail(Code::kNotFound, Concat("no ", path));
                       return FailSystem(errno, path);
                     });
  }
  std::string WhyNot(const std::string& name, Code code) {
    const auto model = Open(name);
    EXPECT_FALSE(model);
    EXPECT_EQ(CodeOf(model), As(code));
    return model ? "" : model.error().what();
  }

  gpushm::testing::TempFolder folder_;
};

TEST_F(ModelTest, NamesThatAreThoseOfTensors) {
  EXPECT_TRUE(IsModelName("model.safetensors"));
  EXPECT_TRUE(IsModelName("a/model.safetensors.index.json"));
  EXPECT_TRUE(IsModelName("models/llama/"));
  EXPECT_FALSE(IsModelName("config.json"));
  EXPECT_FALSE(IsModelName("weights.bin"));
  EXPECT_FALSE(IsModelName(""));
}

TEST_F(ModelTest, AFile) {
  Write("m.safetensors", FileOf({{"b", "xyz"}, {"a", "12"}}));
  const auto model = Open("m.safetensors");
  ASSERT_TRUE(model) << model.error().ToString();
  EXPECT_EQ(model->buffer_bytes, 258U);
  EXPECT_EQ(model->tensors, 2U);
  const auto table = TensorTable::Open(model->table, model->buffer_bytes);
  ASSERT_TRUE(table) << table.error().ToString();
  EXPECT_EQ(table->Find("a")->offset, 256U);
}

TEST_F(ModelTest, AnIndexAndItsFolder) {
  Write("s2.safetensors", FileOf({{"a", "12"}, {"unlisted", "abc"}}));
  Write("s1.safetensors", FileOf({{"b", "xyz"}}));
  Write("other.safetensors", FileOf({{"c", "x"}}));
  Write("model.safetensors.index.json",
        R"({"weight_map": {"a": "s2.safetensors", "b": "s1.safetensors"}})");
  for (const char* const name : {"", "model.safetensors.index.json"}) {
    const auto model = Open(name);
    ASSERT_TRUE(model) << model.error().ToString();
    ASSERT_EQ(model->files.size(), 2U);
    EXPECT_THAT(model->files[0].path, HasSubstr("/s1.safetensors"));
    EXPECT_EQ(model->tensors, 2U) << "only what the index lists";
  }
}

TEST_F(ModelTest, AFolderWithoutAnIndex) {
  Write("2.safetensors", FileOf({{"b", "xyz"}}));
  Write("1.safetensors", FileOf({{"a", "12"}}));
  Write("config.json", "{}");
  const auto model = Open("");
  ASSERT_TRUE(model) << model.error().ToString();
  ASSERT_EQ(model->files.size(), 2U);
  EXPECT_THAT(model->files[0].path, HasSubstr("/1.safetensors"));
}

TEST_F(ModelTest, WhatIsMissingOrLiesIsNamed) {
  EXPECT_THAT(WhyNot("", Code::kNotFound), HasSubstr("has no file *.safetensors"));
  EXPECT_THAT(WhyNot("m.safetensors", Code::kNotFound), HasSubstr("m.safetensors"));
  Write("m.safetensors", "short");
  EXPECT_THAT(WhyNot("m.safetensors", Code::kCorrupt), HasSubstr("m.safetensors"));
  Write("m.safetensors", FileOf({{"a", "12"}}).substr(0, 40));
  EXPECT_THAT(WhyNot("m.safetensors", Code::kCorrupt), HasSubstr("m.safetensors"));
  Write("model.safetensors.index.json", R"({"weight_map": {"a": "gone.safetensors"}})");
  EXPECT_THAT(WhyNot("", Code::kNotFound), HasSubstr("gone.safetensors"));
  Write("model.safetensors.index.json", R"({"weight_map": {"a": "../m.safetensors"}})");
  EXPECT_THAT(WhyNot("", Code::kCorrupt), HasSubstr("../m.safetensors"));
  Write("empty.safetensors", FileOf({}));
  EXPECT_THAT(WhyNot("empty.safetensors", Code::kInvalidArgument), HasSubstr("no tensor"));
  std::filesystem::create_directory(folder_ / "d.safetensors");
  Write("d.safetensors/x.safetensors", FileOf({{"a", "12"}}));
  EXPECT_TRUE(Open("d.safetensors")) << "a folder of any name";
  ASSERT_EQ(mkfifo((folder_ / "p.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(WhyNot("p.safetensors", Code::kInvalidArgument), HasSubstr("neither a file nor"));
}

}  // namespace
}  // namespace gpushm::tensors
