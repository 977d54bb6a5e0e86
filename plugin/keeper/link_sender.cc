#include "plugin/keeper/link_sender.h"

#include <poll.h>
#include <sys/epoll.h>

#include <bit>

#include "contract/protocol/channel.h"

namespace gpushm::plugin::keeper {
namespace {

using protocol::LinkKind;

// Invariant 3 of link_server.h.
constexpr int kSendsPerWake = 64;
constexpr int64_t kRetryMs = 5;

}  // namespace

LinkSender::LinkSender(EventLoop* loop, int socket, const Source& source)
    : loop_(loop), socket_(socket), source_(source) {}

LinkSender::~LinkSender() { loop_->Cancel(retry_timer_); }

void LinkSender::Greet(uint16_t version, bool wants_kept) {
  version_ = version;
  wants_kept_ = wants_kept;
  welcome_due_ = true;
  dump_due_ = wants_kept;
  const std::vector<LinkedGpu>& gpus = *source_.gpus;
  gpu_due_ = gpus.size() > 1 ? 1 : 0;
  for (size_t i = 0; i < gpus.size(); ++i) {
    if (gpus[i].health.lost) SayHealth(i);
  }
}

void LinkSender::Flush() {
  if (ended_ || retry_timer_ != 0) return;
  waits_for_room_ = false;
  for (int i = 0; i < kSendsPerWake; ++i) {
    Datagram datagram;
    KeptState::DumpPosition after;
    if (!NextDue(&datagram, &after)) return UpdateInterest();
    const Result<bool> sent = protocol::TrySend(socket_, datagram.span(), datagram.descriptors());
    if (!sent) {
      End();
      return UpdateInterest();
    }
    if (!*sent) return WaitForRoom();
    Sent(datagram.kind, after);
  }
  waits_for_room_ = true;  // Its turn comes again after the other connections'.
  UpdateInterest();
}

void LinkSender::SayVersions() {
  Datagram datagram;
  datagram.Encode(LinkKind::kWelcome, Welcome());
  (void)protocol::TrySend(socket_, datagram.span(), {});
}

void LinkSender::End() {
  ended_ = true;
  dump_due_ = false;
}

void LinkSender::WaitForRoom() {
  pollfd writable{.fd = socket_, .events = POLLOUT, .revents = 0};
  if (poll(&writable, 1, 0) == 0) {
    waits_for_room_ = true;
  } else {
    // ETOOMANYREFS: too many descriptors of this user are in flight, on the whole node. No event
    // reports when that is over.
    retry_timer_ = loop_->After(kRetryMs, [this] {
      retry_timer_ = 0;
      Flush();
    });
  }
  UpdateInterest();
}

void LinkSender::UpdateInterest() {
  const uint32_t reads = dump_due_ ? 0u : uint32_t{EPOLLIN};
  const uint32_t writes = waits_for_room_ && !ended_ ? uint32_t{EPOLLOUT} : 0u;
  loop_->Change(socket_, reads | writes);
}

bool LinkSender::NextDue(Datagram* datagram, KeptState::DumpPosition* after) const {
  const auto encode = [datagram](LinkKind kind, const auto& body, int descriptor = -1) {
    datagram->Encode(kind, body, descriptor);
    return true;
  };
  if (welcome_due_) return encode(LinkKind::kWelcome, Welcome());
  if (gpu_due_ != 0) {
    const LinkedGpu& gpu = (*source_.gpus)[gpu_due_];
    return encode(LinkKind::kGpu,
                  protocol::LinkGpu{
                      .number = gpu_due_, .lost = gpu.health.lost ? 1U : 0U, .gpu_uuid = gpu.uuid});
  }
  if (others_due_) {
    const uint32_t may_write = source_.terms->others == Others::kWrite ? 1U : 0U;
    return encode(LinkKind::kOthers, protocol::LinkOthers{.may_write = may_write, .reserved = 0},
                  source_.others->get());
  }
  if (dump_due_) {
    *after = position_;
    if (source_.kept->Next(after, datagram)) return true;
    return encode(LinkKind::kEnd, protocol::LinkEnd{});
  }
  if (devices_due_ == 0) return false;
  protocol::LinkDevice device{};
  device.gpu = static_cast<uint32_t>(std::countr_zero(devices_due_));
  const GpuHealth& health = (*source_.gpus)[device.gpu].health;
  device.lost = health.lost ? 1 : 0;
  health.reason.copy(device.reason.data(), device.reason.size() - 1);
  return encode(LinkKind::kDevice, device);
}

void LinkSender::Sent(LinkKind kind, const KeptState::DumpPosition& after) {
  switch (kind) {
    case LinkKind::kWelcome:
      welcome_due_ = false;
      return;
    case LinkKind::kEnd:
      dump_due_ = false;
      return;
    case LinkKind::kGpu:
      gpu_due_ = gpu_due_ + 1 < source_.gpus->size() ? gpu_due_ + 1 : 0;
      return;
    case LinkKind::kOthers:
      others_due_ = false;
      return;
    case LinkKind::kDevice:  // The lowest bit, see NextDue.
      devices_due_ &= devices_due_ - 1;
      return;
    default:
      position_ = after;
  }
}

protocol::LinkWelcome LinkSender::Welcome() const {
  const KeptCounts counts = wants_kept_ ? source_.kept->counts() : KeptCounts{};
  const LinkedGpu& first = source_.gpus->front();
  return {.version = version_,
          .other_gpus = static_cast<uint16_t>(source_.gpus->size() - 1),
          .device_lost = first.health.lost ? 1u : 0u,
          .gpu_uuid = first.uuid,
          .pool_bytes = source_.terms->pool_bytes,
          .allocation = protocol::ToNameField(*source_.allocation),
          .clients = counts.clients,
          .buffers = counts.buffers,
          .generations = counts.generations,
          .leases = counts.leases};
}

}  // namespace gpushm::plugin::keeper
