// Library and broker together, in separate processes, on the simulated driver and on a GPU.
#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>

#include "platform/driver/device.h"
#include "platform/driver/nvml_api.h"
#include "tests/integration/fixture.h"
#include "tests/integration/processes.h"

namespace gpushm::integration {
namespace {

size_t DescriptorsOf(pid_t pid) {
  const auto folder = std::filesystem::directory_iterator(Concat("/proc/", pid, "/fd"));
  return static_cast<size_t>(std::distance(begin(folder), end(folder)));
}

// The used bytes that NVML reports for all cards.
uint64_t UsedBytes() {
  const Result<const NvmlApi*> nvml = NvmlApi::Load(DriverFolderFromEnvironment());
  if (!nvml) {
    ADD_FAILURE() << nvml.error().ToString();
    return 0;
  }
  unsigned count = 0;
  uint64_t used = 0;
  EXPECT_EQ((*nvml)->nvmlDeviceGetCount_v2(&count), NVML_SUCCESS);
  for (unsigned i = 0; i < count; ++i) {
    nvmlDevice_t device{};
    nvmlMemory_t memory{};
    EXPECT_EQ((*nvml)->nvmlDeviceGetHandleByIndex_v2(i, &device), NVML_SUCCESS);
    EXPECT_EQ((*nvml)->nvmlDeviceGetMemoryInfo(device, &memory), NVML_SUCCESS);
    used += memory.used;
  }
  return used;
}

TEST_F(IntegrationTest, ValuesAreSeenAcrossProcesses) {
  Broker broker(run(), "64Mi");
  Worker writer(run());
  ASSERT_EQ(writer.Do(std::string("create weights ") + kMiBText).status, GPUSHM_OK);
  ASSERT_EQ(writer.Do("write 4711").status, 0);
  std::vector<Worker> readers;
  for (int i = 0; i < 4; ++i) readers.emplace_back(run());
  for (Worker& reader : readers) {
    ASSERT_EQ(reader.Do("attach weights r 0").status, GPUSHM_OK);
    EXPECT_EQ(reader.Do("read").value, 4711);
    EXPECT_EQ(reader.Do("current").status, GPUSHM_OK);
  }
  EXPECT_EQ(writer.Do("holders weights").value, 5);
  ASSERT_EQ(writer.Do("write 4712").status, 0);
  EXPECT_EQ(readers[0].Do("read").value, 4712);
  EXPECT_NE(readers[1].Do("write 1").status, 0) << "a write to a read-only mapping must fail";
  EXPECT_EQ(readers[0].Do("read").value, 4712);
  readers[2].Kill();
  EXPECT_TRUE(Eventually([&] { return writer.Do("holders weights").value == 4; }));
  EXPECT_EQ(readers[3].Do("detach").status, GPUSHM_OK);
  EXPECT_EQ(writer.Do("holders weights").value, 3);
}

TEST_F(IntegrationTest, GenerationsReplaceEachOther) {
  auto [broker, writer, reader] = Pair(run());
  const Answer first = writer.Do(std::string("create weights ") + kMiBText);
  ASSERT_EQ(first.status, GPUSHM_OK);
  ASSERT_EQ(writer.Do("write 1").status, 0);
  ASSERT_EQ(reader.Do("attach weights r 0").value, first.value);
  const Answer second = writer.Do("replace-unpublished weights 0");
  ASSERT_EQ(second.status, GPUSHM_OK);
  EXPECT_GT(second.value, first.value);
  EXPECT_EQ(reader.Do("current").status, GPUSHM_OK)
      << "the old generation must be current until the new one is published";
  ASSERT_EQ(writer.Do("write 2").status, 0);
  EXPECT_EQ(writer.Do("current").status, GPUSHM_OK);
  ASSERT_EQ(writer.Do("publish").status, GPUSHM_OK);
  EXPECT_EQ(reader.Do("current").status, GPUSHM_STALE);
  EXPECT_EQ(reader.Do("read").value, 1) << "the bytes of the old generation must not change";
  EXPECT_EQ(reader.Do("wait weights " + std::to_string(second.value)).value, second.value);
  ASSERT_EQ(reader.Do("attach weights r 0").value, second.value);
  EXPECT_EQ(reader.Do("read").value, 2);
  EXPECT_EQ(writer.Do("delete weights").status, GPUSHM_OK);
  EXPECT_EQ(reader.Do("current").status, GPUSHM_STALE);
  EXPECT_EQ(reader.Do("attach weights r -1").status, GPUSHM_NOT_FOUND);
}

TEST_F(IntegrationTest, UnpublishedGoesWithItsMaker) {
  auto [broker, maker, other] =
      Pair(run(), {std::string("create-unpublished weights ") + kMiBText});
  EXPECT_NE(other.Do("attach weights r -1").status, GPUSHM_OK);
  maker.Kill();
  EXPECT_TRUE(Eventually(
      [&] { return other.Do(std::string("create weights ") + kMiBText).status == GPUSHM_OK; }));
}

TEST_F(IntegrationTest, FilesBothWays) {
  Broker broker(run(), "64Mi");
  Worker writer(run());
  ASSERT_EQ(writer.Do(std::string("create weights ") + kMiBText).status, GPUSHM_OK);
  const std::string in = folder_ + "/in.bin";
  const std::string content(1 << 20, 'g');
  std::ofstream(in, std::ios::binary) << content;
  // A load waits until what nothing announces has not changed for some seconds.
  std::filesystem::last_write_time(in,
                                   std::filesystem::last_write_time(in) - std::chrono::hours(1));
  ASSERT_EQ(writer.Do("write 0").status, 0);
  const Answer loaded = writer.Do("load weights " + in);
  ASSERT_EQ(loaded.status, GPUSHM_OK);
  EXPECT_EQ(loaded.value, 1 << 20);
  EXPECT_EQ(writer.Do("read").value, 0x67676767);
  const std::string out = folder_ + "/out.bin";
  ASSERT_EQ(writer.Do("save weights " + out).status, GPUSHM_OK);
  std::ifstream file(out, std::ios::binary);
  EXPECT_EQ(std::string((std::istreambuf_iterator<char>(file)), {}), content);
}

// Goal: the first load fills a buffer that nobody may map writable. Method: raw bytes and a
// safetensors file, by the process that its file is left to: where one socket serves all
// containers, any of them.
TEST_F(IntegrationTest, TheFirstLoadFillsAReadOnlyBuffer) {
  const std::string raw = folder_ + "/raw.bin";
  std::ofstream(raw, std::ios::binary) << std::string(1 << 20, 'g');
  std::filesystem::last_write_time(raw,
                                   std::filesystem::last_write_time(raw) - std::chrono::hours(1));
  const std::string tensors = folder_ + "/t.safetensors";
  const std::string header = R"({"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})";
  std::ofstream(tensors, std::ios::binary)
      << static_cast<char>(header.size()) << std::string(7, '\0') << header << "gggggggg";
  setenv("GPUSHM_BUFFERS",
         "buffers.gpushm.io/raw: {size: 1Mi, access: read-only, file: m/raw.bin}\n"
         "buffers.gpushm.io/tensors: {size: 1Mi, access: read-only, file: m/t.safetensors}\n",
         1);
  Broker broker(run(), "64Mi");
  unsetenv("GPUSHM_BUFFERS");
  Worker loader(run());
  for (const auto& [name, path] : {std::pair("raw", raw), std::pair("tensors", tensors)}) {
    const std::string load = std::string("load ") + name + " " + path;
    ASSERT_EQ(loader.Do(load).status, GPUSHM_OK) << "buffer " << name;
    ASSERT_EQ(loader.Do(std::string("attach ") + name + " r 0").status, GPUSHM_OK);
    EXPECT_EQ(loader.Do("read").value, 0x67676767) << "buffer " << name;
    EXPECT_EQ(loader.Do(load).status, GPUSHM_DENIED)
        << "a buffer that has its content must not be loaded again";
  }
}

// Goal: a process that is killed at any time leaves nothing behind. Method: a thousand processes
// open, attach and read on the GPU, several at a time. Each is killed at a random point. The
// broker's descriptors, its leases and NVML's used bytes are counted.
TEST_F(IntegrationTest, KilledClientsLeaveNothing) {
#ifdef GPUSHM_SANITIZED
  constexpr int kClients = 100;
#else
  constexpr int kClients = 1000;
#endif
  constexpr size_t kAtOnce = 8;
  Broker broker(run(), "64Mi");
  Worker writer(run());
  ASSERT_EQ(writer.Do(std::string("create weights ") + kMiBText).status, GPUSHM_OK);
  ASSERT_EQ(writer.Do("write 4711").status, 0);
  const auto life = [&](Worker& worker) {
    // NVIDIA's daemon can hang if a process is killed while it becomes a client, which ends the
    // work of all. So under MPS they are killed later.
    const bool attaches = UnderMps() ? worker.Do("attach weights r 0").status == GPUSHM_OK
                                     : worker.Begin("attach weights r 0");
    return attaches && worker.Begin("read");
  };
  const size_t descriptors = DescriptorsOf(broker.pid());
  // How long a process may live: twice what a complete run takes alone.
  const int64_t begun_ns = MonotonicNs();
  {
    Worker first(run());
    ASSERT_EQ(first.Do("attach weights r 0").status, GPUSHM_OK);
    ASSERT_EQ(first.Do("read").value, 4711);
  }
  const int64_t longest_ns = 2 * (MonotonicNs() - begun_ns);
  // Measured after the first process: NVIDIA's driver keeps 64 KiB once a second process has had a
  // context (H200, 580.159), and no more after a thousand. A server of MPS keeps some KiB for
  // clients that were killed (458,752 bytes after a thousand, H100). Any buffer or context is
  // larger than that.
  constexpr uint64_t kOfMpsServer = uint64_t{1} << 20;
  const uint64_t used_bytes = UsedBytes();
  const auto nothing_is_left = [&] {
    const uint64_t now_bytes = UsedBytes();
    return UnderMps() ? now_bytes <= used_bytes + kOfMpsServer : now_bytes == used_bytes;
  };

  struct Life {
    Worker worker;
    Deadline end;
  };
  std::mt19937 random(7);
  std::vector<Life> living;
  const int clients = UnderMps() ? 100 : kClients;
  for (int born = 1; born <= clients; ++born) {
    Worker worker(run());
    ASSERT_TRUE(life(worker)) << "process " << born << " does not take commands";
    const int64_t age_ns = std::uniform_int_distribution<int64_t>(0, longest_ns)(random);
    living.push_back({std::move(worker), Deadline::AfterMs(age_ns / 1'000'000)});
    while (living.size() >= kAtOnce) {
      if (std::erase_if(living, [](const Life& l) { return l.end.Passed(); }) > 0) break;
      poll(nullptr, 0, 1);
    }
    if (born != 100 && born != 500 && born != 1000) continue;
    living.clear();
    EXPECT_TRUE(Eventually([&] {
      return writer.Do("holders weights").value == 1 &&
             DescriptorsOf(broker.pid()) <= descriptors && nothing_is_left();
    }));
    std::printf("after %4d: %zu descriptors (%zu before), %ld lease, %lu bytes on the card (%lu)\n",
                born, DescriptorsOf(broker.pid()), descriptors, writer.Do("holders weights").value,
                UsedBytes(), used_bytes);
  }
  EXPECT_EQ(writer.Do("read").value, 4711);
}

}  // namespace
}  // namespace gpushm::integration
