#include "sidecar/broker/link.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "contract/protocol/counters.h"
#include "platform/base/version.h"
#include "platform/daemon/log.h"
#include "platform/driver/device.h"
#include "platform/yaml/config_error.h"
#include "sidecar/broker/journal.h"

namespace gpushm::broker {
namespace {

using protocol::LinkKind;

// Time between two attempts at start. It is short because a pod waits.
constexpr int kStartRetryMs = 20;
// Time between two attempts later: the first, and the longest. Until a restarted plugin has the
// state again, a broker that is killed loses its buffers.
constexpr int64_t kFirstRetryMs = 100;
constexpr int64_t kLastRetryMs = 500;
constexpr int64_t kGreetingMs = 5'000;
// After this time a statement is sent again if the kernel refused its descriptor (ETOOMANYREFS).
constexpr int64_t kRoomRetryMs = 5;
constexpr int kReadsPerWake = 16;

std::unexpected<Status> Broken(std::string_view rule) {
  return Fail(Code::kCorrupt, Concat("the plugin broke the protocol: ", rule),
              "use plugin and sidecar of the same release");
}

// Checks the numbers in the welcome while messages arrive, because the plugin must not send more.
bool IsTooMuch(const Link::Greeting& greeting) {
  return greeting.clients.size() > greeting.welcome.clients ||
         greeting.kept.buffers.size() > greeting.welcome.buffers ||
         greeting.kept.generations.size() > greeting.welcome.generations ||
         greeting.kept.leases.size() > greeting.welcome.leases;
}

// Adds the GPU that the message names to those before it.
Result<void> TakeGpu(const protocol::Message& message, std::vector<Link::Greeting::Gpu>* gpus) {
  const auto gpu = protocol::ParseLink<protocol::LinkGpu>(message.span());
  if (!gpu) return std::unexpected(gpu.error());
  if (gpu->number != gpus->size()) {
    return Broken(Concat("GPU ", gpu->number, " instead of GPU ", gpus->size()));
  }
  const bool twice = std::ranges::any_of(
      *gpus, [&](const Link::Greeting::Gpu& other) { return other.uuid == gpu->gpu_uuid; });
  if (twice) {
    return Broken(Concat("GPU ", gpu->number, " is one that it named before, ",
                         GpuUuid{gpu->gpu_uuid}.ToString()));
  }
  gpus->push_back({.uuid = gpu->gpu_uuid, .lost = gpu->lost == 1});
  return {};
}

// What is stated of a generation comes at once, after all generations, which are in order. Null:
// there is no such generation.
Generation* FindKept(Link::Greeting* greeting, uint64_t number) {
  auto& generations = greeting->kept.generations;
  const auto found = std::ranges::lower_bound(generations, number, {},
                                              [](const auto& item) { return item.first; });
  return found == generations.end() || found->first != number ? nullptr : &found->second;
}

std::unexpected<Status> OutOfOrder(std::string_view what, uint64_t generation) {
  return Broken(Concat(what, " of generation ", generation,
                       ", which it did not state before, or of which it stated this before"));
}

std::string NoSuchGpu(const protocol::LinkDevice& device,
                      const std::vector<Link::Greeting::Gpu>& gpus) {
  return Concat("health of GPU ", device.gpu, ", but the pod has ", gpus.size());
}

std::string GpusOf(const std::vector<Link::Greeting::Gpu>& gpus) {
  std::string text = gpus.size() == 1 ? "GPU " : "GPUs ";
  for (size_t i = 0; i < gpus.size(); ++i) {
    text += Concat(i == 0 ? "" : " and ", GpuUuid{gpus[i].uuid}.ToString());
  }
  return text;
}

std::string Amounts(const Link::Greeting& greeting) {
  const protocol::LinkWelcome& welcome = greeting.welcome;
  const Ledger::Kept& kept = greeting.kept;
  return Concat(greeting.clients.size(), " of ", welcome.clients, " clients, ", kept.buffers.size(),
                " of ", welcome.buffers, " buffers, ", kept.generations.size(), " of ",
                welcome.generations, " generations, ", kept.leases.size(), " of ", welcome.leases,
                " leases");
}

}  // namespace

Link::Link(EventLoop* loop, Worker* closer, Settings settings)
    : loop_(loop),
      closer_(closer),
      settings_(std::move(settings)),
      path_(Concat(settings_.folder, '/', protocol::kLinkSocketName)),
      retry_ms_(kFirstRetryMs) {}

Link::~Link() {
  if (socket_) loop_->Unwatch(socket_.get());
  loop_->Cancel(timer_);
  loop_->Cancel(room_timer_);
  ClearQueue();
}

// ---- start

Result<Link::Greeting> Link::Greet(int64_t wait_ms) {
  const Deadline deadline = Deadline::AfterMs(wait_ms);
  for (bool first = true;; first = false) {
    Result<Greeting> greeting = TryGreet(deadline);
    if (greeting) {
      welcome_ = greeting->welcome;
      gpus_ = greeting->gpus;
      return greeting;
    }
    const Code code = greeting.error().code();
    if (code != Code::kUnavailable && code != Code::kTimeout) return greeting;
    if (deadline.Passed()) {
      return Fail(Code::kTimeout,
                  Concat("the plugin did not answer at ", path_, " within ", wait_ms,
                         " ms, and the broker cannot start without the GPU that the plugin names: ",
                         greeting.error().what()),
                  "check that gpushm's plugin is running on this node; "
                  "to run without a plugin, use --link none");
    }
    if (first) LogInfo("link-waiting", {{"socket", path_}, {"reason", greeting.error().what()}});
    poll(nullptr, 0, std::min(kStartRetryMs, deadline.RemainingMs()));
  }
}

Result<void> Link::SendHello(int socket, bool want_kept, const Deadline& deadline) {
  protocol::LinkHello hello{};
  hello.min_version = protocol::kLinkMinVersion;
  hello.max_version = protocol::kLinkMaxVersion;
  hello.want_kept = want_kept ? 1 : 0;
  hello.epoch = settings_.epoch;
  hello.program = protocol::ToNameField(Concat("gpushm-broker ", kVersion));
  protocol::Buffer bytes;
  const size_t size = protocol::EncodeLink(hello, &bytes);
  return protocol::Send(socket, {bytes.data(), size}, {}, deadline);
}

Result<Link::Greeting> Link::TryGreet(const Deadline& deadline) {
  Result<UniqueFd> socket = protocol::Connect(path_);
  if (!socket) return std::unexpected(socket.error());
  if (auto sent = SendHello(socket->get(), /*want_kept=*/true, deadline); !sent) {
    return std::unexpected(sent.error());
  }
  Greeting greeting;
  protocol::Message message;
  if (auto r = protocol::Receive(socket->get(), &message, deadline); !r) {
    return std::unexpected(r.error());
  }
  const auto header = protocol::ParseLinkHeader(message.span());
  if (!header) return std::unexpected(header.error());
  if (header->kind != static_cast<uint16_t>(LinkKind::kWelcome)) {
    return Broken(Concat("its first message has kind ", header->kind, ", not that of a welcome, ",
                         static_cast<uint16_t>(LinkKind::kWelcome)));
  }
  const auto welcome = protocol::ParseLink<protocol::LinkWelcome>(message.span());
  if (!welcome) return std::unexpected(welcome.error());
  if (auto agreed = protocol::Agree(*welcome); !agreed) return std::unexpected(agreed.error());
  greeting.welcome = *welcome;
  greeting.gpus = {{.uuid = welcome->gpu_uuid, .lost = welcome->device_lost == 1}};
  while (greeting.gpus.size() <= welcome->other_gpus) {
    if (auto r = protocol::Receive(socket->get(), &message, deadline); !r) {
      return std::unexpected(r.error());
    }
    if (auto r = TakeGpu(message, &greeting.gpus); !r) return std::unexpected(r.error());
  }
  for (;;) {
    if (auto r = protocol::Receive(socket->get(), &message, deadline); !r) {
      return std::unexpected(r.error());
    }
    const Result<bool> more = TakeKept(message, &greeting);
    if (!more) return std::unexpected(more.error());
    if (!*more) break;
  }
  socket_ = std::move(*socket);
  return greeting;
}

// Returns false at the end of the list.
Result<bool> Link::TakeKept(protocol::Message& message, Greeting* greeting) {
  const auto header = protocol::ParseLinkHeader(message.span());
  if (!header) return std::unexpected(header.error());
  UniqueFd descriptor;
  if (message.descriptors.size() > 1) {
    return Broken(Concat(message.descriptors.size(), " descriptors in a message of kind ",
                         header->kind, "; at most 1 is allowed"));
  }
  if (!message.descriptors.empty()) descriptor = std::move(message.descriptors[0]);
  const auto take = [&]<typename T>(T* body) -> Result<bool> {
    const auto parsed = protocol::ParseLink<T>(message.span());
    if (!parsed) return std::unexpected(parsed.error());
    *body = *parsed;
    return true;
  };
  Result<bool> taken = true;
  switch (static_cast<LinkKind>(header->kind)) {
    case LinkKind::kClient: {
      Greeting::Client& client = greeting->clients.emplace_back();
      taken = take(&client.stated);
      client.pidfd = std::move(descriptor);
      greeting->kept.clients[client.stated.client_id] =
          std::string(protocol::FromNameField(client.stated.container));
      break;
    }
    case LinkKind::kBuffer: {
      protocol::LinkBuffer stated{};
      if (taken = take(&stated); taken) greeting->kept.buffers.push_back(ToBuffer(stated));
      break;
    }
    case LinkKind::kGeneration: {
      protocol::LinkGeneration stated{};
      if (taken = take(&stated); !taken) break;
      greeting->kept.generations.push_back(ToGeneration(stated, std::move(descriptor)));
      break;
    }
    case LinkKind::kBlock: {
      protocol::LinkBlock stated{};
      if (taken = take(&stated); !taken) break;
      Generation* const of = FindKept(greeting, stated.generation);
      std::vector<Block>* const blocks = of == nullptr ? nullptr : &of->memory.blocks;
      if (blocks == nullptr || stated.index >= blocks->size() || !descriptor ||
          (*blocks)[stated.index].descriptor ||
          (stated.index > 0 && !(*blocks)[stated.index - 1].descriptor)) {
        return Broken(Concat("block ", stated.index, " of generation ", stated.generation,
                             " is out of order, or came without its descriptor"));
      }
      (*blocks)[stated.index] = {std::move(descriptor), stated.mapped_bytes};
      break;
    }
    case LinkKind::kContent: {
      protocol::LinkContent stated{};
      if (taken = take(&stated); !taken) break;
      Generation* const of = FindKept(greeting, stated.generation);
      if (of == nullptr || of->content_bytes) return OutOfOrder("content", stated.generation);
      of->content_bytes = stated.content_bytes;
      of->digest = stated.digest;
      break;
    }
    case LinkKind::kDescription: {
      protocol::LinkDescription stated{};
      if (taken = take(&stated); !taken) break;
      Generation* const of = FindKept(greeting, stated.generation);
      if (of == nullptr || of->description) return OutOfOrder("a description", stated.generation);
      of->description = std::move(descriptor);
      of->description_bytes = stated.size_bytes;
      break;
    }
    case LinkKind::kLease: {
      protocol::LinkLease stated{};
      if (taken = take(&stated); taken) greeting->kept.leases.push_back(ToLease(stated));
      break;
    }
    case LinkKind::kOthers: {
      protocol::LinkOthers others{};
      taken = take(&others);
      if (taken && !descriptor)
        return Broken("the message that brings the socket for other pods came without it");
      greeting->others = {.socket = std::move(descriptor), .may_write = others.may_write == 1};
      break;
    }
    case LinkKind::kDevice: {
      protocol::LinkDevice device{};
      taken = take(&device);
      if (device.gpu >= greeting->gpus.size()) return Broken(NoSuchGpu(device, greeting->gpus));
      greeting->gpus[device.gpu].lost = device.lost == 1;
      break;
    }
    case LinkKind::kEnd:
      return false;
    default:
      return Broken(Concat("a message out of order: kind ", header->kind));
  }
  if (taken && IsTooMuch(*greeting)) {
    return Broken(Concat("more messages than the welcome announced: ", Amounts(*greeting)));
  }
  return taken;
}

Result<void> Link::Run(int registry, int counters, Events events) {
  registry_ = registry;
  counters_ = counters;
  events_ = std::move(events);
  phase_ = Phase::kUp;
  if (auto watched = Watch(); !watched) return watched;
  LogInfo("link-connected", {{"allocation", protocol::FromNameField(welcome_.allocation)}});
  StateEverything();
  return {};
}

// ---- the connection

Result<void> Link::Watch() {
  return loop_->Watch(socket_.get(), EPOLLIN, [this](uint32_t events) { OnSocket(events); });
}

void Link::Reconnect() {
  timer_ = 0;
  Result<UniqueFd> socket = protocol::Connect(path_);
  Result<void> done;
  if (!socket) {
    done = std::unexpected(socket.error());
  } else {
    socket_ = std::move(*socket);
    done = SendHello(socket_.get(), /*want_kept=*/false, Deadline::AfterMs(0));
    if (done) done = Watch();
  }
  phase_ = Phase::kGreeting;
  next_gpus_.clear();
  if (!done) return Lose("");
  timer_ = loop_->After(kGreetingMs, [this] {
    timer_ = 0;
    Lose("the plugin does not answer");
  });
}

// An empty reason means that a repeated attempt failed, which need not be logged again. Nor need
// the same reason: a plugin of another version refuses each attempt until the node's update has
// ended.
void Link::Lose(std::string_view reason) {
  if (!reason.empty() && reason != said_lost_) {
    said_lost_ = reason;
    LogWarning("link-lost", {{"reason", reason}});
  }
  if (socket_) {
    loop_->Unwatch(socket_.get());
    shutdown(socket_.get(), SHUT_RDWR);
    socket_.Reset();
  }
  loop_->Cancel(timer_);
  loop_->Cancel(std::exchange(room_timer_, 0));
  ClearQueue();
  phase_ = Phase::kDown;
  timer_ = loop_->After(retry_ms_, [this] { Reconnect(); });
  retry_ms_ = std::min(2 * retry_ms_, kLastRetryMs);
}

void Link::OnSocket(uint32_t events) {
  if ((events & EPOLLOUT) != 0) Pump();
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return;
  for (int i = 0; i < kReadsPerWake && socket_; ++i) {
    const Result<bool> taken = OnMessage();
    if (!taken) {
      return Lose(taken.error().code() == Code::kUnavailable ? "the plugin closed the connection"
                                                             : taken.error().what());
    }
    if (!*taken) return;
  }
}

Result<bool> Link::OnMessage() {
  protocol::Message message;
  const Result<bool> received = protocol::TryReceive(socket_.get(), &message);
  if (!received || !*received) return received;
  const auto header = protocol::ParseLinkHeader(message.span());
  if (!header) return std::unexpected(header.error());
  const auto kind = static_cast<LinkKind>(header->kind);
  const size_t expected = kind == LinkKind::kOthers ? 1 : 0;
  if (message.descriptors.size() != expected) {
    return Broken(Concat("a message of kind ", header->kind, " with ", message.descriptors.size(),
                         " descriptors; it has ", expected));
  }
  if (phase_ == Phase::kGreeting &&
      kind == (next_gpus_.empty() ? LinkKind::kWelcome : LinkKind::kGpu)) {
    const auto taken = next_gpus_.empty() ? OnWelcome(message) : OnGpu(message);
    if (!taken) return std::unexpected(taken.error());
    return true;
  }
  if (phase_ == Phase::kUp && kind == LinkKind::kOthers) {
    const auto others = protocol::ParseLink<protocol::LinkOthers>(message.span());
    if (!others) return std::unexpected(others.error());
    events_.on_others(
        {.socket = std::move(message.descriptors[0]), .may_write = others->may_write == 1});
    return true;
  }
  if (phase_ != Phase::kUp || kind != LinkKind::kDevice) {
    return Broken(Concat("a message out of order: kind ", header->kind));
  }
  const auto device = protocol::ParseLink<protocol::LinkDevice>(message.span());
  if (!device) return std::unexpected(device.error());
  if (device->gpu >= gpus_.size()) return Broken(NoSuchGpu(*device, gpus_));
  events_.on_device(device->gpu, device->lost == 1, device->reason.data());
  return true;
}

Result<void> Link::OnWelcome(const protocol::Message& message) {
  const auto welcome = protocol::ParseLink<protocol::LinkWelcome>(message.span());
  if (!welcome) return std::unexpected(welcome.error());
  if (auto agreed = protocol::Agree(*welcome); !agreed) return agreed;
  next_welcome_ = *welcome;
  next_gpus_ = {{.uuid = welcome->gpu_uuid, .lost = welcome->device_lost == 1}};
  return welcome->other_gpus == 0 ? Welcomed() : Result<void>();
}

Result<void> Link::OnGpu(const protocol::Message& message) {
  if (auto taken = TakeGpu(message, &next_gpus_); !taken) return taken;
  return next_gpus_.size() <= next_welcome_.other_gpus ? Result<void>() : Welcomed();
}

Result<void> Link::Welcomed() {
  const bool same_gpus =
      std::ranges::equal(gpus_, next_gpus_, {}, &Greeting::Gpu::uuid, &Greeting::Gpu::uuid);
  if (!same_gpus || next_welcome_.allocation != welcome_.allocation) {
    const auto named = [](const std::vector<Greeting::Gpu>& gpus, const protocol::LinkWelcome& by) {
      return Concat(GpusOf(gpus), ", allocation ",
                    yaml::Quote(protocol::FromNameField(by.allocation)));
    };
    return Fail(Code::kIncompatible,
                Concat("the plugin names a different GPU or allocation than before: ",
                       named(next_gpus_, next_welcome_), " instead of ", named(gpus_, welcome_)),
                "restart the pod, so that its sidecar gets the GPU that the plugin names");
  }
  loop_->Cancel(std::exchange(timer_, 0));
  phase_ = Phase::kUp;
  retry_ms_ = kFirstRetryMs;
  said_lost_.clear();
  LogInfo("link-connected", {{"allocation", protocol::FromNameField(welcome_.allocation)}});
  for (uint32_t gpu = 0; gpu < next_gpus_.size(); ++gpu) {
    events_.on_device(gpu, next_gpus_[gpu].lost, "");
  }
  StateEverything();
  return {};
}

// ---- statements

void Link::StateEverything() {
  Enqueue({protocol::LinkRegistry{settings_.epoch}, registry_});
  if (phase_ == Phase::kUp) {
    Enqueue(
        {protocol::LinkCounters{.version = protocol::kCountersVersion, .reserved = 0}, counters_});
  }
  if (phase_ != Phase::kUp) return;  // No descriptors are left; try again later.
  if (!settings_.pod.empty()) {
    Enqueue({protocol::LinkBrokerPod{protocol::ToPodField(settings_.pod)}});
  }
  stating_ = true;
  events_.on_start();
  Pump();
}

// States the next part of the full state, once the queue is empty.
Result<bool> Link::StateNext() {
  const std::optional<Statement> next = events_.next();
  if (!next) {
    stating_ = false;
    Enqueue({protocol::LinkEnd{}});
    return true;
  }
  const Result<bool> sent = TrySend(*next);
  if (!sent || !*sent) return sent;
  events_.on_stated(*next);
  return true;
}

void Link::State(const Statement& statement) {
  if (phase_ != Phase::kUp) return;
  if (queue_.empty()) {
    const Result<bool> sent = TrySend(statement);
    if (!sent) return Lose(sent.error().what());
    if (*sent) return;
  }
  if (queue_.size() >= kQueuedChanges) return Lose("the plugin does not read its messages");
  Enqueue(statement);
  if (phase_ == Phase::kUp && queue_.size() == 1) WaitForRoom();
}

void Link::Enqueue(const Statement& statement) {
  UniqueFd own;
  if (statement.descriptor >= 0) {
    own.Reset(dup(statement.descriptor));
    if (!own) return Lose("this process has no free descriptors");
  }
  const int descriptor = own.get();
  queue_.push_back({.statement = {statement.body, descriptor}, .own = std::move(own)});
}

Result<bool> Link::TrySend(const Statement& statement) {
  protocol::Buffer bytes;
  const size_t size = std::visit(
      [&](const auto& body) { return protocol::EncodeLink(body, &bytes); }, statement.body);
  const int descriptor = statement.descriptor;
  return protocol::TrySend(socket_.get(), {bytes.data(), size},
                           {&descriptor, descriptor >= 0 ? size_t{1} : 0});
}

void Link::Pump() {
  while (!queue_.empty() || stating_) {
    if (queue_.empty()) {
      const Result<bool> stated = StateNext();
      if (!stated) return Lose(stated.error().what());
      if (!*stated) return WaitForRoom();
      continue;
    }
    const Result<bool> sent = TrySend(queue_.front().statement);
    if (!sent) return Lose(sent.error().what());
    if (!*sent) return WaitForRoom();
    closer_->Close(std::move(queue_.front().own));
    queue_.pop_front();
  }
  loop_->Change(socket_.get(), EPOLLIN);
}

void Link::WaitForRoom() {
  pollfd poller{.fd = socket_.get(), .events = POLLOUT, .revents = 0};
  if (poll(&poller, 1, 0) == 0) {
    loop_->Change(socket_.get(), EPOLLIN | EPOLLOUT);
    return;
  }
  // The socket has room, but too many descriptors are in flight. No event reports when that ends.
  loop_->Change(socket_.get(), EPOLLIN);
  if (room_timer_ != 0) return;
  room_timer_ = loop_->After(kRoomRetryMs, [this] {
    room_timer_ = 0;
    if (phase_ == Phase::kUp) Pump();
  });
}

void Link::ClearQueue() {
  stating_ = false;
  for (Queued& queued : queue_) closer_->Close(std::move(queued.own));
  queue_.clear();
}

}  // namespace gpushm::broker
