#include "runtime/client/driver.h"

#include <algorithm>

namespace gpushm::client {

Result<const CudaApi*> Driver::Api() {
  const std::lock_guard lock(mutex_);
  if (api_ == nullptr) {
    const Result<const CudaApi*> loaded = CudaApi::Load(folder_);
    if (!loaded) return loaded;
    api_ = *loaded;
  }
  return api_;
}

Result<std::vector<DeviceInfo>> Driver::Devices() {
  const Result<const CudaApi*> api = Api();
  if (!api) return std::unexpected(api.error());
  const std::lock_guard lock(mutex_);
  if (devices_.empty()) {
    Result<std::vector<DeviceInfo>> listed = ListDevices(**api);
    if (!listed) return listed;
    devices_ = std::move(*listed);
  }
  return devices_;
}

Result<DeviceInfo> Driver::Find(const GpuUuid& uuid) {
  const Result<std::vector<DeviceInfo>> devices = Devices();
  if (!devices) return std::unexpected(devices.error());
  const auto found = std::ranges::find(*devices, uuid, &DeviceInfo::uuid);
  if (found != devices->end()) return *found;
  std::string visible;
  for (const DeviceInfo& device : *devices) {
    visible += visible.empty() ? "" : ", ";
    visible += device.uuid.ToString();
  }
  return Fail(
      Code::kNotFound,
      Concat("the buffer's GPU ", uuid.ToString(),
             " is not visible to this process. Visible GPUs: ", visible.empty() ? "none" : visible),
      "add gpushm.io/attach for this container, so that it gets its sidecar's GPU, "
      "and do not hide that GPU with CUDA_VISIBLE_DEVICES");
}

uint64_t Driver::LinkOf(const GpuUuid& gpu, Direction direction) const {
  const std::lock_guard lock(mutex_);
  for (const Link& link : links_) {
    if (link.gpu == gpu && link.direction == direction) return link.bytes_per_second;
  }
  return 0;
}

void Driver::KeepLink(const GpuUuid& gpu, Direction direction, uint64_t bytes_per_second) {
  if (bytes_per_second == 0 || LinkOf(gpu, direction) != 0) return;
  const std::lock_guard lock(mutex_);
  links_.push_back({gpu, direction, bytes_per_second});
}

}  // namespace gpushm::client
