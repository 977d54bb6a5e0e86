// The C ABI: rings and queues.
#include <algorithm>
#include <cstring>

#include "runtime/client/c_api/support.h"
#include "runtime/client/sync/rings.h"
#include "runtime/include/gpushm/sync.h"

namespace gc = gpushm::client;
using gpushm::Code;
using gpushm::Concat;
using gpushm::Fail;
using gpushm::Result;

namespace {

constexpr uint32_t kDefaultFrames = 8;
constexpr uint32_t kDefaultReaders = 15;

static_assert(GPUSHM_METADATA_BYTES == gpushm::sync::kMetadataBytes);

template <typename Body>
gpushm_status With(const gpushm_ring* handle, Body body) {
  return gc::EnterWith<gc::Ring>(gc::HandleKind::kRing, handle, "ring", body);
}

Result<gc::Ring::Options> ToOptions(const gpushm_ring_options& given) {
  if (given.role > GPUSHM_RING_WRITER || given.policy > GPUSHM_RING_QUEUE ||
      given.from_oldest > 1 || given.keep > 1) {
    return Fail(Code::kInvalidArgument,
                Concat("unknown value: role ", given.role, ", policy ", given.policy,
                       ", from_oldest ", given.from_oldest, ", keep ", given.keep),
                "use the values of gpushm_ring_role and gpushm_ring_policy; "
                "from_oldest and keep are 0 or 1");
  }
  if (auto valid = gc::CheckReservedType("ring_options.type", given.type); !valid) {
    return std::unexpected(valid.error());
  }
  const std::pair<const char*, uint64_t> for_writers[] = {{"frames", given.frames},
                                                          {"frame_bytes", given.frame_bytes},
                                                          {"readers", given.readers},
                                                          {"policy", given.policy},
                                                          {"need_readers", given.need_readers},
                                                          {"start_readers", given.start_readers},
                                                          {"keep", given.keep},
                                                          {"gpu", given.gpu}};
  for (const auto& [option, value] : for_writers) {
    if (given.role != GPUSHM_RING_READER || value == 0) continue;
    return Fail(Code::kInvalidArgument,
                Concat("a reader set ring_options.", option, " to ", value,
                       ", which only a writer can set"),
                "a reader sets only role, from_oldest and timeout_ms; "
                "leave the other options zero");
  }
  gc::Ring::Options options;
  options.role = gc::Ring::Role{given.role};
  options.kind =
      given.policy == GPUSHM_RING_QUEUE ? gpushm::sync::Kind::kQueue : gpushm::sync::Kind::kRing;
  options.settings = {.frames = given.frames == 0 ? kDefaultFrames : given.frames,
                      .frame_bytes = given.frame_bytes,
                      .readers = given.readers == 0 ? kDefaultReaders : given.readers,
                      .policy = given.policy == GPUSHM_RING_BACK_PRESSURE
                                    ? gpushm::sync::Policy::kBackPressure
                                    : gpushm::sync::Policy::kOverwriteOldest,
                      .generation = 0};
  options.need = {.to_start = given.start_readers, .always = given.need_readers};
  const uint32_t needed = std::max(given.start_readers, given.need_readers);
  // With fewer places than needed readers, no frame would ever be written.
  if (given.policy == GPUSHM_RING_BACK_PRESSURE && needed > options.settings.readers) {
    return Fail(Code::kInvalidArgument,
                Concat("frames would wait for ", needed, " readers, but at most ",
                       options.settings.readers, " can open the ring"),
                "lower start_readers and need_readers, or raise readers");
  }
  options.gpu = given.gpu;
  options.keep = given.keep != 0;
  options.from_oldest = given.from_oldest != 0;
  return options;
}

// `begin` gets the deadline and returns the frame for the caller.
template <typename Begin>
Result<void> BeginInto(gpushm_frame* out, int64_t timeout_ms, Begin begin) {
  return gc::FillInfo(out, "frame", [&](gpushm_frame* filled) -> Result<void> {
    const auto wait = gc::Wait::From(timeout_ms, GPUSHM_DEFAULT_TIMEOUT_MS);
    if (!wait) return std::unexpected(wait.error());
    const Result<gc::Ring::Frame> frame = begin(wait->condition);
    if (!frame) return std::unexpected(frame.error());
    filled->address = frame->address;
    filled->capacity_bytes = frame->capacity_bytes;
    filled->bytes = frame->facts.bytes;
    filled->number = frame->facts.seq;
    filled->time_ns = frame->facts.time_ns;
    filled->lost = frame->facts.lost;
    filled->delivery = frame->facts.delivery;
    filled->ready = frame->ready;
    std::memcpy(filled->metadata, frame->facts.metadata.data(), sizeof filled->metadata);
    filled->slot = frame->facts.slot;
    filled->hold = frame->facts.hold;
    return {};
  });
}

// The part of a frame that an end call needs.
constexpr size_t kFrameBytes = offsetof(gpushm_frame, hold) + sizeof(gpushm_frame::hold);

// The frame that BeginInto filled, in this library's layout. The library checks the fields that the
// caller may have changed.
Result<gpushm_frame> ReadFrame(const gpushm_frame* given) {
  if (given == nullptr) return Fail(Code::kInvalidArgument, "frame is NULL");
  if (given->struct_size < kFrameBytes) {
    return Fail(Code::kInvalidArgument,
                Concat("frame.struct_size is ", given->struct_size, ", but a frame has at least ",
                       kFrameBytes, " bytes"),
                "set struct_size with GPUSHM_INIT, and pass the same struct to begin and end");
  }
  return gc::ReadOptions(given, "frame");
}

gc::Ring::Frame FrameOf(const gpushm_frame& given) {
  gc::Ring::Frame frame;
  frame.facts.slot = given.slot;
  frame.facts.seq = given.number;
  frame.facts.hold = given.hold;
  frame.facts.delivery = given.delivery;
  return frame;
}

gpushm_status BeginRead(gpushm_ring* ring, void* stream, gpushm_frame* frame, bool newest,
                        int64_t timeout_ms) {
  return With(ring, [&](gc::Ring& r) {
    return BeginInto(frame, timeout_ms, [&](const gpushm::Deadline& deadline) {
      return r.BeginRead(static_cast<CUstream>(stream), newest, deadline);
    });
  });
}

}  // namespace

extern "C" {

gpushm_status gpushm_ring_open(gpushm_client* client, const char* name,
                               const gpushm_ring_options* options, gpushm_ring** ring) {
  const auto open = [](gc::Client* of, std::string_view text, const gpushm_ring_options& given,
                       const gc::Wait& wait) -> Result<std::unique_ptr<gc::Ring>> {
    const auto opening = ToOptions(given);
    if (!opening) return std::unexpected(opening.error());
    return gc::Ring::Open(of, text, *opening, wait);
  };
  return gc::OpenNamed(client, name, options, gc::HandleKind::kRing, "ring", ring, open);
}

gpushm_status gpushm_ring_close(gpushm_ring* ring) {
  return gc::CloseNamed<gc::Ring>(gc::HandleKind::kRing, ring, "ring");
}

gpushm_status gpushm_ring_begin_write(gpushm_ring* ring, gpushm_frame* frame, int64_t timeout_ms) {
  return With(ring, [&](gc::Ring& r) {
    return BeginInto(frame, timeout_ms,
                     [&](const gpushm::Deadline& deadline) { return r.BeginWrite(deadline); });
  });
}

gpushm_status gpushm_ring_end_write(gpushm_ring* ring, const gpushm_frame* frame, void* stream) {
  return With(ring, [&](gc::Ring& r) -> Result<void> {
    const auto given = ReadFrame(frame);
    if (!given) return std::unexpected(given.error());
    gpushm::sync::Metadata metadata;
    std::memcpy(metadata.data(), given->metadata, sizeof metadata);
    return r.EndWrite(FrameOf(*given), static_cast<CUstream>(stream), given->bytes, metadata);
  });
}

gpushm_status gpushm_ring_abandon_write(gpushm_ring* ring) {
  return With(ring, [](gc::Ring& r) { return r.AbandonWrite(); });
}

gpushm_status gpushm_ring_begin_read(gpushm_ring* ring, void* stream, gpushm_frame* frame,
                                     int64_t timeout_ms) {
  return BeginRead(ring, stream, frame, /*newest=*/false, timeout_ms);
}

gpushm_status gpushm_ring_begin_read_newest(gpushm_ring* ring, void* stream, gpushm_frame* frame,
                                            int64_t timeout_ms) {
  return BeginRead(ring, stream, frame, /*newest=*/true, timeout_ms);
}

gpushm_status gpushm_ring_end_read(gpushm_ring* ring, void* stream, const gpushm_frame* frame,
                                   int64_t timeout_ms) {
  return With(ring, [&](gc::Ring& r) -> Result<void> {
    const auto given = ReadFrame(frame);
    if (!given) return std::unexpected(given.error());
    const auto wait = gc::Wait::From(timeout_ms, GPUSHM_DEFAULT_TIMEOUT_MS);
    if (!wait) return std::unexpected(wait.error());
    return r.EndRead(FrameOf(*given), static_cast<CUstream>(stream), wait->condition);
  });
}

gpushm_status gpushm_ring_abandon_read(gpushm_ring* ring, void* stream, const gpushm_frame* frame) {
  return With(ring, [&](gc::Ring& r) -> Result<void> {
    const auto given = ReadFrame(frame);
    if (!given) return std::unexpected(given.error());
    return r.AbandonRead(FrameOf(*given), static_cast<CUstream>(stream));
  });
}

gpushm_status gpushm_ring_get_info(const gpushm_ring* ring, gpushm_ring_info* info) {
  return With(ring, [&](const gc::Ring& r) {
    return gc::FillInfo(info, "info", [&](gpushm_ring_info* filled) -> Result<void> {
      const gc::Ring::Facts facts = r.facts();
      gc::CopyText(filled->name, r.name());
      filled->generation = facts.generation;
      filled->role = facts.role;
      filled->policy = facts.kind == gpushm::sync::Kind::kQueue
                           ? uint32_t{GPUSHM_RING_QUEUE}
                           : static_cast<uint32_t>(facts.settings.policy);
      filled->frames = facts.settings.frames;
      filled->readers = facts.settings.readers;
      filled->frame_bytes = facts.settings.frame_bytes;
      filled->newest = facts.newest;
      filled->dropped = facts.dropped;
      filled->taken = facts.taken;
      filled->lost = facts.lost;
      filled->writer_state = std::to_underlying(facts.writer);
      return {};
    });
  });
}

}  // extern "C"
