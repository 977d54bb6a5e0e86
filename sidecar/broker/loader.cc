#include "sidecar/broker/loader.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "runtime/client/crew.h"
#include "runtime/client/gds_file.h"
#include "runtime/client/transfer_engine.h"
#include "runtime/driver/cuda_api.h"
#include "runtime/driver/device.h"

namespace gpushm::broker {
namespace {

constexpr int kMemory = 3;
constexpr int kFile = 4;
constexpr int kReport = 5;

struct Arguments {
  std::string direction;
  int device = 0;
  uint64_t size_bytes = 0;
  uint64_t mapped_bytes = 0;
  uint64_t chunk_bytes = 0;
  std::string plan = "given";
  uint32_t file_way = 0;
  std::string driver_folder;
};

void Report(std::string line) {
  for (char& c : line) {
    if (c == '\n') c = ' ';
  }
  line += '\n';
  // Waits while the pipe is full; its reader is gone when the broker is.
  [[maybe_unused]] const ssize_t written = write(kReport, line.data(), line.size());
}

// A client chose the way when it opened the file, and said what the descriptor does not; the broker
// leaves it to us.
Result<FilePlan> ChooseWay(const Arguments& arguments, bool load) {
  const auto asked = static_cast<FileWay>(arguments.file_way);
  FilePlan given{.way = WayOf(kFile)};
  if (arguments.plan == "own" && given.way != FileWay::kStream && load) {
    return PlanRead(kFile, arguments.size_bytes, asked);
  }
  given.try_gds = asked == FileWay::kAutoGds && given.way == FileWay::kDirect;
  if (asked != FileWay::kGds) return given;
  if (given.way != FileWay::kDirect) {
    return Fail(Code::kInvalidArgument, "GPUDirect Storage needs a descriptor with O_DIRECT");
  }
  given.way = FileWay::kGds;
  return given;
}

Result<std::string> Move(const Arguments& arguments) {
  const bool load = arguments.direction == "load";
  const Result<const CudaApi*> api = CudaApi::Load(arguments.driver_folder);
  if (!api) return std::unexpected(api.error());
  if (auto ready = (*api)->Init(); !ready) return std::unexpected(ready.error());
  const Result<PrimaryContext> context = PrimaryContext::Retain(**api, arguments.device);
  if (!context) return std::unexpected(context.error());
  if (auto current = context->MakeCurrent(); !current) return std::unexpected(current.error());
  const Result<DeviceMemory> memory = DeviceMemory::Import(**api, kMemory);
  if (!memory) return std::unexpected(memory.error());
  const Result<DeviceMapping> mapping =
      DeviceMapping::Map(**api, *memory, arguments.mapped_bytes, arguments.device,
                         load ? Access::kReadWrite : Access::kRead);
  if (!mapping) return std::unexpected(mapping.error());
  uint64_t said_bytes = 0;
  const auto progress = [&](uint64_t done_bytes) {
    if (done_bytes != said_bytes) Report(std::to_string(done_bytes));
    said_bytes = done_bytes;
    return true;
  };
  const Result<FilePlan> plan = ChooseWay(arguments, load);
  if (!plan) return std::unexpected(plan.error());
  TransferJob job{.file = kFile,
                  .way = plan->way,
                  .address = mapping->address(),
                  .size_bytes = arguments.size_bytes,
                  .chunk_bytes = arguments.chunk_bytes,
                  .threads = UsefulHelpers(),
                  .progress = progress};
  if (auto done = OpenGds(job, plan->try_gds); !done) return std::unexpected(done.error());
  const Result<TransferReport> moved =
      load ? CopyFileToDevice(**api, job) : CopyDeviceToFile(**api, job);
  if (!moved) return std::unexpected(moved.error());
  if (load && job.way != FileWay::kStream && moved->bytes != arguments.size_bytes) {
    return Fail(Code::kSystem, Concat("the file ended after ", moved->bytes, " of ",
                                      arguments.size_bytes, " bytes"));
  }
  return Concat("ok ", moved->bytes, " ", static_cast<uint32_t>(job.way), " ", moved->moving_ns,
                " ", moved->link_bytes_per_second);
}

}  // namespace

int LoaderMain(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // Nobody waits for it once the broker is gone.
  signal(SIGPIPE, SIG_IGN);
  Arguments arguments;
  CLI::App app("The broker's loader; started by it alone.");
  app.add_option("--direction", arguments.direction)->required();
  app.add_option("--device", arguments.device)->required();
  app.add_option("--size", arguments.size_bytes)->required();
  app.add_option("--mapped", arguments.mapped_bytes)->required();
  app.add_option("--chunk", arguments.chunk_bytes)->required();
  app.add_option("--plan", arguments.plan);
  app.add_option("--file-way", arguments.file_way);
  app.add_option("--driver", arguments.driver_folder);
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

}  // namespace gpushm::broker
