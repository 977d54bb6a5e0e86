#include "tests/integration/signal_commands.h"

#include <poll.h>

#include <string>
#include <thread>
#include <utility>

#include "platform/base/clock.h"

namespace gpushm::integration {
CUstream SignalCommands::StreamOf(int number) {
  const auto known = streams_.find(number);
  if (known != streams_.end()) return known->second;
  CUstream stream = nullptr;
  api_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  return streams_[number] = stream;
}

Answer SignalCommands::Open(std::istringstream& in) {
  std::string name;
  std::string role;
  gpushm_signal_options options;
  GPUSHM_INIT(&options);
  in >> name >> role >> options.timeout_ms;
  options.role = role == "r" ? GPUSHM_SIGNAL_WAITER : GPUSHM_SIGNAL_WRITER;
  const gpushm_status status = gpushm_signal_open(client_, name.c_str(), &options, &signal_);
  gpushm_signal_info info;
  GPUSHM_INIT(&info);
  if (status == GPUSHM_OK) gpushm_signal_get_info(signal_, &info);
  return Told(status, static_cast<int64_t>(info.generation));
}

Answer SignalCommands::OnStream(const std::string& verb, std::istringstream& in,
                                gpushm_attachment* latest) {
  int number = 0;
  uint64_t value = 0;
  in >> number >> value;
  const CUstream stream = StreamOf(number);
  if (verb == "record") return Told(gpushm_signal_record(signal_, stream, value));
  if (verb == "await") return Told(gpushm_signal_wait_on_stream(signal_, stream, value));
  if (verb == "store") {
    uint64_t address = 0;
    const gpushm_status known = gpushm_signal_device_address(signal_, &address);
    if (known != GPUSHM_OK) return Told(known);
    return {api_.cuStreamWriteValue64(stream, address, value, CU_STREAM_WRITE_VALUE_DEFAULT), 0};
  }
  if (verb == "put") return Put(stream, static_cast<uint32_t>(value), latest);
  if (verb == "get") return Get(stream, latest);
  return Sync(stream, static_cast<int64_t>(value));
}

Answer SignalCommands::Put(CUstream stream, uint32_t word, gpushm_attachment* latest) {
  return {api_.cuMemsetD32Async(gpushm_attachment_address(latest), word, 1, stream), 0};
}

Answer SignalCommands::Get(CUstream stream, gpushm_attachment* latest) {
  void* pinned = word_;
  if (pinned == nullptr) api_.cuMemHostAlloc(&pinned, sizeof *word_, 0);
  word_ = static_cast<uint32_t*>(pinned);
  return {api_.cuMemcpyDtoHAsync(word_, gpushm_attachment_address(latest), sizeof *word_, stream),
          0};
}

Answer SignalCommands::Sync(CUstream stream, int64_t timeout_ms) {
  const Deadline deadline = Deadline::AfterMs(timeout_ms);
  for (;;) {
    const CUresult result = api_.cuStreamQuery(stream);
    if (result != CUDA_ERROR_NOT_READY) return {result == CUDA_SUCCESS ? 0 : GPUSHM_DRIVER, result};
    if (deadline.Passed()) return {GPUSHM_TIMEOUT, 0};
    poll(nullptr, 0, 1);
  }
}

Answer SignalCommands::Do(std::istringstream& in, gpushm_attachment* latest) {
  std::string verb;
  in >> verb;
  if (verb == "open") return Open(in);
  if (verb == "word") return {0, *word_};
  if (verb == "swap") {
    std::swap(signal_, other_);
    return {0, 0};
  }
  if (verb == "record" || verb == "await" || verb == "sync" || verb == "put" || verb == "get" ||
      verb == "store") {
    return OnStream(verb, in, latest);
  }
  uint64_t value = 0;
  int64_t timeout_ms = 0;
  if (verb == "set" || verb == "wait" || verb == "check") in >> value >> timeout_ms;
  if (verb == "set") return Told(gpushm_signal_set(signal_, value));
  if (verb == "wait") return Told(gpushm_signal_wait(signal_, value, timeout_ms));
  if (verb == "check") return Told(gpushm_signal_check(signal_, value));
  if (verb == "close") return Told(gpushm_signal_close(signal_));
  if (verb == "close-bare") {  // On a thread without a CUDA context.
    gpushm_status closed = GPUSHM_OK;
    std::thread([&] { closed = gpushm_signal_close(signal_); }).join();
    return Told(closed);
  }
  gpushm_signal_info info;
  GPUSHM_INIT(&info);
  const gpushm_status status = gpushm_signal_get_info(signal_, &info);
  return Told(status, static_cast<int64_t>(verb == "state" ? info.state : info.value));
}

}  // namespace gpushm::integration
