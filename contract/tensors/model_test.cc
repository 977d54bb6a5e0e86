#include "contract/tensors/model.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "contract/tensors/table.h"
#include "contract/tensors/testing.h"
#include "platform/base/testing.h"
#include "platform/base/testing/code.h"

namespace gpushm::tensors {
namespace {

using gpushm::testing::CodeOf;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::FileOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int As(Code code) { return static_cast<int>(code); }

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
  EXPECT_TRUE(IsModelName("a/model.safetensors.index.fp16.json"));
  EXPECT_TRUE(IsModelName("models/llama/"));
  EXPECT_FALSE(IsModelName("config.json"));
  EXPECT_FALSE(IsModelName("model.safetensors.index..json.bak"));
  EXPECT_FALSE(IsModelName("model.safetensors.index.d/config.json"));
  EXPECT_FALSE(IsModelName("weights.bin"));
  EXPECT_FALSE(IsModelName(""));
}

TEST_F(ModelTest, AFile) {
  Write("m.safetensors", FileOf({{"b", "xyz"}, {"a", "12"}}));
  const auto model = Open("m.safetensors");
  ASSERT_TRUE(model) << model.error().ToString();
  EXPECT_EQ(model->buffer_bytes, 258U);
  EXPECT_EQ(model->tensors, 2U);
  EXPECT_EQ(model->file_bytes, std::filesystem::file_size(folder_ / "m.safetensors"));
  const auto table = TensorTable::Open(model->table, model->buffer_bytes);
  ASSERT_TRUE(table) << table.error().ToString();
  EXPECT_EQ(table->Find("a")->offset, 256U);
}

// Any one index decides, whatever its name is, and files that it does not name are not the model.
TEST_F(ModelTest, AnIndexAndItsFolder) {
  Write("s2.safetensors", FileOf({{"a", "12"}, {"unlisted", "abc"}}));
  Write("s1.safetensors", FileOf({{"b", "xyz"}}));
  Write("other.safetensors", FileOf({{"c", "x"}}));
  for (const std::string name :
       {"model.safetensors.index.json", "diffusion_pytorch_model.safetensors.index.json",
        "model.safetensors.index.fp16.json"}) {
    Write(name, R"({"weight_map": {"a": "s2.safetensors", "b": "s1.safetensors"}})");
    for (const std::string& path : {std::string(), name}) {
      const auto model = Open(path);
      ASSERT_TRUE(model) << model.error().ToString();
      ASSERT_EQ(model->files.size(), 2U);
      EXPECT_THAT(model->files[0].path, HasSubstr("/s1.safetensors"));
      EXPECT_EQ(model->tensors, 2U) << "only what the index lists";
    }
    std::filesystem::remove(folder_ / name);
  }
  Write("a.safetensors.index.json", "{}");
  Write("a.safetensors.index.fp16.json", "{}");
  EXPECT_THAT(WhyNot("", Code::kInvalidArgument),
              HasSubstr("more than one model: a.safetensors.index.fp16.json and "
                        "a.safetensors.index.json"));
}

std::vector<std::string> Chosen(const std::vector<std::string>& names) {
  const auto choice = ChooseModel(names, "d/");
  EXPECT_TRUE(choice) << choice.error().ToString();
  if (!choice) return {};
  return choice->index.empty() ? choice->files : std::vector<std::string>{choice->index};
}

std::string NotChosen(const std::vector<std::string>& names, Code code) {
  const auto choice = ChooseModel(names, "d/");
  EXPECT_EQ(CodeOf(choice), As(code));
  return choice ? "" : choice.error().ToString();
}

TEST(ChooseModelTest, OneModel) {
  using Names = std::vector<std::string>;
  EXPECT_THAT(Chosen({"m.safetensors"}), ElementsAre("m.safetensors"));
  const Names set = {"m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors"};
  EXPECT_EQ(Chosen(set), set);
  const Names variant = {"m-00001-of-00002.fp16.safetensors", "m-00002-of-00002.fp16.safetensors"};
  EXPECT_EQ(Chosen(variant), variant);
  const Names from_zero = {"m-0-of-2.safetensors", "m-1-of-2.safetensors"};
  EXPECT_EQ(Chosen(from_zero), from_zero);
  EXPECT_THAT(Chosen({"shard-00001-model-00001-of-00001.safetensors"}), SizeIs(1));
  EXPECT_THAT(Chosen({"m-x-of-2.safetensors"}), SizeIs(1)) << "no number: a name like any other";
}

// What lies beside a model in many repositories, and would take its memory twice.
TEST(ChooseModelTest, WhatIsBesideAModel) {
  EXPECT_THAT(Chosen({"adapter_model.safetensors", "consolidated.safetensors", "m.safetensors"}),
              ElementsAre("m.safetensors"));
  EXPECT_THAT(
      Chosen({"consolidated-00001-of-00002.safetensors", "consolidated-00002-of-00002.safetensors",
              "consolidated.safetensors.index.json", "m-00001-of-00001.safetensors",
              "m.safetensors.index.json"}),
      ElementsAre("m.safetensors.index.json"));
  EXPECT_THAT(Chosen({"adapter_model.safetensors"}), ElementsAre("adapter_model.safetensors"));
  EXPECT_THAT(Chosen({"adapter_model.safetensors", "consolidated.safetensors"}),
              ElementsAre("consolidated.safetensors"));
}

TEST(ChooseModelTest, MissingShardsAreNumbered) {
  EXPECT_THAT(NotChosen({}, Code::kNotFound), HasSubstr("d/ has no file *.safetensors"));
  EXPECT_THAT(NotChosen({"m-00001-of-00003.safetensors"}, Code::kNotFound),
              HasSubstr("d/ has 1 of the 3 shards m-*-of-00003.safetensors; missing: 2, 3"));
  EXPECT_THAT(NotChosen({"m-00002-of-00009.safetensors"}, Code::kNotFound),
              HasSubstr("missing: 1, 3, 4, 5, 6 and 3 more"));
  EXPECT_THAT(NotChosen({"m-0-of-2.safetensors"}, Code::kNotFound), HasSubstr("missing: 1"));
}

TEST(ChooseModelTest, MoreThanOneModelIsRefusedByName) {
  const auto refused = [](const std::vector<std::string>& names) {
    return NotChosen(names, Code::kInvalidArgument);
  };
  EXPECT_THAT(refused({"a.safetensors", "b.safetensors"}),
              AllOf(HasSubstr("folder d/ has more than one model: a.safetensors and b.safetensors"),
                    HasSubstr("name the file or the index")));
  EXPECT_THAT(refused({"m-1-of-2.safetensors", "m-1-of-3.safetensors"}), HasSubstr("m-1-of-3"));
  EXPECT_THAT(refused({"m-1-of-1.safetensors", "m.safetensors"}), HasSubstr("m.safetensors"));
  EXPECT_THAT(refused({"a.safetensors", "m-1-of-1.safetensors"}), HasSubstr("m-1-of-1"));
  EXPECT_THAT(refused({"m-1-of-2.safetensors", "m-01-of-2.safetensors"}), HasSubstr("m-01-of-2"));
  EXPECT_THAT(refused({"m-3-of-2.safetensors"}), HasSubstr("has shard 3 of 2"));
}

TEST_F(ModelTest, ASetOfShards) {
  Write("m-00001-of-00002.safetensors", FileOf({{"b", "xyz"}}));
  EXPECT_THAT(WhyNot("", Code::kNotFound), HasSubstr("missing: 2"));
  Write("m-00002-of-00002.safetensors", FileOf({{"a", "12"}}));
  Write("config.json", "{}");
  Write("._m-00002-of-00002.safetensors", "a Mac was here");
  std::filesystem::create_directory(folder_ / "d.safetensors");
  const auto model = Open("");
  ASSERT_TRUE(model) << model.error().ToString();
  ASSERT_EQ(model->files.size(), 2U);
  const auto alone = Open("m-00001-of-00002.safetensors");
  ASSERT_EQ(CodeOf(alone), As(Code::kInvalidArgument));
  EXPECT_THAT(alone.error().ToString(),
              AllOf(HasSubstr("m-00001-of-00002.safetensors is shard 1 of 2, not a whole model"),
                    HasSubstr(Concat("name its folder, ", folder_.path(), "/, or its index"))));
}

TEST_F(ModelTest, WhatIsMissingOrLiesIsNamed) {
  EXPECT_THAT(WhyNot("", Code::kNotFound), HasSubstr("has no file *.safetensors"));
  EXPECT_THAT(WhyNot("m.safetensors", Code::kNotFound), HasSubstr("m.safetensors"));
  Write("m.safetensors", "");
  EXPECT_THAT(WhyNot("m.safetensors", Code::kBusy), HasSubstr("m.safetensors\": it is empty"));
  EXPECT_THAT(WhyNot("", Code::kBusy), HasSubstr("m.safetensors\": it is empty"));
  Write("m.safetensors", "a longer text");
  EXPECT_THAT(WhyNot("m.safetensors", Code::kInvalidArgument), HasSubstr("m.safetensors"));
  Write("m.safetensors", FileOf({{"a", "12"}}).substr(0, 40));
  EXPECT_THAT(WhyNot("m.safetensors", Code::kBusy), HasSubstr("m.safetensors"));
  Write("model.safetensors.index.json", R"({"weight_map": {"a": "gone.safetensors"}})");
  EXPECT_THAT(WhyNot("", Code::kNotFound), HasSubstr("gone.safetensors"));
  Write("model.safetensors.index.json", R"({"weight_map": {"a": "m.safetensors"}})");
  EXPECT_THAT(WhyNot("", Code::kBusy), HasSubstr("shard of "));
  Write("m.safetensors", FileOf({{"b", "12"}}));
  EXPECT_THAT(WhyNot("", Code::kInvalidArgument), HasSubstr("lacks tensor \"a\""));
  Write("model.safetensors.index.json", R"({"weight_map": {"a": "m.safe)");
  EXPECT_THAT(WhyNot("", Code::kBusy), HasSubstr("ends in the middle of its JSON"));
  Write("model.safetensors.index.json", R"({"weight_map": {"a": "../m.safetensors"}})");
  EXPECT_THAT(WhyNot("", Code::kInvalidArgument), HasSubstr("../m.safetensors"));
  Write("empty.safetensors", FileOf({}));
  EXPECT_THAT(WhyNot("empty.safetensors", Code::kInvalidArgument), HasSubstr("no tensor"));
  std::filesystem::create_directory(folder_ / "d.safetensors");
  Write("d.safetensors/x.safetensors", FileOf({{"a", "12"}}));
  EXPECT_TRUE(Open("d.safetensors")) << "a folder of any name";
  ASSERT_EQ(mkfifo((folder_ / "p.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(WhyNot("p.safetensors", Code::kInvalidArgument), HasSubstr("neither a file nor"));
}

TEST_F(ModelTest, AGitLfsPointerIsNotTheFile) {
  const std::string pointer =
      Concat("version https://git-lfs.github.com/spec/v1\noid sha256:", std::string(64, 'a'),
             "\nsize 4976698672\n");
  Write("m.safetensors", pointer);
  EXPECT_THAT(WhyNot("", Code::kInvalidArgument),
              HasSubstr("m.safetensors is a Git LFS pointer, not the file itself"));
  Write("m.safetensors.index.json", pointer);
  EXPECT_THAT(WhyNot("m.safetensors.index.json", Code::kInvalidArgument), HasSubstr("Git LFS"));
}

// Goal: a folder whose names do not say how many files there are waits for those that are being
// written.
TEST_F(ModelTest, ATemporaryNameBeside) {
  Write("m.safetensors", FileOf({{"a", "12"}}));
  for (const std::string name : {"n.safetensors.tmp", "n.safetensors.incomplete",
                                 ".n.safetensors.Xy12Zq", "n.safetensors.gpushm-7-1"}) {
    Write(name, "");
    EXPECT_THAT(WhyNot("", Code::kBusy), HasSubstr(name + " is being written"));
    EXPECT_TRUE(Open("m.safetensors")) << "a file that is named";
    gpushm::testing::Settle(folder_ / name);
    EXPECT_TRUE(Open("")) << name << " is a rest";
  }
  Write("n.safetensors.tmp", "");
  std::filesystem::rename(folder_ / "m.safetensors", folder_ / "m-1-of-1.safetensors");
  EXPECT_TRUE(Open("")) << "the names say that all are there";
}

// Goal: a download in parallel parts, which has its size from the start, is not taken for whole.
TEST_F(ModelTest, AHoleIsNotWrittenYet) {
  const std::string whole = FileOf({{"a", std::string(3 << 16, 'x')}});
  Write("m.safetensors", whole.substr(0, 1000));
  std::filesystem::resize_file(folder_ / "m.safetensors", whole.size());
  const UniqueFd fd(open((folder_ / "m.safetensors").c_str(), O_WRONLY | O_CLOEXEC));
  if (lseek(fd.get(), 0, SEEK_HOLE) == static_cast<off_t>(whole.size())) {
    GTEST_SKIP() << "this file system has no holes";
  }
  EXPECT_THAT(WhyNot("m.safetensors", Code::kBusy),
              HasSubstr("m.safetensors is being written: nothing is at byte 4096 yet"));
  EXPECT_THAT(WhyNot("", Code::kBusy), HasSubstr("is being written"));
  ASSERT_EQ(pwrite(fd.get(), whole.data() + 1000, whole.size() - 1000, 1000),
            static_cast<ssize_t>(whole.size() - 1000));
  EXPECT_TRUE(Open("m.safetensors"));
  std::filesystem::resize_file(folder_ / "m.safetensors", 1000);
  std::filesystem::resize_file(folder_ / "m.safetensors", whole.size());
  gpushm::testing::Settle(folder_ / "m.safetensors");
  EXPECT_TRUE(Open("m.safetensors")) << "zeroes that were copied as a hole";
}

TEST_F(ModelTest, WhatChangedIsSeen) {
  const std::string one = FileOf({{"a", "12"}});
  const std::string index = R"({"weight_map": {"a": "m-1.safetensors"}})";
  const OpenPath open_path = [](const std::string& path) -> Result<UniqueFd> {
    UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd) return FailSystem(errno, path);
    return fd;
  };
  const auto change = [&](const std::function<void()>& what) {
    Write("m-1.safetensors", one);
    Write("m.safetensors.index.json", index);
    const auto model = Open("");
    EXPECT_TRUE(model) << model.error().ToString();
    EXPECT_TRUE(CheckUnchanged(model->read, open_path));
    what();
    const auto same = CheckUnchanged(model->read, open_path);
    EXPECT_EQ(CodeOf(same), As(Code::kBusy));
    return same ? "" : same.error().what();
  };
  EXPECT_THAT(change([&] { Write("m-1.safetensors", FileOf({{"a", "34"}})); }),
              HasSubstr("m-1.safetensors changed while it was loaded"));
  EXPECT_THAT(change([&] {
                Write("other", one);
                std::filesystem::rename(folder_ / "other", folder_ / "m-1.safetensors");
              }),
              HasSubstr("m-1.safetensors changed"));
  EXPECT_THAT(change([&] { std::filesystem::remove(folder_ / "m-1.safetensors"); }),
              HasSubstr("m-1.safetensors went away"));
  EXPECT_THAT(change([&] { Write("m.safetensors.index.json", index); }),
              HasSubstr("index.json changed"));
  EXPECT_THAT(change([&] { Write("n.safetensors.index.json", index); }),
              HasSubstr(Concat("the model in folder ", folder_.path(), " changed")));
}

}  // namespace
}  // namespace gpushm::tensors
