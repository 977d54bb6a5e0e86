// Waiters, for several names, rings and signals at once.
#include "sync.h"

namespace gpushm::python {
namespace {

std::vector<gpushm_event> WaitForEvents(const Waiter& waiter, Timeout timeout, size_t capacity) {
  Collect();
  std::vector<gpushm_event> events(capacity, Sized<gpushm_event>());
  size_t count = 0;
  const std::shared_ptr<Waiting> waiting = waiter.waiting();
  const gpushm_status status = Wait(timeout, [&](int64_t timeout_ms) {
    const gpushm_status result =
        Api().waiter_wait_(waiting->get(), events.data(), events.size(), &count, timeout_ms);
    return result == GPUSHM_OK && count == 0 ? GPUSHM_TIMEOUT : result;
  });
  if (status != GPUSHM_TIMEOUT) Check(status);
  events.resize(count);
  return events;
}

}  // namespace

void BindWaiters(nb::module_& module, nb::class_<Client>& client) {
  nb::class_<gpushm_event>(module, "Event", "Something that a waiter waited for.")
      .def_ro("tag", &gpushm_event::tag, "As it was added.")
      .def_ro("generation", &gpushm_event::generation,
              "Of a name: its newest; after NOT_FOUND, its last.")
      .def_prop_ro(
          "kind",
          [](const gpushm_event& e) {
            constexpr std::array<const char*, 4> kNames = {"unknown", "name", "ring", "signal"};
            return e.kind < kNames.size() ? kNames[e.kind] : kNames[0];
          },
          "\"name\", \"ring\" or \"signal\".")
      .def_prop_ro(
          "status",
          [](const gpushm_event& e) {
            return nb::module_::import_("gpushm.errors").attr("Status")(e.status);
          },
          nb::sig("def status(self) -> enum.IntEnum"), "OK, or why a call would fail.");
  nb::class_<Waiter>(
      module, "Waiter",
      "Waits for several names, rings and signals at once. `fileno()` is for an event "
      "loop: selectors, asyncio's add_reader. Any thread may use it.")
      .def(
          "fileno", [](const Waiter& w) { return Api().waiter_descriptor_(w.get()); },
          "Readable from an event on, until wait(0) returns nothing. Do not read or close it.")
      .def(
          "add_name",
          [](const Waiter& w, const std::string& name, uint64_t newer_than, uint64_t tag) {
            Check(Api().waiter_add_name_(w.get(), name.c_str(), newer_than, tag));
          },
          "name"_a, "newer_than"_a = 0, "tag"_a = 0,
          "Waits for changes of a buffer: a generation above `newer_than`, another state, its end.")
      .def(
          "add_ring",
          [](const Waiter& w, const Ring& ring, uint64_t tag) {
            Check(Api().waiter_add_ring_(w.get(), ring.shared()->get(), tag));
          },
          "ring"_a, "tag"_a = 0,
          "Waits until a read, or a write of a writer, would not wait. The same client must have "
          "opened the ring.")
      .def(
          "add_signal",
          [](const Waiter& w, const Signal& signal, uint64_t value, uint64_t tag) {
            Check(Api().waiter_add_signal_(w.get(), signal.shared()->get(), value, tag));
          },
          "signal"_a, "value"_a, "tag"_a = 0,
          "Waits until a signal has reached `value`. Reported once, and then removed.")
      .def(
          "remove",
          [](const Waiter& w, uint64_t tag) { Check(Api().waiter_remove_(w.get(), tag)); }, "tag"_a,
          "Removes everything that was added with that tag.\n\nRaises NotFound.")
      .def(
          "wait", &WaitForEvents, "timeout"_a = 10.0, "capacity"_a = 16,
          "Waits until there is an event. Returns up to `capacity` of them; none after the timeout.")
      .def("close", &Waiter::Close, "Closes it and its descriptor.")
      .def_prop_ro(
          "closed", [](const Waiter& w) { return !w.is_open(); }, "True after close().")
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> Waiter"))
      .def(
          "__exit__", [](Waiter& w, nb::args) { w.Close(); },
          nb::sig("def __exit__(self, *args: object) -> None"));
  client.def(
      "waiter", [](const Client& c) { return Waiter(c.session()); },
      "Opens a waiter for names, rings and signals.");
}

}  // namespace gpushm::python
