#include "runtime/client/sync/open_page.h"

#include <time.h>

#include <algorithm>

#include "contract/limits.h"
#include "platform/driver/stream_waits.h"

namespace gpushm::client {

using sync::Page;
using sync::Point;

namespace {

constexpr int64_t kLongestStepNs = 50'000'000;
constexpr int64_t kWhoIsMs = 50;

}  // namespace

Result<OpenPage> OpenPage::Attach(Client* client, std::string_view name,
                                  const AttachOptions& options,
                                  std::initializer_list<sync::Kind> kinds, const Wait& wait) {
  AttachOptions asked = options;
  asked.kind = sync::KindName(*kinds.begin());
  const Result<Attachment*> attached = client::Attach(client, name, asked, wait);
  if (!attached) return std::unexpected(attached.error());
  Held held(client, *attached);
  const PageMapping& mapping = *held->page();
  const Result<Page> page = Page::Look(mapping.address(), mapping.bytes());
  if (!page) return std::unexpected(page.error());
  if (std::find(kinds.begin(), kinds.end(), page->kind()) == kinds.end()) {
    return Fail(Code::kInvalidArgument,
                Concat('"', name, "\" is a ", sync::KindName(page->kind()), ", not a ",
                       sync::KindName(*kinds.begin())),
                "open it with the call for its kind, or use another name");
  }
  return OpenPage(std::move(held), *page);
}

Result<OpenPage> OpenPage::Make(Client* client, std::string_view name, const Layout& layout,
                                const MakeOptions& options, const Wait& wait) {
  const Result<Attachment*> made =
      MakePage(client, name, sync::BytesFor(layout.cells, layout.body_bytes), options, wait);
  if (!made) return std::unexpected(made.error());
  Held held(client, *made);
  const PageMapping& mapping = *held->page();
  const Page page = Page::Make(mapping.address(), mapping.bytes(), layout.kind, layout.cells,
                               layout.body_bytes, layout.settings);
  return OpenPage(std::move(held), page);
}

void OpenPage::SetSettings(const std::array<uint64_t, 8>& settings) {
  page_ = Page::Make(page_.address(), page_.mapped_bytes(), page_.kind(), page_.cells(),
                     page_.body().size(), settings);
}

void OpenPage::RingAlarm() const {
  // In one order with a listener, who gets its alarm first and looks at the page afterwards.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const uint64_t number = page_.alarm().load(std::memory_order_acquire);
  if (number != 0) alarm_->Ring(client(), attachment().lease(), number);
}

Result<UniqueFd> OpenPage::HearAlarm(const Lease& lease, uint64_t connection,
                                     const Deadline& deadline) const {
  if (lease.id == 0) return Fail(Code::kOrphaned, "the broker does not know it");
  return alarm_->Hear(client(), lease, connection, deadline);
}

Result<void> OpenPage::CheckKnown() const {
  if (!attachment().orphaned()) return {};
  return Fail(
      Code::kOrphaned,
      Concat("the pod's broker restarted and does not know this ", sync::KindName(page_.kind())),
      "close it, then open it again");
}

std::string OpenPage::WhoAre(std::span<const uint64_t> leases) const {
  const std::lock_guard lock(names_->mutex);
  auto& known = names_->by_lease;
  const auto is_known = [&](uint64_t lease) { return known.contains(lease); };
  if (!std::ranges::all_of(leases, is_known)) {
    // Leases come and go, and only errors need their names: the map keeps a few at a time.
    if (known.size() >= limits::kCells) known.clear();
    const auto holders =
        Holders(client(), name(),
                Wait{Deadline::AfterMs(0), Deadline::AfterMs(kWhoIsMs), /*dont_wait=*/true});
    for (const protocol::HolderEntry& holder :
         holders.value_or(std::vector<protocol::HolderEntry>())) {
      if (std::ranges::find(leases, holder.lease_id) == leases.end()) continue;
      known.insert_or_assign(holder.lease_id,
                             Concat("container \"", protocol::FromNameField(holder.container),
                                    "\" (client ", holder.client_id, ')'));
    }
  }
  std::string who;
  for (const uint64_t lease : leases) {
    who += who.empty() ? "" : ", ";
    who += is_known(lease) ? known[lease] : Concat("lease ", lease);
  }
  return who;
}

Result<void> OpenPage::CheckNoStreamWaits() const {
  if (!StreamWaits::Instance().HasPending(page_.address(), page_.mapped_bytes())) return {};
  return Fail(Code::kBusy, "a stream of this process still waits for it",
              "synchronise the stream, then close it");
}

// ---- streams

Result<CUdeviceptr> OpenPage::OnGpu(const sync::Word& word) const {
  const Result<const CudaApi*> api = client()->driver().Api();
  if (!api) return std::unexpected(api.error());
  return held_->page()->OnGpu(**api, word);
}

Result<void> OpenPage::CheckStream(CUstream stream) const {
  const Result<const CudaApi*> api = client()->driver().Api();
  if (!api) return std::unexpected(api.error());
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  if (auto done =
          (*api)->Check((*api)->cuStreamIsCapturing(stream, &capture), "cuStreamIsCapturing");
      !done) {
    return done;
  }
  if (capture != CU_STREAM_CAPTURE_STATUS_NONE) {
    return Fail(Code::kUnsupported,
                Concat("stream ", static_cast<const void*>(stream),
                       " is being captured, and each launch of the graph would use the same value"),
                "signal from a kernel of the graph (gpushm/device.cuh), or outside of the graph");
  }
  const Result<CUdeviceptr> there = OnGpu(cell(0).value);
  if (!there) return std::unexpected(there.error());
  return {};
}

Result<void> OpenPage::Store(CUstream stream, const Point& point) const {
  const Result<CUdeviceptr> at = OnGpu(*point.word);
  if (!at) return std::unexpected(at.error());
  const CudaApi& api = **client()->driver().Api();
  const std::lock_guard lock(stores_->mutex);
  auto& fences = stores_->fences;
  if (fences.size() >= kFences) {
    std::erase_if(fences, [](const auto& item) { return item.second.HasPassed(); });
  }
  auto fence = fences.find(stream);
  if (fence == fences.end()) {
    auto made = StreamFence::Make(api);
    if (!made) return std::unexpected(made.error());
    fence = fences.emplace(stream, std::move(*made)).first;
  }
  // The driver's default contains a barrier, which makes earlier work visible to all.
  auto done =
      api.Check(api.cuStreamWriteValue64(stream, *at, point.value, CU_STREAM_WRITE_VALUE_DEFAULT),
                "cuStreamWriteValue64");
  if (!done) return done;
  if (!fence->second.Move(stream)) {
    // The fence belongs to a former context, whose stream had the same address.
    if (auto made = StreamFence::Record(api, stream)) fence->second = std::move(*made);
  }
  return {};
}

bool OpenPage::HasPendingStores() const {
  const std::lock_guard lock(stores_->mutex);
  return std::ranges::any_of(stores_->fences,
                             [](const auto& item) { return !item.second.HasPassed(); });
}

Result<void> OpenPage::Await(CUstream stream, const Point& point) const {
  StreamWaits& waits = StreamWaits::Instance(**client()->driver().Api());
  if (auto room = waits.Add(stream, *point.word, point.value); !room) return room;
  auto done = AwaitCounted(stream, point);
  if (!done) waits.Remove(stream, *point.word, point.value);
  return done;
}

Result<void> OpenPage::AwaitCounted(CUstream stream, const Point& point) const {
  const Result<CUdeviceptr> at = OnGpu(*point.word);
  if (!at) return std::unexpected(at.error());
  const CudaApi& api = **client()->driver().Api();
  return api.Check(api.cuStreamWaitValue64(stream, *at, point.value, CU_STREAM_WAIT_VALUE_GEQ),
                   "cuStreamWaitValue64");
}

// ---- waiting to open

bool OpenRetries::Again() {
  const int64_t left_ns = deadline_.RemainingNs();
  if (left_ns == 0) return false;
  const timespec time{.tv_sec = 0, .tv_nsec = std::min(step_ns_, left_ns)};
  nanosleep(&time, nullptr);
  step_ns_ = std::min(step_ns_ * 5 / 4, kLongestStepNs);
  return true;
}

}  // namespace gpushm::client
