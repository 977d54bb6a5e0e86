// Loads and saves through the C ABI, in this process.
#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "platform/base/clock.h"
#include "platform/base/testing.h"
#include "platform/transfer/crew.h"
#include "platform/transfer/file_way.h"
#include "platform/transfer/transfer_engine.h"
#include "runtime/client/testing/client_fixture.h"
#include "runtime/client/wait.h"

namespace gpushm::client {
namespace {

using gpushm::testing::Settle;
using protocol::Kind;
using ::testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST_F(ClientTest, LoadsAndSavesHere) {
  broker_->Add("weights", 5, 3 * kMiB, api_);
  Open();
  const std::string path = folder_.path() + "/in.bin";
  std::string content(2 * kMiB + 17, '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7 / 3);
  std::ofstream(path, std::ios::binary) << content;
  Settle(path);
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
  options.timeout_ms = GPUSHM_DONT_WAIT;
  EXPECT_EQ(gpushm_load(client_.get(), "weights", "/nowhere", &options, nullptr), GPUSHM_NOT_FOUND);
}

// Goal: a load that fails says why to the broker, for all who wait; nobody waits for a buffer that
// has its content.
TEST_F(ClientTest, AFailedLoadStatesItsReason) {
  broker_->Add("weights", 5, kMiB, api_);
  std::vector<protocol::ReasonRequest> stated;
  broker_->SetTwist([&](const FakeRequest& request, FakeReply*) {
    if (request.kind != Kind::kReason) return;
    stated.push_back(*protocol::Parse<protocol::ReasonRequest>(request.message->span()));
  });
  Open();
  const auto load = [&](const std::string& path, int64_t timeout_ms = GPUSHM_DONT_WAIT) {
    auto options = Sized<gpushm_transfer_options>();
    options.timeout_ms = timeout_ms;
    return gpushm_load(client_.get(), "weights", path.c_str(), &options, nullptr);
  };
  EXPECT_EQ(load("/nowhere/a\nb.bin"), GPUSHM_NOT_FOUND);
  EXPECT_EQ(stated.size(), 0u) << "it has its content";
  broker_->SetState("weights", BufferState::kLoading);
  EXPECT_EQ(load("/nowhere/a\nb.bin"), GPUSHM_NOT_FOUND);
  ASSERT_EQ(stated.size(), 1u);
  EXPECT_EQ(protocol::FromNameField(stated[0].name), "weights");
  EXPECT_EQ(stated[0].code, static_cast<uint32_t>(Code::kNotFound));
  EXPECT_EQ(stated[0].failed, 0u) << "the file can appear";
  EXPECT_THAT(std::string(protocol::FromLineField(stated[0].text)), HasSubstr("/nowhere/a?b.bin"));

  const std::string large = folder_.path() + "/large.bin";
  std::ofstream(large, std::ios::binary) << std::string(kMiB + 1, 'x');
  EXPECT_EQ(load(large), GPUSHM_INVALID_ARGUMENT);
  ASSERT_EQ(stated.size(), 2u);
  EXPECT_EQ(stated[1].code, static_cast<uint32_t>(Code::kInvalidArgument));
  EXPECT_EQ(stated[1].failed, 1u);
  EXPECT_THAT(std::string(protocol::FromLineField(stated[1].text)),
              HasSubstr("but the buffer has 1048576; "));

  EXPECT_EQ(load("/nowhere/a.bin", 20), GPUSHM_TIMEOUT);
  ASSERT_GE(stated.size(), 4u);
  EXPECT_EQ(stated[2].code, static_cast<uint32_t>(Code::kNotFound)) << "while it waits";
  EXPECT_EQ(stated.back().code, static_cast<uint32_t>(Code::kTimeout));
  EXPECT_EQ(stated.back().failed, 0u);
}

// Goal: bytes come from descriptors at their position: a pipe, a file's start, or a later offset.
TEST_F(ClientTest, LoadsFromDescriptors) {
  broker_->Add("weights", 5, 3 * kMiB, api_);
  Open();
  const std::string path = folder_.path() + "/in.bin";
  std::ofstream(path, std::ios::binary) << std::string(kMiB, 'a') << std::string(100, 'b');
  Settle(path);
  auto options = Sized<gpushm_transfer_options>();
  auto result = Sized<gpushm_transfer_result>();
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  options.descriptor = file.get();
  ASSERT_EQ(gpushm_load(client_.get(), "weights", nullptr, &options, &result), GPUSHM_OK)
      << gpushm_last_error()->text;
  EXPECT_EQ(result.bytes, kMiB + 100);
  EXPECT_EQ(result.file_method, GPUSHM_FILE_CACHED);
  EXPECT_EQ(result.file_reason, GPUSHM_FILE_REASON_SMALL);
  EXPECT_GT(result.moving_ns, 0);
  EXPECT_LE(result.moving_ns, result.elapsed_ns);
  ASSERT_EQ(lseek(file.get(), kMiB, SEEK_SET), static_cast<off_t>(kMiB));
  ASSERT_EQ(gpushm_load(client_.get(), "weights", nullptr, &options, &result), GPUSHM_OK);
  EXPECT_EQ(result.bytes, 100u);
  EXPECT_EQ(result.file_method, GPUSHM_FILE_STREAM);
  EXPECT_EQ(result.file_reason, GPUSHM_FILE_REASON_IN_ORDER);

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

// Goal: the wait for a buffer is not part of its transfer. It takes ten seconds by default and none
// with GPUSHM_DONT_WAIT. Progress is reported only once the transfer begins.
TEST_F(ClientTest, TheWaitForABufferIsNotItsTransfer) {
  const auto unsaid = Wait::ForTransfer(0, GPUSHM_DEFAULT_TIMEOUT_MS);
  ASSERT_TRUE(unsaid);
  EXPECT_LE(unsaid->condition.RemainingMs(), GPUSHM_DEFAULT_TIMEOUT_MS);
  EXPECT_GT(unsaid->answer.RemainingMs(), kTransferMs / 2);
  const auto at_once = Wait::ForTransfer(GPUSHM_DONT_WAIT, GPUSHM_DEFAULT_TIMEOUT_MS);
  ASSERT_TRUE(at_once);
  EXPECT_TRUE(at_once->dont_wait && at_once->condition.Passed());
  EXPECT_GT(at_once->answer.RemainingMs(), kTransferMs / 2);
  const auto said = Wait::ForTransfer(300, GPUSHM_DEFAULT_TIMEOUT_MS);
  ASSERT_TRUE(said);
  EXPECT_LE(said->answer.RemainingMs(), 300);

  broker_->Add("weights", 5, 3 * kMiB, api_);
  broker_->Add("loading", 6, 3 * kMiB, api_, BufferState::kLoading);
  Open();
  const std::string path = folder_.path() + "/in.bin";
  std::ofstream(path, std::ios::binary) << std::string(kMiB, 'a');
  Settle(path);
  auto options = Sized<gpushm_transfer_options>();
  options.timeout_ms = GPUSHM_DONT_WAIT;
  std::vector<uint64_t> told;
  options.user = &told;
  options.progress = [](void* user, uint64_t done_bytes, uint64_t) {
    static_cast<std::vector<uint64_t>*>(user)->push_back(done_bytes);
    return 0;
  };
  EXPECT_EQ(gpushm_load(client_.get(), "weigths", path.c_str(), &options, nullptr),
            GPUSHM_NOT_FOUND);
  EXPECT_THAT(gpushm_last_error()->remedy, HasSubstr("did you mean \"weights\"?"));
  const std::string copy = folder_.path() + "/out.bin";
  EXPECT_EQ(gpushm_save(client_.get(), "loading", copy.c_str(), &options, nullptr), GPUSHM_LOADING);
  EXPECT_TRUE(told.empty());
  EXPECT_EQ(gpushm_load(client_.get(), "weights", path.c_str(), &options, nullptr), GPUSHM_OK)
      << gpushm_last_error()->text;
  ASSERT_FALSE(told.empty());
  EXPECT_EQ(told.front(), 0u);
  EXPECT_EQ(told.back(), kMiB);
}

// The kernel's own count, in one number: a walk over /proc/self/task misses threads while others
// end.
size_t CountThreads() {
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key;) {
    size_t count = 0;
    if (key == "Threads:" && status >> count) return count;
  }
  return 0;
}

// Goal: a load uses a sensible number of threads by default, and none or the requested number if
// the caller sets it. No thread outlives the call. Method: counts the threads of this process
// during the load.
TEST_F(ClientTest, LoadsWithTheThreadsThatWereAskedFor) {
  constexpr uint64_t kBytes = 80 * kMiB;
  broker_->Add("weights", 5, kBytes, api_);
  Open();
  const std::string path = folder_.path() + "/in.bin";
  std::ofstream(path, std::ios::binary).close();
  std::filesystem::resize_file(path, kBytes);
  Settle(path);
  struct Seen {
    size_t before;
    size_t most;
  };
  const auto threads_of = [&](uint32_t threads) {
    Seen seen{.before = CountThreads(), .most = 0};
    auto options = Sized<gpushm_transfer_options>();
    options.file_method = GPUSHM_FILE_CACHED;
    options.threads = threads;
    options.user = &seen;
    options.progress = [](void* user, uint64_t, uint64_t) {
      auto& counted = *static_cast<Seen*>(user);
      counted.most = std::max(counted.most, CountThreads());
      return 0;
    };
    EXPECT_EQ(gpushm_load(client_.get(), "weights", path.c_str(), &options, nullptr), GPUSHM_OK)
        << gpushm_last_error()->text;
    // The kernel still counts a joined thread for a moment.
    const Deadline deadline = Deadline::AfterMs(kPatienceMs);
    while (CountThreads() > seen.before && !deadline.Passed()) std::this_thread::yield();
    EXPECT_EQ(CountThreads(), seen.before);
    return seen.most - seen.before;
  };
  (void)threads_of(GPUSHM_NO_THREADS);  // Starts whatever the driver starts once, before the count.
  const size_t of_driver =
      threads_of(GPUSHM_NO_THREADS);  // The simulated driver has one thread for each stream.
  EXPECT_EQ(of_driver, kTransferChunks);
  // One more compiles the kernel of the digest, in the beginning.
  EXPECT_THAT(threads_of(5), ::testing::AnyOf(of_driver + 5, of_driver + 6));
  EXPECT_THAT(threads_of(0),
              ::testing::AnyOf(of_driver + UsefulHelpers(), of_driver + UsefulHelpers() + 1));
}

TEST_F(ClientTest, LoadsThePagesOfAFile) {
  constexpr uint64_t kBytes = 20 * kMiB;
  broker_->Add("weights", 5, kBytes, api_);
  Open();
  const std::string path = folder_.path() + "/in.bin";
  std::string content(kBytes - 100, '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7 / 3);
  std::ofstream(path, std::ios::binary) << content;
  auto options = Sized<gpushm_transfer_options>();
  auto result = Sized<gpushm_transfer_result>();
  options.file_method = GPUSHM_FILE_PAGES;
  ASSERT_EQ(gpushm_load(client_.get(), "weights", path.c_str(), &options, &result), GPUSHM_OK)
      << gpushm_last_error()->text;
  EXPECT_EQ(result.bytes, content.size());
  EXPECT_EQ(result.file_method, GPUSHM_FILE_PAGES);
  EXPECT_EQ(result.file_reason, GPUSHM_FILE_REASON_ASKED);
  const std::string copy = folder_.path() + "/out.bin";
  EXPECT_EQ(gpushm_save(client_.get(), "weights", copy.c_str(), &options, &result),
            GPUSHM_UNSUPPORTED);
  options.file_method = GPUSHM_FILE_AUTO;
  ASSERT_EQ(gpushm_save(client_.get(), "weights", copy.c_str(), &options, &result), GPUSHM_OK)
      << gpushm_last_error()->text;
  std::ifstream in(copy, std::ios::binary);
  const std::string saved((std::istreambuf_iterator<char>(in)), {});
  EXPECT_TRUE(saved.starts_with(content));
}

// Goal: GPUDirect Storage through the C ABI: requested, refused, and abandoned at the deadline.
TEST_F(ClientTest, LoadsByGpuDirectStorage) {
  broker_->Add("weights", 5, 3 * kMiB, api_);
  Open();
  const std::string path = folder_.path() + "/in.bin";
  std::ofstream(path, std::ios::binary) << std::string(kMiB, 'a') << std::string(100, 'b');
  Settle(path);
  auto options = Sized<gpushm_transfer_options>();
  auto result = Sized<gpushm_transfer_result>();
  options.file_method = GPUSHM_FILE_GDS;
  setenv("GPUSHM_FAKE_CUFILE", "", 1);
  const UniqueFd probe(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!PlanRead(probe.get(), kMiB, FileWay::kGds)) GTEST_SKIP() << "no O_DIRECT here";
  ASSERT_EQ(gpushm_load(client_.get(), "weights", path.c_str(), &options, &result), GPUSHM_OK)
      << gpushm_last_error()->text;
  EXPECT_EQ(result.bytes, kMiB + 100);
  EXPECT_EQ(result.file_method, GPUSHM_FILE_GDS);
  EXPECT_EQ(result.file_reason, GPUSHM_FILE_REASON_ASKED);
  EXPECT_EQ(result.link_bytes_per_second, 0u) << "it is not on the way";
  const std::string copy = folder_.path() + "/out.bin";
  ASSERT_EQ(gpushm_save(client_.get(), "weights", copy.c_str(), &options, &result), GPUSHM_OK)
      << gpushm_last_error()->text;
  EXPECT_EQ(result.file_method, GPUSHM_FILE_GDS);
  options.file_method = GPUSHM_FILE_AUTO_GDS;
  Settle(copy);
  ASSERT_EQ(gpushm_load(client_.get(), "weights", copy.c_str(), &options, &result), GPUSHM_OK);
  EXPECT_EQ(result.file_method, GPUSHM_FILE_CACHED) << "small";

  options.file_method = GPUSHM_FILE_GDS;
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
    options.timeout_ms = GPUSHM_DONT_WAIT;
    set(&options);
    return gpushm_load(client_.get(), "weights", path, &options, nullptr);
  };
  const std::string path = folder_.path() + "/in.bin";
  std::ofstream(path) << "x";
  Settle(path);
  using Options = gpushm_transfer_options;
  EXPECT_EQ(load(path.c_str(), [](Options* o) { o->file_method = GPUSHM_FILE_STREAM; }),
            GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(load(path.c_str(), [](Options* o) { o->file_method = GPUSHM_FILE_PAGES + 1; }),
            GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(load(path.c_str(), [](Options* o) { o->chunks = 1; }), GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(load(path.c_str(), [](Options* o) { o->threads = 65; }), GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(load(path.c_str(), [](Options* o) { o->threads = 2, o->chunks = 2; }), GPUSHM_OK);
  EXPECT_EQ(load(path.c_str(), [](Options* o) { o->threads = GPUSHM_NO_THREADS; }), GPUSHM_OK);
  EXPECT_EQ(load("", [](Options*) {}), GPUSHM_NOT_FOUND) << "no path is not standard input";
  EXPECT_EQ(load("/proc/self/maps", [](Options* o) { o->file_method = GPUSHM_FILE_DIRECT; }),
            GPUSHM_UNSUPPORTED);
  EXPECT_EQ(load(folder_.path().c_str(), [](Options*) {}), GPUSHM_NOT_FOUND);
  EXPECT_EQ(gpushm_load(client_.get(), "weights", nullptr, nullptr, nullptr),
            GPUSHM_INVALID_ARGUMENT);
  EXPECT_EQ(gpushm_save(client_.get(), "weights", "/dev/null", nullptr, nullptr),
            GPUSHM_INVALID_ARGUMENT)
      << "a device is not replaced by a file";
}

}  // namespace
}  // namespace gpushm::client
