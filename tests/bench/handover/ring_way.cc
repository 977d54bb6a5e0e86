// gpushm's ring: the tensors are in its frames, and the consumers are its readers.
#include <memory>

#include "runtime/include/gpushm/sync.h"
#include "tests/bench/handover/endpoint.h"
#include "tests/bench/handover/way.h"

namespace gpushm::bench::handover {
namespace {

constexpr char kName[] = "frames";

// The writer's or a reader's end, and its frame.
struct Ring {
  gpushm_ring* handle = nullptr;
  gpushm_client* owner = nullptr;  // Null for a reader.
  gpushm_frame frame{};

  Ring() { GPUSHM_INIT(&frame); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  // Closes it when the stream has finished with the frames. When the writer closes it, the memory
  // returns to the pool.
  ~Ring() {
    static_cast<void>(WaitUntil([this] { return gpushm_ring_close(handle) != GPUSHM_BUSY; },
                                Deadline::AfterMs(kStepMs)));
    if (owner != nullptr) gpushm_delete(owner, kName, nullptr);
  }
};

std::shared_ptr<Ring> OpenRing(const Stage& stage, gpushm_ring_options options) {
  options.timeout_ms = HandoverMs(stage.size_bytes);
  auto ring = std::make_shared<Ring>();
  Check(gpushm_ring_open(stage.client, kName, &options, &ring->handle), "ring");
  if (options.role == GPUSHM_RING_WRITER) ring->owner = stage.client;
  return ring;
}

}  // namespace

Giver GiveGpushmRing(const Stage& stage) {
  gpushm_ring_options options;
  GPUSHM_INIT(&options);
  options.role = GPUSHM_RING_WRITER;
  options.policy = GPUSHM_RING_BACK_PRESSURE;
  options.frames = 4 * stage.size_bytes <= PoolBytes() ? 4 : 2;
  options.frame_bytes = stage.size_bytes;
  options.readers = static_cast<uint32_t>(stage.links.size());
  options.need_readers = options.readers;
  const auto ring = OpenRing(stage, options);
  return {
      .make =
          [ring, &stage](uint64_t) {
            Check(gpushm_ring_begin_write(ring->handle, &ring->frame, HandoverMs(stage.size_bytes)),
                  "begin_write");
            ring->frame.bytes = stage.size_bytes;
            return ring->frame.address;
          },
      .give =
          [ring, &stage](uint64_t) {
            Check(gpushm_ring_end_write(ring->handle, &ring->frame, stage.stream), "end_write");
          }};
}

Taker TakeGpushmRing(const Stage& stage) {
  gpushm_ring_options options;
  GPUSHM_INIT(&options);
  options.role = GPUSHM_RING_READER;
  const auto ring = OpenRing(stage, options);
  return {.take =
              [ring, &stage](uint64_t, const Deadline& deadline) {
                Check(gpushm_ring_begin_read(ring->handle, stage.stream, &ring->frame,
                                             deadline.RemainingMs()),
                      "begin_read");
                return ring->frame.address;
              },
          .release =
              [ring, &stage](uint64_t) {
                Check(gpushm_ring_end_read(ring->handle, stage.stream, &ring->frame,
                                           HandoverMs(stage.size_bytes)),
                      "end_read");
              }};
}

}  // namespace gpushm::bench::handover
