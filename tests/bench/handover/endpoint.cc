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
  Result<void> Obey(Channel& parent);
  virtual ~Endpoint() = default;
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  Stage& stage() { return stage_; }

 protected:
  Endpoint() = default;
  Result<void> SetUp(const std::string& broker_folder);
  virtual Result<void> Open(const Way& way) = 0;
  virtual Result<std::string> Run(const Block& block) = 0;
  virtual void Close() = 0;

  // Waits until the stream is empty. cuStreamSynchronize would have no deadline, and would keep its
  // processor busy.
  Result<void> Sync() {
    CUresult answer = CUDA_ERROR_NOT_READY;
    const bool in_time = WaitUntil(
        [&] {
          answer = stage_.api->cuStreamQuery(stage_.stream);
          return answer != CUDA_ERROR_NOT_READY;
        },
        HandoverDeadline());
    if (!in_time) return Fail(Code::kTimeout, "the stream's work did not end in time");
    return stage_.api->Check(answer, "cuStreamQuery");
  }
  Deadline HandoverDeadline() const { return Deadline::AfterMs(HandoverMs(stage_.size_bytes)); }
  // The last word of a tensor, on its way from or to the GPU.
  uint64_t* word() { return reinterpret_cast<uint64_t*>(word_->data()); }
  CUdeviceptr LastWord(CUdeviceptr tensor) const {
    return tensor + stage_.size_bytes - sizeof(uint64_t);
  }
  size_t peers() const { return peers_; }

 private:
  Result<std::string> Do(const std::string& text, UniqueFd descriptor);
  Result<void> SetCell(std::istream& in, const UniqueFd& region);

  std::optional<PrimaryContext> context_;
  std::optional<Stream> stream_;
  std::optional<PinnedBuffer> word_;
  std::optional<BoardMapping> board_;
  std::optional<Connection> connection_;
  std::vector<std::unique_ptr<Channel>> links_;
  std::optional<StagingRegion> region_;
  size_t peers_ = 0;
  Stage stage_;
};

Result<void> Endpoint::SetUp(const std::string& broker_folder) {
  if (auto r = FindDriver(); !r) return r;
  const CudaApi& api = *ThisMachine().api;
  stage_.api = &api;
  stage_.device = ThisMachine().device.device;
  Result<PrimaryContext> context = PrimaryContext::Retain(api, stage_.device);
  if (!context) return std::unexpected(context.error());
  context_.emplace(std::move(*context));
  if (auto r = context_->MakeCurrent(); !r) return r;
  Result<Stream> stream = Stream::Create(api);
  if (!stream) return std::unexpected(stream.error());
  stream_.emplace(std::move(*stream));
  stage_.stream = stream_->get();
  Result<PinnedBuffer> word = PinnedBuffer::Allocate(api, sizeof(uint64_t));
  if (!word) return std::unexpected(word.error());
  word_.emplace(std::move(*word));
  Result<Connection> connection = Connection::Open(broker_folder);
  if (!connection) return std::unexpected(connection.error());
  connection_.emplace(std::move(*connection));
  stage_.client = connection_->get();
  return {};
}

Result<void> Endpoint::SetCell(std::istream& in, const UniqueFd& region) {
  in >> stage_.size_bytes >> peers_;
  stage_.region = nullptr;
  region_.reset();
  stage_.links.clear();
  for (const auto& link : links_) {
    if (stage_.links.size() < std::max<size_t>(peers_, 1)) stage_.links.push_back(link.get());
  }
  if (!region) return {};
  Result<StagingRegion> mapped = StagingRegion::Map(*stage_.api, region.get(), stage_.size_bytes);
  if (!mapped) return std::unexpected(mapped.error());
  region_.emplace(std::move(*mapped));
  stage_.region = &*region_;
  return {};
}

Result<std::string> Endpoint::Do(const std::string& text, UniqueFd descriptor) {
  std::istringstream in(text);
  std::string verb;
  in >> verb;
  if (verb == "board") {
    Result<BoardMapping> board = BoardMapping::Map(descriptor.get());
    if (!board) return std::unexpected(board.error());
    board_.emplace(std::move(*board));
    stage_.board = &**board_;
    const CudaApi& api = *stage_.api;
    if (auto r = api.Check(
            api.cuMemHostRegister(&stage_.board->signal, kPageBytes, CU_MEMHOSTREGISTER_DEVICEMAP),
            "cuMemHostRegister of the signal's page");
        !r) {
      return std::unexpected(r.error());
    }
    if (auto r = api.Check(api.cuMemHostGetDevicePointer(&stage_.signal, &stage_.board->signal, 0),
                           "cuMemHostGetDevicePointer");
        !r) {
      return std::unexpected(r.error());
    }
  } else if (verb == "link") {
    links_.push_back(std::make_unique<Channel>(std::move(descriptor)));
  } else if (verb == "cell") {
    if (auto r = SetCell(in, descriptor); !r) return std::unexpected(r.error());
  } else if (verb == "open") {
    std::string name;
    in >> name >> stage_.serial;
    const Way* way = FindWay(name);
    if (way == nullptr) return Fail(Code::kNotFound, Concat("unknown way: ", name));
    if (auto r = Open(*way); !r) return std::unexpected(r.error());
  } else if (verb == "run") {
    Block block;
    in >> block.first >> block.count >> block.warm >> block.budget_ns;
    return Run(block);
  } else if (verb == "close") {
    Close();
  } else {
    return Fail(Code::kInvalidArgument, Concat("unknown command: ", verb));
  }
  return "ok";
}

Result<void> Endpoint::Obey(Channel& parent) {
  if (auto r = parent.Say("ok"); !r) return r;
  for (;;) {
    Result<Heard> heard = parent.Hear(Deadline::AfterMs(10 * kStepMs));
    if (!heard) return {};  // The parent is done.
    const Result<std::string> answer = Do(heard->text, std::move(heard->descriptor));
    if (!answer) return std::unexpected(answer.error());
    if (auto r = parent.Say(*answer); !r) return r;
  }
}

// ---------------------------------------------------------------- the producer

class Producer : public Endpoint {
 public:
  static Result<void> Main(Channel& parent, const std::string& broker_folder) {
    Producer producer;
    if (auto r = producer.SetUp(broker_folder); !r) return r;
    return producer.Obey(parent);
  }

 private:
  Result<void> Open(const Way& way) override {
    Result<std::unique_ptr<Giver>> giver = way.give(stage());
    if (!giver) return std::unexpected(giver.error());
    giver_ = std::move(*giver);
    return {};
  }
  void Close() override { giver_.reset(); }
  Result<std::string> Run(const Block& block) override;
  Result<Board::Sample> HandOver(uint64_t sequence);
  // Waits until the value has arrived in every consumer's word.
  Result<void> AwaitAll(std::atomic<uint64_t> Board::Seat::* word, uint64_t sequence);

  std::unique_ptr<Giver> giver_;
};

Result<void> Producer::AwaitAll(std::atomic<uint64_t> Board::Seat::* word, uint64_t sequence) {
  Board& board = *stage().board;
  const Deadline deadline = HandoverDeadline();
  for (size_t i = 0; i < peers(); ++i) {
    Board::Seat& seat = board.seats[i];
    const bool came = WaitUntil(
        [&] {
          return Reached(seat.*word, sequence) || seat.failed.load(std::memory_order_relaxed) != 0;
        },
        deadline);
    if (!came) return Fail(Code::kTimeout, Concat("consumer ", i, " did not get this far in time"));
    if (!Reached(seat.*word, sequence)) return Fail(Code::kPeerDied, Concat("consumer ", i));
  }
  return {};
}

Result<Board::Sample> Producer::HandOver(uint64_t sequence) {
  Board& board = *stage().board;
  Board::Sample sample{};
  const int64_t begin = MonotonicNs();
  const Result<CUdeviceptr> tensor = giver_->Make(sequence);
  sample.before_ns = MonotonicNs() - begin;
  if (!tensor) return std::unexpected(tensor.error());
  *word() = sequence;
  const CudaApi& api = *stage().api;
  if (auto r = api.Check(
          api.cuMemcpyHtoDAsync(LastWord(*tensor), word(), sizeof sequence, stage().stream),
          "writing the tensor");
      !r) {
    return std::unexpected(r.error());
  }
  if (auto r = Sync(); !r) return std::unexpected(r.error());
  board.turn.store(sequence, std::memory_order_release);
  if (auto r = AwaitAll(&Board::Seat::armed, sequence); !r) return std::unexpected(r.error());
  const int64_t start = MonotonicNs();
  if (auto r = giver_->Give(sequence); !r) return std::unexpected(r.error());
  if (auto r = AwaitAll(&Board::Seat::done, sequence); !r) return std::unexpected(r.error());
  for (size_t i = 0; i < peers(); ++i) {
    const Board::Seat& seat = board.seats[i];
    sample.ns = std::max(sample.ns, seat.read_ns.load(std::memory_order_relaxed) - start);
    sample.after_ns = std::max(sample.after_ns, seat.after_ns.load(std::memory_order_relaxed));
  }
  if (auto r = giver_->Reclaim(sequence); !r) return std::unexpected(r.error());
  return sample;
}

Result<std::string> Producer::Run(const Block& block) {
  Board& board = *stage().board;
  const size_t count = std::min<size_t>(block.count, kMaxSamples);
  size_t samples = 0;
  uint64_t sequence = block.first;
  bool warming = block.warm > 0;
  const int64_t start = MonotonicNs();
  while (samples < count) {
    const Result<Board::Sample> sample = HandOver(sequence++);
    if (!sample) return std::unexpected(sample.error());
    const int64_t spent_ns = MonotonicNs() - start;
    if (warming) {
      // Slow ways are warm sooner: a fifth of the time is enough.
      warming = sequence - block.first < block.warm && spent_ns < block.budget_ns / 5;
      continue;
    }
    board.samples[samples++] = *sample;
    if (spent_ns > block.budget_ns) break;
  }
  board.closed.store(sequence, std::memory_order_release);
  return Concat("ok ", samples);
}

// ---------------------------------------------------------------- a consumer

class Consumer : public Endpoint {
 public:
  static Result<void> Main(Channel& parent, const std::string& broker_folder, size_t number) {
    Consumer consumer(number);
    if (auto r = consumer.SetUp(broker_folder); !r) return r;
    Result<void> done = consumer.Obey(parent);
    if (!done && consumer.stage().board != nullptr) consumer.seat().failed.store(1);
    return done;
  }

 private:
  explicit Consumer(size_t number) : number_(number) {}
  Board::Seat& seat() { return stage().board->seats[number_]; }
  Result<void> Open(const Way& way) override {
    Result<std::unique_ptr<Taker>> taker = way.take(stage());
    if (!taker) return std::unexpected(taker.error());
    taker_ = std::move(*taker);
    return {};
  }
  void Close() override { taker_.reset(); }
  Result<std::string> Run(const Block& block) override;
  Result<void> TakeOne(uint64_t sequence);
  Result<void> QueueRead(CUdeviceptr tensor) {
    const CudaApi& api = *stage().api;
    return api.Check(
        api.cuMemcpyDtoHAsync(word(), LastWord(tensor), sizeof(uint64_t), stage().stream),
        "reading the tensor");
  }

  const size_t number_;
  std::unique_ptr<Taker> taker_;
};

Result<void> Consumer::TakeOne(uint64_t sequence) {
  const Deadline deadline = HandoverDeadline();
  *word() = 0;
  const Result<std::optional<CUdeviceptr>> armed = taker_->Arm(sequence);
  if (!armed) return std::unexpected(armed.error());
  if (*armed) {
    if (auto r = QueueRead(**armed); !r) return r;
  }
  seat().armed.store(sequence, std::memory_order_release);
  if (!*armed) {
    const Result<CUdeviceptr> tensor = taker_->Take(sequence, deadline);
    if (!tensor) return std::unexpected(tensor.error());
    if (auto r = QueueRead(*tensor); !r) return r;
  }
  if (auto r = Sync(); !r) return r;
  const int64_t read = MonotonicNs();
  if (*word() != sequence) {
    return Fail(Code::kCorrupt,
                Concat("hand-over ", sequence, " delivered a wrong value: ", *word()));
  }
  if (auto r = taker_->Release(sequence); !r) return r;
  seat().read_ns.store(read, std::memory_order_relaxed);
  seat().after_ns.store(MonotonicNs() - read, std::memory_order_relaxed);
  seat().done.store(sequence, std::memory_order_release);
  return {};
}

Result<std::string> Consumer::Run(const Block& block) {
  const Board& board = *stage().board;
  for (uint64_t sequence = block.first;; ++sequence) {
    const bool known =
        WaitUntil([&] { return Reached(board.turn, sequence) || Reached(board.closed, sequence); },
                  HandoverDeadline());
    if (!known) return Fail(Code::kTimeout, "the producer did not continue in time");
    if (!Reached(board.turn, sequence)) return "ok";
    if (auto r = TakeOne(sequence); !r) return std::unexpected(r.error());
  }
}

}  // namespace

Result<void> Produce(Channel& parent, const std::vector<std::string>& arguments) {
  return Producer::Main(parent, arguments.at(0));
}

Result<void> Consume(Channel& parent, const std::vector<std::string>& arguments) {
  return Consumer::Main(parent, arguments.at(0), std::stoul(arguments.at(1)));
}

}  // namespace gpushm::bench::handover
