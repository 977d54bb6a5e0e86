// The parts of a support bundle, its bounds, and its format.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "runtime/ctl/bundle.h"
#include "runtime/ctl/bundle_parts.h"
#include "runtime/ctl/json.h"
#include "runtime/ctl/tar.h"

namespace gpushm::ctl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kBegan = int64_t{1'763'724'600} * 1'000'000'000;

// ---------------------------------------------------------------- the archive

TEST(Tar, HasWholeBlocks) {
  for (const uint64_t size_bytes : {0, 1, 511, 512, 513, 1024}) {
    EXPECT_EQ((size_bytes + TarPadding(size_bytes).size()) % 512, 0U) << size_bytes;
    EXPECT_LT(TarPadding(size_bytes).size(), 512U) << size_bytes;
  }
  const std::string header = TarHeader("a/b.json", 0123, 0777);
  ASSERT_EQ(header.size(), 512U);
  EXPECT_STREQ(header.c_str(), "a/b.json");
  EXPECT_STREQ(header.c_str() + 124, "00000000123");
  EXPECT_STREQ(header.c_str() + 136, "00000000777");
  EXPECT_EQ(header.substr(257, 8), std::string_view("ustar\00000", 8));
  EXPECT_EQ(TarHeader(std::string(kTarNameBytes, 'x'), kTarFileBytes, -1).size(), 512U);
  EXPECT_EQ(TarEnd(), std::string(1024, '\0'));
}

struct Written {
  std::string archive;
  Bundle::Write Write() {
    return [this](std::string_view text) {
      archive += text;
      return Result<void>();
    };
  }
};

Bundle::Make Text(std::string text) {
  return [text = std::move(text)] { return Bundle::Part{.text = text}; };
}

Json IndexOf(const Bundle& bundle) { return Json::parse(bundle.Index()); }

TEST(Bundle, SaysWhatIsMissingAndWhy) {
  Written written;
  Bundle bundle(written.Write(), kBegan, Deadline::AfterMs(60'000));
  ASSERT_TRUE(bundle.Add("a.txt", "the first", Text("hello")));
  ASSERT_TRUE(bundle.Add("b.txt", "the second", []() -> Result<Bundle::Part> {
    return Fail(Code::kUnavailable, "nobody is there", "go there");
  }));
  ASSERT_TRUE(bundle.Finish());
  const Json index = IndexOf(bundle);
  EXPECT_EQ(index["began"], "2025-11-21T11:30:00.000000000Z");
  EXPECT_EQ(index["parts"][0]["state"], "complete");
  EXPECT_EQ(index["parts"][0]["bytes"], 5);
  EXPECT_EQ(index["parts"][1]["state"], "missing");
  EXPECT_EQ(index["parts"][1]["why"], "nobody is there");
  EXPECT_EQ(index["parts"][1]["remedy"], "go there");
  EXPECT_THAT(written.archive,
              AllOf(HasSubstr("a.txt"), HasSubstr("hello"), HasSubstr("index.json")));
  EXPECT_EQ(written.archive.find("b.txt"), written.archive.find("\"b.txt\"") + 1)
      << "only the index names it";
  EXPECT_EQ(written.archive.size() % 512, 0U);
}

TEST(Bundle, IsTheSameForTheSameParts) {
  std::vector<std::string> archives;
  for (int i = 0; i < 2; ++i) {
    Written written;
    Bundle bundle(written.Write(), kBegan, Deadline::AfterMs(60'000));
    ASSERT_TRUE(bundle.Add("a.txt", "the first", Text("hello")));
    ASSERT_TRUE(bundle.Finish());
    archives.push_back(written.archive);
  }
  EXPECT_EQ(archives[0], archives[1]);
}

TEST(Bundle, CutsWhatIsTooLong) {
  Written written;
  Bundle bundle(written.Write(), kBegan, Deadline::AfterMs(60'000),
                {.part_bytes = 1000, .bundle_bytes = 1500});
  ASSERT_TRUE(bundle.Add("exact", "", Text(std::string(1000, 'a'))));
  ASSERT_TRUE(bundle.Add("rest", "", Text(std::string(501, 'b'))));
  ASSERT_TRUE(bundle.Add("none", "", Text("c")));
  ASSERT_TRUE(bundle.Finish());
  const Json parts = IndexOf(bundle)["parts"];
  EXPECT_EQ(parts[0]["state"], "complete");
  EXPECT_EQ(parts[1]["state"], "partial");
  EXPECT_EQ(parts[1]["bytes"], 500);
  EXPECT_THAT(parts[1]["why"].get<std::string>(), HasSubstr("only the first 500 of 501 bytes"));
  EXPECT_EQ(parts[2]["bytes"], 0);
  EXPECT_THAT(written.archive, Not(HasSubstr(std::string(501, 'b'))));
}

TEST(Bundle, BeginsNoPartAfterItsTime) {
  Written written;
  Bundle bundle(written.Write(), kBegan, Deadline::AfterMs(0));
  ASSERT_TRUE(bundle.Add("late.txt", "", []() -> Result<Bundle::Part> {
    ADD_FAILURE() << "it was begun";
    return Bundle::Part{};
  }));
  ASSERT_TRUE(bundle.Finish());
  EXPECT_THAT(IndexOf(bundle)["parts"][0]["why"].get<std::string>(), HasSubstr("time"));
}

TEST(Bundle, EndsWhenNothingCanBeWritten) {
  Bundle bundle([](std::string_view) -> Result<void> { return FailSystem(ENOSPC, "write"); },
                kBegan, Deadline::AfterMs(60'000));
  EXPECT_FALSE(bundle.Add("a.txt", "", Text("hello")));
  EXPECT_FALSE(bundle.Finish());
}

// ---------------------------------------------------------------- what gets in

TEST(BundleParts, OnlyKnownVariablesHaveValues) {
  const Json kept = Json::parse(EnvironmentJson(
      {"NVIDIA_VISIBLE_DEVICES=all", "GPUSHM_DIR=/run/x=y", "AWS_SECRET_ACCESS_KEY=s3cret",
       "GPUSHM_TOKEN=s3cret", "CUDA_PASSWORD=s3cret", "NVIDIA_API_KEY=s3cret", "GPUSHM_DIRS=s3cret",
       "GPUSHM_DI=s3cret", "=s3cret", "", "GPUSHM_DRIVER"}));
  EXPECT_EQ(kept.dump(), R"({"GPUSHM_DIR":"/run/x=y","NVIDIA_VISIBLE_DEVICES":"all"})");
}

TEST(BundleParts, MountsHaveNoSourceAndNoOptionsOfTheirFileSystem) {
  const Json mounts = Json::parse(MountsJson(
      "22 1 8:1 /s3cret/root / rw - ext4 /dev/s3cret rw\n"
      "23 22 0:5 /s3cret /run/gpushm ro,nosuid master:1 - tmpfs s3cret rw,size=8192k\n"
      "24 22 0:6 / /data rw - cifs //server/s3cret rw,username=s3cret\n"
      "25 22 0:7 / /usr/lib/libcuda.so.1 ro,noexec shared:2 propagate_from:3 - nfs s3cret:/x rw\n"
      "not a mount\n"
      "26\n"));
  EXPECT_EQ(mounts.dump(),
            R"([{"point":"/run/gpushm","type":"tmpfs","options":"ro,nosuid"},)"
            R"({"point":"/usr/lib/libcuda.so.1","type":"nfs","options":"ro,noexec"}])");
}

TEST(BundleParts, ConfigurationHasNeitherCommentsNorSecrets) {
  EXPECT_EQ(ConfigurationText("# the token is s3cret\n"
                              "attach-tokens: 64  # s3cret\n"
                              "driver-root: '/run/#1'\n"
                              "log: {level: info, format: json}\n"
                              "note: it's fine # s3cret\n"
                              "database-url : s3cret\n"
                              "api-token: s3cret\n"
                              "dra: {credentials-folder: /var/run, \"Client_Secret\": s3cret}\n"
                              "password:\n"
                              "  - s3cret\n"
                              "\n"
                              "# s3cret\n"
                              "-\n"
                              "  s3cret\n"
                              "- s3cret\n"
                              "  s3cret\n"
                              "unit: 1Gi\n"
                              "not-gpus: [nvidia.com/hostdev#1]"),
            "\n"
            "attach-tokens: 64  \n"
            "driver-root: '/run/#1'\n"
            "log: {level: info, format: json}\n"
            "note: it's fine \n"
            "database-url : (removed)\n"
            "api-token: (removed)\n"
            "dra: {credentials-folder: /var/run, \"Client_Secret\": (removed)\n"
            "password: (removed)\n"
            "unit: 1Gi\n"
            "not-gpus: [nvidia.com/hostdev#1]\n");
}

TEST(BundleParts, MetricsAreOnlyOurs) {
  EXPECT_EQ(MetricsText("# HELP gpushm_up Whether.\n# TYPE gpushm_up gauge\ngpushm_up 1\n"
                        "# HELP app_users s3cret\napp_users{mail=\"s3cret\"} 1\n# s3cret\n\n"
                        "x gpushm_ s3cret\ngpushm_gpus 2"),
            "# HELP gpushm_up Whether.\n# TYPE gpushm_up gauge\ngpushm_up 1\ngpushm_gpus 2\n");
}

TEST(BundleParts, SpecsHaveOnlyWhatBindingsNeed) {
  const auto spec = CdiSpecJson(R"({
    "cdiVersion": "0.6.0", "kind": "gpushm.io/memory", "secret": "s3cret",
    "annotations": {"gpushm.io/pod": "llm-0", "team/mail": "s3cret"},
    "containerEdits": {"env": ["API_KEY=s3cret", "NVIDIA_VISIBLE_DEVICES=void", 3]},
    "devices": [{"name": "m0000", "extra": "s3cret", "containerEdits": {
      "deviceNodes": [{"path": "/dev/nvidia0", "permissions": "rw", "note": "s3cret"}],
      "mounts": [{"hostPath": "/a", "containerPath": "/b", "options": ["ro"], "x": "s3cret"}],
      "hooks": [{"hookName": "createContainer", "path": "/h", "args": ["s3cret"],
                 "env": ["X=s3cret"]}]}}, "s3cret"]})");
  ASSERT_TRUE(spec) << spec.error().ToString();
  EXPECT_THAT(*spec, Not(HasSubstr("s3cret")));
  for (const char* kept : {"gpushm.io/memory", "llm-0", "m0000", "/dev/nvidia0", "\"/b\"",
                           "API_KEY=", "NVIDIA_VISIBLE_DEVICES=void", "\"/h\""}) {
    EXPECT_THAT(*spec, HasSubstr(kept));
  }
  for (const char* bad : {"", "[]", "\"x\"", "{", "null"}) EXPECT_FALSE(CdiSpecJson(bad)) << bad;
  for (const char* odd : {"{}", R"({"devices": 1, "containerEdits": [], "annotations": "x"})",
                          R"({"devices": [null], "containerEdits": {"env": 1, "mounts": {}}})"}) {
    EXPECT_TRUE(CdiSpecJson(odd)) << odd;
  }
  const std::string deep =
      R"({"kind": )" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  EXPECT_TRUE(CdiSpecJson(deep));
}

TEST(BundleParts, HoldersAreBounded) {
  gpushm_holder holder;
  GPUSHM_INIT(&holder);
  std::memset(holder.buffer, 'b', sizeof holder.buffer);  // No NUL.
  std::strcpy(holder.container, "app");
  const Bundle::Part few = HoldersJson(std::vector(2, holder));
  EXPECT_EQ(few.lacks, "");
  EXPECT_EQ(Json::parse(few.text)["holders"].size(), 2U);
  const Bundle::Part many = HoldersJson(std::vector(65'536, holder));
  EXPECT_THAT(many.lacks, HasSubstr("8192 of 65536"));
  EXPECT_EQ(Json::parse(many.text)["holders"].size(), 8192U);
  EXPECT_LT(many.text.size(), BundleLimits().part_bytes);
}

}  // namespace
}  // namespace gpushm::ctl
