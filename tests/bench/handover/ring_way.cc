// gpushm's ring: the tensors are in its frames, and the consumers are its readers.
#include <memory>
#include <utility>

#include "runtime/include/gpushm/sync.h"
#include "tests/bench/handover/endpoint.h"
#include "tests/bench/handover/way.h"

namespace gpushm::bench::handover {
namespace {

constexpr char kName[] = "frames";

// The writer's or a reader's end, closed when the stream has finished with the frames. When the
// writer closes it, the memory returns to the pool.
class Ring {
 public:
  static Result<Ring> Open(const Stage& stage, gpushm_ring_options options) {
    options.timeout_ms = HandoverMs(stage.size_bytes);
    gpushm_ring* ring = nullptr;
    if (auto r = Check(gpushm_ring_open(stage.client, kName, &options, &ring), "ring"); !r) {
      return std::unexpected(r.error());
    }
    return Ring(ring, options.role == GPUSHM_RING_WRITER ? stage.client : nullptr);
  }
  gpushm_ring* get() const { return ring_; }

  Ring(Ring&& other) noexcept
      : ring_(std::exchange(other.ring_, nullptr)), owner_(std::exchange(other.owner_, nullptr)) {}
  Ring& operator=(Ring&&) = delete;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() {
    static_cast<void>(WaitUntil([this] { return gpushm_ring_close(ring_) != GPUSHM_BUSY; },
                                Deadline::AfterMs(kStepMs)));
    if (owner_ != nullptr) gpushm_delete(owner_, kName, nullptr);
  }

 private:
  Ring(gpushm_ring* ring, gpushm_client* owner) : ring_(ring), owner_(owner) {}
  gpushm_ring* ring_;
  gpushm_client* owner_;  // Null for a reader.
};

class RingGiver : public Giver {
 public:
  RingGiver(const Stage& stage, Ring ring) : stage_(stage), ring_(std::move(ring)) {
    GPUSHM_INIT(&frame_);
  }
  Result<CUdeviceptr> Make(uint64_t) override {
    const int64_t patience_ms = HandoverMs(stage_.size_bytes);
    if (auto r = Check(gpushm_ring_begin_write(ring_.get(), &frame_, patience_ms), "begin_write");
        !r) {
      return std::unexpected(r.error());
    }
    frame_.bytes = stage_.size_bytes;
    return frame_.address;
  }
  Result<void> Give(uint64_t) override {
    return Check(gpushm_ring_end_write(ring_.get(), &frame_, stage_.stream), "end_write");
  }

 private:
  const Stage& stage_;
  Ring ring_;
  gpushm_frame frame_;
};

class RingTaker : public Taker {
 public:
  RingTaker(const Stage& stage, Ring ring) : stage_(stage), ring_(std::move(ring)) {
    GPUSHM_INIT(&frame_);
  }
  Result<CUdeviceptr> Take(uint64_t, const Deadline& deadline) override {
    if (auto r = Check(
            gpushm_ring_begin_read(ring_.get(), stage_.stream, &frame_, deadline.RemainingMs()),
            "begin_read");
        !r) {
      return std::unexpected(r.error());
    }
    return frame_.address;
  }
  Result<void> Release(uint64_t) override {
    const int64_t patience_ms = HandoverMs(stage_.size_bytes);
    return Check(gpushm_ring_end_read(ring_.get(), stage_.stream, &frame_, patience_ms),
                 "end_read");
  }

 private:
  const Stage& stage_;
  Ring ring_;
  gpushm_frame frame_;
};

}  // namespace

Result<std::unique_ptr<Giver>> GiveGpushmRing(const Stage& stage) {
  gpushm_ring_options options;
  GPUSHM_INIT(&options);
  options.role = GPUSHM_RING_WRITER;
  options.policy = GPUSHM_RING_BACK_PRESSURE;
  options.frames = 4 * stage.size_bytes <= PoolBytes() ? 4 : 2;
  options.frame_bytes = stage.size_bytes;
  options.readers = static_cast<uint32_t>(stage.links.size());
  options.need_readers = options.readers;
  Result<Ring> ring = Ring::Open(stage, options);
  if (!ring) return std::unexpected(ring.error());
  return std::make_unique<RingGiver>(stage, std::move(*ring));
}

Result<std::unique_ptr<Taker>> TakeGpushmRing(const Stage& stage) {
  gpushm_ring_options options;
  GPUSHM_INIT(&options);
  options.role = GPUSHM_RING_READER;
  Result<Ring> ring = Ring::Open(stage, options);
  if (!ring) return std::unexpected(ring.error());
  return std::make_unique<RingTaker>(stage, std::move(*ring));
}

}  // namespace gpushm::bench::handover
