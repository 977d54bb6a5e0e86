#include "runtime/client/files/steps.h"

#include "runtime/client/client.h"
#include "runtime/client/files/borrowed_context.h"

namespace gpushm::client {

Result<void> CallProgress(const TransferOptions& options, const Wait& wait, uint64_t done_bytes,
                          uint64_t total_bytes) {
  if (options.progress && !options.progress(done_bytes, total_bytes)) {
    return Fail(Code::kBusy, Concat("stopped by the caller after ", done_bytes, " bytes"));
  }
  if ((total_bytes == 0 || done_bytes < total_bytes) && wait.answer.Passed()) {
    return Fail(
        Code::kTimeout,
        total_bytes == 0
            ? Concat("the deadline passed after ", done_bytes, " bytes of the stream")
            : Concat("the deadline passed after ", done_bytes, " of ", total_bytes, " bytes"),
        "use a longer timeout");
  }
  return {};
}

Result<void> CheckMovable(Attachment* attachment) {
  if (attachment->device_mapping() == nullptr || attachment->facts().peer_way == PeerWay::kStaged) {
    return Fail(Code::kUnsupported,
                "only an attachment with transport vmm that is not a staged copy can be loaded "
                "and saved",
                "load and save by name");
  }
  return {};
}

TransferJob JobFor(const OpenFile& file, const TransferOptions& options) {
  TransferJob job = options.job;
  job.file = file.fd;
  job.way = file.plan.way;
  job.try_pages = file.plan.try_pages;
  return job;
}

Result<TransferOutcome> WithContext(Client* client, const GpuUuid& gpu,
                                    const std::function<Result<TransferOutcome>()>& transfer) {
  const Result<DeviceInfo> device = client->driver().Find(gpu);
  if (!device && device.error().code() == Code::kNotFound) {
    return Fail(Code::kUnsupported, device.error().what(),
                "load and save in a container that attaches: private.gpushm.io/<container>: 1Gi "
                "gives it the GPU");
  }
  if (!device) return std::unexpected(device.error());
  const Result<const CudaApi*> api = client->driver().Api();
  if (!api) return std::unexpected(api.error());
  const Result<BorrowedContext> context = BorrowedContext::Push(**api, device->device);
  if (!context) return std::unexpected(context.error());
  return transfer();
}

}  // namespace gpushm::client
