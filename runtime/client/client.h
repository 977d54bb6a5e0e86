// The object behind a gpushm_client: the session, the driver, and the attachments of this process.
//
// Threads: any thread may call any function.
//
// Invariants
//   (1) Locks are taken in this order: session, then table. The driver's lock is taken alone. The
//       table's lock is held for a few instructions, never over a system call or a driver call that
//       waits.
//   (2) current_ holds the attachments that a further attach may return: published, and of the
//       generation that was current when they were made. all_ owns every attachment with a count.
//       deferred_ owns those whose last detach waits for work.
//   (3) Every lease that the broker granted belongs to an attachment, is in ended_, or was
//       detached.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "contract/registry/reader.h"
#include "contract/sync/page.h"
#include "platform/base/digest.h"
#include "platform/base/status.h"
#include "platform/driver/device.h"
#include "platform/transfer/file_way.h"
#include "platform/transfer/transfer_engine.h"
#include "runtime/client/alarm.h"
#include "runtime/client/attachment.h"
#include "runtime/client/counters.h"
#include "runtime/client/description.h"
#include "runtime/client/handles.h"
#include "runtime/client/peers.h"
#include "runtime/client/session.h"
#include "runtime/client/wait.h"

namespace gpushm::client {

struct ClientOptions {
  Session::Place place;
  std::string driver_folder;
};

struct AttachOptions {
  Access access = Access::kRead;
  uint64_t generation = 0;
  // Also accepts a buffer that is loading or failed to load: for the process that fills it.
  bool any_state = false;
  // Attaches the page of a signal, barrier or ring, not a buffer.
  bool page = false;
  // Not shared with other attaches of this process: for what the library itself holds, so that the
  // application cannot advance it.
  bool own = false;
  // Also waits until the generation is at least this.
  uint64_t min_generation = 0;
  PeerOptions peers{};
  // For errors: what the caller requested, if that is not the buffer of this name.
  std::string_view kind = "buffer";
  std::string_view called{};
};

// For a page that is new or follows another generation.
struct PageOptions {
  bool writers_all = false;
  bool one_writer = false;
  uint64_t after_generation = 0;  // See protocol::MakePageRequest.
  bool until_unused = false;      // See protocol::kFlagUntilUnused.
};

struct MakeOptions {
  bool writers_all = false;
  bool one_writer = false;
  protocol::OnWriterExit on_writer_exit = protocol::OnWriterExit::kMark;
  bool unpublished = false;
  bool until_unused = false;  // See protocol::kFlagUntilUnused.
  uint32_t gpu = 0;           // Number among the pod's GPUs. A replacement stays where it is.
};

struct OfferOptions {
  MakeOptions make;
  bool allow_copy = false;
  CUstream stream = nullptr;  // Null: a copy waits for all work of the context.
};

struct OfferOutcome {
  protocol::Transport transport = protocol::Transport::kVmm;
  bool copied = false;
  uint64_t copied_bytes = 0;
  int64_t copy_ns = 0;
  uint64_t generation = 0;
  uint64_t mapped_bytes = 0;  // Of the allocations that others map.
  uint32_t allocations = 1;
};

// What the driver reports about an address.
struct OfferedAllocation {
  CUdeviceptr base = 0;
  uint64_t size_bytes = 0;
  CUdevice device = 0;
  bool is_vmm = false;
  bool allows_descriptor = false;  // For VMM memory.
  bool allows_cuipc = false;       // For cuMemAlloc memory.
};

struct OfferUse {
  bool published = false;
  uint32_t users = 0;
};

// Same numbers as gpushm_format.
enum class Format : uint32_t { kAuto = 0, kRaw = 1, kTensors = 2 };

// Where bytes come from or go to: a path, or a descriptor, which the caller keeps.
struct TransferFile {
  std::optional<std::string> path;
  int descriptor = -1;
};

// What the caller says of the content that is to be loaded.
struct Announced {
  uint64_t bytes = 0;  // Of the file, all files of a model, or the stream; 0: nothing is said.
  Digest digest{};     // Empty: nothing is said.
};

struct TransferOptions {
  uint64_t chunk_bytes = 0;
  FileWay file_way = FileWay::kAuto;
  uint32_t chunks = 0;
  uint32_t threads = 0;  // See TransferJob; 0 means none.
  bool whole = false;    // For a save: the whole buffer, not only its content.
  Format format = Format::kAuto;
  Announced announced{};  // For a load.
  // Returning false stops the transfer. May be empty.
  std::function<bool(uint64_t done_bytes, uint64_t total_bytes)> progress;
};

struct TransferOutcome {
  uint64_t bytes = 0;
  int64_t elapsed_ns = 0;
  FilePlan file;
  int64_t moving_ns = 0;
  uint64_t link_bytes_per_second = 0;
  Digest digest{};  // Of what was loaded, if it was made.
};

// An open signal, barrier or ring. The client ends it when it closes, if that was not done before.
class ClientObject {
 public:
  virtual ~ClientObject() = default;
};

// The files of a transfer (open_file.h).
struct OpenFile;
struct LoadSource;
struct TensorsToSave;

class Client final : private SessionObserver {
 public:
  static Result<std::unique_ptr<Client>> Open(const ClientOptions& options, const Wait& wait);
  Counters& counters() { return counters_; }
  const Handle& handle() const { return handle_; }
  // Ends the objects that it owns, unmaps all attachments, ends their leases as far as the broker
  // answers, and disconnects.
  ~Client();

  void Own(std::unique_ptr<ClientObject> object);
  void Disown(const ClientObject* object);

  // ---- names
  Result<registry::Found> Lookup(std::string_view name) const;
  struct WithReason {
    registry::BufferRecord record;
    std::string reason;  // As from RegistryReader::ReasonOf.
  };
  Result<WithReason> LookupReason(std::string_view name) const;
  Result<std::vector<registry::BufferRecord>> List();
  Result<registry::BufferRecord> WaitFor(std::string_view name, uint64_t min_generation,
                                         const Wait& wait);
  Result<std::vector<protocol::HolderEntry>> Holders(std::string_view name, const Wait& wait);
  Result<protocol::BrokerInfoReply> Broker(const Wait& wait);
  // The pod's, by number.
  Result<std::vector<protocol::GpuEntry>> Gpus(const Wait& wait);

  // ---- attachments
  Result<Attachment*> Attach(std::string_view name, const AttachOptions& options, const Wait& wait);
  Result<void> Detach(Attachment* attachment, std::span<const CUstream> streams, bool defer);
  uint32_t CountOf(const Attachment& attachment) const;
  // Puts a newer generation in place of the attached one (advance.cc).
  Result<void> Advance(Attachment* attachment, std::span<const CUstream> streams,
                       uint64_t generation, const Wait& wait);

  // ---- making buffers (also content.cc, offer.cc)
  // If `attach` is false, nullptr is returned. With Replace, `size_bytes` 0 keeps the size.
  Result<Attachment*> Create(std::string_view name, uint64_t size_bytes, const MakeOptions& options,
                             bool attach, const Wait& wait);
  Result<Attachment*> Replace(std::string_view name, uint64_t size_bytes,
                              const MakeOptions& options, bool attach, const Wait& wait);
  Result<void> Publish(Attachment* attachment, const Wait& wait);
  Result<void> SetContent(Attachment* attachment, uint64_t content_bytes, const Wait& wait);
  Result<void> Delete(std::string_view name, const Wait& wait);

  // ---- descriptions (descriptions.cc)
  Result<void> SetDescription(const Attachment& attachment, std::span<const std::byte> bytes,
                              const Wait& wait);
  // `generation` 0: the current one, which is waited for. Otherwise exactly that one. `required`:
  // also waits until it has a description.
  Result<std::unique_ptr<Description>> Describe(std::string_view name, uint64_t generation,
                                                const Wait& wait, bool required = false);

  Result<OfferOutcome> Offer(std::string_view name, CUdeviceptr address, uint64_t size_bytes,
                             const OfferOptions& options, const Wait& wait);

  // Who uses what this client offered. kNotFound: it did not offer that. kOrphaned: a broker
  // restarted without it, so nobody knows.
  Result<OfferUse> UseOfOffer(std::string_view name, uint64_t generation, const Wait& wait);

  // ---- pages of signals, barriers and rings
  // The page is zeroed and unpublished. kAlreadyExists, kStale, kBusy: another process was first.
  Result<Attachment*> MakePage(std::string_view name, uint64_t size_bytes,
                               const PageOptions& options, const Wait& wait);
  // ---- waiting in an event loop (alarm.cc)
  // The alarm of a page, or of the names if `page` is no lease. kNotFound: the lease has ended.
  Result<Alarm::Given> AskForAlarm(const Lease& page, const Deadline& deadline);
  Result<UniqueFd> NamesAlarm(uint64_t connection, const Deadline& deadline) {
    return names_alarm_.Hear(this, Lease(), connection, deadline);
  }
  struct Connection {
    UniqueFd socket;  // A copy, which hangs up when the connection ends.
    uint64_t number = 0;
  };
  // Connects if the broker has gone, with one attempt.
  Result<Connection> Connect(const Deadline& deadline);

  // Whether the lease belongs to one of this client's attachments.
  bool HoldsLease(uint64_t lease_id) const;
  // The driver, for the streams of this process.
  Result<const CudaApi*> Driver();

  // ---- files (files.cc)
  Result<TransferOutcome> Load(std::string_view name, const TransferFile& from,
                               const TransferOptions& options, const Wait& wait);
  Result<TransferOutcome> Save(std::string_view name, const TransferFile& to,
                               const TransferOptions& options, const Wait& wait);
  // Into and from the attached generation, published or not, always in this process.
  Result<TransferOutcome> Load(Attachment* attachment, const TransferFile& from,
                               const TransferOptions& options, const Wait& wait);
  Result<TransferOutcome> Save(Attachment* attachment, const TransferFile& to,
                               const TransferOptions& options, const Wait& wait);
  // Reads the GPU's memory. An unpublished generation keeps the digest, for those who will see it.
  Result<Digest> DigestOfContent(Attachment* attachment, const Wait& wait);

 private:
  struct Key {
    std::string name;
    Access access;
  };
  struct KeyView {
    std::string_view name;
    Access access;
  };
  struct KeyLess {
    using is_transparent = void;
    bool operator()(const auto& a, const auto& b) const {
      const int order = std::string_view(a.name).compare(b.name);
      return order != 0 ? order < 0 : a.access < b.access;
    }
  };
  struct Seen {
    registry::Found found;
    RegistryHandle::Reader reader;
  };
  // A Judge returns an empty Verdict to accept, or the reason why not yet. kFinal ends the waiting.
  struct Verdict {
    enum class Kind { kAccept, kNotYet, kFinal } kind = Kind::kAccept;
    std::optional<Status> reason;
  };
  // `reason`: why the buffer has no content; empty if nobody stated it.
  using Judge = std::function<Verdict(const registry::BufferRecord&, const std::string& reason)>;
  // A Judge that waits while the content is being loaded.
  static Verdict HasContent(const registry::BufferRecord& record, const std::string& reason);
  // A lease, and the memory that came with it.
  struct Grant {
    registry::BufferRecord record;  // As the registry shows it, or as it was made.
    protocol::AttachReply reply{};
    std::vector<UniqueFd> descriptors{};
    std::vector<uint64_t> block_bytes{};  // With blocks: one for each descriptor.
    bool is_page() const { return (record.flags & registry::kRecordPage) != 0; }
    bool is_cuipc() const { return record.transport == registry::Transport::kCuIpc; }
  };

  explicit Client(ClientOptions options);

  // How errors name what the caller requested; see AttachOptions.
  struct Wanted {
    std::string_view kind = "buffer";
    std::string_view called{};
  };
  Result<Seen> Await(std::string_view name, const Judge& judge, const Wait& wait,
                     const Wanted& wanted = {"buffer", {}});
  // `sleeps_since_ns` gets the time of the first wait; it stays 0 if there was none.
  Result<Seen> LookUntil(std::string_view name, const Judge& judge, const Wait& wait,
                         const Wanted& wanted, int64_t* sleeps_since_ns);

  Result<std::vector<protocol::GpuEntry>> AskForGpus(const SessionLock& lock, const Wait& wait);
  // The GPU of a new buffer or generation.
  Result<GpuUuid> PlaceOf(const SessionLock& lock, protocol::Kind kind, std::string_view name,
                          const MakeOptions& options, const Wait& wait);

  // The GPU as this process sees it.
  Result<DeviceInfo> FindDevice(const GpuUuid& uuid);

  // The GPUs that this process sees, by ordinal.
  Result<std::vector<DeviceInfo>> Devices();

  Attachment* Cached(std::string_view name, const AttachOptions& options);
  Result<Attachment*> AttachAny(std::string_view name, const AttachOptions& options,
                                const Wait& wait);
  Result<Attachment*> AttachNew(const SessionLock& lock, const AttachOptions& options,
                                const Seen& seen, const Wait& wait);
  // Requests a lease on what the registry shows.
  Result<Grant> RequestLease(const SessionLock& lock, const registry::BufferRecord& record,
                             Access access, protocol::PeerWay way, const Wait& wait);
  Result<void> FetchBlocks(const SessionLock& lock, Grant* grant, const Wait& wait);
  // Puts the memory of `grant` in place of that of `attachment`.
  Result<void> Exchange(const SessionLock& lock, Attachment* attachment, const Seen& seen,
                        const Grant& grant, const Deadline& deadline);
  Result<PeerPlan> Plan(const registry::BufferRecord& record, const DeviceInfo& device,
                        const PeerOptions& options);
  // Checks a grant, maps it and enters it in the table. Ends its lease if that fails.
  Result<Attachment*> Enter(const SessionLock& lock, Access access, const DeviceInfo& device,
                            bool unpublished, Grant grant, const Seen* seen, const Wait& wait,
                            const PeerPlan& peers = {}, bool share = true);
  // Of what a Create, Replace or MakePage made. Asks for it and checks that it is what was wanted.
  template <typename Request>
  Result<Grant> RequestMake(const SessionLock& lock, protocol::Kind kind, std::string_view name,
                            const Request& request, bool attach, const Wait& wait);
  Result<Attachment::Memory> Map(const DeviceInfo& device, Access access, const Grant& grant,
                                 const PeerPlan& peers, const Deadline& deadline,
                                 CUdeviceptr* address);
  Result<Attachment::Memory> MapDevice(const DeviceInfo& device, Access access, const Grant& grant,
                                       const PeerPlan& peers, const Deadline& deadline,
                                       CUdeviceptr* address);
  Result<Attachment*> Make(protocol::Kind kind, std::string_view name, uint64_t size_bytes,
                           const MakeOptions& options, bool attach, const Wait& wait);

  void CountPeers(protocol::PeerWay way);
  void EndLease(const SessionLock& lock, const Lease& lease, const Deadline& deadline);
  void EndLeaseSoon(const Lease& lease);
  // Does the deferred detaches whose work has ended, and ends leases whose end could not be sent
  // before. It uses the time that the caller's call has, but at most kAnswerMs.
  void DoChores(const Deadline& call_deadline);
  void Reconnected(const SessionLock& lock, const Return& how, const Deadline& deadline) override;
  // The leases of this process as the broker lists them.
  Result<std::set<uint64_t>> AskLeases(const SessionLock& lock, const Deadline& deadline);
  void Renew(const SessionLock& lock, Attachment* attachment, bool same_broker,
             const Deadline& deadline);
  bool IsHeld(const Attachment* attachment) const;

  // `gpu`: where the memory is. The copy is there, too, if it is one of the pod's.
  Result<OfferOutcome> OfferCopy(std::string_view name, CUdeviceptr address, uint64_t size_bytes,
                                 const OfferOptions& options, const GpuUuid& gpu, const Wait& wait);
  // Among the pod's GPUs; 0 if it is none of them.
  Result<uint32_t> NumberOf(const GpuUuid& gpu, const Wait& wait);
  // An allocation in which offered memory lies.
  struct OfferedBlock {
    UniqueFd descriptor;
    uint64_t mapped_bytes = 0;
  };
  // `blocks`: none for cuIpc, one for vmm. Returns the generation.
  Result<uint64_t> SendOffer(const protocol::OfferRequest& request,
                             std::span<const OfferedBlock> blocks, const Wait& wait);
  // Returns the serial of the connection that has them.
  Result<uint64_t> StageBlocks(const SessionLock& lock, std::span<const OfferedBlock> blocks,
                               const Wait& wait);
  static Result<std::vector<OfferedBlock>> ExportAll(
      const CudaApi& api, std::span<const OfferedAllocation> allocations);

  Result<void> SendDescription(const Attachment& attachment, const UniqueFd& memory,
                               uint64_t size_bytes, const Wait& wait);

  Result<TransferOutcome> WithContext(const GpuUuid& gpu,
                                      const std::function<Result<TransferOutcome>()>& transfer);
  Result<TransferOutcome> LoadByName(std::string_view name, const TransferFile& from,
                                     const TransferOptions& options, const Wait& wait);
  Result<TransferOutcome> LoadHere(std::string_view name, LoadSource* source,
                                   const TransferOptions& options, const Wait& wait);
  // Under a context of the GPU. `detaches`: the caller detaches next, whatever the result is.
  // Begins again, with what is there then in `source`, when a file changes.
  Result<TransferOutcome> Fill(Attachment* attachment, LoadSource* source, bool detaches,
                               const TransferOptions& options, const Wait& wait);
  // One attempt of it. `changed`: a file is not what it was. `begun`: as far as the broker knows,
  // or may know.
  struct Attempt {
    bool changed = false;
    bool begun = false;
  };
  Result<TransferOutcome> FillOnce(Attachment* attachment, const LoadSource& source, bool detaches,
                                   const TransferOptions& options, const Wait& wait, Attempt* now);
  // The part of Load for which the attachment says that a load is running.
  Result<TransferOutcome> LoadAttached(Attachment* attachment, const TransferFile& from,
                                       const TransferOptions& options, const Wait& wait);
  void CountLoad(TransferOutcome* outcome, const LoadSource& source);
  // Moves the files of `source` one after the other.
  Result<TransferReport> CopyParts(const LoadSource& source, TransferJob job,
                                   const TransferProgress& progress);
  // `tensors` may be null: then the bytes of the buffer are saved as they are.
  Result<TransferOutcome> SaveHere(std::string_view name, const OpenFile& file,
                                   const TensorsToSave* tensors, const TransferOptions& options,
                                   const Wait& wait);
  // Under a context of the GPU.
  Result<TransferOutcome> Write(Attachment* attachment, const OpenFile& file,
                                const TensorsToSave* tensors, const TransferOptions& options,
                                const Wait& wait);
  // Opens the file, lets `move` write it, and puts it in its place. `start_ns`: of the call.
  Result<TransferOutcome> SaveTo(
      int64_t start_ns, const TransferFile& to, const TensorsToSave* tensors, uint64_t raw_bytes,
      const TransferOptions& options, const Wait& wait,
      const std::function<Result<TransferOutcome>(const OpenFile& file)>& move);
  // The tensors of the generation, if it is to be saved as a safetensors file; otherwise null.
  // `described`: it may have a description.
  struct Generation {
    uint64_t number = 0;
    uint64_t size_bytes = 0;
    bool described = false;
  };
  Result<std::unique_ptr<TensorsToSave>> FindTensors(std::string_view name,
                                                     const Generation& generation,
                                                     const TransferFile& to,
                                                     const TransferOptions& options,
                                                     const Wait& wait);
  enum class Direction { kLoad, kSave };
  // LinkOf returns the speed measured before on that GPU in that direction, or 0. KeepLink stores
  // it.
  uint64_t LinkOf(const GpuUuid& gpu, Direction direction);
  void KeepLink(const GpuUuid& gpu, Direction direction, uint64_t bytes_per_second);
  // Tells the broker that a load into a published generation has failed. `detaches`: the caller
  // detaches next.
  void GiveContentUp(Attachment* attachment, bool detaches);
  // Tells the broker, and so everybody who waits for the buffer, why a load waits or has failed.
  // Without effect if the buffer has its content. Nobody is told that it cannot be told.
  void StateReason(std::string_view name, const Status& why);
  Result<void> ReportContent(const Attachment& attachment, uint64_t loaded_bytes, bool complete,
                             const Wait& wait, const Digest& digest = {});
  // Whether all bytes of the generation are there.
  Result<void> CheckWhole(const Attachment& attachment) const;

  const ClientOptions options_;
  const Handle handle_{HandleKind::kClient, this};
  Alarm names_alarm_;
  Counters counters_;
  Session session_;

  std::mutex driver_mutex_;
  const CudaApi* api_ = nullptr;     // Under driver_mutex_.
  std::vector<DeviceInfo> devices_;  // Under driver_mutex_.
  struct Link {
    GpuUuid gpu;
    Direction direction;
    uint64_t bytes_per_second;
  };
  std::vector<Link> links_;  // Under driver_mutex_.

  mutable std::mutex table_mutex_;
  // All of these are guarded by table_mutex_.
  std::map<Key, Attachment*, KeyLess> current_;
  std::unordered_map<const Attachment*, std::shared_ptr<Attachment>> all_;
  std::vector<std::shared_ptr<Attachment>> deferred_;
  std::vector<Lease> ended_;
  std::unordered_map<const ClientObject*, std::unique_ptr<ClientObject>> objects_;
  std::map<uint64_t, uint64_t> offers_;  // Generation -> serial of the connection (Peer).
  bool closing_ = false;                 // All attachments end together.
  std::atomic<bool> has_chores_{false};  // A hint: deferred_ or ended_ is not empty.
};

}  // namespace gpushm::client
