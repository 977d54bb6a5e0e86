// Barriers.
#include "sync.h"

namespace gpushm::python {
namespace {

nb::object OpenBarrier(const Client& client, const std::string& name, uint32_t participants,
                       Timeout timeout) {
  Collect();
  auto options = Sized<gpushm_barrier_options>();
  options.participants = participants;
  gpushm_barrier* barrier = nullptr;
  const std::shared_ptr<Session> session = client.session();
  Check(Wait(timeout, [&](int64_t timeout_ms) {
    options.timeout_ms = timeout_ms;
    return Api().barrier_open_(session->get(), name.c_str(), &options, &barrier);
  }));
  return EndsAtExit(nb::cast(Barrier(client, barrier)));
}

gpushm_barrier_info BarrierInfo(const Barrier& barrier) {
  auto info = Sized<gpushm_barrier_info>();
  Check(Api().barrier_get_info_(barrier.shared()->get(), &info));
  return info;
}

}  // namespace

void BindBarriers(nb::module_& module, nb::class_<Client>& client) {
  nb::class_<Barrier> barrier(
      module, "Barrier", nb::is_weak_referenceable(),
      "A fixed number of processes that pass points together. One that ends in any way breaks the "
      "barrier for all; then all of them close it and open it again.");
  barrier
      .def_prop_ro(
          "name", [](const Barrier& b) { return std::string(BarrierInfo(b).name); }, "Its name.")
      .def_prop_ro(
          "generation", [](const Barrier& b) { return BarrierInfo(b).generation; },
          "Each barrier after a broken one has a new generation.")
      .def_prop_ro(
          "point", [](const Barrier& b) { return BarrierInfo(b).point; },
          "Number of the last point of this participant; 0: none.")
      .def_prop_ro(
          "participants", [](const Barrier& b) { return BarrierInfo(b).participants; },
          "Number of processes that pass together.")
      .def_prop_ro(
          "joined", [](const Barrier& b) { return BarrierInfo(b).joined; },
          "Participants so far, also those that have ended.")
      .def_prop_ro(
          "rank", [](const Barrier& b) { return BarrierInfo(b).cell; },
          "The place of this participant, from 0.")
      .def(
          "wait",
          [](const Barrier& b, Timeout timeout) {
            const auto shared = b.shared();
            Check(Wait(timeout, [&](int64_t timeout_ms) {
              return Api().barrier_wait_(shared->get(), timeout_ms);
            }));
          },
          "timeout"_a = 10.0,
          "Arrives at the next point, and waits until all have arrived. After Timeout, another call "
          "waits for the same point.\n\nRaises Timeout (with who is missing), Ended, PeerDied.")
      .def(
          "wait_on_stream",
          [](const Barrier& b, const nb::object& stream) {
            const Stream parsed = ParseStream(stream);
            const auto shared = b.shared();
            Check(Released([&] {
              const CurrentContext context(0);
              return Api().barrier_wait_on_stream_(shared->get(), parsed);
            }));
          },
          "stream"_a = nb::none(),
          "`stream` arrives at the next point when its present work is done, and its later work "
          "runs when all have arrived. That work is valid only if check() returns True afterwards.")
      .def(
          "check", [](const Barrier& b) { return IsDone(Api().barrier_check_(b.shared()->get())); },
          "Whether all passed the last point of this participant.\n\nRaises Ended, PeerDied.");
  BindLife<Barrier>(barrier, "def __enter__(self) -> Barrier",
                    "Leaves the barrier, which breaks it for the others.\n\n"
                    "Raises Busy: a stream of this process still waits.");
  client.def(
      "barrier", &OpenBarrier, "name"_a, "participants"_a, nb::kw_only(), "timeout"_a = 10.0,
      nb::sig("def barrier(self, name: str, participants: int, *, timeout: float | None = 10.0) "
              "-> Barrier"),
      "Takes part in a barrier of 1 to 128 processes.\n\nRaises Timeout, InvalidArgument.");
}

}  // namespace gpushm::python
