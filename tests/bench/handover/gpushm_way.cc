// gpushm's own ways: a buffer that the consumers keep, with a signal or with the raw page that
// `raw-held` uses, and a buffer for each tensor, with the raw page.
#include <memory>
#include <string>
#include <utility>

#include "runtime/include/gpushm/sync.h"
#include "tests/bench/handover/way.h"

namespace gpushm::bench::handover {
namespace {

std::string TensorName(uint64_t sequence) { return Concat("tensor-", sequence); }
std::string HeldName(const Stage& stage) { return Concat("held-", stage.serial); }

// Detached at the end, when no process uses it any more.
class Attachment {
 public:
  static Result<Attachment> Create(const Stage& stage, const std::string& name) {
    gpushm_attachment* made = nullptr;
    if (auto r = Check(gpushm_create(stage.client, name.c_str(), stage.size_bytes, nullptr, &made),
                       "create");
        !r) {
      return std::unexpected(r.error());
    }
    return Attachment(made);
  }
  static Result<Attachment> Attach(const Stage& stage, const std::string& name) {
    gpushm_attachment* made = nullptr;
    if (auto r = Check(gpushm_attach(stage.client, name.c_str(), nullptr, &made), "attach"); !r) {
      return std::unexpected(r.error());
    }
    return Attachment(made);
  }
  CUdeviceptr address() const { return gpushm_attachment_address(attachment_); }

  Attachment(Attachment&& other) noexcept
      : attachment_(std::exchange(other.attachment_, nullptr)) {}
  Attachment& operator=(Attachment&& other) noexcept {
    std::swap(attachment_, other.attachment_);
    return *this;
  }
  Attachment(const Attachment&) = delete;
  Attachment& operator=(const Attachment&) = delete;
  ~Attachment() { gpushm_attachment_detach(attachment_, nullptr); }

 private:
  explicit Attachment(gpushm_attachment* attachment) : attachment_(attachment) {}
  gpushm_attachment* attachment_;
};

// A writer's or a waiter's end of the signal; closed at the end.
class Signal {
 public:
  static Result<Signal> Open(const Stage& stage, gpushm_signal_role role) {
    gpushm_signal_options options;
    GPUSHM_INIT(&options);
    options.role = role;
    gpushm_signal* signal = nullptr;
    if (auto r = Check(gpushm_signal_open(stage.client, "ready", &options, &signal), "signal");
        !r) {
      return std::unexpected(r.error());
    }
    return Signal(signal);
  }
  gpushm_signal* get() const { return signal_; }

  Signal(Signal&& other) noexcept : signal_(std::exchange(other.signal_, nullptr)) {}
  Signal& operator=(Signal&&) = delete;
  Signal(const Signal&) = delete;
  Signal& operator=(const Signal&) = delete;
  ~Signal() {
    if (signal_ != nullptr) gpushm_signal_close(signal_);
  }

 private:
  explicit Signal(gpushm_signal* signal) : signal_(signal) {}
  gpushm_signal* signal_;
};

Result<void> Delete(const Stage& stage, const std::string& name) {
  return Check(gpushm_delete(stage.client, name.c_str(), nullptr), "delete");
}

// ---------------------------------------------------------------- attached once

class HeldGiver : public Giver {
 public:
  HeldGiver(const Stage& stage, Attachment attachment)
      : stage_(stage), attachment_(std::move(attachment)) {}
  ~HeldGiver() override { static_cast<void>(Delete(stage_, HeldName(stage_))); }
  HeldGiver(const HeldGiver&) = delete;
  HeldGiver& operator=(const HeldGiver&) = delete;
  Result<CUdeviceptr> Make(uint64_t) override { return attachment_.address(); }
  Result<void> Give(uint64_t sequence) override { return WriteSignal(stage_, sequence); }

 private:
  const Stage& stage_;
  Attachment attachment_;
};

class HeldTaker : public Taker {
 public:
  HeldTaker(const Stage& stage, Attachment attachment)
      : stage_(stage), attachment_(std::move(attachment)) {}
  Result<std::optional<CUdeviceptr>> Arm(uint64_t sequence) override {
    if (auto r = AwaitSignal(stage_, sequence); !r) return std::unexpected(r.error());
    return attachment_.address();
  }

 private:
  const Stage& stage_;
  Attachment attachment_;
};

// ---------------------------------------------------------------- attached once, with a signal

class SignalGiver : public HeldGiver {
 public:
  SignalGiver(const Stage& stage, Attachment attachment, Signal signal)
      : HeldGiver(stage, std::move(attachment)), stage_(stage), signal_(std::move(signal)) {}
  Result<void> Give(uint64_t sequence) override {
    return Check(gpushm_signal_record(signal_.get(), stage_.stream, sequence), "record");
  }

 private:
  const Stage& stage_;
  Signal signal_;
};

class SignalTaker : public Taker {
 public:
  SignalTaker(const Stage& stage, Attachment attachment, Signal signal)
      : stage_(stage), attachment_(std::move(attachment)), signal_(std::move(signal)) {}
  Result<std::optional<CUdeviceptr>> Arm(uint64_t sequence) override {
    if (auto r =
            Check(gpushm_signal_wait_on_stream(signal_.get(), stage_.stream, sequence), "wait");
        !r) {
      return std::unexpected(r.error());
    }
    return attachment_.address();
  }
  Result<void> Release(uint64_t sequence) override {
    return Check(gpushm_signal_check(signal_.get(), sequence), "check");
  }

 private:
  const Stage& stage_;
  Attachment attachment_;
  Signal signal_;
};

// ---------------------------------------------------------------- each tensor by itself

// The buffer is made in the pool before the tensor is written.
class NewGiver : public Giver {
 public:
  explicit NewGiver(const Stage& stage) : stage_(stage) {}
  Result<CUdeviceptr> Make(uint64_t sequence) override {
    Result<Attachment> attachment = Attachment::Create(stage_, TensorName(sequence));
    if (!attachment) return std::unexpected(attachment.error());
    attachment_.emplace(std::move(*attachment));
    return attachment_->address();
  }
  Result<void> Give(uint64_t sequence) override { return WriteSignal(stage_, sequence); }
  Result<void> Reclaim(uint64_t sequence) override {
    attachment_.reset();
    return Delete(stage_, TensorName(sequence));
  }

 private:
  const Stage& stage_;
  std::optional<Attachment> attachment_;
};

// The memory is the producer's own, and is offered when the tensor is written.
class OfferGiver : public Giver {
 public:
  explicit OfferGiver(const Stage& stage) : stage_(stage) {}
  Result<CUdeviceptr> Make(uint64_t) override {
    const Result<DeviceMemory> memory =
        DeviceMemory::Create(*stage_.api, stage_.device, stage_.size_bytes);
    if (!memory) return std::unexpected(memory.error());
    Result<DeviceMapping> mapping = DeviceMapping::Map(*stage_.api, *memory, stage_.size_bytes,
                                                       stage_.device, Access::kReadWrite);
    if (!mapping) return std::unexpected(mapping.error());
    mapping_.emplace(std::move(*mapping));
    return mapping_->address();
  }
  Result<void> Give(uint64_t sequence) override {
    if (auto r = Check(gpushm_offer(stage_.client, TensorName(sequence).c_str(),
                                    mapping_->address(), stage_.size_bytes, nullptr, nullptr),
                       "offer");
        !r) {
      return r;
    }
    return WriteSignal(stage_, sequence);
  }
  Result<void> Reclaim(uint64_t sequence) override {
    Result<void> deleted = Delete(stage_, TensorName(sequence));
    mapping_.reset();
    return deleted;
  }

 private:
  const Stage& stage_;
  std::optional<DeviceMapping> mapping_;
};

// Learns of the tensor from the page, on the host, and then attaches it.
class NewTaker : public Taker {
 public:
  explicit NewTaker(const Stage& stage) : stage_(stage) {}
  Result<CUdeviceptr> Take(uint64_t sequence, const Deadline& deadline) override {
    if (auto r = AwaitWord(stage_.board->signal, sequence, deadline); !r) {
      return std::unexpected(r.error());
    }
    Result<Attachment> attachment = Attachment::Attach(stage_, TensorName(sequence));
    if (!attachment) return std::unexpected(attachment.error());
    attachment_.emplace(std::move(*attachment));
    // The tensor has arrived; this orders the stream's reads after the producer's writes.
    if (auto r = AwaitSignal(stage_, sequence); !r) return std::unexpected(r.error());
    return attachment_->address();
  }
  Result<void> Release(uint64_t) override {
    attachment_.reset();
    return {};
  }

 private:
  const Stage& stage_;
  std::optional<Attachment> attachment_;
};

}  // namespace

Result<std::unique_ptr<Giver>> GiveGpushmHeld(const Stage& stage) {
  Result<Attachment> attachment = Attachment::Create(stage, HeldName(stage));
  if (!attachment) return std::unexpected(attachment.error());
  return std::make_unique<HeldGiver>(stage, std::move(*attachment));
}

Result<std::unique_ptr<Taker>> TakeGpushmHeld(const Stage& stage) {
  Result<Attachment> attachment =
      Attachment::Attach(stage, HeldName(stage));  // This waits for the buffer.
  if (!attachment) return std::unexpected(attachment.error());
  return std::make_unique<HeldTaker>(stage, std::move(*attachment));
}

Result<std::unique_ptr<Giver>> GiveGpushmSignal(const Stage& stage) {
  Result<Attachment> attachment = Attachment::Create(stage, HeldName(stage));
  if (!attachment) return std::unexpected(attachment.error());
  Result<Signal> signal = Signal::Open(stage, GPUSHM_SIGNAL_WRITER);
  if (!signal) return std::unexpected(signal.error());
  return std::make_unique<SignalGiver>(stage, std::move(*attachment), std::move(*signal));
}

Result<std::unique_ptr<Taker>> TakeGpushmSignal(const Stage& stage) {
  Result<Attachment> attachment = Attachment::Attach(stage, HeldName(stage));
  if (!attachment) return std::unexpected(attachment.error());
  Result<Signal> signal = Signal::Open(stage, GPUSHM_SIGNAL_WAITER);
  if (!signal) return std::unexpected(signal.error());
  return std::make_unique<SignalTaker>(stage, std::move(*attachment), std::move(*signal));
}

Result<std::unique_ptr<Giver>> GiveGpushmNew(const Stage& stage) {
  return std::make_unique<NewGiver>(stage);
}

Result<std::unique_ptr<Taker>> TakeGpushmNew(const Stage& stage) {
  return std::make_unique<NewTaker>(stage);
}

Result<std::unique_ptr<Giver>> GiveGpushmOffer(const Stage& stage) {
  return std::make_unique<OfferGiver>(stage);
}

}  // namespace gpushm::bench::handover
