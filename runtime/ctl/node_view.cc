#include "runtime/ctl/node_view.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

#include "runtime/ctl/format.h"

namespace gpushm::ctl {
namespace {

using status::Buffer;
using status::Gpu;
using status::Pool;

// Kinds of memory, in the order of a bar.
enum Kind { kShared, kOne, kIdle, kGranted, kOther, kFree, kKinds };
constexpr std::array<std::string_view, kKinds> kNames = {
    "shared", "held by one", "attached by nobody", "granted, not used", "other", "free"};
constexpr std::array<std::string_view, kKinds> kUnicode = {"█", "▓", "▒", "░", "▚", "·"};
constexpr std::array<std::string_view, kKinds> kAscii = {"#", "=", "-", ":", "%", "."};

constexpr int kWidestBar = 100;
constexpr int kLinesBelow = 2;  // "... and more", and the cursor.

std::string_view Glyph(size_t kind, bool unicode) { return (unicode ? kUnicode : kAscii)[kind]; }

Kind KindOf(const Buffer& buffer) {
  uint64_t users = 0;
  for (const auto& attachment : buffer.attachments) users += attachment.count;
  return users == 0 ? kIdle : users == 1 ? kOne : kShared;
}

uint64_t Minus(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

// As docs/reference/status.md describes. Known private bytes are subtracted from the grant, and no
// more can be unused than is free on the GPU.
std::array<uint64_t, kKinds> BytesOf(const Gpu& gpu) {
  std::array<uint64_t, kKinds> bytes{};
  uint64_t known_private = 0;
  for (const Pool& pool : gpu.pools) {
    for (const auto& container : pool.containers) {
      known_private += container.private_bytes.value_or(0);
    }
    for (const Buffer& buffer : pool.buffers) bytes[KindOf(buffer)] += buffer.allocated_bytes;
  }
  bytes[kOther] = gpu.other_bytes.value_or(0);
  const uint64_t left = Minus(gpu.total_bytes, gpu.buffers_bytes + bytes[kOther]);
  bytes[kGranted] = std::min(left, Minus(gpu.bound_bytes, gpu.buffers_bytes + known_private));
  bytes[kFree] = left - bytes[kGranted];
  return bytes;
}

// The ends of the kinds are rounded, not their widths, so that the widths add up.
std::string Bar(const Gpu& gpu, const NodeStyle& style) {
  const auto bytes = BytesOf(gpu);
  double total = 0;
  for (const uint64_t part : bytes) total += static_cast<double>(part);
  const int width = std::clamp(style.columns - 2, 10, kWidestBar);
  std::string bar = "[";
  double end = 0;
  int64_t drawn = 0;
  for (size_t kind = 0; kind < kKinds && total > 0; ++kind) {
    end += static_cast<double>(bytes[kind]);
    const int64_t until = std::llround(end / total * width);
    for (; drawn < until; ++drawn) bar += Glyph(kind, style.unicode);
  }
  return bar + "]";
}

std::string Load(const Gpu& gpu, bool unicode) {
  std::string text;
  if (gpu.utilization) text += Concat("  ", std::lround(*gpu.utilization * 100), "% busy");
  if (gpu.temperature_celsius) {
    text += Concat("  ", std::lround(*gpu.temperature_celsius), unicode ? " °C" : " C");
  }
  if (gpu.power_watts) text += Concat("  ", std::lround(*gpu.power_watts), " W");
  return text;
}

std::string Known(const std::optional<uint64_t>& bytes) {
  return bytes ? FormatBytes(*bytes) : "unknown";
}

std::string GpuText(const Gpu& gpu, const NodeStyle& style) {
  const bool color = style.style.color;
  std::string text =
      Paint(Concat("GPU ", gpu.index), Color::kBold, color) + "  " + Printable(gpu.model);
  if (!gpu.mig_profile.empty()) text += " MIG " + Printable(gpu.mig_profile);
  text += "  ";
  text += gpu.healthy ? Paint("healthy", Color::kGreen, color)
                      : Paint("unhealthy: " + Printable(gpu.reason), Color::kRed, color);
  if (!gpu.drained.empty()) {
    text += Paint("  drained: " + Printable(gpu.drained), Color::kYellow, color);
  }
  if (!gpu.exclusive_to.empty()) text += "  only for " + Printable(gpu.exclusive_to);
  text += Load(gpu, style.unicode) + '\n' + Bar(gpu, style) + '\n';
  return text + Concat("used ", Known(gpu.used_bytes), " of ", FormatBytes(gpu.total_bytes),
                       ", buffers ", FormatBytes(gpu.buffers_bytes), ", other ",
                       Known(gpu.other_bytes), ", granted ", FormatBytes(gpu.bound_bytes), " of ",
                       FormatBytes(gpu.allocatable_bytes), ", saved ", FormatBytes(gpu.saved_bytes),
                       "\n\n");
}

std::string Head(const status::Node& node, const NodeStyle& style) {
  uint64_t saved = 0;
  for (const Gpu& gpu : node.gpus) saved += gpu.saved_bytes;
  std::string text = Concat(
      "gpushm  ", FormatTime(node.time_unix_ms * 1'000'000).substr(0, 19), "Z  node ",
      Printable(node.node), "\n",
      Paint(Concat("saved by sharing ", FormatBytes(saved)), Color::kBold, style.style.color),
      "\n\n");
  if (node.gpus.empty()) return text + "gpushm manages no GPU of this node.\n";
  for (size_t kind = 0; kind < kKinds; ++kind) {
    text += Concat(kind == 0 ? "" : "  ", Glyph(kind, style.unicode), " ", kNames[kind]);
  }
  return text + "\n\n";
}

Color ColorOf(std::string_view state) {
  return state == "ready"                              ? Color::kGreen
         : state == "failed" || state == "writer-died" ? Color::kRed
                                                       : Color::kYellow;
}

// One line for each attachment. Cells that repeat the line above are left empty.
void AddBuffer(const Gpu& gpu, const Pool& pool, const Buffer& buffer, bool first, Table* table) {
  std::vector<Cell> row;
  if (first) {
    const bool away = pool.broker != "connected";
    const bool no_mps = pool.mps && !pool.mps->ready;
    row = {{std::to_string(gpu.index)},
           {PodOnGpu(pool) + (away ? " (broker " + Printable(pool.broker) + ")" : "") +
                (no_mps ? " (MPS not ready)" : ""),
            away || no_mps ? Color::kYellow : Color::kNone}};
  } else {
    row = {{}, {}};
  }
  row.push_back({Printable(buffer.name)});
  row.push_back({Printable(buffer.state), ColorOf(buffer.state)});
  row.push_back({FormatBytes(buffer.allocated_bytes)});
  if (buffer.attachments.empty()) row.push_back({"-", Color::kDim});
  for (const auto& attachment : buffer.attachments) {
    row.resize(5);
    row.push_back({Printable(attachment.container)});
    row.push_back({Printable(attachment.access)});
    row.push_back({std::to_string(attachment.count)});
    row.push_back({FormatBytes(attachment.mapped_bytes)});
    row.push_back({FormatBytes(attachment.proportional_bytes)});
    table->Add(std::exchange(row, std::vector<Cell>(5)));
  }
  if (buffer.attachments.empty()) table->Add(std::move(row));
}

std::string HoldersText(const status::Node& node, const Style& style) {
  Table table({{"GPU"},
               {"POD"},
               {"BUFFER"},
               {"STATE"},
               {"SIZE", true},
               {"HOLDER"},
               {"ACCESS"},
               {"COUNT", true},
               {"MAPPED", true},
               {"SHARE", true}});
  bool any = false;
  for (const Gpu& gpu : node.gpus) {
    for (const Pool& pool : gpu.pools) {
      std::vector<const Buffer*> largest;
      for (const Buffer& buffer : pool.buffers) largest.push_back(&buffer);
      std::sort(largest.begin(), largest.end(), [](const Buffer* a, const Buffer* b) {
        return std::tie(b->allocated_bytes, a->name) < std::tie(a->allocated_bytes, b->name);
      });
      for (const Buffer* buffer : largest) {
        AddBuffer(gpu, pool, *buffer, buffer == largest.front(), &table);
      }
      if (largest.empty()) table.Add({{std::to_string(gpu.index)}, {PodOnGpu(pool)}, {"-"}});
      any = true;
    }
  }
  return any ? table.Render(style.color)
             : "No GPU is bound yet: no pod of this node requests GPU memory.\n";
}

// The containers that have processes. A pod of several GPUs states them with its first GPU.
std::string BusyContainers(const status::Node& node, const std::string& allocation) {
  std::string names;
  for (const Gpu& gpu : node.gpus) {
    for (const Pool& pool : gpu.pools) {
      if (pool.allocation != allocation) continue;
      for (const auto& container : pool.containers) {
        if (container.clients == 0) continue;
        names += (names.empty() ? "" : ", ") + Printable(container.name);
      }
    }
  }
  return names.empty() ? "-" : names;
}

}  // namespace

std::string PodOf(const Pool& pool) {
  return Printable(pool.pod.empty() ? pool.allocation : Concat(pool.name_space, "/", pool.pod));
}

std::string PodOnGpu(const Pool& pool) {
  if (pool.pod_gpus < 2) return PodOf(pool);
  return Concat(PodOf(pool), " (number ", pool.gpu_number, " of its ", pool.pod_gpus, " GPUs)");
}

std::string NodeText(const status::Node& node, const NodeStyle& style) {
  std::string text = Head(node, style);
  for (const Gpu& gpu : node.gpus) text += GpuText(gpu, style);
  if (!node.gpus.empty()) text += HoldersText(node, style.style);
  if (style.rows <= 0) return text;
  const auto lines = std::count(text.begin(), text.end(), '\n');
  const auto room = std::max(1, style.rows - kLinesBelow);
  if (lines <= room) return text;
  size_t end = 0;
  for (int line = 0; line < room; ++line) end = text.find('\n', end) + 1;
  return text.substr(0, end) + Concat("... and ", lines - room, " more lines\n");
}

std::string PodsText(const status::Node& node, const Gpu& gpu, bool color) {
  if (gpu.pools.empty()) return "No pod holds memory there.\n";
  Table table({{"POD"}, {"GRANTED", true}, {"IN BUFFERS", true}, {"CONTAINERS"}});
  for (const Pool& pool : gpu.pools) {
    table.Add({{PodOnGpu(pool)},
               {FormatBytes(pool.size_bytes)},
               {FormatBytes(pool.allocated_bytes)},
               {BusyContainers(node, pool.allocation)}});
  }
  return Concat("These pods stay until they end:\n\n", table.Render(color));
}

}  // namespace gpushm::ctl
