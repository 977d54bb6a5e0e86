#include "tests/integration/ring_commands.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>

namespace gpushm::integration {
namespace {

constexpr size_t kLookedAtWords = 1024;  // At a frame's end, which is written last.

}  // namespace

CUstream RingCommands::stream() {
  if (stream_ == nullptr) api_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING);
  return stream_;
}

Answer RingCommands::Open(bool writes, std::istringstream& in) {
  std::string name;
  gpushm_ring_options options;
  GPUSHM_INIT(&options);
  in >> name;
  if (writes) {
    std::string policy;
    in >> policy >> options.frames >> options.frame_bytes;
    options.role = GPUSHM_RING_WRITER;
    options.policy = policy == "queue"      ? GPUSHM_RING_QUEUE
                     : policy == "pressure" ? GPUSHM_RING_BACK_PRESSURE
                                            : GPUSHM_RING_OVERWRITE_OLDEST;
  }
  in >> options.timeout_ms;
  const gpushm_status status = gpushm_ring_open(client_, name.c_str(), &options, &ring_);
  gpushm_ring_info info;
  GPUSHM_INIT(&info);
  if (status == GPUSHM_OK) gpushm_ring_get_info(ring_, &info);
  return Told(status, static_cast<int64_t>(info.generation));
}

Answer RingCommands::Put(uint32_t word) {
  gpushm_frame frame;
  GPUSHM_INIT(&frame);
  if (const auto status = gpushm_ring_begin_write(ring_, &frame, 0)) return {status, 0};
  api_.cuMemsetD32Async(frame.address, word, frame.capacity_bytes / sizeof word, stream());
  frame.bytes = frame.capacity_bytes;
  std::memcpy(frame.metadata, &word, sizeof word);
  return {gpushm_ring_end_write(ring_, &frame, stream()), static_cast<int64_t>(frame.number)};
}

Answer RingCommands::Begin(int64_t timeout_ms) {
  GPUSHM_INIT(&frame_);
  const auto status = gpushm_ring_begin_read(ring_, stream(), &frame_, timeout_ms);
  return Told(status, static_cast<int64_t>(frame_.number));
}

// The frame's first and last words, read on the stream with which the frame was begun.
Answer RingCommands::Look() {
  void* pinned = words_;
  if (pinned == nullptr) api_.cuMemHostAlloc(&pinned, 2 * kLookedAtWords * sizeof *words_, 0);
  words_ = static_cast<uint32_t*>(pinned);
  const size_t count = std::min(kLookedAtWords, frame_.bytes / sizeof *words_);
  const size_t bytes = count * sizeof *words_;
  api_.cuMemcpyDtoHAsync(words_, frame_.address, bytes, stream());
  api_.cuMemcpyDtoHAsync(words_ + count, frame_.address + frame_.bytes - bytes, bytes, stream());
  if (api_.cuStreamSynchronize(stream()) != CUDA_SUCCESS) return {GPUSHM_DRIVER, 0};
  uint32_t told = 0;
  std::memcpy(&told, frame_.metadata, sizeof told);
  const bool whole =
      std::all_of(words_, words_ + 2 * count, [&](uint32_t word) { return word == words_[0]; });
  return {whole && words_[0] == told ? 0 : kTorn, words_[0]};
}

Answer RingCommands::Pump(uint64_t count) {
  for (uint64_t i = 1; count == 0 || i <= count; ++i) {
    const Answer put = Put(static_cast<uint32_t>(i));
    if (put.status == GPUSHM_BUSY) {
      std::this_thread::yield();  // Until a stream or a reader has finished a frame.
    } else if (put.status != GPUSHM_OK) {
      return Told(put.status, put.value);
    }
    if (count != 0) api_.cuStreamSynchronize(stream());
  }
  return {api_.cuStreamSynchronize(stream()) == CUDA_SUCCESS ? 0 : 1, static_cast<int64_t>(count)};
}

Answer RingCommands::Drain(uint64_t count) {
  int64_t read = 0;
  uint64_t number = 0;
  while (count == 0 || number < count) {
    const Answer begun = Begin(static_cast<int64_t>(kPatienceMs));
    if (HasEnded(begun.status)) return {0, read};
    if (begun.status != GPUSHM_OK) return begun;
    number = frame_.number;
    const Answer looked = Look();
    const gpushm_status ended = gpushm_ring_end_read(ring_, stream(), &frame_, kPatienceMs);
    if (looked.status != 0 && looked.status != kTorn) return looked;
    if (HasEnded(ended)) return {0, read};  // The frame may be torn, and does not count.
    if (ended != GPUSHM_OK) return Told(ended);
    if (looked.status != 0) return looked;
    ++read;
  }
  return {0, read};
}

Answer RingCommands::Do(std::istringstream& in) {
  std::string verb;
  in >> verb;
  if (verb == "write" || verb == "read") return Open(verb == "write", in);
  if (verb == "look") return Look();
  if (verb == "lost") return {0, static_cast<int64_t>(frame_.lost)};
  if (verb == "delivery") return {0, frame_.delivery};
  if (verb == "close") {
    api_.cuStreamSynchronize(stream());
    return Told(gpushm_ring_close(ring_));
  }
  if (verb == "abandon") return Told(gpushm_ring_abandon_write(ring_));
  if (verb == "end") return Told(gpushm_ring_end_read(ring_, stream(), &frame_, 0));
  if (verb == "open") {
    gpushm_frame frame;
    GPUSHM_INIT(&frame);
    return Told(gpushm_ring_begin_write(ring_, &frame, 0));
  }
  uint64_t number = 0;
  in >> number;
  if (verb == "put") {
    const Answer put = Put(static_cast<uint32_t>(number));
    return Told(put.status, put.value);
  }
  if (verb == "begin") return Begin(static_cast<int64_t>(number));
  if (verb == "pump") return Pump(number);
  return Drain(number);
}

}  // namespace gpushm::integration
