// What the plugin sends on one connection of a link: the greeting, the kept state if the broker
// requested it, the socket for other pods, and each change of a GPU's health.
//
// Nothing is queued. A message is made when the socket has room for it, and a dump has a position
// in the kept state.
//
// Threads: the loop's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "contract/protocol/link.h"
#include "platform/base/unique_fd.h"
#include "platform/daemon/event_loop.h"
#include "plugin/keeper/kept_state.h"
#include "plugin/keeper/link_terms.h"

namespace gpushm::plugin::keeper {

class LinkSender {
 public:
  // The link's, as they are when a message is made. They must outlive this object.
  struct Source {
    const std::string* allocation;
    const LinkTerms* terms;
    const std::vector<LinkedGpu>* gpus;
    const KeptState* kept;
    const UniqueFd* others;  // The socket on which the broker accepts other pods.
  };

  // The loop watches the socket already.
  LinkSender(EventLoop* loop, int socket, const Source& source);
  ~LinkSender();
  LinkSender(const LinkSender&) = delete;
  LinkSender& operator=(const LinkSender&) = delete;

  // What is due is sent by Flush.
  void Greet(uint16_t version, bool wants_kept);
  void SayOthers() { others_due_ = true; }
  void SayHealth(size_t gpu) { devices_due_ |= 1U << gpu; }
  // Sends as much as the socket has room for, and the rest by itself, except that the caller must
  // call it again when the socket is writable.
  void Flush();
  // Tells a broker of another version which ones the plugin supports, if the socket has room.
  void SayVersions();

  // Nothing can be sent any more. What the broker sent before is still to be read.
  void End();
  // A dump is due: nothing is read from the broker until it is sent.
  bool dumps() const { return dump_due_; }

 private:
  // `after` is position_ once it is sent. False: nothing is due.
  bool NextDue(Datagram* datagram, KeptState::DumpPosition* after) const;
  void Sent(protocol::LinkKind kind, const KeptState::DumpPosition& after);
  void WaitForRoom();
  void UpdateInterest();
  protocol::LinkWelcome Welcome() const;

  EventLoop* const loop_;
  const int socket_;
  const Source source_;
  uint16_t version_ = protocol::kLinkMinVersion;  // Chosen in Welcome.
  bool wants_kept_ = false;
  bool ended_ = false;
  uint64_t retry_timer_ = 0;  // ETOOMANYREFS
  bool waits_for_room_ = false;
  // What has to be sent, in this order.
  bool welcome_due_ = false;
  uint32_t gpu_due_ = 0;  // The number of the next Gpu message; 0: none.
  bool others_due_ = false;
  bool dump_due_ = false;
  uint32_t devices_due_ = 0;  // Bit i: a Device message about GPU number i.
  KeptState::DumpPosition position_;
};

}  // namespace gpushm::plugin::keeper
