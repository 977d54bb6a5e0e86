#include "contract/registry/host_list.h"

#include <fcntl.h>
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "contract/registry/testing/registry.h"
#include "platform/base/testing.h"

namespace gpushm::registry {
namespace {

constexpr char kUid[] = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";

class HostListTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& file) const { return dir_ + "/" + file; }
  void WriteFile(const std::string& file, const std::string& bytes) const {
    std::ofstream(Path(file), std::ios::binary) << bytes;
  }

  static HostList SomeList(int buffers) {
    HostList list{.segment_id = {1, 2}, .table_version = 9, .written_unix_ns = 10, .buffers = {}};
    for (int i = 0; i < buffers; ++i) {
      list.buffers.push_back(SomeRecord(Concat("buffer-", i), static_cast<uint64_t>(i) + 1));
    }
    return list;
  }

  const gpushm::testing::TempFolder made_;
  const std::string dir_ = made_.path();
};

TEST_F(HostListTest, ReadsWhatWasWrittenAndReplaced) {
  for (const int buffers : {0, 1, 4096}) {
    const HostList list = SomeList(buffers);
    ASSERT_TRUE(WriteHostList(dir_, kUid, list));
    const Result<HostList> read = ReadHostList(dir_, kUid);
    ASSERT_TRUE(read) << read.error().ToString();
    EXPECT_EQ(read->buffers, list.buffers);
    EXPECT_EQ(read->segment_id, list.segment_id);
    EXPECT_EQ(read->table_version, list.table_version);
    EXPECT_EQ(read->written_unix_ns, list.written_unix_ns);
  }
}

TEST_F(HostListTest, HasItsModeWhateverTheUmaskAndLeavesNoTemporaryFile) {
  const mode_t umask_before = umask(0077);
  ASSERT_TRUE(WriteHostList(dir_, kUid, SomeList(1)));
  umask(umask_before);
  struct stat status{};
  ASSERT_EQ(stat(Path(HostListFile(kUid)).c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, mode_t{0640});
  EXPECT_FALSE(std::filesystem::exists(Path(HostListFile(kUid) + ".tmp")));
}

TEST_F(HostListTest, AnOpenFileIsNotChangedByAReplacement) {
  ASSERT_TRUE(WriteHostList(dir_, kUid, SomeList(1)));
  const UniqueFd old(open(Path(HostListFile(kUid)).c_str(), O_RDONLY | O_CLOEXEC));
  struct stat before{};
  struct stat after{};
  ASSERT_EQ(fstat(old.get(), &before), 0);
  ASSERT_TRUE(WriteHostList(dir_, kUid, SomeList(2)));
  ASSERT_EQ(fstat(old.get(), &after), 0);
  EXPECT_EQ(after.st_size, before.st_size);
  EXPECT_EQ(after.st_nlink, nlink_t{0});
}

TEST_F(HostListTest, AKilledWritersTemporaryFileOrASquattersLinkDoesNotMatter) {
  WriteFile(HostListFile(kUid) + ".tmp", "half");
  ASSERT_TRUE(WriteHostList(dir_, kUid, SomeList(1)));
  WriteFile("victim", "precious");
  std::filesystem::create_symlink(Path("victim"), Path(HostListFile(kUid) + ".tmp"));
  ASSERT_TRUE(WriteHostList(dir_, kUid, SomeList(2)));
  EXPECT_EQ(std::filesystem::file_size(Path("victim")), 8u);
  EXPECT_EQ(ReadHostList(dir_, kUid)->buffers.size(), 2u);
}

TEST_F(HostListTest, WhatIsNoListIsRefused) {
  EXPECT_EQ(ReadHostList(dir_, kUid).error().code(), Code::kNotFound);

  ASSERT_EQ(mkfifo(Path(HostListFile(kUid)).c_str(), 0600), 0);  // Must not block.
  EXPECT_EQ(ReadHostList(dir_, kUid).error().code(), Code::kCorrupt);
  std::filesystem::remove(Path(HostListFile(kUid)));

  WriteFile("elsewhere", "x");
  std::filesystem::create_symlink(Path("elsewhere"), Path(HostListFile(kUid)));
  EXPECT_EQ(ReadHostList(dir_, kUid).error().code(), Code::kSystem);
  std::filesystem::remove(Path(HostListFile(kUid)));

  WriteFile(HostListFile(kUid), "");
  EXPECT_EQ(ReadHostList(dir_, kUid).error().code(), Code::kCorrupt);

  WriteFile(HostListFile(kUid), "");
  std::filesystem::resize_file(Path(HostListFile(kUid)), uint64_t{1} << 40);  // Sparse.
  EXPECT_EQ(ReadHostList(dir_, kUid).error().code(), Code::kCorrupt);

  ASSERT_TRUE(WriteHostList(dir_, "another-pod", SomeList(1)));
  std::filesystem::rename(Path(HostListFile("another-pod")), Path(HostListFile(kUid)));
  EXPECT_EQ(ReadHostList(dir_, kUid).error().code(), Code::kCorrupt);
}

TEST_F(HostListTest, EveryChangedOrMissingByteIsSeen) {
  const Result<std::vector<uint64_t>> words = EncodeHostList(kUid, SomeList(2));
  ASSERT_TRUE(words);
  const auto whole = std::as_bytes(std::span(*words));
  ASSERT_TRUE(DecodeHostList(kUid, whole));
  std::vector<std::byte> bytes(whole.begin(), whole.end());
  for (size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_FALSE(DecodeHostList(kUid, std::span(bytes).first(i))) << "cut at " << i;
    bytes[i] ^= std::byte{0x10};
    EXPECT_FALSE(DecodeHostList(kUid, bytes)) << "changed at " << i;
    bytes[i] ^= std::byte{0x10};
  }
}

// Goal: a uid cannot contain a path.
TEST_F(HostListTest, UidsAreValidated) {
  for (const std::string& uid : {std::string(), std::string("../x"), std::string("a.sock"),
                                 std::string("A"), std::string("a b"), std::string(64, 'a')}) {
    EXPECT_FALSE(IsPodUid(uid)) << uid;
    EXPECT_EQ(ReadHostList(dir_, uid).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(WriteHostList(dir_, uid, {}).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(RemoveHostFiles(dir_, uid).error().code(), Code::kInvalidArgument);
  }
  EXPECT_TRUE(IsPodUid(kUid));
  EXPECT_TRUE(IsPodUid("0"));
}

TEST_F(HostListTest, PodsAreListedAndSwept) {
  EXPECT_THAT(*ListHostPods(dir_), ::testing::IsEmpty());
  ASSERT_TRUE(WriteHostList(dir_, "pod-b", SomeList(1)));
  ASSERT_TRUE(WriteHostList(dir_, "pod-a", SomeList(1)));
  WriteFile(HostSocketFile("pod-a"), "");
  WriteFile(HostListFile("pod-a") + ".tmp", "half");
  WriteFile("somebody-elses", "");
  WriteFile("gpushm.UPPER", "");
  EXPECT_THAT(*ListHostPods(dir_), ::testing::ElementsAre("pod-a", "pod-b"));

  ASSERT_TRUE(RemoveHostFiles(dir_, "pod-a"));
  ASSERT_TRUE(RemoveHostFiles(dir_, "pod-a")) << "removing nothing must succeed";
  EXPECT_THAT(*ListHostPods(dir_), ::testing::ElementsAre("pod-b"));
  EXPECT_FALSE(std::filesystem::exists(Path(HostSocketFile("pod-a"))));
  EXPECT_FALSE(std::filesystem::exists(Path(HostListFile("pod-a") + ".tmp")));
  EXPECT_TRUE(std::filesystem::exists(Path("somebody-elses")));
  EXPECT_EQ(ListHostPods(dir_ + "/none").error().code(), Code::kSystem);
}

TEST_F(HostListTest, TooManyPodsIsExhausted) {
  for (size_t i = 0; i <= kHostPods; ++i) WriteFile(HostListFile(Concat("pod-", i)), "");
  EXPECT_EQ(ListHostPods(dir_).error().code(), Code::kExhausted);
}

}  // namespace
}  // namespace gpushm::registry
