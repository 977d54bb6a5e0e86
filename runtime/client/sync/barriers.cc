#include "runtime/client/sync/barriers.h"

#include <utility>
#include <vector>

#include "contract/limits.h"
#include "platform/driver/stream_waits.h"

namespace gpushm::client {

using sync::CellState;
using sync::Point;

// ---- opening

Result<std::unique_ptr<Barrier>> Barrier::Open(Client* client, std::string_view name,
                                               uint32_t participants, const Wait& wait) {
  if (participants < 1 || participants > limits::kCells) {
    return Fail(Code::kInvalidArgument,
                Concat("number of participants is ", participants, " participants"),
                Concat("use a number from 1 to ", limits::kCells));
  }
  return UntilOpen(wait, Concat("to join barrier \"", name, '"'),
                   "make the barrier with more participants, or use a longer timeout",
                   [&] { return JoinOrFollow(client, name, participants, wait); });
}

Result<std::unique_ptr<Barrier>> Barrier::JoinOrFollow(Client* client, std::string_view name,
                                                       uint32_t participants, const Wait& wait) {
  auto page = OpenPage::Attach(client, name, {.access = Access::kReadWrite, .page = true},
                               {sync::Kind::kBarrier}, wait.Once());
  if (!page) {
    if (page.error().code() == Code::kNotFound) return Make(client, name, participants, 0, wait);
    return std::unexpected(page.error());
  }
  if (sync::Barrier::IsBroken(page->page())) {
    return Make(client, name, participants, page->generation(), wait);
  }
  const uint32_t cells = page->page().cells();
  if (cells != participants) {
    return Fail(Code::kInvalidArgument,
                Concat('"', name, "\" has ", cells, " participants, not ", participants),
                "use the same number of participants in all processes, or use another name");
  }
  auto joined = sync::Barrier::Join(page->page(), page->lease());
  if (joined) {
    return std::unique_ptr<Barrier>(new Barrier(std::move(*page), std::move(*joined)));
  }
  // A participant that has died, but is not marked as dead yet, may hold a place.
  if (joined.error().code() == Code::kExhausted) {
    return Fail(Code::kBusy, joined.error().what(), joined.error().remedy());
  }
  return std::unexpected(joined.error());
}

Result<std::unique_ptr<Barrier>> Barrier::Make(Client* client, std::string_view name,
                                               uint32_t participants, uint64_t after_generation,
                                               const Wait& wait) {
  auto page = OpenPage::Make(
      client, name, {.kind = sync::Kind::kBarrier, .cells = participants},
      {.writers_all = true, .one_writer = false, .after_generation = after_generation}, wait);
  if (!page) return std::unexpected(page.error());
  auto joined = sync::Barrier::Join(page->page(), page->lease());
  if (!joined) return std::unexpected(joined.error());
  if (auto shown = page->Publish(wait); !shown) return std::unexpected(shown.error());
  return std::unique_ptr<Barrier>(new Barrier(std::move(*page), std::move(*joined)));
}

Result<void> Barrier::Close() {
  if (auto none = page_.CheckNoStreamWaits(); !none) return none;
  {
    const std::lock_guard lock(mutex_);
    if (StreamIsToArrive() || (sync::Read(own()).ended() && page_.HasPendingStores())) {
      return Fail(Code::kBusy, "a stream of this process has not arrived yet",
                  "synchronise the stream, then close the barrier");
    }
    Leave();
  }
  return page_.Detach();
}

// ---- passing points

bool Barrier::StreamIsToArrive() const {
  const sync::Reading reading = sync::Read(own());
  return !reading.ended() && reading.value < participant_.arrived();
}

// Not before the stream has arrived: otherwise its store would come after the counter's end.
void Barrier::Leave() {
  if (!StreamIsToArrive()) sync::EndCell(own(), page_.lease(), CellState::kLeft);
  for (uint32_t i = 0; i < page_.page().cells(); ++i) sync::KeepPoison(page_.cell(i));
}

Result<void> Barrier::MayArrive() {
  if (const auto next = participant_.Passed(participant_.arrived() + 1); !next) {
    Leave();
    return std::unexpected(next.error());
  }
  return page_.CheckKnown();
}

Result<void> Barrier::WaitOnHost(const Deadline& deadline) {
  uint64_t point = 0;
  {
    const std::lock_guard lock(mutex_);
    if (waited_for_ == 0) {
      if (auto may = MayArrive(); !may) return may;
      if (StreamIsToArrive()) {
        return Fail(Code::kBusy, "a stream of this process has not arrived yet",
                    "synchronise the stream first, or let the stream arrive at this point, too");
      }
      const auto arrived = participant_.Arrive();
      if (!arrived) return std::unexpected(arrived.error());
      waited_for_ = *arrived;
    }
    point = waited_for_;
  }
  auto passed = participant_.Wait(point, deadline);
  if (!passed && passed.error().code() == Code::kTimeout) {
    return Fail(Code::kTimeout, Concat(passed.error().what(), WhoIsMissing(point)),
                passed.error().remedy());
  }
  const std::lock_guard lock(mutex_);
  if (passed && waited_for_ == point) waited_for_ = 0;
  if (!passed && sync::IsEnd(passed.error().code())) Leave();
  return passed;
}

std::string Barrier::WhoIsMissing(uint64_t point) const {
  std::vector<uint64_t> missing = participant_.Missing(point);
  std::erase(missing, 0U);  // These have not joined yet.
  return missing.empty() ? "" : Concat("; missing: ", page_.WhoAre(missing));
}

Result<void> Barrier::MayWaitOnStream(CUstream stream) {
  if (auto may = MayArrive(); !may) return may;
  if (waited_for_ != 0) {
    return Fail(Code::kBusy, Concat("the host is still waiting for point ", waited_for_),
                "call gpushm_barrier_wait until it has passed that point");
  }
  if (stream != last_stream_ && StreamIsToArrive()) {
    return Fail(Code::kBusy, "another stream of this process has not arrived yet",
                "use a single stream, or synchronise the other stream first");
  }
  const uint32_t participants = page_.page().cells();
  for (uint32_t i = 0; i < participants; ++i) {
    if (i == participant_.cell()) continue;
    const sync::Cell& other = page_.cell(i);
    // Nothing would end the wait for a participant that never joins.
    if (sync::Read(other).state == CellState::kFree) {
      return Fail(Code::kBusy,
                  Concat("only ", Joined(), " of ", participants, " participants have joined"),
                  "pass the first point on the host with gpushm_barrier_wait");
    }
    if (page_.IsOwn(other)) {
      return Fail(Code::kInvalidArgument, "another participant of the barrier is in this process",
                  "let one participant act for the whole process, "
                  "and let its streams wait for events");
    }
  }
  return {};
}

Result<void> Barrier::WaitOnStream(CUstream stream) {
  if (auto usable = page_.CheckStream(stream); !usable) return usable;
  // Held over the calls, so that the stream gets the arrivals in the order of the points.
  const std::lock_guard lock(mutex_);
  if (auto may = MayWaitOnStream(stream); !may) return may;
  StreamWaits& waits = StreamWaits::Instance(**page_.client()->driver().Api());
  std::vector<Point> added;
  const auto forget = [&] {
    for (const Point& point : added) waits.Remove(stream, *point.word, point.value);
  };
  for (const Point& point : participant_.WaitOnStream(participant_.arrived() + 1)) {
    if (point.word->load(std::memory_order_acquire) >= point.value) continue;
    if (auto room = waits.Add(stream, *point.word, point.value); !room) {
      forget();
      return room;
    }
    added.push_back(point);
  }
  auto done = PutOn(stream, added);
  if (!done) forget();
  return done;
}

Result<void> Barrier::PutOn(CUstream stream, const std::vector<Point>& others) {
  const auto arrival = participant_.ArriveOnStream();
  if (!arrival) return std::unexpected(arrival.error());
  last_stream_ = stream;
  auto done = page_.Store(stream, *arrival);
  if (!done) participant_.TakeBack();
  for (size_t i = 0; done && i < others.size(); ++i) {
    done = page_.AwaitCounted(stream, others[i]);
  }
  return done;
}

Result<void> Barrier::Check() {
  const std::lock_guard lock(mutex_);
  const uint64_t point = participant_.arrived();
  const Result<bool> passed = participant_.Passed(point);
  if (!passed) {
    Leave();
    return std::unexpected(passed.error());
  }
  if (*passed) return {};
  return Fail(Code::kBusy, participant_.HowMany(point), "synchronise the stream, then check again");
}

Barrier::Facts Barrier::facts() const {
  const std::lock_guard lock(mutex_);
  Facts facts{.generation = page_.generation(),
              .point = participant_.arrived(),
              .participants = page_.page().cells(),
              .joined = Joined(),
              .cell = participant_.cell()};
  return facts;
}

uint32_t Barrier::Joined() const {
  uint32_t joined = 0;
  for (uint32_t i = 0; i < page_.page().cells(); ++i) {
    if (sync::Read(page_.cell(i)).state != CellState::kFree) ++joined;
  }
  return joined;
}

}  // namespace gpushm::client
