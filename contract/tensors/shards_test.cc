#include "contract/tensors/shards.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

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

std::string Map(const std::string& members) { return R"({"weight_map":{)" + members + "}}"; }

std::string Refusal(const std::string& text) {
  const auto shards = ParseShardIndex(text);
  EXPECT_EQ(CodeOf(shards), Code::kInvalidArgument) << text;
  return shards ? "" : shards.error().what();
}

TEST(ShardIndexTest, ListsShardsAndTensorsInTheOrderOfNames) {
  const auto shards = ParseShardIndex(R"({"metadata":{"total_size":12,"more":[{"weight_map":{}}]},
      "weight_map":{"b":"m-2","d":"m-1","a":"m-2","c":"m-10"}, "x":[1.5,null,true,-1,"t"]})");
  ASSERT_TRUE(shards) << shards.error().ToString();
  EXPECT_THAT(*shards,
              ElementsAre(Shard{"m-1", {"d"}}, Shard{"m-10", {"c"}}, Shard{"m-2", {"a", "b"}}));
}

TEST(ShardIndexTest, IsAsTolerantAsTheReferenceImplementation) {
  EXPECT_TRUE(ParseShardIndex(" \t\r\n" + Map(R"("a":"m")") + "\n"));
}

TEST(ShardIndexTest, RefusesFilesOutsideOfItsFolder) {
  for (const char* const file : {"", ".", "..", "/etc/passwd", "../m", "a/b", "a\\u0000b"}) {
    EXPECT_THAT(Refusal(Map(Concat(R"("t":")", file, "\""))),
                HasSubstr("is not the name of a file in the same folder"));
  }
  EXPECT_THAT(Refusal(Map(R"("t":"../m")")), HasSubstr("weight_map: \"t\": \"../m\" is not"));
  EXPECT_TRUE(ParseShardIndex(Map(R"("t":"..m")")));
}

TEST(ShardIndexTest, RefusesOtherDocuments) {
  EXPECT_THAT(Refusal("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(Refusal("{}"), HasSubstr("no weight_map"));
  EXPECT_THAT(Refusal(R"({"metadata":{"weight_map":{"a":"b"}}})"), HasSubstr("no weight_map"));
  EXPECT_THAT(Refusal(Map("")), HasSubstr("lists no tensor"));
  EXPECT_THAT(Refusal(R"({"weight_map":[]})"), HasSubstr("weight_map: unexpected array"));
  EXPECT_THAT(Refusal(R"({"weight_map":"m"})"), HasSubstr("weight_map: unexpected text \"m\""));
  EXPECT_THAT(Refusal(Map(R"("a":1)")), HasSubstr("weight_map: \"a\": unexpected 1"));
  EXPECT_THAT(Refusal(Map(R"("a":{"b":"c"})")), HasSubstr("\"a\": unexpected object"));
  EXPECT_THAT(Refusal(Map(R"("a":["b"])")), HasSubstr("\"a\": unexpected array"));
  EXPECT_THAT(Refusal(Map(R"("\u0000":"m")")), HasSubstr("invalid tensor name \"\\x00\""));
  EXPECT_THAT(Refusal(Map(R"("a":"m","b":"m","a":"n")")), HasSubstr("tensor \"a\" occurs twice"));
  EXPECT_THAT(Refusal(R"({"weight_map":{"a":"m"},"weight_map":{"b":"m"}})"),
              HasSubstr("weight_map: the key occurs twice"));
}

// Goal: an index that is being written is told from one that is wrong. Method: each beginning of
// one.
TEST(ShardIndexTest, WhatIsCutMayStillCome) {
  const std::string text = " {\"metadata\": {\"total_size\": 1.5e3, \"x\": [true, null]},\n" +
                           Map(R"("\u00e4\t":"m-1.safetensors","":"m-2")").substr(1) + " ";
  ASSERT_TRUE(ParseShardIndex(text)) << ParseShardIndex(text).error().ToString();
  for (size_t size = 2; size + 1 < text.size(); ++size) {
    const auto shards = ParseShardIndex(text.substr(0, size));
    ASSERT_EQ(CodeOf(shards), Code::kBusy) << text.substr(0, size);
    EXPECT_THAT(shards.error().what(), HasSubstr(Concat("after ", size, " bytes")));
  }
}

TEST(ShardIndexTest, KeepsTheLimitOfFiles) {
  std::string members;
  for (uint32_t i = 0; i < limits::kTensorFiles; ++i) {
    members += Concat(i == 0 ? "" : ",", "\"t", i, "\":\"m", i, "\"");
  }
  const auto shards = ParseShardIndex(Map(members));
  ASSERT_TRUE(shards) << shards.error().ToString();
  EXPECT_EQ(shards->size(), limits::kTensorFiles);
  EXPECT_EQ(CodeOf(ParseShardIndex(Map(members + R"(,"t":"m")"))), Code::kExhausted);
}

TEST(ShardIndexTest, IsReadFromAFile) {
  const TempFolder folder;
  const UniqueFd fd(open((folder / "i").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  const std::string text = Map(R"("a":"m")");
  ASSERT_EQ(write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  const auto shards = ReadShardIndex(fd.get(), text.size(), "i");
  ASSERT_TRUE(shards) << shards.error().ToString();
  EXPECT_THAT(*shards, ElementsAre(Shard{"m", {"a"}}));
  const auto longer = ReadShardIndex(fd.get(), text.size() + 1, "i");
  ASSERT_EQ(CodeOf(longer), Code::kBusy);
  EXPECT_THAT(longer.error().what(), HasSubstr("index of shards \"i\": it became shorter"));
  EXPECT_EQ(CodeOf(ReadShardIndex(fd.get(), 0, "i")), Code::kBusy);
  EXPECT_EQ(CodeOf(ReadShardIndex(fd.get(), limits::kSafetensorsHeaderBytes + 1, "i")),
            Code::kExhausted);
}

TEST(KeepListedTest, KeepsWhatTheIndexLists) {
  SafetensorsFile file;
  file.tensors = {Make("b", DType::kU8, {1}), Make("extra", DType::kU8, {1}, 1),
                  Make("a", DType::kU8, {1}, 2)};
  ASSERT_TRUE(KeepListed({.file = "m", .tensors = {"a", "b"}}, &file));
  ASSERT_EQ(file.tensors.size(), 2U);
  EXPECT_EQ(file.tensors.at(0).name, "b");
  EXPECT_EQ(file.tensors.at(1).name, "a");
  const auto kept = KeepListed({.file = "m", .tensors = {"a", "b", "c"}}, &file);
  ASSERT_EQ(CodeOf(kept), Code::kInvalidArgument);
  EXPECT_THAT(kept.error().what(), HasSubstr("tensor file \"m\" lacks tensor \"c\""));
}

}  // namespace
}  // namespace gpushm::tensors
