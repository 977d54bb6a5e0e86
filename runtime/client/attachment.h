// One use of one generation of a buffer by this process: the mapping, the lease, and whether it is
// still what stands behind the name.
//
// Threads: the functions of this class from any thread. Fields are guarded as said at each.
//
// Invariants
//   (1) The mapping lives as long as the object: nothing that the broker does ends it.
//   (2) sighting_ is never null. A replaced Sighting stays until the end of the attachment, so that
//       Current() needs no lock; one is added for each broker restart that the bytes survived. It
//       costs some bytes and addresses; the memory of the former broker's registry goes.
//   (3) Orphaned is for ever.
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

// A lease of the broker, by the connection that it came over.
struct Lease {
  uint64_t serial = 0;
  uint64_t id = 0;  // 0: none.
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
    protocol::Transport transport;
    CUdevice device;
    GpuUuid gpu;
    CUdeviceptr address;
    bool unpublished;
    uint64_t peer_devices;
    protocol::PeerWay peer_way;
  };
  using Memory = std::variant<DeviceMapping, IpcMapping, std::unique_ptr<PageMapping>>;

  Attachment(Facts facts, Memory memory, Lease lease, RegistryHandle::Reader reader);

  const Facts& facts() const { return facts_; }
  const Handle& handle() const { return handle_; }
  // At the last detach, which may have to wait for work before the object ends.
  void RetireHandle() { handle_.Retire(); }
  // Null: a buffer.
  PageMapping* page() const {
    const auto* const page = std::get_if<std::unique_ptr<PageMapping>>(&memory_);
    return page == nullptr ? nullptr : page->get();
  }
  // Whether its mapping can end without a wait for work in streams.
  bool CanEnd() { return AllPassed(&fences) && (page() == nullptr || page()->CanEnd()); }

  // No failure while this is what stands behind the name; else kStale or kOrphaned. One load when
  // nothing changed since the last call.
  std::optional<Code> Current() const { return IsKnownCurrent() ? std::nullopt : CurrentSlow(); }
  // Whether it is so by that one load; false says nothing.
  bool IsKnownCurrent() const noexcept {
    const Sighting& seen = Latest();
    return seen.Shows(seen.version.load(std::memory_order_relaxed));
  }
  // Whether the record was seen current and with content, and is unchanged since. One load.
  bool IsUnchangedAndReady() const;
  // Of this generation: as the broker shows it, or as it was last seen or said here.
  uint64_t ContentBytes() const;
  void NoteContent(uint64_t content_bytes) const {
    content_bytes_.store(content_bytes, std::memory_order_relaxed);
  }
  // Of the name now; 0: it is gone. Also 0 while unpublished.
  uint32_t State() const;
  bool device_lost() const;

  // Remembers what a look-up in `reader` said of this generation.
  void NoteSeen(const RegistryHandle::Reader& reader, const registry::Found& found);

  // Another broker, or another connection, has taken the lease over.
  void Adopt(RegistryHandle::Reader reader, Lease lease);
  void Orphan();
  bool orphaned() const { return orphaned_.load(std::memory_order_acquire); }
  void Publish() { unpublished_.store(false, std::memory_order_release); }
  bool unpublished() const { return unpublished_.load(std::memory_order_acquire); }

  Lease lease() const;

  // With the client's table lock.
  uint32_t count = 1;
  std::vector<StreamFence> fences;

 private:
  // Where the record was last seen. Versions move, the rest does not.
  struct Sighting {
    bool Shows(uint64_t expected) const noexcept {
      // Pairs with the release store of PublishSlot and WithdrawSlot.
      return expected != kNever && word->load(std::memory_order_acquire) == expected;
    }
    std::shared_ptr<const void> addresses;  // Of `word`.
    const registry::Word* word;             // The slot's version in the segment.
    uint32_t slot;
    std::atomic<uint64_t> version;        // kNever: not seen.
    std::atomic<uint64_t> ready_version;  // At which the state allowed use.
  };
  // Odd: no live record ever has it.
  static constexpr uint64_t kNever = ~uint64_t{0};

  const Sighting& Latest() const { return *sighting_.load(std::memory_order_acquire); }
  RegistryHandle::Reader LatestReader() const;
  void See(const RegistryHandle::Reader& reader, uint32_t slot, uint64_t version, bool ready) const;
  std::optional<Code> CurrentSlow() const;

  const Facts facts_;
  Handle handle_{HandleKind::kAttachment, this};
  const Memory memory_;
  std::atomic<bool> unpublished_;
  std::atomic<bool> orphaned_{false};
  mutable std::atomic<uint64_t> content_bytes_;
  mutable std::atomic<Sighting*> sighting_;
  mutable std::mutex mutex_;
  Lease lease_;                                               // Under mutex_.
  mutable RegistryHandle::Reader reader_;                     // Under mutex_: of sighting_.
  mutable std::vector<std::unique_ptr<Sighting>> sightings_;  // Under mutex_.
};

}  // namespace gpushm::client
