// Rings and queues, and their frames.
#include <cstring>

#include "sync.h"

namespace gpushm::python {
namespace {

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

}  // namespace

void BindRings(nb::module_& module, nb::class_<Client>& client) {
  BindFrame(module);
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
  client
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
          "Takes part in a queue: as ring(), and each item goes to one worker.");
}

}  // namespace gpushm::python
