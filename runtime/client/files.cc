// Loading buffers from files and saving them: in this process, or in a child of the broker.
#include <poll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "contract/tensors/plan.h"
#include "contract/tensors/table.h"
#include "platform/base/sealed_memory.h"
#include "platform/transfer/gds_file.h"
#include "platform/transfer/transfer_engine.h"
#include "runtime/client/borrowed_context.h"
#include "runtime/client/client.h"
#include "runtime/client/open_file.h"
#include "runtime/client/tensor_sink.h"
#include "runtime/client/tensor_stream.h"

namespace gpushm::client {

using protocol::Direction;
using protocol::Kind;

namespace {

// How long to wait between two requests for the progress of the broker's child.
constexpr int kFirstStatusStepMs = 1;
constexpr int kLastStatusStepMs = 50;

// `total_bytes` 0: the total is not known.
Result<void> CallProgress(const TransferOptions& options, const Wait& wait, uint64_t done_bytes,
                          uint64_t total_bytes) {
  if (options.progress && !options.progress(done_bytes, total_bytes)) {
    return Fail(Code::kBusy, Concat("stopped by the caller after ", done_bytes, " bytes"));
  }
  if ((total_bytes == 0 || done_bytes < total_bytes) && wait.answer.Passed()) {
    return Fail(
        Code::kTimeout,
        total_bytes == 0
            ? Concat("the deadline passed after ", done_bytes, " bytes of the stream")
            : Concat("the deadline passed after ", done_bytes, " of ", total_bytes, " bytes"),
        "use a longer timeout");
  }
  return {};
}

Result<void> CheckFits(const LoadSource& source, uint64_t size_bytes) {
  if (source.buffer_bytes <= size_bytes) return {};
  return Fail(Code::kInvalidArgument,
              Concat(source.name, source.has_tensors() ? ": its tensors need " : " has ",
                     source.buffer_bytes, " bytes, but the buffer has ", size_bytes),
              source.has_tensors() ? "load into a larger buffer: gpushmctl create --from"
                                   : "load into a larger buffer");
}

TransferJob JobFor(const OpenFile& file, const TransferOptions& options) {
  TransferJob job;
  job.file = file.fd;
  job.way = file.plan.way;
  job.chunk_bytes = options.chunk_bytes;
  job.chunks = options.chunks;
  job.threads = options.threads;
  return job;
}

// For what the descriptor does not say itself. The broker's child is a gpushm program, which may
// use GPUDirect Storage if the caller left the method open.
FileWay WayForBroker(const FilePlan& plan, FileWay asked) {
  if (plan.way == FileWay::kGds) return FileWay::kGds;
  return plan.way == FileWay::kDirect && IsOpen(asked) ? FileWay::kAutoGds : FileWay::kAuto;
}

// Older brokers do not know GPUDirect Storage, and always save the whole buffer.
Result<void> FitToBroker(uint16_t version, protocol::TransferRequest& request) {
  if (version < protocol::kContentVersion &&
      request.direction == static_cast<uint32_t>(Direction::kSaveWhole)) {
    request.direction = static_cast<uint32_t>(Direction::kSave);
  }
  if (version >= protocol::kTransferReportVersion) return {};
  if (request.file_way == static_cast<uint32_t>(FileWay::kGds)) {
    return Fail(Code::kUnsupported, "the pod's sidecar is too old for GPUDirect Storage",
                "update gpushm's images, then restart the pod");
  }
  request.file_way = 0;
  return {};
}

// `planned` applies if the broker does not report a method.
TransferOutcome OutcomeOf(const protocol::TransferReportReply& report, FileWay planned) {
  return {.way = TransferWay::kBroker,
          .bytes = report.status.done_bytes,
          .elapsed_ns = 0,
          .file = {.way = report.file_way == 0 ? planned : static_cast<FileWay>(report.file_way)},
          .moving_ns = static_cast<int64_t>(report.moving_ns),
          .link_bytes_per_second = report.link_bytes_per_second};
}

TransferOutcome OutcomeOf(const TransferReport& report, FileWay way) {
  return {.way = TransferWay::kHere,
          .bytes = report.bytes,
          .elapsed_ns = 0,
          .file = {.way = way},
          .moving_ns = report.moving_ns,
          .link_bytes_per_second = report.link_bytes_per_second};
}

}  // namespace

Result<TransferOutcome> Client::Load(std::string_view name, const TransferFile& from,
                                     const TransferOptions& options, const Wait& wait) {
  const int64_t start_ns = MonotonicNs();
  const Result<LoadSource> source = LoadSource::Open(from, options);
  if (!source) return std::unexpected(source.error());
  const Result<Seen> seen = Await(name, [](const auto&) { return Verdict{}; }, wait);
  if (!seen) return std::unexpected(seen.error());
  const registry::BufferRecord& record = seen->found.record;
  if (auto fits = CheckFits(*source, record.size_bytes); !fits) {
    return std::unexpected(fits.error());
  }
  if (auto begun = CallProgress(options, wait, 0, source->file_bytes); !begun) {
    return std::unexpected(begun.error());
  }
  const GpuUuid gpu{record.gpu};
  const bool here =
      options.way == TransferWay::kHere || (options.way == TransferWay::kAuto && SeesDevice(gpu));
  Result<TransferOutcome> outcome =
      here ? WithContext(gpu, [&] { return LoadHere(name, *source, options, wait); })
      : source->has_tensors()
          ? LoadTensorsByBroker(name, *source, options, wait)
          : TransferByBroker(name, Direction::kLoad, source->parts.front().file, options, wait);
  if (!outcome) return outcome;
  outcome->elapsed_ns = MonotonicNs() - start_ns;
  outcome->file.reason = source->parts.front().file.plan.reason;
  counters_.Add(protocol::Counter::kLoads);
  counters_.Add(protocol::Counter::kLoadedBytes, outcome->bytes);
  return outcome;
}

Result<std::unique_ptr<TensorsToSave>> Client::FindTensors(std::string_view name,
                                                           const registry::BufferRecord& record,
                                                           const TransferFile& to,
                                                           const TransferOptions& options,
                                                           const Wait& wait) {
  const bool wanted = options.format == Format::kTensors;
  if (options.format == Format::kRaw || (!wanted && (options.whole || !to.path))) return nullptr;
  if (record.description_bytes == 0 && !wanted) return nullptr;
  const auto description = Describe(name, record.generation, wait);
  if (!description) return std::unexpected(description.error());
  if (!tensors::TensorTable::IsTable((*description)->bytes())) {
    if (!wanted) return nullptr;
    return Fail(Code::kNotFound, "format is GPUSHM_FORMAT_TENSORS, but the buffer has no tensors",
                "leave format at GPUSHM_FORMAT_AUTO, or load a safetensors file first");
  }
  const auto table = tensors::TensorTable::Open((*description)->bytes(), record.size_bytes);
  if (!table) return std::unexpected(table.error());
  auto plan = tensors::PlanSave(*table);
  if (!plan) return std::unexpected(plan.error());
  auto saved = std::make_unique<TensorsToSave>(TensorsToSave{.generation = record.generation,
                                                             .head = std::move(plan->head),
                                                             .segments = {},
                                                             .file_bytes = plan->file_bytes});
  for (const tensors::Segment& segment : plan->segments) {
    saved->segments.push_back({segment.file_offset, segment.buffer_offset, segment.bytes});
  }
  return saved;
}

Result<TransferOutcome> Client::Save(std::string_view name, const TransferFile& to,
                                     const TransferOptions& options, const Wait& wait) {
  const int64_t start_ns = MonotonicNs();
  const Result<Seen> seen = Await(name, HasContent, wait);
  if (!seen) return std::unexpected(seen.error());
  const registry::BufferRecord& record = seen->found.record;
  const GpuUuid gpu{record.gpu};
  const bool here =
      options.way == TransferWay::kHere || (options.way == TransferWay::kAuto && SeesDevice(gpu));
  const auto tensors = FindTensors(name, record, to, options, wait);
  if (!tensors) return std::unexpected(tensors.error());
  FileWay asked = options.file_way;
  if (*tensors) {
    if (asked == FileWay::kGds) {
      return Fail(Code::kUnsupported, "GPUDirect Storage cannot write a safetensors file",
                  "leave file_method at GPUSHM_FILE_AUTO");
    }
    if (asked == FileWay::kAutoGds) asked = FileWay::kAuto;
  }
  const uint64_t size_bytes = *tensors        ? (*tensors)->file_bytes
                              : options.whole ? record.size_bytes
                                              : registry::ContentBytes(record);
  Result<SaveTarget> target = SaveTarget::Open(to, size_bytes, asked);
  if (!target) return std::unexpected(target.error());
  if (auto begun = CallProgress(options, wait, 0, size_bytes); !begun) {
    return std::unexpected(begun.error());
  }
  Result<TransferOutcome> outcome = [&] {
    if (here) {
      return WithContext(
          gpu, [&] { return SaveHere(name, target->file(), tensors->get(), options, wait); });
    }
    if (*tensors) return SaveTensorsByBroker(name, **tensors, target->file(), options, wait);
    return TransferByBroker(name, options.whole ? Direction::kSaveWhole : Direction::kSave,
                            target->file(), options, wait);
  }();
  if (!outcome) return outcome;
  if (auto done = target->Commit(); !done) return std::unexpected(done.error());
  outcome->elapsed_ns = MonotonicNs() - start_ns;
  outcome->file.reason = target->file().plan.reason;
  counters_.Add(protocol::Counter::kSaves);
  counters_.Add(protocol::Counter::kSavedBytes, outcome->bytes);
  return outcome;
}

uint64_t Client::LinkOf(const GpuUuid& gpu, Direction direction) {
  const std::lock_guard lock(driver_mutex_);
  for (const Link& link : links_) {
    if (link.gpu == gpu && link.direction == direction) return link.bytes_per_second;
  }
  return 0;
}

void Client::KeepLink(const GpuUuid& gpu, Direction direction, uint64_t bytes_per_second) {
  if (bytes_per_second == 0 || LinkOf(gpu, direction) != 0) return;
  const std::lock_guard lock(driver_mutex_);
  links_.push_back({gpu, direction, bytes_per_second});
}

// Spans attach, copy and detach, because a buffer of transport cuipc needs a context for all three.
Result<TransferOutcome> Client::WithContext(
    const GpuUuid& gpu, const std::function<Result<TransferOutcome>()>& transfer) {
  const Result<const CudaApi*> api = Driver();
  if (!api) return std::unexpected(api.error());
  const Result<DeviceInfo> device = FindDevice(gpu);
  if (!device) return std::unexpected(device.error());
  const Result<BorrowedContext> context = BorrowedContext::Push(**api, device->device);
  if (!context) return std::unexpected(context.error());
  return transfer();
}

Result<TransferOutcome> Client::LoadHere(std::string_view name, const LoadSource& source,
                                         const TransferOptions& options, const Wait& wait) {
  const AttachOptions attaching{.access = Access::kReadWrite, .any_state = true};
  const Result<Attachment*> attachment = Attach(name, attaching, wait);
  if (!attachment) return std::unexpected(attachment.error());
  const Attachment::Facts& facts = (*attachment)->facts();
  const OpenFile& first = source.parts.front().file;
  TransferJob job = JobFor(first, options);
  bool touched = false;
  const auto load = [&]() -> Result<TransferReport> {
    if (auto fits = CheckFits(source, facts.size_bytes); !fits) {
      return Fail(Code::kStale, Concat("the buffer was replaced: ", fits.error().what()),
                  "load a smaller file, or replace the buffer by a larger one");
    }
    // Made before anything is overwritten, because it may not fit into the container's memory.
    Result<UniqueFd> description;
    if (source.has_tensors()) {
      description = SealBytes("description", source.table);
      if (!description) return std::unexpected(description.error());
      if (auto known = CheckDescriptions(wait); !known) return std::unexpected(known.error());
    }
    job.address = facts.address;
    job.size_bytes = source.is_stream() ? facts.size_bytes : first.size_bytes;
    job.link_bytes_per_second = LinkOf(facts.gpu, Direction::kLoad);
    if (!source.has_tensors()) {
      if (auto done = OpenGds(job, first.plan.try_gds); !done) return std::unexpected(done.error());
    }
    touched = true;
    if (auto done = ReportContent(**attachment, 0, false, wait); !done) {
      return std::unexpected(done.error());
    }
    Result<void> going;
    const uint64_t end_bytes = source.is_stream() ? facts.size_bytes : source.buffer_bytes;
    uint64_t said_bytes = 0;
    const auto progress = [&](uint64_t done_bytes) {
      going = CallProgress(options, wait, done_bytes, source.file_bytes);
      if (going && done_bytes > said_bytes && done_bytes < end_bytes) {
        going = ReportContent(**attachment, done_bytes, false, wait);
        said_bytes = done_bytes;
      }
      return going.has_value();
    };
    const Result<TransferReport> copied = CopyParts(source, job, progress);
    if (!going) return std::unexpected(going.error());
    if (!copied) return copied;
    if (source.has_tensors()) {
      if (auto done = SendDescription(**attachment, *description, source.table.size(), wait);
          !done) {
        return std::unexpected(done.error());
      }
    }
    if (auto done = ReportContent(**attachment, copied->bytes, true, wait); !done) {
      return std::unexpected(done.error());
    }
    KeepLink(facts.gpu, Direction::kLoad, copied->link_bytes_per_second);
    return copied;
  };
  const Result<TransferReport> loaded = load();
  job.gds.reset();
  if (!loaded && touched) GiveContentUp(*attachment);
  (void)Detach(*attachment, {}, /*defer=*/false);
  if (!loaded) return std::unexpected(loaded.error());
  return OutcomeOf(*loaded, job.way);
}

Result<TransferReport> Client::CopyParts(const LoadSource& source, TransferJob job,
                                         const TransferProgress& progress) {
  const CudaApi& api = **Driver();  // Attach loaded it.
  TransferReport whole;
  uint64_t before_bytes = 0;  // Of the files that are done.
  for (const LoadSource::Part& part : source.parts) {
    job.file = part.file.fd;
    if (source.has_tensors()) {
      job.way = part.file.plan.way;
      job.size_bytes = part.file.size_bytes;
      job.segments = part.segments;
    }
    job.progress = [&](uint64_t done_bytes) { return progress(before_bytes + done_bytes); };
    const Result<TransferReport> copied = CopyFileToDevice(api, job);
    if (!copied && source.has_tensors()) {
      return std::unexpected(copied.error().WithContext(part.file.name));
    }
    if (!copied) return copied;
    if (!source.is_stream() && copied->bytes != part.file.size_bytes) {
      return Fail(Code::kCorrupt,
                  Concat(part.file.name, " ended after ", copied->bytes, " of ",
                         part.file.size_bytes, " bytes"),
                  "the file was shortened during the load: load it again");
    }
    before_bytes += copied->bytes;
    whole.moving_ns += copied->moving_ns;
    whole.link_bytes_per_second = copied->link_bytes_per_second;
  }
  whole.bytes = source.has_tensors() ? source.buffer_bytes : before_bytes;
  return whole;
}

Result<TransferOutcome> Client::LoadTensorsByBroker(std::string_view name, const LoadSource& source,
                                                    const TransferOptions& options,
                                                    const Wait& wait) {
  const Result<UniqueFd> description = SealBytes("description", source.table);
  if (!description) return std::unexpected(description.error());
  if (auto known = CheckDescriptions(wait); !known) return std::unexpected(known.error());
  Result<TensorStream> stream = TensorStream::Start(source);
  if (!stream) return std::unexpected(stream.error());
  bool source_failed = false;
  TransferOptions watched = options;
  watched.progress = [&](uint64_t done_bytes, uint64_t total_bytes) {
    source_failed = stream->failed();
    if (source_failed) return false;
    return !options.progress || options.progress(done_bytes, total_bytes);
  };
  const Result<TransferOutcome> outcome =
      TransferByBroker(name, Direction::kLoad, stream->reader(), watched, wait, description->get());
  const Result<void> written = stream->Finish();
  if (source_failed && !written) return std::unexpected(written.error());
  return outcome;
}

Result<TransferOutcome> Client::SaveTensorsByBroker(std::string_view name,
                                                    const TensorsToSave& tensors,
                                                    const OpenFile& to,
                                                    const TransferOptions& options,
                                                    const Wait& wait) {
  Result<TensorSink> sink = TensorSink::Start(tensors, to);
  if (!sink) return std::unexpected(sink.error());
  TransferOptions watched = options;
  watched.progress = [&](uint64_t done_bytes, uint64_t total_bytes) {
    if (sink->failed()) return false;
    return !options.progress || options.progress(done_bytes, total_bytes);
  };
  Result<TransferOutcome> outcome =
      TransferByBroker(name, Direction::kSaveWhole, sink->writer(), watched, wait);
  const bool file_failed = sink->failed();
  const Result<void> written = sink->Finish(/*stop=*/!outcome);
  if (!written && (outcome || file_failed)) return std::unexpected(written.error());
  if (!outcome) return outcome;
  const auto now = Lookup(name);
  if (!now || now->record.generation != tensors.generation) {
    return Fail(Code::kStale,
                Concat("the buffer was replaced or deleted during the save: "
                       "generation ",
                       tensors.generation, " is gone"),
                "save it again");
  }
  outcome->bytes = tensors.file_bytes;
  return outcome;
}

void Client::GiveContentUp(Attachment* attachment) {
  // The end of the lease tells the broker that nobody completes the content. A detach ends it,
  // unless this process holds the buffer elsewhere, too. Then the lease is ended and renewed here.
  if (CountOf(*attachment) == 1) return;
  const Deadline deadline = Deadline::AfterMs(kAnswerMs);
  const Result<SessionLock> lock = session_.Lock(deadline);
  if (!lock || !session_.connected(*lock) || attachment->orphaned()) return;
  const Lease lease = attachment->lease();
  if (lease.serial != session_.peer(*lock).serial) return;
  EndLease(*lock, lease, deadline);
  Renew(*lock, attachment, /*same_broker=*/true, deadline);
}

Result<TransferOutcome> Client::SaveHere(std::string_view name, const OpenFile& file,
                                         const TensorsToSave* tensors,
                                         const TransferOptions& options, const Wait& wait) {
  AttachOptions attaching;
  if (tensors != nullptr) attaching.generation = tensors->generation;
  const Result<Attachment*> attachment = Attach(name, attaching, wait);
  if (!attachment) return std::unexpected(attachment.error());
  const Attachment::Facts& facts = (*attachment)->facts();
  Result<void> going;
  TransferJob job = JobFor(file, options);
  job.address = facts.address;
  job.size_bytes = options.whole ? facts.size_bytes : (*attachment)->ContentBytes();
  if (tensors != nullptr) {
    job.size_bytes = tensors->file_bytes;
    job.head = std::as_bytes(std::span(tensors->head));
    job.segments = tensors->segments;
  }
  job.link_bytes_per_second = LinkOf(facts.gpu, Direction::kSave);
  job.progress = [&](uint64_t done_bytes) {
    going = CallProgress(options, wait, done_bytes, job.size_bytes);
    return going.has_value();
  };
  const auto save = [&]() -> Result<TransferReport> {
    if (auto done = OpenGds(job, file.plan.try_gds); !done) return std::unexpected(done.error());
    return CopyDeviceToFile(**Driver(), job);
  };
  const Result<TransferReport> saved = save();
  job.gds.reset();
  if (saved) KeepLink(facts.gpu, Direction::kSave, saved->link_bytes_per_second);
  (void)Detach(*attachment, {}, /*defer=*/false);
  if (!going) return std::unexpected(going.error());
  if (!saved) return std::unexpected(saved.error());
  return OutcomeOf(*saved, job.way);
}

Result<void> Client::SetContent(const Attachment& attachment, uint64_t content_bytes,
                                const Wait& wait) {
  const uint64_t size_bytes = attachment.facts().size_bytes;
  if (content_bytes > size_bytes) {
    return Fail(
        Code::kInvalidArgument,
        Concat(content_bytes, " bytes of content do not fit into a buffer of size ", size_bytes));
  }
  if (attachment.unpublished()) {
    const Result<SessionLock> lock = session_.Lock(wait.answer);
    if (!lock) return std::unexpected(lock.error());
    if (session_.peer(*lock).version < protocol::kContentVersion) {
      return Fail(
          Code::kUnsupported,
          "the pod's sidecar is too old to record the content of an unpublished buffer",
          "call gpushm_attachment_set_content after gpushm_attachment_publish, or update gpushm's images");
    }
  }
  if (auto said = ReportContent(attachment, content_bytes, true, wait); !said) return said;
  attachment.NoteContent(content_bytes);
  return {};
}

Result<void> Client::ReportContent(const Attachment& attachment, uint64_t loaded_bytes,
                                   bool complete, const Wait& wait) {
  const Result<SessionLock> lock = session_.Lock(wait.answer);
  if (!lock) return std::unexpected(lock.error());
  if (attachment.orphaned())
    return Fail(Code::kOrphaned, "the broker restarted and does not have this buffer",
                "load the file again");
  const Lease lease = attachment.lease();
  const protocol::ContentRequest request{.lease_id = lease.id,
                                         .loaded_bytes = loaded_bytes,
                                         .complete = complete ? 1u : 0u,
                                         .reserved = 0};
  const auto reply =
      session_.Ask<protocol::EmptyReply>(*lock, Kind::kContent, request, wait.answer,
                                         {.loss = Call::Loss::kRepeatable, .serial = lease.serial});
  if (!reply) return std::unexpected(reply.error());
  return {};
}

Result<TransferOutcome> Client::TransferByBroker(std::string_view name, Direction direction,
                                                 const OpenFile& file,
                                                 const TransferOptions& options, const Wait& wait,
                                                 int description) {
  if (!file.for_broker) {
    return Fail(Code::kUnsupported,
                Concat(file.name,
                       " is neither a file from its start nor a pipe, so the broker cannot use it"),
                "name a file, use a pipe, or run this where the GPU is visible");
  }
  protocol::TransferRequest request{};
  request.name = protocol::ToNameField(name);
  request.direction = static_cast<uint32_t>(direction);
  request.chunk_bytes = std::min(options.chunk_bytes, kMaxTransferChunkBytes);
  request.file_way = static_cast<uint32_t>(WayForBroker(file.plan, options.file_way));
  uint64_t serial = 0;
  uint16_t version = 0;
  protocol::TransferStatusRequest question{};
  {
    const Result<SessionLock> lock = session_.Lock(wait.answer);
    if (!lock) return std::unexpected(lock.error());
    version = session_.peer(*lock).version;
    if (auto known = FitToBroker(version, request); !known) return std::unexpected(known.error());
    const std::array descriptors{file.fd, description};
    const auto started = session_.Ask<protocol::TransferReply>(
        *lock, Kind::kTransfer, request, wait.answer,
        {.descriptors = std::span(descriptors).first(description < 0 ? 1 : 2)});
    if (!started) return std::unexpected(started.error());
    question.transfer_id = started->transfer_id;
    serial = session_.peer(*lock).serial;
  }
  // Never with the lock held: the caller's progress function may call gpushm.
  const auto ask = [&](bool cancel,
                       const Deadline& deadline) -> Result<protocol::TransferReportReply> {
    const Result<SessionLock> lock = session_.Lock(deadline);
    if (!lock) return std::unexpected(lock.error());
    question.cancel = cancel ? 1 : 0;
    const Call call{.loss = Call::Loss::kRepeatable, .serial = serial};
    if (version >= protocol::kTransferReportVersion) {
      return session_.Ask<protocol::TransferReportReply>(*lock, Kind::kTransferStatus, question,
                                                         deadline, call);
    }
    const auto status = session_.Ask<protocol::TransferStatusReply>(*lock, Kind::kTransferStatus,
                                                                    question, deadline, call);
    if (!status) return std::unexpected(status.error());
    return protocol::TransferReportReply{*status, 0, 0, 0, 0};
  };
  const auto stop = [&](const Status& why) -> Result<TransferOutcome> {
    // The cancel request gets its own time, because the deadline may have passed.
    (void)ask(/*cancel=*/true, Deadline::AfterMs(kAnswerMs));
    return std::unexpected(why);
  };
  for (int step_ms = kFirstStatusStepMs;; step_ms = std::min(2 * step_ms, kLastStatusStepMs)) {
    const auto report = ask(/*cancel=*/false, wait.answer);
    if (!report && report.error().code() == Code::kTimeout) return stop(report.error());
    if (!report) return std::unexpected(report.error());
    const auto go_on = CallProgress(options, wait, report->status.done_bytes,
                                    file.is_stream() ? 0 : report->status.total_bytes);
    if (report->status.finished != 0) return OutcomeOf(*report, file.plan.way);
    if (!go_on) return stop(go_on.error());
    if (wait.answer.Passed()) {
      return stop(Status(Code::kTimeout, "the deadline passed before the transfer ended",
                         "use a longer timeout"));
    }
    poll(nullptr, 0, std::min(step_ms, wait.answer.RemainingMs()));
  }
}

}  // namespace gpushm::client
