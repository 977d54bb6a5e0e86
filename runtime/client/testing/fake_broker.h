// A broker for the library's tests. It speaks messages.h from a thread, and serves a real registry
// and memory of the simulated driver. A test can make it lie, fall silent or die at any reply.
//
// Threads: call the functions below from the test's thread.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "contract/protocol/channel.h"
#include "contract/protocol/counters.h"
#include "contract/protocol/messages.h"
#include "contract/registry/writer.h"
#include "platform/base/unique_fd.h"
#include "platform/driver/device.h"

namespace gpushm::client {

// The reply that the fake broker is about to send; a test may change it.
struct FakeReply {
  std::vector<std::byte> bytes;
  std::vector<int> descriptors;  // Owned by the fake broker; sent, but not given away.
  bool silent = false;           // Send nothing.
  bool hang_up = false;          // Close the connection instead.

  template <typename Body>
  Body* body() {
    return reinterpret_cast<Body*>(bytes.data() + sizeof(protocol::Header));
  }
  protocol::Header* header() { return reinterpret_cast<protocol::Header*>(bytes.data()); }
  void Set(const Status& status);  // Makes it an error.
};

struct FakeRequest {
  protocol::Kind kind;
  const protocol::Message* message;
  size_t connection;  // Number, from 1.
};

struct FakeLease {
  std::string name;
  uint64_t generation;
  uint64_t client_id = 0;
};

class FakeBroker {
 public:
  // Called on the fake's thread before a reply is sent.
  using Twist = std::function<void(const FakeRequest&, FakeReply*)>;

  // `inherited`: leases of a former broker, as the plugin would report them. Their clients may
  // resume.
  FakeBroker(const std::string& folder, uint64_t epoch, const GpuUuid& gpu,
             const std::map<uint64_t, FakeLease>& inherited = {});
  // The broker dies: connections end, and the socket's file stays, as with SIGKILL.
  ~FakeBroker();

  void SetTwist(Twist twist);
  // If `api` is not null, the buffer has memory of the simulated driver.
  void Add(const std::string& name, uint64_t generation, uint64_t size_bytes, const CudaApi* api,
           BufferState state = BufferState::kReady);
  void AddCuIpc(const std::string& name, uint64_t generation, int32_t offerer_pid);
  // `reason`: as its loader stated it with NOT_FOUND; empty for none.
  void SetState(const std::string& name, BufferState state, const std::string& reason = {});
  // From now on the pod has that many GPUs, of which bit i of `lost` says that number i is
  // unhealthy. All have the same UUID.
  void SetGpus(uint32_t count, uint32_t lost);
  // As if it were on that GPU.
  void SetGpuOf(const std::string& name, uint32_t number);
  void SetGeneration(const std::string& name, uint64_t generation);
  void Remove(const std::string& name);

  // The sum of the values in its pages.
  protocol::CounterValues counted() const;
  // The PID in the last offer.
  int32_t offered_pid() const { return offered_pid_; }
  // Clients that lost their connection may resume it. Until then, the broker keeps what they hold.
  void KeepClients();
  std::map<uint64_t, FakeLease> leases() const;
  size_t requests(protocol::Kind kind) const;
  size_t connections() const;
  int registry_fd() const { return registry_->fd(); }

 private:
  struct Buffer {
    registry::BufferRecord record;
    uint32_t slot = 0;
    UniqueFd descriptor;
    int32_t offerer_pid = 0;
  };
  struct Connection {
    UniqueFd socket;
    size_t number = 0;
    bool announced = false;
    uint64_t client_id = 0;
  };

  void Run();
  bool Serve(Connection* connection);  // False: close it.
  void Answer(const FakeRequest& request, Connection* connection, FakeReply* reply);
  void AnswerAttach(const FakeRequest& request, Connection* connection, FakeReply* reply);
  void AnswerMake(const FakeRequest& request, Connection* connection, FakeReply* reply);
  void Insert(const std::string& name, Buffer buffer);
  uint64_t Lease(const Connection& connection, const std::string& name, uint64_t generation);
  void AnswerCounters(const FakeRequest& request, Connection* connection, FakeReply* reply);
  void AnswerHello(const FakeRequest& request, Connection* connection, FakeReply* reply);

  const uint64_t epoch_;
  const GpuUuid gpu_;
  UniqueFd listener_;
  UniqueFd wake_;
  std::atomic<bool> stop_{false};
  mutable std::recursive_mutex mutex_;  // A twist may call the functions above.
  // All of these are guarded by mutex_.
  Twist twist_;
  std::unique_ptr<registry::RegistryWriter> registry_;
  std::map<std::string, Buffer> buffers_;
  std::map<uint64_t, FakeLease> leases_;
  uint32_t gpus_ = 1;
  uint32_t lost_gpus_ = 0;
  std::map<uint64_t, WritableSegment> pages_;  // By client.
  bool keeps_clients_ = false;
  std::set<uint64_t> resumable_;
  std::map<protocol::Kind, size_t> requests_;
  uint64_t next_lease_ = 1;
  uint64_t next_generation_ = 1'000'000;
  std::atomic<int32_t> offered_pid_ = 0;
  size_t connections_ = 0;
  const CudaApi* api_ = nullptr;
  std::thread thread_;
};

}  // namespace gpushm::client
