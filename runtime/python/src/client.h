// A connection to the broker, and the buffers attached through it.
//
// Threads: with the GIL held. Calls that can block release it.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "array.h"
#include "call.h"
#include "resource.h"

namespace gpushm::python {

// A gpushm_client. Everything that came from it shares it, so the connection ends after all of it.
class Session final : public Resource {
 public:
  explicit Session(gpushm_client* client) : client_(client) {}
  gpushm_client* get() const { return client_; }
  bool Release() override {
    Api().close_(client_);
    return true;
  }

 private:
  gpushm_client* const client_;
};

// One attach of a buffer.
class Mapping final : public Memory {
 public:
  Mapping(std::shared_ptr<Session> session, gpushm_attachment* attachment)
      : session_(std::move(session)), attachment_(attachment) {}
  gpushm_attachment* get() const { return attachment_; }
  const std::shared_ptr<Session>& session() const { return session_; }
  // With address, size, device and access, which stay as they are while it is attached. Its other
  // members are of the first call. With the GIL.
  const gpushm_attachment_info& lasting();
  // Detaches, unless work on the streams of its users is pending.
  bool Release() override;
  // With further streams. Without the GIL.
  gpushm_status Detach(std::vector<void*> streams, bool defer);

 private:
  const std::shared_ptr<Session> session_;
  gpushm_attachment* attachment_;
  std::optional<gpushm_attachment_info> lasting_{};
};

class Buffer {
 public:
  Buffer(std::shared_ptr<Mapping> mapping, std::string name)
      : name_(std::move(name)), mapping_(std::move(mapping)) {}
  gpushm_attachment* get() const;
  gpushm_attachment_info info() const;
  const std::string& name() const { return name_; }
  const std::shared_ptr<Mapping>& mapping() const { return mapping_; }
  bool is_open() const { return mapping_ != nullptr; }

  Array View(const std::string& dtype, std::vector<uint64_t> shape, uint64_t offset) const;
  Array Bytes() const;
  void Detach(const nb::object& streams, bool defer);
  // For `with`: lets go at once; the memory is unmapped after the last array.
  void Drop() { mapping_.reset(); }

 private:
  std::string name_;
  std::shared_ptr<Mapping> mapping_;
};

class Client {
 public:
  Client(const nb::object& folder, const nb::object& pod_uid, const nb::object& driver,
         Timeout timeout);
  gpushm_client* get() const { return session()->get(); }
  const std::shared_ptr<Session>& session() const;
  bool is_open() const { return session_ != nullptr; }
  void Close();

 private:
  std::shared_ptr<Session> session_;
};

// A stream of Python's: an int, an object of PyTorch, CuPy or with __cuda_stream__, gpushm.HOST, or
// None for the framework's present one (gpushm/_streams.py). HOST is GPUSHM_NO_STREAM.
Stream ParseStream(const nb::object& stream);
std::vector<void*> ParseStreams(const nb::object& streams);

// "GPU-01020304-..." of a UUID's bytes.
std::string UuidText(const uint8_t (&uuid)[GPUSHM_UUID_BYTES]);

// The number of `name` among `names`; ValueError with the choices otherwise.
uint32_t Choice(const char* what, const std::string& name,
                std::initializer_list<const char*> names);

// (name, dtype, shape, offset, nbytes) of each tensor, and pairs of metadata (tensors.cc).
void SetTensors(const Buffer& buffer, const nb::list& tensors,
                const std::vector<std::pair<std::string, std::string>>& metadata);

// Remembers an object whose end other processes are told: it ends when the interpreter exits.
nb::object EndsAtExit(nb::object object);

void BindClient(nb::module_& module);
void BindSync(nb::module_& module, nb::class_<Client>& client);
void BindTensors(nb::module_& module, nb::class_<Client>& client);

}  // namespace gpushm::python
