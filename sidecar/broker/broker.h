// The broker owns a pod's buffers and gives them to its containers. It wires together the ledger
// (which decides), the registry (which peers read), the server (which takes requests) and the GPU.
//
// Order of a start: lock the folder; take a generation block; ask the plugin for the GPUs and for
// what an earlier broker had; open the GPUs; restore that state; make the declared buffers and
// signals that are missing; show everything in the registry; listen; accept the earlier broker's
// clients again. A client that can connect finds everything that was declared.
//
// Everything that a client is told has been stated to the plugin before (link.h, invariant 2).
//
// Threads: the loop's, except Stop(), which any thread or a signal's descriptor may cause.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "contract/registry/writer.h"
#include "contract/sync/page.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "platform/daemon/event_loop.h"
#include "platform/daemon/worker.h"
#include "sidecar/broker/broker_config.h"
#include "sidecar/broker/counters.h"
#include "sidecar/broker/gpu.h"
#include "sidecar/broker/journal.h"
#include "sidecar/broker/ledger.h"
#include "sidecar/broker/link.h"
#include "sidecar/broker/server.h"

namespace gpushm::broker {

// Threads for closing descriptors. A client can send a descriptor whose close blocks such a thread.
inline constexpr size_t kCloserThreads = 8;

struct BrokerOptions {
  BrokerConfig config;
  std::string driver_folder;          // Same as for CudaApi::Load.
  std::string host_dir = "/dev/shm";  // For pods with hostIPC.
  std::string link_folder;            // Folder of the plugin's socket; empty if there is no plugin.
  std::string program = "gpushm-broker";  // The path of this program; others are beside it.
  std::string cuda_ipc_folder;            // Folder for libgpushm-cudaipc.so; empty for none.
  std::string mps_folder;                 // Folder to make for gpushm-mps; empty for none.
  std::string pod;                        // NAMESPACE/NAME, for the log; empty if unknown.
  int64_t start_timeout_ms = 60'000;      // How long the GPU may take to make the declared buffers.
  int64_t drain_timeout_ms = 20'000;      // How long clients may take to leave after Drain.
};

class Broker : private Handler {
 public:
  // Fails with an error that an operator can act on: another broker serves the folder, the GPU does
  // not exist, or the buffers do not fit.
  static Result<std::unique_ptr<Broker>> Start(EventLoop* loop, BrokerOptions options);
  ~Broker() override;

  // Accepts no new clients. Stops the loop when the last lease has ended, or at the deadline.
  void Drain();

  // Whether the broker stopped the loop because it cannot continue and must be restarted.
  bool failed() const { return failed_; }
  // For the simulation, once it is ready.
  uint64_t epoch() const { return epoch_; }
  const Ledger& ledger() const { return *ledger_; }
  bool has_stated_all() const { return link_->has_stated_all(); }

 private:
  Broker(EventLoop* loop, BrokerOptions options);

  // ---- start
  Result<void> LockFolder();
  Result<void> TakeGenerations();
  Result<void> MakeMpsFolder() const;
  Result<void> PutCudaIpc() const;
  static Result<void> PutFile(const std::filesystem::path& from, const std::string& folder);
  template <typename Answer>
  Answer OnDriver(uint32_t gpu, std::string_view what, std::function<Answer()> call);
  Result<void> MeetPlugin(Link::Greeting* greeting);
  Result<void> TakeGpus(const Link::Greeting& greeting);
  Result<void> OpenGpus();
  void AddDriver();
  void MakeLedger();
  void Restore(Ledger::Kept kept, std::set<std::string>* settled);
  void RestoreClients(std::vector<Link::Greeting::Client> clients);
  Result<void> RunLink(const std::vector<Link::Greeting::Gpu>& gpus);
  Result<void> MakeDeclared(const std::set<std::string>& settled);
  Result<void> MakeDeclaredSignals(const std::set<std::string>& settled);
  Result<void> ListenAll();
  // Those that the pod has, and the loaders of its files. Empty: one socket serves all.
  std::vector<std::string> ServedContainers() const;
  uint32_t CountContainers() const;
  Result<void> ListenFor(const std::string& container);
  void ListenForHostIpc(bool first = true);
  // Accepts the pods that share the claim at this socket.
  void ServeOthers(Link::Greeting::Others others);
  // They may only read, unless the claim grants more.
  Result<void> CheckOthers(const Request& request) const;
  Result<void> MakeCounters();
  void LookAtMps();

  // ---- requests
  Result<void> OnRequest(Request& request) override;
  void OnEnded(const Client& client) override;
  bool Holds(uint64_t client_id) const override { return ledger_->HasLeases(client_id); }

  template <typename Body>
  using On = Result<void> (Broker::*)(Request&, const Body&);
  // Checks the message's bytes first.
  template <typename Body>
  Result<void> Read(Request& request, On<Body> on);
  // Carries out what the ledger did, then answers that it is done.
  Result<void> Done(const Request& request);
  Result<void> OnHello(Request& request);
  Result<void> OnAttach(Request& request, const protocol::AttachRequest& body);
  Result<void> OnDetach(Request& request, const protocol::DetachRequest& body);
  Result<void> OnCreate(Request& request, const protocol::CreateRequest& body);
  Result<void> OnReplace(Request& request, const protocol::ReplaceRequest& body);
  Result<void> OnPublish(Request& request, const protocol::PublishRequest& body);
  Result<void> OnStageBlock(Request& request, const protocol::StageBlockRequest& body);
  Result<void> OnBlock(Request& request, const protocol::BlockRequest& body);
  Result<void> OnOffer(Request& request, const protocol::OfferRequest& body);
  void DropStaged(uint64_t client_id);
  // Puts what the client staged into `memory`, also if it does not fit there.
  Result<void> TakeStaged(uint64_t client_id, Memory* memory);
  Result<void> OnDelete(Request& request, const protocol::DeleteRequest& body);
  Result<void> OnHolders(Request& request, const protocol::HoldersRequest& body);
  Result<void> OnBrokerInfo(Request& request, const protocol::BrokerInfoRequest& body);
  Result<void> OnGpus(Request& request, const protocol::GpusRequest& body);
  Result<void> OnContent(Request& request, const protocol::ContentRequest& body);
  Result<void> OnReason(Request& request, const protocol::ReasonRequest& body);
  Result<void> OnDescribe(Request& request, const protocol::DescribeRequest& body);
  Result<void> OnDescription(Request& request, const protocol::DescriptionRequest& body);
  Result<void> OnCounters(Request& request, const protocol::CountersRequest& body);
  Result<void> OnPod(Request& request, const protocol::PodRequest& body);
  Result<void> OnMakePage(Request& request, const protocol::MakePageRequest& body);
  Result<void> OnAlarm(Request& request, const protocol::AlarmRequest& body);

  // Fails with kDeviceLost if that GPU is unhealthy.
  Result<void> CheckGpu(uint32_t gpu) const;
  // The same for the memory of that name. A page needs any GPU that is healthy, and so does a name
  // that does not exist, which fails for that reason.
  Result<void> CheckGpuOf(const std::string& name) const;
  Result<void> CheckAnyGpu() const;
  // The pod's GPU with that UUID; nullopt if it is not one of them.
  std::optional<uint32_t> FindGpu(const std::array<uint8_t, 16>& uuid) const;
  // "GPU 0, GPU-..., and GPU 1, GPU-..."; without the number if there is one.
  std::string NamesOfGpus() const;

  // Allocates on the thread of the GPU's driver, then commits and replies.
  Result<void> Allocate(const Ledger::Ticket& ticket, const ReplyTo& to);
  void Allocated(const Ledger::Ticket& ticket, const ReplyTo& to, Result<UniqueFd> descriptor);
  void ReplyAttached(const Client& client, const ReplyTo& to, const Grant& grant);
  void ReplyMade(const Client& client, const ReplyTo& to, const Grant& grant);
  template <typename Reply>
  void ReplyGrant(const Client& client, const ReplyTo& to, uint64_t lease_id, const Reply& reply,
                  int descriptor) {
    if (server_->Reply(to, reply, descriptor) || lease_id == 0) return;
    // It was refused because the last one is unread. The client does not know of this lease.
    [[maybe_unused]] const auto undone = ledger_->Detach(client, lease_id);
    Apply();
  }

  // Carries out the effects of calls of the ledger, in the order that ledger.h gives.
  void Apply();
  void StateChanges();
  // Marks the cells of participants that are gone as ended, which releases everybody who waits for
  // them.
  void EndParticipants();
  void EndForgottenParticipants();
  std::optional<Statement> ClientStatement(uint64_t client_id) const;
  bool Announce(uint64_t client_id);  // False: the client is gone.
  // The next statement of the full state, for a plugin that knows nothing yet. Clients come before
  // the statements that name them.
  std::optional<Statement> NextStatement();
  void OnStated(const Statement& statement);
  void OnDevice(uint32_t gpu, bool lost, std::string_view reason);
  void ShowChange(const Change& change);
  void WriteHostListSoon();
  void PublishCountersSoon();
  bool Drained() const;

  EventLoop* loop_;
  BrokerOptions options_;
  UniqueFd lock_;
  uint64_t epoch_ = 0;  // Also the first generation number of this broker.
  struct PodGpu {
    Gpu gpu;
    bool lost = false;
  };
  std::vector<PodGpu> gpus_;  // By number.
  std::optional<Ledger> ledger_;
  std::optional<Journal> journal_;  // If there is a plugin.
  std::optional<registry::RegistryWriter> registry_;
  std::map<std::string, uint32_t> slots_;  // Registry slots by name.
  // For the calls of libcuda, and for closing memory: one for each GPU, so that one that hangs
  // holds up nobody who uses the others. The first one also finds the GPUs.
  std::vector<std::unique_ptr<Worker>> drivers_;
  Worker closer_{kCloserThreads};
  std::optional<Server> server_;
  std::optional<CounterBook> counters_;
  std::optional<Link> link_;
  // They ring when the registry has changed. Each container has its own, so that none can disturb
  // another.
  std::map<std::string, UniqueFd> name_alarms_;
  std::set<uint64_t> announced_;                   // Clients that the plugin knows.
  std::map<uint64_t, std::vector<Block>> staged_;  // By client, for its next offer.
  int driver_calls_ = 0;                           // Number of calls in progress.
  bool host_list_due_ = false;
  bool counters_due_ = false;
  status::MpsState mps_state_;  // The last that gpushm-mps wrote.
  Code mps_error_ = Code::kNotFound;
  bool serves_others_ = false;  // Pods that share the claim.
  bool others_may_write_ = false;
  bool draining_ = false;
  bool failed_ = false;
};

}  // namespace gpushm::broker
