// Loads and saves by the C ABI, in this process.
#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <thread>

#include "runtime/base/clock.h"
#include "runtime/client/client_testing.h"
#include "runtime/client/file_way.h"
#include "runtime/client/transfer_engine.h"

namespace gpushm::client {
namespace {

using protocol::Kind;
using testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST_F(ClientTest, LoadsAndSavesHere) {
  broker_->Add("weights", 5, 3 * kMiB, api_);
  Open();
  const std::string path = folder_.path() + "/in.bin";
  std::string content(2 * kMiB + 17, '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7 / 3);
  std::ofstream(path, std::ios::binary) << content;
  auto options = Sized<gpushm_transfer_options>();
  options.chunk_bytes = 64 << 10;
  uint64_t seen_bytes = 0;
  options.user = &seen_bytes;
  options.progress = [](void* user, uint64_t done_bytes, uint64_t) {
    *static_cast<uint64_t*>(user) = done_bytes;
    return 0;
  };
  auto result = Sized<gpushm_transfer_result>();
  ASSERT_EQ(gpushm_load(client_.get(), "weights", path.c_str(), &options, &result), GPUSHM_OK)
      << gpushm_last_error()->text;
  EXPECT_EQ(result.way, GPUSHM_WAY_HERE);
  EXPECT_EQ(result.bytes, content.size());
  EXPECT_EQ(seen_bytes, content.size());
  EXPECT_GT(broker_->requests(Kind::kContent), 2u);
  const std::string out = folder_.path() + "/out.bin";
  ASSERT_EQ(gpushm_save(client_.get(), "weights", out.c_str(), &options, &result), GPUSHM_OK)
      << gpushm_last_error()->text;
  EXPECT_EQ(result.bytes, 3 * kMiB);
  std::ifstream in(out, std::ios::binary);
  const std::string saved((std::istreambuf_iterator<char>(in)), {});
  ASSERT_EQ(saved.size(), 3 * kMiB);
  EXPECT_EQ(saved.substr(0, content.size()), content);
  EXPECT_EQ(saved.substr(content.size()), std::string(saved.size() - content.size(), '\0'));
  CUcontext current = nullptr;
  api_->cuCtxGetCurrent(&current);
  EXPECT_EQ(current, nullptr) << "the thread's context is as before";
  EXPECT_EQ(broker_->leases().size(), 0u);
  std::ofstream(path, std::ios::binary | std::ios::app) << std::string(kMiB, 'x');
  EXPECT_EQ(gpushm_load(client_.get(), "weights", path.c_str(), &options, nullptr),
            GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(gpushm_load(client_.get(), "weights", "/nowhere", &options, nullptr), GPUSHM_NOT_FOUND);
}

// Goal: bytes come from descriptors as they stand: a pipe, a file from its start, a file behind it.
TEST_F(ClientTest, LoadsFromDescriptors) {
  broker_->Add("weights", 5, 3 * kMiB, api_);
  Open();
  const std::string path = folder_.path() + "/in.bin";
  std::ofstream(path, std::ios::binary) << std::string(kMiB, 'a') << std::string(100, 'b');
  auto options = Sized<gpushm_transfer_options>();
  auto result = Sized<gpushm_transfer_result>();
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  options.descriptor = file.get();
  ASSERT_EQ(gpushm_load(client_.get(), "weights", nullptr, &options, &result), GPUSHM_OK)
      << gpushm_last_error()->text;
  EXPECT_EQ(result.bytes, kMiB + 100);
  EXPECT_EQ(result.file_way, GPUSHM_FILE_CACHED);
  EXPECT_EQ(result.file_reason, GPUSHM_REASON_SMALL);
  EXPECT_GT(result.moving_ns, 0);
  EXPECT_LE(result.moving_ns, result.elapsed_ns);
  ASSERT_EQ(lseek(file.get(), kMiB, SEEK_SET), static_cast<off_t>(kMiB));
  ASSERT_EQ(gpushm_load(client_.get(), "weights", nullptr, &options, &result), GPUSHM_OK);
  EXPECT_EQ(result.bytes, 100u);
  EXPECT_EQ(result.file_way, GPUSHM_FILE_STREAM);
  EXPECT_EQ(result.file_reason, GPUSHM_REASON_IN_ORDER);

  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  options.descriptor = writer.get();
  std::string saved;
  std::thread drain([&] {
    char bytes[4096];
    for (ssize_t got; (got = read(reader.get(), bytes, sizeof bytes)) > 0;) {
      saved.append(bytes, static_cast<size_t>(got));
    }
  });
  EXPECT_EQ(gpushm_save(client_.get(), "weights", nullptr, &options, &result), GPUSHM_OK)
      << gpushm_last_error()->text;
  writer.Reset();
  drain.join();
  EXPECT_EQ(saved.size(), 3 * kMiB);
  EXPECT_EQ(saved.substr(0, 101), std::string(100, 'b') + "a");
}

TEST_F(ClientTest, AStreamThatStallsEndsByTheDeadline) {
  broker_->Add("weights", 5, 3 * kMiB, api_);
  Open();
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  ASSERT_EQ(write(writer.get(), "few", 3), 3);
  auto options = Sized<gpushm_transfer_options>();
  options.descriptor = reader.get();
  options.timeout_ms = 200;
  uint64_t total = 1;
  options.user = &total;
  options.progress = [](void* user, uint64_t, uint64_t total_bytes) {
    *static_cast<uint64_t*>(user) = total_bytes;
    return 0;
  };
  EXPECT_EQ(gpushm_load(client_.get(), "weights", nullptr, &options, nullptr), GPUSHM_TIMEOUT);
  EXPECT_THAT(gpushm_last_error()->text, HasSubstr("of the stream"));
  EXPECT_EQ(total, 0u) << "nobody knows how long it will be";
  EXPECT_EQ(broker_->leases().size(), 0u) << "so the broker knows that the content is not complete";
}

// Goal: GPUDirect Storage by the C ABI: asked for, refused, and left at the deadline.
TEST_F(ClientTest, LoadsByGpuDirectStorage) {
  broker_->Add("weights", 5, 3 * kMiB, api_);
  Open();
  const std::string path = folder_.path() + "/in.bin";
  std::ofstream(path, std::ios::binary) << std::string(kMiB, 'a') << std::string(100, 'b');
  auto options = Sized<gpushm_transfer_options>();
  auto result = Sized<gpushm_transfer_result>();
  options.file_way = GPUSHM_FILE_GDS;
  setenv("GPUSHM_FAKE_CUFILE", "", 1);
  const UniqueFd probe(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!PlanRead(probe.get(), kMiB, FileWay::kGds)) GTEST_SKIP() << "no O_DIRECT here";
  ASSERT_EQ(gpushm_load(client_.get(), "weights", path.c_str(), &options, &result), GPUSHM_OK)
      << gpushm_last_error()->text;
  EXPECT_EQ(result.bytes, kMiB + 100);
  EXPECT_EQ(result.file_way, GPUSHM_FILE_GDS);
  EXPECT_EQ(result.file_reason, GPUSHM_REASON_ASKED);
  EXPECT_EQ(result.link_bytes_per_second, 0u) << "it is not on the way";
  const std::string copy = folder_.path() + "/out.bin";
  ASSERT_EQ(gpushm_save(client_.get(), "weights", copy.c_str(), &options, &result), GPUSHM_OK)
      << gpushm_last_error()->text;
  EXPECT_EQ(result.file_way, GPUSHM_FILE_GDS);
  options.file_way = GPUSHM_FILE_AUTO_GDS;
  ASSERT_EQ(gpushm_load(client_.get(), "weights", copy.c_str(), &options, &result), GPUSHM_OK);
  EXPECT_EQ(result.file_way, GPUSHM_FILE_CACHED) << "small";

  options.file_way = GPUSHM_FILE_GDS;
  options.chunk_bytes = 64 << 10;
  options.timeout_ms = 100;
  options.progress = [](void*, uint64_t, uint64_t) {
    const Deadline pause = Deadline::AfterMs(110);
    while (!pause.Passed()) {
    }
    return 0;
  };
  EXPECT_EQ(gpushm_load(client_.get(), "weights", copy.c_str(), &options, nullptr), GPUSHM_TIMEOUT);
  setenv("GPUSHM_FAKE_CUFILE", "memory", 1);
  options.timeout_ms = 0;
  EXPECT_EQ(gpushm_load(client_.get(), "weights", copy.c_str(), &options, nullptr),
            GPUSHM_UNSUPPORTED);
  EXPECT_THAT(gpushm_last_error()->text, HasSubstr("gpuDirectRDMACapable"));
  EXPECT_EQ(broker_->leases().size(), 0u);
}

TEST_F(ClientTest, TransferOptionsAreChecked) {
  broker_->Add("weights", 5, 3 * kMiB, api_);
  Open();
  const auto load = [&](const char* path,
                        const std::function<void(gpushm_transfer_options*)>& set) {
    auto options = Sized<gpushm_transfer_options>();
    set(&options);
    return gpushm_load(client_.get(), "weights", path, &options, nullptr);
  };
  const std::string path = folder_.path() + "/in.bin";
  std::ofstream(path) << "x";
  using Options = gpushm_transfer_options;
  EXPECT_EQ(load(path.c_str(), [](Options* o) { o->file_way = GPUSHM_FILE_STREAM; }),
            GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(load(path.c_str(), [](Options* o) { o->file_way = GPUSHM_FILE_AUTO_GDS + 1; }),
            GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(load(path.c_str(), [](Options* o) { o->chunks = 1; }), GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(load(path.c_str(), [](Options* o) { o->threads = 65; }), GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(load(path.c_str(), [](Options* o) { o->threads = 2, o->chunks = 2; }), GPUSHM_OK);
  EXPECT_EQ(load("", [](Options*) {}), GPUSHM_NOT_FOUND) << "no path is not standard input";
  EXPECT_EQ(load("/proc/self/maps", [](Options* o) { o->file_way = GPUSHM_FILE_DIRECT; }),
            GPUSHM_UNSUPPORTED);
  EXPECT_EQ(load(folder_.path().c_str(), [](Options*) {}), GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(gpushm_load(client_.get(), "weights", nullptr, nullptr, nullptr),
            GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(gpushm_save(client_.get(), "weights", "/dev/null", nullptr, nullptr),
            GPUSHM_INVALID_ARGUMENT)
      << "a device is not replaced by a file";
}

}  // namespace
}  // namespace gpushm::client
