#include "plugin/keeper/kept_counters.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <set>

#include "platform/base/name.h"
#include "platform/yaml/config_error.h"

namespace gpushm::plugin::keeper {
namespace {

using protocol::CounterRecord;
using protocol::CounterSegmentHeader;

std::unexpected<Status> BrokenCounters(std::string_view rule) {
  return Fail(Code::kCorrupt, Concat("the broker broke the protocol: counters: ", rule));
}

const CounterRecord* Records(const Mapping& segment) {
  const auto* const bytes = static_cast<const std::byte*>(segment.address());
  return reinterpret_cast<const CounterRecord*>(bytes + sizeof(CounterSegmentHeader));
}

// The containers of a segment, in order. Copied, so that the checked names are the ones used.
Result<std::vector<std::string>> ReadNames(const Mapping& segment) {
  protocol::CounterSegmentConstants header{};
  std::memcpy(&header, segment.address(), sizeof header);
  if (header.magic != protocol::kCountersMagic) {
    return BrokenCounters(Concat("bad magic number 0x", std::hex, header.magic, " instead of 0x",
                                 protocol::kCountersMagic));
  }
  if (header.version != protocol::kCountersVersion) {
    return BrokenCounters(Concat("unsupported version ", header.version));
  }
  if (header.containers > protocol::kMaxCounterRecords ||
      protocol::CounterSegmentBytes(header.containers) != segment.bytes()) {
    return BrokenCounters(
        Concat("segment of ", header.containers, " containers has ", segment.bytes(), " bytes"));
  }
  std::vector<std::string> names;
  std::set<std::string> known;
  for (uint32_t i = 0; i < header.containers; ++i) {
    protocol::NameField name;
    std::memcpy(name.data(), Records(segment)[i].container.data(), name.size());
    names.emplace_back(protocol::FromNameField(name));
    if (!IsDnsLabel(names.back())) {
      return BrokenCounters(
          Concat("container name ", yaml::Quote(names.back()), " is not a DNS label"));
    }
    if (!known.insert(names.back()).second) {
      return BrokenCounters(Concat("container \"", names.back(), "\" is listed twice"));
    }
  }
  return names;
}

uint64_t Value(const protocol::CounterWord& word) {
  return std::min(word.load(std::memory_order_relaxed), protocol::kMaxCount);
}

}  // namespace

Result<void> KeptCounters::Take(const UniqueFd& fd) {
  Result<Mapping> segment =
      MapSealed(fd, "counters", protocol::CounterSegmentBytes(0),
                protocol::CounterSegmentBytes(protocol::kMaxCounterRecords), Writers::kMaker);
  if (!segment) return BrokenCounters(segment.error().what());
  struct stat file{};
  if (fstat(fd.get(), &file) != 0) return FailSystem(errno, "stat a broker's counters");
  const Inode inode(file.st_dev, file.st_ino);
  if (segment_.address() != nullptr && inode == inode_) return {};
  const Result<std::vector<std::string>> names = ReadNames(*segment);
  if (!names) return std::unexpected(names.error());
  size_t added = 0;
  for (const std::string& name : *names) added += rows_.contains(name) ? 0 : 1;
  if (rows_.size() + added > protocol::kMaxCounterRecords) {
    return Fail(Code::kExhausted,
                Concat("counters for ", rows_.size() + added, " containers exceed the limit of ",
                       protocol::kMaxCounterRecords),
                "delete the pod; its successor's counters begin anew");
  }
  EndSegment();
  segment_ = std::move(*segment);
  inode_ = inode;
  for (size_t i = 0; i < names->size(); ++i) {
    rows_[(*names)[i]].record = &Records(segment_)[i];
  }
  return {};
}

void KeptCounters::EndSegment() {
  Look();
  for (auto& [name, row] : rows_) {
    protocol::AddCounters(std::exchange(row.seen, {}), &row.ended);
    row.record = nullptr;
  }
  segment_ = {};
}

protocol::CounterValues KeptCounters::Clear() {
  const protocol::CounterValues sum = Sum();
  rows_.clear();
  segment_ = {};
  return sum;
}

protocol::CounterValues KeptCounters::Sum() {
  Look();
  protocol::CounterValues sum{};
  for (const auto& [name, row] : rows_) {
    protocol::AddCounters(row.ended, &sum);
    protocol::AddCounters(row.seen, &sum);
  }
  return sum;
}

void KeptCounters::Look() {
  for (auto& [name, row] : rows_) {
    if (row.record != nullptr) protocol::ReadCounters(row.record->words, &row.seen);
  }
}

std::vector<ContainerCounters> KeptCounters::Read() {
  Look();
  std::vector<ContainerCounters> all;
  all.reserve(rows_.size());
  for (const auto& [name, row] : rows_) {
    ContainerCounters& counters = all.emplace_back(name, row.ended);
    protocol::AddCounters(row.seen, &counters.values);
    if (row.record == nullptr) continue;
    const uint64_t bytes = Value(row.record->private_bytes);
    if (bytes != 0) counters.private_bytes = bytes;
  }
  return all;
}

const CounterSegmentHeader* KeptCounters::header() const {
  return static_cast<const CounterSegmentHeader*>(segment_.address());
}

std::optional<double> KeptCounters::ready_seconds() const {
  const uint64_t ready_ns = header() == nullptr ? 0 : Value(header()->ready_ns);
  if (ready_ns == 0) return std::nullopt;
  return static_cast<double>(ready_ns) / 1e9;
}

std::optional<status::Mps> KeptCounters::mps() const {
  if (header() == nullptr) return std::nullopt;
  const protocol::MpsWords& words = header()->mps;
  const auto state = static_cast<protocol::MpsWord>(Value(words.state));
  if (state == protocol::MpsWord::kNone) return std::nullopt;
  return status::Mps{.ready = state == protocol::MpsWord::kReady,
                     .clients = Value(words.clients),
                     .daemon_restarts = Value(words.daemon_restarts),
                     .server_restarts = Value(words.server_restarts)};
}

}  // namespace gpushm::plugin::keeper
