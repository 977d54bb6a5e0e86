#include "runtime/ctl/connection.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "contract/tensors/model.h"
#include "runtime/client/c_api/support.h"
#include "runtime/client/content.h"

namespace gpushm::ctl {
namespace {

// Both lists only grow during the loop. If buffers appear faster than this lists them, the list is
// cut.
constexpr int kGrowAttempts = 8;

Status LastError(gpushm_status status) {
  const gpushm_error* error = gpushm_last_error();
  return Status(static_cast<Code>(status), error->what, error->remedy);
}

Result<void> CheckStatus(gpushm_status status) {
  if (status == GPUSHM_OK) return {};
  return std::unexpected(LastError(status));
}

template <typename Info, typename Fill>
Result<std::vector<Info>> FillAll(Fill fill) {
  std::vector<Info> entries(64);
  for (int attempt = 0;; ++attempt) {
    size_t count = 0;
    GPUSHM_INIT(entries.data());
    if (auto done = CheckStatus(fill(entries.data(), entries.size(), &count)); !done) {
      return std::unexpected(done.error());
    }
    if (count <= entries.size() || attempt == kGrowAttempts) {
      entries.resize(std::min(count, entries.size()));
      return entries;
    }
    entries.resize(count + count / 4);
  }
}

int CallProgress(void* user, uint64_t done_bytes, uint64_t total_bytes) {
  const auto& settings = *static_cast<const TransferSettings*>(user);
  return settings.progress(done_bytes, total_bytes) ? 0 : 1;
}

// `call` gets the path, or null for standard input and output, the options and the result.
template <typename Call>
Result<gpushm_transfer_result> Transfer(int standard, const std::string& path,
                                        const TransferSettings& settings, Call call) {
  gpushm_transfer_options options;
  GPUSHM_INIT(&options);
  options.chunk_bytes = settings.chunk_bytes;
  options.file_method = settings.file_method;
  options.chunks = settings.chunks;
  options.threads = settings.threads;
  options.whole = settings.whole ? 1 : 0;
  options.format = settings.format;
  options.bytes = settings.bytes;
  if (!settings.digest.empty()) options.digest = settings.digest.c_str();
  options.descriptor = standard;
  options.timeout_ms = settings.timeout_ms;
  if (settings.progress) {
    options.progress = CallProgress;
    options.user = const_cast<TransferSettings*>(&settings);  // It is only read.
  }
  gpushm_transfer_result result;
  GPUSHM_INIT(&result);
  const char* const file = path == "-" ? nullptr : path.c_str();
  if (auto done = CheckStatus(call(file, &options, &result)); !done) {
    return std::unexpected(done.error());
  }
  return result;
}

}  // namespace

Result<Connection> Connection::Open(const ConnectOptions& options) {
  gpushm_open_options opening;
  GPUSHM_INIT(&opening);
  if (!options.folder.empty()) opening.folder = options.folder.c_str();
  if (!options.pod_uid.empty()) opening.pod_uid = options.pod_uid.c_str();
  opening.timeout_ms = options.timeout_ms;
  gpushm_client* client = nullptr;
  if (auto done = CheckStatus(gpushm_open(&opening, &client)); !done) {
    return std::unexpected(done.error());
  }
  return Connection(client);
}

Result<std::vector<gpushm_info>> Connection::List() {
  return FillAll<gpushm_info>([&](gpushm_info* infos, size_t capacity, size_t* count) {
    return gpushm_list(client_.get(), infos, capacity, count);
  });
}

Result<gpushm_info> Connection::Lookup(const std::string& name) {
  gpushm_info info;
  GPUSHM_INIT(&info);
  if (auto done = CheckStatus(gpushm_lookup(client_.get(), name.c_str(), &info)); !done) {
    return std::unexpected(done.error());
  }
  return info;
}

Result<gpushm_reason> Connection::Reason(const std::string& name) {
  gpushm_reason reason;
  GPUSHM_INIT(&reason);
  if (auto done = CheckStatus(gpushm_lookup_reason(client_.get(), name.c_str(), &reason)); !done) {
    return std::unexpected(done.error());
  }
  return reason;
}

void Connection::StateReason(const std::string& name, const Status& why) {
  if (auto* const client = client::FromHandle(client_.get())) {
    client::StateReason(client, name, why);
  }
}

Result<std::vector<Connection::Tensor>> Connection::Tensors(const std::string& name,
                                                            int64_t timeout_ms) {
  gpushm_description_options options;
  GPUSHM_INIT(&options);
  options.timeout_ms = timeout_ms;
  gpushm_tensors* opened = nullptr;
  if (auto done = CheckStatus(gpushm_tensors_open(client_.get(), name.c_str(), &options, &opened));
      !done) {
    return std::unexpected(done.error());
  }
  const std::unique_ptr<gpushm_tensors, decltype(&gpushm_tensors_close)> close(
      opened, gpushm_tensors_close);
  std::vector<Tensor> tensors(gpushm_tensors_count(opened));
  for (size_t i = 0; i < tensors.size(); ++i) {
    gpushm_tensor tensor;
    GPUSHM_INIT(&tensor);
    if (auto done = CheckStatus(gpushm_tensors_get(opened, i, &tensor)); !done) {
      return std::unexpected(done.error());
    }
    tensors[i] = {.name = tensor.name,
                  .dtype = tensor.dtype,
                  .shape = {tensor.shape, tensor.shape + tensor.rank},
                  .offset = tensor.offset,
                  .size_bytes = tensor.size_bytes};
  }
  return tensors;
}

Result<uint64_t> Connection::Measure(const std::string& path, uint32_t format) {
  struct stat info{};
  if (stat(path.c_str(), &info) != 0) {
    const int error = errno;
    uint64_t ignored = 0;
    // It says which link on the way leads nowhere.
    auto why = CheckStatus(gpushm_tensors_measure(path.c_str(), &ignored, nullptr));
    if (!why && why.error().code() == Code::kNotFound) return std::unexpected(why.error());
    return FailSystem(error, path);
  }
  const bool model = S_ISDIR(info.st_mode) || tensors::IsModelName(path);
  if (format == GPUSHM_FORMAT_TENSORS || (format == GPUSHM_FORMAT_AUTO && model)) {
    uint64_t size_bytes = 0;
    if (auto done = CheckStatus(gpushm_tensors_measure(path.c_str(), &size_bytes, nullptr));
        !done) {
      return std::unexpected(done.error());
    }
    return size_bytes;
  }
  if (!S_ISREG(info.st_mode)) {
    return Fail(Code::kInvalidArgument, Concat(path, " is not a file"), "name a file");
  }
  if (info.st_size > 0) return static_cast<uint64_t>(info.st_size);
  return Fail(Code::kBusy, Concat(path, " is empty"), "wait until it is written");
}

std::vector<gpushm_sync_info> Connection::Look(const std::vector<gpushm_info>& infos) {
  std::vector<gpushm_sync_info> looks;
  for (const gpushm_info& info : infos) {
    if (info.transport != GPUSHM_TRANSPORT_HOST) continue;
    gpushm_sync_info look;
    GPUSHM_INIT(&look);
    if (gpushm_sync_lookup(client_.get(), info.name, &look) == GPUSHM_OK) looks.push_back(look);
  }
  return looks;
}

Result<gpushm_info> Connection::WaitFor(const std::string& name, uint64_t min_generation,
                                        int64_t timeout_ms) {
  gpushm_wait_options options;
  GPUSHM_INIT(&options);
  options.timeout_ms = timeout_ms;
  gpushm_info info;
  GPUSHM_INIT(&info);
  if (auto done =
          CheckStatus(gpushm_wait(client_.get(), name.c_str(), min_generation, &options, &info));
      !done) {
    return std::unexpected(done.error());
  }
  return info;
}

Result<std::vector<gpushm_holder>> Connection::Holders(const std::string& name) {
  const char* const which = name.empty() ? nullptr : name.c_str();
  return FillAll<gpushm_holder>([&](gpushm_holder* holders, size_t capacity, size_t* count) {
    return gpushm_list_holders(client_.get(), which, holders, capacity, count);
  });
}

Result<BrokerFacts> Connection::Broker() {
  BrokerFacts facts;
  GPUSHM_INIT(&facts.info);
  if (auto done = CheckStatus(gpushm_broker_get_info(client_.get(), &facts.info)); !done) {
    return std::unexpected(done.error());
  }
  auto gpus = FillAll<gpushm_gpu_info>([&](gpushm_gpu_info* infos, size_t capacity, size_t* count) {
    return gpushm_list_gpus(client_.get(), infos, capacity, count);
  });
  if (!gpus) return std::unexpected(gpus.error());
  facts.gpus = std::move(*gpus);
  return facts;
}

Result<void> Connection::Create(const std::string& name, uint64_t size_bytes,
                                const gpushm_create_options& options) {
  return CheckStatus(gpushm_create(client_.get(), name.c_str(), size_bytes, &options, nullptr));
}

Result<void> Connection::Delete(const std::string& name, int64_t timeout_ms) {
  gpushm_delete_options options;
  GPUSHM_INIT(&options);
  options.timeout_ms = timeout_ms;
  return CheckStatus(gpushm_delete(client_.get(), name.c_str(), &options));
}

Result<gpushm_transfer_result> Connection::Load(const std::string& name, const std::string& path,
                                                const TransferSettings& settings) {
  return Transfer(STDIN_FILENO, path, settings,
                  [&](const char* file, const auto* options, auto* result) {
                    return gpushm_load(client_.get(), name.c_str(), file, options, result);
                  });
}

Result<gpushm_transfer_result> Connection::LoadNext(const std::string& name,
                                                    const std::string& path, uint64_t size_bytes,
                                                    const TransferSettings& settings,
                                                    uint64_t* generation) {
  gpushm_create_options making;
  GPUSHM_INIT(&making);
  making.unpublished = 1;
  making.timeout_ms = settings.timeout_ms;
  gpushm_attachment* made = nullptr;
  if (auto done =
          CheckStatus(gpushm_replace(client_.get(), name.c_str(), size_bytes, &making, &made));
      !done) {
    return std::unexpected(done.error());
  }
  // Before the publish, the detach deletes it.
  const auto detach = [](gpushm_attachment* held) { gpushm_attachment_detach(held, nullptr); };
  const std::unique_ptr<gpushm_attachment, decltype(detach)> next(made, detach);
  auto moved = Transfer(STDIN_FILENO, path, settings,
                        [&](const char* file, const auto* options, auto* result) {
                          return gpushm_attachment_load(next.get(), file, options, result);
                        });
  if (!moved) return moved;
  gpushm_attachment_info info;
  GPUSHM_INIT(&info);
  auto done = CheckStatus(gpushm_attachment_get_info(next.get(), &info));
  if (done) done = CheckStatus(gpushm_attachment_digest(next.get(), moved->digest));
  if (done) done = CheckStatus(gpushm_attachment_publish(next.get()));
  if (!done) return std::unexpected(done.error());
  *generation = info.generation;
  return moved;
}

Result<gpushm_transfer_result> Connection::Save(const std::string& name, const std::string& path,
                                                const TransferSettings& settings) {
  return Transfer(STDOUT_FILENO, path, settings,
                  [&](const char* file, const auto* options, auto* result) {
                    return gpushm_save(client_.get(), name.c_str(), file, options, result);
                  });
}

Result<Connection::Content> Connection::ContentOf(const std::string& name, int64_t timeout_ms) {
  gpushm_attach_options options;
  GPUSHM_INIT(&options);
  options.timeout_ms = timeout_ms;
  gpushm_attachment* made = nullptr;
  if (auto done = CheckStatus(gpushm_attach(client_.get(), name.c_str(), &options, &made)); !done) {
    return std::unexpected(done.error());
  }
  const auto detach = [](gpushm_attachment* held) { gpushm_attachment_detach(held, nullptr); };
  const std::unique_ptr<gpushm_attachment, decltype(detach)> attached(made, detach);
  gpushm_attachment_info info;
  GPUSHM_INIT(&info);
  char digest[GPUSHM_DIGEST_BYTES];
  auto done = CheckStatus(gpushm_attachment_get_info(made, &info));
  if (done) done = CheckStatus(gpushm_attachment_digest(made, digest));
  if (!done) return std::unexpected(done.error());
  Content content{.generation = info.generation, .digest = digest, .kept = ""};
  const auto now = Lookup(name);
  if (now && now->generation == info.generation) content.kept = now->digest;
  return content;
}

Result<std::string> Connection::FileDigest(const std::string& path, uint32_t format) {
  char digest[GPUSHM_DIGEST_BYTES];
  auto done = CheckStatus(gpushm_file_digest(path.c_str(), format, digest));
  if (!done) return std::unexpected(done.error());
  return std::string(digest);
}

}  // namespace gpushm::ctl
