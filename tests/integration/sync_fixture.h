// Shared by the tests of gpushm/sync.hpp: a client of a real broker, a context and a stream.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "contract/sync/page.h"
#include "platform/driver/cuda_api.h"
#include "platform/driver/device.h"
#include "tests/integration/must.h"
#include "tests/integration/shared_broker.h"

// After the internal headers, which have a gpushm::Result of their own.
#include "gpushm/wait.hpp"

namespace gpushm::integration {

inline constexpr uint64_t kFrameBytes = 65536;

class SyncHppTest : public SharedBrokerTest {
 protected:
  void SetUp() override {
    // Up to three streams wait behind a gate at a time. A client of MPS has two connections else.
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8", 0);
    const auto api = CudaApi::Load(DriverFolderFromEnvironment());
    ASSERT_TRUE(api && (*api)->Init());
    api_ = *api;
    auto context = PrimaryContext::Retain(*api_, 0);
    ASSERT_TRUE(context && context->MakeCurrent());
    context_.emplace(std::move(*context));
    ASSERT_EQ(api_->cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    auto client = Client::Open({.folder = run()});
    ASSERT_TRUE(client) << client.error().text();
    client_.emplace(std::move(*client));
  }
  void TearDown() override {
    if (stream_ != nullptr) api_->cuStreamDestroy(stream_);
  }
  Ring Writer(gpushm_ring_policy policy) {
    auto ring =
        Ring::Write(*client_, "video", {.policy = policy, .frames = 2, .frame_bytes = kFrameBytes});
    EXPECT_TRUE(ring) << ring.error().text();
    return ring ? std::move(*ring) : Ring();
  }
  Ring Reader() {
    auto ring = Ring::Read(*client_, "video");
    EXPECT_TRUE(ring) << ring.error().text();
    return ring ? std::move(*ring) : Ring();
  }
  // Puts one frame, filled by the stream.
  void Put(Ring& ring, unsigned char word) {
    auto frame = ring.BeginWrite();
    ASSERT_TRUE(frame) << frame.error().text();
    api_->cuMemsetD32Async(frame->address(), word, kFrameBytes / 4, stream_);
    frame->set_bytes(kFrameBytes);
    frame->metadata()[0] = word;
    ASSERT_TRUE(frame->End(stream_));
    EXPECT_FALSE(frame->open());
  }

  // Faults that the simulated driver injects from the next call on.
  static void Inject(const std::string& faults) {
    const std::string path = folder_ + "/sim/faults.yaml";
    std::ofstream(path + ".new") << faults << '\n';
    std::filesystem::rename(path + ".new", path);
  }

  // The page of that kind, found where this process has it mapped to write. If `value` is given,
  // its first cell must have that value.
  static sync::Page PageOf(sync::Kind kind, std::optional<uint64_t> value = {}) {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      uintptr_t begin = 0;
      uintptr_t end = 0;
      std::array<char, 5> access{};
      if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, access.data()) != 3) continue;
      if (line.find("gpushm-page") == line.npos || access[1] != 'w') continue;
      const auto page = sync::Page::Look(reinterpret_cast<void*>(begin), end - begin);
      if (!page || page->kind() != kind) continue;
      if (!value || page->cell(0).value.load() == *value) return *page;
    }
    throw std::runtime_error("this process has no such page mapped");
  }
  // Does what a broker does that does not know the cell's owner.
  static void EndAsBroker(sync::Cell& cell) {
    EXPECT_TRUE(sync::EndCell(cell, cell.owner.load(), sync::CellState::kDied));
  }
  // Gives the stream work that takes as long as the test wants: until the gate is set to 1.
  Signal Gate(CUstream stream) {
    auto gate = Signal::Open(*client_, "gate", {.role = GPUSHM_SIGNAL_WRITER});
    EXPECT_TRUE(gate) << gate.error().text();
    EXPECT_EQ(
        api_->cuStreamWaitValue64(stream, *gate->DeviceAddress(), 1, CU_STREAM_WAIT_VALUE_GEQ),
        CUDA_SUCCESS);
    return std::move(*gate);
  }
  // A stream that waits until the gate reaches `value`.
  CUstream StreamBehind(Signal& gate, uint64_t value) {
    CUstream stream = nullptr;
    EXPECT_EQ(api_->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    EXPECT_EQ(
        api_->cuStreamWaitValue64(stream, *gate.DeviceAddress(), value, CU_STREAM_WAIT_VALUE_GEQ),
        CUDA_SUCCESS);
    return stream;
  }
  void End(CUstream stream) {
    EXPECT_EQ(api_->cuStreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_EQ(api_->cuStreamDestroy(stream), CUDA_SUCCESS);
  }

  static bool Reaches(const sync::Cell& cell, uint64_t value) {
    return sync::WaitUntil(cell, value, Deadline::AfterMs(kPatienceMs)).has_value();
  }
  // Whether the stream reaches its end.
  bool Passes(CUstream stream) const {
    const Deadline deadline = Deadline::AfterMs(kPatienceMs);
    while (api_->cuStreamQuery(stream) == CUDA_ERROR_NOT_READY) {
      if (deadline.Passed()) return false;
      poll(nullptr, 0, 1);  // sleep: a stream that passes wakes nobody
    }
    return true;
  }

  const CudaApi* api_ = nullptr;
  std::optional<PrimaryContext> context_;
  CUstream stream_ = nullptr;
  std::optional<Client> client_;
};

}  // namespace gpushm::integration
