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
//       only when it exceeds a limit, its own or its share of what all links may take together.
//   (6) After Revoke nothing is accepted until the next Open, and a broker of before never again.
//   (7) A descriptor that is not what it has to be (GPU memory, a memfd, a pidfd) is closed at once
//       on this link's own thread, and its connection ends. If closing it may block, its process is
//       refused from then on, and if the close is still held up after Settings::foreign_ms, the
//       FUSE file system behind it is aborted. What was kept stays. Brokers look at what containers
//       offer by the same rules, so that no container can break its pod's link.
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
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contract/protocol/channel.h"
#include "contract/protocol/link.h"
#include "contract/registry/reader.h"
#include "platform/base/clock.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "platform/daemon/closing.h"
#include "platform/daemon/descriptor.h"
#include "platform/daemon/event_loop.h"
#include "plugin/keeper/kept.h"
#include "plugin/keeper/kept_counters.h"
#include "plugin/keeper/link_view.h"

namespace gpushm::plugin {

// What an allocation stands for.
struct LinkGrant {
  std::string gpu;  // UUID: "GPU-..." or "MIG-..."
  uint64_t pool_bytes = 0;
  std::string pod = {};  // "namespace/name", for the log; empty: not known.
  friend bool operator==(const LinkGrant&, const LinkGrant&) = default;
};

// What the statements of all links together may take of the plugin's memory. The loop's.
struct StatementBudget {
  uint64_t limit_bytes = 0;
  uint64_t used_bytes = 0;
};

// What happened to a descriptor that a link was sent and that is not what it has to be.
enum class ForeignStep {
  kRefused,  // The process that sent it is refused.
  kAborted,  // Closing it was held up, and the FUSE file system behind it was aborted.
  kHeldUp,   // Closing it is held up, and that could not be ended; told again and again.
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
    int64_t foreign_ms = 2000;   // Closing a foreign descriptor may take so long.
    MemoryKind memory = {};
  };
  // All of it is called on the loop's thread, and must not call this object.
  struct Callbacks {
    // True and false in turn.
    std::function<void(bool open)> on_open;
    // As Keeper::Options says.
    std::function<void(double seconds)> on_ready;
    // What is kept of this link has grown, and the budget is exceeded. Makes room elsewhere, with
    // Evict of other links; kExhausted: it is this one that has to go.
    std::function<Result<void>()> make_room;
    std::function<void(ForeignStep)> on_foreign;  // (7)
  };

  LinkServer(EventLoop* loop, const Settings& settings, std::string name, std::string path,
             StatementBudget* budget, Callbacks callbacks);
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
  // Keeper::HandOver of this link: as its broker, with its epoch. Blocks until the deadline. How
  // many generations; 0: nothing is kept.
  Result<uint64_t> HandOver(const Deadline& deadline, const std::function<bool()>& goes_on) const;

  const LinkGrant& grant() const { return grant_; }
  bool granted() const { return granted_; }
  // Not granted, and no process and no descriptor left of it.
  bool finished() const { return !granted_ && !broker_ && closing_->pending() == 0; }
  // Of what was kept; to wait for.
  const std::shared_ptr<Closing>& closing() const { return closing_; }
  // Ends the FUSE file systems whose daemons have held up a close for `held_ms`, and logs and
  // counts each; with `sockets` also logs sockets that do, which nothing can end.
  void AbortHeldUp(int64_t held_ms, bool sockets);
  LinkView Look();
  // Physical bytes of what is kept.
  uint64_t kept_bytes() const;
  // What the statements that are kept take of the plugin's memory.
  uint64_t statement_bytes() const { return kept_.bytes(); }
  // It was dropped once for taking too much.
  bool was_exhausted() const { return exhausted_ > 0; }
  // Others need the room: what is kept goes, and the broker is disconnected.
  void Evict(const Status& why);
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
  // Whether the socket's file is the one that this object made.
  bool IsOurs() const;
  void StopListening();
  void OnAcceptable();
  void PauseAccepting(std::string_view reason);
  void Admit(UniqueFd socket);
  Connection* Find(uint64_t id);
  void OnSocket(uint64_t id, uint32_t events);
  // Reads and applies at most `messages`.
  void Read(uint64_t id, int messages);
  void Disconnect(uint64_t id);
  void Break(uint64_t id, const Status& why);
  // (7) Of what a message brought and nobody took.
  void CloseLeftOver(uint64_t id, std::vector<UniqueFd> descriptors);
  void WatchClosing();
  void LookAtForeign();

  // ---- the broker
  Result<void> OnMessage(Connection& connection, protocol::Message& message);
  Result<void> OnHello(Connection& connection, protocol::Message& message);
  Result<void> OnStatement(Connection& connection, protocol::LinkKind kind,
                           protocol::Message& message);
  Result<void> CheckGeneration(const protocol::LinkGeneration& generation, int descriptor) const;
  Result<void> OnRegistry(Connection& connection, protocol::Message& message);
  Result<void> OnCounters(Connection& connection, protocol::Message& message);
  Result<void> OnEnd(Connection& connection, protocol::Message& message);
  bool IsBroker(const Connection& connection, uint64_t epoch) const;
  Result<void> MakeBroker(Connection& connection, const protocol::LinkHello& hello);
  void OnProcessEnded();
  void ForgetKept();
  // The budget has what kept_ takes now.
  void CountKept();
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
  const Callbacks callbacks_;
  StatementBudget* const budget_;
  const std::shared_ptr<Closing> closing_ = std::make_shared<Closing>();
  uint64_t foreign_timer_ = 0;
  std::set<uint64_t> foreign_told_;  // Closing::Held::id of what the log has.

  bool granted_ = false;
  LinkGrant grant_;
  std::array<uint8_t, 16> gpu_uuid_{};
  GpuHealth health_;

  UniqueFd listener_;
  std::pair<dev_t, ino_t> listener_file_{};  // Of the socket's file.
  uint64_t accept_timer_ = 0;
  bool accept_paused_ = false;
  std::map<uint64_t, std::unique_ptr<Connection>> connections_;
  uint64_t next_connection_ = 1;

  std::optional<Broker> broker_;
  std::shared_ptr<const registry::RegistryReader> registry_;
  Kept kept_;
  uint64_t counted_bytes_ = 0;  // Of kept_, in the budget.
  uint64_t exhausted_ = 0;      // Times that all of it was dropped for taking too much.
  KeptCounters counters_;
  protocol::CounterValues ended_counters_{};  // Of former holders; until Count.
  bool ready_told_ = false;                   // Of the broker that is there.
  uint64_t kept_epoch_ = 0;                   // Of the broker that stated last.
};

}  // namespace gpushm::plugin
