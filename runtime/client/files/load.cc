// Loading buffers from files (transfer.h).
#include <poll.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "platform/base/sealed_memory.h"
#include "platform/transfer/file_pages.h"
#include "platform/transfer/gds_file.h"
#include "runtime/client/attach.h"
#include "runtime/client/client.h"
#include "runtime/client/content.h"
#include "runtime/client/description.h"
#include "runtime/client/files/content_digest.h"
#include "runtime/client/files/steps.h"

namespace gpushm::client {
namespace {

// A load tells the broker this often how far it is, and waits for the answer.
constexpr int64_t kSayNs = 10'000'000;

Result<void> CheckFits(const LoadSource& source, uint64_t size_bytes) {
  if (source.buffer_bytes <= size_bytes) return {};
  return Fail(Code::kInvalidArgument,
              Concat(source.name, source.has_tensors() ? ": its tensors need " : " has ",
                     source.buffer_bytes, " bytes, but the buffer has ", size_bytes),
              source.has_tensors() ? "load into a larger buffer: gpushmctl create --from"
                                   : "load into a larger buffer");
}

// Whether the files are what they were before their first byte. For a file that nothing announces,
// returns only when it has been so for kSettleMs; `waits` is called if that is not soon.
Result<void> Settle(const LoadSource& source, const TransferOptions& options, const Wait& wait,
                    const std::function<void()>& waits, bool* changed) {
  constexpr int64_t kSoonMs = 500;
  for (bool said = false;;) {
    auto same = source.CheckUnchanged();
    *changed = !same;
    if (!same) return same;
    const int64_t left_ms = source.UnsettledMs();
    if (left_ms == 0) return {};
    if (left_ms > kSoonMs && !std::exchange(said, true)) waits();
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

Result<void> CheckDigest(const LoadSource& source, const Digest& announced, const Digest& digest) {
  if (announced.empty() || announced == digest) return {};
  return Fail(Code::kInvalidArgument,
              Concat(source.name, " has the digest ", digest.ToString(), ", but ",
                     announced.ToString(), " was announced"),
              "load the file that was meant, or announce this digest");
}

void CountLoad(Client* client, TransferOutcome* outcome, const LoadSource& source) {
  outcome->reason = source.parts.front().file.plan.reason;
  client->counters().Add(protocol::Counter::kLoads);
  client->counters().Add(protocol::Counter::kLoadedBytes, outcome->report.bytes);
}

// Moves the files of `source` one after the other.
Result<TransferReport> CopyParts(Client* client, const LoadSource& source, TransferJob job,
                                 const TransferProgress& progress) {
  const CudaApi& api = **client->driver().Api();  // Attach loaded it.
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

// One attempt to fill a buffer. `changed`: a file is not what it was. `begun`: as far as the broker
// knows, or may know.
struct Attempt {
  bool changed = false;
  bool begun = false;
};

Result<TransferOutcome> FillOnce(Attachment* attachment, const LoadSource& source, bool detaches,
                                 const TransferOptions& options, const Wait& wait, Attempt* now) {
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
  const bool keeps_digest = detaches && facts.client->attachments().CountOf(*attachment) == 1;
  // Its pages are unregistered at the end, when everybody knows that the content is complete.
  PageWindow window;
  job.window = &window;
  job.address = facts.address;
  const uint64_t room_bytes = source.buffer_bytes != 0 ? source.buffer_bytes : facts.size_bytes;
  job.size_bytes = source.is_stream() ? room_bytes : first.size_bytes;
  job.link_bytes_per_second = facts.client->driver().LinkOf(facts.gpu, Driver::Direction::kLoad);
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
  int64_t say_ns = 0;
  const auto progress = [&](uint64_t done_bytes) {
    going = CallProgress(options, wait, done_bytes, source.file_bytes);
    // Nobody sees how far it is before it is published.
    if (published && going && done_bytes > said_bytes && done_bytes < room_bytes &&
        MonotonicNs() >= say_ns) {
      going = ReportContent(*attachment, done_bytes, false, wait);
      said_bytes = done_bytes;
      say_ns = MonotonicNs() + kSayNs;
    }
    return going.has_value();
  };
  std::optional<DeviceDigest> digests;
  if (keeps_digest || !options.announced.digest.empty()) {
    digests.emplace(**facts.client->driver().Api(), room_bytes);
  }
  const Result<TransferReport> copied = CopyParts(facts.client, source, job, progress);
  if (!going) return std::unexpected(going.error());
  if (!copied) {
    // A file that ended early, or cannot be read any more, may have changed.
    const Code code = copied.error().code();
    now->changed = (code == Code::kBusy || code == Code::kSystem) && !source.CheckUnchanged();
    return std::unexpected(copied.error());
  }
  const auto waits = [&] {
    if (published) StateReason(facts.client, facts.name, NotSettled(source.name));
  };
  if (auto same = Settle(source, options, wait, waits, &now->changed); !same) {
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
  facts.client->driver().KeepLink(facts.gpu, Driver::Direction::kLoad,
                                  copied->link_bytes_per_second);
  return TransferOutcome{.report = *copied, .digest = digest};
}

// Under a context of the GPU. `detaches`: the caller detaches next, whatever the result is. Begins
// again, with what is there then in `source`, when a file changes.
Result<TransferOutcome> Fill(Attachment* attachment, LoadSource* source, bool detaches,
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
            if (!attachment->unpublished())
              StateReason(attachment->facts().client, attachment->facts().name, waits_for);
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
    StateReason(attachment->facts().client, attachment->facts().name, loaded.error());
    GiveContentUp(attachment, detaches);
  }
  return loaded;
}

Result<TransferOutcome> LoadHere(Client* client, std::string_view name, LoadSource* source,
                                 const TransferOptions& options, const Wait& wait) {
  const AttachOptions attaching{.access = Access::kReadWrite, .any_state = true};
  const Result<Attachment*> attachment = Attach(client, name, attaching, wait);
  if (!attachment) return std::unexpected(attachment.error());
  const auto load = [&]() -> Result<TransferOutcome> {
    if (auto fits = CheckFits(*source, (*attachment)->facts().size_bytes); !fits) {
      return Fail(Code::kStale, Concat("the buffer was replaced: ", fits.error().what()),
                  "load a smaller file, or replace the buffer by a larger one");
    }
    return Fill(*attachment, source, /*detaches=*/true, options, wait);
  };
  Result<TransferOutcome> loaded = load();
  (void)client->attachments().Detach(*attachment, {}, /*defer=*/false);
  return loaded;
}

Result<TransferOutcome> LoadByName(Client* client, std::string_view name, const TransferFile& from,
                                   const TransferOptions& options, const Wait& wait) {
  const int64_t start_ns = MonotonicNs();
  Result<LoadSource> source = LoadSource::Await(from, options, wait, [&](const Status& why) {
    StateReason(client, name, why);
    return Result<void>();
  });
  if (!source) return std::unexpected(source.error());
  const Result<Seen> seen = Await(client, name, {.content = Wanted::Content::kAny}, wait);
  if (!seen) return std::unexpected(seen.error());
  const registry::BufferRecord& record = seen->found.record;
  if (auto fits = CheckFits(*source, record.size_bytes); !fits) {
    return std::unexpected(fits.error());
  }
  if (auto begun = CallProgress(options, wait, 0, source->file_bytes); !begun) {
    return std::unexpected(begun.error());
  }
  Result<TransferOutcome> outcome = WithContext(
      client, GpuUuid{record.gpu}, [&] { return LoadHere(client, name, &*source, options, wait); });
  if (!outcome) return outcome;
  outcome->elapsed_ns = MonotonicNs() - start_ns;
  CountLoad(client, &*outcome, *source);
  return outcome;
}

// The part of Load for which the attachment says that a load is running.
Result<TransferOutcome> LoadAttached(Attachment* attachment, const TransferFile& from,
                                     const TransferOptions& options, const Wait& wait) {
  const Attachment::Facts& facts = attachment->facts();
  // If a new broker has started, the attachment must know whether that one has the generation.
  facts.client->session().NoticeLoss(wait.answer);
  const std::optional<Code> code = attachment->Current();
  if (code == Code::kOrphaned || code == Code::kStale) {
    return Fail(*code,
                code == Code::kOrphaned
                    ? Concat("the broker restarted without generation ", facts.generation)
                    : Concat("generation ", facts.generation, " is no longer the current one"),
                "load into a new generation: gpushm_replace");
  }
  Result<LoadSource> source = LoadSource::Await(from, options, wait, [&](const Status& why) {
    if (!attachment->unpublished()) StateReason(facts.client, facts.name, why);
    return Result<void>();
  });
  if (!source) return std::unexpected(source.error());
  if (auto fits = CheckFits(*source, facts.size_bytes); !fits) {
    return std::unexpected(fits.error());
  }
  if (auto begun = CallProgress(options, wait, 0, source->file_bytes); !begun) {
    return std::unexpected(begun.error());
  }
  Result<TransferOutcome> outcome = WithContext(facts.client, facts.gpu, [&] {
    return Fill(attachment, &*source, /*detaches=*/false, options, wait);
  });
  if (outcome) CountLoad(facts.client, &*outcome, *source);
  return outcome;
}

}  // namespace

Result<TransferOutcome> Load(Client* client, std::string_view name, const TransferFile& from,
                             const TransferOptions& options, const Wait& wait) {
  Result<TransferOutcome> outcome = LoadByName(client, name, from, options, wait);
  if (!outcome) StateReason(client, name, outcome.error());
  return outcome;
}

Result<TransferOutcome> Load(Attachment* attachment, const TransferFile& from,
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
  if (!attachment->BeginFill()) {
    return Fail(Code::kBusy, "a load into this attachment is running",
                "wait until it has returned");
  }
  using Fill = Attachment::Fill;
  struct End {  // Also after an exception: host memory may be used up.
    ~End() { attachment->EndFill(how); }
    Attachment* attachment;
    Fill how;
  } end{attachment, unpublished ? Fill::kFailed : Fill::kNone};
  Result<TransferOutcome> outcome = LoadAttached(attachment, from, options, wait);
  if (!outcome && !unpublished) StateReason(facts.client, facts.name, outcome.error());
  if (!outcome) return outcome;
  attachment->NoteContent(outcome->report.bytes);
  end.how = Fill::kNone;
  outcome->elapsed_ns = MonotonicNs() - start_ns;
  return outcome;
}

}  // namespace gpushm::client
