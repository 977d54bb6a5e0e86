// One generation of a buffer as this process uses it: the mapping, the lease, and whether the name
// still refers to this generation.
//
// Threads: any thread may call the functions of this class. Each field says how it is guarded.
//
// Invariants
//   (1) The mapping lives as long as the object: nothing that the broker does ends it.
//   (2) sighting_ is never null. A replaced Sighting stays until the attachment ends, so that
//       Current() needs no lock. Each broker restart that the bytes survive adds one. A Sighting
//       costs a few bytes and addresses; the memory of the former broker's registry is freed.
//   (3) An orphaned attachment stays orphaned, unless it advances to another generation.
//   (4) Facts change in Advance only, under the locks of session and table. The caller of
//       gpushm_attachment_advance guarantees that nobody else uses the attachment then.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "contract/protocol/messages.h"
#include "platform/base/status.h"
#include "platform/driver/device.h"
#include "platform/driver/stream_fence.h"
#include "runtime/client/handles.h"
#include "runtime/client/ipc_mapping.h"
#include "runtime/client/page_mapping.h"
#include "runtime/client/registry_handle.h"

namespace gpushm::client {

class Client;

// A lease that the broker granted, and the connection over which it came.
struct Lease {
  uint64_t serial = 0;
  uint64_t id = 0;  // 0: no lease.
};

class Attachment {
 public:
  struct Facts {
    Client* client;
    std::string name;
    Access access;
    uint64_t generation;
    uint64_t size_bytes;
    uint64_t mapped_bytes;
    Transport transport;  // kVmm also for blocks.
    uint32_t blocks = 0;  // Allocations, if it is not one whole allocation.
    CUdevice device;
    GpuUuid gpu;
    uint32_t gpu_number = 0;  // Of `gpu` among the pod's GPUs.
    CUdeviceptr address;
    bool unpublished;
    uint64_t peer_devices;
    PeerWay peer_way;
  };
  using Memory = std::variant<DeviceMapping, IpcMapping, std::unique_ptr<PageMapping>>;

  Attachment(Facts facts, Memory memory, Lease lease, RegistryHandle::Reader reader);

  const Facts& facts() const { return facts_; }
  const Handle& handle() const { return handle_; }
  // Called at the last detach. The object may live on until pending work ends.
  void RetireHandle() { handle_.Retire(); }
  // Of a buffer with transport vmm; otherwise null.
  DeviceMapping* device_mapping() { return std::get_if<DeviceMapping>(&memory_); }
  // The mapping has the memory of another generation now. Under the client's table lock.
  void Advance(uint64_t generation, RegistryHandle::Reader reader, Lease lease);
  // Null for a buffer.
  PageMapping* page() const {
    const auto* const page = std::get_if<std::unique_ptr<PageMapping>>(&memory_);
    return page == nullptr ? nullptr : page->get();
  }
  // Whether the mapping can end without waiting for work in streams.
  bool CanEnd() { return AllPassed(&fences) && (page() == nullptr || page()->CanEnd()); }

  // No error while the name still refers to this generation; otherwise kStale or kOrphaned. It
  // costs one load if nothing changed since the last call.
  std::optional<Code> Current() const { return IsKnownCurrent() ? std::nullopt : CurrentSlow(); }
  // Whether that one load shows that it is current. False means "unknown".
  bool IsKnownCurrent() const noexcept {
    const Sighting& seen = Latest();
    return seen.Shows(seen.version.load(std::memory_order_relaxed));
  }
  // Whether the record was current and had content, and has not changed since. One load.
  bool IsUnchangedAndReady() const;
  // Of this generation: as the broker reports it, or else the last value seen or set here.
  uint64_t ContentBytes() const;
  void NoteContent(uint64_t content_bytes) const {
    content_bytes_.store(content_bytes, std::memory_order_relaxed);
  }
  // The current state of the name. 0 if the name is gone or this generation is unpublished.
  uint32_t State() const;
  // Whether its GPU is unhealthy; of a page: all of the pod's are.
  bool device_lost() const;

  // Another broker or another connection has taken over the lease.
  void Adopt(RegistryHandle::Reader reader, Lease lease);
  void Orphan();
  bool orphaned() const { return orphaned_.load(std::memory_order_acquire); }
  void Publish() { unpublished_.store(false, std::memory_order_release); }
  bool unpublished() const { return unpublished_.load(std::memory_order_acquire); }

  Lease lease() const;

  // The last load into this attachment. While the generation is unpublished, only this process
  // knows of it, and a generation that is half filled must not be published.
  enum class Fill : uint8_t { kNone, kRunning, kFailed };
  Fill fill() const { return fill_.load(std::memory_order_acquire); }
  // Returns false if another load is running.
  bool BeginFill();
  void EndFill(Fill how) { fill_.store(how, std::memory_order_release); }
  // The caller takes the bytes that a failed load left.
  void AcceptFill();

  // Guarded by the client's table lock.
  uint32_t count = 1;
  std::vector<StreamFence> fences;

 private:
  // Where the record was last seen. Only the versions change.
  struct Sighting {
    bool Shows(uint64_t expected) const noexcept {
      // Pairs with the release store of PublishSlot and WithdrawSlot.
      return expected != kNever && word->load(std::memory_order_acquire) == expected;
    }
    std::shared_ptr<const void> addresses;  // Keeps the memory of `word` mapped.
    const registry::Word* word;             // The slot's version in the segment.
    uint32_t slot;
    std::atomic<uint64_t> version;        // kNever: not seen.
    std::atomic<uint64_t> ready_version;  // The version at which the state allowed use.
  };
  // An odd value, which no live record ever has.
  static constexpr uint64_t kNever = ~uint64_t{0};

  const Sighting& Latest() const { return *sighting_.load(std::memory_order_acquire); }
  RegistryHandle::Reader LatestReader() const;
  void See(const RegistryHandle::Reader& reader, uint32_t slot, uint64_t version, bool ready) const;
  std::optional<Code> CurrentSlow() const;

  Facts facts_;  // Only Advance changes it.
  Handle handle_{HandleKind::kAttachment, this};
  Memory memory_;
  std::atomic<bool> unpublished_;
  std::atomic<bool> orphaned_{false};
  std::atomic<Fill> fill_{Fill::kNone};
  mutable std::atomic<uint64_t> content_bytes_;
  mutable std::atomic<Sighting*> sighting_;
  mutable std::mutex mutex_;
  Lease lease_;                                               // Under mutex_.
  mutable RegistryHandle::Reader reader_;                     // Under mutex_: of sighting_.
  mutable std::vector<std::unique_ptr<Sighting>> sightings_;  // Under mutex_.
};

}  // namespace gpushm::client
