// Loading buffers from files and saving them.
#include <poll.h>

#include <optional>
#include <utility>

#include "contract/tensors/plan.h"
#include "contract/tensors/table.h"
#include "platform/base/sealed_memory.h"
#include "platform/transfer/file_pages.h"
#include "platform/transfer/gds_file.h"
#include "platform/transfer/transfer_engine.h"
#include "runtime/client/client.h"
#include "runtime/client/files/borrowed_context.h"
#include "runtime/client/files/content_digest.h"
#include "runtime/client/files/open_file.h"

namespace gpushm::client {

namespace {

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

// Whether the files are what they were before their first byte. For a file that nothing announces,
// returns only when it has been so for kSettleMs.
Result<void> Settle(const LoadSource& source, const TransferOptions& options, const Wait& wait,
                    bool* changed) {
  for (;;) {
    auto same = source.CheckUnchanged();
    *changed = !same;
    if (!same) return same;
    const int64_t left_ms = source.UnsettledMs();
    if (left_ms == 0) return {};
    if (auto on = CallProgress(options, wait, source.file_bytes, source.file_bytes); !on) return on;
    if (wait.answer.Passed()) {
      return Fail(Code::kTimeout,
                  Concat("the deadline passed, and ", source.name, " changed ", kSettleMs - left_ms,
                         " ms ago"),
                  "use a longer timeout, or announce its size");
    }
    poll(nullptr, 0,
         static_cast<int>(std::min<int64_t>({left_ms, kStreamStepMs, wait.answer.RemainingMs()})));
  }
}

// What a transfer of an attachment needs, whichever direction it has.
Result<void> CheckMovable(Attachment* attachment) {
  if (attachment->device_mapping() == nullptr ||
      attachment->facts().peer_way == protocol::PeerWay::kStaged) {
    return Fail(Code::kUnsupported,
                "only an attachment with transport vmm that is not a staged copy can be loaded "
                "and saved",
                "load and save by name");
  }
  return {};
}

Result<void> FailRunning() {
  return Fail(Code::kBusy, "a load into this attachment is running", "wait until it has returned");
}

TransferJob JobFor(const OpenFile& file, const TransferOptions& options) {
  TransferJob job;
  job.file = file.fd;
  job.way = file.plan.way;
  job.try_pages = file.plan.try_pages;
  job.chunk_bytes = options.chunk_bytes;
  job.chunks = options.chunks;
  job.threads = options.threads;
  return job;
}

TransferOutcome OutcomeOf(const TransferReport& report) {
  return {.bytes = report.bytes,
          .elapsed_ns = 0,
          .file = {.way = report.way},
          .moving_ns = report.moving_ns,
          .link_bytes_per_second = report.link_bytes_per_second,
          .digest = {}};
}

Result<void> CheckDigest(const LoadSource& source, const Digest& announced, const Digest& digest) {
  if (announced.empty() || announced == digest) return {};
  return Fail(Code::kInvalidArgument,
              Concat(source.name, " has the digest ", digest.ToString(), ", but ",
                     announced.ToString(), " was announced"),
              "load the file that was meant, or announce this digest");
}

}  // namespace

Result<TransferOutcome> Client::Load(std::string_view name, const TransferFile& from,
                                     const TransferOptions& options, const Wait& wait) {
  Result<TransferOutcome> outcome = LoadByName(name, from, options, wait);
  if (!outcome) StateReason(name, outcome.error());
  return outcome;
}

Result<TransferOutcome> Client::LoadByName(std::string_view name, const TransferFile& from,
                                           const TransferOptions& options, const Wait& wait) {
  const int64_t start_ns = MonotonicNs();
  Result<LoadSource> source = LoadSource::Await(from, options, wait, [&](const Status& why) {
    StateReason(name, why);
    return Result<void>();
  });
  if (!source) return std::unexpected(source.error());
  const Result<Seen> seen = Await(name, [](const auto&...) { return Verdict{}; }, wait);
  if (!seen) return std::unexpected(seen.error());
  const registry::BufferRecord& record = seen->found.record;
  if (auto fits = CheckFits(*source, record.size_bytes); !fits) {
    return std::unexpected(fits.error());
  }
  if (auto begun = CallProgress(options, wait, 0, source->file_bytes); !begun) {
    return std::unexpected(begun.error());
  }
  Result<TransferOutcome> outcome =
      WithContext(GpuUuid{record.gpu}, [&] { return LoadHere(name, &*source, options, wait); });
  if (!outcome) return outcome;
  outcome->elapsed_ns = MonotonicNs() - start_ns;
  CountLoad(&*outcome, *source);
  return outcome;
}

Result<TransferOutcome> Client::Load(Attachment* attachment, const TransferFile& from,
                                     const TransferOptions& options, const Wait& wait) {
  const int64_t start_ns = MonotonicNs();
  const Attachment::Facts& facts = attachment->facts();
  if (facts.access != Access::kReadWrite) {
    return Fail(Code::kDenied, "the buffer is attached for reading",
                "attach it with GPUSHM_ACCESS_READ_WRITE, or load into a new generation: "
                "gpushm_replace");
  }
  if (auto can = CheckMovable(attachment); !can) return std::unexpected(can.error());
  const bool unpublished = attachment->unpublished();
  // From here on, a failure means that the content is not what the caller wanted.
  if (!attachment->BeginFill()) return std::unexpected(FailRunning().error());
  using Fill = Attachment::Fill;
  struct End {  // Also after an exception: host memory may be used up.
    ~End() { attachment->EndFill(how); }
    Attachment* attachment;
    Fill how;
  } end{attachment, unpublished ? Fill::kFailed : Fill::kNone};
  Result<TransferOutcome> outcome = LoadAttached(attachment, from, options, wait);
  if (!outcome && !unpublished) StateReason(facts.name, outcome.error());
  if (!outcome) return outcome;
  attachment->NoteContent(outcome->bytes);
  end.how = Fill::kNone;
  outcome->elapsed_ns = MonotonicNs() - start_ns;
  return outcome;
}

Result<TransferOutcome> Client::LoadAttached(Attachment* attachment, const TransferFile& from,
                                             const TransferOptions& options, const Wait& wait) {
  const Attachment::Facts& facts = attachment->facts();
  // If a new broker has started, the attachment must know whether that one has the generation.
  session_.NoticeLoss(wait.answer);
  const std::optional<Code> code = attachment->Current();
  if (code == Code::kOrphaned || code == Code::kStale) {
    return Fail(*code,
                code == Code::kOrphaned
                    ? Concat("the broker restarted without generation ", facts.generation)
                    : Concat("generation ", facts.generation, " is no longer the current one"),
                "load into a new generation: gpushm_replace");
  }
  Result<LoadSource> source = LoadSource::Await(from, options, wait, [&](const Status& why) {
    if (!attachment->unpublished()) StateReason(facts.name, why);
    return Result<void>();
  });
  if (!source) return std::unexpected(source.error());
  if (auto fits = CheckFits(*source, facts.size_bytes); !fits) {
    return std::unexpected(fits.error());
  }
  if (auto begun = CallProgress(options, wait, 0, source->file_bytes); !begun) {
    return std::unexpected(begun.error());
  }
  Result<TransferOutcome> outcome = WithContext(
      facts.gpu, [&] { return Fill(attachment, &*source, /*detaches=*/false, options, wait); });
  if (outcome) CountLoad(&*outcome, *source);
  return outcome;
}

void Client::CountLoad(TransferOutcome* outcome, const LoadSource& source) {
  outcome->file.reason = source.parts.front().file.plan.reason;
  counters_.Add(protocol::Counter::kLoads);
  counters_.Add(protocol::Counter::kLoadedBytes, outcome->bytes);
}

Result<std::unique_ptr<TensorsToSave>> Client::FindTensors(std::string_view name,
                                                           const Generation& generation,
                                                           const TransferFile& to,
                                                           const TransferOptions& options,
                                                           const Wait& wait) {
  const bool wanted = options.format == Format::kTensors;
  if (options.format == Format::kRaw || (!wanted && (options.whole || !to.path))) return nullptr;
  if (!generation.described && !wanted) return nullptr;
  const auto description = Describe(name, generation.number, wait);
  if (!description) return std::unexpected(description.error());
  if (!tensors::TensorTable::IsTable((*description)->bytes())) {
    if (!wanted) return nullptr;
    return Fail(Code::kNotFound, "format is GPUSHM_FORMAT_TENSORS, but the buffer has no tensors",
                "leave format at GPUSHM_FORMAT_AUTO, or load a safetensors file first");
  }
  const auto table = tensors::TensorTable::Open((*description)->bytes(), generation.size_bytes);
  if (!table) return std::unexpected(table.error());
  auto plan = tensors::PlanSave(*table);
  if (!plan) return std::unexpected(plan.error());
  auto saved = std::make_unique<TensorsToSave>(TensorsToSave{.generation = generation.number,
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
  const auto tensors = FindTensors(name,
                                   {.number = record.generation,
                                    .size_bytes = record.size_bytes,
                                    .described = record.description_bytes != 0},
                                   to, options, wait);
  if (!tensors) return std::unexpected(tensors.error());
  const uint64_t raw_bytes = options.whole ? record.size_bytes : registry::ContentBytes(record);
  return SaveTo(start_ns, to, tensors->get(), raw_bytes, options, wait, [&](const OpenFile& file) {
    return WithContext(GpuUuid{record.gpu},
                       [&] { return SaveHere(name, file, tensors->get(), options, wait); });
  });
}

Result<void> Client::CheckWhole(const Attachment& attachment) const {
  const Attachment::Facts& facts = attachment.facts();
  if (attachment.fill() == Attachment::Fill::kRunning) return FailRunning();
  const auto found = Lookup(facts.name);
  const bool shown = found && found->record.generation == facts.generation;
  if (shown && found->record.state == registry::BufferState::kLoading) {
    return Fail(Code::kLoading,
                Concat(found->record.loaded_bytes, " of ", facts.size_bytes, " bytes are loaded"),
                "wait for it: gpushm_wait");
  }
  if (attachment.fill() == Attachment::Fill::kFailed ||
      (shown && found->record.state == registry::BufferState::kFailed)) {
    return Fail(Code::kSystem,
                Concat("the last load into generation ", facts.generation, " failed"),
                "load it again");
  }
  return {};
}

Result<TransferOutcome> Client::Save(Attachment* attachment, const TransferFile& to,
                                     const TransferOptions& options, const Wait& wait) {
  const int64_t start_ns = MonotonicNs();
  const Attachment::Facts& facts = attachment->facts();
  if (auto can = CheckMovable(attachment); !can) return std::unexpected(can.error());
  if (auto whole = CheckWhole(*attachment); !whole) return std::unexpected(whole.error());
  // The registry knows only of the current generation's description, so the broker must answer.
  const auto tensors = FindTensors(
      facts.name, {.number = facts.generation, .size_bytes = facts.size_bytes, .described = true},
      to, options, wait);
  if (!tensors && attachment->orphaned()) {
    return Fail(Code::kOrphaned,
                "the broker restarted without this buffer, and its description is gone with it",
                "save the bytes as they are: GPUSHM_FORMAT_RAW");
  }
  if (!tensors) return std::unexpected(tensors.error());
  const uint64_t raw_bytes = options.whole ? facts.size_bytes : attachment->ContentBytes();
  return SaveTo(start_ns, to, tensors->get(), raw_bytes, options, wait, [&](const OpenFile& file) {
    return WithContext(facts.gpu,
                       [&] { return Write(attachment, file, tensors->get(), options, wait); });
  });
}

Result<TransferOutcome> Client::SaveTo(
    int64_t start_ns, const TransferFile& to, const TensorsToSave* tensors, uint64_t raw_bytes,
    const TransferOptions& options, const Wait& wait,
    const std::function<Result<TransferOutcome>(const OpenFile& file)>& move) {
  FileWay asked = options.file_way;
  if (tensors != nullptr) {
    if (asked == FileWay::kGds) {
      return Fail(Code::kUnsupported, "GPUDirect Storage cannot write a safetensors file",
                  "leave file_method at GPUSHM_FILE_AUTO");
    }
    if (asked == FileWay::kAutoGds) asked = FileWay::kAuto;
  }
  const uint64_t size_bytes = tensors != nullptr ? tensors->file_bytes : raw_bytes;
  Result<SaveTarget> target = SaveTarget::Open(to, size_bytes, asked);
  if (!target) return std::unexpected(target.error());
  if (auto begun = CallProgress(options, wait, 0, size_bytes); !begun) {
    return std::unexpected(begun.error());
  }
  Result<TransferOutcome> outcome = move(target->file());
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
  const Result<DeviceInfo> device = FindDevice(gpu);
  if (!device && device.error().code() == Code::kNotFound) {
    return Fail(Code::kUnsupported, device.error().what(),
                "load and save in a container that attaches: private.gpushm.io/<container>: 1Gi "
                "gives it the GPU");
  }
  if (!device) return std::unexpected(device.error());
  const Result<const CudaApi*> api = Driver();
  if (!api) return std::unexpected(api.error());
  const Result<BorrowedContext> context = BorrowedContext::Push(**api, device->device);
  if (!context) return std::unexpected(context.error());
  return transfer();
}

Result<TransferOutcome> Client::LoadHere(std::string_view name, LoadSource* source,
                                         const TransferOptions& options, const Wait& wait) {
  const AttachOptions attaching{.access = Access::kReadWrite, .any_state = true};
  const Result<Attachment*> attachment = Attach(name, attaching, wait);
  if (!attachment) return std::unexpected(attachment.error());
  const auto load = [&]() -> Result<TransferOutcome> {
    if (auto fits = CheckFits(*source, (*attachment)->facts().size_bytes); !fits) {
      return Fail(Code::kStale, Concat("the buffer was replaced: ", fits.error().what()),
                  "load a smaller file, or replace the buffer by a larger one");
    }
    return Fill(*attachment, source, /*detaches=*/true, options, wait);
  };
  Result<TransferOutcome> loaded = load();
  (void)Detach(*attachment, {}, /*defer=*/false);
  return loaded;
}

Result<TransferOutcome> Client::Fill(Attachment* attachment, LoadSource* source, bool detaches,
                                     const TransferOptions& options, const Wait& wait) {
  Attempt now;
  Result<TransferOutcome> loaded = FillOnce(attachment, *source, detaches, options, wait, &now);
  // READY waits for files that stay as they are. The buffer is LOADING meanwhile.
  for (int attempt = 2; !loaded && now.changed && !wait.dont_wait; ++attempt) {
    const std::string why = Concat("attempt ", attempt, ", because ", loaded.error().what());
    if (wait.answer.Passed()) {
      loaded =
          Fail(Code::kTimeout, Concat("the deadline passed before ", why), loaded.error().remedy());
      break;
    }
    now.changed = false;
    loaded = [&]() -> Result<TransferOutcome> {
      Result<LoadSource> opened =
          LoadSource::Await(source->from, options, wait.Again(), [&](const Status& waits_for) {
            if (!attachment->unpublished()) StateReason(attachment->facts().name, waits_for);
            return CallProgress(options, wait, 0, 0);
          });
      if (!opened) return std::unexpected(opened.error());
      *source = std::move(*opened);
      auto fits = CheckFits(*source, attachment->facts().size_bytes);
      if (!fits) return std::unexpected(fits.error());
      return FillOnce(attachment, *source, detaches, options, wait, &now);
    }();
    if (!loaded && !now.changed) loaded = std::unexpected(loaded.error().WithContext(why));
  }
  // An unpublished generation ends with its lease, and its holder may load it again.
  if (!loaded && now.begun && !attachment->unpublished()) {
    // Before the broker says that it was given up.
    StateReason(attachment->facts().name, loaded.error());
    GiveContentUp(attachment, detaches);
  }
  return loaded;
}

Result<TransferOutcome> Client::FillOnce(Attachment* attachment, const LoadSource& source,
                                         bool detaches, const TransferOptions& options,
                                         const Wait& wait, Attempt* now) {
  const Attachment::Facts& facts = attachment->facts();
  const bool published = !attachment->unpublished();
  const OpenFile& first = source.parts.front().file;
  // Made before anything is overwritten, because it may not fit into the container's memory.
  Result<UniqueFd> description;
  if (source.has_tensors()) {
    description = SealBytes("description", source.table);
    if (!description) return std::unexpected(description.error());
  }
  TransferJob job = JobFor(first, options);
  // Somebody who goes on writing would make another content of it.
  const bool keeps_digest = detaches && CountOf(*attachment) == 1;
  // Its pages are unregistered at the end, when everybody knows that the content is complete.
  PageWindow window;
  job.window = &window;
  job.address = facts.address;
  const uint64_t room_bytes = source.buffer_bytes != 0 ? source.buffer_bytes : facts.size_bytes;
  job.size_bytes = source.is_stream() ? room_bytes : first.size_bytes;
  job.link_bytes_per_second = LinkOf(facts.gpu, Direction::kLoad);
  if (!source.has_tensors()) {
    if (auto done = OpenGds(job, first.plan.try_gds); !done) return std::unexpected(done.error());
  }
  // New content begins, which the former description does not describe.
  const auto said = ReportContent(*attachment, 0, /*complete=*/false, wait);
  now->begun = now->begun || said || said.error().code() == Code::kTimeout ||
               said.error().code() == Code::kUnavailable;
  if (!said) return std::unexpected(said.error());
  Result<void> going;
  uint64_t said_bytes = 0;
  const auto progress = [&](uint64_t done_bytes) {
    going = CallProgress(options, wait, done_bytes, source.file_bytes);
    // Nobody sees how far it is before it is published.
    if (published && going && done_bytes > said_bytes && done_bytes < room_bytes) {
      going = ReportContent(*attachment, done_bytes, false, wait);
      said_bytes = done_bytes;
    }
    return going.has_value();
  };
  std::optional<DeviceDigest> digests;
  if (keeps_digest || !options.announced.digest.empty()) {
    digests.emplace(
        **Driver(), room_bytes,
        options.threads == 0 ? DeviceDigest::Compiler::kHere : DeviceDigest::Compiler::kHelper);
  }
  const Result<TransferReport> copied = CopyParts(source, job, progress);
  if (!going) return std::unexpected(going.error());
  if (!copied) {
    // A file that ended early, or cannot be read any more, may have changed.
    const Code code = copied.error().code();
    now->changed = (code == Code::kBusy || code == Code::kSystem) && !source.CheckUnchanged();
    return std::unexpected(copied.error());
  }
  if (auto same = Settle(source, options, wait, &now->changed); !same) {
    return std::unexpected(same.error());
  }
  if (auto whole = source.CheckStream(options.announced, copied->bytes); !whole) {
    return std::unexpected(whole.error());
  }
  Digest digest;
  if (digests) {
    const auto made = DigestOf({.address = facts.address,
                                .size_bytes = facts.size_bytes,
                                .content_bytes = copied->bytes,
                                .description = source.table},
                               &*digests);
    if (!made) return std::unexpected(made.error());
    digest = *made;
    if (auto right = CheckDigest(source, options.announced.digest, digest); !right) {
      return std::unexpected(right.error());
    }
  }
  if (source.has_tensors()) {
    if (auto done = SendDescription(*attachment, *description, source.table.size(), wait); !done) {
      return std::unexpected(done.error());
    }
  }
  if (auto done =
          ReportContent(*attachment, copied->bytes, true, wait, keeps_digest ? digest : Digest());
      !done) {
    return std::unexpected(done.error());
  }
  KeepLink(facts.gpu, Direction::kLoad, copied->link_bytes_per_second);
  TransferOutcome outcome = OutcomeOf(*copied);
  outcome.digest = digest;
  return outcome;
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
      job.try_pages = part.file.plan.try_pages;
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
      return Fail(Code::kBusy,
                  Concat(part.file.name, " ended after ", copied->bytes, " of ",
                         part.file.size_bytes, " bytes"),
                  "load it when nobody writes it");
    }
    before_bytes += copied->bytes;
    whole.way = copied->way;
    whole.moving_ns += copied->moving_ns;
    whole.link_bytes_per_second = copied->link_bytes_per_second;
  }
  whole.bytes = source.has_tensors() ? source.buffer_bytes : before_bytes;
  return whole;
}

Result<TransferOutcome> Client::SaveHere(std::string_view name, const OpenFile& file,
                                         const TensorsToSave* tensors,
                                         const TransferOptions& options, const Wait& wait) {
  AttachOptions attaching;
  if (tensors != nullptr) attaching.generation = tensors->generation;
  const Result<Attachment*> attachment = Attach(name, attaching, wait);
  if (!attachment) return std::unexpected(attachment.error());
  Result<TransferOutcome> saved = Write(*attachment, file, tensors, options, wait);
  (void)Detach(*attachment, {}, /*defer=*/false);
  return saved;
}

Result<TransferOutcome> Client::Write(Attachment* attachment, const OpenFile& file,
                                      const TensorsToSave* tensors, const TransferOptions& options,
                                      const Wait& wait) {
  const Attachment::Facts& facts = attachment->facts();
  Result<void> going;
  TransferJob job = JobFor(file, options);
  job.address = facts.address;
  job.size_bytes = options.whole ? facts.size_bytes : attachment->ContentBytes();
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
  if (!going) return std::unexpected(going.error());
  if (!saved) return std::unexpected(saved.error());
  return OutcomeOf(*saved);
}

}  // namespace gpushm::client
