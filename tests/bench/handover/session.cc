#include "tests/bench/handover/session.h"

#include <string>
#include <utility>

#include "tests/bench/handover/endpoint.h"

namespace gpushm::bench::handover {
namespace {

// How long to wait for messages of other processes after one has failed.
constexpr int64_t kLastWordsMs = 1000;

// Whether the producer only reports that a consumer did not arrive.
bool BlamesConsumer(const Status& failure) {
  return failure.what().find("consumer") != std::string::npos;
}

Result<void> Judge(const Result<Heard>& heard, const std::string& who) {
  if (!heard) return std::unexpected(heard.error().WithContext(who));
  if (heard->text.starts_with("ok")) return {};
  return Fail(Code::kInternal, Concat(who, " ", heard->text));
}

}  // namespace

Session::Session(const Options& options)
    : options_(options),
      broker_(Broker::Start({.buffers = {}, .extra_bytes = options_.pool_bytes})) {
  Connection::To(broker_);
  const UniqueFd shared = MakeShared(sizeof(Board));
  board_ = std::static_pointer_cast<Board>(MapShared(shared.get(), sizeof(Board)));
  const std::string folder = broker_.folder().string();
  children_.push_back(Child::Start(kProducer, {folder}));
  for (size_t i = 0; i < options_.peers; ++i) {
    children_.push_back(Child::Start(kConsumer, {folder, std::to_string(i)}));
  }
  for (Child& child : children_) child.Expect("ok", Deadline::AfterMs(kStepMs));
  Tell(To::kAll, "board", Deadline::AfterMs(kStepMs), shared.get());
  for (size_t i = 1; i < children_.size(); ++i) {
    const auto [first, second] = SocketPair();
    for (const auto& [child, end] :
         {std::pair{&children_[0], first.get()}, std::pair{&children_[i], second.get()}}) {
      child->channel().Say("link", end);
      child->Expect("ok", Deadline::AfterMs(kStepMs));
    }
  }
  if (!options_.neighbour) return;
  neighbour_.emplace(Child::Start(kNeighbour, {}));
  neighbour_->Expect("busy", Deadline::AfterMs(kStepMs));
}

std::string Session::Tell(To to, std::string_view text, const Deadline& deadline, int descriptor) {
  const size_t first = to == To::kTakers ? 1 : 0;
  const size_t end = to == To::kGiver ? 1 : children_.size();
  for (size_t i = first; i < end; ++i) children_[i].channel().Say(text, descriptor);
  std::string answer;
  std::optional<Status> failure;
  Deadline patience = deadline;
  for (size_t i = first; i < end; ++i) {
    const Result<Heard> heard = children_[i].channel().Hear(patience);
    const Result<void> judged = Judge(heard, i == 0 ? "the producer" : Concat("consumer ", i - 1));
    if (judged && i == 0) answer = heard->text;
    if (judged) continue;
    if (!failure) patience = Deadline::AfterMs(kLastWordsMs);
    // A consumer's own error says more than the producer's report that it failed.
    if (!failure || (heard && BlamesConsumer(*failure))) failure = judged.error();
    if (heard && !(i == 0 && BlamesConsumer(*failure))) break;
  }
  if (failure) throw Failure(*failure);
  return answer;
}

void Session::SetCell(uint64_t size_bytes, bool staging) {
  size_bytes_ = size_bytes;
  const UniqueFd region = staging ? MakeShared(size_bytes) : UniqueFd();
  Tell(To::kAll, Concat("cell ", size_bytes, " ", options_.peers), Deadline::AfterMs(kStepMs),
       region.get());
}

std::vector<Board::Sample> Session::RunBlock(const Way& way, const BlockSize& block) {
  const Deadline opening = Deadline::AfterMs(2 * HandoverMs(size_bytes_));
  Tell(To::kAll, Concat("open ", way.name, " ", next_), opening);
  const Deadline running = Deadline::AfterMs(
      block.budget_ns / 1'000'000 + static_cast<int64_t>(block.warm + 2) * HandoverMs(size_bytes_));
  const std::string ran =
      Tell(To::kAll, Concat("run ", next_, " ", block.count, " ", block.warm, " ", block.budget_ns),
           running);
  const size_t count = std::stoul(ran.substr(std::string_view("ok ").size()));
  const auto* const samples = board_->samples.data();
  std::vector<Board::Sample> taken(samples, samples + count);
  next_ = board_->closed.load(std::memory_order_acquire) + 1;
  const Deadline closing = Deadline::AfterMs(2 * HandoverMs(size_bytes_));
  for (const To to : {To::kTakers, To::kGiver}) Tell(to, "close", closing);
  return taken;
}

}  // namespace gpushm::bench::handover
