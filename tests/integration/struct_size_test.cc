// Goal: this library works with programs that were compiled when its structs were smaller, or will
// be larger. Method: every function that takes a struct is called with today's size, and with a
// smaller and a larger one. The program's bytes after its struct must stay unchanged.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpushm/gpushm.h"
#include "gpushm/sync.h"
#include "platform/driver/cuda_api.h"
#include "platform/driver/device.h"
#include "tests/integration/shared_broker.h"

namespace gpushm::integration {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kFrameBytes = 4096;

// How many bytes of today's struct a smaller one lacks.
template <typename T>
constexpr size_t kLacks = 8;
template <>
constexpr size_t kLacks<gpushm_broker_info> = 4;  // The test reads the bytes before them.
template <>
constexpr size_t kLacks<gpushm_detach_options> = 4;
template <>
constexpr size_t kLacks<gpushm_frame> = 0;  // An end call needs all of it.

enum class Program { kEarlier, kOfToday, kLater };

// A struct as that program has it, followed by other bytes of the program.
template <typename T>
class Struct {
  // A later field could go into padding, where struct_size would not show it.
  static_assert(std::has_unique_object_representations_v<T>, "name the padding: reserved");
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit Struct(Program program, size_t count = 1)
      : bytes_(BytesOf(program)), storage_(count * bytes_ + kOthers, kOther) {
    std::fill_n(storage_.begin(), count * bytes_, std::byte{0});
    std::memcpy(storage_.data(), &bytes_, sizeof bytes_);
  }
  ~Struct() {
    EXPECT_TRUE(std::all_of(storage_.end() - kOthers, storage_.end(),
                            [](std::byte byte) { return byte == kOther; }))
        << "the library wrote past the end of a struct of " << bytes_ << " bytes (today's has "
        << sizeof(T) << ")";
    EXPECT_EQ((*this)->struct_size, bytes_);
  }
  Struct(const Struct&) = delete;
  Struct& operator=(const Struct&) = delete;

  T* get() { return reinterpret_cast<T*>(storage_.data()); }
  T* operator->() { return get(); }
  T* at(size_t index) { return reinterpret_cast<T*>(storage_.data() + index * bytes_); }

 private:
  static constexpr size_t kOthers = 256;
  static constexpr std::byte kOther{0xa5};
  static size_t BytesOf(Program program) {
    switch (program) {
      case Program::kEarlier:
        return sizeof(T) - kLacks<T>;
      case Program::kOfToday:
        return sizeof(T);
      case Program::kLater:
        break;
    }
    return sizeof(T) + 24;
  }

  size_t bytes_;
  std::vector<std::byte> storage_;
};

#define ASSERT_OK(call) ASSERT_EQ(call, GPUSHM_OK) << gpushm_last_error()->text

class StructSizeTest : public SharedBrokerTest, public ::testing::WithParamInterface<Program> {
 protected:
  void SetUp() override {
    const auto api = CudaApi::Load(DriverFolderFromEnvironment());
    ASSERT_TRUE(api && (*api)->Init());
    auto context = PrimaryContext::Retain(**api, 0);
    ASSERT_TRUE(context && context->MakeCurrent());
    context_.emplace(std::move(*context));
    const std::string folder = run();
    Struct<gpushm_open_options> options(GetParam());
    options->folder = folder.c_str();
    if (GetParam() != Program::kEarlier) options->timeout_ms = kPatienceMs;
    ASSERT_OK(gpushm_open(options.get(), &client_));
  }
  void TearDown() override { gpushm_close(client_); }

  // Named after the buffer that every test makes.
  gpushm_attachment* Create() {
    Struct<gpushm_create_options> options(GetParam());
    options->unpublished = 1;
    gpushm_attachment* made = nullptr;
    EXPECT_EQ(gpushm_create(client_, "weights", kMiB, options.get(), &made), GPUSHM_OK)
        << gpushm_last_error()->text;
    EXPECT_EQ(gpushm_attachment_publish(made), GPUSHM_OK);
    return made;
  }
  void Delete(const char* name) {
    Struct<gpushm_delete_options> options(GetParam());
    if (GetParam() != Program::kEarlier) options->timeout_ms = kPatienceMs;
    ASSERT_OK(gpushm_delete(client_, name, options.get()));
  }

  std::optional<PrimaryContext> context_;
  gpushm_client* client_ = nullptr;
};

TEST_P(StructSizeTest, Names) {
  gpushm_attachment* const made = Create();
  Struct<gpushm_info> found(GetParam());
  ASSERT_OK(gpushm_lookup(client_, "weights", found.get()));
  EXPECT_EQ(found->size_bytes, kMiB);

  Struct<gpushm_info> waited(GetParam());
  Struct<gpushm_wait_options> wait(GetParam());
  ASSERT_OK(gpushm_wait(client_, "weights", 0, wait.get(), waited.get()));
  EXPECT_EQ(waited->generation, found->generation);

  constexpr size_t kRoom = 2;
  size_t count = 0;
  Struct<gpushm_info> infos(GetParam(), kRoom);
  ASSERT_OK(gpushm_list(client_, infos.get(), kRoom, &count));
  ASSERT_EQ(count, 1u);
  EXPECT_STREQ(infos->name, "weights");

  Struct<gpushm_attach_options> reading(GetParam());
  reading->access = GPUSHM_ACCESS_READ;
  gpushm_attachment* attached = nullptr;
  ASSERT_OK(gpushm_attach(client_, "weights", reading.get(), &attached));
  Struct<gpushm_holder> holders(GetParam(), kRoom);
  ASSERT_OK(gpushm_list_holders(client_, "weights", holders.get(), kRoom, &count));
  ASSERT_EQ(count, 2u);
  EXPECT_EQ(holders.at(0)->access, uint32_t{GPUSHM_ACCESS_READ_WRITE});
  EXPECT_EQ(holders.at(1)->access, uint32_t{GPUSHM_ACCESS_READ});
  EXPECT_STREQ(holders.at(1)->buffer, "weights");

  Struct<gpushm_broker_info> broker(GetParam());
  ASSERT_OK(gpushm_broker_get_info(client_, broker.get()));
  EXPECT_EQ(broker->leases, 2u);

  Struct<gpushm_attachment_info> info(GetParam());
  ASSERT_OK(gpushm_attachment_get_info(attached, info.get()));
  EXPECT_EQ(info->address, gpushm_attachment_address(attached));
  EXPECT_EQ(info->count, 1u);

  Struct<gpushm_detach_options> detach(GetParam());
  detach->defer = 1;
  EXPECT_EQ(gpushm_attachment_detach(attached, detach.get()), GPUSHM_OK);
  EXPECT_EQ(gpushm_attachment_detach(made, nullptr), GPUSHM_OK);
  Delete("weights");
}

TEST_P(StructSizeTest, Making) {
  gpushm_attachment* const made = Create();
  Struct<gpushm_create_options> options(GetParam());
  gpushm_attachment* next = nullptr;
  ASSERT_OK(gpushm_replace(client_, "weights", 0, options.get(), &next));
  EXPECT_EQ(gpushm_attachment_check(made), GPUSHM_STALE);
  EXPECT_EQ(gpushm_attachment_detach(made, nullptr), GPUSHM_OK);
  EXPECT_EQ(gpushm_attachment_detach(next, nullptr), GPUSHM_OK);

  const std::string path = folder_ + "/bytes";
  std::ofstream(path) << "0123456789";
  // A load waits until what nothing announces has not changed for some seconds.
  std::filesystem::last_write_time(path,
                                   std::filesystem::last_write_time(path) - std::chrono::hours(1));
  Struct<gpushm_transfer_options> transfer(GetParam());
  Struct<gpushm_transfer_result> moved(GetParam());
  ASSERT_OK(gpushm_load(client_, "weights", path.c_str(), transfer.get(), moved.get()));
  EXPECT_EQ(moved->bytes, 10u);
  ASSERT_OK(gpushm_save(client_, "weights", path.c_str(), transfer.get(), moved.get()));
  std::filesystem::last_write_time(path,
                                   std::filesystem::last_write_time(path) - std::chrono::hours(1));
  ASSERT_OK(gpushm_replace(client_, "weights", 0, options.get(), &next));
  ASSERT_OK(gpushm_attachment_load(next, path.c_str(), transfer.get(), moved.get()));
  EXPECT_EQ(moved->bytes, 10u);
  ASSERT_OK(gpushm_attachment_save(next, path.c_str(), transfer.get(), moved.get()));
  EXPECT_EQ(moved->bytes, 10u);
  EXPECT_EQ(gpushm_attachment_detach(next, nullptr), GPUSHM_OK);
  Delete("weights");

  const CudaApi& api = **CudaApi::Load(DriverFolderFromEnvironment());
  CUdeviceptr own = 0;
  ASSERT_EQ(api.cuMemAlloc(&own, 2 * kMiB), CUDA_SUCCESS);
  Struct<gpushm_offer_options> offer(GetParam());
  Struct<gpushm_offer_result> offered(GetParam());
  ASSERT_OK(gpushm_offer(client_, "own", own, 2 * kMiB, offer.get(), offered.get()));
  EXPECT_EQ(offered->transport, uint32_t{GPUSHM_TRANSPORT_CUIPC});
  Delete("own");
  api.cuMemFree(own);
}

TEST_P(StructSizeTest, SignalsAndBarriers) {
  Struct<gpushm_signal_options> writing(GetParam());
  writing->role = GPUSHM_SIGNAL_WRITER;
  gpushm_signal* signal = nullptr;
  ASSERT_OK(gpushm_signal_open(client_, "ready", writing.get(), &signal));
  ASSERT_OK(gpushm_signal_set(signal, 7));
  Struct<gpushm_signal_info> read(GetParam());
  ASSERT_OK(gpushm_signal_get_info(signal, read.get()));
  EXPECT_EQ(read->value, 7u);
  Struct<gpushm_sync_info> looked(GetParam());
  ASSERT_OK(gpushm_sync_lookup(client_, "ready", looked.get()));
  EXPECT_EQ(looked->value, 7u);
  EXPECT_EQ(gpushm_signal_close(signal), GPUSHM_OK);

  Struct<gpushm_barrier_options> joining(GetParam());
  joining->participants = 1;
  gpushm_barrier* barrier = nullptr;
  ASSERT_OK(gpushm_barrier_open(client_, "step", joining.get(), &barrier));
  ASSERT_OK(gpushm_barrier_wait(barrier, kPatienceMs));
  Struct<gpushm_barrier_info> info(GetParam());
  ASSERT_OK(gpushm_barrier_get_info(barrier, info.get()));
  EXPECT_EQ(info->point, 1u);
  EXPECT_EQ(gpushm_barrier_close(barrier), GPUSHM_OK);
}

TEST_P(StructSizeTest, Rings) {
  Struct<gpushm_ring_options> writing(GetParam());
  writing->role = GPUSHM_RING_WRITER;
  writing->frame_bytes = kFrameBytes;
  gpushm_ring* writer = nullptr;
  ASSERT_OK(gpushm_ring_open(client_, "video", writing.get(), &writer));
  Struct<gpushm_ring_options> reading(GetParam());
  gpushm_ring* reader = nullptr;
  ASSERT_OK(gpushm_ring_open(client_, "video", reading.get(), &reader));

  Struct<gpushm_frame> frame(GetParam());
  ASSERT_OK(gpushm_ring_begin_write(writer, frame.get(), kPatienceMs));
  frame->bytes = 100;
  frame->metadata[0] = 42;
  ASSERT_OK(gpushm_ring_end_write(writer, frame.get(), GPUSHM_NO_STREAM));
  Struct<gpushm_frame> read(GetParam());
  ASSERT_OK(gpushm_ring_begin_read(reader, GPUSHM_NO_STREAM, read.get(), kPatienceMs));
  EXPECT_EQ(read->bytes, 100u);
  EXPECT_EQ(read->metadata[0], 42);
  ASSERT_OK(gpushm_ring_end_read(reader, GPUSHM_NO_STREAM, read.get(), kPatienceMs));
  ASSERT_OK(gpushm_ring_begin_write(writer, frame.get(), kPatienceMs));
  ASSERT_OK(gpushm_ring_end_write(writer, frame.get(), GPUSHM_NO_STREAM));
  ASSERT_OK(gpushm_ring_begin_read_newest(reader, GPUSHM_NO_STREAM, read.get(), kPatienceMs));
  ASSERT_OK(gpushm_ring_end_read(reader, GPUSHM_NO_STREAM, read.get(), kPatienceMs));

  Struct<gpushm_ring_info> info(GetParam());
  ASSERT_OK(gpushm_ring_get_info(reader, info.get()));
  EXPECT_EQ(info->taken, 2u);
  EXPECT_EQ(gpushm_ring_close(reader), GPUSHM_OK);
  EXPECT_EQ(gpushm_ring_close(writer), GPUSHM_OK);
  (void)gpushm_delete(client_, "video", nullptr);
}

// An end needs the whole frame. A shorter one is an error, and nothing after it is read.
TEST_P(StructSizeTest, AnEndRefusesAFrameThatIsTooShort) {
  Struct<gpushm_ring_options> writing(GetParam());
  writing->role = GPUSHM_RING_WRITER;
  writing->frame_bytes = kFrameBytes;
  gpushm_ring* writer = nullptr;
  ASSERT_OK(gpushm_ring_open(client_, "video", writing.get(), &writer));
  Struct<gpushm_frame> frame(GetParam());
  ASSERT_OK(gpushm_ring_begin_write(writer, frame.get(), kPatienceMs));
  Struct<gpushm_frame> cut(Program::kOfToday);
  cut->struct_size = sizeof(gpushm_frame) - 8;
  EXPECT_EQ(gpushm_ring_end_write(writer, cut.get(), GPUSHM_NO_STREAM), GPUSHM_INVALID_ARGUMENT);
  cut->struct_size = sizeof(gpushm_frame);
  ASSERT_OK(gpushm_ring_abandon_write(writer));
  EXPECT_EQ(gpushm_ring_close(writer), GPUSHM_OK);
  (void)gpushm_delete(client_, "video", nullptr);
}

std::string NameOf(const ::testing::TestParamInfo<Program>& program) {
  constexpr std::array kNames = {"Earlier", "OfToday", "Later"};
  return kNames[static_cast<size_t>(program.param)];
}
INSTANTIATE_TEST_SUITE_P(Programs, StructSizeTest,
                         ::testing::Values(Program::kEarlier, Program::kOfToday, Program::kLater),
                         NameOf);

}  // namespace
}  // namespace gpushm::integration
