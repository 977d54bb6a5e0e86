// Signals, barriers, rings, queues and waiters.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstring>

#include "client.h"

using namespace nanobind::literals;

namespace gpushm::python {
namespace {

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

const char* WriterState(uint32_t state) {
  constexpr std::array<const char*, 4> kNames = {"unused", "live", "died", "ended"};
  return state < kNames.size() ? kNames[state] : "unknown";
}

// Whether a check says yes; BUSY says no.
bool IsDone(gpushm_status status) {
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

// ---- signals

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

void BindSignal(nb::module_& module) {
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
}

// ---- barriers

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

void BindBarrier(nb::module_& module) {
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
}

// ---- rings and queues

// How Python tells a reader the type and the shape of a frame, in the frame's metadata.
struct TypedFrame {
  static constexpr std::array<char, 4> kMagic = {'G', 'S', 'A', '1'};
  static constexpr size_t kRank = 7;
  std::array<char, 4> magic;
  uint16_t dtype;
  uint16_t rank;
  std::array<uint64_t, kRank> shape;
};
static_assert(sizeof(TypedFrame) == GPUSHM_METADATA_BYTES);

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

// A frame between its begin and its end. Given up without an end, it is given back. It keeps its
// ring open until then, and no longer: a name in a program may well outlive the `with` block of its
// frame.
class OpenFrame final : public Resource {
 public:
  OpenFrame(std::shared_ptr<Ring::Shared> ring, bool writes)
      : ring_(std::move(ring)), writes_(writes) {}
  gpushm_frame frame = Sized<gpushm_frame>();
  Stream stream = GPUSHM_NO_STREAM;
  bool is_open = false;
  const std::shared_ptr<Ring::Shared>& ring() const { return ring_; }
  void SetEnded() {
    is_open = false;
    ring_.reset();
  }
  // The caller calls SetEnded() after success.
  gpushm_status GiveBack(Stream after) {
    return writes_ ? Api().ring_abandon_write_(ring_->get())
                   : Api().ring_abandon_read_(ring_->get(), after, &frame);
  }
  bool Release() override {
    if (!is_open) return true;
    try {
      const CurrentContext context(stream == GPUSHM_NO_STREAM ? -1 : DeviceOf(frame.address));
      return GiveBack(stream) != GPUSHM_UNSUPPORTED;  // The stream is being captured: later.
    } catch (const DriverError&) {
      return false;
    }
  }

 private:
  std::shared_ptr<Ring::Shared> ring_;
  const bool writes_;
};

// A reader's frame that ends with its last array, after the work that the streams of its users had.
class LentFrame final : public Memory {
 public:
  LentFrame(std::shared_ptr<OpenFrame> open, int device)
      : open_(std::move(open)), device_(device) {}
  bool Release() override {
    if (!open_->is_open) return true;
    const Stream end = streams().empty() ? open_->stream : streams().front();
    try {
      const CurrentContext context(end == GPUSHM_NO_STREAM ? -1 : device_);
      for (const Stream other : streams()) {
        if (other != end) OrderAfter(device_, end, other);
      }
      const gpushm_status status =
          Api().ring_end_read_(open_->ring()->get(), end, &open_->frame, GPUSHM_DONT_WAIT);
      // UNSUPPORTED: the stream is being captured.
      if (status == GPUSHM_UNSUPPORTED || status == GPUSHM_TIMEOUT) return false;
      open_->is_open = status == GPUSHM_DRIVER;  // Then the frame is given back instead.
      return true;
    } catch (const DriverError&) {
      return false;
    }
  }

 private:
  const std::shared_ptr<OpenFrame> open_;
  const int device_;
};

class Frame {
 public:
  std::shared_ptr<OpenFrame> open;
  std::optional<Type> type{};
  bool writes = false;
  int device = 0;
  bool is_described = false;  // By the writer: `type` is what it wrote.

  gpushm_frame& frame() const { return open->frame; }
  void MustBeOpen() const {
    if (open->is_open) return;
    Raise(GPUSHM_INVALID_ARGUMENT, "frame " + std::to_string(frame().number) + " has ended",
          "take the next one");
  }
  Array View() const {
    MustBeOpen();
    const uint64_t capacity = writes ? frame().capacity_bytes : frame().bytes;
    Array array{.memory = open->ring(),
                .address = frame().address,
                .dtype = GPUSHM_DTYPE_U8,
                .device = device,
                .readonly = !writes,
                .shape = {capacity}};
    if (frame().ready == GPUSHM_FRAME_READY_STREAM) array.producer = open->stream;
    if (!type) return array;
    array.dtype = type->dtype;
    array.shape = type->shape;
    if (array.bytes() <= capacity) return array;
    Raise(GPUSHM_CORRUPT,
          "frame " + std::to_string(frame().number) + " has " + std::to_string(capacity) +
              " bytes, and its type and shape need " + std::to_string(array.bytes()),
          "check the dtype and shape that the writer uses");
  }
};

std::optional<Type> ReadType(const gpushm_frame& frame) {
  TypedFrame typed;
  std::memcpy(&typed, frame.metadata, sizeof typed);
  if (typed.magic != TypedFrame::kMagic || typed.rank > TypedFrame::kRank) return {};
  return Type{typed.dtype, {typed.shape.begin(), typed.shape.begin() + typed.rank}};
}

Frame Begin(const Ring& ring, Stream stream, Timeout timeout, bool newest) {
  Collect();
  const auto shared = ring.shared();
  Frame frame{
      .open = Share<OpenFrame>(shared, ring.writes), .type = ring.type, .writes = ring.writes};
  frame.open->stream = stream;
  Check(Wait(timeout, [&](int64_t timeout_ms) {
    gpushm_frame* const out = &frame.open->frame;
    if (ring.writes) return Api().ring_begin_write_(shared->get(), out, timeout_ms);
    const CurrentContext context(stream == GPUSHM_NO_STREAM ? -1 : 0);
    const auto begin = newest ? Api().ring_begin_read_newest_ : Api().ring_begin_read_;
    return begin(shared->get(), stream, out, timeout_ms);
  }));
  frame.open->is_open = true;
  frame.device = DeviceOf(frame.frame().address);
  if (!ring.writes && !frame.type) frame.type = ReadType(frame.frame());
  if (ring.writes)
    frame.frame().bytes = frame.type ? frame.View().bytes() : frame.frame().capacity_bytes;
  return frame;
}

void End(const Frame& frame, const nb::object& stream, Timeout timeout) {
  frame.MustBeOpen();
  const std::shared_ptr<OpenFrame> open = frame.open;
  const Stream parsed = stream.is_none() && !frame.writes ? open->stream : ParseStream(stream);
  const int context_device = parsed == GPUSHM_NO_STREAM ? -1 : frame.device;
  gpushm_status status;
  if (frame.writes) {
    status = Released([&] {
      const CurrentContext context(context_device);
      return Api().ring_end_write_(open->ring()->get(), &open->frame, parsed);
    });
    if (status == GPUSHM_OK) open->SetEnded();
  } else {
    status = Wait(timeout, [&](int64_t timeout_ms) {
      const CurrentContext context(context_device);
      return Api().ring_end_read_(open->ring()->get(), parsed, &open->frame, timeout_ms);
    });
    // After these the frame has ended, too (sync.h).
    if (status == GPUSHM_OK || status == GPUSHM_ENDED || status == GPUSHM_PEER_DIED ||
        status == GPUSHM_ORPHANED) {
      open->SetEnded();
    }
  }
  Check(status);
}

void GiveBack(const Frame& frame, const nb::object& stream) {
  if (!frame.open->is_open) return;
  const std::shared_ptr<OpenFrame> open = frame.open;
  const Stream parsed = stream.is_none() ? open->stream : ParseStream(stream);
  Check(Released([&] {
    const CurrentContext context(parsed == GPUSHM_NO_STREAM ? -1 : frame.device);
    return open->GiveBack(parsed);
  }));
  open->SetEnded();
}

void ExitFrame(const Frame& frame, const nb::object& type) {
  if (!frame.open->is_open) return;
  if (type.is_none()) {
    End(frame, nb::none(), 10.0);
  } else {
    GiveBack(frame, nb::none());
  }
}

void Describe(Frame& frame, const std::string& dtype, std::vector<uint64_t> shape) {
  frame.MustBeOpen();
  if (shape.size() > TypedFrame::kRank) {
    throw nb::value_error(
        "a described frame has at most 7 dimensions: flatten some, or pass metadata");
  }
  TypedFrame typed{.magic = TypedFrame::kMagic,
                   .dtype = static_cast<uint16_t>(ParseDType(dtype)),
                   .rank = static_cast<uint16_t>(shape.size()),
                   .shape = {}};
  std::copy(shape.begin(), shape.end(), typed.shape.begin());
  const uint64_t bytes = DTypeBytes(typed.dtype, shape);
  if (bytes > frame.frame().capacity_bytes) {
    throw nb::value_error(("the array has " + std::to_string(bytes) +
                           " bytes, and a frame of this "
                           "ring has " +
                           std::to_string(frame.frame().capacity_bytes))
                              .c_str());
  }
  std::memcpy(frame.frame().metadata, &typed, sizeof typed);
  frame.type = Type{typed.dtype, std::move(shape)};
  frame.frame().bytes = bytes;
}

void SetMetadata(Frame& frame, nb::bytes metadata) {
  if (metadata.size() > GPUSHM_METADATA_BYTES) {
    throw nb::value_error("metadata has at most 64 bytes");
  }
  std::memset(frame.frame().metadata, 0, GPUSHM_METADATA_BYTES);
  std::memcpy(frame.frame().metadata, metadata.data(), metadata.size());
}

gpushm_ring_info RingInfo(const Ring& ring) {
  auto info = Sized<gpushm_ring_info>();
  Check(Api().ring_get_info_(ring.shared()->get(), &info));
  return info;
}

template <typename Kind>
nb::object OpenRing(const Client& client, const std::string& name, gpushm_ring_options options,
                    const nb::object& dtype, const nb::object& shape, Timeout timeout) {
  Collect();
  std::optional<Type> type;
  if (!dtype.is_none() || !shape.is_none()) {
    if (dtype.is_none() || shape.is_none())
      throw nb::value_error("give both dtype and shape, or none");
    type = Type{ParseDType(nb::cast<std::string>(dtype)), nb::cast<std::vector<uint64_t>>(shape)};
    if (options.role == GPUSHM_RING_WRITER && options.frame_bytes == 0) {
      options.frame_bytes = DTypeBytes(type->dtype, type->shape);
    }
  }
  gpushm_ring* ring = nullptr;
  const std::shared_ptr<Session> session = client.session();
  Check(Wait(timeout, [&](int64_t timeout_ms) {
    options.timeout_ms = timeout_ms;
    return Api().ring_open_(session->get(), name.c_str(), &options, &ring);
  }));
  Kind kind(client, ring);
  kind.type = std::move(type);
  kind.writes = options.role == GPUSHM_RING_WRITER;
  return EndsAtExit(nb::cast(std::move(kind)));
}

gpushm_ring_options RingOptions(bool write, uint32_t policy, uint32_t frames, uint64_t nbytes,
                                uint32_t readers, bool keep, uint32_t gpu) {
  auto options = Sized<gpushm_ring_options>();
  options.role = write ? GPUSHM_RING_WRITER : GPUSHM_RING_READER;
  options.gpu = gpu;
  if (!write) return options;
  options.policy = policy;
  options.frames = frames;
  options.frame_bytes = nbytes;
  options.readers = readers;
  options.keep = keep ? 1 : 0;
  return options;
}

void BindFrame(nb::module_& module) {
  nb::class_<Frame> type(
      module, "Frame",
      "A frame of a ring or an item of a queue, between its begin and its end.\n\n"
      "Frameworks take it as an array, of the type and shape that its writer put, or "
      "that the ring was opened with. At the end of a `with` block it is ended; if "
      "the block raises, it is given back instead. After its end the bytes may change.");
  type.def_prop_ro(
          "number", [](const Frame& f) { return f.frame().number; },
          "From 1, in each generation of the ring.")
      .def_prop_ro(
          "lost", [](const Frame& f) { return f.frame().lost; },
          "Frames between the last one of this reader and this one.")
      .def_prop_ro(
          "delivery", [](const Frame& f) { return f.frame().delivery; },
          "Queue: how often a worker got it, including this time.")
      .def_prop_ro(
          "time_ns", [](const Frame& f) { return f.frame().time_ns; },
          "time.monotonic_ns() when its write ended.")
      .def_prop_rw(
          "metadata",
          [](const Frame& f) {
            return nb::bytes(reinterpret_cast<const char*>(f.frame().metadata),
                             GPUSHM_METADATA_BYTES);
          },
          &SetMetadata,
          "64 bytes from the writer, who sets it before end(). describe() and put() use them for "
          "the type and shape.")
      .def_prop_rw(
          "nbytes", [](const Frame& f) { return f.frame().bytes; },
          [](Frame& f, uint64_t bytes) { f.frame().bytes = bytes; },
          "Bytes in use; a writer may set it before end().")
      .def_prop_ro(
          "capacity_nbytes", [](const Frame& f) { return f.frame().capacity_bytes; },
          "Bytes available.")
      .def_prop_ro(
          "ptr", [](const Frame& f) { return f.frame().address; }, "Device address.")
      .def_prop_ro(
          "device", [](const Frame& f) { return f.device; },
          "Ordinal, in this process, of its GPU.")
      .def_prop_ro(
          "open", [](const Frame& f) { return f.open->is_open; },
          "False after end() or give_back().")
      .def_prop_ro(
          "array", &Frame::View,
          "The frame as an array.\n\nRaises InvalidArgument after its end, Corrupt if it is "
          "smaller than its type and shape say.")
      .def("describe", &Describe, "dtype"_a, "shape"_a,
           "Writer: says what the frame is. Readers then get an array of that type and shape.")
      .def("end", &End, "stream"_a = nb::none(), "timeout"_a = 10.0,
           nb::sig("def end(self, stream: object = None, timeout: float | None = 10.0) -> None"),
           "Ends the frame when the work that is on `stream` now is done. A writer's is then "
           "complete. A reader's is released; the call waits until it was complete. The default "
           "stream of a reader is that of read().\n\n"
           "Raises Ended, PeerDied, Orphaned (what was read is not valid), Timeout (call again).")
      .def("give_back", &GiveBack, "stream"_a = nb::none(),
           nb::sig("def give_back(self, stream: object = None) -> None"),
           "Gives up the frame. No reader sees a writer's. An item of a queue goes to the next "
           "worker, with a higher `delivery`.")
      .def(
          "numpy", [](const Frame& f) { return nb::cast(f.View()).attr("numpy")(); },
          nb::sig("def numpy(self) -> numpy.ndarray"), "Copies the frame to the host.")
      .def(
          "_lend",
          [](const Frame& f) {
            Array array = f.View();
            array.memory = Share<LentFrame>(f.open, f.device);
            return array;
          },
          "Reader: the frame as an array, with whose end it ends. Do not end it otherwise.")
      .def(
          "_copy_from",
          [](const Frame& f, uint64_t address, uint64_t bytes, const nb::object& stream) {
            const Stream parsed = ParseStream(stream);
            if (bytes > f.frame().capacity_bytes) throw nb::index_error("the frame is smaller");
            const std::shared_ptr<OpenFrame> kept = f.open;
            Released([&] {
              const bool host = parsed == GPUSHM_NO_STREAM;
              CopyOnDevice(f.device, f.frame().address, address, bytes,
                           host ? kLegacyStream : parsed);
              if (host) Synchronize(f.device, kLegacyStream);
            });
          },
          "address"_a, "nbytes"_a, "stream"_a.none(), "Copies device memory into the frame.")
      .def(
          "write",
          [](const Frame& f, nb::object source) {
            f.MustBeOpen();
            if (!f.writes)
              Raise(GPUSHM_DENIED, "this frame is open for reading",
                    "only the writer of the ring writes");
            Py_buffer view;
            if (PyObject_GetBuffer(source.ptr(), &view, PyBUF_C_CONTIGUOUS) != 0)
              throw nb::python_error();
            const struct Guard {
              Py_buffer* view;
              ~Guard() { PyBuffer_Release(view); }
            } guard{&view};
            const auto bytes = static_cast<uint64_t>(view.len);
            if (bytes > f.frame().capacity_bytes) {
              throw nb::value_error((std::to_string(bytes) + " bytes do not fit in a frame of " +
                                     std::to_string(f.frame().capacity_bytes))
                                        .c_str());
            }
            const std::shared_ptr<OpenFrame> kept = f.open;
            if (bytes != 0) {
              Released(
                  [&] { CopyToDevice(f.device, f.frame().address, view.buf, bytes, nullptr); });
            }
            f.frame().bytes = bytes;
          },
          "data"_a,
          "Copies contiguous host memory into the frame, waits for the copy, and sets nbytes.")
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> Frame"))
      .def(
          "__exit__",
          [](const Frame& f, nb::object type, nb::object, nb::object) { ExitFrame(f, type); },
          "type"_a.none(), "value"_a.none(), "traceback"_a.none())
      .def("__repr__", [](const Frame& f) {
        return nb::str("<gpushm.Frame {} of {} bytes{}>")
            .format(f.frame().number, f.frame().bytes, f.open->is_open ? "" : ", ended");
      });
  BindAsArray(
      &type, [](const Frame& f) { return f.View(); }, [](const Frame& f) { return f.device; },
      "See Array.__dlpack__. Work of `stream` runs when the frame is complete.", "See Array.");
}

void BindRing(nb::module_& module) {
  nb::class_<Ring> ring(
      module, "Ring", nb::is_weak_referenceable(),
      "Passes frames from one writer to any number of readers, without a copy by readers.\n\n"
      "`for frame in ring` and `async for frame in ring` yield frames until the writer ends, and end "
      "each one when the next is taken; if the body raises, the frame is given back. Any thread may "
      "use it.");
  ring.def_prop_ro(
          "name", [](const Ring& r) { return std::string(RingInfo(r).name); }, "Its name.")
      .def_prop_ro(
          "generation", [](const Ring& r) { return RingInfo(r).generation; },
          "Each writer makes a new generation.")
      .def_prop_ro(
          "frames", [](const Ring& r) { return RingInfo(r).frames; }, "Number of slots.")
      .def_prop_ro(
          "frame_nbytes", [](const Ring& r) { return RingInfo(r).frame_bytes; },
          "Maximum size of a frame in bytes.")
      .def_prop_ro(
          "policy",
          [](const Ring& r) {
            constexpr std::array<const char*, 3> kNames = {"latest", "block", "queue"};
            const uint32_t policy = RingInfo(r).policy;
            return policy < kNames.size() ? kNames[policy] : "unknown";
          },
          "\"latest\", \"block\" or \"queue\".")
      .def_prop_ro(
          "newest", [](const Ring& r) { return RingInfo(r).newest; },
          "Number of the newest frame; 0: none yet.")
      .def_prop_ro(
          "dropped", [](const Ring& r) { return RingInfo(r).dropped; },
          "Frames that the writer dropped.")
      .def_prop_ro(
          "taken", [](const Ring& r) { return RingInfo(r).taken; }, "Frames that this reader got.")
      .def_prop_ro(
          "lost", [](const Ring& r) { return RingInfo(r).lost; }, "Frames that this reader lost.")
      .def_prop_ro(
          "writer_state", [](const Ring& r) { return WriterState(RingInfo(r).writer_state); },
          "\"unused\" (none yet), \"live\", \"died\" or \"ended\".")
      .def(
          "begin",
          [](const Ring& r, Timeout timeout) {
            if (!r.writes)
              Raise(GPUSHM_INVALID_ARGUMENT, "this ring is open for reading",
                    "open it with write=True");
            return Begin(r, GPUSHM_NO_STREAM, timeout, false);
          },
          "timeout"_a = 10.0,
          "Writer: a slot for the next frame.\n\n"
          "Raises Busy (policy \"latest\": readers hold all slots; the frame is dropped), Timeout "
          "(otherwise, with the slowest reader), Orphaned.")
      .def(
          "put",
          [](nb::object self, nb::object array, nb::object metadata, nb::object stream,
             nb::object timeout) {
            nb::module_::import_("gpushm._ring")
                .attr("put")(self, array, metadata, stream, timeout);
          },
          "array"_a, "metadata"_a = nb::none(), "stream"_a = nb::none(), "timeout"_a = 10.0,
          nb::sig(
              "def put(self, array: object, metadata: bytes | None = None, stream: object = None, "
              "timeout: float | None = 10.0) -> None"),
          "Writer: copies an array into the next frame, with its type and shape. A tensor of the "
          "GPU is copied on `stream` (None: PyTorch's or CuPy's present one), without waiting. With "
          "`metadata` (64 bytes), the type and shape are not sent.\n\nRaises as begin().")
      .def(
          "read",
          [](const Ring& r, const nb::object& stream, Timeout timeout, bool newest) {
            if (r.writes)
              Raise(GPUSHM_INVALID_ARGUMENT, "this ring is open for writing",
                    "use begin() or put()");
            return Begin(r, ParseStream(stream), timeout, newest);
          },
          "stream"_a = nb::none(), "timeout"_a = 10.0, "newest"_a = false,
          nb::sig(
              "def read(self, stream: object = None, timeout: float | None = 10.0, newest: bool = "
              "False) -> Frame"),
          "Reader: the next frame, or the newest. Later work on `stream` runs when it is complete; "
          "with gpushm.HOST the call waits for that. A reader may have eight frames open.\n\n"
          "Raises Timeout, Ended and PeerDied (nothing more comes), Exhausted, Orphaned.")
      .def(
          "__iter__",
          [](nb::object self) { return nb::module_::import_("gpushm._ring").attr("frames")(self); },
          nb::sig("def __iter__(self) -> collections.abc.Iterator[Frame]"))
      .def(
          "__aiter__",
          [](nb::object self) { return nb::module_::import_("gpushm._aio").attr("frames")(self); },
          nb::sig("def __aiter__(self) -> collections.abc.AsyncIterator[Frame]"));
  BindLife<Ring>(ring, "def __enter__(self) -> Ring",
                 "Leaves the ring. If the writer does, readers get the complete frames, then "
                 "Ended.\n\nRaises BufferError while frames or arrays of it live, Busy while "
                 "streams of this process work on it.");
  nb::class_<Queue, Ring>(
      module, "Queue",
      "A ring whose frames each go to one reader, a worker. If that worker dies, "
      "raises in a `with` block or calls Frame.give_back(), another one gets the "
      "item.");
}

// ---- waiters

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

void BindWaiter(nb::module_& module) {
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
}

void BindClientPart(nb::class_<Client>& client) {
  client
      .def("signal", &OpenSignal, "name"_a, nb::kw_only(), "write"_a = false,
           "writers"_a = "creator", "timeout"_a = 10.0,
           nb::sig("def signal(self, name: str, *, write: bool = False, writers: str = 'creator', "
                   "timeout: float | None = 10.0) -> Signal"),
           "Opens a signal. A waiter waits until it has a writer.\n\n"
           "Raises Timeout, NotFound and Busy (timeout=0), Denied.")
      .def("barrier", &OpenBarrier, "name"_a, "participants"_a, nb::kw_only(), "timeout"_a = 10.0,
           nb::sig(
               "def barrier(self, name: str, participants: int, *, timeout: float | None = 10.0) "
               "-> Barrier"),
           "Takes part in a barrier of 1 to 128 processes.\n\nRaises Timeout, InvalidArgument.")
      .def(
          "ring",
          [](const Client& c, const std::string& name, bool write, uint32_t frames, uint64_t nbytes,
             const std::string& policy, uint32_t readers, uint32_t start_readers,
             uint32_t need_readers, bool from_oldest, bool keep, uint32_t gpu,
             const nb::object& dtype, const nb::object& shape, Timeout timeout) {
            gpushm_ring_options options =
                RingOptions(write, Choice("policy", policy, {"latest", "block"}), frames, nbytes,
                            readers, keep, gpu);
            if (write) {
              options.start_readers = start_readers;
              options.need_readers = need_readers;
            }
            options.from_oldest = from_oldest ? 1 : 0;
            return OpenRing<Ring>(c, name, options, dtype, shape, timeout);
          },
          "name"_a, nb::kw_only(), "write"_a = false, "frames"_a = 8, "nbytes"_a = 0,
          "policy"_a = "latest", "readers"_a = 0, "start_readers"_a = 0, "need_readers"_a = 0,
          "from_oldest"_a = false, "keep"_a = false, "gpu"_a = 0, "dtype"_a = nb::none(),
          "shape"_a = nb::none(), "timeout"_a = 10.0,
          nb::sig(
              "def ring(self, name: str, *, write: bool = False, frames: int = 8, nbytes: int = 0, "
              "policy: str = 'latest', readers: int = 0, start_readers: int = 0, need_readers: "
              "int = 0, from_oldest: bool = False, keep: bool = False, gpu: int = 0, dtype: str | None = "
              "None, "
              "shape: collections.abc.Sequence[int] | None = None, timeout: float | None = 10.0) -> Ring"),
          "Takes part in a ring; a reader waits until it has a writer.\n\n"
          "A writer makes it: `frames` slots of `nbytes` bytes (or as many as `dtype` and `shape` "
          "need). `policy`: \"latest\" overwrites the oldest frame, \"block\" waits for the slowest "
          "reader. `readers`: the maximum at a time (0: 15). `start_readers`: the first frame waits "
          "for that many; `need_readers`: every frame does. `keep`: the memory stays when no process "
          "has the ring open. `gpu`: the number of the pod's GPU that holds the frames. A reader: `from_oldest` begins with the oldest frame; `dtype` and "
          "`shape` say what frames are, if the writer does not.\n\n"
          "Raises Timeout, Exhausted, Denied, InvalidArgument.")
      .def(
          "queue",
          [](const Client& c, const std::string& name, bool write, uint32_t frames, uint64_t nbytes,
             uint32_t workers, bool keep, uint32_t gpu, const nb::object& dtype,
             const nb::object& shape, Timeout timeout) {
            return OpenRing<Queue>(
                c, name, RingOptions(write, GPUSHM_RING_QUEUE, frames, nbytes, workers, keep, gpu),
                dtype, shape, timeout);
          },
          "name"_a, nb::kw_only(), "write"_a = false, "frames"_a = 8, "nbytes"_a = 0,
          "workers"_a = 0, "keep"_a = false, "gpu"_a = 0, "dtype"_a = nb::none(),
          "shape"_a = nb::none(), "timeout"_a = 10.0,
          nb::sig(
              "def queue(self, name: str, *, write: bool = False, frames: int = 8, nbytes: int = "
              "0, workers: int = 0, keep: bool = False, gpu: int = 0, dtype: str | None = None, shape: "
              "collections.abc.Sequence[int] | None = None, timeout: float | None = 10.0) -> Queue"),
          "Takes part in a queue: as ring(), and each item goes to one worker.")
      .def(
          "waiter", [](const Client& c) { return Waiter(c.session()); },
          "Opens a waiter for names, rings and signals.")
      .def(
          "sync_lookup",
          [](const Client& c, const std::string& name) {
            Collect();
            auto info = Sized<gpushm_sync_info>();
            const std::shared_ptr<Session> session = c.session();
            Check(
                Released([&] { return Api().sync_lookup_(session->get(), name.c_str(), &info); }));
            return info;
          },
          "name"_a,
          "What kind of object a name refers to, for a process that does not take part.\n\n"
          "Raises NotFound, InvalidArgument (it is a buffer).");
}

}  // namespace

void BindSync(nb::module_& module, nb::class_<Client>& client) {
  BindSignal(module);
  BindBarrier(module);
  BindFrame(module);
  BindRing(module);
  BindWaiter(module);
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
  BindClientPart(client);
}

}  // namespace gpushm::python
