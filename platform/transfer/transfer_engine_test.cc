// The pipeline between files and GPU memory, on the simulated driver with real files and pipes.
#include "platform/transfer/transfer_engine.h"

#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "platform/base/clock.h"
#include "platform/base/testing.h"
#include "platform/base/unique_fd.h"
#include "platform/driver/device.h"
#include "platform/transfer/crew.h"
#include "platform/transfer/file_way.h"
#include "platform/transfer/testing/transfer_fixture.h"

namespace gpushm {
namespace {

using testing::Content;
using ::testing::HasSubstr;
using testing::Slurp;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kRoomBytes = 48 * kMiB;
constexpr uint64_t kChunkBytes = 256 << 10;

struct Pipe {
  Pipe() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    reader.Reset(ends[0]);
    writer.Reset(ends[1]);
  }
  UniqueFd reader;
  UniqueFd writer;
};

class TransferTest : public testing::DeviceRoomTest {
 protected:
  TransferTest() : DeviceRoomTest(kRoomBytes) {}

  UniqueFd Write(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
    UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    EXPECT_TRUE(file) << path;
    return file;
  }
  TransferJob Job(int file, uint64_t size_bytes) const {
    return {.file = file,
            .address = mapping_->address(),
            .size_bytes = size_bytes,
            .chunk_bytes = kChunkBytes};
  }
  Result<TransferReport> Load(const TransferJob& job) { return CopyFileToDevice(*api_, job); }
  Result<TransferReport> Save(const TransferJob& job) { return CopyDeviceToFile(*api_, job); }
  // Not on a file system that only accepts the flag: the tests that need O_DIRECT skip themselves.
  bool PlansDirect(int file, uint64_t size_bytes) {
    const auto plan = PlanRead(file, size_bytes, FileWay::kDirect);
    return plan && plan->way == FileWay::kDirect;
  }

  testing::TempFolder folder_;
};

// Sizes around the boundaries of chunks, blocks and rings.
const std::vector<uint64_t>& Sizes() {
  static const std::vector<uint64_t> sizes = {1,
                                              4095,
                                              4096,
                                              4097,
                                              kChunkBytes - 1,
                                              kChunkBytes,
                                              kChunkBytes + 1,
                                              3 * kChunkBytes,
                                              7 * kChunkBytes + 12345,
                                              9 * kMiB + 511};
  return sizes;
}

TEST_F(TransferTest, EveryByteArrivesByEveryWay) {
  for (const uint64_t size : Sizes()) {
    const std::string content = Content(size);
    const std::string path = folder_ / "in";
    for (const FileWay way : {FileWay::kCached, FileWay::kDirect, FileWay::kStream}) {
      for (const uint32_t threads : {0u, 3u}) {
        SCOPED_TRACE(Concat(NameOf(way), ", ", size, " bytes, ", threads, " threads"));
        UniqueFd file = Write(path, content);
        if (way == FileWay::kDirect && !PlansDirect(file.get(), size)) continue;
        Fill('z');
        TransferJob job = Job(file.get(), way == FileWay::kStream ? kRoomBytes : size);
        job.way = way;
        job.threads = threads;
        uint64_t reported = 0;
        job.progress = [&](uint64_t done) {
          EXPECT_GE(done, reported);
          reported = done;
          return true;
        };
        const auto report = Load(job);
        ASSERT_TRUE(report) << report.error().ToString();
        EXPECT_EQ(report->bytes, size);
        EXPECT_EQ(reported, size);
        EXPECT_GT(report->moving_ns, 0);
        const std::string found = OnDevice(size + 1);
        EXPECT_TRUE(found.substr(0, size) == content);
        EXPECT_EQ(found.back(), 'z') << "bytes behind the file must not change";
      }
    }
  }
}

TEST_F(TransferTest, EveryByteIsSavedByEveryWay) {
  const std::string content = Content(10 * kMiB);
  const UniqueFd source = Write(folder_ / "source", content);
  ASSERT_TRUE(Load(Job(source.get(), content.size())));
  for (const uint64_t size : Sizes()) {
    for (const FileWay way : {FileWay::kCached, FileWay::kDirect, FileWay::kStream}) {
      SCOPED_TRACE(Concat(NameOf(way), ", ", size, " bytes"));
      const std::string path = folder_ / "out";
      const UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
      TransferJob job = Job(file.get(), size);
      job.way = way;
      if (way == FileWay::kDirect && !PlanWrite(file.get(), size, way)) continue;
      const auto report = Save(job);
      ASSERT_TRUE(report) << report.error().ToString();
      EXPECT_EQ(report->bytes, size);
      EXPECT_TRUE(Slurp(path) == content.substr(0, size));
    }
  }
}

// Goal: segments go to their places whatever their sizes and their order in the buffer, and nothing
// else of the buffer or of a saved file changes. Method: random segments, compared byte for byte.
TEST_F(TransferTest, SegmentsGoToTheirPlacesAndBack) {
  std::mt19937_64 random(20261124);
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(Concat("round ", round));
    const uint64_t size = 1 + random() % (6 * kMiB);
    const std::string content = Content(size);
    std::vector<TransferSegment> segments;
    const uint64_t largest =
        round % 3 == 0 ? 3000 : 2 * kMiB;  // Many in a chunk, or some over several.
    for (uint64_t at = random() % 9000; at < size;) {
      const uint64_t bytes = std::min(size - at, 1 + random() % largest);
      segments.push_back({at, 0, bytes});
      at += bytes + random() % 3 * (random() % 5000);
    }
    std::vector<size_t> order(segments.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    std::string expected(kRoomBytes, 'z');
    uint64_t to = 0;
    for (const size_t i : order) {
      segments[i].buffer_offset = to;
      expected.replace(to, segments[i].bytes, content, segments[i].file_offset, segments[i].bytes);
      to = RoundUp(to + segments[i].bytes, 256);
    }
    ASSERT_LE(to, kRoomBytes);
    const UniqueFd file = Write(folder_ / "in", content);
    for (const FileWay way : {FileWay::kCached, FileWay::kDirect}) {
      if (way == FileWay::kDirect && !PlansDirect(file.get(), size)) continue;
      Fill('z');
      TransferJob job = Job(file.get(), size);
      job.way = way;
      job.threads = static_cast<uint32_t>(round % 2) * 3;
      job.segments = segments;
      const auto report = Load(job);
      ASSERT_TRUE(report) << report.error().ToString();
      EXPECT_EQ(report->bytes, size);
      EXPECT_EQ(report->link_bytes_per_second, 0U);
      EXPECT_TRUE(OnDevice(kRoomBytes) == expected);
    }
    // Back, behind a head that is not in the buffer.
    const std::string head = Content(1 + random() % (3 * kChunkBytes));
    std::string written = head;
    for (TransferSegment& segment : segments) {
      written.append(content, segment.file_offset, segment.bytes);
      segment.file_offset = written.size() - segment.bytes;
    }
    const std::string path = folder_ / "out";
    const UniqueFd out(open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    TransferJob job = Job(out.get(), written.size());
    job.head = std::as_bytes(std::span(head));
    job.segments = segments;
    ASSERT_TRUE(Save(job));
    EXPECT_TRUE(Slurp(path) == written);
  }
}

TEST_F(TransferTest, ChunksAreSeveralUnlessTheCallerSaysOtherwise) {
  const std::string content = Content(kRoomBytes);
  const UniqueFd file = Write(folder_ / "in", content);
  for (const uint32_t chunks : {0u, 2u, 5u, 1000u}) {
    TransferJob job = Job(file.get(), content.size());
    job.chunk_bytes = 0;
    job.chunks = chunks;
    std::vector<uint64_t> steps;
    job.progress = [&](uint64_t done) {
      steps.push_back(done);
      return true;
    };
    ASSERT_TRUE(Load(job));
    EXPECT_GE(steps.size(), 6u);
    EXPECT_TRUE(OnDevice(content.size()) == content);
  }
}

TEST_F(TransferTest, TheLinkIsMeasuredOnceWhereAChunkIsLargeEnough) {
  const std::string content = Content(40 * kMiB);
  const UniqueFd file = Write(folder_ / "in", content);
  TransferJob job = Job(file.get(), content.size());
  auto report = Load(job);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->link_bytes_per_second, 0u) << "the chunks are too small to measure";
  job.chunk_bytes = kMeasuredBytes;
  report = Load(job);
  ASSERT_TRUE(report);
  EXPECT_GT(report->link_bytes_per_second, 0u);
  EXPECT_TRUE(OnDevice(content.size()) == content);
  job.link_bytes_per_second = 4711;
  report = Load(job);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->link_bytes_per_second, 4711u);
  const UniqueFd out(open((folder_ / "out").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  job = Job(out.get(), content.size());
  job.chunk_bytes = kMeasuredBytes;
  report = Save(job);
  ASSERT_TRUE(report);
  EXPECT_GT(report->link_bytes_per_second, 0u);
  EXPECT_TRUE(Slurp(folder_ / "out") == content);
}

TEST_F(TransferTest, AFileThatShrinksOrGrowsMeanwhile) {
  const std::string content = Content(4 * kMiB);
  const std::vector<std::pair<bool, uint32_t>> ways = {
      {false, 0}, {true, 0}, {false, 3}, {true, 3}};
  for (const auto& [direct, threads] : ways) {
    const std::string path = folder_ / "in";
    UniqueFd file = Write(path, content);
    if (direct && !PlansDirect(file.get(), content.size())) continue;
    TransferJob job = Job(file.get(), content.size());
    job.way = direct ? FileWay::kDirect : FileWay::kCached;
    job.threads = threads;
    job.progress = [&](uint64_t) { return truncate(path.c_str(), kMiB + 100) == 0; };
    auto report = Load(job);
    ASSERT_TRUE(report) << report.error().ToString();
    EXPECT_EQ(report->bytes, kMiB + 100) << "the caller must see that it is not everything";
    EXPECT_TRUE(OnDevice(report->bytes) == content.substr(0, report->bytes));

    file = Write(path, content);
    if (direct && !PlansDirect(file.get(), content.size())) continue;
    job.file = file.get();
    job.size_bytes = content.size() - 100;
    job.progress = [&](uint64_t) {
      std::ofstream(path, std::ios::binary | std::ios::app) << std::string(5000, 'x');
      return true;
    };
    Fill('z');
    report = Load(job);
    ASSERT_TRUE(report) << report.error().ToString();
    EXPECT_EQ(report->bytes, job.size_bytes);
    EXPECT_TRUE(OnDevice(content.size()) ==
                content.substr(0, job.size_bytes) + std::string(100, 'z'));
  }
}

// Goal: a load that is stopped while helpers read ahead ends, and nobody reads any more.
// Method: the caller stops at each of its progress calls in turn. A sanitizer would find a late
// write by a helper.
TEST_F(TransferTest, ALoadIsStoppedWhileHelpersReadAhead) {
  const std::string content = Content(4 * kMiB);
  const UniqueFd file = Write(folder_ / "in", content);
  bool ended = false;
  for (int stop = 1; !ended; ++stop) {
    ASSERT_LT(stop, 100);
    TransferJob job = Job(file.get(), content.size());
    job.threads = 3;
    int looks = 0;
    job.progress = [&](uint64_t) { return ++looks < stop; };
    const auto report = Load(job);
    ended = report.has_value();
    if (ended) {
      EXPECT_TRUE(OnDevice(content.size()) == content);
    } else {
      EXPECT_EQ(report.error().code(), Code::kBusy);
    }
  }
}

// Goal: the bytes of a pipe arrive in whatever pieces they come.
TEST_F(TransferTest, APipeInPieces) {
  const std::string content = Content(3 * kMiB + 77);
  Pipe pipe;
  std::thread writer([&] {
    for (size_t at = 0; at < content.size();) {
      const size_t piece = std::min(content.size() - at, 1 + at % 70'001);
      const ssize_t put = write(pipe.writer.get(), content.data() + at, piece);
      ASSERT_GT(put, 0);
      at += static_cast<size_t>(put);
    }
    pipe.writer.Reset();
  });
  TransferJob job = Job(pipe.reader.get(), kRoomBytes);
  job.way = FileWay::kStream;
  const auto report = Load(job);
  writer.join();
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_EQ(report->bytes, content.size());
  EXPECT_TRUE(OnDevice(content.size()) == content);
}

TEST_F(TransferTest, AStreamMayFillTheBufferButNotMore) {
  for (const uint64_t extra : {0u, 1u}) {
    Pipe pipe;
    const std::string content = Content(kMiB + extra);
    std::thread writer([&] {
      [[maybe_unused]] const ssize_t put = write(pipe.writer.get(), content.data(), content.size());
      pipe.writer.Reset();
    });
    TransferJob job = Job(pipe.reader.get(), kMiB);
    job.way = FileWay::kStream;
    const auto report = Load(job);
    writer.join();
    ASSERT_EQ(report.has_value(), extra == 0);
    if (extra == 0) continue;
    EXPECT_EQ(report.error().code(), Code::kInvalidArgument);
    EXPECT_THAT(report.error().what(), HasSubstr("more than the 1048576 bytes"));
  }
}

// Goal: a caller that waits for a stream gets repeated progress calls and may stop: with an empty
// pipe, with a slow one, and with a full pipe that nobody empties.
TEST_F(TransferTest, AStreamThatStallsCanBeLeft) {
  const auto until = [](const Deadline& deadline) {
    return [deadline](uint64_t) { return !deadline.Passed(); };
  };
  Pipe silent;
  TransferJob job = Job(silent.reader.get(), kMiB);
  job.way = FileWay::kStream;
  job.progress = until(Deadline::AfterMs(100));
  auto report = Load(job);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), Code::kBusy);

  Pipe trickling;
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    while (!stop && write(trickling.writer.get(), "x", 1) == 1) {
      usleep(1000);  // sleep: the pace of the stream that is tested.
    }
  });
  job.file = trickling.reader.get();
  job.progress = until(Deadline::AfterMs(200));
  report = Load(job);
  stop = true;
  writer.join();
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), Code::kBusy);

  Pipe full;
  job = Job(full.writer.get(), 8 * kMiB);
  job.way = FileWay::kStream;
  job.progress = until(Deadline::AfterMs(100));
  report = Save(job);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), Code::kBusy);
}

TEST_F(TransferTest, APipeThatNobodyReadsIsAnErrorAndNoSignal) {
  Pipe pipe;
  pipe.reader.Reset();
  TransferJob job = Job(pipe.writer.get(), kMiB);
  job.way = FileWay::kStream;
  const auto report = Save(job);  // SIGPIPE would end the test.
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().sys_errno(), EPIPE);
  sigset_t pending;
  sigpending(&pending);
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 0);
}

TEST_F(TransferTest, TheWayIsChosenByTheFile) {
  const UniqueFd small = Write(folder_ / "small", "few");
  auto plan = PlanRead(small.get(), 3, FileWay::kAuto);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->way, FileWay::kCached);
  EXPECT_EQ(plan->reason, FileReason::kSmall);
  EXPECT_EQ(WayOf(small.get()), FileWay::kCached);

  // Sparse: large, and not in the page cache at all.
  const std::string path = folder_ / "large";
  const UniqueFd large = Write(path, "");
  ASSERT_EQ(truncate(path.c_str(), static_cast<off_t>(kDirectMinBytes)), 0);
  plan = PlanRead(large.get(), kDirectMinBytes, FileWay::kAuto);
  ASSERT_TRUE(plan);
  if (plan->reason == FileReason::kNotInCache) {
    EXPECT_EQ(plan->way, FileWay::kDirect);
    EXPECT_EQ(WayOf(large.get()), FileWay::kDirect);
  } else {  // Without O_DIRECT, or in memory, which is its own cache.
    EXPECT_TRUE(plan->reason == FileReason::kRefused || plan->reason == FileReason::kInCache);
    EXPECT_EQ(WayOf(large.get()), FileWay::kCached);
  }

  const UniqueFd memory(open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (memory) {
    ASSERT_EQ(ftruncate(memory.get(), static_cast<off_t>(kDirectMinBytes)), 0);
    plan = PlanRead(memory.get(), kDirectMinBytes, FileWay::kAuto);
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->reason, FileReason::kInCache);
  }
  const UniqueFd proc(open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
  const auto refused = PlanRead(proc.get(), 100, FileWay::kDirect);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kUnsupported);
  const Pipe pipe;
  EXPECT_EQ(WayOf(pipe.reader.get()), FileWay::kStream);
}

// Goal: each part is done once, also with several batches started, and a batch has ended when
// Finish returns.
// Method: batches of 0 to 39 parts, two of them started before the first one has ended.
TEST(Crew, EachPartOnceAndAllEndedWhenFinishReturns) {
  constexpr size_t kBatches = 40;
  for (const uint32_t helpers : {0u, 1u, 4u}) {
    std::vector<std::vector<std::atomic<int>>> done(kBatches);
    std::vector<Crew::Batch> batches(kBatches);
    Crew crew(helpers);
    for (size_t i = 0; i < kBatches + 2; ++i) {
      if (i < kBatches) {
        done[i] = std::vector<std::atomic<int>>(i);
        batches[i].parts = i;
        batches[i].work = [&done, i](size_t part) { ++done[i][part]; };
        crew.Start(&batches[i]);
      }
      if (i < 2) continue;
      crew.Finish(&batches[i - 2]);
      for (const std::atomic<int>& times : done[i - 2]) EXPECT_EQ(times, 1);
    }
  }
}

// Goal: a destroyed crew leaves parts undone, but none half done.
// Method: many slow parts.
TEST(Crew, GoesWithoutWhatNobodyBegan) {
  std::atomic<int> begun = 0;
  std::atomic<int> ended = 0;
  Crew::Batch batch{.work =
                        [&](size_t) {
                          ++begun;
                          std::this_thread::sleep_for(std::chrono::milliseconds(1));  // sleep: slow
                          ++ended;
                        },
                    .parts = 100'000};
  {
    Crew crew(3);
    crew.Start(&batch);
    const Deadline deadline = Deadline::AfterMs(10'000);
    while (begun == 0 && !deadline.Passed()) std::this_thread::yield();
  }
  EXPECT_GT(begun, 0);
  EXPECT_LT(begun, 100'000);
  EXPECT_EQ(begun, ended);
}

// The exit status: 0 if a crew that gets no thread still does the work.
[[noreturn]] void WorkWithoutThreads() {
  constexpr uid_t kLonely = 4'242'001;  // Unused elsewhere: threads are counted by user.
  const rlimit one{1, 1};
  if (geteuid() == 0 && setresuid(kLonely, kLonely, kLonely) != 0) _exit(2);
  if (setrlimit(RLIMIT_NPROC, &one) != 0) _exit(3);
  Crew crew(8);
  if (crew.helpers() != 0) _exit(4);
  size_t done = 0;
  Crew::Batch batch{.work = [&](size_t) { ++done; }, .parts = 5};
  crew.Start(&batch);
  crew.Finish(&batch);
  _exit(done == 5 ? 0 : 5);
}

// Goal: if the system allows no more threads, the existing ones do the work.
// Method: a child whose user may have only one thread.
TEST(Crew, GoesOnWithTheThreadsThatItGets) {
  EXPECT_EXIT(WorkWithoutThreads(), ::testing::ExitedWithCode(0), "");
}

// Goal: no helper receives a signal of the application.
// Method: check the mask of each helper while it works.
TEST(Crew, HelpersBlockAllSignals) {
  std::atomic<int> open = 0;
  const pthread_t caller = pthread_self();
  Crew crew(3);
  Crew::Batch batch{.work =
                        [&](size_t) {
                          if (pthread_equal(pthread_self(), caller) != 0) return;
                          sigset_t mask;
                          pthread_sigmask(SIG_BLOCK, nullptr, &mask);
                          for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGALRM, SIGCHLD}) {
                            if (sigismember(&mask, signal) != 1) ++open;
                          }
                        },
                    .parts = 10'000};
  crew.Start(&batch);
  crew.Finish(&batch);
  EXPECT_EQ(open, 0);
}

TEST(Crew, HelpersForWhatTheContainerMayUse) {
  EXPECT_EQ(HelpersFor(8, ""), 7u);
  EXPECT_EQ(HelpersFor(8, "max 100000"), 7u);
  EXPECT_EQ(HelpersFor(64, "max 100000"), 8u);
  EXPECT_EQ(HelpersFor(64, "400000 100000"), 3u);
  EXPECT_EQ(HelpersFor(8, "200000 100000"), 1u);
  EXPECT_EQ(HelpersFor(8, "250000 100000"), 2u);
  EXPECT_EQ(HelpersFor(8, "50000 100000"), 0u);
  EXPECT_EQ(HelpersFor(2, "800000 100000"), 1u);
  EXPECT_EQ(HelpersFor(1, "0 0"), 0u);
}

}  // namespace
}  // namespace gpushm
