#include "tests/bench/handover/session.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
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

Result<std::unique_ptr<Session>> Session::Start(const Options& options) {
  const Result<UniqueFd> fd = BoardMapping::Make();
  if (!fd) return std::unexpected(fd.error());
  Result<BoardMapping> board = BoardMapping::Map(fd->get());
  if (!board) return std::unexpected(board.error());
  std::unique_ptr<Session> session(new Session(options, std::move(*board)));
  if (auto r = session->StartAll(fd->get()); !r) return std::unexpected(r.error());
  return session;
}

Result<void> Session::StartAll(int board_fd) {
  Result<Broker> broker = Broker::Start({.buffers = {}, .extra_bytes = options_.pool_bytes});
  if (!broker) return std::unexpected(broker.error());
  broker_.emplace(std::move(*broker));
  if (auto up = Connection::To(*broker_); !up) return std::unexpected(up.error());
  const std::string folder = broker_->folder().string();
  for (size_t i = 0; i <= options_.peers; ++i) {
    Result<Child> child = i == 0 ? Child::Start(kProducer, {folder})
                                 : Child::Start(kConsumer, {folder, std::to_string(i - 1)});
    if (!child) return std::unexpected(child.error());
    children_.push_back(std::move(*child));
  }
  for (Child& child : children_) {
    if (auto r = child.Expect("ok", Deadline::AfterMs(kStepMs)); !r) return r;
  }
  if (auto r = Tell(To::kAll, "board", Deadline::AfterMs(kStepMs), board_fd); !r) {
    return std::unexpected(r.error());
  }
  if (auto r = Link(); !r) return r;
  if (!options_.neighbour) return {};
  Result<Child> neighbour = Child::Start(kNeighbour, {});
  if (!neighbour) return std::unexpected(neighbour.error());
  neighbour_.emplace(std::move(*neighbour));
  return neighbour_->Expect("busy", Deadline::AfterMs(kStepMs));
}

Result<void> Session::Link() {
  for (size_t i = 1; i < children_.size(); ++i) {
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
      return FailSystem(errno, "socketpair");
    }
    const UniqueFd first(ends[0]);
    const UniqueFd second(ends[1]);
    for (const auto& [child, end] :
         {std::pair{&children_[0], first.get()}, std::pair{&children_[i], second.get()}}) {
      if (auto r = child->channel().Say("link", end); !r) return r;
      if (auto r = child->Expect("ok", Deadline::AfterMs(kStepMs)); !r) return r;
    }
  }
  return {};
}

Result<std::string> Session::Tell(To to, std::string_view text, const Deadline& deadline,
                                  int descriptor) {
  const size_t first = to == To::kTakers ? 1 : 0;
  const size_t end = to == To::kGiver ? 1 : children_.size();
  for (size_t i = first; i < end; ++i) {
    if (auto r = children_[i].channel().Say(text, descriptor); !r) {
      return std::unexpected(r.error());
    }
  }
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
  if (failure) return std::unexpected(*failure);
  return answer;
}

Result<void> Session::SetCell(uint64_t size_bytes, bool staging) {
  size_bytes_ = size_bytes;
  UniqueFd region;
  if (staging) {
    Result<UniqueFd> made = StagingRegion::Make(size_bytes);
    if (!made) return std::unexpected(made.error());
    region = std::move(*made);
  }
  const Result<std::string> told = Tell(To::kAll, Concat("cell ", size_bytes, " ", options_.peers),
                                        Deadline::AfterMs(kStepMs), region.get());
  if (!told) return std::unexpected(told.error());
  return {};
}

Result<std::vector<Board::Sample>> Session::RunBlock(const Way& way, const BlockSize& block) {
  const Deadline opening = Deadline::AfterMs(2 * HandoverMs(size_bytes_));
  if (auto r = Tell(To::kAll, Concat("open ", way.name, " ", next_), opening); !r) {
    return std::unexpected(r.error());
  }
  const Deadline running = Deadline::AfterMs(
      block.budget_ns / 1'000'000 + static_cast<int64_t>(block.warm + 2) * HandoverMs(size_bytes_));
  const Result<std::string> ran =
      Tell(To::kAll, Concat("run ", next_, " ", block.count, " ", block.warm, " ", block.budget_ns),
           running);
  if (!ran) return std::unexpected(ran.error());
  const size_t count = std::stoul(ran->substr(std::string_view("ok ").size()));
  const auto* const samples = board_->samples.data();
  std::vector<Board::Sample> taken(samples, samples + count);
  next_ = board_->closed.load(std::memory_order_acquire) + 1;
  const Deadline closing = Deadline::AfterMs(2 * HandoverMs(size_bytes_));
  for (const To to : {To::kTakers, To::kGiver}) {
    if (auto r = Tell(to, "close", closing); !r) return std::unexpected(r.error());
  }
  return taken;
}

}  // namespace gpushm::bench::handover
