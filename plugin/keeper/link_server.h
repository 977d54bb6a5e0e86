// One allocation's link: its socket, the broker behind it, and what is kept of it.
//
// Words: a *connection* is an accepted socket; the *broker* is the process whose greeting was
// accepted. The link is *open* until that process is gone: after a SIGKILL a socket can end 120 ms
// before the process is gone from the device. Where the kernel does not tell a peer's process
// (before Linux 6.5), Settings::gone_ms after the socket's end stands for it.
//
// Invariants
//   (1) One broker at a time. Another process is refused while it lives. It may connect again
//       itself; where the kernel does not tell who that is (before 6.9, another PID namespace), the
//       epoch in its Hello does.
//   (2) Nothing here blocks or waits, and nothing is queued: Welcome and Device are made when there
//       is room in the socket, and the dump has a cursor. A broker that does not read its dump is
//       not read from either, and holds nobody else up.
//   (3) A wake-up serves a bounded number of messages, so that no link starves another.
//   (4) What a broker sent before its process ended is applied before the link is reported closed.
//   (5) A broker that breaks a rule is disconnected and the log says why; what is kept of it goes
//       only when it exceeds a limit.
//   (6) After Revoke nothing is accepted until the next Open, and a broker of before never again.
//   (7) A generation whose descriptor is certainly no GPU memory is not kept, nor are leases on it;
//       the connection goes on. The descriptor may be a container's, which its broker did not look
//       at: no container can break the link.
//
// Threads: the loop's.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "plugin/keeper/closing.h"
#include "plugin/keeper/kept.h"
#include "plugin/keeper/kept_counters.h"
#include "plugin/keeper/link_view.h"
#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"
#include "runtime/daemon/event_loop.h"
#include "runtime/daemon/worker.h"
#include "runtime/protocol/channel.h"
#include "runtime/protocol/link.h"
#include "runtime/registry/reader.h"

namespace gpushm::plugin {

// What an allocation stands for.
struct LinkGrant {
  std::string gpu;  // UUID: "GPU-..." or "MIG-..."
  uint64_t pool_bytes = 0;
  friend bool operator==(const LinkGrant&, const LinkGrant&) = default;
};

struct GpuHealth {
  bool lost = false;
  std::string reason;
};

class LinkServer {
 public:
  struct Settings {
    int64_t greeting_ms = 5000;  // From connect to Hello.
    int64_t gone_ms = 1000;      // See above; eight times what was measured.
    bool peer_process = true;    // False: as on a kernel before 6.5.
  };

  // `on_open` is called with true and false in turn, `on_ready` as Keeper::Options says; on the
  // loop's thread. They must not call back.
  LinkServer(EventLoop* loop, Worker* closer, const Settings& settings, std::string name,
             std::string path, std::function<void(bool)> on_open,
             std::function<void(double seconds)> on_ready);
  ~LinkServer();
  LinkServer(const LinkServer&) = delete;
  LinkServer& operator=(const LinkServer&) = delete;

  // Listens, also where somebody took the socket's file away. Another grant than before revokes
  // first. kBusy: descriptors of the former holder are still being closed.
  Result<void> Open(const LinkGrant& grant, const GpuHealth& health);
  // The allocation has another holder: what is kept goes, and the broker is disconnected.
  void Revoke();
  // Revokes, and the socket's file goes too.
  void Close();
  void SetHealth(const GpuHealth& health);

  const LinkGrant& grant() const { return grant_; }
  bool granted() const { return granted_; }
  // Not granted, and no process and no descriptor left of it.
  bool finished() const { return !granted_ && !broker_ && closing_->pending() == 0; }
  // Of what was kept; to wait for.
  const std::shared_ptr<Closing>& closing() const { return closing_; }
  LinkView Look();
  // Physical bytes of what is kept.
  uint64_t kept_bytes() const;
  // What the node's sums must not lose: added to `sum` and, of holders that ended since the last
  // call, to `ended`. Tells a broker that is ready.
  void Count(protocol::CounterValues* sum, protocol::CounterValues* ended);
  void AddProcesses(std::vector<ClientProcess>* out) const;

 private:
  struct Connection {
    uint64_t id = 0;
    UniqueFd socket;
    UniqueFd pidfd;  // Until Hello is accepted: then the broker's.
    bool greeted = false;
    bool ended = false;                            // Nothing can be sent any more.
    uint16_t version = protocol::kLinkMinVersion;  // Chosen in Welcome.
    bool said_registry = false;
    bool said_counters = false;
    bool said_end = false;
    std::map<uint64_t, std::string> foreign;  // Generations that were refused, and their names.
    uint64_t greeting_timer = 0;
    uint64_t retry_timer = 0;  // ETOOMANYREFS
    // What is due to it, in this order.
    bool welcome_due = false;
    bool dump_due = false;
    bool device_due = false;
    bool wants_kept = false;
    Kept::Cursor cursor;
    bool waits_for_room = false;
  };
  struct Broker {
    UniqueFd pidfd;  // Invalid: the kernel did not tell.
    uint64_t epoch = 0;
    std::string program;
    uint64_t connection = 0;  // 0: none stands.
    bool revoked = false;
    uint64_t gone_timer = 0;
  };

  // ---- connections
  Result<void> Listen();
  void StopListening();
  void OnAcceptable();
  void Admit(UniqueFd socket);
  Connection* Find(uint64_t id);
  void OnSocket(uint64_t id, uint32_t events);
  // Reads and applies at most `messages`.
  void Read(uint64_t id, int messages);
  void Disconnect(uint64_t id);
  void Break(uint64_t id, const Status& why);
  void Refuse(const Connection& connection, std::string_view program, std::string_view why);

  // ---- the broker
  Result<void> OnMessage(Connection& connection, protocol::Message& message);
  Result<void> OnHello(Connection& connection, protocol::Message& message);
  Result<void> OnStatement(Connection& connection, protocol::LinkKind kind,
                           protocol::Message& message);
  Result<void> RefuseGeneration(Connection& connection, const protocol::LinkGeneration& generation,
                                const Status& why);
  // What the broker takes back that was refused.
  static void Dropped(Connection& connection, const protocol::LinkDrop& drop);
  Result<void> OnRegistry(Connection& connection, protocol::Message& message);
  Result<void> OnCounters(Connection& connection, protocol::Message& message);
  Result<void> OnEnd(Connection& connection, protocol::Message& message);
  bool IsBroker(const Connection& connection, uint64_t epoch) const;
  Result<void> MakeBroker(Connection& connection, const protocol::LinkHello& hello);
  void OnProcessEnded();
  void ForgetKept();
  // Once for each broker, before its counters go.
  void TellReady();
  void CloseRefuse() { closing_->Close(kept_.TakeRefuse()); }

  // ---- sending
  void Flush(uint64_t id);
  // What is due next; `after` becomes the connection once it is sent.
  bool NextDue(const Connection& connection, Kept::Statement* statement, Kept::Cursor* after) const;
  void Sent(Connection& connection, const Kept::Statement& statement, const Kept::Cursor& after);
  void WaitForRoom(Connection& connection);
  void UpdateInterest(const Connection& connection);
  protocol::LinkWelcome Welcome(const Connection& connection) const;

  void LookAtBuffers(LinkView* view) const;

  EventLoop* loop_;
  const Settings settings_;
  const std::string name_;
  const std::string path_;
  const std::function<void(bool)> on_open_;
  const std::function<void(double)> on_ready_;
  std::shared_ptr<Closing> closing_;

  bool granted_ = false;
  LinkGrant grant_;
  std::array<uint8_t, 16> gpu_uuid_{};
  GpuHealth health_;

  UniqueFd listener_;
  std::pair<dev_t, ino_t> listener_file_{};  // Of the socket's file.
  uint64_t accept_timer_ = 0;
  std::map<uint64_t, std::unique_ptr<Connection>> connections_;
  uint64_t next_connection_ = 1;

  std::optional<Broker> broker_;
  std::shared_ptr<const registry::RegistryReader> registry_;
  Kept kept_;
  KeptCounters counters_;
  protocol::CounterValues ended_counters_{};  // Of former holders; until Count.
  bool ready_told_ = false;                   // Of the broker that is there.
  uint64_t kept_epoch_ = 0;                   // Of the broker that stated last.
};

}  // namespace gpushm::plugin
