// Goal: the pages of a file arrive like its bytes by every other method, nothing stays registered,
// and every refusal ends in copies.
// Method: the simulated driver, which refuses on request, with real files.
#include "platform/transfer/page_load.h"

#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "platform/base/clock.h"
#include "platform/base/testing.h"
#include "platform/base/unique_fd.h"
#include "platform/driver/stream_waits.h"
#include "platform/transfer/file_way.h"
#include "platform/transfer/pinned_pool.h"
#include "platform/transfer/testing/transfer_fixture.h"

namespace gpushm {
namespace {

using testing::Content;
using ::testing::HasSubstr;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kRoomBytes = 96 * kMiB;
// The smallest window: its parts have 4 MiB, and files of the room fill it.
constexpr uint64_t kWindowBytes = 64 * kMiB;

class PageLoadTest : public testing::DeviceRoomTest {
 protected:
  PageLoadTest() : DeviceRoomTest(kRoomBytes) {}
  void TearDown() override { unsetenv("GPUSHM_SIM_FAULT"); }

  // A call of the driver that fails from now on.
  static void Refuse(const std::string& call, CUresult result) {
    setenv("GPUSHM_SIM_FAULT",
           Concat("results: {", call, ": ", static_cast<int>(result), "}").c_str(), 1);
  }
  UniqueFd Write(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary) << bytes;
    return UniqueFd(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  }
  TransferJob Job(int file, uint64_t size_bytes, uint32_t threads = 0) {
    return {.file = file,
            .way = FileWay::kPages,
            .window = &window_,
            .address = mapping_->address(),
            .size_bytes = size_bytes,
            .threads = threads};
  }

  const testing::TempFolder folder_;
  const std::string path_ = folder_ / "in";
  PageWindow window_{kWindowBytes};
};

TEST_F(PageLoadTest, EveryByteArrives) {
  for (const uint64_t size : {uint64_t{1}, uint64_t{4097}, 4 * kMiB, 20 * kMiB + 12345,
                              kWindowBytes, kWindowBytes + 1, kRoomBytes - 1}) {
    const std::string content = Content(size);
    const UniqueFd file = Write(content);
    for (const uint32_t threads : {0u, 4u}) {
      SCOPED_TRACE(Concat(size, " bytes, ", threads, " threads"));
      Fill('z');
      TransferJob job = Job(file.get(), size, threads);
      uint64_t reported = 0;
      job.progress = [&](uint64_t done) {
        EXPECT_GE(done, reported);
        reported = done;
        return true;
      };
      const auto report = CopyFileToDevice(*api_, job);
      ASSERT_TRUE(report) << report.error().ToString();
      EXPECT_EQ(report->way, FileWay::kPages);
      EXPECT_EQ(report->bytes, size);
      EXPECT_EQ(reported, size);
      EXPECT_GT(report->moving_ns, 0);
      EXPECT_EQ(report->link_bytes_per_second, 0u) << "the parts are too small to measure";
      EXPECT_TRUE(OnDevice(size + 1) == content + 'z') << "bytes behind the file must not change";
      EXPECT_LE(window_.registered_bytes(), kWindowBytes);
      window_.Unregister();
      EXPECT_EQ(window_.registered_bytes(), 0u);
    }
  }
}

TEST_F(PageLoadTest, TheLinkIsMeasuredOnceWhereAPartIsLargeEnough) {
  const std::string content = Content(40 * kMiB);
  const UniqueFd file = Write(content);
  for (const uint32_t threads : {0u, 4u}) {
    PageWindow window(4 * kWindowBytes);
    TransferJob job = Job(file.get(), content.size(), threads);
    job.window = &window;
    auto report = CopyFileToDevice(*api_, job);
    ASSERT_TRUE(report) << report.error().ToString();
    EXPECT_GT(report->link_bytes_per_second, 0u);
    EXPECT_TRUE(OnDevice(content.size()) == content);
    job.link_bytes_per_second = 4711;
    report = CopyFileToDevice(*api_, job);
    ASSERT_TRUE(report) << report.error().ToString();
    EXPECT_EQ(report->link_bytes_per_second, 4711u);
  }
}

// Goal: tensors that are not aligned to pages or parts go to their places, also in batches.
TEST_F(PageLoadTest, SegmentsGoToTheirPlaces) {
  std::mt19937_64 random(20261129);
  for (const uint64_t largest : {uint64_t{3000}, 3 * kMiB}) {
    for (const uint32_t threads : {0u, 4u}) {
      for (const CUresult batches : {CUDA_SUCCESS, CUDA_ERROR_NOT_SUPPORTED}) {
        SCOPED_TRACE(Concat(largest, ", ", threads, ", ", static_cast<int>(batches)));
        if (batches != CUDA_SUCCESS) Refuse("cuMemcpyBatchAsync", batches);
        const std::string content = Content(17 * kMiB + 4711);
        std::vector<TransferSegment> segments;
        std::string expected(kRoomBytes, 'z');
        uint64_t to = 0;
        for (uint64_t at = random() % 9000; at < content.size();) {
          const uint64_t bytes = std::min(content.size() - at, 1 + random() % largest);
          segments.push_back({at, to, bytes});
          expected.replace(to, bytes, content, at, bytes);
          at += bytes + random() % 3 * (random() % 500);
          to = RoundUp(to + bytes, 256);
        }
        const UniqueFd file = Write(content);
        Fill('z');
        TransferJob job = Job(file.get(), content.size(), threads);
        job.segments = segments;
        const auto report = CopyFileToDevice(*api_, job);
        ASSERT_TRUE(report) << report.error().ToString();
        EXPECT_EQ(report->bytes, content.size());
        EXPECT_TRUE(OnDevice(kRoomBytes) == expected);
        unsetenv("GPUSHM_SIM_FAULT");
      }
    }
  }
}

TEST_F(PageLoadTest, ARefusalEndsInCopiesUnlessPagesWereAskedFor) {
  const std::string content = Content(20 * kMiB);
  const UniqueFd file = Write(content);
  for (const CUresult refusal : {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED,
                                 CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_OUT_OF_MEMORY}) {
    SCOPED_TRACE(static_cast<int>(refusal));
    Refuse("cuMemHostRegister", refusal);
    for (const uint32_t threads : {0u, 4u}) {
      Fill('z');
      TransferJob job = Job(file.get(), content.size(), threads);
      auto report = CopyFileToDevice(*api_, job);
      ASSERT_FALSE(report);
      EXPECT_EQ(report.error().code(), Code::kUnsupported);
      EXPECT_THAT(report.error().what(), HasSubstr("cuMemHostRegister"));
      job.way = FileWay::kCached;
      job.try_pages = true;
      report = CopyFileToDevice(*api_, job);
      ASSERT_TRUE(report) << report.error().ToString();
      EXPECT_EQ(report->way, FileWay::kCached);
      EXPECT_EQ(report->bytes, content.size());
      EXPECT_TRUE(OnDevice(content.size()) == content);
    }
  }
}

// Goal: what the driver refuses later is copied.
// Method: it refuses from each call of progress on.
TEST_F(PageLoadTest, ALaterRefusalLeavesTheRestToCopies) {
  const std::string content = Content(30 * kMiB + 5);
  const UniqueFd file = Write(content);
  for (const uint32_t threads : {0u, 4u}) {
    for (int refused = 1; refused < 8; refused += 2) {
      SCOPED_TRACE(Concat(threads, " threads, ", refused));
      Fill('z');
      TransferJob job = Job(file.get(), content.size(), threads);
      int looks = 0;
      job.progress = [&](uint64_t) {
        if (++looks == refused) Refuse("cuMemHostRegister", CUDA_ERROR_OUT_OF_MEMORY);
        return true;
      };
      const auto report = CopyFileToDevice(*api_, job);
      unsetenv("GPUSHM_SIM_FAULT");
      ASSERT_TRUE(report) << report.error().ToString();
      EXPECT_EQ(report->bytes, content.size());
      EXPECT_TRUE(OnDevice(content.size()) == content);
    }
  }
}

TEST_F(PageLoadTest, AFileThatIsCutMeanwhileIsNoticed) {
  const std::string content = Content(30 * kMiB);
  for (const uint32_t threads : {0u, 4u}) {
    const UniqueFd file = Write(content);
    TransferJob job = Job(file.get(), content.size(), threads);
    job.progress = [&](uint64_t) { return truncate(path_.c_str(), kMiB + 100) == 0; };
    const auto report = CopyFileToDevice(*api_, job);
    ASSERT_TRUE(report) << report.error().ToString();
    EXPECT_LE(report->bytes, kMiB + 100);
  }
}

// Goal: small pieces of a file that is cut cost nobody his life. The driver's processor would read
// them from the mapping.
TEST_F(PageLoadTest, SmallPiecesOfAFileThatIsCutAreNoticed) {
  const std::string content = Content(30 * kMiB);
  std::vector<TransferSegment> segments;
  for (uint64_t at = 0, to = 0; at + kMiB <= content.size(); at += kMiB) {
    segments.push_back({at, to, kMiB - 200});
    segments.push_back({at + kMiB - 100, to + kMiB, 100});
    to += kMiB + 256;
  }
  for (const uint32_t threads : {0u, 4u}) {
    const UniqueFd file = Write(content);
    TransferJob job = Job(file.get(), content.size(), threads);
    job.segments = segments;
    job.progress = [&](uint64_t) { return truncate(path_.c_str(), kMiB + 100) == 0; };
    const auto report = CopyFileToDevice(*api_, job);
    if (report) {
      EXPECT_LE(report->bytes, kMiB + 100);
    } else {
      EXPECT_EQ(report.error().code(), Code::kBusy) << report.error().ToString();
    }
  }
}

TEST_F(PageLoadTest, ALoadIsStoppedAtEachStep) {
  const std::string content = Content(30 * kMiB);
  const UniqueFd file = Write(content);
  for (const uint32_t threads : {0u, 4u}) {
    bool ended = false;
    for (int stop = 1; !ended; ++stop) {
      ASSERT_LT(stop, 100);
      TransferJob job = Job(file.get(), content.size(), threads);
      int looks = 0;
      job.progress = [&](uint64_t) { return ++looks < stop; };
      const auto report = CopyFileToDevice(*api_, job);
      ended = report.has_value();
      EXPECT_TRUE(ended || report.error().code() == Code::kBusy) << report.error().ToString();
    }
    EXPECT_TRUE(OnDevice(content.size()) == content);
  }
}

// Goal: while a stream waits, the driver cannot unregister, so pages are not chosen; and those that
// were asked for stay until nobody waits.
TEST_F(PageLoadTest, WhileAStreamWaits) {
  const std::string content = Content(20 * kMiB);
  const UniqueFd file = Write(content);
  StreamWaits::Word word = 0;
  ASSERT_TRUE(StreamWaits::Instance(*api_).Add(nullptr, word, 1));
  TransferJob job = Job(file.get(), content.size());
  job.way = FileWay::kCached;
  job.try_pages = true;
  auto report = CopyFileToDevice(*api_, job);
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_EQ(report->way, FileWay::kCached);
  job.way = FileWay::kPages;
  {
    PageWindow window(kWindowBytes);
    job.window = &window;
    report = CopyFileToDevice(*api_, job);
    ASSERT_TRUE(report) << report.error().ToString();
    window.Unregister();
    EXPECT_GT(window.registered_bytes(), 0u);
  }
  const size_t kept = PinnedPool::Instance().size();
  EXPECT_GT(kept, 0u);
  PinnedPool::Instance().Trim();
  EXPECT_EQ(PinnedPool::Instance().size(), kept);
  word = 1;
  PinnedPool::Instance().Trim();
  EXPECT_EQ(PinnedPool::Instance().size(), 0u);
  EXPECT_TRUE(OnDevice(content.size()) == content);
}

TEST_F(PageLoadTest, AWindowServesOneFileAfterTheOther) {
  const std::string content = Content(30 * kMiB);
  const UniqueFd file = Write(content);
  for (const uint32_t threads : {0u, 4u}) {
    for (int i = 0; i < 4; ++i) {
      TransferJob job = Job(file.get(), content.size(), threads);
      job.way = FileWay::kCached;
      job.try_pages = true;
      const auto report = CopyFileToDevice(*api_, job);
      ASSERT_TRUE(report) << report.error().ToString();
      EXPECT_LE(window_.registered_bytes(), kWindowBytes);
      EXPECT_TRUE(OnDevice(content.size()) == content);
    }
    window_.Unregister();
  }
}

TEST_F(PageLoadTest, TooSmallAWindowIsNone) {
  const UniqueFd file = Write(Content(20 * kMiB));
  PageWindow window(kWindowBytes - 1);
  TransferJob job = Job(file.get(), 20 * kMiB);
  job.window = &window;
  EXPECT_FALSE(CopyFileToDevice(*api_, job));
  job.way = FileWay::kCached;
  job.try_pages = true;
  EXPECT_TRUE(CopyFileToDevice(*api_, job));
  EXPECT_EQ(PageWindowBytes(256 * kMiB, UINT64_MAX), 64 * kMiB);
  EXPECT_EQ(PageWindowBytes(UINT64_MAX, 1024 * kMiB), 256 * kMiB);
  EXPECT_EQ(PageWindowBytes(UINT64_MAX, UINT64_MAX), uint64_t{16} << 30);
}

TEST_F(PageLoadTest, PinningIsNotMoving) {
  const std::string content = Content(kPagesMinBytes);
  const UniqueFd file = Write(content);
  setenv("GPUSHM_SIM_FAULT", "hang: {cuMemHostAlloc: 100}", 1);
  const int64_t start_ns = MonotonicNs();
  const auto report = CopyFileToDevice(*api_, Job(file.get(), content.size(), 4));
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_GE(MonotonicNs() - start_ns - report->moving_ns, 300'000'000) << "three chunks";
}

TEST_F(PageLoadTest, ThePlanKnowsWhatIsInThePageCache) {
  const UniqueFd file = Write(Content(kPagesMinBytes));
  auto plan = PlanRead(file.get(), kPagesMinBytes, FileWay::kAuto);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->way, FileWay::kCached);
  EXPECT_EQ(plan->try_pages, PagesOf(file.get()) != PageSize::kNone) << "it was just written";
  plan = PlanRead(file.get(), kPagesMinBytes - 1, FileWay::kAuto);
  ASSERT_TRUE(plan);
  EXPECT_FALSE(plan->try_pages) << "small";
  plan = PlanRead(file.get(), kPagesMinBytes, FileWay::kCached);
  ASSERT_TRUE(plan);
  EXPECT_FALSE(plan->try_pages) << "copies were asked for";
  plan = PlanRead(file.get(), 1, FileWay::kPages);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->way, FileWay::kPages);
  EXPECT_EQ(plan->reason, FileReason::kAsked);
  EXPECT_FALSE(PlanWrite(file.get(), kPagesMinBytes, FileWay::kPages));
}

TEST(ChoosePages, ByProcessorsAndPages) {
  constexpr uint64_t kBytes = kPagesMinBytes;
  for (const uint32_t threads : {0u, 1u, 2u}) {  // 1 to 3 processors.
    EXPECT_EQ(ChoosePages(threads, PageSize::kLarge, kBytes, 1), PageUse::kAlone);
    EXPECT_EQ(ChoosePages(threads, PageSize::kSmall, kBytes, 1), PageUse::kAlone);
    EXPECT_EQ(ChoosePages(threads, PageSize::kNone, kBytes, 1), PageUse::kNone);
    EXPECT_EQ(ChoosePages(threads, PageSize::kLarge, kBytes - 1, 1), PageUse::kNone);
  }
  EXPECT_EQ(ChoosePages(3, PageSize::kLarge, kBytes, 1), PageUse::kMixed);
  EXPECT_EQ(ChoosePages(3, PageSize::kSmall, kBytes, 1), PageUse::kNone);
  EXPECT_EQ(ChoosePages(0, PageSize::kLarge, kBytes, 65), PageUse::kNone) << "small pieces";
}

TEST(FileRest, IsTakenFromBothEnds) {
  FileRest rest(100);
  const FileRange front = rest.TakeFront(30);
  EXPECT_EQ(front.offset, 0u);
  EXPECT_EQ(front.bytes, 30u);
  FileRange back = rest.TakeBack(16);
  EXPECT_EQ(back.offset, 96u);
  EXPECT_EQ(back.bytes, 4u);
  rest.PutBack(front);
  EXPECT_EQ(rest.TakeFront(90).bytes, 90u);
  back = rest.TakeBack(16);
  EXPECT_EQ(back.offset, 90u);
  EXPECT_EQ(back.bytes, 6u);
  EXPECT_TRUE(rest.empty());
  EXPECT_EQ(rest.TakeBack(16).bytes, 0u);
  EXPECT_EQ(rest.TakeFront(16).bytes, 0u);
}

}  // namespace
}  // namespace gpushm
