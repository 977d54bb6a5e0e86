// What the modules of signals, barriers, rings and waiters share.
//
// Threads: as in client.h.
#pragma once

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "client.h"

namespace gpushm::python {

using namespace nanobind::literals;

// A signal, barrier or ring, shared by its Python object and by what uses it.
template <typename Object, auto kClose>
class Synced final : public Memory {
 public:
  Synced(std::shared_ptr<Session> session, Object* object)
      : session_(std::move(session)), object_(object) {}
  Object* get() const { return object_; }
  const std::shared_ptr<Session>& session() const { return session_; }
  // Closes it, unless streams of this process still work on it.
  bool Release() override { return object_ == nullptr || Close() != GPUSHM_BUSY; }
  gpushm_status Close() {
    const gpushm_status status = (Api().*kClose)(object_);
    if (status == GPUSHM_OK) object_ = nullptr;
    return status;
  }

 private:
  const std::shared_ptr<Session> session_;
  Object* object_;
};

// What the Python objects of the three kinds have in common.
template <typename Object, auto kClose>
class Handle {
 public:
  using Shared = Synced<Object, kClose>;
  Handle(const Client& client, Object* object) : shared_(Share<Shared>(client.session(), object)) {}
  const std::shared_ptr<Shared>& shared() const {
    if (shared_ == nullptr) Raise(GPUSHM_INVALID_ARGUMENT, "it is closed", "open it again");
    return shared_;
  }
  bool is_open() const { return shared_ != nullptr; }
  void Close() {
    Collect();  // Frames that were dropped.
    if (shared_ == nullptr) return;
    if (shared_.use_count() > 1) {
      throw nb::buffer_error(
          "frames or arrays of it are alive: drop them first, or leave it to "
          "them: it is closed after the last one");
    }
    const std::shared_ptr<Shared> kept = shared_;
    Check(Released([&] { return kept->Close(); }));
    shared_.reset();
  }
  void Drop() {
    shared_.reset();
    Collect();
  }

 private:
  std::shared_ptr<Shared> shared_;
};

using Signal = Handle<gpushm_signal, &Functions::signal_close_>;
using Barrier = Handle<gpushm_barrier, &Functions::barrier_close_>;

struct Type {
  uint32_t dtype = GPUSHM_DTYPE_U8;
  std::vector<uint64_t> shape{};
};

class Ring : public Handle<gpushm_ring, &Functions::ring_close_> {
 public:
  using Handle::Handle;
  std::optional<Type> type{};  // What the caller says that each frame is.
  bool writes = false;
};
class Queue final : public Ring {
 public:
  using Ring::Ring;
};

inline const char* WriterState(uint32_t state) {
  constexpr std::array<const char*, 4> kNames = {"unused", "live", "died", "ended"};
  return state < kNames.size() ? kNames[state] : "unknown";
}

// Whether a check says yes; BUSY says no.
inline bool IsDone(gpushm_status status) {
  if (status == GPUSHM_BUSY) return false;
  Check(status);
  return true;
}

class Waiting final : public Resource {
 public:
  Waiting(std::shared_ptr<Session> session, gpushm_waiter* waiter)
      : session_(std::move(session)), waiter_(waiter) {}
  gpushm_waiter* get() const { return waiter_; }
  bool Release() override {
    Api().waiter_close_(waiter_);
    return true;
  }

 private:
  const std::shared_ptr<Session> session_;
  gpushm_waiter* const waiter_;
};

class Waiter {
 public:
  explicit Waiter(const std::shared_ptr<Session>& session) {
    gpushm_waiter* waiter = nullptr;
    Check(Released([&] { return Api().waiter_open_(session->get(), &waiter); }));
    waiting_ = Share<Waiting>(session, waiter);
  }
  const std::shared_ptr<Waiting>& waiting() const {
    if (waiting_ == nullptr) {
      Raise(GPUSHM_INVALID_ARGUMENT, "the waiter is closed", "open another one");
    }
    return waiting_;
  }
  gpushm_waiter* get() const { return waiting()->get(); }
  bool is_open() const { return waiting_ != nullptr; }
  void Close() {
    waiting_.reset();
    Collect();
  }

 private:
  std::shared_ptr<Waiting> waiting_;
};

template <typename T, typename Class>
void BindLife(Class& bound, const char* enter, const char* close) {
  bound.def("close", &T::Close, close)
      .def_prop_ro(
          "closed", [](const T& t) { return !t.is_open(); }, "True after close().")
      .def(
          "_waiter", [](const T& t) { return Waiter(t.shared()->session()); },
          "A waiter of the client that opened it.")
      .def(
          "__enter__", [](nb::object self) { return self; }, nb::sig(enter))
      .def(
          "__exit__", [](T& t, nb::args) { t.Drop(); },
          nb::sig("def __exit__(self, *args: object) -> None"));
}

void BindSignals(nb::module_& module, nb::class_<Client>& client);
void BindBarriers(nb::module_& module, nb::class_<Client>& client);
void BindRings(nb::module_& module, nb::class_<Client>& client);
void BindWaiters(nb::module_& module, nb::class_<Client>& client);

}  // namespace gpushm::python
