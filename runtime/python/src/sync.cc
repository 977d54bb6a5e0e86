// Signals, barriers, rings, queues and waiters, and what a process that does not take part can see
// of them.
#include "sync.h"

namespace gpushm::python {

void BindSync(nb::module_& module, nb::class_<Client>& client) {
  BindSignals(module, client);
  BindBarriers(module, client);
  BindRings(module, client);
  BindWaiters(module, client);
  nb::class_<gpushm_sync_info>(module, "SyncInfo", "State of a signal, barrier, ring or queue.")
      .def_prop_ro(
          "name", [](const gpushm_sync_info& s) { return s.name; }, "Its name.")
      .def_ro("generation", &gpushm_sync_info::generation, "Its generation.")
      .def_ro("value", &gpushm_sync_info::value,
              "Signal: its value. Ring, queue: the newest complete frame. Barrier: the last point.")
      .def_prop_ro(
          "kind",
          [](const gpushm_sync_info& s) {
            constexpr std::array<const char*, 5> kNames = {"unknown", "signal", "barrier", "ring",
                                                           "queue"};
            return s.kind < kNames.size() ? kNames[s.kind] : kNames[0];
          },
          "\"signal\", \"barrier\", \"ring\" or \"queue\".")
      .def_prop_ro(
          "state", [](const gpushm_sync_info& s) { return WriterState(s.state); },
          "Of the writer, or of who broke a barrier.")
      .def_ro("joined", &gpushm_sync_info::joined, "Participants that live.")
      .def_ro("places", &gpushm_sync_info::places, "Places for participants.");
  client.def(
      "sync_lookup",
      [](const Client& c, const std::string& name) {
        Collect();
        auto info = Sized<gpushm_sync_info>();
        const std::shared_ptr<Session> session = c.session();
        Check(Released([&] { return Api().sync_lookup_(session->get(), name.c_str(), &info); }));
        return info;
      },
      "name"_a,
      "What kind of object a name refers to, for a process that does not take part.\n\n"
      "Raises NotFound, InvalidArgument (it is a buffer).");
}

}  // namespace gpushm::python
