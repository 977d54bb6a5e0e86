#include "plugin/cdi/spec_store.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "platform/base/testing/stopping_files.h"

namespace gpushm::plugin::cdi {
namespace {

namespace fs = std::filesystem;
using gpushm::testing::FailingFiles;
using gpushm::testing::ReadText;
using gpushm::testing::RunKilled;
using gpushm::testing::TempFolder;
using gpushm::testing::WriteText;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kGpu[] = "GPU-aaaaaaaa-0000-0000-0000-000000000001";
constexpr char kFile[] = "gpushm.io-memory-m0003.json";

binding::Binding Sidecar() {
  return {.resource = binding::Resource::kMemory,
          .ids = {"m0003", "m0004", "m0017"},
          .gpus = {kGpu},
          .owner = {.pod = {.name_space = "team-a", .name = "llm-7d9f.worker-0"},
                    .container = "gpushm-sidecar"}};
}

binding::Binding Application() {
  return {.resource = binding::Resource::kAttach,
          .ids = {"a0003"},
          .gpus = {kGpu},
          .owner = {.pod = {.name_space = "team-a", .name = "llm-0"}, .container = "server"}};
}

Edits SomeEdits() {
  Edits edits;
  edits.env = {{"NVIDIA_VISIBLE_DEVICES", "void"}};
  edits.device_nodes = {
      {.host_path = "/dev/nvidia0", .container_path = "/dev/nvidia0"},
      {.host_path = "/run/nvidia/driver/dev/nvidiactl", .container_path = "/dev/nvidiactl"}};
  edits.mounts = {
      {.host_path = "/usr/lib64/libcuda.so.580.65.06", .container_path = "/usr/lib64/libcuda.so.1"},
      {.host_path = "/var/tmp/sim", .container_path = "/var/tmp/sim", .read_only = false}};
  return edits;
}

SpecStore Open(const std::string& folder, Files& files = SystemFiles()) {
  Result<SpecStore> store = SpecStore::Open(folder, files);
  EXPECT_TRUE(store) << store.error().ToString();
  return *store;
}

SpecStore::Contents ReadAll(const SpecStore& store) {
  Result<SpecStore::Contents> contents = store.ReadAll();
  EXPECT_TRUE(contents) << contents.error().ToString();
  return *contents;
}

std::vector<std::string> Names(const std::string& folder) { return *ListFolder(folder); }

TEST(SpecStore, WhatIsWrittenIsRead) {
  const TempFolder folder;
  SpecStore store = Open(folder / "cdi");
  EXPECT_TRUE(*store.Write(Sidecar(), SomeEdits()));
  EXPECT_TRUE(*store.Write(Application(), SomeEdits()));
  const auto contents = ReadAll(Open(folder / "cdi"));
  EXPECT_THAT(contents.bindings, ElementsAre(Sidecar(), Application()));
  EXPECT_THAT(contents.damaged, IsEmpty());
  EXPECT_THAT(Names(folder / "cdi"), ElementsAre("gpushm.io-attach-a0003.json", kFile));
}

// Goal: the file has what container-device-interface's loaders require. Method: SPEC.md's required
// fields, and no field that a strict loader does not know.
TEST(SpecStore, TheFileIsACdiSpec) {
  const TempFolder folder;
  Open(folder.path()).Write(Sidecar(), SomeEdits()).value();
  const auto json = nlohmann::json::parse(ReadText(folder / kFile));
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_THAT(keys, ElementsAre("annotations", "cdiVersion", "devices", "kind"));
  EXPECT_EQ(json["cdiVersion"], "0.6.0");
  EXPECT_EQ(json["kind"], "gpushm.io/memory");
  ASSERT_THAT(json["devices"], SizeIs(1));
  EXPECT_EQ(json["devices"][0]["name"], "m0003");
  EXPECT_EQ(CdiName(binding::Resource::kMemory, "m0003"), "gpushm.io/memory=m0003");
  for (const auto& [key, value] : json["annotations"].items()) {
    EXPECT_THAT(key, ::testing::MatchesRegex("gpushm\\.io/[a-z]([-a-z]*[a-z])?"));
    EXPECT_TRUE(value.is_string());
  }
  const auto& edits = json["devices"][0]["containerEdits"];
  EXPECT_EQ(edits["env"], (nlohmann::json{"NVIDIA_VISIBLE_DEVICES=void"}));
  EXPECT_EQ(edits["deviceNodes"][0],
            (nlohmann::json{{"path", "/dev/nvidia0"}, {"permissions", "rw"}}));
  EXPECT_EQ(edits["deviceNodes"][1]["hostPath"], "/run/nvidia/driver/dev/nvidiactl");
  EXPECT_EQ(edits["mounts"][0]["options"][0], "ro");
  EXPECT_EQ(edits["mounts"][1]["options"][0], "rw");
  struct stat info{};
  ASSERT_EQ(stat((folder / kFile).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777U, 0644U);
}

TEST(SpecStore, GroupsAndHooksOfNvidiasSpec) {
  Edits edits;
  edits.hooks = {{.name = "createContainer",
                  .path = "/usr/bin/nvidia-cdi-hook",
                  .args = {"nvidia-cdi-hook", "update-ldcache"},
                  .env = {"A=b"}}};
  edits.additional_gids = {44};
  const auto json = nlohmann::json::parse(SpecText(Application(), edits).value());
  EXPECT_EQ(json["cdiVersion"], "0.7.0") << "additionalGids came with it";
  const auto& written = json["devices"][0]["containerEdits"];
  EXPECT_EQ(written["hooks"][0]["hookName"], "createContainer");
  EXPECT_EQ(written["additionalGids"], nlohmann::json{44});
}

TEST(SpecStore, WhatAllContainersGetIsASpecOfItsOwn) {
  const TempFolder folder;
  SpecStore store = Open(folder.path());
  EXPECT_TRUE(*store.WriteShared(SomeEdits()));
  EXPECT_FALSE(*store.WriteShared(SomeEdits()));
  EXPECT_THAT(Names(folder.path()), ElementsAre(kSharedFileName));
  const auto json = nlohmann::json::parse(ReadText(folder / kSharedFileName));
  EXPECT_EQ(
      Concat(json["kind"].get<std::string>(), "=", json["devices"][0]["name"].get<std::string>()),
      kSharedCdiName);
  EXPECT_FALSE(json.contains("annotations"));
  EXPECT_THAT(json["devices"][0]["containerEdits"]["mounts"], SizeIs(2));
  const auto contents = ReadAll(store);
  EXPECT_THAT(contents.bindings, IsEmpty());
  EXPECT_THAT(contents.damaged, IsEmpty()) << "neither a binding nor damaged";
}

// Goal: containers that restart do not make the runtime read all specs again.
TEST(SpecStore, AnEqualSpecIsNotWrittenAgain) {
  const TempFolder folder;
  SpecStore store = Open(folder.path());
  EXPECT_TRUE(*store.Write(Sidecar(), SomeEdits()));
  struct stat before{};
  ASSERT_EQ(stat((folder / kFile).c_str(), &before), 0);
  EXPECT_FALSE(*store.Write(Sidecar(), SomeEdits()));
  struct stat after{};
  ASSERT_EQ(stat((folder / kFile).c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino);
  binding::Binding moved = Sidecar();
  moved.gpus = {"MIG-aaaaaaaa-0000-0000-0000-000000000009"};
  EXPECT_TRUE(*store.Write(moved, SomeEdits()));
  EXPECT_THAT(ReadAll(store).bindings, ElementsAre(moved));
}

TEST(SpecStore, RemovesAndDoesNotMindThatThereIsNone) {
  const TempFolder folder;
  SpecStore store = Open(folder.path());
  store.Write(Sidecar(), SomeEdits()).value();
  EXPECT_TRUE(store.Remove(binding::Resource::kMemory, "m0003"));
  EXPECT_TRUE(store.Remove(binding::Resource::kMemory, "m0003"));
  EXPECT_EQ(store.Remove(binding::Resource::kMemory, "../../etc/m0003").error().code(),
            Code::kInvalidArgument);
  EXPECT_THAT(Names(folder.path()), IsEmpty());
}

TEST(SpecStore, RefusesToWriteWhatIsNoSpec) {
  const TempFolder folder;
  SpecStore store = Open(folder.path());
  const auto refused = [&](const binding::Binding& binding, const Edits& edits) {
    const auto written = store.Write(binding, edits);
    return !written && written.error().code() == Code::kInvalidArgument;
  };
  binding::Binding nobody = Sidecar();
  nobody.owner.container = "Not A Name";
  EXPECT_TRUE(refused(nobody, {}));
  binding::Binding foreign = Sidecar();
  foreign.ids.insert("a0001");
  EXPECT_TRUE(refused(foreign, {}));
  binding::Binding none = Sidecar();
  none.ids.clear();
  EXPECT_TRUE(refused(none, {}));
  binding::Binding beyond = Sidecar();
  beyond.ids = {"m4096"};
  EXPECT_TRUE(refused(beyond, {}));
  Edits relative;
  relative.mounts = {{.host_path = "lib", .container_path = "/lib"}};
  EXPECT_TRUE(refused(Sidecar(), relative));
  Edits nameless;
  nameless.env = {{"", "x"}};
  EXPECT_TRUE(refused(Sidecar(), nameless));
  Edits latin1;
  latin1.mounts = {{.host_path = "/caf\xe9", .container_path = "/lib"}};
  EXPECT_TRUE(refused(Sidecar(), latin1));
  EXPECT_THAT(Names(folder.path()), IsEmpty());
}

// Goal: damaged files in the folder are reported, and do no other harm.
TEST(SpecStore, DamagedFilesAreReportedAndRemovedWhenAsked) {
  const TempFolder folder;
  SpecStore store = Open(folder.path());
  store.Write(Application(), SomeEdits()).value();
  const std::string good = SpecText(Sidecar(), SomeEdits()).value();
  const auto with = [&good](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"gpushm.io-memory-m0100.json", ""},
      {"gpushm.io-memory-m0101.json", good.substr(0, good.size() / 2)},
      {"gpushm.io-memory-m0102.json", "[]"},
      {"gpushm.io-memory-m0103.json", good},  // Not the name of its device.
      {"gpushm.io-memory-m0004.json", with("\"name\":\"m0003\"", "\"name\":\"m0004\"")},
      {"gpushm.io-attach-m0003.json", good},
      {"gpushm.io-memory-..json", good},
      {"gpushm.io-memory-m0200.json", std::string(kMaxSpecBytes + 1, ' ')},
      {kFile, with("m0003,m0004", "m0003,m0003")},
  };
  for (const auto& [name, text] : bad) WriteText(folder / name, text);
  const auto contents = ReadAll(store);
  EXPECT_THAT(contents.bindings, ElementsAre(Application()));
  EXPECT_THAT(contents.damaged, SizeIs(bad.size()));
  for (const auto& damaged : contents.damaged) {
    EXPECT_EQ(damaged.reason.code(), Code::kCorrupt) << damaged.reason.ToString();
    EXPECT_TRUE(store.RemoveDamaged(damaged));
  }
  EXPECT_THAT(Names(folder.path()), ElementsAre("gpushm.io-attach-a0003.json"));
  EXPECT_EQ(store.RemoveDamaged({"nvidia.yaml", Status(Code::kCorrupt, "")}).error().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(store.RemoveDamaged({"gpushm.io-memory-/../nvidia.json", Status(Code::kCorrupt, "")})
                .error()
                .code(),
            Code::kInvalidArgument);
}

TEST(SpecStore, EveryValueIsChecked) {
  const std::string good = SpecText(Sidecar(), {}).value();
  ASSERT_TRUE(ParseSpec(kFile, good)) << ParseSpec(kFile, good).error().ToString();
  struct Change {
    std::string from;
    std::string to;
    const char* shown = "";  // By the error's text.
  };
  const Change changes[] = {
      {"\"gpushm.io/gpu\":\"GPU-", "\"gpushm.io/gpu\":\"../", "invalid GPU UUID \"../"},
      {"\"gpushm.io/gpu\":\"GPU-", "\"gpushm.io/gpux\":\"GPU-"},
      {"team-a", "Team_A", "invalid namespace name \"Team_A\""},
      {"llm-7d9f.worker-0", "llm-7d9f..worker-0", "invalid pod name \"llm-7d9f..worker-0\""},
      {"llm-7d9f.worker-0", ""},
      {"gpushm-sidecar", "-", "invalid container name \"-\""},
      {"m0003,m0004,m0017", "m0003,m0017,m0004", "device IDs: \"m0003,m0017,m0004\""},
      {"m0003,m0004,m0017", ""},
      {"m0003,m0004,m0017", "m0004,m0017", "name, \"m0003\", is not the smallest"},
      {"m0003,m0004,m0017", "m0003,m0004,m0017,"},
      {"m0003,m0004,m0017", "m0003,m9999"},
      {"m0003,m0004,m0017", "m0003,m004", "invalid device ID \"m004\""},
      {"\"gpushm.io/container\":\"gpushm-sidecar\"", "\"gpushm.io/container\":7"},
      {"gpushm.io/memory", "gpushm.io/attach"},
      {"\"cdiVersion\":\"0.6.0\"", "\"cdiVersion\":6"},
      {"\"devices\":[", "\"devices\":[{\"name\":\"m0003\"},"},
  };
  for (const auto& [from, to, shown] : changes) {
    std::string text = good;
    ASSERT_NE(text.find(from), std::string::npos) << from;
    text.replace(text.find(from), from.size(), to);
    const auto parsed = ParseSpec(kFile, text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().code(), Code::kCorrupt) << text;
    EXPECT_THAT(parsed.error().what(), HasSubstr(shown));
  }
  std::string newer = good;
  newer.replace(newer.find("version\":\"1\""), 12, "version\":\"4\"");
  EXPECT_EQ(ParseSpec(kFile, newer).error().code(), Code::kIncompatible);
}

// A plugin from before several GPUs refuses version 2 as another version, and leaves the file out.
TEST(SpecStore, APodsGpusAreInItsSpecInTheirOrder) {
  const std::string kOther = "GPU-bbbbbbbb-0000-0000-0000-000000000001";
  binding::Binding several = Sidecar();
  several.gpus = {kOther, kGpu};
  several.ids.insert("m0018");
  const std::string good = SpecText(several, {}).value();
  ASSERT_TRUE(ParseSpec(kFile, good)) << ParseSpec(kFile, good).error().ToString();
  EXPECT_EQ(*ParseSpec(kFile, good), several);
  EXPECT_THAT(good, HasSubstr("\"gpushm.io/binding-version\":\"2\""));
  EXPECT_THAT(SpecText(Sidecar(), {}).value(), HasSubstr("\"gpushm.io/binding-version\":\"1\""));
  for (const std::string& wrong :
       {std::string(kGpu), std::string(kGpu) + ",", std::string(","), Concat(kGpu, ",", kGpu),
        kOther + "," + kGpu + ",GPU-3"}) {  // Four IDs.
    std::string text = good;
    text.replace(text.find(kOther), kOther.size() + 1 + std::string(kGpu).size(), wrong);
    const auto read = ParseSpec(kFile, text);
    ASSERT_FALSE(read) << wrong;
    EXPECT_EQ(read.error().code(), Code::kCorrupt) << wrong;
  }
  std::string old = good;
  old.replace(old.find("version\":\"2\""), 12, "version\":\"1\"");
  EXPECT_EQ(ParseSpec(kFile, old).error().code(), Code::kCorrupt);
}

TEST(SpecStore, AGpuAloneAndNvlinkAreInTheSpec) {
  struct Case {
    binding::DeviceIds binding::Binding::* ids;
    std::string id;
    std::string key;
    std::vector<std::string> wrong;
  };
  for (const Case& c : {Case{&binding::Binding::exclusive,
                             "x0001",
                             "exclusive",
                             {"m0001", "x0001,x0001", "x1", ","}},
                        Case{&binding::Binding::nvlink, "n0003", "nvlink", {"x0003"}}}) {
    binding::Binding binding = Sidecar();
    binding.*c.ids = {c.id};
    const std::string good = SpecText(binding, {}).value();
    ASSERT_TRUE(ParseSpec(kFile, good)) << ParseSpec(kFile, good).error().ToString();
    EXPECT_EQ(*ParseSpec(kFile, good), binding);
    EXPECT_EQ(SpecText(Sidecar(), {})->find(c.key), std::string::npos);
    for (const std::string& wrong : c.wrong) {
      std::string text = good;
      text.replace(text.find(c.id), c.id.size(), wrong);
      const auto read = ParseSpec(kFile, text);
      ASSERT_FALSE(read) << wrong;
      EXPECT_EQ(read.error().code(), Code::kCorrupt);
    }
  }
}

// Goal: an ID is in one binding only, that of the file written last. Method: files that the test
// writes.
TEST(SpecStore, OfTwoBindingsWithOneIdTheLaterCounts) {
  const TempFolder folder;
  SpecStore store = Open(folder.path());
  binding::Binding later = Sidecar();
  later.ids = {"m0004", "m0005"};
  store.Write(later, {}).value();
  store.Write(Sidecar(), {}).value();
  fs::last_write_time(folder / kFile, fs::last_write_time(folder / kFile) - std::chrono::hours(1));
  const auto contents = ReadAll(store);
  EXPECT_THAT(contents.bindings, ElementsAre(later));
  ASSERT_THAT(contents.damaged, SizeIs(1));
  EXPECT_EQ(contents.damaged[0].file_name, kFile);
  EXPECT_THAT(contents.damaged[0].reason.what(), HasSubstr("gpushm.io-memory-m0004.json"));
}

TEST(SpecStore, NeitherLinksNorPipesNorFoldersAreRead) {
  const TempFolder folder;
  SpecStore store = Open(folder / "cdi");
  WriteText(folder / "elsewhere", SpecText(Sidecar(), {}).value());
  fs::create_symlink(folder / "elsewhere", folder / "cdi" + "/" + kFile);
  ASSERT_EQ(mkfifo((folder / "cdi/gpushm.io-memory-m0100.json").c_str(), 0666), 0);
  fs::create_directory(folder / "cdi/gpushm.io-memory-m0200.json");
  const auto contents = ReadAll(store);
  EXPECT_THAT(contents.bindings, IsEmpty());
  EXPECT_THAT(contents.damaged, SizeIs(3));
  store.Write(Sidecar(), {}).value();
  EXPECT_FALSE(fs::is_symlink(folder / "cdi" + "/" + kFile));
  EXPECT_EQ(ReadText(folder / "elsewhere"), SpecText(Sidecar(), {}).value());
}

TEST(SpecStore, FilesOfOthersStay) {
  const TempFolder folder;
  const std::vector<std::string> others = {".nvidia.json.1.tmp", "gpushm.io-memory-m0001.yaml",
                                           "k8s.gpu.nvidia.com-claim.json", "nvidia.yaml",
                                           "spec.123.tmp"};
  for (const std::string& name : others) WriteText(folder / name, "theirs");
  SpecStore store = Open(folder.path());
  store.Write(Sidecar(), {}).value();
  EXPECT_THAT(ReadAll(store).damaged, IsEmpty());
  for (const std::string& name : others) EXPECT_EQ(ReadText(folder / name), "theirs") << name;
}

TEST(SpecStore, AFullDiskLeavesTheOldSpecAndNothingElse) {
  const TempFolder folder;
  Open(folder.path()).Write(Sidecar(), {}).value();
  binding::Binding next = Sidecar();
  next.gpus = {"GPU-2"};
  for (int step = 1;; ++step) {
    gpushm::testing::StoppingFiles files =
        FailingFiles(step + 1);  // The first step creates the folder.
    SpecStore store = Open(folder.path(), files);
    if (store.Write(next, {})) {
      EXPECT_GT(step, 4);
      break;
    }
    EXPECT_THAT(ReadAll(store).bindings, ElementsAre(Sidecar())) << "step " << step;
    EXPECT_THAT(Names(folder.path()), ElementsAre(kFile));
  }
}

// Goal: invariant (1). Method: the writer is killed before each of its system calls and in the
// middle of its bytes; then a new store opens the folder.
TEST(SpecStore, AKilledWriterLeavesTheOldOrTheNewSpec) {
  const TempFolder folder;
  binding::Binding next = Sidecar();
  next.gpus = {"GPU-2"};
  int old_seen = 0;
  for (int step = 1;; ++step) {
    Open(folder.path()).Write(Sidecar(), {}).value();
    const bool killed = RunKilled(step, [&](Files& files) {
      Result<SpecStore> store = SpecStore::Open(folder.path(), files);
      (void)store->Write(next, {});
    });
    // What a runtime sees meanwhile: it reads *.json and *.yaml.
    for (const auto& entry : fs::directory_iterator(folder.path())) {
      if (entry.path().extension() == ".tmp") continue;
      EXPECT_EQ(entry.path().filename(), kFile);
      EXPECT_TRUE(ParseSpec(kFile, ReadText(entry.path()))) << "step " << step;
    }
    const SpecStore store = Open(folder.path());
    const auto contents = ReadAll(store);
    EXPECT_THAT(contents.damaged, IsEmpty());
    ASSERT_THAT(contents.bindings, SizeIs(1));
    EXPECT_THAT(Names(folder.path()), ElementsAre(kFile)) << "swept";
    if (!killed) {
      EXPECT_EQ(contents.bindings[0], next);
      break;
    }
    EXPECT_TRUE(contents.bindings[0] == Sidecar()) << "step " << step;
    ++old_seen;
  }
  EXPECT_EQ(old_seen, 6) << "folder, create, first half, second half, mode, rename";
}

TEST(SpecStore, AKilledRemoverLeavesTheSpecOrNone) {
  const TempFolder folder;
  Open(folder.path()).Write(Sidecar(), {}).value();
  EXPECT_TRUE(RunKilled(2, [&](Files& files) {
    (void)SpecStore::Open(folder.path(), files)->Remove(binding::Resource::kMemory, "m0003");
  }));
  EXPECT_THAT(ReadAll(Open(folder.path())).bindings, SizeIs(1));
  EXPECT_FALSE(RunKilled(3, [&](Files& files) {
    (void)SpecStore::Open(folder.path(), files)->Remove(binding::Resource::kMemory, "m0003");
  }));
  EXPECT_THAT(ReadAll(Open(folder.path())).bindings, IsEmpty());
}

TEST(SpecStore, TheFolderThatIsMissingIsMadeAndItsParentIsNot) {
  const TempFolder folder;
  EXPECT_TRUE(SpecStore::Open(folder / "cdi"));
  struct stat info{};
  ASSERT_EQ(stat((folder / "cdi").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777U, 0755U);
  EXPECT_FALSE(SpecStore::Open(folder / "no/cdi"));
}

}  // namespace
}  // namespace gpushm::plugin::cdi
