// The C ABI: waiting in an event loop.
#include "runtime/client/sync/waiter.h"
#include "runtime/client/c_api/support.h"
#include "runtime/client/sync/rings.h"
#include "runtime/client/sync/signals.h"
#include "runtime/include/gpushm/wait.h"

namespace gpushm::client {
namespace {

Waiter* WaiterOf(const gpushm_waiter* handle) noexcept {
  return static_cast<Waiter*>(Handle::Find(HandleKind::kWaiter, handle));
}

template <typename Body>
gpushm_status With(const gpushm_waiter* handle, Body body) {
  Waiter* const waiter = WaiterOf(handle);
  if (waiter == nullptr) return RememberWhyNot(HandleKind::kWaiter, handle);
  return Enter(waiter->client(), [&] { return body(*waiter); });
}

// Calls `body` with the waiter and a ring or signal of the same client.
template <typename Object, typename Body>
gpushm_status WithBoth(const gpushm_waiter* waiter, HandleKind kind, const void* handle,
                       const char* what, Body body) {
  auto* const opened = static_cast<Opened<Object>*>(Handle::Find(kind, handle));
  if (opened == nullptr) return RememberWhyNot(kind, handle);
  return With(waiter, [&](Waiter& to) -> Result<void> {
    if (opened->object->client() != to.client()) {
      return Fail(Code::kInvalidArgument,
                  Concat(what, " \"", opened->object->name(), "\" and the waiter belong to ",
                         "different clients"),
                  "open both with the same gpushm_client");
    }
    return body(to, opened->object);
  });
}

gpushm_event ToEvent(const Waiter::Event& event) {
  gpushm_event out{};
  out.tag = event.tag;
  out.kind = event.kind;
  out.status = event.failure ? ToStatus(*event.failure) : GPUSHM_OK;
  out.generation = event.generation;
  out.state = event.state;
  return out;
}

}  // namespace
}  // namespace gpushm::client

namespace gc = gpushm::client;
using gpushm::Result;

extern "C" {

gpushm_status gpushm_waiter_open(gpushm_client* client, gpushm_waiter** waiter) {
  return gc::EnterClient(client, [&](gc::Client& of) -> Result<void> {
    if (auto valid = gc::CheckArgument(waiter != nullptr, "waiter is NULL"); !valid) return valid;
    *waiter = nullptr;
    auto made = gc::Waiter::Make(&of);
    if (!made) return std::unexpected(made.error());
    *waiter = (*made)->handle().As<gpushm_waiter>();
    of.Own(std::move(*made));
    return {};
  });
}

int gpushm_waiter_descriptor(const gpushm_waiter* waiter) {
  const gc::Waiter* const w = gc::WaiterOf(waiter);
  return w == nullptr ? -1 : w->descriptor();
}

gpushm_status gpushm_waiter_add_name(gpushm_waiter* waiter, const char* name, uint64_t generation,
                                     uint64_t tag) {
  return gc::With(waiter, [&](gc::Waiter& w) -> Result<void> {
    const auto text = gc::ReadName(name);
    if (!text) return std::unexpected(text.error());
    return w.AddName(*text, generation, tag);
  });
}

gpushm_status gpushm_waiter_add_ring(gpushm_waiter* waiter, gpushm_ring* ring, uint64_t tag) {
  return gc::WithBoth<gc::Ring>(
      waiter, gc::HandleKind::kRing, ring, "ring",
      [&](gc::Waiter& w, std::shared_ptr<gc::Ring> of) { return w.AddRing(std::move(of), tag); });
}

gpushm_status gpushm_waiter_add_signal(gpushm_waiter* waiter, gpushm_signal* signal, uint64_t value,
                                       uint64_t tag) {
  return gc::WithBoth<gc::Signal>(waiter, gc::HandleKind::kSignal, signal, "signal",
                                  [&](gc::Waiter& w, std::shared_ptr<gc::Signal> of) {
                                    return w.AddSignal(std::move(of), value, tag);
                                  });
}

gpushm_status gpushm_waiter_remove(gpushm_waiter* waiter, uint64_t tag) {
  return gc::With(waiter, [&](gc::Waiter& w) { return w.Remove(tag); });
}

gpushm_status gpushm_waiter_wait(gpushm_waiter* waiter, gpushm_event* events, size_t capacity,
                                 size_t* count, int64_t timeout_ms) {
  return gc::With(waiter, [&](gc::Waiter& w) -> Result<void> {
    const auto stride = gc::Stride(events, capacity, count, "events");
    if (!stride) return std::unexpected(stride.error());
    *count = 0;
    if (auto valid = gc::CheckArgument(capacity > 0, "capacity is 0"); !valid) return valid;
    const auto wait = gc::Wait::From(timeout_ms, GPUSHM_DEFAULT_TIMEOUT_MS);
    if (!wait) return std::unexpected(wait.error());
    const auto seen = w.Wait(capacity, wait->condition);
    if (!seen) return std::unexpected(seen.error());
    return gc::WriteArray(*seen, events, capacity, count, *stride, gc::ToEvent);
  });
}

void gpushm_waiter_close(gpushm_waiter* waiter) {
  gc::Waiter* const w = gc::WaiterOf(waiter);
  if (w != nullptr) w->client()->Disown(w);
}

}  // extern "C"
