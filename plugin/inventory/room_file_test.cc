// The file for Node Feature Discovery, read as NFD reads it: no name that begins with a dot, and
// nothing below its folder.
#include "plugin/inventory/room_file.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "platform/base/clock.h"
#include "platform/base/status.h"
#include "platform/base/testing.h"
#include "platform/base/unique_fd.h"

namespace gpushm::plugin::inventory {
namespace {

using gpushm::testing::TempFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kLongMs = 20'000;

std::vector<std::string> Shown(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(".")) names.push_back(name);
  }
  return names;
}

std::string Text(const std::string& folder) {
  std::ifstream file(folder + "/gpushm");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// What a reader sees that looks once at each event of its folder, as NFD does.
class Watch {
 public:
  explicit Watch(const std::string& folder) : folder_(folder), fd_(inotify_init1(IN_CLOEXEC)) {
    if (inotify_add_watch(fd_.get(), folder.c_str(),
                          IN_CREATE | IN_MODIFY | IN_ATTRIB | IN_DELETE | IN_MOVE) < 0) {
      ADD_FAILURE() << "no watch of " << folder;
    }
  }
  // The file's text at the next event that is not about a folder.
  std::string Next() {
    const Deadline deadline = Deadline::AfterMs(kLongMs);
    for (;;) {
      pollfd waits{fd_.get(), POLLIN, 0};
      if (poll(&waits, 1, deadline.RemainingMs()) <= 0) return "no event";
      alignas(inotify_event) char bytes[4096];
      const ssize_t got = read(fd_.get(), bytes, sizeof(bytes));
      for (ssize_t at = 0; at < got;) {
        const auto* const event = reinterpret_cast<const inotify_event*>(bytes + at);
        if ((event->mask & IN_ISDIR) == 0) return Text(folder_);
        at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
      }
    }
  }

 private:
  const std::string folder_;
  const UniqueFd fd_;
};

TEST(RoomFile, TheTextIsWhatNfdReads) {
  EXPECT_EQ(RoomText({79, 40, 0}, 1'700'000'000),
            "# Written by gpushm-plugin.\n"
            "# +expiry-time=2023-11-14T22:13:20Z\n"
            "gpushm.io/largest-free=79\n"
            "gpushm.io/largest-free-2=40\n"
            "gpushm.io/largest-free-3=0\n");
}

// Goal: a reader that looks at each event never looks too early, because it may not look again for
// a minute.
TEST(RoomFile, EachEventShowsTheNewText) {
  const TempFolder folder;
  RoomFile file(folder.path(), {.between_changes_ms = 1});
  Watch watch(folder.path());
  for (uint32_t units = 1; units <= 50; ++units) {
    file.Offer({units});
    EXPECT_THAT(watch.Next(), HasSubstr(Concat("gpushm.io/largest-free=", units, "\n")));
  }
  EXPECT_THAT(Shown(folder.path()), ElementsAre("gpushm"));
}

TEST(RoomFile, ChangesAreKeptApartAndTheLastOneIsWritten) {
  const TempFolder folder;
  RoomFile file(folder.path(), {.between_changes_ms = 200});
  Watch watch(folder.path());
  const int64_t began_ns = MonotonicNs();
  file.Offer({1});
  EXPECT_THAT(watch.Next(), HasSubstr("free=1\n"));
  for (uint32_t units = 2; units <= 9; ++units) file.Offer({units});
  EXPECT_THAT(watch.Next(), HasSubstr("free=9\n"));
  EXPECT_GE(MonotonicNs() - began_ns, 200 * 1'000'000);
}

// Goal: the label lives as long as somebody says that it is right.
TEST(RoomFile, ItIsKeptFreshByOffersWithoutAChange) {
  const TempFolder folder;
  RoomFile file(folder.path(), {.expires_ms = 60'000, .refresh_ms = 1, .between_changes_ms = 1});
  Watch watch(folder.path());
  file.Offer({7});
  const std::string first = watch.Next();
  std::string later = first;
  const Deadline deadline = Deadline::AfterMs(kLongMs);
  while (later == first && !deadline.Passed()) {
    file.Offer({7});
    later = watch.Next();
  }
  EXPECT_NE(later, first);
  EXPECT_THAT(later, HasSubstr("free=7\n"));
}

TEST(RoomFile, NothingIsWrittenBeforeAnOfferOrAfterAStop) {
  const TempFolder folder;
  RoomFile file(folder.path(), {.between_changes_ms = 1});
  file.Stop();
  file.Offer({1});
  EXPECT_THAT(Shown(folder.path()), ElementsAre());
}

TEST(RoomFile, StopLeavesTheFileAndRemoveTakesIt) {
  const TempFolder folder;
  {
    RoomFile file(folder.path(), {.between_changes_ms = 1});
    Watch watch(folder.path());
    file.Offer({1});
    (void)watch.Next();
  }
  EXPECT_THAT(Shown(folder.path()), ElementsAre("gpushm"));
  RoomFile(folder.path()).Remove();
  EXPECT_THAT(Shown(folder.path()), ElementsAre());
}

// Goal: without NFD's folder nothing else suffers, and a folder that comes later is used.
TEST(RoomFile, AFolderThatComesLaterIsUsed) {
  const TempFolder folder;
  const std::string late = folder / "late";
  RoomFile file(late, {.between_changes_ms = 1});
  file.Offer({2});
  std::filesystem::create_directory(late);
  Watch watch(late);
  file.Offer({3});
  // The first one may have been in time for the folder.
  const std::string text = watch.Next();
  EXPECT_THAT(text.find("free=2") == std::string::npos ? text : watch.Next(),
              HasSubstr("free=3\n"));
}

}  // namespace
}  // namespace gpushm::plugin::inventory
