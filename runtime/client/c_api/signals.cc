// The C ABI: signals.
#include "runtime/client/sync/signals.h"
#include "runtime/client/c_api/support.h"
#include "runtime/include/gpushm/sync.h"

namespace gc = gpushm::client;
using gpushm::Code;
using gpushm::Concat;
using gpushm::Fail;
using gpushm::Result;

namespace {

template <typename Body>
gpushm_status With(const gpushm_signal* handle, Body body) {
  return gc::EnterWith<gc::Signal>(gc::HandleKind::kSignal, handle, "signal", body);
}

}  // namespace

extern "C" {

gpushm_status gpushm_signal_open(gpushm_client* client, const char* name,
                                 const gpushm_signal_options* options, gpushm_signal** signal) {
  const auto open = [](gc::Client* of, std::string_view text, const gpushm_signal_options& given,
                       const gc::Wait& wait) -> Result<std::unique_ptr<gc::Signal>> {
    if (given.role > GPUSHM_SIGNAL_WRITER || given.writers > GPUSHM_WRITERS_ALL) {
      return Fail(Code::kInvalidArgument,
                  Concat("unknown value: role ", given.role, ", writers ", given.writers),
                  "use the values of gpushm_signal_role and gpushm_writers");
    }
    return gc::Signal::Open(
        of, text,
        {.role = gc::Signal::Role{given.role}, .writers_all = given.writers == GPUSHM_WRITERS_ALL},
        wait);
  };
  return gc::OpenNamed(client, name, options, gc::HandleKind::kSignal, "signal", signal, open);
}

gpushm_status gpushm_signal_close(gpushm_signal* signal) {
  return gc::CloseNamed<gc::Signal>(gc::HandleKind::kSignal, signal, "signal");
}

gpushm_status gpushm_signal_record(gpushm_signal* signal, void* stream, uint64_t value) {
  return With(signal,
              [&](gc::Signal& s) { return s.Record(static_cast<CUstream>(stream), value); });
}

gpushm_status gpushm_signal_set(gpushm_signal* signal, uint64_t value) {
  return With(signal, [&](gc::Signal& s) { return s.Set(value); });
}

gpushm_status gpushm_signal_wait_on_stream(gpushm_signal* signal, void* stream, uint64_t value) {
  return With(signal,
              [&](gc::Signal& s) { return s.WaitOnStream(static_cast<CUstream>(stream), value); });
}

gpushm_status gpushm_signal_wait(gpushm_signal* signal, uint64_t value, int64_t timeout_ms) {
  return With(signal, [&](const gc::Signal& s) -> Result<void> {
    const auto wait = gc::Wait::From(timeout_ms, GPUSHM_DEFAULT_TIMEOUT_MS);
    if (!wait) return std::unexpected(wait.error());
    return s.WaitOnHost(value, wait->condition);
  });
}

gpushm_status gpushm_signal_check(gpushm_signal* signal, uint64_t value) {
  return With(signal, [&](const gc::Signal& s) { return s.Check(value); });
}

gpushm_status gpushm_signal_get_info(const gpushm_signal* signal, gpushm_signal_info* info) {
  return With(signal, [&](const gc::Signal& s) {
    return gc::FillInfo(info, "info", [&](gpushm_signal_info* filled) -> Result<void> {
      const gpushm::sync::Reading reading = s.Read();
      gc::CopyText(filled->name, s.name());
      filled->generation = s.generation();
      filled->value = reading.value;
      filled->state = std::to_underlying(reading.state);
      filled->role = s.role();
      filled->recorded = s.recorded();
      return {};
    });
  });
}

gpushm_status gpushm_signal_device_address(gpushm_signal* signal, uint64_t* address) {
  return With(signal, [&](gc::Signal& s) -> Result<void> {
    if (address == nullptr) return gc::CheckArgument(false, "address is NULL");
    const auto at = s.DeviceAddress();
    if (!at) return std::unexpected(at.error());
    *address = *at;
    return {};
  });
}

}  // extern "C"
