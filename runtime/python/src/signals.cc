// Signals.
#include "sync.h"

namespace gpushm::python {
namespace {

nb::object OpenSignal(const Client& client, const std::string& name, bool write,
                      const std::string& writers, Timeout timeout) {
  Collect();
  auto options = Sized<gpushm_signal_options>();
  options.role = write ? GPUSHM_SIGNAL_WRITER : GPUSHM_SIGNAL_WAITER;
  options.writers = Choice("writers", writers, {"creator", "all"});
  gpushm_signal* signal = nullptr;
  const std::shared_ptr<Session> session = client.session();
  Check(Wait(timeout, [&](int64_t timeout_ms) {
    options.timeout_ms = timeout_ms;
    return Api().signal_open_(session->get(), name.c_str(), &options, &signal);
  }));
  return EndsAtExit(nb::cast(Signal(client, signal)));
}

gpushm_signal_info SignalInfo(const Signal& signal) {
  auto info = Sized<gpushm_signal_info>();
  Check(Api().signal_get_info_(signal.shared()->get(), &info));
  return info;
}

}  // namespace

void BindSignals(nb::module_& module, nb::class_<Client>& client) {
  nb::class_<Signal> signal(
      module, "Signal", nb::is_weak_referenceable(),
      "A 64-bit value with a name, which only increases. One process writes it, and any number "
      "wait for it: on the host, in a stream, or with asyncio. Any thread may use it.");
  signal
      .def_prop_ro(
          "name", [](const Signal& s) { return std::string(SignalInfo(s).name); }, "Its name.")
      .def_prop_ro(
          "value", [](const Signal& s) { return SignalInfo(s).value; },
          "The value now; after its writer's end, the last one before.")
      .def_prop_ro(
          "generation", [](const Signal& s) { return SignalInfo(s).generation; },
          "Each writer makes a new generation.")
      .def_prop_ro(
          "recorded", [](const Signal& s) { return SignalInfo(s).recorded; },
          "Writer: the last value of record() or set().")
      .def_prop_ro(
          "state", [](const Signal& s) { return WriterState(SignalInfo(s).state); },
          "Of the writer: \"unused\" (none yet), \"live\", \"died\" or \"ended\".")
      .def(
          "set",
          [](const Signal& s, uint64_t value) {
            Check(Api().signal_set_(s.shared()->get(), value));
          },
          "value"_a,
          "Sets the value from the host, at once.\n\n"
          "Raises InvalidArgument (not the writer, or not larger), Busy (a recorded value has not "
          "arrived yet).")
      .def(
          "record",
          [](const Signal& s, uint64_t value, const nb::object& stream) {
            const Stream parsed = ParseStream(stream);
            const auto shared = s.shared();
            if (parsed == GPUSHM_NO_STREAM) return Check(Api().signal_set_(shared->get(), value));
            Check(Released([&] {
              const CurrentContext context(0);
              return Api().signal_record_(shared->get(), parsed, value);
            }));
          },
          "value"_a, "stream"_a = nb::none(),
          "Sets the value when all work that is on `stream` now is done. It does not wait.\n\n"
          "Raises InvalidArgument, Unsupported (the stream is being captured).")
      .def(
          "wait",
          [](const Signal& s, uint64_t value, Timeout timeout) {
            const auto shared = s.shared();
            Check(Wait(timeout, [&](int64_t timeout_ms) {
              return Api().signal_wait_(shared->get(), value, timeout_ms);
            }));
          },
          "value"_a, "timeout"_a = 10.0,
          "Waits on the host until the signal is at least `value`.\n\n"
          "Raises Timeout, Ended, PeerDied.")
      .def(
          "wait_on_stream",
          [](const Signal& s, uint64_t value, const nb::object& stream) {
            const Stream parsed = ParseStream(stream);
            const auto shared = s.shared();
            Check(Released([&] {
              const CurrentContext context(0);
              return Api().signal_wait_on_stream_(shared->get(), parsed, value);
            }));
          },
          "value"_a, "stream"_a = nb::none(),
          "Later work on `stream` runs once the signal is at least `value`; the call does not wait. "
          "That work is valid only if check() returns True afterwards.\n\n"
          "Raises Exhausted (too many streams wait), Busy (no process writes it yet), Ended, "
          "PeerDied.")
      .def(
          "check",
          [](const Signal& s, uint64_t value) {
            return IsDone(Api().signal_check_(s.shared()->get(), value));
          },
          "value"_a,
          "Whether the signal reached `value`.\n\nRaises Ended, PeerDied: it never will.")
      .def(
          "reached",
          [](nb::object self, uint64_t value) {
            return nb::module_::import_("gpushm._aio").attr("reached")(self, value);
          },
          "value"_a, nb::sig("def reached(self, value: int) -> collections.abc.Awaitable[None]"),
          "For asyncio: `await signal.reached(5)`.\n\nRaises Ended, PeerDied.")
      .def_prop_ro(
          "device_address",
          [](const Signal& s) {
            uint64_t address = 0;
            const auto shared = s.shared();
            Check(Released([&] {
              const CurrentContext context(0);
              return Api().signal_device_address_(shared->get(), &address);
            }));
            return address;
          },
          "Where kernels find the value (gpushm/device.cuh).");
  BindLife<Signal>(signal, "def __enter__(self) -> Signal",
                   "Closes it. If the writer does, waits that are not satisfied raise "
                   "Ended.\n\nRaises Busy: streams of this process still use it.");
  client.def(
      "signal", &OpenSignal, "name"_a, nb::kw_only(), "write"_a = false, "writers"_a = "creator",
      "timeout"_a = 10.0,
      nb::sig("def signal(self, name: str, *, write: bool = False, writers: str = 'creator', "
              "timeout: float | None = 10.0) -> Signal"),
      "Opens a signal. A waiter waits until it has a writer.\n\n"
      "Raises Timeout, NotFound and Busy (timeout=0), Denied.");
}

}  // namespace gpushm::python
