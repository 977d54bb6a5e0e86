#include "sidecar/broker/loader.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

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

Result<void> Move(const Arguments& arguments) {
  const bool load = arguments.direction == "load";
  const Result<const CudaApi*> api = CudaApi::Load(arguments.driver_folder);
  if (!api) return std::unexpected(api.error());
  if (auto ready = (*api)->Init(); !ready) return ready;
  const Result<PrimaryContext> context = PrimaryContext::Retain(**api, arguments.device);
  if (!context) return std::unexpected(context.error());
  if (auto current = context->MakeCurrent(); !current) return current;
  const Result<DeviceMemory> memory = DeviceMemory::Import(**api, kMemory);
  if (!memory) return std::unexpected(memory.error());
  const Result<DeviceMapping> mapping =
      DeviceMapping::Map(**api, *memory, arguments.mapped_bytes, arguments.device,
                         load ? Access::kReadWrite : Access::kRead);
  if (!mapping) return std::unexpected(mapping.error());
  const auto progress = [](uint64_t done_bytes) {
    Report(std::to_string(done_bytes));
    return true;
  };
  const Result<uint64_t> moved =
      load ? CopyFileToDevice(**api, kFile, mapping->address(), arguments.size_bytes,
                              arguments.chunk_bytes, progress)
           : CopyDeviceToFile(**api, mapping->address(), arguments.size_bytes, kFile,
                              arguments.chunk_bytes, progress);
  if (!moved) return std::unexpected(moved.error());
  return {};
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
  app.add_option("--driver", arguments.driver_folder);
  CLI11_PARSE(app, argc, argv);
  if (auto moved = Move(arguments); !moved) {
    Report("error " + moved.error().ToString());
    return 1;
  }
  Report("ok");
  return 0;
}

}  // namespace gpushm::broker
