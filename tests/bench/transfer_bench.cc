// Loads and saves: the bytes of a file or a pipe go to the GPU and back. The baseline copies
// between pinned memory and the GPU alone, chunk by chunk, with as many bytes in the same run.
//
// gpushm's time is the moving time of gpushm_transfer_result: without the context, pinning and
// fsync. The time of the whole call is listed, too.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "platform/transfer/transfer_engine.h"
#include "tests/bench/harness.h"

namespace gpushm::bench {
namespace {

constexpr char kBuffer[] = "weights";
constexpr uint64_t kRealBytes = 8 * kGiB;
// The simulated driver copies with the same cores that read the file: enough to see that it works.
constexpr uint64_t kSimulatedBytes = 512 * kMiB;
constexpr int kTurns = 5;
// A fraction of 0.9 of the interconnect's speed.
constexpr double kBudgetRatio = 1 / 0.9;

uint64_t SizeHere() { return ThisMachine().simulated ? kSimulatedBytes : kRealBytes; }

struct Setup {
  Broker broker;
  Connection connection;
  std::string file;
};

void WriteFile(const std::string& path, uint64_t size_bytes) {
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file) throw Failure(FailSystem(errno, Concat("create ", path)));
  std::vector<uint32_t> block(kMiB / sizeof(uint32_t));
  for (uint64_t at = 0; at < size_bytes; at += kMiB) {
    for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<uint32_t>((at + i) * 40503);
    if (write(file.get(), block.data(), kMiB) != static_cast<ssize_t>(kMiB)) {
      throw Failure(FailSystem(errno, Concat("write ", path)));
    }
  }
  if (fsync(file.get()) != 0) throw Failure(FailSystem(errno, "fsync"));
}

Setup* TheSetup() {
  static std::optional<Setup> setup;
  if (setup) return &*setup;
  NeedContext();
  Broker::Options options;
  options.buffers.emplace_back(kBuffer, SizeHere());
  Broker broker = Broker::Start(options);
  Connection connection = Connection::To(broker);
  std::string path = (ThisMachine().work / "model").string();
  WriteFile(path, SizeHere());
  setup.emplace(std::move(broker), std::move(connection), std::move(path));
  return &*setup;
}

struct Case {
  bool load = true;
  uint32_t file_way = GPUSHM_FILE_CACHED;  // STREAM: a pipe.
  uint32_t threads = 0;                    // 0: the library chooses.
  uint64_t chunk_bytes = kTransferChunkBytes;
  uint32_t chunks = kTransferChunks;
};

// The interconnect itself: the same bytes in the same chunks between pinned memory and the GPU.
class Link {
 public:
  static Link Create(const Case& c, uint64_t size_bytes) {
    const Machine& machine = ThisMachine();
    const uint64_t granularity = machine.device.granularity;
    const uint64_t room = RoundUp(size_bytes, granularity);
    const DeviceMemory memory =
        Must(DeviceMemory::Create(*machine.api, machine.device.device, room));
    DeviceMapping mapping = Must(
        DeviceMapping::Map(*machine.api, memory, room, machine.device.device, Access::kReadWrite));
    Link link(std::move(mapping), c.chunk_bytes, size_bytes);
    for (uint32_t i = 0; i < c.chunks; ++i) {
      PinnedBuffer host = Must(PinnedBuffer::Allocate(*machine.api, c.chunk_bytes));
      Stream stream = Must(Stream::Create(*machine.api));
      link.hosts_.push_back(std::move(host));
      link.streams_.push_back(std::move(stream));
    }
    return link;
  }

  int64_t Move(bool load) const {
    const CudaApi& api = *ThisMachine().api;
    const int64_t start_ns = MonotonicNs();
    size_t turn = 0;
    for (uint64_t at = 0; at < size_bytes_; at += chunk_bytes_, ++turn) {
      std::byte* const host = hosts_[turn % hosts_.size()].data();
      const CUstream stream = streams_[turn % streams_.size()].get();
      const uint64_t part = std::min(chunk_bytes_, size_bytes_ - at);
      const CUdeviceptr device = mapping_.address() + at;
      const CUresult done = load ? api.cuMemcpyHtoDAsync(device, host, part, stream)
                                 : api.cuMemcpyDtoHAsync(host, device, part, stream);
      Must(api.Check(done, "copy"));
    }
    Must(api.Check(api.cuCtxSynchronize(), "cuCtxSynchronize"));
    return MonotonicNs() - start_ns;
  }

 private:
  Link(DeviceMapping mapping, uint64_t chunk_bytes, uint64_t size_bytes)
      : mapping_(std::move(mapping)), chunk_bytes_(chunk_bytes), size_bytes_(size_bytes) {}
  DeviceMapping mapping_;
  uint64_t chunk_bytes_;
  uint64_t size_bytes_;
  std::vector<PinnedBuffer> hosts_;
  std::vector<Stream> streams_;
};

// The other end of a pipe, in a separate process. It writes from or reads into its own memory, so
// that it slows the transfer no more than a pipe does.
class OtherEnd {
 public:
  static OtherEnd Start(bool load, uint64_t size_bytes) {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) throw Failure(FailSystem(errno, "pipe2"));
    UniqueFd reader(ends[0]);
    UniqueFd writer(ends[1]);
    const pid_t child = fork();
    if (child < 0) throw Failure(FailSystem(errno, "fork"));
    if (child == 0) {  // Only system calls: a child must not use the driver.
      static std::array<char, kMiB> block;
      close(load ? reader.get() : writer.get());
      for (uint64_t left = size_bytes; left > 0;) {
        const uint64_t part = std::min<uint64_t>(left, block.size());
        const ssize_t moved =
            load ? write(writer.get(), block.data(), part) : read(reader.get(), block.data(), part);
        if (moved <= 0) break;
        left -= static_cast<uint64_t>(moved);
      }
      _exit(0);
    }
    return OtherEnd(child, load ? std::move(reader) : std::move(writer));
  }
  int descriptor() const { return ours_.get(); }

  OtherEnd(OtherEnd&& other) noexcept
      : child_(std::exchange(other.child_, -1)), ours_(std::move(other.ours_)) {}
  OtherEnd& operator=(OtherEnd&&) = delete;
  ~OtherEnd() {
    ours_.Reset();
    if (child_ > 0) waitpid(child_, nullptr, 0);
  }

 private:
  OtherEnd(pid_t child, UniqueFd ours) : child_(child), ours_(std::move(ours)) {}
  pid_t child_;
  UniqueFd ours_;
};

gpushm_transfer_result MoveOurs(const Setup& setup, const Case& c) {
  gpushm_transfer_options options;
  gpushm_transfer_result result;
  GPUSHM_INIT(&options);
  GPUSHM_INIT(&result);
  options.chunk_bytes = c.chunk_bytes;
  options.chunks = c.chunks;
  options.threads = c.threads;
  const bool pipe = c.file_way == GPUSHM_FILE_STREAM;
  options.file_method = pipe ? static_cast<uint32_t>(GPUSHM_FILE_AUTO) : c.file_way;
  std::optional<OtherEnd> other;
  if (pipe) {
    OtherEnd started = OtherEnd::Start(c.load, SizeHere());
    other.emplace(std::move(started));
    options.descriptor = other->descriptor();
  }
  const std::string path = c.load ? setup.file : setup.file + ".saved";
  const auto call = c.load ? gpushm_load : gpushm_save;
  const gpushm_status status =
      call(setup.connection.get(), kBuffer, pipe ? nullptr : path.c_str(), &options, &result);
  Check(status, c.load ? "load" : "save");
  if (result.bytes != SizeHere()) throw Failure(Code::kInternal, "not all bytes were moved");
  return result;
}

void Run(benchmark::State& state, const Case& c) {
  const Setup* setup = TheSetup();
  const Link link = Link::Create(c, SizeHere());
  Samples moving;
  Samples whole;
  Samples raw;
  uint64_t link_bytes_per_second = 0;
  for (auto _ : state) {
    int64_t total_ns = 0;
    for (int turn = 0; turn < 2 * kTurns; ++turn) {
      // One after the other; which one is first alternates.
      if ((turn + turn / 2) % 2 == 0) {
        const int64_t took = link.Move(c.load);
        raw.Add(took);
        continue;
      }
      const gpushm_transfer_result result = MoveOurs(*setup, c);
      moving.Add(result.moving_ns);
      whole.Add(result.elapsed_ns);
      total_ns += result.moving_ns;
      link_bytes_per_second = result.link_bytes_per_second;
    }
    state.SetIterationTime(static_cast<double>(total_ns) / 1e9);
  }
  Show(state, Ours{moving}, Baseline{raw});
  state.counters["budget_ratio"] = kBudgetRatio;
  state.counters["whole_p50_ns"] = whole.Percentile(0.5);
  const double mib = static_cast<double>(SizeHere()) / static_cast<double>(kMiB);
  state.counters["MiB_per_s"] = mib / (moving.Percentile(0.5) / 1e9);
  state.counters["link_MiB_per_s"] =
      static_cast<double>(link_bytes_per_second) / static_cast<double>(kMiB);
}

void Register() {
  const auto add = [](const std::string& name, const Case& c) {
    Row(name, 1, [c](benchmark::State& state) { return Run(state, c); });
  };
  // The default, followed by the other options.
  add("Load/PageCache", {});
  add("Load/PageCache/alone", {.threads = GPUSHM_NO_THREADS});
  for (const uint32_t threads : {1U, 3U, 7U, 8U, 11U, 15U}) {
    if (threads > 1 && threads >= std::thread::hardware_concurrency()) continue;
    add(Concat("Load/PageCache/threads ", threads), {.threads = threads});
  }
  add("Load/PageCache/6 chunks", {.chunks = 6});
  for (const uint64_t chunk : {4 * kMiB, 8 * kMiB, 32 * kMiB, 64 * kMiB, 128 * kMiB}) {
    add(Concat("Load/PageCache/chunks of ", SizeName(chunk)), {.chunk_bytes = chunk});
  }
  add("Load/Direct", {.file_way = GPUSHM_FILE_DIRECT});
  add("Load/Direct/alone", {.file_way = GPUSHM_FILE_DIRECT, .threads = GPUSHM_NO_THREADS});
  add("Load/Pipe", {.file_way = GPUSHM_FILE_STREAM});
  add("Save/PageCache", {.load = false});
  add("Save/Direct", {.load = false, .file_way = GPUSHM_FILE_DIRECT});
  add("Save/Pipe", {.load = false, .file_way = GPUSHM_FILE_STREAM});
}

}  // namespace
}  // namespace gpushm::bench

int main(int argc, char** argv) {
  return gpushm::bench::Main(argc, argv, {}, gpushm::bench::Register);
}
