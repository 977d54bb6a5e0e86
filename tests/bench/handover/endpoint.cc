#include "tests/bench/handover/endpoint.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>

#include "tests/bench/handover/way.h"

namespace gpushm::bench::handover {
namespace {

// What a producer and a consumer have in common. Members are destroyed from the last to the first.
class Endpoint {
 public:
  struct Block {
    uint64_t first = 0;
    uint64_t count = 0;
    uint64_t warm = 0;
    int64_t budget_ns = 0;
  };
  // Obeys the parent's commands until the parent is gone.
  void Obey(Channel& parent);
  virtual ~Endpoint() = default;
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  Stage& stage() { return stage_; }

 protected:
  explicit Endpoint(const std::string& broker_folder);
  virtual void Open(const Way& way) = 0;
  virtual std::string Run(const Block& block) = 0;
  virtual void Close() = 0;

  // Waits until the stream is empty. cuStreamSynchronize would have no deadline, and would keep its
  // processor busy.
  void Sync() {
    CUresult answer = CUDA_ERROR_NOT_READY;
    const bool in_time = WaitUntil(
        [&] {
          answer = stage_.api->cuStreamQuery(stage_.stream);
          return answer != CUDA_ERROR_NOT_READY;
        },
        HandoverDeadline());
    if (!in_time) throw Failure(Code::kTimeout, "the stream's work did not end in time");
    Must(stage_.api->Check(answer, "cuStreamQuery"));
  }
  Deadline HandoverDeadline() const { return Deadline::AfterMs(HandoverMs(stage_.size_bytes)); }
  // The last word of a tensor, on its way from or to the GPU.
  uint64_t* word() { return reinterpret_cast<uint64_t*>(word_.data()); }
  CUdeviceptr LastWord(CUdeviceptr tensor) const {
    return tensor + stage_.size_bytes - sizeof(uint64_t);
  }
  size_t peers() const { return peers_; }

 private:
  std::string Do(const std::string& text, UniqueFd descriptor);
  void SetCell(std::istream& in, UniqueFd region);

  const CudaApi& api_ = *ThisMachine().api;
  Stream stream_ = Must(Stream::Create(api_));
  PinnedBuffer word_ = Must(PinnedBuffer::Allocate(api_, sizeof(uint64_t)));
  std::shared_ptr<void> board_;
  Connection connection_;
  std::vector<std::unique_ptr<Channel>> links_;
  std::optional<StagingRegion> region_;
  size_t peers_ = 0;
  Stage stage_;
};

Endpoint::Endpoint(const std::string& broker_folder)
    : connection_(Connection::Open(broker_folder)) {
  stage_.api = &api_;
  stage_.device = ThisMachine().device.device;
  stage_.stream = stream_.get();
  stage_.client = connection_.get();
}

void Endpoint::SetCell(std::istream& in, UniqueFd region) {
  in >> stage_.size_bytes >> peers_;
  stage_.region = nullptr;
  region_.reset();
  stage_.links.clear();
  for (const auto& link : links_) {
    if (stage_.links.size() < std::max<size_t>(peers_, 1)) stage_.links.push_back(link.get());
  }
  if (!region) return;
  region_.emplace(api_, std::move(region), stage_.size_bytes);
  stage_.region = &*region_;
}

std::string Endpoint::Do(const std::string& text, UniqueFd descriptor) {
  std::istringstream in(text);
  std::string verb;
  in >> verb;
  if (verb == "board") {
    board_ = MapShared(descriptor.get(), sizeof(Board));
    stage_.board = static_cast<Board*>(board_.get());
    void* const page = &stage_.board->signal;
    Must(api_.Check(api_.cuMemHostRegister(page, kPageBytes, CU_MEMHOSTREGISTER_DEVICEMAP),
                    "cuMemHostRegister of the signal's page"));
    Must(api_.Check(api_.cuMemHostGetDevicePointer(&stage_.signal, page, 0),
                    "cuMemHostGetDevicePointer"));
  } else if (verb == "link") {
    links_.push_back(std::make_unique<Channel>(std::move(descriptor)));
  } else if (verb == "cell") {
    SetCell(in, std::move(descriptor));
  } else if (verb == "open") {
    std::string name;
    in >> name >> stage_.serial;
    const Way* way = FindWay(name);
    if (way == nullptr) throw Failure(Code::kNotFound, Concat("unknown way: ", name));
    Open(*way);
  } else if (verb == "run") {
    Block block;
    in >> block.first >> block.count >> block.warm >> block.budget_ns;
    return Run(block);
  } else if (verb == "close") {
    Close();
  } else {
    throw Failure(Code::kInvalidArgument, Concat("unknown command: ", verb));
  }
  return "ok";
}

void Endpoint::Obey(Channel& parent) {
  parent.Say("ok");
  for (;;) {
    Result<Heard> heard = parent.Hear(Deadline::AfterMs(10 * kStepMs));
    if (!heard) return;  // The parent is done.
    parent.Say(Do(heard->text, std::move(heard->descriptor)));
  }
}

// ---------------------------------------------------------------- the producer

class Producer : public Endpoint {
 public:
  explicit Producer(const std::string& broker_folder) : Endpoint(broker_folder) {}

 private:
  void Open(const Way& way) override { giver_ = way.give(stage()); }
  void Close() override { giver_ = {}; }
  std::string Run(const Block& block) override;
  Board::Sample HandOver(uint64_t sequence);
  // Waits until the value has arrived in every consumer's word.
  void AwaitAll(std::atomic<uint64_t> Board::Seat::* word, uint64_t sequence);

  Giver giver_;
};

void Producer::AwaitAll(std::atomic<uint64_t> Board::Seat::* word, uint64_t sequence) {
  Board& board = *stage().board;
  const Deadline deadline = HandoverDeadline();
  for (size_t i = 0; i < peers(); ++i) {
    Board::Seat& seat = board.seats[i];
    const bool came = WaitUntil(
        [&] {
          return Reached(seat.*word, sequence) || seat.failed.load(std::memory_order_relaxed) != 0;
        },
        deadline);
    if (!came)
      throw Failure(Code::kTimeout, Concat("consumer ", i, " did not get this far in time"));
    if (!Reached(seat.*word, sequence)) throw Failure(Code::kPeerDied, Concat("consumer ", i));
  }
}

Board::Sample Producer::HandOver(uint64_t sequence) {
  Board& board = *stage().board;
  Board::Sample sample{};
  const int64_t begin = MonotonicNs();
  const CUdeviceptr tensor = giver_.make(sequence);
  sample.before_ns = MonotonicNs() - begin;
  *word() = sequence;
  const CudaApi& api = *stage().api;
  Must(api.Check(api.cuMemcpyHtoDAsync(LastWord(tensor), word(), sizeof sequence, stage().stream),
                 "writing the tensor"));
  Sync();
  board.turn.store(sequence, std::memory_order_release);
  AwaitAll(&Board::Seat::armed, sequence);
  const int64_t start = MonotonicNs();
  giver_.give(sequence);
  AwaitAll(&Board::Seat::done, sequence);
  for (size_t i = 0; i < peers(); ++i) {
    const Board::Seat& seat = board.seats[i];
    sample.ns = std::max(sample.ns, seat.read_ns.load(std::memory_order_relaxed) - start);
    sample.after_ns = std::max(sample.after_ns, seat.after_ns.load(std::memory_order_relaxed));
  }
  giver_.reclaim(sequence);
  return sample;
}

std::string Producer::Run(const Block& block) {
  Board& board = *stage().board;
  const size_t count = std::min<size_t>(block.count, kMaxSamples);
  size_t samples = 0;
  uint64_t sequence = block.first;
  bool warming = block.warm > 0;
  const int64_t start = MonotonicNs();
  while (samples < count) {
    const Board::Sample sample = HandOver(sequence++);
    const int64_t spent_ns = MonotonicNs() - start;
    if (warming) {
      // Slow ways are warm sooner: a fifth of the time is enough.
      warming = sequence - block.first < block.warm && spent_ns < block.budget_ns / 5;
      continue;
    }
    board.samples[samples++] = sample;
    if (spent_ns > block.budget_ns) break;
  }
  board.closed.store(sequence, std::memory_order_release);
  return Concat("ok ", samples);
}

// ---------------------------------------------------------------- a consumer

class Consumer : public Endpoint {
 public:
  Consumer(const std::string& broker_folder, size_t number)
      : Endpoint(broker_folder), number_(number) {}
  Board::Seat& seat() { return stage().board->seats[number_]; }

 private:
  void Open(const Way& way) override { taker_ = way.take(stage()); }
  void Close() override { taker_ = {}; }
  std::string Run(const Block& block) override;
  void TakeOne(uint64_t sequence);
  void QueueRead(CUdeviceptr tensor) {
    const CudaApi& api = *stage().api;
    Must(
        api.Check(api.cuMemcpyDtoHAsync(word(), LastWord(tensor), sizeof(uint64_t), stage().stream),
                  "reading the tensor"));
  }

  const size_t number_;
  Taker taker_;
};

void Consumer::TakeOne(uint64_t sequence) {
  const Deadline deadline = HandoverDeadline();
  *word() = 0;
  if (taker_.arm) QueueRead(taker_.arm(sequence));
  seat().armed.store(sequence, std::memory_order_release);
  if (taker_.take) QueueRead(taker_.take(sequence, deadline));
  Sync();
  const int64_t read = MonotonicNs();
  if (*word() != sequence) {
    throw Failure(Code::kCorrupt,
                  Concat("hand-over ", sequence, " delivered a wrong value: ", *word()));
  }
  taker_.release(sequence);
  seat().read_ns.store(read, std::memory_order_relaxed);
  seat().after_ns.store(MonotonicNs() - read, std::memory_order_relaxed);
  seat().done.store(sequence, std::memory_order_release);
}

std::string Consumer::Run(const Block& block) {
  const Board& board = *stage().board;
  for (uint64_t sequence = block.first;; ++sequence) {
    const bool known =
        WaitUntil([&] { return Reached(board.turn, sequence) || Reached(board.closed, sequence); },
                  HandoverDeadline());
    if (!known) throw Failure(Code::kTimeout, "the producer did not continue in time");
    if (!Reached(board.turn, sequence)) return "ok";
    TakeOne(sequence);
  }
}

}  // namespace

void Produce(Channel& parent, const std::vector<std::string>& arguments) {
  FindDriver();
  NeedContext();
  Producer(arguments.at(0)).Obey(parent);
}

void Consume(Channel& parent, const std::vector<std::string>& arguments) {
  FindDriver();
  NeedContext();
  Consumer consumer(arguments.at(0), std::stoul(arguments.at(1)));
  try {
    consumer.Obey(parent);
  } catch (const Failure&) {
    if (consumer.stage().board != nullptr) consumer.seat().failed.store(1);
    throw;
  }
}

}  // namespace gpushm::bench::handover
