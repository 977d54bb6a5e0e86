#include "runtime/client/sync/rings.h"

#include <algorithm>

#include "contract/limits.h"

namespace gpushm::client {
namespace {

using sync::CellState;
using sync::FrameSettings;

// Slots are aligned for kernels.
constexpr uint64_t kSlotAlignment = 512;
constexpr std::string_view kPageSuffix = "-ring";

uint64_t StrideOf(const FrameSettings& settings) {
  return RoundUp(settings.frame_bytes, kSlotAlignment);
}

uint64_t BufferBytes(const FrameSettings& settings) { return settings.frames * StrideOf(settings); }

Result<void> CheckRingName(std::string_view name) {
  if (auto valid = protocol::CheckName(name, "name"); !valid) return valid;
  if (name.size() + kPageSuffix.size() <= limits::kNameBytes) return {};
  return Fail(Code::kInvalidArgument,
              Concat("the ring's name has ", name.size(), " characters; the limit is ",
                     limits::kNameBytes - kPageSuffix.size()),
              "use a shorter name");
}

Result<OpenPage> AttachPage(Client* client, std::string_view name, AttachOptions options,
                            const Wait& wait) {
  options.called = name;
  return OpenPage::Attach(client, Concat(name, kPageSuffix), options,
                          {sync::Kind::kRing, sync::Kind::kQueue}, wait);
}

// Memory for the frames: the pod's declared buffer if it is fresh, otherwise memory of its own. A
// successor always gets new memory, so frames that readers of the former writer hold stay
// unchanged.
Result<Attachment*> MakeFrames(Client* client, std::string_view name, const Ring::Options& ring,
                               bool successor, const Wait& wait) {
  const FrameSettings& settings = ring.settings;
  const uint64_t bytes = BufferBytes(settings);
  const MakeOptions options{
      .on_writer_exit = OnWriterExit::kKeep, .until_unused = !ring.keep, .gpu = ring.gpu};
  if (successor) {
    auto replaced = Replace(client, name, bytes, options, /*attach=*/true, wait);
    if (replaced || replaced.error().code() != Code::kNotFound) return replaced;
  }
  auto created = Create(client, name, bytes, options, /*attach=*/true, wait);
  if (created || created.error().code() != Code::kAlreadyExists) return created;
  auto attached = Attach(client, name, {.access = Access::kReadWrite}, wait.Once());
  if (!attached) return attached;
  Held held(client, *attached);
  if (held->facts().size_bytes < bytes) {
    return Fail(Code::kInvalidArgument,
                Concat("buffer \"", name, "\" has ", held->facts().size_bytes, " bytes, ",
                       settings.frames, " frames of ", settings.frame_bytes, " need ", bytes),
                "declare a larger buffer, or use fewer or smaller frames");
  }
  return held.Release();
}

}  // namespace

Ring::Ring(std::string_view name, Role role, OpenPage page, Held frames, Participant participant)
    : name_(name),
      role_(role),
      page_(std::move(page)),
      frames_held_(std::move(frames)),
      settings_(sync::FrameTable::Of(page_.page(), page_.page().kind())->settings()),
      participant_(std::move(participant)) {}

// ---- opening

Result<std::unique_ptr<Ring>> Ring::Open(Client* client, std::string_view name,
                                         const Options& options, const Wait& wait) {
  if (auto valid = CheckRingName(name); !valid) return std::unexpected(valid.error());
  if (options.role == Role::kReader) return OpenReader(client, name, options, wait);
  if (auto valid = options.settings.Check(); !valid) return std::unexpected(valid.error());
  return UntilOpen(wait, Concat("to write ring \"", name, '"'),
                   "only one process writes a ring: end the other writer, or use a longer timeout",
                   [&] { return TryWrite(client, name, options, wait); });
}

Result<std::unique_ptr<Ring>> Ring::TryWrite(Client* client, std::string_view name,
                                             const Options& options, const Wait& wait) {
  const auto former = AttachPage(client, name, {.page = true}, wait.Once());
  if (!former) {
    if (former.error().code() == Code::kNotFound) return Make(client, name, options, 0, wait);
    return std::unexpected(former.error());
  }
  if (!sync::Read(former->cell(0)).ended()) {
    return Fail(Code::kBusy, Concat("ring \"", name, "\" already has a writer"));
  }
  auto made = Make(client, name, options, former->generation(), wait);
  // A pool without room for a second generation gets room when the former readers have gone.
  if (!made && made.error().code() == Code::kExhausted && !wait.dont_wait) {
    return Fail(Code::kBusy, made.error().what(), made.error().remedy());
  }
  return made;
}

Result<std::unique_ptr<Ring>> Ring::Make(Client* client, std::string_view name,
                                         const Options& options, uint64_t after_generation,
                                         const Wait& wait) {
  // The page comes first, because only one process can make the next page. If a second process made
  // frames, the name would have memory that no page describes, and readers would wait for a page
  // that does.
  auto page = OpenPage::Make(client, Concat(name, kPageSuffix),
                             {.kind = options.kind,
                              .cells = options.settings.cells(),
                              .body_bytes = options.settings.body_bytes()},
                             {.writers_all = true,
                              .one_writer = false,
                              .after_generation = after_generation,
                              .until_unused = !options.keep},
                             wait);
  if (!page) return std::unexpected(page.error());
  const auto made = MakeFrames(client, name, options, after_generation != 0, wait);
  if (!made) return std::unexpected(made.error());
  Held frames(client, *made);
  FrameSettings settings = options.settings;
  settings.generation = frames->facts().generation;
  page->SetSettings(settings.ToHeader());
  Participant participant;
  if (options.kind == sync::Kind::kQueue) {
    auto writer = sync::QueueWriter::Open(page->page(), page->lease());
    if (!writer) return std::unexpected(writer.error());
    participant.emplace<sync::QueueWriter>(std::move(*writer));
  } else {
    auto writer = sync::RingWriter::Open(page->page(), page->lease(), options.need);
    if (!writer) return std::unexpected(writer.error());
    participant.emplace<sync::RingWriter>(std::move(*writer));
  }
  if (auto shown = page->Publish(wait); !shown) return std::unexpected(shown.error());
  return std::unique_ptr<Ring>(
      new Ring(name, Role::kWriter, std::move(*page), std::move(frames), std::move(participant)));
}

Result<std::unique_ptr<Ring>> Ring::OpenReader(Client* client, std::string_view name,
                                               const Options& options, const Wait& wait) {
  AttachOptions attach{.access = Access::kReadWrite, .page = true};
  for (;;) {
    auto page = AttachPage(client, name, attach, wait);
    if (!page) return std::unexpected(page.error());
    attach.min_generation = page->generation() + 1;
    if (sync::Read(page->cell(0)).ended()) continue;
    auto joined = Join(name, options, std::move(*page), wait);
    // The page's writer has ended. Either the next writer has put other memory behind the name, or
    // nobody has it open any more.
    const Code code = joined ? Code() : joined.error().code();
    if (code != Code::kStale && code != Code::kNotFound) return joined;
  }
}

Result<std::unique_ptr<Ring>> Ring::Join(std::string_view name, const Options& options,
                                         OpenPage page, const Wait& wait) {
  const auto table = sync::FrameTable::Of(page.page(), page.page().kind());
  if (!table) return std::unexpected(table.error());
  const auto attached = Attach(
      page.client(), name, {.generation = table->settings().generation, .own = true}, wait.Once());
  if (!attached) return std::unexpected(attached.error());
  Held frames(page.client(), *attached);
  if (frames->facts().size_bytes < BufferBytes(table->settings())) {
    return Fail(Code::kCorrupt,
                Concat("the ring's frames need ", BufferBytes(table->settings()),
                       " bytes, but its buffer has ", frames->facts().size_bytes),
                "close the ring and open it again; if this happens again, restart its writer");
  }
  Participant participant;
  if (page.page().kind() == sync::Kind::kQueue) {
    auto worker = sync::QueueWorker::Join(page.page(), page.lease());
    if (!worker) return std::unexpected(worker.error());
    participant.emplace<sync::QueueWorker>(std::move(*worker));
  } else {
    const auto start =
        options.from_oldest ? sync::RingReader::Start::kOldest : sync::RingReader::Start::kNewest;
    auto reader = sync::RingReader::Join(page.page(), page.lease(), start);
    if (!reader) return std::unexpected(reader.error());
    participant.emplace<sync::RingReader>(std::move(*reader));
  }
  page.RingAlarm();  // A writer may wait for readers.
  return std::unique_ptr<Ring>(
      new Ring(name, Role::kReader, std::move(page), std::move(frames), std::move(participant)));
}

Result<void> Ring::Close() {
  if (auto none = page_.CheckNoStreamWaits(); !none) return none;
  const std::lock_guard lock(mutex_);
  DropStored();
  // If another participant owns the cell by now, or the cell is poisoned, its words tell nothing.
  const bool owned = sync::StillOwned(page_.cell(cell()), page_.lease()).has_value();
  if (owned ? !pending_.empty() : page_.HasPendingStores()) {
    return Fail(Code::kBusy, "streams of this process have not finished their frames yet",
                "synchronise the streams, then close the ring");
  }
  if (!open_reads_.empty()) {
    return Fail(Code::kBusy,
                Concat(open_reads_.size(), " frames are being read; the oldest is frame ",
                       *open_reads_.begin()),
                "end these reads first");
  }
  if (writing_) {
    return Fail(Code::kBusy, Concat("frame ", *writing_, " is being written"),
                "end this write, or abandon it");
  }
  sync::EndCell(page_.cell(cell()), page_.lease(), CellState::kLeft);
  if (role_ == Role::kWriter) sync::KeepPoison(page_.cell(0));
  page_.RingAlarm();
  closed_ = true;
  const auto frames_gone = frames_held_.Detach();
  const auto page_gone = page_.Detach();
  return frames_gone ? page_gone : frames_gone;
}

// ---- streams

CUdeviceptr Ring::AddressOf(uint32_t slot) const {
  return frames_held_->facts().address + slot * StrideOf(settings_);
}

Result<void> Ring::MayStore(CUstream stream) const {
  if (stream == kNoStream) return {};
  return page_.CheckStream(stream);
}

Result<void> Ring::Store(const sync::Point& point, CUstream stream) {
  if (stream == kNoStream) {
    point.word->store(point.value, std::memory_order_release);
    return {};
  }
  if (auto done = page_.Store(stream, point); !done) return done;
  DropStored();
  pending_.push_back(point);
  return {};
}

void Ring::DropStored() {
  std::erase_if(pending_, [](const sync::Point& point) {
    const uint64_t now = point.word->load(std::memory_order_acquire);
    return point.value == 0 ? now == 0 : now >= point.value;
  });
}

Result<Ring::Ready> Ring::AwaitReady(const sync::Point& point, CUstream stream,
                                     const Deadline& deadline) {
  if (point.word->load(std::memory_order_acquire) >= point.value) return Ready::kAlready;
  // Only the poison would end the wait, and a store of the writer's stream may come after it.
  if (auto ended = sync::EndedBefore(sync::Read(page_.cell(0)), point.value)) {
    return std::unexpected(*ended);
  }
  if (stream != kNoStream && !page_.IsOwn(page_.cell(0))) {
    if (auto usable = page_.CheckStream(stream); !usable) return std::unexpected(usable.error());
    const auto waits = page_.Await(stream, point);
    if (waits) return Ready::kStream;
    if (waits.error().code() != Code::kExhausted) return std::unexpected(waits.error());
  }
  // There is no stream, or too many streams wait already.
  const auto reached = sync::WaitUntil(page_.cell(0), point.value, deadline);
  if (!reached) return std::unexpected(reached.error());
  return Ready::kHost;
}

// Tries under the mutex and waits without it, so that another thread can end the frame for which
// this call waits.
template <typename Try>
auto Ring::Until(const Deadline& deadline, sync::Cell* sleeps_on, Try attempt)
    -> decltype(attempt()) {
  for (sync::Poll poll(deadline, sleeps_on);;) {
    auto result = [&] {
      const std::lock_guard lock(mutex_);
      return attempt();
    }();
    if (result || result.error().code() != Code::kTimeout || !poll.Again()) return result;
  }
}

// ---- writing

Result<sync::FrameWriter::Opened> Ring::TryOpen() {
  Result<sync::FrameWriter::Opened> opened =
      Fail(Code::kInvalidArgument, "this process opened the ring as a reader",
           "open it with the role GPUSHM_RING_WRITER");
  if (auto* const ring = std::get_if<sync::RingWriter>(&participant_)) {
    opened = ring->OpenFrame(Deadline::AfterMs(0));
  } else if (auto* const queue = std::get_if<sync::QueueWriter>(&participant_)) {
    opened = queue->OpenFrame(Deadline::AfterMs(0));
  }
  if (opened) writing_ = opened->seq;
  return opened;
}

Result<Ring::Frame> Ring::BeginWrite(const Deadline& deadline) {
  if (auto known = page_.CheckKnown(); !known) return std::unexpected(known.error());
  uint64_t waited_for = 0;
  const auto opened = Until(deadline, nullptr, [&] {
    auto tried = TryOpen();
    const sync::FrameWriter* const writer = Writer();
    waited_for = writer == nullptr ? 0 : writer->waited_for();
    return tried;
  });
  if (!opened && opened.error().code() == Code::kTimeout && waited_for != 0) {
    return Fail(Code::kTimeout, Concat(opened.error().what(), ": ", page_.WhoAre({&waited_for, 1})),
                opened.error().remedy());
  }
  if (!opened) return std::unexpected(opened.error());
  Frame frame;
  frame.facts.slot = opened->slot;
  frame.facts.seq = opened->seq;
  frame.address = AddressOf(opened->slot);
  frame.capacity_bytes = settings_.frame_bytes;
  return frame;
}

Result<void> Ring::EndWrite(const Frame& frame, CUstream stream, uint64_t bytes,
                            const sync::Metadata& metadata) {
  {
    const std::lock_guard lock(mutex_);
    sync::FrameWriter* const writer = Writer();
    if (writer == nullptr) {
      return Fail(Code::kInvalidArgument, "this process opened the ring as a reader",
                  "open it with the role GPUSHM_RING_WRITER");
    }
    const sync::Point complete = writer->Ready(frame.facts.seq);
    if (auto may = MayStore(stream); !may) return may;
    const uint64_t seq = frame.facts.seq;
    if (auto may = writer->MayAnnounce(seq, bytes, metadata.size()); !may) return may;
    // Before readers know of the frame: if the driver refuses the store, the frame stays open, and
    // no reader waits for it.
    if (auto stored = Store(complete, stream); !stored) return stored;
    writing_.reset();
    if (auto announced = writer->Announce(seq, bytes, metadata); !announced) return announced;
  }
  page_.RingAlarm();  // Also for this writer: it may open the next frame.
  return {};
}

sync::FrameWriter* Ring::Writer() {
  if (auto* const ring = std::get_if<sync::RingWriter>(&participant_)) return ring;
  return std::get_if<sync::QueueWriter>(&participant_);
}

Result<void> Ring::AbandonWrite() {
  {
    const std::lock_guard lock(mutex_);
    writing_.reset();
    if (auto* const ring = std::get_if<sync::RingWriter>(&participant_)) ring->AbandonFrame();
    if (auto* const queue = std::get_if<sync::QueueWriter>(&participant_)) queue->AbandonFrame();
  }
  page_.RingAlarm();
  return {};
}

// ---- reading

Result<sync::Frame> Ring::TryNext(bool newest) {
  if (!newest && !unready_.empty()) return TakeUnready(unready_.begin());
  Result<sync::Frame> next =
      Fail(Code::kInvalidArgument, "this process opened the ring as its writer",
           "open it with the role GPUSHM_RING_READER");
  if (auto* const reader = std::get_if<sync::RingReader>(&participant_)) {
    next = reader->Next(Deadline::AfterMs(0), newest ? sync::RingReader::Order::kNewest
                                                     : sync::RingReader::Order::kInOrder);
  } else if (auto* const worker = std::get_if<sync::QueueWorker>(&participant_)) {
    next = worker->Next(Deadline::AfterMs(0));
  }
  if (!next && !unready_.empty()) return TakeUnready(std::prev(unready_.end()));
  if (!next) return next;
  open_reads_.insert(next->seq);
  // The hold was free, so the store that freed it is done, although the word names a frame again.
  if (const auto* const reader = std::get_if<sync::RingReader>(&participant_)) {
    std::erase_if(pending_, [word = &reader->hold_word(next->hold)](const sync::Point& point) {
      return point.word == word;
    });
  }
  for (; !unready_.empty(); unready_.erase(unready_.begin())) {
    (void)Release(unready_.begin()->second, kNoStream);
    ++next->lost;
    ++passed_over_;
  }
  return next;
}

sync::Frame Ring::TakeUnready(std::map<uint64_t, sync::Frame>::iterator frame) {
  open_reads_.insert(frame->first);
  return unready_.extract(frame).mapped();
}

Result<Ring::Frame> Ring::BeginRead(CUstream stream, bool newest, const Deadline& deadline) {
  if (auto known = page_.CheckKnown(); !known) return std::unexpected(known.error());
  const auto next = Until(deadline, &page_.cell(0), [&] { return TryNext(newest); });
  if (!next) return std::unexpected(next.error());
  WakeWriter();  // It may wait until this reader has passed an older frame.
  Frame frame;
  frame.facts = *next;
  frame.address = AddressOf(next->slot);
  frame.capacity_bytes = settings_.frame_bytes;
  const sync::Point complete{&page_.cell(0).value, frame.facts.seq};
  const Result<Ready> ready = AwaitReady(complete, stream, deadline);
  if (ready) {
    frame.ready = *ready;
    return frame;
  }
  const std::lock_guard lock(mutex_);
  open_reads_.erase(next->seq);
  if (!sync::IsEnd(ready.error().code())) {
    unready_.emplace(next->seq, *next);
  } else {
    (void)Release(frame.facts, kNoStream);  // Nothing has read it.
  }
  return std::unexpected(ready.error());
}

Result<void> Ring::CheckOpen(uint64_t seq) const {
  if (open_reads_.contains(seq)) return {};
  return Fail(Code::kInvalidArgument, Concat("frame ", seq, " is not being read"),
              "end each frame once, and pass the struct that begin filled");
}

Result<sync::Point> Ring::EndOf(const sync::Frame& frame) const {
  if (const auto* const reader = std::get_if<sync::RingReader>(&participant_)) {
    return reader->EndOf(frame);
  }
  if (const auto* const worker = std::get_if<sync::QueueWorker>(&participant_)) {
    return worker->Done(frame);
  }
  return Fail(Code::kInvalidArgument, "this process opened the ring as its writer",
              "open it with the role GPUSHM_RING_READER");
}

Result<void> Ring::Release(const sync::Frame& frame, CUstream stream) {
  // Otherwise its place may already belong to another reader, and the item to another worker.
  if (sync::StillOwned(page_.cell(cell()), page_.lease())) {
    const Result<sync::Point> end = EndOf(frame);
    if (!end) return std::unexpected(end.error());
    if (auto stored = Store(*end, stream); !stored) return stored;
  }
  if (auto* const reader = std::get_if<sync::RingReader>(&participant_)) {
    (void)reader->Release(frame);
  }
  return {};
}

Result<void> Ring::CheckRead(uint64_t seq) const {
  if (const auto* const reader = std::get_if<sync::RingReader>(&participant_)) {
    return reader->Check(seq);
  }
  if (const auto* const worker = std::get_if<sync::QueueWorker>(&participant_)) {
    return worker->Check(seq);
  }
  return {};
}

Result<void> Ring::EndRead(const Frame& frame, CUstream stream, const Deadline& deadline) {
  // Work behind a wait in the stream has not begun earlier than this. So this wait costs no time
  // that the work would not have to wait as well.
  const auto reached = sync::WaitUntil(page_.cell(0), frame.facts.seq, deadline);
  if (!reached && reached.error().code() == Code::kTimeout) {
    return std::unexpected(reached.error());
  }
  if (!reached) sync::KeepPoison(page_.cell(0));  // A stream may be waiting for it.
  Result<void> counts;
  bool had_no_hold = false;
  {
    const std::lock_guard lock(mutex_);
    if (auto may = MayStore(stream); !may) return may;
    if (auto open = CheckOpen(frame.facts.seq); !open) return open;
    counts = CheckRead(frame.facts.seq);
    if (auto released = Release(frame.facts, stream); !released) return released;
    had_no_hold = CloseRead(frame.facts.seq);
  }
  if (had_no_hold) {
    page_.RingAlarm();
  } else {
    WakeWriter();
  }
  return counts;
}

// True: all holds were open, so this reader may have waited for this.
bool Ring::CloseRead(uint64_t seq) {
  const bool had_no_hold = open_reads_.size() >= sync::kHolds;
  open_reads_.erase(seq);
  return had_no_hold;
}

Result<void> Ring::AbandonRead(const Frame& frame, CUstream stream) {
  bool is_news = false;  // For others who read.
  {
    const std::lock_guard lock(mutex_);
    if (auto open = CheckOpen(frame.facts.seq); !open) return open;
    if (const auto* const worker = std::get_if<sync::QueueWorker>(&participant_)) {
      auto given_back = worker->GiveBack(frame.facts);
      // If this participant has ended for the others, an item goes to the next worker anyway.
      if (!given_back && sync::StillOwned(page_.cell(cell()), page_.lease())) return given_back;
      is_news = true;
    } else {
      if (auto may = MayStore(stream); !may) return may;
      if (auto released = Release(frame.facts, stream); !released) return released;
    }
    is_news |= CloseRead(frame.facts.seq);
  }
  if (is_news) {
    page_.RingAlarm();
  } else {
    WakeWriter();
  }
  return {};
}

// ---- looking

Result<UniqueFd> Ring::HearAlarm(uint64_t connection, const Deadline& deadline) {
  Lease lease;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return Fail(Code::kNotFound, "it is closed");
    lease = page_.attachment().lease();
  }
  return page_.HearAlarm(lease, connection, deadline);
}

std::expected<sync::LookAgain, Code> Ring::Look() {
  std::unique_lock lock(mutex_);
  if (closed_) return std::unexpected(Code::kInvalidArgument);
  if (role_ == Role::kReader) return LookHere();
  sync::Word& waits = page_.cell(0).words[sync::kWriterWaitsWord];
  const bool waited = waits.exchange(1, std::memory_order_relaxed) != 0;
  std::atomic_thread_fence(std::memory_order_seq_cst);  // Pairs with WakeWriter.
  const auto look = LookHere();
  if (look && *look != sync::LookAgain::kNow) return look;
  waits.store(0, std::memory_order_relaxed);
  lock.unlock();
  if (waited) page_.RingAlarm();  // For other waiters of this process, which rely on the word.
  return look;
}

void Ring::WakeWriter() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // Pairs with Look.
  const sync::Word& waits = page_.cell(0).words[sync::kWriterWaitsWord];
  if (waits.load(std::memory_order_relaxed) != 0) page_.RingAlarm();
}

// Requires mutex_.
std::expected<sync::LookAgain, Code> Ring::LookHere() {
  using enum sync::LookAgain;
  if (page_.attachment().orphaned()) return std::unexpected(Code::kOrphaned);
  const sync::Reading writer = sync::Read(page_.cell(0));
  // Frames that a stream could not wait for are read first.
  if (!unready_.empty()) {
    return writer.value >= unready_.begin()->first || writer.ended() ? kNow : kByTimer;
  }
  auto look = kNow;
  std::visit(
      [&](auto& participant) {
        if constexpr (requires { participant.Look(); }) look = participant.Look();
      },
      participant_);
  if (look != kEnded) return look;
  const bool owned = sync::StillOwned(page_.cell(cell()), page_.lease()).has_value();
  return std::unexpected(owned && writer.ended() ? writer.end() : Code::kOrphaned);
}

uint32_t Ring::cell() const {
  if (const auto* const reader = std::get_if<sync::RingReader>(&participant_)) {
    return reader->cell();
  }
  if (const auto* const worker = std::get_if<sync::QueueWorker>(&participant_)) {
    return worker->cell();
  }
  return 0;
}

Ring::Facts Ring::facts() const {
  const std::lock_guard lock(mutex_);
  const sync::Cell& writer = page_.cell(0);
  Facts facts{.role = role_,
              .kind = page_.page().kind(),
              .settings = settings_,
              .generation = page_.generation(),
              .newest = writer.words[sync::kNewestWord].load(std::memory_order_acquire),
              .dropped = writer.words[sync::kDroppedWord].load(std::memory_order_relaxed),
              .taken = 0,
              .lost = 0,
              .cell = cell(),
              .writer = sync::Read(writer).state};
  if (const auto* const reader = std::get_if<sync::RingReader>(&participant_)) {
    facts.taken = reader->taken() - passed_over_;
    facts.lost = reader->lost() + passed_over_;
  } else if (const auto* const worker = std::get_if<sync::QueueWorker>(&participant_)) {
    facts.taken = worker->taken();
  }
  return facts;
}

}  // namespace gpushm::client
