// What the broker knows: buffers, their generations, their holders, and the rights of each. It is
// pure bookkeeping, without a socket, a driver or a clock. The server passes requests on, the
// ledger decides, and the registry shows the result.
//
// Invariants
//   (1) On each GPU, used_bytes() is the sum of the rounded sizes of the generations that this
//       broker allocated there (offered memory is the offerer's), plus what is reserved for
//       allocations in progress. It never exceeds the GPU's pool. Offered memory never exceeds what
//       its GPU has, see protocol::OfferedBytes.
//   (2) A generation exists while it is current, pending (unpublished) or held by a lease. When
//       none of these holds, the caller gets it to free it, exactly once.
//   (3) A generation's number is used once, over all brokers of a pod.
//   (4) A lease belongs to one client and one generation. It ends by Detach or by EndClient, which
//       the server calls when the kernel reports that the process has ended.
//   (5) Every change that peers see appears in TakeChanges() once, in order.
//   (6) Every change that a successor must know appears in TakeStatements() once, in an order that
//       link.h allows. Restore() accepts every prefix. An operation in progress is either done or
//       undone in it, and a buffer that has content before and after also has it in between.
//
// Threads: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "contract/annotations/annotations.h"
#include "contract/limits.h"
#include "contract/protocol/messages.h"
#include "contract/registry/record.h"
#include "platform/base/status.h"
#include "platform/base/unique_fd.h"
#include "platform/driver/device.h"
#include "sidecar/broker/holdings.h"
#include "sidecar/broker/statement.h"

namespace gpushm::broker {

using registry::BufferState;

// Numbers of generations, leases and clients stay below this.
inline constexpr uint64_t kMaxNumber = uint64_t{1} << 63;

// One of several allocations in which offered memory lies.
struct Block {
  UniqueFd descriptor;
  uint64_t mapped_bytes = 0;
};

// The memory behind a name: GPU memory, given by its descriptor, a cuIpc handle or the descriptors
// of its blocks, or the page of a signal, barrier or ring, given by its memfd.
struct Memory {
  bool is_page() const { return transport == protocol::Transport::kHost; }
  // All descriptors, which it then lacks.
  std::vector<UniqueFd> TakeDescriptors();
  protocol::Transport transport = protocol::Transport::kVmm;
  uint64_t size_bytes = 0;    // As requested.
  uint64_t mapped_bytes = 0;  // Size of the whole allocation, or of all blocks.
  UniqueFd descriptor;        // For kVmm and kHost.
  UniqueFd alarm;             // Of a page, once somebody has asked for it (docs/design/waiting.md).
  std::vector<Block> blocks;  // For kBlocks, in the order of their addresses.
  std::array<uint8_t, 64> cuipc_handle{};
  uint64_t offset = 0;
  int32_t offerer_pid = 0;
  bool pooled = true;  // Allocated by the broker, so it counts against its GPU's pool.
  uint32_t gpu = 0;    // The number of its GPU. Pages have 0.
};

// What each container may do with a buffer.
struct Policy {
  bool declared = false;             // By annotation; lives as long as the pod.
  bool signal = false;               // Declared as a signal.
  std::string creator;               // The creator's container; empty if declared.
  std::set<std::string> containers;  // Containers that may attach; empty for every container.
  std::set<std::string> writers;     // Containers that may write; if empty, see writers_all.
  bool writers_all = false;          // Every container may write.
  bool read_only = false;            // Nobody may write.
  bool one_writer = false;
  std::string loader{};       // The container that loads its `file:`; empty if it has none.
  bool until_unused = false;  // Removed with the last lease on its current generation.
  uint32_t gpu = 0;           // If declared: the number of the GPU on which it is made.
  protocol::OnWriterExit on_writer_exit = protocol::OnWriterExit::kMark;

  static Policy FromSpec(const annotations::BufferSpec& spec);
  static Policy FromSpec(const annotations::SignalSpec& spec);
  // The annotation that declares it. Only for what is declared.
  std::string Annotation(const std::string& name) const;
  bool MayAttach(const std::string& container) const;
  bool MayWrite(const std::string& container) const;
};

struct Client {
  uint64_t id = 0;
  std::string container;
};

struct Lease {
  uint64_t id = 0;
  Client client;
  std::string buffer;
  uint64_t generation = 0;
  Access access = Access::kRead;
  int64_t since_unix_ns = 0;
  protocol::PeerWay peer_way = protocol::PeerWay::kNone;
};

// What an attach gives. The ledger owns `descriptor`.
struct Grant {
  uint64_t lease_id = 0;
  uint64_t generation = 0;
  Access access = Access::kRead;
  const Memory* memory = nullptr;
};

// Why a buffer has no content: what its load waits for, or why it failed.
struct Reason {
  Code code{};
  std::string text{};  // One line; empty: nobody stated it.

  friend bool operator==(const Reason&, const Reason&) = default;
};

// A change that peers see: the record to show under `name`, or nullopt if there is none any more.
struct Change {
  std::string name;
  std::optional<registry::BufferRecord> record;
  std::string reason{};  // Its text, if the record has one.
};

// One of the pod's GPUs.
struct LedgerGpu {
  GpuUuid uuid;
  uint64_t total_bytes = limits::kBufferBytes;
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
  // `gpus` are the pod's GPUs in the order of their numbers, at least one. For `first_generation`
  // see invariant (3).
  Ledger(const LedgerLimits& ledger_limits, const std::vector<LedgerGpu>& gpus,
         uint64_t first_generation);

  // ---- making. Begin* decides and reserves. The caller then allocates and calls Commit or Abort
  // with the ticket. A null `client` is the broker itself (declared buffers).
  struct Ticket {
    std::string name;
    uint64_t size_bytes = 0;
    uint64_t mapped_bytes = 0;
    uint32_t gpu = 0;  // Where to allocate.
    bool replaces = false;
    bool attach = false;
    bool unpublished = false;
    bool starts_loading = false;
    bool page = false;  // See BeginPage.
    // See Policy. For a replacement: false if the previous generation's was false.
    bool until_unused = false;
    Client client;           // id 0 for the broker.
    Policy policy;           // Not set for a replacement.
    uint64_t buffer_id = 0;  // The name may belong to a different buffer by the time of Commit.
  };
  // `flags` name the GPU. A declared name that was dropped is only made again on its own.
  Result<Ticket> BeginCreate(const Client& client, const std::string& name, uint64_t size_bytes,
                             const Policy& policy, uint32_t flags);
  Result<Ticket> BeginDeclared(const annotations::BufferSpec& spec);
  // A page that nobody has attached; Commit shows it.
  Result<Ticket> BeginDeclared(const annotations::SignalSpec& spec, uint64_t page_bytes);
  // On the GPU of the present generation.
  Result<Ticket> BeginReplace(const Client& client, const std::string& name, uint64_t size_bytes,
                              uint32_t flags);
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
  // A block of the memory of one of the client's leases. Owned by the ledger.
  Result<const Block*> FindBlock(const Client& client, uint64_t lease_id, uint32_t index);
  // Blocks of all generations.
  size_t block_count() const { return block_count_; }
  // Leases that may have owned cells of pages and have ended since the last call; their cells must
  // be ended too. Call it before TakeStatements(), because a successor must not miss one.
  struct EndedParticipant {
    uint64_t lease_id = 0;
    bool died = false;
    // Descriptors, owned by the ledger. Valid as long as those of a statement. -1: it has no alarm.
    int page = -1;
    int alarm = -1;
  };
  std::vector<EndedParticipant> TakeEndedParticipants() { return std::exchange(parted_, {}); }
  // All pages with the leases on each, for the successor of a broker that was killed before it
  // ended a cell.
  struct PageLeases {
    int page = -1;
    std::set<uint64_t> leases;
  };
  std::vector<PageLeases> Pages() const;
  // The page of one of the client's leases; null if the lease is not on a page.
  Memory* FindPage(const Client& client, uint64_t lease_id);

  // ---- content
  // `digest`: of content that is complete. It is kept until somebody else may write there
  // (docs/design/digest.md).
  Result<void> SetContent(const Client& client, uint64_t lease_id, uint64_t loaded_bytes,
                          bool complete, const Digest& digest = {});
  // Who may write the buffer, or load it first, states why it has no content. `failed`: a LOADING
  // buffer becomes FAILED. It has no effect on a buffer that has its content, or that another
  // client loads. The reason of a load in progress remains if that load is given up; the next
  // SetContent, and the next generation, remove it. A successor does not know it: whoever waits
  // states it again.
  Result<void> StateReason(const Client& client, const std::string& name, Reason reason,
                           bool failed);

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
  std::vector<const Lease*> Holders(const std::string& name, uint64_t after_lease_id,
                                    size_t at_most) const;
  uint32_t gpu_count() const { return static_cast<uint32_t>(gpus_.size()); }
  uint64_t used_bytes(uint32_t gpu) const { return gpus_.at(gpu).used_bytes; }
  // Of each GPU.
  uint64_t pool_bytes() const { return limits_.pool_bytes; }
  // The number of the GPU of all memory of that name; nullopt if there is no such buffer, or if it
  // is a page, which needs no GPU.
  std::optional<uint32_t> GpuOf(const std::string& name) const;
  size_t lease_count() const { return leases_.size(); }
  size_t buffer_count() const { return buffers_.size(); }
  bool HasLeases(uint64_t client_id) const;
  struct Held {
    uint32_t leases = 0;
    uint64_t lease_sum = 0;  // Sum of their numbers, modulo 2^64.
  };
  Held HeldBy(uint64_t client_id) const;
  std::vector<registry::BufferRecord> Records() const;

  // ---- results of the calls above, which the caller must carry out
  std::vector<Change> TakeChanges() { return std::exchange(changes_, {}); }
  std::vector<Memory> TakeFreed() { return std::exchange(freed_, {}); }
  // All memory, whoever holds it, for the broker's end. The ledger cannot be used after this.
  std::vector<Memory> LetGo();

  // ---- what a successor must know (ledger_journal.cc). The server states clients. Descriptors are
  // valid until the next call and until TakeFreed() is called.
  void KeepJournal() { journaling_ = true; }
  std::vector<Statement> TakeStatements() { return std::exchange(statements_, {}); }

  // How much of the full state has been stated, in this order: buffers, generations, leases.
  // Everything after the cursor is stated when its turn comes, so its changes need not be stated
  // before that.
  struct Cursor {
    enum class Part { kBuffers, kGenerations, kLeases, kEnd };
    Part part = Part::kBuffers;
    std::string name = {};  // The last buffer stated; empty for none yet.
    uint64_t number = 0;    // The last generation or lease stated.
    // What of that generation is stated next, if it has it.
    enum class Due { kNothing, kBlocks, kContent, kDescription } due = Due::kNothing;
    uint32_t block = 0;  // With kBlocks.
  };
  // The first statement after *cursor, which moves to the place before it; nullopt at the end.
  std::optional<Statement> Next(Cursor* cursor) const;
  // Moves the cursor past that statement.
  static void Advance(Cursor* cursor, const Statement& stated);
  bool IsAhead(const Cursor& cursor, const Statement& statement) const;

  // ---- being that successor (ledger_restore.cc)
  struct Kept {
    struct Generation {
      protocol::LinkGeneration stated;
      UniqueFd memory;            // For kVmm.
      std::vector<Block> blocks;  // For kBlocks.
    };
    std::map<uint64_t, std::string> clients;  // Their containers.
    std::vector<protocol::LinkBuffer> buffers;
    std::vector<Generation> generations;
    std::vector<protocol::LinkContent> contents;
    struct Description {
      protocol::LinkDescription stated;
      UniqueFd memory;
    };
    std::vector<Description> descriptions;
    std::vector<protocol::LinkLease> leases;
  };
  struct Restored {
    size_t buffers = 0;
    size_t generations = 0;
    size_t leases = 0;
    std::set<std::string> settled;     // Declared names that must not be made again.
    std::vector<std::string> dropped;  // Descriptions of what was inconsistent.
  };
  // Only for a ledger that is still empty. The rules of declared names come from `declared`.
  // Whatever is inconsistent with the rest is dropped, and memory that nothing refers to is in
  // TakeFreed(). Later numbers are above all kept ones. A load that was in progress becomes FAILED,
  // except for buffers that load from a file: these are LOADING, and the caller starts the load
  // again.
  Restored Restore(Kept kept, const annotations::PodSpec& declared);
  // nullopt if there is no such buffer or none of its generations is published.
  std::optional<BufferState> StateOf(const std::string& name) const;

 private:
  struct Generation {
    std::string buffer;
    Memory memory;
    uint32_t leases = 0;
    uint64_t publisher_client = 0;  // Owner of an unpublished generation.
    uint64_t offerer_client = 0;    // For kCuIpc: removed with this client.
    int64_t created_unix_ns = 0;
    std::optional<uint64_t> content_bytes;  // If not set: all of the generation.
    Digest digest;                          // Of the content; only if content_bytes is set.
    UniqueFd description;                   // Sealed host memory; invalid if there is none.
    uint64_t description_bytes = 0;
  };
  struct Buffer {
    uint64_t id = 0;  // Unique to this buffer; a name can be used again.
    Policy policy;
    uint32_t gpu = 0;      // Of all of its generations.
    uint64_t current = 0;  // 0 if none is published yet.
    uint64_t pending = 0;  // Unpublished.
    bool allocating = false;
    bool writer_reserved = false;  // By a replacement in progress that attaches.
    BufferState state = BufferState::kReady;
    Reason reason;  // While it is LOADING or FAILED.
    uint64_t loaded_bytes = 0;
    uint64_t loading_client = 0;    // The client that loads by itself (SetContent).
    bool one_writer_loads = false;  // One of its clients loads; an earlier broker knew which one.
  };

  Buffer& AddBuffer(const std::string& name, const Policy& policy);
  Buffer* FindTicket(const Ticket& ticket);
  Result<void> HasRoomForBuffer() const;
  Result<void> HasRoomForGeneration() const;
  Result<void> HasRoomForLease(const Client& client, bool wanted) const;
  Result<Buffer*> FindBuffer(const std::string& name);
  Result<Lease*> FindLease(const Client& client, uint64_t lease_id);
  Result<void> Reserve(const Ticket& ticket);
  Result<void> HasRoomForOffer(const std::string& name, const Memory& memory) const;
  // 0 for memory that is not offered.
  static uint64_t OfferedBytes(const Memory& memory);
  // "GPU 1", or what a pod calls its only one.
  std::string NameOfGpu(uint32_t gpu, const char* only) const;
  Result<void> HasRoomForPage(uint64_t mapped_bytes) const;
  uint64_t MappedBytes(uint64_t size_bytes, bool page) const;
  Result<Ticket> BeginNew(const Client& client, const std::string& name, uint64_t size_bytes,
                          const Policy& policy, uint32_t flags, bool page);
  Result<Ticket> BeginNext(const Client& client, const std::string& name, uint64_t size_bytes,
                           uint32_t flags, bool page);
  Result<void> CheckWriter(const Buffer& buffer, const std::string& name,
                           const Client& client) const;
  bool HasWriter(const std::string& name) const;
  Result<Policy> PolicyOfNew(const Client& client, const std::string& name,
                             const Policy& asked) const;
  uint64_t AddLease(const Client& client, const std::string& name, uint64_t generation,
                    Access access, int64_t now_unix_ns, protocol::PeerWay way);
  void EndLease(std::map<uint64_t, Lease>::iterator lease, bool died);
  // Counts the generation, once all its members are set.
  void AddGeneration(uint64_t number);
  void ReleaseIfUnused(uint64_t generation);
  void MakeCurrent(const std::string& name, Buffer& buffer, uint64_t generation);
  void Remove(const std::string& name);
  void Show(const std::string& name);
  registry::BufferRecord RecordOf(const std::string& name, const Buffer& buffer) const;
  void WriterDied(const std::string& name, uint64_t generation, const Client& client, Ended* ended);
  // Whether a load by that client remains incomplete from now on. Then the reason is the one that
  // the client stated, or `why`.
  static bool GivesContentUp(Buffer* buffer, uint64_t client_id, const Reason& why);
  void DropPending(const std::string& name, Buffer& buffer);
  // Called after leases ended, or after another reason to keep the name ended. Returns whether the
  // name was removed.
  bool RemoveIfUnused(const std::string& name);

  // Statements, see (6).
  bool IsStated(const std::string& name) const;
  const std::string* NextName(const std::string& after) const;
  void NoteBuffer(const std::string& name);
  void NoteGeneration(uint64_t generation);
  Statement BlockStatement(uint64_t generation, uint32_t index) const;
  void NoteContent(uint64_t generation);
  void NoteDescription(uint64_t generation);
  void NoteLease(const Lease& lease);
  void NoteDrop(protocol::LinkDropped what, uint64_t id, const std::string& name = {});
  void NoteReleased(uint64_t generation, const std::string& name);
  protocol::LinkBuffer Describe(const std::string& name) const;
  static protocol::LinkGeneration Describe(uint64_t number, const Generation& generation);
  static protocol::LinkLease Describe(const Lease& lease);

  std::string GenerationProblem(const Kept::Generation& generation,
                                const std::set<std::string>& names) const;
  void RestoreGenerations(Kept* kept, Restored* restored);
  void RestoreLeases(const Kept& kept, Restored* restored);
  void RestoreBuffer(const protocol::LinkBuffer& stated, const annotations::PodSpec& declared,
                     Restored* restored);
  void RestoreContent(const protocol::LinkBuffer& stated, const annotations::BufferSpec* spec,
                      const std::string& name, Buffer* buffer);
  bool IsPublishable(uint64_t generation, const std::string& name) const;

  uint64_t LoadedBytes(const Buffer& buffer) const;
  static bool HasContent(const Buffer& buffer);
  // Why nobody may read a published buffer yet; fine if it has its content.
  static Result<void> CheckContent(const std::string& name, const Buffer& buffer);
  void SetContentOf(uint64_t generation, uint64_t content_bytes, const Digest& digest = {});
  // What is written from now on has another one. False: it had none.
  bool ForgetDigest(uint64_t number);
  Result<void> HasRoomForDescription(const Generation& generation, uint64_t bytes) const;
  // Takes the place of the former one. An invalid `memory`: there is none from now on.
  void PutDescription(uint64_t generation, UniqueFd memory, uint64_t bytes);
  // The loader of a `file:` may write the buffer while it has no content, whatever its lists and
  // `access` say.
  bool MayLoadFirst(const Buffer& buffer, const Client& client) const;

  struct OfGpu {
    GpuUuid uuid;
    uint64_t total_bytes = 0;
    uint64_t used_bytes = 0;     // Of the pool.
    uint64_t offered_bytes = 0;  // By applications.
  };

  LedgerLimits limits_;
  std::vector<OfGpu> gpus_;  // By number.
  uint64_t next_generation_;
  uint64_t next_lease_ = 1;
  uint64_t next_buffer_ = 1;
  std::map<std::string, Buffer> buffers_;
  // Rules of declared names. They stay even if the buffer was dropped.
  std::map<std::string, Policy> declared_;
  std::map<uint64_t, Generation> generations_;
  std::map<uint64_t, Lease> leases_;
  Holdings holdings_;               // An index of the two maps above.
  uint64_t page_bytes_ = 0;         // Bytes of the pages among the generations.
  size_t block_count_ = 0;          // Blocks of all generations.
  uint64_t description_bytes_ = 0;  // Bytes of all descriptions, each in whole memory pages.
  std::vector<Change> changes_;
  std::vector<Memory> freed_;
  std::vector<EndedParticipant> parted_;
  bool journaling_ = false;
  std::vector<Statement> statements_;
};

}  // namespace gpushm::broker
