#include "client.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstring>

using namespace nanobind::literals;

namespace gpushm::python {
namespace {

const char* TransportName(uint32_t transport) {
  constexpr std::array<const char*, 4> kNames = {"unknown", "vmm", "cuipc", "host"};
  return transport < kNames.size() ? kNames[transport] : kNames[0];
}

const char* StateName(uint32_t state) {
  constexpr std::array<const char*, 5> kNames = {"deleted", "loading", "ready", "writer-died",
                                                 "failed"};
  return state < kNames.size() ? kNames[state] : "unknown";
}

const char* AccessName(uint32_t access) {
  return access == GPUSHM_ACCESS_READ_WRITE ? "read-write" : "read";
}

// A path or text of Python's, or nothing. The text lives as long as the object.
class Text {
 public:
  explicit Text(const nb::object& object) {
    if (!object.is_none())
      text_ = nb::cast<std::string>(nb::module_::import_("os").attr("fspath")(object));
    given_ = !object.is_none();
  }
  const char* get() const { return given_ ? text_.c_str() : nullptr; }

 private:
  std::string text_;
  bool given_ = false;
};

// ---- buffers

nb::bytes ReadBytes(const Buffer& buffer, uint64_t offset, std::optional<uint64_t> size) {
  const gpushm_attachment_info info = buffer.info();
  if (offset > info.size_bytes || (size && *size > info.size_bytes - offset)) {
    throw nb::index_error("the range ends outside of the buffer");
  }
  const uint64_t bytes = size ? *size : info.size_bytes - offset;
  nb::bytes result =
      nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes)));
  if (!result.is_valid()) throw nb::python_error();
  if (bytes == 0) return result;
  char* const target = PyBytes_AsString(result.ptr());
  const std::shared_ptr<Mapping> kept = buffer.mapping();
  Released([&] { CopyToHost(info.device, target, info.address + offset, bytes, nullptr); });
  return result;
}

// Copies what `source` has (host memory of the buffer protocol, or device memory of `address`).
void WriteBytes(const Buffer& buffer, const nb::object& source, uint64_t offset) {
  const gpushm_attachment_info info = buffer.info();
  if (info.access != GPUSHM_ACCESS_READ_WRITE) {
    Raise(GPUSHM_DENIED, "buffer \"" + buffer.name() + "\" is attached for reading",
          "attach it with write=True");
  }
  Py_buffer view;
  if (PyObject_GetBuffer(source.ptr(), &view, PyBUF_C_CONTIGUOUS) != 0) throw nb::python_error();
  const struct Guard {
    Py_buffer* view;
    ~Guard() { PyBuffer_Release(view); }
  } guard{&view};
  const auto bytes = static_cast<uint64_t>(view.len);
  if (offset > info.size_bytes || bytes > info.size_bytes - offset) {
    throw nb::index_error(("offset " + std::to_string(offset) + " and " + std::to_string(bytes) +
                           " bytes end outside of the buffer of " + std::to_string(info.size_bytes))
                              .c_str());
  }
  if (bytes == 0) return;
  const std::shared_ptr<Mapping> kept = buffer.mapping();
  Released([&] { CopyToDevice(info.device, info.address + offset, view.buf, bytes, nullptr); });
}

void CopyFromDevice(const Buffer& buffer, uint64_t address, uint64_t bytes, uint64_t offset,
                    const nb::object& stream) {
  const gpushm_attachment_info info = buffer.info();
  if (offset > info.size_bytes || bytes > info.size_bytes - offset) {
    throw nb::index_error("the range ends outside of the buffer");
  }
  const Stream parsed = ParseStream(stream);
  const std::shared_ptr<Mapping> kept = buffer.mapping();
  Released([&] {
    const bool host = parsed == GPUSHM_NO_STREAM;
    CopyOnDevice(info.device, info.address + offset, address, bytes, host ? kLegacyStream : parsed);
    if (host) Synchronize(info.device, kLegacyStream);
  });
  if (parsed != GPUSHM_NO_STREAM) kept->UsedOn(parsed);
}

std::string CheckBuffer(const Buffer& buffer) {
  const gpushm_status status = Api().attachment_check_(buffer.get());
  switch (status) {
    case GPUSHM_OK:
      return "current";
    case GPUSHM_STALE:
      return "stale";
    case GPUSHM_ORPHANED:
      return "orphaned";
    case GPUSHM_DEVICE_LOST:
      return "lost";
    default:
      RaiseLast(status);
  }
}

nb::object Finish(gpushm_attachment* attachment, const Client& client, const std::string& name,
                  bool ends_at_exit) {
  nb::object buffer = nb::cast(Buffer(Share<Mapping>(client.session(), attachment), name));
  return ends_at_exit ? EndsAtExit(buffer) : buffer;
}

nb::object Attach(const Client& client, const std::string& name, bool write, uint64_t generation,
                  Timeout timeout, const nb::object& peers, bool stage) {
  auto options = Sized<gpushm_attach_options>();
  options.access = write ? GPUSHM_ACCESS_READ_WRITE : GPUSHM_ACCESS_READ;
  options.generation = generation;
  options.stage = stage ? 1 : 0;
  for (const nb::handle peer : peers) {
    const auto ordinal = nb::cast<uint32_t>(peer);
    if (ordinal >= 64) throw nb::value_error("invalid peer: the ordinal of a GPU is below 64");
    options.peer_devices |= uint64_t{1} << ordinal;
  }
  gpushm_attachment* attachment = nullptr;
  const std::shared_ptr<Session> session = client.session();
  const auto attach = [&](int64_t timeout_ms) {
    CollectReleased();
    options.timeout_ms = timeout_ms;
    return Api().attach_(session->get(), name.c_str(), &options, &attachment);
  };
  gpushm_status status = Wait(timeout, attach);
  auto info = Sized<gpushm_info>();
  if (status == GPUSHM_UNSUPPORTED &&
      Api().lookup_(session->get(), name.c_str(), &info) == GPUSHM_OK &&
      info.transport == GPUSHM_TRANSPORT_CUIPC) {  // It needs a context, and no other memory does.
    status = Wait(timeout, [&](int64_t timeout_ms) {
      const CurrentContext context(DeviceWithUuid(info.gpu_uuid));
      return attach(timeout_ms);
    });
  }
  Check(status);
  return Finish(attachment, client, name, write);
}

struct Making {
  std::string writers = "creator";
  bool one_writer = false;
  std::string on_writer_exit = "mark";
  bool publish = true;
  bool replace = false;
  uint32_t gpu = 0;
};

gpushm_create_options CreateOptions(const Making& making, Timeout timeout) {
  auto options = Sized<gpushm_create_options>();
  options.writers = Choice("writers", making.writers, {"creator", "all"});
  options.one_writer = making.one_writer ? 1 : 0;
  options.on_writer_exit =
      Choice("on_writer_exit", making.on_writer_exit, {"mark", "keep", "drop"});
  options.unpublished = making.publish ? 0 : 1;
  options.exist = making.replace ? GPUSHM_EXIST_REPLACE : GPUSHM_EXIST_FAIL;
  options.timeout_ms = Milliseconds(timeout);
  options.gpu = making.gpu;
  return options;
}

nb::object Create(const Client& client, const std::string& name, uint64_t nbytes,
                  const Making& making, Timeout timeout) {
  Collect();
  const gpushm_create_options options = CreateOptions(making, timeout);
  gpushm_attachment* attachment = nullptr;
  const std::shared_ptr<Session> session = client.session();
  Check(Released(
      [&] { return Api().create_(session->get(), name.c_str(), nbytes, &options, &attachment); }));
  return Finish(attachment, client, name, true);
}

nb::object Replace(const Client& client, const std::string& name, std::optional<uint64_t> nbytes,
                   bool publish, Timeout timeout) {
  Collect();
  Making making;
  making.publish = publish;
  const gpushm_create_options options = CreateOptions(making, timeout);
  gpushm_attachment* attachment = nullptr;
  const std::shared_ptr<Session> session = client.session();
  Check(Released([&] {
    return Api().replace_(session->get(), name.c_str(), nbytes.value_or(0), &options, &attachment);
  }));
  return Finish(attachment, client, name, true);
}

// ---- names

template <typename Entry, typename Fill>
std::vector<Entry> All(Fill&& fill) {
  std::vector<Entry> entries(64, Sized<Entry>());
  for (;;) {
    size_t count = 0;
    Check(Released([&] { return fill(entries.data(), entries.size(), &count); }));
    const bool complete = count <= entries.size();
    entries.resize(count, Sized<Entry>());
    if (complete) return entries;
  }
}

std::vector<gpushm_info> List(const Client& client) {
  Collect();
  const std::shared_ptr<Session> session = client.session();
  return All<gpushm_info>([&](gpushm_info* infos, size_t capacity, size_t* count) {
    return Api().list_(session->get(), infos, capacity, count);
  });
}

std::vector<gpushm_holder> Holders(const Client& client, const nb::object& name) {
  Collect();
  const Text text(name);
  const std::shared_ptr<Session> session = client.session();
  return All<gpushm_holder>([&](gpushm_holder* holders, size_t capacity, size_t* count) {
    return Api().list_holders_(session->get(), text.get(), holders, capacity, count);
  });
}

std::vector<gpushm_gpu_info> Gpus(const Client& client) {
  Collect();
  const std::shared_ptr<Session> session = client.session();
  return All<gpushm_gpu_info>([&](gpushm_gpu_info* infos, size_t capacity, size_t* count) {
    return Api().list_gpus_(session->get(), infos, capacity, count);
  });
}

gpushm_info WaitFor(const Client& client, const std::string& name, uint64_t newer_than,
                    Timeout timeout) {
  Collect();
  auto info = Sized<gpushm_info>();
  auto options = Sized<gpushm_wait_options>();
  const std::shared_ptr<Session> session = client.session();
  Check(Wait(timeout, [&](int64_t timeout_ms) {
    options.timeout_ms = timeout_ms;
    return Api().wait_(session->get(), name.c_str(), newer_than == 0 ? 0 : newer_than + 1, &options,
                       &info);
  }));
  return info;
}

// ---- files

struct Progress {
  nb::object callback;
  bool raised = false;
};

int ReportProgress(void* user, uint64_t done_bytes, uint64_t total_bytes) {
  const nb::gil_scoped_acquire acquired;
  auto* const progress = static_cast<Progress*>(user);
  try {
    if (!progress->callback.is_none()) progress->callback(done_bytes, total_bytes);
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    return 0;
  } catch (nb::python_error& error) {
    error.restore();  // For the caller of the transfer, in this thread.
    progress->raised = true;
    return 1;
  }
}

// The default of a transfer's timeout: that of libgpushm.
constexpr double kTransferSeconds = 600;

// What a load has besides what a save has.
struct Loading {
  uint32_t threads = 0;
  uint64_t nbytes = 0;
  std::optional<std::string> digest{};
};

// `call(path, options, result)`: without the GIL.
template <typename Call>
gpushm_transfer_result Transfer(const nb::object& file, const std::string& format,
                                const Loading& loading, bool whole, const nb::object& progress,
                                Timeout timeout, Call&& call) {
  Collect();
  auto options = Sized<gpushm_transfer_options>();
  auto result = Sized<gpushm_transfer_result>();
  Progress state{progress};
  options.format = Choice("format", format, {"auto", "raw", "tensors"});
  options.threads = loading.threads;
  options.bytes = loading.nbytes;
  options.whole = whole ? 1 : 0;
  options.progress = ReportProgress;
  options.user = &state;
  options.timeout_ms = timeout == kTransferSeconds ? 0 : Milliseconds(timeout);
  if (loading.digest) options.digest = loading.digest->c_str();
  const bool is_descriptor = nb::isinstance<nb::int_>(file);
  if (is_descriptor) options.descriptor = nb::cast<int>(file);
  const Text path(is_descriptor ? nb::object(nb::none()) : file);
  const gpushm_status status = Released([&] { return call(path.get(), &options, &result); });
  if (state.raised) throw nb::python_error();
  Check(status);
  return result;
}

gpushm_transfer_result TransferNamed(decltype(&::gpushm_load) call, const Client& client,
                                     const std::string& name, const nb::object& file,
                                     const std::string& format, const Loading& loading, bool whole,
                                     const nb::object& progress, Timeout timeout) {
  const std::shared_ptr<Session> session = client.session();
  return Transfer(file, format, loading, whole, progress, timeout,
                  [&](const char* path, const gpushm_transfer_options* options,
                      gpushm_transfer_result* result) {
                    return call(session->get(), name.c_str(), path, options, result);
                  });
}

gpushm_transfer_result TransferAttached(decltype(&::gpushm_attachment_load) call,
                                        const Buffer& buffer, const nb::object& file,
                                        const std::string& format, const Loading& loading,
                                        bool whole, const nb::object& progress, Timeout timeout) {
  const std::shared_ptr<Mapping> mapping = buffer.mapping();
  gpushm_attachment* const attachment = buffer.get();
  return Transfer(
      file, format, loading, whole, progress, timeout,
      [&](const char* path, const gpushm_transfer_options* options,
          gpushm_transfer_result* result) { return call(attachment, path, options, result); });
}

gpushm_offer_result Offer(const Client& client, const std::string& name, uint64_t address,
                          uint64_t nbytes, const std::string& writers, bool one_writer,
                          const std::string& on_writer_exit, bool allow_copy,
                          const nb::object& stream, int device, Timeout timeout) {
  Collect();
  auto options = Sized<gpushm_offer_options>();
  auto result = Sized<gpushm_offer_result>();
  options.writers = Choice("writers", writers, {"creator", "all"});
  options.one_writer = one_writer ? 1 : 0;
  options.on_writer_exit = Choice("on_writer_exit", on_writer_exit, {"mark", "keep", "drop"});
  options.allow_copy = allow_copy ? 1 : 0;
  options.timeout_ms = Milliseconds(timeout);
  const Stream parsed = ParseStream(stream);
  options.stream = parsed == GPUSHM_NO_STREAM ? nullptr : parsed;
  const std::shared_ptr<Session> session = client.session();
  Check(Released([&] {
    const CurrentContext context(device);
    return Api().offer_(session->get(), name.c_str(), address, nbytes, &options, &result);
  }));
  return result;
}

void BindInfos(nb::module_& module) {
  nb::class_<gpushm_info>(module, "Info", "What is known about a buffer by its name.")
      .def_prop_ro(
          "name", [](const gpushm_info& i) { return i.name; }, "Its name.")
      .def_ro("generation", &gpushm_info::generation, "Increases when the name gets other memory.")
      .def_ro("nbytes", &gpushm_info::size_bytes, "Size in bytes, as requested.")
      .def_ro("mapped_nbytes", &gpushm_info::mapped_bytes,
              "The size, rounded up to the GPU's granularity (2 MiB).")
      .def_ro("loaded_nbytes", &gpushm_info::loaded_bytes, "While loading: bytes so far.")
      .def_ro("content_nbytes", &gpushm_info::content_bytes,
              "Number of bytes, from the start, that are content.")
      .def_ro("description_nbytes", &gpushm_info::description_bytes,
              "Size of the generation's description; 0: it has none.")
      .def_ro("created_unix_ns", &gpushm_info::created_unix_ns, "Time of its creation.")
      .def_prop_ro(
          "digest", [](const gpushm_info& i) { return i.digest; },
          "Says in short what the content is: equal digests mean equal content. Empty: nobody made "
          "one, or the buffer was attached for writing since.")
      .def_prop_ro(
          "gpu_uuid", [](const gpushm_info& i) { return UuidText(i.gpu_uuid); },
          "The GPU that holds it.")
      .def_prop_ro(
          "transport", [](const gpushm_info& i) { return TransportName(i.transport); },
          "\"vmm\", \"cuipc\", or \"host\" for signals, barriers and rings.")
      .def_prop_ro(
          "state", [](const gpushm_info& i) { return StateName(i.state); },
          "\"loading\", \"ready\", \"writer-died\" or \"failed\".")
      .def_prop_ro(
          "creator", [](const gpushm_info& i) { return i.creator; },
          "The container that made it; empty if an annotation did.")
      .def("__repr__", [](const gpushm_info& i) {
        return nb::str("<gpushm.Info {!r} generation {} of {} bytes, {}>")
            .format(i.name, i.generation, i.size_bytes, StateName(i.state));
      });
  nb::class_<gpushm_holder>(module, "Holder", "One use of a buffer by a process.")
      .def_prop_ro(
          "buffer", [](const gpushm_holder& h) { return h.buffer; }, "Name of the buffer.")
      .def_prop_ro(
          "container", [](const gpushm_holder& h) { return h.container; },
          "The container of the process.")
      .def_ro("generation", &gpushm_holder::generation, "The generation that it holds.")
      .def_ro("client_id", &gpushm_holder::client_id,
              "Number of the process's connection, unique while the broker runs.")
      .def_prop_ro(
          "access", [](const gpushm_holder& h) { return AccessName(h.access); },
          "\"read\" or \"read-write\".")
      .def_ro("since_unix_ns", &gpushm_holder::since_unix_ns, "Time of the attach.");
  nb::class_<gpushm_gpu_info>(module, "Gpu", "One of the pod's GPUs.")
      .def_ro("number", &gpushm_gpu_info::gpu, "Its number, from 0, as in annotations.")
      .def_prop_ro(
          "uuid", [](const gpushm_gpu_info& g) { return UuidText(g.gpu_uuid); }, "Its UUID.")
      .def_ro("pool_nbytes", &gpushm_gpu_info::pool_bytes, "Memory for the pod's buffers there.")
      .def_ro("used_nbytes", &gpushm_gpu_info::used_bytes, "Allocated now, all generations.")
      .def_prop_ro(
          "lost", [](const gpushm_gpu_info& g) { return g.lost != 0; },
          "Whether it is unhealthy: what is on it raises DeviceLost.");
  nb::class_<gpushm_broker_info>(module, "BrokerInfo", "What the broker knows about itself.")
      .def_prop_ro(
          "container", [](const gpushm_broker_info& b) { return b.container; },
          "The container of this process, as the broker sees it.")
      .def_prop_ro(
          "gpu_uuid", [](const gpushm_broker_info& b) { return UuidText(b.gpu_uuid); },
          "The pod's first GPU.")
      .def_ro("pool_nbytes", &gpushm_broker_info::pool_bytes,
              "Memory for the pod's buffers, on all of its GPUs.")
      .def_ro("used_nbytes", &gpushm_broker_info::used_bytes, "Allocated now, all generations.")
      .def_ro("epoch", &gpushm_broker_info::broker_epoch,
              "Increases with each restart of the broker.")
      .def_ro("protocol", &gpushm_broker_info::protocol, "Version of the protocol in use.")
      .def_ro("clients", &gpushm_broker_info::clients, "Connected now.")
      .def_ro("leases", &gpushm_broker_info::leases, "Uses of buffers now.")
      .def_prop_ro(
          "simulated", [](const gpushm_broker_info& b) { return b.simulated != 0; },
          "Whether the driver is the simulated one.");
  nb::class_<gpushm_offer_result>(module, "OfferResult", "How memory is shared that was offered.")
      .def_prop_ro(
          "transport", [](const gpushm_offer_result& r) { return TransportName(r.transport); },
          "\"vmm\" or \"cuipc\".")
      .def_prop_ro(
          "copied", [](const gpushm_offer_result& r) { return r.copied != 0; },
          "Whether other processes see a copy.")
      .def_ro("copied_nbytes", &gpushm_offer_result::copied_bytes, "Size of the copy.")
      .def_ro("generation", &gpushm_offer_result::generation, "For Client.offer_state.")
      .def_ro("mapped_nbytes", &gpushm_offer_result::mapped_bytes,
              "Bytes that processes which attach it can reach: the whole allocations in which it "
              "lies, or the copy.")
      .def_ro("allocations", &gpushm_offer_result::allocations, "How many they are.");
  nb::class_<gpushm_offer_info>(module, "OfferState", "Who uses offered memory still.")
      .def_prop_ro(
          "published", [](const gpushm_offer_info& o) { return o.published != 0; },
          "Whether the name still refers to this memory.")
      .def_ro("users", &gpushm_offer_info::users, "Attaches that have not ended.")
      .def_prop_ro(
          "unused", [](const gpushm_offer_info& o) { return o.unused != 0; },
          "Neither published nor used: its owner may free it.");
  nb::class_<gpushm_transfer_result>(module, "TransferResult", "What a load or a save did.")
      .def_ro("nbytes", &gpushm_transfer_result::bytes, "Bytes moved.")
      .def_prop_ro(
          "seconds",
          [](const gpushm_transfer_result& r) { return 1e-9 * static_cast<double>(r.elapsed_ns); },
          "Time of the whole call.")
      .def_prop_ro(
          "digest", [](const gpushm_transfer_result& r) { return r.digest; },
          "Of what was loaded; empty if it was not made.");
}

void BindBuffer(nb::module_& module) {
  nb::class_<Buffer> type(
      module, "Buffer", nb::is_weak_referenceable(),
      "A buffer of the pod, mapped into this process.\n\n"
      "It is also an array of uint8 for frameworks (`torch.from_dlpack(buffer)`); "
      "`view` gives other types. As a context manager it detaches at the end of the "
      "block. In every case the memory stays mapped until the last array has died, "
      "and the work that its streams had is done. Any thread may use it.");
  type.def_prop_ro(
          "name", [](const Buffer& b) { return b.name(); }, "Its name.")
      .def_prop_ro(
          "nbytes", [](const Buffer& b) { return b.info().size_bytes; },
          "Size in bytes, as requested when it was made.")
      .def_prop_ro(
          "content_nbytes", [](const Buffer& b) { return b.info().content_bytes; },
          "Number of bytes, from the start, that are content.")
      .def_prop_ro(
          "ptr", [](const Buffer& b) { return b.info().address; },
          "Device address of the first byte.")
      .def_prop_ro(
          "device", [](const Buffer& b) { return b.info().device; },
          "Ordinal, in this process, of the GPU that holds the bytes.")
      .def_prop_ro(
          "generation", [](const Buffer& b) { return b.info().generation; },
          "The generation that is mapped.")
      .def_prop_ro(
          "readonly", [](const Buffer& b) { return b.info().access == GPUSHM_ACCESS_READ; },
          "Whether it is mapped for reading only.")
      .def_prop_ro(
          "transport", [](const Buffer& b) { return TransportName(b.info().transport); },
          "\"vmm\" or \"cuipc\".")
      .def_prop_ro(
          "state", [](const Buffer& b) { return StateName(b.info().state); },
          "State of the name now: \"loading\", \"ready\", \"writer-died\", \"failed\" or "
          "\"deleted\".")
      .def_prop_ro("attached", &Buffer::is_open, "False after detach().")
      .def("check", &CheckBuffer,
           "Whether it is still what its name refers to, without a system call: \"current\"; "
           "\"stale\" (the name has another generation, or was deleted); \"orphaned\" (the broker "
           "restarted without these bytes); \"lost\" (the GPU must be reset).")
      .def(
          "view", &Buffer::View, "dtype"_a, "shape"_a, "offset"_a = 0,
          "An array of `shape` elements of type `dtype` (\"float16\", \"bfloat16\" ...), from byte "
          "`offset` on, without a copy.\n\n"
          "Raises ValueError for an unknown type, IndexError if it ends outside of the buffer.")
      .def(
          "_dlpack",
          [](const Buffer& b, const std::string& dtype, std::vector<uint64_t> shape,
             uint64_t offset, const nb::object& stream) {
            return ToDlpack(b.View(dtype, std::move(shape), offset), stream);
          },
          "dtype"_a, "shape"_a, "offset"_a, "stream"_a,
          "The capsule of a view: __dlpack__ of view(), for a consumer that knows DLPack 1.0.")
      .def("read", &ReadBytes, "offset"_a = 0, "nbytes"_a = nb::none(),
           "Copies bytes to the host, and waits for the copy. It uses the GPU's primary context.")
      .def(
          "write", &WriteBytes, "data"_a, "offset"_a = 0,
          "Copies contiguous host memory (bytes, a NumPy array) into the buffer, and waits for the "
          "copy.\n\nRaises Denied if the buffer is attached for reading.")
      .def("_copy_from", &CopyFromDevice, "address"_a, "nbytes"_a, "offset"_a, "stream"_a.none(),
           "Copies device memory into the buffer on `stream`, without waiting (HOST: waits).")
      .def(
          "_synchronize",
          [](const Buffer& b, const nb::object& stream) {
            const Stream parsed = ParseStream(stream);
            const int device = b.info().device;
            if (parsed != GPUSHM_NO_STREAM) Released([&] { Synchronize(device, parsed); });
          },
          "stream"_a.none(), "Waits for the work on a stream.")
      .def(
          "publish",
          [](const Buffer& b) {
            const std::shared_ptr<Mapping> mapping = b.mapping();
            gpushm_attachment* const attachment = b.get();
            Check(Released([&] { return Api().attachment_publish_(attachment); }));
          },
          "Shows a buffer or generation that was made with publish=False to the other processes. "
          "Work that writes it must have ended.\n\n"
          "Raises InvalidArgument if it is published already.")
      .def(
          "digest",
          [](const Buffer& b) {
            const std::shared_ptr<Mapping> mapping = b.mapping();
            gpushm_attachment* const attachment = b.get();
            char digest[GPUSHM_DIGEST_BYTES];
            Check(Released([&] { return Api().attachment_digest_(attachment, digest); }));
            return std::string(digest);
          },
          "Makes the digest of the content from what the GPU's memory has now. Work that writes there "
          "must have ended. A generation that is not published yet keeps it: Info.digest has it "
          "after publish().\n\nRaises Loading, Unsupported, Orphaned, Timeout.")
      .def(
          "set_content",
          [](const Buffer& b, uint64_t nbytes) {
            const std::shared_ptr<Mapping> mapping = b.mapping();
            gpushm_attachment* const attachment = b.get();
            Check(Released([&] { return Api().attachment_set_content_(attachment, nbytes); }));
          },
          "nbytes"_a, "Sets how many bytes, from the start, are content.")
      .def(
          "set_description",
          [](const Buffer& b, nb::bytes description) {
            const std::shared_ptr<Mapping> mapping = b.mapping();
            gpushm_attachment* const attachment = b.get();
            Check(Released([&] {
              return Api().attachment_set_description_(attachment, description.data(),
                                                       description.size());
            }));
          },
          "description"_a,
          "Says what the bytes of this generation are, in up to 64 MiB of host memory that "
          "everybody can read (Client.description). Set it before publish().")
      .def(
          "load",
          [](const Buffer& b, const nb::object& file, const std::string& format, uint32_t threads,
             uint64_t nbytes, const nb::object& progress, Timeout timeout,
             const std::optional<std::string>& digest) {
            return TransferAttached(Api().attachment_load_, b, file, format,
                                    {threads, nbytes, digest}, false, progress, timeout);
          },
          "file"_a, nb::kw_only(), "format"_a = "auto", "threads"_a = 0, "nbytes"_a = 0,
          "progress"_a = nb::none(), "timeout"_a = kTransferSeconds, "digest"_a = nb::none(),
          nb::sig(
              "def load(self, file: str | os.PathLike[str] | int, *, format: str = 'auto', "
              "threads: int = 0, nbytes: int = 0, progress: collections.abc.Callable[[int, int], "
              "object] | None = None, timeout: float | None = 600.0, digest: str | None = None) -> TransferResult"),
          "Fills this generation, which may be unpublished: others then see it as a whole. As "
          "Client.load. After a failure, publish() is refused until a load succeeds.")
      .def(
          "save",
          [](const Buffer& b, const nb::object& file, const std::string& format, bool whole,
             const nb::object& progress, Timeout timeout) {
            return TransferAttached(Api().attachment_save_, b, file, format, {}, whole, progress,
                                    timeout);
          },
          "file"_a, nb::kw_only(), "format"_a = "auto", "whole"_a = false,
          "progress"_a = nb::none(), "timeout"_a = 600.0,
          nb::sig(
              "def save(self, file: str | os.PathLike[str] | int, *, format: str = 'auto', "
              "whole: bool = False, progress: collections.abc.Callable[[int, int], object] | None "
              "= None, timeout: float | None = 600.0) -> TransferResult"),
          "Writes this generation to a file, also if the name has another one by now. As "
          "Client.save.")
      .def("_set_tensors", &SetTensors, "tensors"_a, "metadata"_a,
           "Describes the tensors of this generation: (name, dtype, shape, offset, nbytes) each.")
      .def(
          "advance",
          [](const Buffer& b, const nb::object& streams, uint64_t generation, Timeout timeout) {
            auto options = Sized<gpushm_advance_options>();
            std::vector<void*> parsed = ParseStreams(streams);
            for (void* const used : b.mapping() ? b.mapping()->streams() : std::vector<void*>()) {
              parsed.push_back(used);
            }
            options.streams = parsed.data();
            options.stream_count = parsed.size();
            options.generation = generation;
            options.timeout_ms = Milliseconds(timeout);
            const std::shared_ptr<Mapping> mapping = b.mapping();
            gpushm_attachment* const attachment = b.get();
            const int device = b.info().device;
            Check(Released([&] {
              const CurrentContext context(parsed.empty() ? -1 : device);
              return Api().attachment_advance_(attachment, &options);
            }));
            return b.info().generation;
          },
          "streams"_a = nb::tuple(), "generation"_a = 0, "timeout"_a = 10.0,
          "Puts a newer generation in place, at the same address: arrays and captured CUDA graphs "
          "then use the new bytes. Returns the generation; without a newer one, nothing changes. "
          "Waits for the work of `streams` and of the streams that took arrays. No other work may "
          "use the buffer meanwhile.")
      .def(
          "detach", &Buffer::Detach, "streams"_a = nb::tuple(), "defer"_a = false,
          "Unmaps the buffer.\n\n"
          "Raises BufferError while arrays of it live; Busy while work on `streams`, or on streams "
          "that took arrays, is pending. With `defer` it is unmapped after that work.")
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> Buffer"))
      .def(
          "__exit__",
          [](Buffer& b, nb::args) {
            b.Drop();
            Collect();
          },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("__repr__", [](const Buffer& b) {
        if (!b.is_open()) return nb::str("<gpushm.Buffer {!r} detached>").format(b.name());
        const gpushm_attachment_info info = b.info();
        return nb::str("<gpushm.Buffer {!r} generation {} of {} bytes, {}>")
            .format(b.name(), info.generation, info.size_bytes, AccessName(info.access));
      });
  BindAsArray(
      &type, [](const Buffer& b) { return b.Bytes(); },
      [](const Buffer& b) { return b.info().device; }, "The buffer as uint8: see Array.__dlpack__.",
      "The buffer as uint8.");
}

}  // namespace

gpushm_status Mapping::Detach(std::vector<void*> streams, bool defer) {
  auto options = Sized<gpushm_detach_options>();
  for (void* const used : this->streams()) streams.push_back(used);
  options.streams = streams.data();
  options.stream_count = streams.size();
  options.defer = defer ? 1 : 0;
  gpushm_status status = Api().attachment_detach_(attachment_, &options);
  if (status == GPUSHM_OK) attachment_ = nullptr;
  return status;
}

const gpushm_attachment_info& Mapping::lasting() {
  // The address is 0 if the handle is not usable any more, for example after fork().
  if (!lasting_ || Api().attachment_address_(attachment_) == 0) {
    auto info = Sized<gpushm_attachment_info>();
    Check(Api().attachment_get_info_(attachment_, &info));
    lasting_ = info;
  }
  return *lasting_;
}

bool Mapping::Release() {
  if (attachment_ == nullptr) return true;
  auto info = Sized<gpushm_attachment_info>();
  const bool needs_context =
      !streams().empty() && Api().attachment_get_info_(attachment_, &info) == GPUSHM_OK;
  try {
    const CurrentContext context(needs_context ? info.device : -1);
    const gpushm_status status = Detach({}, false);
    // INVALID_ARGUMENT: a stream is being captured, so work that uses the memory is still to come.
    // DRIVER: it does not say whether a stream's work is done.
    return status != GPUSHM_BUSY && status != GPUSHM_INVALID_ARGUMENT && status != GPUSHM_DRIVER;
  } catch (const DriverError&) {
    return false;
  }
}

gpushm_attachment* Buffer::get() const {
  if (mapping_ == nullptr) {
    Raise(GPUSHM_INVALID_ARGUMENT, "buffer \"" + name_ + "\" is detached", "attach it again");
  }
  return mapping_->get();
}

gpushm_attachment_info Buffer::info() const {
  auto info = Sized<gpushm_attachment_info>();
  Check(Api().attachment_get_info_(get(), &info));
  return info;
}

Array Buffer::View(const std::string& dtype, std::vector<uint64_t> shape, uint64_t offset) const {
  get();  // Raises if it is detached.
  const gpushm_attachment_info& attached = mapping_->lasting();
  Array array{.memory = mapping_,
              .address = attached.address + offset,
              .dtype = ParseDType(dtype),
              .device = attached.device,
              .readonly = attached.access == GPUSHM_ACCESS_READ,
              .shape = std::move(shape)};
  const uint64_t bytes = array.bytes();
  if (offset > attached.size_bytes || bytes > attached.size_bytes - offset) {
    throw nb::index_error(("the view of " + std::to_string(bytes) + " bytes at offset " +
                           std::to_string(offset) + " ends outside of buffer \"" + name_ +
                           "\" of " + std::to_string(attached.size_bytes) + " bytes")
                              .c_str());
  }
  return array;
}

Array Buffer::Bytes() const { return View("uint8", {info().size_bytes}, 0); }

void Buffer::Detach(const nb::object& streams, bool defer) {
  if (mapping_ == nullptr) return;
  if (mapping_.use_count() > 1) {
    throw nb::buffer_error(("arrays of buffer \"" + name_ +
                            "\" are alive: drop them first, or leave "
                            "it to them: the buffer is detached after the last one")
                               .c_str());
  }
  const std::vector<void*> parsed = ParseStreams(streams);
  const std::shared_ptr<Mapping> mapping = mapping_;
  const int device = parsed.empty() && mapping->streams().empty() ? -1 : info().device;
  Check(Released([&] {
    const CurrentContext context(device);
    return mapping->Detach(parsed, defer);
  }));
  mapping_.reset();
}

Client::Client(const nb::object& folder, const nb::object& pod_uid, const nb::object& driver,
               Timeout timeout) {
  Collect();
  const Text folder_text(folder), pod_text(pod_uid), driver_text(driver);
  auto options = Sized<gpushm_open_options>();
  options.folder = folder_text.get();
  options.pod_uid = pod_text.get();
  options.driver = driver_text.get();
  gpushm_client* client = nullptr;
  Check(Wait(timeout, [&](int64_t timeout_ms) {
    options.timeout_ms = timeout_ms;
    return Api().open_(&options, &client);
  }));
  if (options.driver != nullptr) SetDriverFolder(options.driver);
  session_ = Share<Session>(client);
}

const std::shared_ptr<Session>& Client::session() const {
  if (session_ == nullptr) {
    Raise(GPUSHM_INVALID_ARGUMENT, "the client is closed", "connect again");
  }
  return session_;
}

void Client::Close() {
  session_.reset();
  Collect();
}

Stream ParseStream(const nb::object& stream) {
  uintptr_t number = 0;
  if (!nb::isinstance<nb::int_>(stream) || !nb::try_cast(stream, number) || number == 0) {
    number = nb::cast<uintptr_t>(nb::module_::import_("gpushm._streams").attr("handle")(stream));
  }
  return reinterpret_cast<Stream>(number);
}

std::vector<void*> ParseStreams(const nb::object& streams) {
  std::vector<void*> parsed;
  for (const nb::handle stream : streams) parsed.push_back(ParseStream(nb::borrow(stream)));
  return parsed;
}

std::string UuidText(const uint8_t (&uuid)[GPUSHM_UUID_BYTES]) {
  std::string text = "GPU-";
  for (size_t i = 0; i < GPUSHM_UUID_BYTES; ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[uuid[i] >> 4];
    text += kDigits[uuid[i] & 15];
  }
  return text;
}

uint32_t Choice(const char* what, const std::string& name,
                std::initializer_list<const char*> names) {
  uint32_t number = 0;
  std::string choices;
  for (const char* each : names) {
    if (name == each) return number;
    choices += (number == 0 ? "\"" : ", \"") + std::string(each) + "\"";
    ++number;
  }
  throw nb::value_error(
      ("invalid " + std::string(what) + " \"" + name + "\": use one of " + choices).c_str());
}

nb::object EndsAtExit(nb::object object) {
  nb::module_::import_("gpushm._exit").attr("remember")(object);
  return object;
}

void BindClient(nb::module_& module) {
  BindInfos(module);
  BindBuffer(module);
  nb::class_<Client> client(
      module, "Client", nb::is_weak_referenceable(),
      "A connection to the broker of the pod.\n\n"
      "Names are DNS labels: 1 to 63 characters of a-z, 0-9 and '-'. Every `timeout` is in seconds; "
      "0 does not wait, None waits without a limit, and Ctrl-C ends a wait. Errors are subclasses "
      "of gpushm.Error. Any thread may use it.\n\n"
      "As a context manager it closes at the end of the block. What came from it (buffers, arrays, "
      "rings) goes on working, and the connection ends after all of it. After fork() the child must "
      "connect anew: calls with what the parent opened raise Forked.");
  client
      .def(nb::init<const nb::object&, const nb::object&, const nb::object&, Timeout>(),
           "folder"_a = nb::none(), nb::kw_only(), "pod_uid"_a = nb::none(),
           "driver"_a = nb::none(), "timeout"_a = 10.0,
           nb::sig(
               "def __init__(self, folder: str | os.PathLike[str] | None = None, *, pod_uid: str | "
               "None = None, driver: str | os.PathLike[str] | None = None, timeout: float | None = "
               "10.0) -> None"),
           "Connects; see gpushm.connect.")
      .def("close", &Client::Close,
           "Ends the use of this object. The connection ends with the last buffer, ring or array "
           "that came from it.")
      .def_prop_ro(
          "closed", [](const Client& c) { return !c.is_open(); }, "True after close().")
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> Client"))
      .def(
          "__exit__", [](Client& c, nb::args) { c.Close(); },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("list", &List, "All buffers, ordered by name.")
      .def(
          "lookup",
          [](const Client& c, const std::string& name) {
            auto info = Sized<gpushm_info>();
            Check(Api().lookup_(c.get(), name.c_str(), &info));
            return info;
          },
          "name"_a, "What is known about a buffer, without a system call.\n\nRaises NotFound.")
      .def(
          "holders", &Holders, "name"_a = nb::none(),
          nb::sig("def holders(self, name: str | None = None) -> collections.abc.Sequence[Holder]"),
          "Which processes use a buffer, or any buffer.")
      .def("wait", &WaitFor, "name"_a, "newer_than"_a = 0, "timeout"_a = 10.0,
           "Waits until a buffer of that name exists, is not loading, and has a generation above "
           "`newer_than`.\n\nRaises Timeout, Unavailable, or the error of a failed load.")
      .def(
          "broker",
          [](const Client& c) {
            Collect();
            auto info = Sized<gpushm_broker_info>();
            const std::shared_ptr<Session> session = c.session();
            Check(Released([&] { return Api().broker_get_info_(session->get(), &info); }));
            return info;
          },
          "Requests the broker's state.")
      .def("gpus", &Gpus, "The pod's GPUs, in the order of their numbers.")
      .def(
          "attach", &Attach, "name"_a, nb::kw_only(), "write"_a = false, "generation"_a = 0,
          "timeout"_a = 10.0, "peers"_a = nb::tuple(), "stage"_a = false,
          nb::sig(
              "def attach(self, name: str, *, write: bool = False, generation: int = 0, "
              "timeout: float | None = 10.0, peers: collections.abc.Iterable[int] = (), stage: bool = False) "
              "-> Buffer"),
          "Maps a buffer into this process, without a copy. Waits until it exists and is loaded.\n\n"
          "`generation`: exactly that one; 0: the current one. `peers`: ordinals of further GPUs "
          "that use it; with `stage` such a GPU may get a copy.\n\n"
          "Raises Timeout, NotFound or Loading (timeout=0), Denied, Stale, Busy, Unsupported, "
          "Exhausted.")
      .def(
          "create",
          [](const Client& c, const std::string& name, uint64_t nbytes, bool replace,
             const std::string& writers, bool one_writer, const std::string& on_writer_exit,
             bool publish, uint32_t gpu, Timeout timeout) {
            return Create(c, name, nbytes,
                          {writers, one_writer, on_writer_exit, publish, replace, gpu}, timeout);
          },
          "name"_a, "nbytes"_a, nb::kw_only(), "replace"_a = false, "writers"_a = "creator",
          "one_writer"_a = false, "on_writer_exit"_a = "mark", "publish"_a = true, "gpu"_a = 0,
          "timeout"_a = 10.0,
          nb::sig(
              "def create(self, name: str, nbytes: int, *, replace: bool = False, writers: str = "
              "'creator', one_writer: bool = False, on_writer_exit: str = 'mark', publish: bool "
              "= True, gpu: int = 0, timeout: float | None = 10.0) -> Buffer"),
          "Makes a buffer in the pod's pool, and attaches it for writing.\n\n"
          "`replace`: one that exists gets a new generation. `writers`: which containers may write, "
          "\"creator\" or \"all\". `one_writer`: at most one process may hold it for writing. "
          "`on_writer_exit`: if a writer dies, \"mark\" the buffer, \"keep\" its state, or \"drop\" "
          "it. `publish=False`: other processes see it after Buffer.publish(). `gpu`: its number "
          "among the pod's GPUs (Client.gpus), if there are several.\n\n"
          "Raises AlreadyExists, Exhausted, Denied, Timeout.")
      .def("replace", &Replace, "name"_a, "nbytes"_a = nb::none(), nb::kw_only(),
           "publish"_a = false, "timeout"_a = 10.0,
           nb::sig("def replace(self, name: str, nbytes: int | None = None, *, publish: bool = "
                   "False, timeout: float | None = 10.0) -> Buffer"),
           "Gives an existing name new memory, a new generation, which other processes see after "
           "Buffer.publish().\n\nRaises NotFound, Denied, Exhausted.")
      .def("_offer", &Offer, "name"_a, "address"_a, "nbytes"_a, nb::kw_only(), "writers"_a,
           "one_writer"_a, "on_writer_exit"_a, "allow_copy"_a, "stream"_a.none(), "device"_a,
           "timeout"_a, "Offers device memory by address.")
      .def(
          "offer",
          [](nb::object self, const std::string& name, nb::object array, nb::kwargs more) {
            return nb::module_::import_("gpushm._offer").attr("offer")(self, name, array, **more);
          },
          "name"_a, "array"_a, "options"_a,
          nb::sig(
              "def offer(self, name: str, array: object, *, writers: str = 'creator', "
              "one_writer: bool = False, on_writer_exit: str = 'mark', allow_copy: bool = False, "
              "stream: object = None, timeout: float | None = 10.0) -> OfferResult"),
          "Offers, under a name, GPU memory that the application already has: a tensor of PyTorch, "
          "or anything with __cuda_array_interface__. The driver shares whole allocations, so the "
          "others can reach what else lies in them (OfferResult.mapped_nbytes). With PyTorch, set "
          "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: other memory of its allocator is "
          "shared by CUDA IPC, which fails between two entrypoints of containers. "
          "What is on `stream` now is done before other processes see the buffer. Do not free the "
          "memory before offer_state() says `unused`. `allow_copy`: memory that cannot be shared is "
          "copied once.\n\n"
          "Raises Unsupported (with the reason), AlreadyExists, Timeout, Exhausted, Denied.")
      .def(
          "offer_state",
          [](const Client& c, const std::string& name, uint64_t generation) {
            Collect();
            auto info = Sized<gpushm_offer_info>();
            const std::shared_ptr<Session> session = c.session();
            Check(Released([&] {
              return Api().offer_state_(session->get(), name.c_str(), generation, &info);
            }));
            return info;
          },
          "name"_a, "generation"_a,
          "Who uses offered memory still.\n\nRaises NotFound (this client did not offer it).")
      .def(
          "delete",
          [](const Client& c, const std::string& name, Timeout timeout) {
            Collect();
            auto options = Sized<gpushm_delete_options>();
            options.timeout_ms = Milliseconds(timeout);
            const std::shared_ptr<Session> session = c.session();
            Check(Released([&] { return Api().delete_(session->get(), name.c_str(), &options); }));
          },
          "name"_a, nb::kw_only(), "timeout"_a = 10.0,
          "Deletes a name. Attachments stay valid; the memory is freed with the last of them.\n\n"
          "Raises NotFound, Denied.")
      .def(
          "load",
          [](const Client& c, const std::string& name, const nb::object& file,
             const std::string& format, uint32_t threads, uint64_t nbytes,
             const nb::object& progress, Timeout timeout,
             const std::optional<std::string>& digest) {
            return TransferNamed(Api().load_, c, name, file, format, {threads, nbytes, digest},
                                 false, progress, timeout);
          },
          "name"_a, "file"_a, nb::kw_only(), "format"_a = "auto", "threads"_a = 0, "nbytes"_a = 0,
          "progress"_a = nb::none(), "timeout"_a = kTransferSeconds, "digest"_a = nb::none(),
          nb::sig(
              "def load(self, name: str, file: str | os.PathLike[str] | int, *, format: str = 'auto', "
              "threads: int = 0, nbytes: int = 0, progress: "
              "collections.abc.Callable[[int, int], object] | None = None, timeout: float | None = 600.0, "
              "digest: str | None = None) -> TransferResult"),
          "Fills a buffer from a path, or from a descriptor.\n\n"
          "`format`: \"raw\", \"tensors\" (safetensors), or \"auto\" by the name. `threads`: readers "
          "in addition to this one; 0: as many as processors help. `nbytes`: how many must come, "
          "neither less nor more; 0: not said. `digest`: the one that the content must have. `progress(done, total)` is called with bytes. `timeout`: for all of it; of the "
          "default, ten seconds are for a buffer or a file that is not there yet.\n\n"
          "What is not whole is never READY. Raises InvalidArgument (as it is, the file cannot be "
          "loaded), Timeout (a file, or a part of one, is not there), Denied; with timeout=0 "
          "NotFound, or Busy for a file that is being written.")
      .def(
          "save",
          [](const Client& c, const std::string& name, const nb::object& file,
             const std::string& format, bool whole, const nb::object& progress, Timeout timeout) {
            return TransferNamed(Api().save_, c, name, file, format, {}, whole, progress, timeout);
          },
          "name"_a, "file"_a, nb::kw_only(), "format"_a = "auto", "whole"_a = false,
          "progress"_a = nb::none(), "timeout"_a = 600.0,
          nb::sig(
              "def save(self, name: str, file: str | os.PathLike[str] | int, *, format: str = 'auto', "
              "whole: bool = False, progress: collections.abc.Callable[[int, int], object] "
              "| None = None, timeout: float | None = 600.0) -> TransferResult"),
          "Writes a buffer's content to a path, which is replaced as a whole, or to a descriptor. "
          "`whole`: all of the buffer.");
  BindSync(module, client);
  BindTensors(module, client);
}

}  // namespace gpushm::python
