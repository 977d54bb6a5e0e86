// Goal: GPUDirect Storage moves the same bytes as every other method, is refused with its reason if
// it is not available, and leaves nothing open.
// Method: a libcufile of our own (fake_cufile.cc) that fails on request, on the simulated driver
// with real files. client_test checks what the application sees, and ctl_integration_test checks it
// through the broker.
#include "platform/transfer/gds_file.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "platform/base/testing.h"
#include "platform/base/unique_fd.h"
#include "platform/driver/device.h"
#include "platform/transfer/file_way.h"
#include "platform/transfer/testing/transfer_fixture.h"

namespace gpushm {
namespace {

using testing::Content;
using ::testing::HasSubstr;
using testing::Slurp;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kRoomBytes = 8 * kMiB;
constexpr uint64_t kChunkBytes = 256 << 10;

void* OfFake(const char* name) {
  const std::string path = std::string(GPUSHM_FAKE_CUFILE_FOLDER) + "/libcufile.so.0";
  return dlsym(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL), name);
}

// Number of things that cuFile has open or registered.
long OpenThings() { return reinterpret_cast<long (*)()>(OfFake("cuFileUseCount"))(); }

class GdsTest : public testing::DeviceRoomTest {
 protected:
  GdsTest() : DeviceRoomTest(kRoomBytes) {}

  void SetUp() override {
    Tell("");
    DeviceRoomTest::SetUp();
    if (HasFatalFailure()) return;
    const UniqueFd probe = Write("probe", Content(4096));
    if (!PlanRead(probe.get(), 4096, FileWay::kGds)) GTEST_SKIP() << "no O_DIRECT here";
  }
  void TearDown() override {
    if (IsSkipped()) return;
    EXPECT_EQ(OpenThings(), 0) << "something is still open or registered";
  }

  static void Tell(const char* words) { setenv("GPUSHM_FAKE_CUFILE", words, 1); }
  UniqueFd Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return UniqueFd(open((folder_ / name).c_str(), O_RDONLY | O_CLOEXEC));
  }
  UniqueFd Make(const std::string& name) const {
    return UniqueFd(open((folder_ / name).c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  }
  // For a file that was planned this way.
  TransferJob Job(int file, uint64_t size_bytes) const {
    return {.file = file,
            .way = FileWay::kGds,
            .address = mapping_->address(),
            .size_bytes = size_bytes,
            .chunk_bytes = kChunkBytes};
  }
  Result<TransferReport> Load(TransferJob job) {
    if (auto planned = PlanRead(job.file, job.size_bytes, FileWay::kGds); !planned) {
      return std::unexpected(planned.error());
    }
    if (auto opened = OpenGds(job, false); !opened) return std::unexpected(opened.error());
    return CopyFileToDevice(*api_, job);
  }
  Result<TransferReport> Save(TransferJob job) {
    if (auto planned = PlanWrite(job.file, job.size_bytes, FileWay::kGds); !planned) {
      return std::unexpected(planned.error());
    }
    if (auto opened = OpenGds(job, false); !opened) return std::unexpected(opened.error());
    return CopyDeviceToFile(*api_, job);
  }

  testing::TempFolder folder_;
};

TEST_F(GdsTest, EveryByteArrivesAndIsSaved) {
  for (const char* told : {"", "short"}) {
    Tell(told);
    for (const uint64_t size : {uint64_t{4096}, uint64_t{4097}, kChunkBytes - 1, kChunkBytes,
                                kChunkBytes + 4095, 7 * kChunkBytes + 12345, 5 * kMiB}) {
      SCOPED_TRACE(Concat(told, " ", size));
      const std::string content = Content(size);
      const UniqueFd file = Write("in", content);
      Fill('z');
      TransferJob job = Job(file.get(), size);
      uint64_t reported = 0;
      job.progress = [&](uint64_t done) {
        EXPECT_GE(done, reported);
        reported = done;
        return true;
      };
      auto report = Load(job);
      ASSERT_TRUE(report) << report.error().ToString();
      EXPECT_EQ(report->bytes, size);
      EXPECT_EQ(reported, size);
      EXPECT_GT(report->moving_ns, 0);
      EXPECT_TRUE(OnDevice(size + 1) == content + 'z') << "bytes behind the file must not change";

      const UniqueFd out = Make("out");
      report = Save(Job(out.get(), size));
      ASSERT_TRUE(report) << report.error().ToString();
      EXPECT_EQ(report->bytes, size);
      EXPECT_TRUE(Slurp(folder_ / "out") == content);
    }
  }
}

// Goal: the last bytes of a file, which do not fill a block, do not wait for other streams.
// Method: one stream waits for a word that nobody stores before the transfers are done. If a
// transfer hung, the test would fail at its time limit.
TEST_F(GdsTest, BesideAStreamThatWaits) {
  auto word = PinnedBuffer::Allocate(*api_, 4096);
  ASSERT_TRUE(word);
  std::memset(word->data(), 0, 4096);
  auto waiting = Stream::Create(*api_);
  ASSERT_TRUE(waiting);
  const auto address = static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(word->data()));
  ASSERT_EQ(api_->cuStreamWaitValue64(waiting->get(), address, 1, CU_STREAM_WAIT_VALUE_GEQ),
            CUDA_SUCCESS);
  const std::string content = Content(4097);
  const UniqueFd file = Write("in", content);
  EXPECT_TRUE(Load(Job(file.get(), content.size())));
  const UniqueFd out = Make("out");
  EXPECT_TRUE(Save(Job(out.get(), content.size())));
  EXPECT_EQ(api_->cuStreamQuery(waiting->get()), CUDA_ERROR_NOT_READY);
  EXPECT_TRUE(Slurp(folder_ / "out") == content);
  __atomic_store_n(reinterpret_cast<uint64_t*>(word->data()), 1, __ATOMIC_RELEASE);
  EXPECT_EQ(api_->cuStreamSynchronize(waiting->get()), CUDA_SUCCESS);
}

struct Refusal {
  const char* told;
  const char* what;
};

TEST_F(GdsTest, WhatIsMissingIsNamed) {
  const UniqueFd file = Write("in", Content(kMiB));
  ASSERT_TRUE(PlanRead(file.get(), kMiB, FileWay::kGds));
  for (const Refusal& refusal :
       std::vector<Refusal>{{"no-driver", "nvidia-fs driver is not loaded"},
                            {"open", "cuFileDriverOpen: cuFile error 5001"},
                            {"properties", "cuFileDriverGetProperties"},
                            {"no-systems", "supports no file system"},
                            {"compat", "compatibility mode is on"},
                            {"forced", "compatibility mode is on"},
                            {"file", "cuFile refuses the file: cuFileHandleRegister"},
                            {"memory", "the buffer cannot be registered"}}) {
    SCOPED_TRACE(refusal.told);
    Tell(refusal.told);
    TransferJob job = Job(file.get(), kMiB);
    const auto opened = OpenGds(job, false);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code(), Code::kUnsupported);
    EXPECT_THAT(opened.error().what(), HasSubstr(refusal.what));
    EXPECT_FALSE(opened.error().remedy().empty());
    // If the caller leaves the choice open, the next best method is used.
    job.way = FileWay::kDirect;
    EXPECT_TRUE(OpenGds(job, true));
    EXPECT_EQ(job.way, FileWay::kDirect);
    EXPECT_EQ(job.gds, nullptr);
    EXPECT_EQ(OpenThings(), 0);
  }
  Tell("");
  TransferJob job = Job(file.get(), 4095);
  EXPECT_EQ(OpenGds(job, false).error().code(), Code::kUnsupported) << "there is no whole block";
  setenv("GPUSHM_CUFILE", folder_.path().c_str(), 1);
  job = Job(file.get(), kMiB);
  const auto opened = OpenGds(job, false);
  setenv("GPUSHM_CUFILE", GPUSHM_FAKE_CUFILE_FOLDER, 1);
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().what(), HasSubstr("cuFile cannot be loaded"));
}

// Goal: on a machine without nvidia-fs, this code can be driven on the real library, by request
// only.
TEST_F(GdsTest, CompatibilityModeIsForTests) {
  const std::string content = Content(kMiB + 5);
  const UniqueFd file = Write("in", content);
  for (const char* told : {"no-driver", "no-systems", "compat"}) {
    SCOPED_TRACE(told);
    Tell(told);
    EXPECT_FALSE(Load(Job(file.get(), content.size())));
    setenv("GPUSHM_CUFILE_COMPAT", "1", 1);
    const auto report = Load(Job(file.get(), content.size()));
    unsetenv("GPUSHM_CUFILE_COMPAT");
    ASSERT_TRUE(report) << report.error().ToString();
    EXPECT_TRUE(OnDevice(content.size()) == content);
  }
}

TEST_F(GdsTest, TheApplicationsCufileIsCheckedAndStaysOpen) {
  Tell("application");
  const UniqueFd file = Write("in", Content(kMiB));
  auto report = Load(Job(file.get(), kMiB));
  ASSERT_FALSE(report) << "the application allows what gpushm does not";
  EXPECT_EQ(report.error().code(), Code::kUnsupported);
  EXPECT_EQ(OpenThings(), 1);
  Tell("application strict");
  report = Load(Job(file.get(), kMiB));
  EXPECT_TRUE(report) << report.error().ToString();
  EXPECT_EQ(OpenThings(), 1);
  reinterpret_cast<cufile::Error (*)()>(OfFake("cuFileDriverClose_v2"))();
}

TEST_F(GdsTest, TwoAtOneTimeShareAnOpenCufile) {
  const UniqueFd file = Write("in", Content(kMiB));
  ASSERT_TRUE(PlanRead(file.get(), kMiB, FileWay::kGds));
  TransferJob first = Job(file.get(), kMiB);
  ASSERT_TRUE(OpenGds(first, false));
  {
    TransferJob second = Job(file.get(), kMiB);
    ASSERT_TRUE(OpenGds(second, false));
    EXPECT_EQ(OpenThings(), 3);
  }
  EXPECT_EQ(OpenThings(), 2);
  const auto report = CopyFileToDevice(*api_, first);
  EXPECT_TRUE(report) << report.error().ToString();
}

TEST_F(GdsTest, ErrorsInTheMiddleCarryWhatWasSaid) {
  const std::string content = Content(4 * kMiB);
  const UniqueFd file = Write("in", content);
  const UniqueFd out = Make("out");
  Tell("errno=5 at=1500000");
  auto report = Load(Job(file.get(), content.size()));
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().sys_errno(), EIO);
  report = Save(Job(out.get(), content.size()));
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().sys_errno(), EIO);
  Tell("error=5044 at=1500000");
  report = Load(Job(file.get(), content.size()));
  ASSERT_FALSE(report);
  EXPECT_THAT(report.error().what(), HasSubstr("cuFileRead: cuFile error 5044"));
  report = Save(Job(out.get(), content.size()));
  ASSERT_FALSE(report);
  EXPECT_THAT(report.error().what(), HasSubstr("cuFileWrite: cuFile error 5044"));
}

TEST_F(GdsTest, StopsBetweenChunks) {
  const std::string content = Content(4 * kMiB);
  const UniqueFd file = Write("in", content);
  const UniqueFd out = Make("out");
  TransferJob job = Job(file.get(), content.size());
  job.progress = [](uint64_t done) { return done < kMiB; };
  auto report = Load(job);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), Code::kBusy);
  job.file = out.get();
  report = Save(job);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), Code::kBusy);
}

TEST_F(GdsTest, AFileThatShrinksMeanwhile) {
  const std::string content = Content(4 * kMiB);
  const UniqueFd file = Write("in", content);
  TransferJob job = Job(file.get(), content.size());
  job.progress = [&](uint64_t) { return truncate((folder_ / "in").c_str(), kMiB + 100) == 0; };
  const auto report = Load(job);
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_EQ(report->bytes, kMiB + 100) << "the caller must see that it is not everything";
  EXPECT_TRUE(OnDevice(report->bytes) == content.substr(0, report->bytes));
}

// Goal: only a caller that requests it gets it, and files that the page cache serves better do not
// use it.
TEST_F(GdsTest, ThePlanTriesItWhereDirectWouldBe) {
  const UniqueFd small = Write("small", Content(8192));
  auto plan = PlanRead(small.get(), 8192, FileWay::kAutoGds);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->way, FileWay::kCached);
  EXPECT_FALSE(plan->try_gds);
  const UniqueFd large = Make("large");
  ASSERT_EQ(ftruncate(large.get(), static_cast<off_t>(kDirectMinBytes)), 0);
  plan = PlanRead(large.get(), kDirectMinBytes, FileWay::kAutoGds);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->try_gds, plan->way == FileWay::kDirect);
  plan = PlanRead(large.get(), kDirectMinBytes, FileWay::kAuto);
  ASSERT_TRUE(plan);
  EXPECT_FALSE(plan->try_gds);
  plan = PlanRead(large.get(), kDirectMinBytes, FileWay::kGds);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->way, FileWay::kGds);
  EXPECT_EQ(plan->reason, FileReason::kAsked);
  const UniqueFd proc(open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
  EXPECT_FALSE(PlanRead(proc.get(), 100, FileWay::kGds));
}

}  // namespace
}  // namespace gpushm
