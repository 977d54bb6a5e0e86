// Saving buffers to files (transfer.h).
#include <span>
#include <utility>

#include "contract/tensors/plan.h"
#include "contract/tensors/table.h"
#include "platform/transfer/gds_file.h"
#include "runtime/client/attach.h"
#include "runtime/client/client.h"
#include "runtime/client/content.h"
#include "runtime/client/description.h"
#include "runtime/client/files/steps.h"
#include "runtime/client/names.h"

namespace gpushm::client {
namespace {

// What is saved. `described`: it may have a description.
struct Generation {
  uint64_t number = 0;
  uint64_t size_bytes = 0;
  bool described = false;
};

// The tensors of the generation, if it is to be saved as a safetensors file; otherwise null.
Result<std::unique_ptr<TensorsToSave>> FindTensors(Client* client, std::string_view name,
                                                   const Generation& generation,
                                                   const TransferFile& to,
                                                   const TransferOptions& options,
                                                   const Wait& wait) {
  const bool wanted = options.format == Format::kTensors;
  if (options.format == Format::kRaw || (!wanted && (options.whole || !to.path))) return nullptr;
  if (!generation.described && !wanted) return nullptr;
  const auto description = Describe(client, name, generation.number, wait);
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

// Opens the file, lets `move` write it, and puts it in its place. `start_ns`: of the call.
Result<TransferOutcome> SaveTo(
    Client* client, int64_t start_ns, const TransferFile& to, const TensorsToSave* tensors,
    uint64_t raw_bytes, const TransferOptions& options, const Wait& wait,
    const std::function<Result<TransferOutcome>(const OpenFile& file)>& move) {
  FileWay asked = options.job.way;
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
  outcome->reason = target->file().plan.reason;
  client->counters().Add(protocol::Counter::kSaves);
  client->counters().Add(protocol::Counter::kSavedBytes, outcome->report.bytes);
  return outcome;
}

// Under a context of the GPU. `tensors` may be null: then the bytes are saved as they are.
Result<TransferOutcome> Write(Attachment* attachment, const OpenFile& file,
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
  job.link_bytes_per_second = facts.client->driver().LinkOf(facts.gpu, Driver::Direction::kSave);
  job.progress = [&](uint64_t done_bytes) {
    going = CallProgress(options, wait, done_bytes, job.size_bytes);
    return going.has_value();
  };
  const auto save = [&]() -> Result<TransferReport> {
    if (auto done = OpenGds(job, file.plan.try_gds); !done) return std::unexpected(done.error());
    return CopyDeviceToFile(**facts.client->driver().Api(), job);
  };
  const Result<TransferReport> saved = save();
  job.gds.reset();
  if (saved)
    facts.client->driver().KeepLink(facts.gpu, Driver::Direction::kSave,
                                    saved->link_bytes_per_second);
  if (!going) return std::unexpected(going.error());
  if (!saved) return std::unexpected(saved.error());
  return TransferOutcome{.report = *saved};
}

Result<TransferOutcome> SaveHere(Client* client, std::string_view name, const OpenFile& file,
                                 const TensorsToSave* tensors, const TransferOptions& options,
                                 const Wait& wait) {
  AttachOptions attaching;
  if (tensors != nullptr) attaching.generation = tensors->generation;
  const Result<Attachment*> attachment = Attach(client, name, attaching, wait);
  if (!attachment) return std::unexpected(attachment.error());
  Result<TransferOutcome> saved = Write(*attachment, file, tensors, options, wait);
  (void)client->attachments().Detach(*attachment, {}, /*defer=*/false);
  return saved;
}

}  // namespace

Result<TransferOutcome> Save(Client* client, std::string_view name, const TransferFile& to,
                             const TransferOptions& options, const Wait& wait) {
  const int64_t start_ns = MonotonicNs();
  const Result<Seen> seen = Await(client, name, {}, wait);
  if (!seen) return std::unexpected(seen.error());
  const registry::BufferRecord& record = seen->found.record;
  const auto tensors = FindTensors(client, name,
                                   {.number = record.generation,
                                    .size_bytes = record.size_bytes,
                                    .described = record.description_bytes != 0},
                                   to, options, wait);
  if (!tensors) return std::unexpected(tensors.error());
  const uint64_t raw_bytes = options.whole ? record.size_bytes : registry::ContentBytes(record);
  return SaveTo(client, start_ns, to, tensors->get(), raw_bytes, options, wait,
                [&](const OpenFile& file) {
                  return WithContext(client, GpuUuid{record.gpu}, [&] {
                    return SaveHere(client, name, file, tensors->get(), options, wait);
                  });
                });
}

Result<TransferOutcome> Save(Attachment* attachment, const TransferFile& to,
                             const TransferOptions& options, const Wait& wait) {
  const int64_t start_ns = MonotonicNs();
  const Attachment::Facts& facts = attachment->facts();
  if (auto can = CheckMovable(attachment); !can) return std::unexpected(can.error());
  if (auto whole = CheckWhole(*attachment); !whole) return std::unexpected(whole.error());
  // The registry knows only of the current generation's description, so the broker must answer.
  const auto tensors =
      FindTensors(facts.client, facts.name,
                  {.number = facts.generation, .size_bytes = facts.size_bytes, .described = true},
                  to, options, wait);
  if (!tensors && attachment->orphaned()) {
    return Fail(Code::kOrphaned,
                "the broker restarted without this buffer, and its description is gone with it",
                "save the bytes as they are: GPUSHM_FORMAT_RAW");
  }
  if (!tensors) return std::unexpected(tensors.error());
  const uint64_t raw_bytes = options.whole ? facts.size_bytes : attachment->ContentBytes();
  return SaveTo(facts.client, start_ns, to, tensors->get(), raw_bytes, options, wait,
                [&](const OpenFile& file) {
                  return WithContext(facts.client, facts.gpu, [&] {
                    return Write(attachment, file, tensors->get(), options, wait);
                  });
                });
}

}  // namespace gpushm::client
