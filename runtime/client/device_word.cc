#include "runtime/client/device_word.h"

#include <algorithm>
#include <string>

#include "platform/base/sealed_memory.h"
#include "platform/driver/stream_waits.h"

namespace gpushm::client {
namespace {

constexpr uint64_t kWordBytes = sizeof(signal::Word);

std::string NameOf(std::string_view signal) { return Concat(signal, signal::kWordSuffix); }

// A former writer that closed while there was no broker could not delete the buffer.
bool IsLeftOver(const Client& client, const std::string& name) {
  const auto found = client.Lookup(name);
  return found && found->record.size_bytes == kWordBytes;
}

}  // namespace

Result<std::unique_ptr<DeviceWord>> DeviceWord::Make(Client* client, std::string_view signal,
                                                     bool writers_all, uint32_t gpu,
                                                     const Wait& wait) {
  const std::string name = NameOf(signal);
  const MakeOptions options{.writers_all = writers_all,
                            .on_writer_exit = protocol::OnWriterExit::kDrop,
                            // A client that is closed with the signal open deletes nothing.
                            .until_unused = true,
                            .gpu = gpu};
  auto made = client->Create(name, kWordBytes, options, /*attach=*/true, wait);
  if (!made && made.error().code() == Code::kAlreadyExists) {
    if (!IsLeftOver(*client, name)) {
      return Fail(Code::kInvalidArgument,
                  Concat("its device memory is the buffer \"", name,
                         "\", but another buffer of that name exists"),
                  "use another name for the signal");
    }
    if (auto gone = client->Delete(name, wait); !gone) return std::unexpected(gone.error());
    made = client->Create(name, kWordBytes, options, /*attach=*/true, wait);
  }
  if (!made) {
    return std::unexpected(made.error().WithContext(Concat("device memory, buffer \"", name, '"')));
  }
  return Of(Held(client, *made));
}

Result<std::unique_ptr<DeviceWord>> DeviceWord::Attach(Client* client, std::string_view signal,
                                                       uint64_t generation, const Wait& wait) {
  const auto attached = client->Attach(NameOf(signal), {.generation = generation}, wait.Once());
  if (!attached) return std::unexpected(attached.error());
  return Of(Held(client, *attached));
}

Result<std::unique_ptr<DeviceWord>> DeviceWord::Of(Held buffer) {
  auto memory = MakeSealed("page", signal::kPageBytes, Writers::kAll);
  if (!memory) return std::unexpected(memory.error());
  auto passed = PageMapping::Map(memory->fd, signal::kPageBytes, /*writable=*/true);
  if (!passed) return std::unexpected(passed.error());
  return std::unique_ptr<DeviceWord>(new DeviceWord(std::move(buffer), std::move(*passed)));
}

Result<void> DeviceWord::Delete() {
  return buffer_.client()->Delete(buffer_->facts().name, Wait::None());
}

bool DeviceWord::HasWaits() const {
  return StreamWaits::Instance().HasPending(passed_->address(), passed_->bytes());
}

bool DeviceWord::HasPassed(uint64_t value) {
  const std::lock_guard lock(mutex_);
  DropPassed();
  return passed_value_ >= value;
}

// Requires mutex_.
void DeviceWord::DropPassed() {
  for (size_t i = 0; i < kStreams; ++i) {
    Waiting& waiting = waiting_[i];
    const uint64_t passed_number = passed(i).load(std::memory_order_acquire);
    while (!waiting.values.empty() && waiting.last - waiting.values.size() < passed_number) {
      passed_value_ = std::max(passed_value_, waiting.values.front());
      waiting.values.pop_front();
    }
  }
}

// Requires mutex_.
Result<size_t> DeviceWord::PlaceOf(CUstream stream) {
  DropPassed();
  size_t free = kStreams;
  for (size_t i = 0; i < kStreams; ++i) {
    if (waiting_[i].last > 0 && waiting_[i].stream == stream) return i;
    if (waiting_[i].values.empty()) free = i;
  }
  if (free < kStreams) return free;
  return Fail(Code::kExhausted, Concat(kStreams, " streams already wait for the signal"),
              "wait for the signal on the host");
}

Result<void> DeviceWord::Await(CUstream stream, uint64_t value) {
  const Result<const CudaApi*> api = buffer_.client()->Driver();
  if (!api) return std::unexpected(api.error());
  const std::lock_guard lock(mutex_);
  const Result<size_t> place = PlaceOf(stream);
  if (!place) return std::unexpected(place.error());
  const signal::Word& word = passed(*place);
  Waiting& waiting = waiting_[*place];
  const uint64_t number = waiting.last + 1;
  const Result<CUdeviceptr> at = passed_->OnGpu(**api, word);
  if (!at) return std::unexpected(at.error());
  StreamWaits& waits = StreamWaits::Instance(**api);
  if (auto room = waits.Add(stream, word, number); !room) return room;
  std::array<CUstreamBatchMemOpParams, 2> both{};
  both[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
  both[0].waitValue.address = address();
  both[0].waitValue.value64 = value;
  both[0].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
  both[1] = StoreOf(*at, number);
  auto done = (*api)->Check((*api)->cuStreamBatchMemOp(stream, both.size(), both.data(), 0),
                            "cuStreamBatchMemOp for a wait");
  if (!done) {
    waits.Remove(stream, word, number);
    return done;
  }
  waiting.stream = stream;
  waiting.last = number;
  waiting.values.push_back(value);
  return {};
}

CUstreamBatchMemOpParams StoreOf(CUdeviceptr at, uint64_t value) {
  CUstreamBatchMemOpParams store{};
  store.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  store.writeValue.address = at;
  store.writeValue.value64 = value;
  store.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
  return store;
}

}  // namespace gpushm::client
