#include "runtime/ctl/views.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "platform/base/status.h"
#include "runtime/ctl/format.h"
#include "runtime/ctl/json.h"

namespace gpushm::ctl {
namespace {

std::string NameIn(std::initializer_list<std::pair<uint32_t, std::string_view>> names,
                   uint32_t value) {
  for (const auto& [known, name] : names) {
    if (known == value) return std::string(name);
  }
  return Concat("unknown-", value);
}

std::string_view NameOf(const char (&text)[GPUSHM_NAME_BYTES]) {
  return {text, strnlen(text, sizeof text)};
}

Color StateColor(uint32_t state) {
  switch (state) {
    case GPUSHM_BUFFER_READY:
      return Color::kGreen;
    case GPUSHM_BUFFER_LOADING:
      return Color::kYellow;
    default:
      return Color::kRed;
  }
}

struct Count {
  size_t readers = 0;
  size_t writers = 0;
  size_t old = 0;  // Of generations to which the name no longer refers.
  size_t all() const { return readers + writers + old; }
};

Count CountHolders(const gpushm_info& info, const std::vector<gpushm_holder>& holders) {
  Count count;
  for (const gpushm_holder& holder : holders) {
    if (NameOf(holder.buffer) != NameOf(info.name)) continue;
    if (holder.generation != info.generation) {
      ++count.old;
    } else if (holder.access == GPUSHM_ACCESS_READ_WRITE) {
      ++count.writers;
    } else {
      ++count.readers;
    }
  }
  return count;
}

const gpushm_sync_info* LookOf(const gpushm_info& info, const Snapshot& snapshot) {
  for (const gpushm_sync_info& look : snapshot.looks) {
    if (NameOf(look.name) == NameOf(info.name)) return &look;
  }
  return nullptr;
}

// The container that writes a signal or ring; "" if it has no writer, or the writer is gone.
std::string_view WriterOf(const gpushm_sync_info& look, const std::vector<gpushm_holder>& holders) {
  for (const gpushm_holder& holder : holders) {
    if (look.writer_lease != 0 && holder.lease_id == look.writer_lease) {
      return NameOf(holder.container);
    }
  }
  return "";
}

std::string Percent(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  char text[32];
  std::snprintf(text, sizeof text, "%.0f%%",
                100.0 * static_cast<double>(part) / static_cast<double>(whole));
  return text;
}

// "loading 35%"
std::string StateText(const gpushm_info& info) {
  std::string text = StateName(info.state);
  if (info.state == GPUSHM_BUFFER_LOADING)
    text += " " + Percent(info.loaded_bytes, info.size_bytes);
  return text;
}

Json InfoOf(const gpushm_info& info) {
  return {{"name", NameOf(info.name)},
          {"generation", std::to_string(info.generation)},
          {"size_bytes", info.size_bytes},
          {"mapped_bytes", info.mapped_bytes},
          {"content_bytes", info.content_bytes},
          {"loaded_bytes", info.loaded_bytes},
          {"state", StateName(info.state)},
          {"transport", TransportName(info.transport)},
          {"gpu", FormatUuid(info.gpu_uuid)},
          {"gpu_number", info.gpu},
          {"creator", NameOf(info.creator)},
          {"created", FormatTime(info.created_unix_ns)},
          {"digest", info.digest}};
}

void AddLook(const gpushm_sync_info* look, const std::vector<gpushm_holder>& holders, Json* json) {
  if (look == nullptr) return;
  (*json)["sync"] = {{"kind", KindName(look->kind)},
                     {"value", look->value},
                     {"state", SyncStateName(look->state)},
                     {"writer", WriterOf(*look, holders)},
                     {"joined", look->joined},
                     {"places", look->places}};
}

Json BuffersOf(const Snapshot& snapshot) {
  Json buffers = Json::array();
  for (const gpushm_info& info : snapshot.buffers) {
    Json& buffer = buffers.emplace_back(InfoOf(info));
    const Count count = CountHolders(info, snapshot.holders);
    buffer["holders"] = {
        {"readers", count.readers}, {"writers", count.writers}, {"old_generations", count.old}};
    AddLook(LookOf(info, snapshot), snapshot.holders, &buffer);
  }
  return buffers;
}

Json GpusOf(const std::vector<gpushm_gpu_info>& gpus) {
  Json list = Json::array();
  for (const gpushm_gpu_info& gpu : gpus) {
    list.push_back({{"number", gpu.gpu},
                    {"gpu", FormatUuid(gpu.gpu_uuid)},
                    {"pool_bytes", gpu.pool_bytes},
                    {"used_bytes", gpu.used_bytes},
                    {"lost", gpu.lost != 0}});
  }
  return list;
}

Json BrokerOf(const BrokerFacts& facts) {
  const gpushm_broker_info& broker = facts.info;
  return {{"container", NameOf(broker.container)},
          {"gpu", FormatUuid(broker.gpu_uuid)},
          {"gpus", GpusOf(facts.gpus)},
          {"pool_bytes", broker.pool_bytes},
          {"used_bytes", broker.used_bytes},
          {"clients", broker.clients},
          {"leases", broker.leases},
          {"epoch", std::to_string(broker.broker_epoch)},
          {"protocol", broker.protocol},
          {"simulated", broker.simulated != 0}};
}

// A line such as "name:        weights", with the values in one column.
std::string Field(std::string_view key, std::string_view value) {
  std::string line(key);
  line += ':';
  line.resize(std::max<size_t>(line.size() + 1, 13), ' ');
  line += Printable(value);
  return line + '\n';
}

std::string BytesField(uint64_t bytes) {
  return Concat(FormatBytes(bytes), " (", bytes, " bytes)");
}

// "0 GPU-1a2b3c4d": the number among the pod's GPUs, and the start of the UUID.
std::string GpuText(uint32_t number, const uint8_t (&uuid)[GPUSHM_UUID_BYTES]) {
  return Concat(number, " ", FormatShortUuid(uuid));
}

std::string ContainerText(std::string_view name) { return name.empty() ? "-" : Printable(name); }

}  // namespace

std::string StateName(uint32_t state) {
  return NameIn({{GPUSHM_BUFFER_LOADING, "loading"},
                 {GPUSHM_BUFFER_READY, "ready"},
                 {GPUSHM_BUFFER_WRITER_DIED, "writer-died"},
                 {GPUSHM_BUFFER_FAILED, "failed"}},
                state);
}

std::string KindName(uint32_t kind) {
  return NameIn({{GPUSHM_SYNC_SIGNAL, "signal"},
                 {GPUSHM_SYNC_BARRIER, "barrier"},
                 {GPUSHM_SYNC_RING, "ring"},
                 {GPUSHM_SYNC_QUEUE, "queue"}},
                kind);
}

std::string SyncStateName(uint32_t state) {
  return NameIn({{GPUSHM_SIGNAL_UNUSED, "unused"},
                 {GPUSHM_SIGNAL_LIVE, "live"},
                 {GPUSHM_SIGNAL_DIED, "died"},
                 {GPUSHM_SIGNAL_LEFT, "left"}},
                state);
}

std::string TransportName(uint32_t transport) {
  return NameIn({{GPUSHM_TRANSPORT_VMM, "vmm"},
                 {GPUSHM_TRANSPORT_CUIPC, "cuipc"},
                 {GPUSHM_TRANSPORT_HOST, "host"}},
                transport);
}

std::string PeerMethodName(uint32_t method) {
  return NameIn({{GPUSHM_PEER_NONE, "-"},
                 {GPUSHM_PEER_NVLINK, "nvlink"},
                 {GPUSHM_PEER_PCIE, "pcie"},
                 {GPUSHM_PEER_STAGED, "staged"}},
                method);
}

std::string AccessName(uint32_t access) {
  return NameIn({{GPUSHM_ACCESS_READ, "read"}, {GPUSHM_ACCESS_READ_WRITE, "write"}}, access);
}

std::string FileMethodName(uint32_t method) {
  return NameIn({{GPUSHM_FILE_AUTO, "auto"},
                 {GPUSHM_FILE_AUTO_GDS, "auto"},
                 {GPUSHM_FILE_CACHED, "page-cache"},
                 {GPUSHM_FILE_DIRECT, "direct"},
                 {GPUSHM_FILE_STREAM, "stream"},
                 {GPUSHM_FILE_GDS, "gds"},
                 {GPUSHM_FILE_PAGES, "pages"}},
                method);
}

std::string FileReasonName(uint32_t reason) {
  return NameIn({{GPUSHM_FILE_REASON_UNKNOWN, ""},
                 {GPUSHM_FILE_REASON_ASKED, "asked for"},
                 {GPUSHM_FILE_REASON_SMALL, "small"},
                 {GPUSHM_FILE_REASON_IN_CACHE, "in the page cache"},
                 {GPUSHM_FILE_REASON_NOT_IN_CACHE, "not in the page cache"},
                 {GPUSHM_FILE_REASON_LARGE, "large"},
                 {GPUSHM_FILE_REASON_REFUSED, "O_DIRECT was refused"},
                 {GPUSHM_FILE_REASON_IN_ORDER, "read or written in order"}},
                reason);
}

namespace {

Color SyncColor(uint32_t state) {
  return state == GPUSHM_SIGNAL_LIVE     ? Color::kGreen
         : state == GPUSHM_SIGNAL_UNUSED ? Color::kYellow
                                         : Color::kRed;
}

// Printed below the buffers; empty if there are no signals, barriers, rings or queues.
std::string SyncTable(const Snapshot& snapshot, const Style& style) {
  Table table({{"NAME"},
               {"KIND"},
               {"AT", true},
               {"STATE"},
               {"WRITER"},
               {"JOINED", true},
               {"HOLDERS", true},
               {"AGE", true}});
  bool any = false;
  for (const gpushm_info& info : snapshot.buffers) {
    if (info.transport != GPUSHM_TRANSPORT_HOST) continue;
    any = true;
    const gpushm_sync_info* const look = LookOf(info, snapshot);
    std::vector<Cell> row = {{Printable(NameOf(info.name))}, {"-"}, {"-"}, {"-"}, {"-"}, {"-"}};
    if (look != nullptr) {
      row = {row[0],
             {KindName(look->kind)},
             {std::to_string(look->value)},
             {SyncStateName(look->state), SyncColor(look->state)},
             {ContainerText(WriterOf(*look, snapshot.holders))},
             {Concat(look->joined, "/", look->places)}};
    }
    row.push_back({std::to_string(CountHolders(info, snapshot.holders).all())});
    row.push_back({FormatAge(style.now_unix_ns - info.created_unix_ns)});
    table.Add(std::move(row));
  }
  return any ? "\n" + table.Render(style.color) : "";
}

}  // namespace

std::string ListTable(const Snapshot& snapshot, const Style& style) {
  Table table({{"NAME"},
               {"GENERATION"},
               {"SIZE", true},
               {"CONTENT", true},
               {"STATE"},
               {"TRANSPORT"},
               {"GPU"},
               {"HOLDERS", true},
               {"AGE", true}});
  for (const gpushm_info& info : snapshot.buffers) {
    if (info.transport == GPUSHM_TRANSPORT_HOST) continue;
    table.Add({{Printable(NameOf(info.name))},
               {std::to_string(info.generation)},
               {FormatBytes(info.size_bytes)},
               {FormatBytes(info.content_bytes)},
               {StateText(info), StateColor(info.state)},
               {TransportName(info.transport)},
               {GpuText(info.gpu, info.gpu_uuid)},
               {std::to_string(CountHolders(info, snapshot.holders).all())},
               {FormatAge(style.now_unix_ns - info.created_unix_ns)}});
  }
  return table.Render(style.color) + SyncTable(snapshot, style);
}

std::string ListNames(const Snapshot& snapshot) {
  std::string text;
  for (const gpushm_info& info : snapshot.buffers) text += Printable(NameOf(info.name)) + '\n';
  return text;
}

std::string ListJson(const Snapshot& snapshot) {
  return JsonText({{"buffers", BuffersOf(snapshot)}});
}

std::string StatText(const gpushm_info& info, const gpushm_reason& reason,
                     const std::vector<gpushm_holder>& holders, const gpushm_sync_info* look,
                     const Style& style) {
  std::string text = Field("name", NameOf(info.name));
  if (look != nullptr) {
    text += Field("kind", KindName(look->kind));
    text += Field("at", std::to_string(look->value));
    const std::string_view writer = WriterOf(*look, holders);
    text +=
        Field("written", Concat(SyncStateName(look->state), writer.empty() ? "" : ", by ", writer));
    text += Field("joined", Concat(look->joined, " of ", look->places));
  }
  text += Field("generation", std::to_string(info.generation));
  text += Field("size", BytesField(info.size_bytes));
  text += Field("content", BytesField(info.content_bytes));
  if (info.digest[0] != '\0') text += Field("digest", info.digest);
  text += Field("mapped", BytesField(info.mapped_bytes));
  text += "state:       " + Paint(StateText(info), StateColor(info.state), style.color) + '\n';
  if (reason.text[0] != '\0') text += Field("reason", Printable(reason.text));
  text += Field("transport", TransportName(info.transport));
  text += Field("gpu", Concat(info.gpu, " ", FormatUuid(info.gpu_uuid)));
  text += Field("creator",
                NameOf(info.creator).empty() ? "declared by annotation" : NameOf(info.creator));
  text += Field("created", Concat(FormatTime(info.created_unix_ns), " (",
                                  FormatAge(style.now_unix_ns - info.created_unix_ns), " ago)"));
  text += Field("holders", std::to_string(holders.size()));
  if (holders.empty()) return text;
  Table table({{"CONTAINER"},
               {"ACCESS"},
               {"PEER"},
               {"GENERATION"},
               {"CLIENT", true},
               {"LEASE", true},
               {"AGE", true}});
  for (const gpushm_holder& holder : holders) {
    const bool old = holder.generation != info.generation;
    table.Add({{ContainerText(NameOf(holder.container))},
               {AccessName(holder.access)},
               {PeerMethodName(holder.peer_method)},
               {old ? Concat(holder.generation, " (old)") : std::to_string(holder.generation),
                old ? Color::kYellow : Color::kNone},
               {std::to_string(holder.client_id)},
               {std::to_string(holder.lease_id)},
               {FormatAge(style.now_unix_ns - holder.since_unix_ns)}});
  }
  return text + '\n' + table.Render(style.color);
}

std::string StatJson(const gpushm_info& info, const gpushm_reason& reason,
                     const std::vector<gpushm_holder>& holders, const gpushm_sync_info* look) {
  Json json = InfoOf(info);
  if (reason.text[0] != '\0') {
    json["reason"] = reason.text;
    json["reason_code"] = gpushm_status_name(static_cast<gpushm_status>(reason.status));
  }
  AddLook(look, holders, &json);
  Json& list = json["holders"] = Json::array();
  for (const gpushm_holder& holder : holders) {
    list.push_back({{"container", NameOf(holder.container)},
                    {"access", AccessName(holder.access)},
                    {"peer_method", PeerMethodName(holder.peer_method)},
                    {"generation", std::to_string(holder.generation)},
                    {"client_id", std::to_string(holder.client_id)},
                    {"lease_id", std::to_string(holder.lease_id)},
                    {"since", FormatTime(holder.since_unix_ns)}});
  }
  return JsonText(json);
}

std::string BrokerText(const BrokerFacts& facts, const Style& style) {
  const gpushm_broker_info& broker = facts.info;
  std::string text = Field("container", ContainerText(NameOf(broker.container)));
  text += Field("driver", broker.simulated != 0 ? "simulated" : "real");
  text += Field("pool", BytesField(broker.pool_bytes));
  text += Field("used", Concat(BytesField(broker.used_bytes), ", ",
                               Percent(broker.used_bytes, broker.pool_bytes), " of the pool"));
  text += Field("clients", std::to_string(broker.clients));
  text += Field("leases", std::to_string(broker.leases));
  text += Field("epoch", std::to_string(broker.broker_epoch));
  text += Field("protocol", std::to_string(broker.protocol));
  Table table({{"GPU", true}, {"UUID"}, {"STATE"}, {"POOL", true}, {"USED", true}});
  for (const gpushm_gpu_info& gpu : facts.gpus) {
    table.Add({{std::to_string(gpu.gpu)},
               {FormatUuid(gpu.gpu_uuid)},
               {gpu.lost != 0 ? "lost" : "ok", gpu.lost != 0 ? Color::kRed : Color::kGreen},
               {FormatBytes(gpu.pool_bytes)},
               {FormatBytes(gpu.used_bytes)}});
  }
  return text + '\n' + table.Render(style.color);
}

std::string BrokerJson(const BrokerFacts& broker) { return JsonText(BrokerOf(broker)); }

namespace {

const gpushm_info* FindSame(const TopSample* sample, const gpushm_info& info) {
  if (sample == nullptr) return nullptr;
  for (const gpushm_info& other : sample->snapshot.buffers) {
    if (NameOf(other.name) == NameOf(info.name) && other.generation == info.generation) {
      return &other;
    }
  }
  return nullptr;
}

std::string LoadRate(const gpushm_info& info, const TopSample* previous, int64_t elapsed_ns) {
  const gpushm_info* before = FindSame(previous, info);
  if (before == nullptr || info.loaded_bytes <= before->loaded_bytes) return "-";
  return FormatRate(info.loaded_bytes - before->loaded_bytes, elapsed_ns);
}

std::string TopHead(const TopSample& sample, const Style& style) {
  const gpushm_broker_info& broker = sample.broker.info;
  std::string text =
      Concat("gpushm  ", FormatTime(style.now_unix_ns).substr(0, 19), "Z  container ",
             ContainerText(NameOf(broker.container)), broker.simulated != 0 ? " (simulated)" : "",
             "  buffers ", sample.snapshot.buffers.size(), "  clients ", broker.clients,
             "  leases ", broker.leases, '\n');
  for (const gpushm_gpu_info& gpu : sample.broker.gpus) {
    text +=
        Concat("gpu ", GpuText(gpu.gpu, gpu.gpu_uuid), "  pool ", FormatBytes(gpu.used_bytes),
               " of ", FormatBytes(gpu.pool_bytes), " (", Percent(gpu.used_bytes, gpu.pool_bytes),
               ")", gpu.lost != 0 ? "  " + Paint("lost", Color::kRed, style.color) : "", '\n');
  }
  return text + '\n';
}

}  // namespace

std::string TopText(const TopSample& sample, const TopSample* previous, int64_t elapsed_ns,
                    TopOrder order, int rows, const Style& style) {
  struct Row {
    const gpushm_info* info;
    Count count;
  };
  std::vector<Row> sorted;
  for (const gpushm_info& info : sample.snapshot.buffers) {
    if (info.transport == GPUSHM_TRANSPORT_HOST) continue;  // Not GPU memory: ls shows these.
    sorted.push_back({&info, CountHolders(info, sample.snapshot.holders)});
  }
  std::sort(sorted.begin(), sorted.end(), [&](const Row& a, const Row& b) {
    const auto [size_a, size_b] = std::pair(a.info->size_bytes, b.info->size_bytes);
    if (order == TopOrder::kSize && size_a != size_b) return size_a > size_b;
    const auto [all_a, all_b] = std::pair(a.count.all(), b.count.all());
    if (order == TopOrder::kHolders && all_a != all_b) return all_a > all_b;
    return NameOf(a.info->name) < NameOf(b.info->name);
  });
  const size_t shown =
      rows > 0 ? std::min(sorted.size(), static_cast<size_t>(rows)) : sorted.size();
  Table table({{"NAME"},
               {"STATE"},
               {"SIZE", true},
               {"GPU", true},
               {"READERS", true},
               {"WRITERS", true},
               {"OLD", true},
               {"LOAD", true},
               {"TRANSPORT"},
               {"AGE", true}});
  for (size_t i = 0; i < shown; ++i) {
    const auto& [info, count] = sorted[i];
    table.Add({{Printable(NameOf(info->name))},
               {StateText(*info), StateColor(info->state)},
               {FormatBytes(info->size_bytes)},
               {std::to_string(info->gpu)},
               {std::to_string(count.readers)},
               {std::to_string(count.writers)},
               {std::to_string(count.old), count.old > 0 ? Color::kYellow : Color::kNone},
               {LoadRate(*info, previous, elapsed_ns)},
               {TransportName(info->transport)},
               {FormatAge(style.now_unix_ns - info->created_unix_ns)}});
  }
  std::string text = TopHead(sample, style) + table.Render(style.color);
  if (shown < sorted.size()) text += Concat("... and ", sorted.size() - shown, " more\n");
  return text;
}

std::string TopJson(const TopSample& sample, int64_t now_unix_ns) {
  return JsonText({{"time", FormatTime(now_unix_ns)},
                   {"broker", BrokerOf(sample.broker)},
                   {"buffers", BuffersOf(sample.snapshot)}},
                  -1);
}

std::string InfoLine(std::string_view verb, const gpushm_info& info) {
  return Concat(verb, " ", Printable(NameOf(info.name)), ": ", FormatBytes(info.size_bytes), ", ",
                StateText(info), ", generation ", info.generation, "\n");
}

std::string InfoJson(const gpushm_info& info) { return JsonText(InfoOf(info)); }

namespace {

// The time in which bytes moved; the whole time if none did.
int64_t MovingNs(const gpushm_transfer_result& result) {
  return result.moving_ns > 0 ? result.moving_ns : result.elapsed_ns;
}

// The part of the link's speed that was used; 0: not known.
double LinkPart(const gpushm_transfer_result& result) {
  const int64_t moving_ns = MovingNs(result);
  if (result.link_bytes_per_second == 0 || moving_ns <= 0) return 0;
  return static_cast<double>(result.bytes) * 1e9 / static_cast<double>(moving_ns) /
         static_cast<double>(result.link_bytes_per_second);
}

// To three decimals.
double Rounded(double value) { return std::round(value * 1000) / 1000; }

std::string LinkText(const gpushm_transfer_result& result) {
  const double part = LinkPart(result);
  if (part == 0) return "";
  char text[16];
  std::snprintf(text, sizeof text, "%.2f", part);
  return Concat(", ", text, " of the PCIe link's ",
                FormatRate(result.link_bytes_per_second, 1'000'000'000));
}

}  // namespace

std::string TransferLine(std::string_view verb, std::string_view from, std::string_view to,
                         const gpushm_transfer_result& result, int64_t settling_ns,
                         uint64_t generation) {
  const std::string reason = FileReasonName(result.file_reason);
  return Concat(verb, " ", Printable(from), " to ", Printable(to), ": ", FormatBytes(result.bytes),
                " in ", FormatAge(result.elapsed_ns - settling_ns), ", ",
                FormatRate(result.bytes, MovingNs(result)), LinkText(result), ", ",
                FileMethodName(result.file_method), reason.empty() ? "" : Concat(" (", reason, ")"),
                generation == 0 ? "" : Concat(", generation ", generation),
                settling_ns == 0 ? "" : Concat(", after it a wait of ", FormatAge(settling_ns)),
                "\n");
}

std::string TransferJson(std::string_view buffer, std::string_view file,
                         const gpushm_transfer_result& result, int64_t settling_ns,
                         uint64_t generation) {
  const double seconds = static_cast<double>(result.elapsed_ns - settling_ns) / 1e9;
  const double moving_seconds = static_cast<double>(result.moving_ns) / 1e9;
  const double rate = seconds > 0 ? static_cast<double>(result.bytes) / seconds : 0;
  Json object({{"buffer", buffer},
               {"file", file},
               {"file_method", FileMethodName(result.file_method)},
               {"file_reason", FileReasonName(result.file_reason)},
               {"bytes", result.bytes},
               {"elapsed_seconds", Rounded(seconds)},
               {"bytes_per_second", Rounded(rate)},
               {"moving_seconds", Rounded(moving_seconds)},
               {"settling_seconds", Rounded(static_cast<double>(settling_ns) / 1e9)},
               {"link_bytes_per_second", result.link_bytes_per_second},
               {"link_fraction", Rounded(LinkPart(result))}});
  if (generation != 0) object["generation"] = std::to_string(generation);
  if (result.digest[0] != '\0') object["digest"] = result.digest;
  return JsonText(object);
}

}  // namespace gpushm::ctl
