#include "sidecar/broker/loader.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "contract/limits.h"
#include "contract/tensors/model.h"
#include "contract/tensors/table.h"
#include "platform/base/clock.h"
#include "platform/base/sealed_memory.h"
#include "platform/base/unique_fd.h"
#include "platform/driver/cuda_api.h"
#include "platform/driver/device.h"
#include "platform/transfer/crew.h"
#include "platform/transfer/gds_file.h"
#include "platform/transfer/transfer_engine.h"
#include "sidecar/broker/gpu.h"
#include "sidecar/broker/spawner.h"
#include "sidecar/broker/volume_file.h"

namespace gpushm::broker {
namespace {

// How long a loader waits for a file that does not exist (yet), and the pause between two attempts.
// After that it makes room for a loader that waits for a different file.
constexpr int64_t kAwaitFileMs = 2'000;
constexpr int kLookMs = 100;

struct LoaderWords {
  std::string direction;
  ChildGpu gpu;
  uint64_t chunk_bytes = 0;
  uint32_t file_way = 0;
  std::string driver_folder;
  // For a loader that opens its file itself; see OpenFileOf.
  std::string folder;
  std::string path;
  // A client's load comes with a description.
  bool described = false;

  bool own_file() const { return !path.empty(); }
};

// The work to do.
struct Job {
  UniqueFd memory;
  UniqueFd file;
  // A model of the loader's own, instead of the file; and empty memory for its description.
  std::optional<tensors::Model> model;
  UniqueFd description;
  uint64_t size_bytes = 0;
  uint64_t mapped_bytes = 0;
};

void Report(std::string line) {
  for (char& c : line) {
    if (c == '\n') c = ' ';
  }
  line += '\n';
  // Blocks while the channel is full. Its reader is gone if the broker is.
  [[maybe_unused]] const ssize_t written = write(kChannel, line.data(), line.size());
}

// A client chose the file way when it opened the file, and also sent what the descriptor does not
// show. The broker leaves the choice to the loader.
Result<FilePlan> ChooseWay(const LoaderWords& arguments, const Job& job) {
  const auto asked = static_cast<FileWay>(arguments.file_way);
  FilePlan given{.way = WayOf(job.file.get())};
  if (arguments.own_file() && given.way != FileWay::kStream) {
    return PlanRead(job.file.get(), job.size_bytes, asked);
  }
  given.try_gds = asked == FileWay::kAutoGds && given.way == FileWay::kDirect;
  if (asked != FileWay::kGds) return given;
  if (given.way != FileWay::kDirect) {
    return Fail(Code::kInvalidArgument,
                "GPUDirect Storage needs a descriptor that was opened with O_DIRECT");
  }
  given.way = FileWay::kGds;
  return given;
}

// A pod's volume may be slow, or hang. Only this process waits for it.
template <typename Open>
auto Await(Open open) -> decltype(open()) {
  const Deadline deadline = Deadline::AfterMs(kAwaitFileMs);
  for (bool first = true;; first = false) {
    auto opened = open();
    if (opened || deadline.Passed()) return opened;
    const Code code = opened.error().code();
    if (code != Code::kNotFound && code != Code::kContended) return opened;
    if (first) Report("waiting");
    poll(nullptr, 0, kLookMs);
  }
}

Result<Job> OpenOwnModel(const LoaderWords& arguments) {
  auto model = Await([&] {
    return tensors::OpenModel(arguments.path, [&](const std::string& path) {
      const bool is_folder = path.size() > 1 && path.ends_with('/');
      return OpenFileOf(arguments.folder, is_folder ? path.substr(0, path.size() - 1) : path);
    });
  });
  if (!model) return std::unexpected(model.error());
  Report(Concat("opened ", model->buffer_bytes, " 0 ", model->table.size()));
  Job job;
  job.model = std::move(*model);
  return job;
}

// Opens its own file, reports the size, and waits for its turn.
Result<Job> OpenOwn(const LoaderWords& arguments) {
  if (tensors::IsModelName(arguments.path)) return OpenOwnModel(arguments);
  Result<UniqueFd> file = Await([&] { return OpenFileOf(arguments.folder, arguments.path); });
  if (!file) return std::unexpected(file.error());
  struct stat info{};
  if (fstat(file->get(), &info) != 0) return FailSystem(errno, Concat("stat ", arguments.path));
  if (!S_ISREG(info.st_mode) && !S_ISFIFO(info.st_mode)) {
    return Fail(Code::kInvalidArgument,
                Concat(arguments.path, " is neither a file nor a pipe, so it cannot be loaded"),
                "write it to a file first");
  }
  Report(Concat("opened ", info.st_size, S_ISFIFO(info.st_mode) ? " 1" : " 0"));
  Job job;
  job.file = std::move(*file);
  return job;
}

Result<Job> TakeJob(const LoaderWords& arguments) {
  Job job;
  if (arguments.own_file()) {
    Result<Job> own = OpenOwn(arguments);
    if (!own) return own;
    job = std::move(*own);
  }
  const bool has_file = !arguments.own_file();
  const bool has_description = job.model || arguments.described;
  Result<Order> order = ReceiveOrder(size_t{1} + has_file + has_description);
  if (!order) return std::unexpected(order.error());
  job.memory = std::move(order->descriptors[0]);
  if (has_file) job.file = std::move(order->descriptors[1]);
  if (has_description) job.description = std::move(order->descriptors.back());
  const auto [size_bytes, mapped_bytes] = Numbers<2>(order->line);
  job.size_bytes = size_bytes;
  job.mapped_bytes = mapped_bytes;
  return job;
}

// A client that is killed ends its stream early. Then its tensors are not all there.
Result<void> CheckTable(const UniqueFd& description, uint64_t content_bytes) {
  const Result<Mapping> mapping =
      MapSealed(description, "description", 1, limits::kDescriptionBytes, Writers::kNobody);
  if (!mapping) return std::unexpected(mapping.error());
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(mapping->address()),
                                         mapping->bytes());
  if (!tensors::TensorTable::IsTable(bytes)) return {};
  const auto table = tensors::TensorTable::Open(bytes, content_bytes);
  if (table) return {};
  return Fail(Code::kInvalidArgument,
              Concat("the description does not fit the ", content_bytes,
                     " bytes that were loaded: ", table.error().what()),
              "load it again");
}

Result<std::string> MoveModel(const LoaderWords& arguments, const CudaApi& api, const Job& job,
                              CUdeviceptr address) {
  const tensors::Model& model = *job.model;
  uint64_t before_bytes = 0;  // Of the files that are done.
  int64_t moving_ns = 0;
  FileWay way = FileWay::kCached;
  const auto progress = [&](uint64_t done_bytes) {
    Report(std::to_string(std::min(before_bytes + done_bytes, model.buffer_bytes)));
    return true;
  };
  for (const tensors::ModelFile& file : model.files) {
    if (file.segments.empty()) continue;
    const Result<FilePlan> plan = PlanRead(file.fd.get(), file.size_bytes, FileWay::kAuto);
    if (!plan) return std::unexpected(plan.error());
    std::vector<TransferSegment> segments;
    for (const tensors::Segment& segment : file.segments) {
      segments.push_back({segment.file_offset, segment.buffer_offset, segment.bytes});
    }
    way = plan->way;
    const Result<TransferReport> moved =
        CopyFileToDevice(api, {.file = file.fd.get(),
                               .way = way,
                               .address = address,
                               .size_bytes = file.size_bytes,
                               .segments = segments,
                               .chunk_bytes = arguments.chunk_bytes,
                               .threads = UsefulHelpers(),
                               .progress = progress});
    if (!moved) return std::unexpected(moved.error().WithContext(file.path));
    if (moved->bytes != file.size_bytes) {
      return Fail(Code::kSystem, Concat(file.path, " ended after ", moved->bytes, " of ",
                                        file.size_bytes, " bytes"));
    }
    before_bytes += moved->bytes;
    moving_ns += moved->moving_ns;
  }
  if (auto done = FillAndSeal(job.description, "description", model.table); !done) {
    return std::unexpected(done.error());
  }
  return Concat("ok ", model.buffer_bytes, " ", static_cast<uint32_t>(way), " ", moving_ns, " 0");
}

Result<std::string> Move(const LoaderWords& arguments) {
  const Result<Job> job = TakeJob(arguments);
  if (!job) return std::unexpected(job.error());
  const bool load = arguments.direction == "load";
  const int device = UseGpu(arguments.gpu);
  const Result<const CudaApi*> api = CudaApi::Load(arguments.driver_folder);
  if (!api) return std::unexpected(api.error());
  if (auto ready = (*api)->Init(); !ready) return std::unexpected(ready.error());
  const Result<PrimaryContext> context = PrimaryContext::Retain(**api, device);
  if (!context) return std::unexpected(context.error());
  if (auto current = context->MakeCurrent(); !current) return std::unexpected(current.error());
  const Result<DeviceMemory> memory = DeviceMemory::Import(**api, job->memory.get());
  if (!memory) return std::unexpected(memory.error());
  const Result<DeviceMapping> mapping = DeviceMapping::Map(
      **api, *memory, job->mapped_bytes, device, load ? Access::kReadWrite : Access::kRead);
  if (!mapping) return std::unexpected(mapping.error());
  if (job->model) return MoveModel(arguments, **api, *job, mapping->address());
  uint64_t said_bytes = 0;
  const auto progress = [&](uint64_t done_bytes) {
    if (done_bytes != said_bytes) Report(std::to_string(done_bytes));
    said_bytes = done_bytes;
    return true;
  };
  const Result<FilePlan> plan = ChooseWay(arguments, *job);
  if (!plan) return std::unexpected(plan.error());
  gpushm::TransferJob transfer{.file = job->file.get(),
                               .way = plan->way,
                               .address = mapping->address(),
                               .size_bytes = job->size_bytes,
                               .chunk_bytes = arguments.chunk_bytes,
                               .threads = UsefulHelpers(),
                               .progress = progress};
  if (auto done = OpenGds(transfer, plan->try_gds); !done) return std::unexpected(done.error());
  const Result<TransferReport> moved =
      load ? CopyFileToDevice(**api, transfer) : CopyDeviceToFile(**api, transfer);
  if (!moved) return std::unexpected(moved.error());
  if (load && transfer.way != FileWay::kStream && moved->bytes != job->size_bytes) {
    return Fail(Code::kSystem,
                Concat("the file ended after ", moved->bytes, " of ", job->size_bytes, " bytes"));
  }
  if (arguments.described) {
    if (auto valid = CheckTable(job->description, moved->bytes); !valid) {
      return std::unexpected(valid.error());
    }
  }
  return Concat("ok ", moved->bytes, " ", static_cast<uint32_t>(transfer.way), " ",
                moved->moving_ns, " ", moved->link_bytes_per_second);
}

}  // namespace

int LoaderMain(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // Nobody waits for it once the broker is gone.
  signal(SIGPIPE, SIG_IGN);
  LoaderWords arguments;
  CLI::App app("The broker's loader. Only the broker starts it.");
  app.add_option("--direction", arguments.direction)->required();
  app.add_option("--device", arguments.gpu.device);
  app.add_option("--visible", arguments.gpu.visible);
  app.add_option("--chunk", arguments.chunk_bytes)->required();
  app.add_option("--file-way", arguments.file_way);
  app.add_option("--driver", arguments.driver_folder);
  app.add_option("--folder", arguments.folder);
  app.add_option("--path", arguments.path);
  app.add_flag("--described", arguments.described);
  CLI11_PARSE(app, argc, argv);
  const Result<std::string> moved = Move(arguments);
  if (!moved) {
    const Status& why = moved.error();
    Report(Concat("error ", static_cast<int>(why.code()), " ", why.what(),
                  why.remedy().empty() ? "" : ". Remedy: ", why.remedy()));
    return 1;
  }
  Report(*moved);
  return 0;
}

std::vector<std::string> LoaderArguments(protocol::Direction direction,
                                         const std::vector<std::string>& gpu,
                                         const std::string& driver_folder, uint64_t chunk_bytes,
                                         FileWay file_way) {
  std::vector<std::string> arguments = {"loader",
                                        "--direction",
                                        direction == protocol::Direction::kLoad ? "load" : "save",
                                        "--chunk",
                                        std::to_string(chunk_bytes),
                                        "--file-way",
                                        std::to_string(static_cast<uint32_t>(file_way)),
                                        "--driver",
                                        driver_folder};
  arguments.insert(arguments.end(), gpu.begin(), gpu.end());
  return arguments;
}

Status ErrorOfLoader(const std::string& line) {
  const uint64_t code = Numbers<1>(line.substr(6))[0];
  const bool known = code > 0 && code <= kMaxCode && static_cast<Code>(code) != Code::kCorrupt;
  const size_t text = line.find(' ', 6);
  return Status(known ? static_cast<Code>(code) : Code::kDriver,
                text == std::string::npos ? "no reason given" : line.substr(text + 1));
}

}  // namespace gpushm::broker
