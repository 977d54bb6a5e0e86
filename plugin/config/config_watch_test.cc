#include "plugin/config/config_watch.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

namespace gpushm::plugin {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

namespace fs = std::filesystem;

constexpr int64_t kLongMs = 20'000;

class ConfigWatchTest : public testing::Test {
 protected:
  ConfigWatchTest() {
    char name[] = "/tmp/gpushm-config-watch-XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~ConfigWatchTest() override {
    if (thread_.joinable()) {
      OnLoop([this] { watcher_.reset(); });
      loop_->Stop();
      thread_.join();
    }
    fs::remove_all(folder_);
  }

  std::string Path() const { return (folder_ / "plugin.yaml").string(); }
  void Write(const std::string& text) { std::ofstream(Path()) << text; }

  void Start() { Start(ReadPluginConfig(Path()).value_or(PluginConfig{})); }
  void Start(const PluginConfig& current) {
    thread_ = std::thread([this] { loop_->Run(); });
    OnLoop([&] {
      watcher_ = std::make_unique<ConfigWatcher>(
          *loop_, Path(), current,
          [this](const TakenOver& taken) {
            const std::lock_guard lock(mutex_);
            changes_.push_back(taken);
            reported_.notify_all();
          },
          [this](const Status& status) {
            const std::lock_guard lock(mutex_);
            errors_.push_back(status.what());
            reported_.notify_all();
          });
    });
  }

  void OnLoop(const std::function<void()>& task) {
    std::promise<void> done;
    loop_->Post([&] {
      task();
      done.set_value();
    });
    done.get_future().wait();
  }
  PluginConfig Current() {
    PluginConfig current;
    OnLoop([&] { current = watcher_->current(); });
    return current;
  }

  // Waits for the next report; false: none in time.
  bool Wait(int64_t wait_ms = kLongMs) {
    std::unique_lock lock(mutex_);
    const bool came = reported_.wait_for(lock, std::chrono::milliseconds(wait_ms), [this] {
      return changes_.size() + errors_.size() > reports_taken_;
    });
    if (came) ++reports_taken_;
    return came;
  }

  // As the kubelet does it: a new folder, a link to it, and a rename of the link over the old one.
  void WriteConfigMap(const std::string& version, const std::string& text) {
    fs::create_directory(folder_ / version);
    std::ofstream(folder_ / version / "plugin.yaml") << text;
    fs::create_directory_symlink(version, folder_ / "..data_tmp");
    fs::rename(folder_ / "..data_tmp", folder_ / "..data");
    if (!fs::is_symlink(folder_ / "plugin.yaml")) {
      fs::create_symlink("..data/plugin.yaml", folder_ / "plugin.yaml");
    }
  }

  fs::path folder_;
  std::unique_ptr<EventLoop> loop_ = *EventLoop::Create();
  std::function<void()> touch_;
  std::unique_ptr<ConfigWatcher> watcher_;  // Used on the loop's thread.
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable reported_;
  std::vector<TakenOver> changes_;
  std::vector<std::string> errors_;
  size_t reports_taken_ = 0;
};

TEST_F(ConfigWatchTest, AFileWrittenInPlaceOrRenamed) {
  Write("log: {level: info}\n");
  Start();
  EXPECT_FALSE(Wait(300)) << "nothing has changed";
  Write("log: {level: debug}\n");
  ASSERT_TRUE(Wait());
  EXPECT_EQ(changes_.at(0).config.log.level, LogLevel::kDebug);
  EXPECT_EQ(Current().log.level, LogLevel::kDebug);
  std::ofstream(folder_ / "new") << "unit: 2Gi\nattach-tokens: 8\n";
  fs::rename(folder_ / "new", Path());
  ASSERT_TRUE(Wait());
  EXPECT_THAT(changes_.at(1).restart, ElementsAre("unit"));
  EXPECT_EQ(Current().rules.tokens, 8u);
  EXPECT_EQ(Current().rules.unit_bytes, uint64_t{1} << 30);
  EXPECT_THAT(errors_, IsEmpty());
}

TEST_F(ConfigWatchTest, AConfigMapsVolume) {
  WriteConfigMap("..v1", "attach-tokens: 1\n");
  Start();
  for (const uint32_t tokens : {2u, 3u}) {
    WriteConfigMap(Concat("..v", tokens), Concat("attach-tokens: ", tokens, "\n"));
    fs::remove_all(folder_ / Concat("..v", tokens - 1));
    ASSERT_TRUE(Wait());
    EXPECT_EQ(Current().rules.tokens, tokens);
  }
  EXPECT_THAT(errors_, IsEmpty()) << "the file is never missing";
}

TEST_F(ConfigWatchTest, ABadFileKeepsWhatWas) {
  Write("attach-tokens: 5\n");
  Start();
  Write("attach-tokens: five\n");
  ASSERT_TRUE(Wait());
  EXPECT_THAT(errors_.at(0),
              HasSubstr("plugin.yaml:1:16: attach-tokens: \"five\" is not a number"));
  EXPECT_EQ(Current().rules.tokens, 5u);
  EXPECT_FALSE(Wait(300)) << "once";
  OnLoop([this] { watcher_->Reload(); });
  ASSERT_TRUE(Wait());
  EXPECT_EQ(errors_.size(), 2u) << "SIGHUP always reports the result";
  Write("attach-tokens: 5\n");
  ASSERT_TRUE(Wait());
  EXPECT_EQ(changes_.size(), 1u) << "corrected";
  fs::remove(Path());
  ASSERT_TRUE(Wait());
  EXPECT_THAT(errors_.at(2), HasSubstr("no such file"));
  EXPECT_EQ(Current().rules.tokens, 5u);
}

TEST_F(ConfigWatchTest, AChangeBeforeItWatchesIsSeen) {
  Write("attach-tokens: 5\n");
  const auto before = ReadPluginConfig(Path());
  Write("attach-tokens: 6\n");
  Start(*before);
  ASSERT_TRUE(Wait());
  EXPECT_EQ(Current().rules.tokens, 6u);
}

TEST_F(ConfigWatchTest, TheFolderIsMadeAnew) {
  Write("attach-tokens: 5\n");
  Start();
  fs::rename(folder_, folder_.string() + ".old");
  ASSERT_TRUE(Wait());
  EXPECT_THAT(errors_.at(0), HasSubstr("no such file"));
  fs::create_directory(folder_);
  Write("attach-tokens: 7\n");
  ASSERT_TRUE(Wait());
  Write("attach-tokens: 8\n");
  while (Current().rules.tokens != 8 && Wait()) {
  }
  EXPECT_EQ(Current().rules.tokens, 8u);
  fs::remove_all(folder_.string() + ".old");
}

// Goal: a folder that changes all the time does not delay the check indefinitely.
TEST_F(ConfigWatchTest, ABusyFolder) {
  Write("attach-tokens: 5\n");
  Start();
  Write("attach-tokens: 9\n");
  touch_ = [this] {
    std::ofstream(folder_ / "other") << "x";
    loop_->After(20, [this] { touch_(); });
  };
  OnLoop(touch_);
  EXPECT_TRUE(Wait(ConfigWatcher::kLongestMs * 5));
  EXPECT_EQ(Current().rules.tokens, 9u);
}

}  // namespace
}  // namespace gpushm::plugin
