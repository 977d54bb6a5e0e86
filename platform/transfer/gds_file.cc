#include "platform/transfer/gds_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <mutex>
#include <utility>

#include "platform/transfer/file_way.h"

namespace gpushm {
namespace {

// Bytes that Open registers to find out whether registration works.
constexpr uint64_t kTriedBytes = uint64_t{2} << 20;

constexpr char kDriverRemedy[] =
    "load nvidia-fs on the node; a container also needs its device nodes /dev/nvidia-fs*";

std::unexpected<Status> Refuse(const std::string& why, std::string remedy) {
  return Fail(Code::kUnsupported, Concat("GPUDirect Storage: ", why), std::move(remedy));
}

std::string Describe(const char* call, cufile::Error error) {
  return Concat(call, ": cuFile error ", error.error,
                error.cuda != CUDA_SUCCESS ? Concat(", CUDA's ", static_cast<int>(error.cuda))
                                           : std::string());
}

// errno if a call returned -1, otherwise cuFile's own number.
std::unexpected<Status> FailTransfer(const char* call, ssize_t answer, int error) {
  if (answer == -1) return FailSystem(error, call);
  return Fail(Code::kDriver, Concat(call, ": cuFile error ", -answer),
              "cufile.log, or the file that CUFILE_LOGFILE_PATH names, has the reason");
}

// Memory that the disk may access during one call. It is not the whole buffer, because BAR1 may be
// smaller.
class Window {
 public:
  static Result<Window> Register(const cufile::Api& api, CUdeviceptr address, uint64_t size_bytes) {
    void* const memory = reinterpret_cast<void*>(static_cast<uintptr_t>(address));
    const cufile::Error made = api.BufRegister(memory, size_bytes, 0);
    if (made.error != 0) {
      return Refuse(
          Concat("the buffer cannot be registered: ", Describe("cuFileBufRegister", made)),
          "offered memory must be made with gpuDirectRDMACapable, "
          "which gpushm sets for its own memory if the GPU supports it. "
          "BAR1 and max_device_pinned_mem_size are limits, too");
    }
    return Window(api, memory);
  }
  void* memory() const { return memory_; }

  Window(Window&& other) noexcept : api_(other.api_), memory_(std::exchange(other.memory_, {})) {}
  Window& operator=(Window&&) = delete;
  ~Window() {
    if (memory_ != nullptr) api_->BufDeregister(memory_);
  }

 private:
  Window(const cufile::Api& api, void* memory) : api_(&api), memory_(memory) {}
  const cufile::Api* api_;
  void* memory_;
};

// Whether cuFile, which is now open, keeps the data out of host memory.
Result<void> CheckDriver(const cufile::Api& api) {
  cufile::Properties properties{};
  if (const cufile::Error got = api.DriverGetProperties(&properties); got.error != 0) {
    return Refuse(Describe("cuFileDriverGetProperties", got), kDriverRemedy);
  }
  if (properties.major_version == 0 || properties.status_flags == 0) {
    return Refuse("nvidia-fs does not answer, or supports no file system here", kDriverRemedy);
  }
  bool forced = false;
  if (api.GetParameterBool != nullptr) {
    (void)api.GetParameterBool(cufile::kParameterForceCompatMode, &forced);
  }
  constexpr unsigned kThroughHost =
      cufile::kAllowCompatMode | cufile::kPosixMode | cufile::kFallbackMode;
  if (!forced && (properties.control_flags & kThroughHost) == 0) return {};
  return Refuse("cuFile may copy through the host: its compatibility mode is on",
                "set allow_compat_mode and force_compat_mode to false in the cufile.json "
                "that CUFILE_ENV_PATH_JSON names, or install a newer libcufile");
}

// cuFile is open or closed for the whole process, and its documentation does not say whether it
// counts.
class Sessions {
 public:
  static Result<void> Enter(const cufile::Api& api) {
    const std::lock_guard lock(mutex_);
    if (users_ == 0) {
      if (auto opened = Open(api); !opened) return opened;
    }
    ++users_;
    return {};
  }
  static void Leave(const cufile::Api& api) {
    const std::lock_guard lock(mutex_);
    if (--users_ == 0 && own_) api.DriverClose();
  }

 private:
  static Result<void> Open(const cufile::Api& api) {
    if (!api.may_copy && access(api.DriverPath(), F_OK) != 0) {
      return Refuse(Concat("the nvidia-fs driver is not loaded: missing path ", api.DriverPath()),
                    kDriverRemedy);
    }
    // This fails if the application has opened cuFile; then its choice is checked below.
    if (api.SetParameterBool != nullptr) {
      (void)api.SetParameterBool(cufile::kParameterAllowCompatMode, api.may_copy);
    }
    const cufile::Error opened = api.DriverOpen();
    own_ = opened.error == 0;
    if (!own_ && opened.error != cufile::kAlreadyOpen) {
      return Refuse(Describe("cuFileDriverOpen", opened), kDriverRemedy);
    }
    auto fits = api.may_copy ? Result<void>() : CheckDriver(api);
    if (!fits && own_) api.DriverClose();
    return fits;
  }

  static inline std::mutex mutex_;
  static inline int users_ = 0;
  static inline bool own_ = false;
};

}  // namespace

Result<GdsFile> GdsFile::Open(int file, CUdeviceptr address, uint64_t size_bytes) {
  if (size_bytes < kDirectAlignBytes || address % kDirectAlignBytes != 0) {
    return Refuse(Concat("the bytes do not fill a block of ", kDirectAlignBytes,
                         ", or are not aligned to one"),
                  "let gpushm choose the method");
  }
  const Result<const cufile::Api*> api = cufile::Api::Load();
  if (!api) return std::unexpected(api.error());
  if (auto open = Sessions::Enter(**api); !open) return std::unexpected(open.error());
  GdsFile opened(**api);
  cufile::Descriptor descriptor{};
  descriptor.type = cufile::kTypeDescriptor;
  descriptor.handle.fd = file;
  cufile::Handle handle = nullptr;
  if (const cufile::Error made = (*api)->HandleRegister(&handle, &descriptor); made.error != 0) {
    return Refuse(Concat("cuFile refuses the file: ", Describe("cuFileHandleRegister", made)),
                  "use a file system that supports GPUDirect Storage, such as ext4 or XFS on NVMe "
                  "(gdscheck -p lists them); cuFile learns from udev which one it is, so a "
                  "container needs the node's /run/udev");
  }
  opened.handle_ = handle;
  const uint64_t tried = std::min(kTriedBytes, size_bytes / kDirectAlignBytes * kDirectAlignBytes);
  const Result<Window> window = Window::Register(**api, address, tried);
  if (!window) return std::unexpected(window.error());
  return opened;
}

GdsFile::~GdsFile() {
  if (api_ == nullptr) return;
  if (handle_ != nullptr) api_->HandleDeregister(handle_);
  Sessions::Leave(*api_);
}

Result<uint64_t> GdsFile::Read(CUdeviceptr to, uint64_t size_bytes, uint64_t offset) const {
  const Result<Window> window = Window::Register(*api_, to, size_bytes);
  if (!window) return std::unexpected(window.error());
  uint64_t done = 0;
  while (done < size_bytes) {
    const ssize_t got = api_->Read(handle_, window->memory(), size_bytes - done,
                                   static_cast<off_t>(offset + done), static_cast<off_t>(done));
    const int error = errno;
    if (got == -1 && error == EINTR) continue;
    if (got < 0) return FailTransfer("cuFileRead", got, error);
    if (got == 0) break;
    done += static_cast<uint64_t>(got);
  }
  return done;
}

Result<void> GdsFile::Write(CUdeviceptr from, uint64_t size_bytes, uint64_t offset) const {
  const Result<Window> window = Window::Register(*api_, from, size_bytes);
  if (!window) return std::unexpected(window.error());
  uint64_t done = 0;
  while (done < size_bytes) {
    const ssize_t put = api_->Write(handle_, window->memory(), size_bytes - done,
                                    static_cast<off_t>(offset + done), static_cast<off_t>(done));
    const int error = errno;
    if (put == -1 && error == EINTR) continue;
    if (put == 0) return FailSystem(EIO, "cuFileWrite wrote nothing");
    if (put < 0) return FailTransfer("cuFileWrite", put, error);
    done += static_cast<uint64_t>(put);
  }
  return {};
}

Result<void> OpenGds(TransferJob& job, bool try_gds) {
  if (job.way != FileWay::kGds && !try_gds) return {};
  Result<GdsFile> opened = GdsFile::Open(job.file, job.address, job.size_bytes);
  if (!opened && job.way == FileWay::kGds) return std::unexpected(opened.error());
  if (!opened) return {};
  job.way = FileWay::kGds;
  job.gds = std::make_shared<GdsFile>(std::move(*opened));
  return {};
}

}  // namespace gpushm
