// What the broker knows: names, the memory behind them, who holds it, and the rights of each. It is
// pure bookkeeping, without a socket, a driver or a clock. The server passes requests on, the
// ledger decides, and the registry shows the result.
//
// It consists of objects with a contract of their own: Policy (rights), Content (the state of a
// buffer), Generations with Budget (memory, and how much of it), Leases (who holds what). The
// Journal states its changes for a successor.
//
// Invariants
//   (1) A generation exists while it is current, pending (unpublished) or held by a lease. When
//       none of these holds, the caller gets its memory to free it, exactly once.
//   (2) A lease ends by Detach or by EndClient, which the server calls when the kernel reports that
//       the process has ended.
//   (3) Every change that peers see appears in TakeChanges() once, in order.
//   (4) Every change that a successor must know is noted in the journal once, at once, in an order
//       that link.h allows. Restore() accepts every prefix. An operation in progress is either done
//       or undone in it, and a buffer that has content before and after also has it in between.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "contract/annotations/annotations.h"
#include "contract/limits.h"
#include "contract/registry/record.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "platform/driver/device.h"
#include "sidecar/broker/budget.h"
#include "sidecar/broker/content.h"
#include "sidecar/broker/generations.h"
#include "sidecar/broker/leases.h"
#include "sidecar/broker/policy.h"

namespace gpushm::broker {

class Journal;

// A name and what is behind it.
struct Buffer {
  uint64_t id = 0;  // Unique to this buffer; a name can be used again.
  Policy policy;
  uint32_t gpu = 0;      // Of all of its generations.
  uint64_t current = 0;  // 0 if none is published yet.
  uint64_t pending = 0;  // Unpublished.
  bool allocating = false;
  bool writer_reserved = false;  // By a replacement in progress that attaches.
  Content content;               // Of `current`.

  bool has_memory() const { return (current | pending) != 0; }
};

// What an attach gives. The ledger owns the memory.
struct Grant {
  uint64_t lease_id = 0;
  uint64_t generation = 0;
  Access access = Access::kRead;
  const Memory* memory = nullptr;
};

// A change that peers see: the record to show under `name`, or nullopt if there is none any more.
struct Change {
  std::string name;
  std::optional<registry::BufferRecord> record;
  std::string reason{};  // Its text, if the record has one.
};

struct LedgerLimits {
  uint64_t pool_bytes = 0;  // On each GPU.
  uint64_t granularity = 2 << 20;
  uint32_t buffers = limits::kBuffers;
  uint32_t leases = limits::kLeases;
  uint32_t containers = 1;  // Containers that the broker serves; each keeps a share of the leases.
  bool one_socket = false;  // For all containers, so it cannot tell the loader of a file apart.
};

class Ledger {
 public:
  // `gpus` are the pod's GPUs in the order of their numbers, at least one. Its generations have
  // numbers from `first_generation` on.
  Ledger(const LedgerLimits& ledger_limits, const std::vector<LedgerGpu>& gpus,
         uint64_t first_generation);

  // ---- making. Begin* decides and reserves. The caller then allocates and calls Commit or Abort
  // with the ticket. A null `client` is the broker itself (declared buffers).
  struct Making {
    bool attach = false;       // Who makes it gets a write lease.
    bool unpublished = false;  // Others see it only after Publish.
    // See Policy. For a replacement: false if the previous generation's was false.
    bool until_unused = false;
    uint32_t gpu = 0;   // Of a new name; a replacement stays on its GPU.
    bool page = false;  // Of a signal, barrier or ring: see BeginPage.
  };
  struct Ticket {
    std::string name;
    uint64_t size_bytes = 0;
    uint64_t mapped_bytes = 0;
    Making how;  // `gpu`: where to allocate.
    bool replaces = false;
    bool starts_loading = false;
    Client client;           // id 0 for the broker.
    uint64_t buffer_id = 0;  // The name may belong to a different buffer by the time of Commit.
  };
  // A declared name that was dropped is only made again on its own GPU.
  Result<Ticket> BeginCreate(const Client& client, const std::string& name, uint64_t size_bytes,
                             const Policy& policy, const Making& how);
  Result<Ticket> BeginDeclared(const annotations::BufferSpec& spec);
  // A page that nobody has attached; Commit shows it.
  Result<Ticket> BeginDeclared(const annotations::SignalSpec& spec, uint64_t page_bytes);
  Result<Ticket> BeginReplace(const Client& client, const std::string& name, uint64_t size_bytes,
                              const Making& how);
  // The page of a signal, barrier or ring, attached and unpublished. It is host memory and not part
  // of the pool. `after_generation` is as in protocol::MakePageRequest. policy.until_unused also
  // applies to a later generation, see Ticket.
  Result<Ticket> BeginPage(const Client& client, const std::string& name, uint64_t size_bytes,
                           const Policy& policy, uint64_t after_generation);
  // `client_alive` is false if the requester has ended meanwhile. Memory that nobody could see, or
  // that only the requester would have written, is then dropped (kPeerDied). Fails with kNotFound
  // if the buffer was removed meanwhile.
  Result<Grant> Commit(const Ticket& ticket, Memory memory, bool client_alive, int64_t now_unix_ns);
  void Abort(const Ticket& ticket);

  // Adds offered memory, in one step because nothing is allocated. Takes *memory only on success.
  // Fails with kInvalidArgument if it is larger than its GPU, and with kExhausted if it is together
  // with the other offers there.
  Result<uint64_t> Offer(const Client& client, const std::string& name, const Policy& policy,
                         Memory* memory, int64_t now_unix_ns);

  Result<void> Publish(const Client& client, uint64_t lease_id);
  Result<void> Delete(const Client& client, const std::string& name);

  // ---- using
  Result<Grant> Attach(const Client& client, const std::string& name, Access access,
                       uint64_t generation, const GpuUuid& sees_gpu, int64_t now_unix_ns,
                       protocol::PeerWay way = protocol::PeerWay::kNone);
  Result<void> Detach(const Client& client, uint64_t lease_id);
  // What ended with a client, for the log.
  struct Ended {
    size_t leases = 0;
    std::vector<std::string> marked;   // Buffers whose writer died.
    std::vector<std::string> dropped;  // Buffers or generations that were dropped with the client.
  };
  // Makes a few changes and statements for each generation that the client wrote, whatever the
  // number of its leases. The caller then states that the client has ended, which drops the leases.
  Ended EndClient(uint64_t client_id);
  bool IsPage(const std::string& name) const;
  // The memory of one of the client's leases. Owned by the ledger.
  Result<Memory*> MemoryOf(const Client& client, uint64_t lease_id);
  // Blocks of all generations.
  size_t block_count() const { return generations_.budget().block_count(); }

  // ---- content
  // `digest`: of content that is complete. It is kept until somebody else may write there
  // (docs/design/digest.md).
  Result<void> SetContent(const Client& client, uint64_t lease_id, uint64_t loaded_bytes,
                          bool complete, const Digest& digest = {});
  // Who may write the buffer, or load it first, states why it has no content. If that does not
  // pass, a LOADING buffer becomes FAILED. It has no effect on a buffer that has its content, or
  // that another client loads. The reason of a load in progress remains if that load is given up;
  // the next SetContent, and the next generation, remove it. A successor does not know it: whoever
  // waits states it again.
  Result<void> StateReason(const Client& client, const std::string& name, Reason reason);

  // ---- descriptions (docs/design/descriptions.md)
  // The caller has checked that `memory` is sealed and has that many bytes. It is taken on success.
  Result<void> SetDescription(const Client& client, uint64_t lease_id, UniqueFd* memory,
                              uint64_t bytes);
  struct Description {
    uint64_t generation = 0;
    uint64_t bytes = 0;   // 0: it has none.
    int descriptor = -1;  // Owned by the ledger.
  };
  // `generation` 0: the current one.
  Result<Description> FindDescription(const Client& client, const std::string& name,
                                      uint64_t generation) const;

  // ---- looking
  // In the order of their numbers. An empty name: on all.
  std::vector<const Lease*> Holders(const std::string& name, uint64_t after_lease_id,
                                    size_t at_most) const {
    return leases_.Holders(name, after_lease_id, at_most);
  }
  uint32_t gpu_count() const { return generations_.budget().gpu_count(); }
  uint64_t used_bytes(uint32_t gpu) const { return generations_.budget().gpu(gpu).used_bytes; }
  // Of each GPU.
  uint64_t pool_bytes() const { return generations_.budget().pool_bytes(); }
  // The number of the GPU of all memory of that name; nullopt if there is no such buffer, or if it
  // is a page, which needs no GPU.
  std::optional<uint32_t> GpuOf(const std::string& name) const;
  size_t lease_count() const { return leases_.all().size(); }
  size_t buffer_count() const { return buffers_.size(); }
  bool HasLeases(uint64_t client_id) const;
  const Leases::OfClient& HeldBy(uint64_t client_id) const { return leases_.ByClient(client_id); }
  std::vector<registry::BufferRecord> Records() const;

  // For the journal, and for a walk over everything.
  const std::map<std::string, Buffer>& buffers() const { return buffers_; }
  const std::map<std::string, Policy>& declared() const { return declared_; }
  const Generations& generations() const { return generations_; }
  const Leases& leases() const { return leases_; }
  // Notes everything there from now on. It must outlive the ledger, or its last call.
  void KeepJournal(Journal* journal) { journal_ = journal; }

  // ---- effects of the calls above. The caller carries them out before it answers, in this order:
  // it ends cells, sends what the journal has to the plugin, shows the changes, frees the memory.
  // A successor must not miss a cell that nobody ended, so it must not know of a lease's end before
  // that. Peers see nothing that the plugin was not told. Statements carry descriptors of memory,
  // which are valid until it is freed.

  // Leases that may have owned cells of pages and have ended; their cells must be ended too.
  struct EndedParticipant {
    uint64_t lease_id = 0;
    bool died = false;
    // Descriptors, owned by the ledger. -1: it has no alarm.
    int page = -1;
    int alarm = -1;
  };
  std::vector<EndedParticipant> TakeEndedParticipants() { return std::exchange(parted_, {}); }
  std::vector<Change> TakeChanges() { return std::exchange(changes_, {}); }
  std::vector<Memory> TakeFreed() { return generations_.TakeFreed(); }
  // All memory, whoever holds it, for the broker's end. The ledger cannot be used after this.
  std::vector<Memory> LetGo() { return generations_.LetGo(); }

  // ---- being a successor (ledger_restore.cc)
  // What the earlier broker stated, with numbers and names. Each was validated by itself, see
  // link.h; Restore() checks the rules between them.
  struct Kept {
    std::map<uint64_t, std::string> clients;  // Their containers.
    std::vector<std::pair<std::string, Buffer>> buffers;
    // The blocks of one that was not stated whole have no descriptors.
    std::vector<std::pair<uint64_t, Generation>> generations;
    std::vector<Lease> leases;  // Without their containers and names.
  };
  struct Restored {
    std::set<std::string> settled;     // Declared names that must not be made again.
    std::vector<std::string> dropped;  // Descriptions of what was inconsistent.
  };
  // Only for a ledger that is still empty. The rules of declared names come from `declared`.
  // Whatever is inconsistent with the rest is dropped, and memory that nothing refers to is in
  // TakeFreed(). Later numbers are above all kept ones. A load that was in progress becomes FAILED,
  // except for buffers that load from a file: these are LOADING, and the caller starts the load
  // again.
  Restored Restore(Kept kept, const annotations::PodSpec& declared);

 private:
  Buffer& AddBuffer(const std::string& name, const Policy& policy);
  Buffer* FindTicket(const Ticket& ticket);
  Result<void> HasRoomForBuffer() const;
  Result<void> HasRoomForGeneration() const;
  Result<Buffer*> FindBuffer(const std::string& name);
  Result<void> Reserve(const Ticket& ticket);
  Result<void> CheckWriter(const Buffer& buffer, const std::string& name,
                           const Client& client) const;
  bool HasWriter(const std::string& name) const;
  Result<Policy> PolicyOfNew(const Client& client, const std::string& name,
                             const Policy& asked) const;
  uint64_t AddLease(Lease lease);
  void EndLease(uint64_t id, bool died);
  void ReleaseIfUnused(uint64_t generation);
  void MakeCurrent(const std::string& name, Buffer& buffer, uint64_t generation);
  void Remove(const std::string& name);
  void Show(const std::string& name);
  registry::BufferRecord RecordOf(const std::string& name, const Buffer& buffer) const;
  void WriterDied(const std::string& name, uint64_t generation, const Client& client, Ended* ended);
  void DropPending(const std::string& name, Buffer& buffer);
  // Called after leases ended, or after another reason to keep the name ended. Returns whether the
  // name was removed.
  bool RemoveIfUnused(const std::string& name);

  void RestoreGenerations(Kept* kept, Restored* restored);
  void RestoreLeases(const Kept& kept, Restored* restored);
  void RestoreBuffer(const std::string& name, const Buffer& kept,
                     const annotations::PodSpec& declared, Restored* restored);
  void RestoreContent(const annotations::BufferSpec* spec, const std::string& name, Buffer* buffer);
  bool IsPublishable(uint64_t generation, const std::string& name) const;

  // Of a lease that may write its generation, which is current or pending. kStale: it is neither.
  struct Written {
    const Lease* lease;
    Buffer* buffer;
    bool unpublished;
  };
  Result<Written> FindWritten(const Client& client, uint64_t lease_id, const char* what);
  static Result<void> CheckContent(const std::string& name, const Buffer& buffer);
  uint64_t LoadedBytes(const Buffer& buffer) const;
  void SetContentOf(uint64_t generation, uint64_t content_bytes, const Digest& digest = {});
  // What is written from now on has another one. False: it had none.
  bool ForgetDigest(uint64_t number);
  void PutDescription(uint64_t generation, UniqueFd memory, uint64_t bytes);
  // The loader of a `file:` may write the buffer while it has no content, whatever its lists and
  // `access` say.
  bool MayLoadFirst(const Buffer& buffer, const Client& client) const;
  // Whether the client is the container that loads the buffer, and loads it again after a failure.
  bool IsLoader(const Buffer& buffer, const Client& client) const;

  LedgerLimits limits_;
  Generations generations_;
  Leases leases_;
  uint64_t next_buffer_ = 1;
  std::map<std::string, Buffer> buffers_;
  // Rules of declared names. They stay even if the buffer was dropped.
  std::map<std::string, Policy> declared_;
  std::vector<Change> changes_;
  std::vector<EndedParticipant> parted_;
  Journal* journal_ = nullptr;
};

}  // namespace gpushm::broker
