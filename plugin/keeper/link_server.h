// One allocation's link: its socket and the broker behind it. BrokerStatements has what that broker
// stated, and LinkSender sends it messages.
//
// Terms: a *connection* is an accepted socket; the *broker* is the process whose greeting was
// accepted. The link is *open* until that process has ended: after a SIGKILL, a socket can end 120
// ms before the process has released the device. If the kernel does not report a peer's process
// (before Linux 6.5), the process counts as ended Settings::gone_ms after its socket's end.
//
// Invariants
//   (1) There is one broker at a time. Another process is refused while it lives. The broker itself
//       may connect again. If the kernel cannot identify it (before 6.9, in another PID namespace),
//       the epoch in its Hello does.
//   (2) Nothing here blocks or waits, and nothing is queued. Welcome and Device are made when the
//       socket has room, and the dump has a position. If a broker does not read its dump, the
//       plugin does not read from it either, and nobody else is held up.
//   (3) A wake-up handles a bounded number of messages, so that no link starves another.
//   (4) What a broker sent before its process ended is applied before the link is reported closed.
//   (5) A broker that breaks a rule is disconnected, and the log says why. Its kept state is
//       dropped only if it exceeds a limit: its own, or its share of what all links may take
//       together.
//   (6) After Revoke nothing is accepted until the next Open, and the former broker never again.
//   (7) A descriptor of the wrong kind (not GPU memory, a memfd or a pidfd) is closed immediately,
//       on this link's own thread, and its connection ends. If closing it may block, its process is
//       refused from then on. If the close still blocks after Settings::foreign_ms, the FUSE file
//       system behind it is aborted. Kept state stays. Brokers apply the same rules to what
//       containers offer, so that no container can break its pod's link.
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
#include "platform/base/clock.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "platform/daemon/closing.h"
#include "platform/daemon/descriptor.h"
#include "platform/daemon/event_loop.h"
#include "plugin/keeper/broker_statements.h"
#include "plugin/keeper/kept_state.h"
#include "plugin/keeper/link_sender.h"
#include "plugin/keeper/link_terms.h"
#include "plugin/keeper/link_view.h"

namespace gpushm::plugin::keeper {

// How much of the plugin's memory the statements of all links may take. Used on the loop's thread
// only.
struct StatementBudget {
  uint64_t limit_bytes = 0;
  uint64_t used_bytes = 0;
};

// What happened to a descriptor of the wrong kind that a link received.
enum class ForeignStep {
  kRefused,  // The process that sent it is refused.
  kAborted,  // Closing it blocked, and the FUSE file system behind it was aborted.
  kHeldUp,   // Closing it blocks, and the plugin cannot end that; reported repeatedly.
};

class LinkServer {
 public:
  struct Settings {
    int64_t greeting_ms = 5000;  // From connect to Hello.
    int64_t gone_ms = 1000;      // See above; eight times the measured value.
    int64_t foreign_ms = 2000;   // How long closing a foreign descriptor may take.
    MemoryKind memory = {};
  };
  // All of them are called on the loop's thread, and must not call this object.
  struct Callbacks {
    // True and false alternately.
    std::function<void(bool open)> on_open;
    // As in Keeper::Options.
    std::function<void(double seconds)> on_ready;
    // This link's kept state has grown, and the budget is exceeded. Makes room elsewhere by Evict
    // of other links. kExhausted: this link itself has to be dropped.
    std::function<Result<void>()> make_room;
    std::function<void(ForeignStep)> on_foreign;  // Invariant 7.
  };

  // `path` of the link's socket, `others_path` of the socket for pods that share the claim.
  LinkServer(EventLoop* loop, const Settings& settings, std::string name, std::string path,
             std::string others_path, StatementBudget* budget, Callbacks callbacks);
  ~LinkServer();
  LinkServer(const LinkServer&) = delete;
  LinkServer& operator=(const LinkServer&) = delete;

  // Listens, and restores a socket file that somebody removed. Revokes first if the terms differ.
  // kBusy: the former holder's descriptors are still being closed.
  Result<void> Open(const LinkTerms& terms, const SickGpus& sick);
  // The allocation has another holder: drops what is kept, and disconnects the broker.
  void Revoke();
  // Revokes, and removes the socket file.
  void Close();
  void SetHealth(const std::string& gpu, const GpuHealth& health);
  // Keeper::HandOver for this link: connects as its broker, with its epoch. Blocks until the
  // deadline. Returns the number of generations; 0: nothing is kept.
  Result<uint64_t> HandOver(const Deadline& deadline, const std::function<bool()>& goes_on) const;

  const LinkTerms& terms() const { return terms_; }
  bool allocated() const { return allocated_; }
  // Not allocated, and neither a process nor a descriptor is left.
  bool finished() const { return !allocated_ && !broker_ && closing_->pending() == 0; }
  // For waiting until kept descriptors are closed.
  const std::shared_ptr<Closing>& closing() const { return closing_; }
  // Ends the FUSE file systems whose daemons have held up a close for `held_ms`, and logs and
  // counts each; with `sockets` also logs sockets that do, which nothing can end.
  void AbortHeldUp(int64_t held_ms, bool sockets);
  LinkView Look();
  const KeptState& kept() const { return statements_.kept(); }
  // Physical bytes of the kept buffers on the GPU of that number.
  uint64_t kept_bytes(size_t gpu) const;
  // Processes of other pods that share the claim, which hold leases and have not ended.
  size_t CountUsers() const { return statements_.CountUsers(); }
  // Plugin memory that the kept statements take.
  uint64_t statement_bytes() const { return kept().bytes(); }
  // Its state was dropped once because it took too much.
  bool was_exhausted() const { return exhausted_ > 0; }
  // Drops what is kept and disconnects the broker, because others need the room.
  void Evict(const Status& why);
  // Adds the current counters to `sum`, and those of holders that ended since the last call to
  // `ended`, so that the node's sums lose nothing. Also reports a broker that became ready.
  void Count(protocol::CounterValues* sum, protocol::CounterValues* ended);
  void AddProcesses(NodeProcesses* out) const;

 private:
  struct Connection {
    Connection(uint64_t number, UniqueFd its_socket, EventLoop* loop,
               const LinkSender::Source& source)
        : id(number),
          socket(std::move(its_socket)),
          pidfd(PeerProcess(socket.get())),
          sender(loop, socket.get(), source) {}

    const uint64_t id;
    UniqueFd socket;
    UniqueFd pidfd;  // Moves to the broker when Hello is accepted.
    bool greeted = false;
    uint64_t greeting_timer = 0;
    LinkSender sender;
  };
  struct Broker {
    UniqueFd pidfd;  // Invalid: the kernel did not report it.
    uint64_t epoch = 0;
    std::string program;
    uint64_t connection = 0;  // 0: not connected.
    bool revoked = false;
    uint64_t gone_timer = 0;
  };

  // ---- connections
  Result<void> Listen();
  // A socket file that this object created.
  struct SocketFile {
    UniqueFd socket;
    std::pair<dev_t, ino_t> file{};
    bool IsAt(const std::string& path) const;
  };
  // Creates one, unless `mine` is still there.
  Result<void> MakeSocket(const std::string& path, SocketFile* mine) const;
  // Each broker gets a socket of its own, so that no former one can take its connections.
  Result<void> ListenForOthers();
  void StopOthers();
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
  // (7) Closes the descriptors of a message that nobody took.
  void CloseLeftOver(uint64_t id, std::vector<UniqueFd> descriptors);
  void WatchClosing();
  void LookAtForeign();

  // ---- the broker
  Result<void> OnMessage(Connection& connection, protocol::Message& message);
  Result<void> OnHello(Connection& connection, protocol::Message& message);
  bool IsBroker(const Connection& connection, uint64_t epoch) const;
  Result<void> MakeBroker(Connection& connection, const protocol::LinkHello& hello);
  void OnProcessEnded();
  void ForgetKept();
  // Updates the budget to what is kept now.
  void CountKept();
  // Reports readiness once for each broker, before its counters go.
  void TellReady();
  void CloseDiscarded() { closing_->Close(statements_.TakeDiscarded()); }

  EventLoop* loop_;
  const Settings settings_;
  const std::string name_;
  const std::string path_;
  const std::string others_path_;
  const Callbacks callbacks_;
  StatementBudget* const budget_;
  const std::shared_ptr<Closing> closing_ = std::make_shared<Closing>();
  uint64_t foreign_timer_ = 0;
  std::set<uint64_t> foreign_told_;  // Closing::Held::id of those that were logged.

  bool allocated_ = false;
  LinkTerms terms_;
  std::vector<LinkedGpu> gpus_;  // As in terms_.

  SocketFile listener_;
  SocketFile others_;        // While there is a broker, which accepts connections there.
  std::string said_broken_;  // The reason for which the last stranger was disconnected.
  uint64_t accept_timer_ = 0;
  bool accept_paused_ = false;
  std::map<uint64_t, std::unique_ptr<Connection>> connections_;
  uint64_t next_connection_ = 1;

  std::optional<Broker> broker_;
  BrokerStatements statements_;
  uint64_t counted_bytes_ = 0;  // Bytes of kept() that the budget includes.
  uint64_t exhausted_ = 0;      // Times that everything was dropped for taking too much.
};

}  // namespace gpushm::plugin::keeper
