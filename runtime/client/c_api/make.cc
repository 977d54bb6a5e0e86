// The C ABI: making buffers, offering memory, files.
#include "runtime/client/make.h"
#include "contract/limits.h"
#include "platform/base/quote.h"
#include "platform/transfer/crew.h"
#include "platform/transfer/transfer_engine.h"
#include "runtime/client/c_api/support.h"
#include "runtime/client/content.h"
#include "runtime/client/files/content_digest.h"
#include "runtime/client/files/open_file.h"
#include "runtime/client/files/transfer.h"
#include "runtime/client/offer.h"

namespace gc = gpushm::client;
using gpushm::Concat;
using gpushm::Result;

namespace gpushm::client {
namespace {

// gpushm_create_options and gpushm_offer_options share these fields. `gpu` is read elsewhere.
template <typename Options>
Result<MakeOptions> ToMakeOptions(const Options& given) {
  if (given.writers > GPUSHM_WRITERS_ALL || given.one_writer > 1 ||
      given.on_writer_exit > GPUSHM_WRITER_EXIT_DROP) {
    return Fail(Code::kInvalidArgument,
                Concat("unknown value: writers ", given.writers, ", one_writer ", given.one_writer,
                       ", on_writer_exit ", given.on_writer_exit),
                "use the values of gpushm_writers and gpushm_on_writer_exit; "
                "one_writer is 0 or 1");
  }
  return MakeOptions{.writers_all = given.writers == GPUSHM_WRITERS_ALL,
                     .one_writer = given.one_writer != 0,
                     .on_writer_exit = OnWriterExit{given.on_writer_exit},
                     .unpublished = false};
}

// Makes the buffer, or a new generation of it if it exists. Other processes may make or delete the
// name between the two requests, so this goes on until one of them succeeds.
Result<Attachment*> CreateOrReplace(Client& client, std::string_view name, uint64_t size_bytes,
                                    const MakeOptions& making, bool attach, const Wait& wait) {
  while (true) {
    Result<Attachment*> made = client::Create(&client, name, size_bytes, making, attach, wait);
    if (made || made.error().code() != Code::kAlreadyExists) return made;
    made = client::Replace(&client, name, size_bytes, making, attach, wait);
    if (made || made.error().code() != Code::kNotFound) return made;
    if (wait.answer.Passed()) {
      return Fail(Code::kTimeout, "other processes made and deleted it until the deadline",
                  "agree on one process that makes the buffer, or use a larger timeout_ms");
    }
  }
}

Result<void> MakeBuffer(bool replace, Client& client, const char* name, uint64_t size_bytes,
                        const gpushm_create_options* options, gpushm_attachment** attachment) {
  if (name == nullptr) return CheckArgument(false, "name is NULL");
  if (attachment != nullptr) *attachment = nullptr;
  const auto given = ReadOptions(options, "create_options");
  if (!given) return std::unexpected(given.error());
  auto making = ToMakeOptions(*given);
  if (!making) return std::unexpected(making.error());
  if (given->unpublished > 1) {
    return Fail(Code::kInvalidArgument,
                Concat("create_options.unpublished is ", given->unpublished), "set it to 0 or 1");
  }
  making->unpublished = given->unpublished != 0;
  if (!replace && given->gpu >= limits::kPodGpus) {
    return Fail(Code::kInvalidArgument, Concat("create_options.gpu is ", given->gpu),
                "use the number of one of the pod's GPUs, 0 for the first");
  }
  if (!replace) making->gpu = given->gpu;
  if (auto valid = CheckReservedType("create_options.type", given->type); !valid) return valid;
  if (given->exist > GPUSHM_EXIST_REPLACE) {
    return Fail(Code::kUnsupported, Concat("create_options.exist is ", given->exist),
                "use GPUSHM_EXIST_FAIL or GPUSHM_EXIST_REPLACE, or update libgpushm");
  }
  const auto wait = Wait::From(given->timeout_ms, GPUSHM_DEFAULT_TIMEOUT_MS);
  if (!wait) return std::unexpected(wait.error());
  const bool attach = attachment != nullptr;
  const std::string_view text(name, strnlen(name, limits::kNameBytes + 2));
  const auto make = [&] {
    if (replace) return client::Replace(&client, text, size_bytes, *making, attach, *wait);
    if (given->exist == GPUSHM_EXIST_FAIL) {
      return client::Create(&client, text, size_bytes, *making, attach, *wait);
    }
    return CreateOrReplace(client, text, size_bytes, *making, attach, *wait);
  };
  const auto made = make();
  if (!made) {
    return std::unexpected(
        made.error().WithContext(Concat(replace ? "replace \"" : "create \"", text, "\"")));
  }
  if (attach) *attachment = ToHandle(*made);
  return {};
}

struct TransferRequest {
  TransferFile file;
  TransferOptions options;
  Wait wait;
};

Result<Digest> ParseDigest(const char* text) {
  const auto digest = Digest::Parse(std::string_view(text, strnlen(text, GPUSHM_DIGEST_BYTES)));
  if (digest) return *digest;
  return Fail(
      Code::kInvalidArgument,
      Concat("transfer_options.digest is ", Quote(std::string_view(text, strnlen(text, 80)))),
      "use the text of a digest: \"g1:\" and 32 hexadecimal digits");
}

Result<TransferRequest> ReadTransfer(const char* path, const gpushm_transfer_options* options,
                                     const gpushm_transfer_result* result) {
  if (path == nullptr && options == nullptr) {
    return Fail(Code::kInvalidArgument, "path is NULL and transfer_options is NULL",
                "pass the path of a file, or transfer_options with a descriptor");
  }
  if (result != nullptr) {
    if (auto valid = CheckStructSize(result->struct_size, "result"); !valid) {
      return std::unexpected(valid.error());
    }
  }
  const auto given = ReadOptions(options, "transfer_options");
  if (!given) return std::unexpected(given.error());
  if (given->reserved1 != 0 || given->whole > 1) {
    return Fail(
        Code::kInvalidArgument,
        Concat("transfer_options: whole is ", given->whole, " and reserved1 is ", given->reserved1),
        "whole is 0 or 1, and reserved fields are 0");
  }
  if (given->file_method > GPUSHM_FILE_PAGES || given->file_method == GPUSHM_FILE_STREAM) {
    return Fail(Code::kInvalidArgument,
                Concat("transfer_options.file_method is ", given->file_method),
                "use a value of gpushm_file_method other than GPUSHM_FILE_STREAM");
  }
  if (given->format > GPUSHM_FORMAT_TENSORS || given->reserved2 != 0) {
    return Fail(Code::kInvalidArgument,
                Concat("transfer_options: format is ", given->format, " and reserved2 is ",
                       given->reserved2),
                "use a value of gpushm_format; reserved fields are 0");
  }
  const bool alone = given->threads == GPUSHM_NO_THREADS;
  if (given->chunks == 1 || given->chunks > kMaxTransferChunks ||
      (given->threads > kMaxTransferThreads && !alone)) {
    return Fail(
        Code::kInvalidArgument,
        Concat("transfer_options: chunks is ", given->chunks, " and threads is ", given->threads),
        Concat("use 0 or 2 to ", kMaxTransferChunks, " chunks, and at most ", kMaxTransferThreads,
               " threads or GPUSHM_NO_THREADS"));
  }
  const auto wait = Wait::ForTransfer(given->timeout_ms, GPUSHM_DEFAULT_TIMEOUT_MS);
  if (!wait) return std::unexpected(wait.error());
  const uint32_t helpers = alone ? 0 : given->threads == 0 ? UsefulHelpers() : given->threads;
  TransferOptions transfer{.job = {.way = FileWay{given->file_method},
                                   .chunk_bytes = given->chunk_bytes,
                                   .chunks = given->chunks,
                                   .threads = helpers},
                           .whole = given->whole != 0,
                           .format = Format{given->format},
                           .announced = {.bytes = given->bytes}};
  if (given->digest != nullptr) {
    const auto digest = ParseDigest(given->digest);
    if (!digest) return std::unexpected(digest.error());
    transfer.announced.digest = *digest;
  }
  if (given->progress != nullptr) {
    transfer.progress = [progress = given->progress, user = given->user](uint64_t done_bytes,
                                                                         uint64_t total_bytes) {
      return progress(user, done_bytes, total_bytes) == 0;
    };
  }
  TransferFile file{.path = {}, .descriptor = given->descriptor};
  if (path != nullptr) file.path = path;
  return TransferRequest{std::move(file), std::move(transfer), *wait};
}

void WriteResult(const TransferOutcome& moved, gpushm_transfer_result* result) {
  if (result == nullptr) return;
  gpushm_transfer_result filled{};
  filled.bytes = moved.report.bytes;
  filled.elapsed_ns = moved.elapsed_ns;
  filled.file_method = std::to_underlying(moved.report.way);
  filled.file_reason = std::to_underlying(moved.reason);
  filled.moving_ns = moved.report.moving_ns;
  filled.link_bytes_per_second = moved.report.link_bytes_per_second;
  CopyDigest(moved.digest, filled.digest);
  WriteInfo(filled, result, result->struct_size);
}

Result<void> Transfer(bool save, Client& client, const char* name, const char* path,
                      const gpushm_transfer_options* options, gpushm_transfer_result* result) {
  if (name == nullptr) return CheckArgument(false, "name is NULL");
  const auto request = ReadTransfer(path, options, result);
  if (!request) return std::unexpected(request.error());
  const std::string_view text(name, strnlen(name, limits::kNameBytes + 2));
  if (auto valid = protocol::CheckName(text, "name"); !valid) return valid;
  const auto moved =
      save ? client::Save(&client, text, request->file, request->options, request->wait)
           : client::Load(&client, text, request->file, request->options, request->wait);
  if (!moved) {
    return std::unexpected(
        moved.error().WithContext(Concat(save ? "save \"" : "load \"", text, "\"")));
  }
  WriteResult(*moved, result);
  return {};
}

gpushm_status TransferAttached(bool save, gpushm_attachment* attachment, const char* path,
                               const gpushm_transfer_options* options,
                               gpushm_transfer_result* result) {
  Attachment* const a = FromHandle(attachment);
  if (a == nullptr) return RememberWhyNot(HandleKind::kAttachment, attachment);
  Client& client = *a->facts().client;
  return Enter(&client, [&]() -> Result<void> {
    const auto request = ReadTransfer(path, options, result);
    if (!request) return std::unexpected(request.error());
    const auto moved = save ? client::Save(a, request->file, request->options, request->wait)
                            : client::Load(a, request->file, request->options, request->wait);
    if (!moved) {
      return std::unexpected(
          moved.error().WithContext(Concat(save ? "save \"" : "load \"", a->facts().name, "\"")));
    }
    WriteResult(*moved, result);
    return {};
  });
}

}  // namespace
}  // namespace gpushm::client

extern "C" {

gpushm_status gpushm_create(gpushm_client* client, const char* name, uint64_t size_bytes,
                            const gpushm_create_options* options, gpushm_attachment** attachment) {
  return gc::EnterClient(client, [&](gc::Client& c) {
    return gc::MakeBuffer(false, c, name, size_bytes, options, attachment);
  });
}

gpushm_status gpushm_replace(gpushm_client* client, const char* name, uint64_t size_bytes,
                             const gpushm_create_options* options, gpushm_attachment** attachment) {
  return gc::EnterClient(client, [&](gc::Client& c) {
    return gc::MakeBuffer(true, c, name, size_bytes, options, attachment);
  });
}

gpushm_status gpushm_attachment_publish(gpushm_attachment* attachment) {
  gc::Attachment* const a = gc::FromHandle(attachment);
  if (a == nullptr) return gc::RememberWhyNot(gc::HandleKind::kAttachment, attachment);
  return gc::Enter(a->facts().client, [&]() -> Result<void> {
    auto done = gc::Publish(a, gc::Wait::ForMs(GPUSHM_DEFAULT_TIMEOUT_MS));
    if (done) return done;
    return std::unexpected(done.error().WithContext(Concat("publish \"", a->facts().name, "\"")));
  });
}

gpushm_status gpushm_attachment_digest(gpushm_attachment* attachment,
                                       char digest[GPUSHM_DIGEST_BYTES]) {
  gc::Attachment* const a = gc::FromHandle(attachment);
  if (a == nullptr) return gc::RememberWhyNot(gc::HandleKind::kAttachment, attachment);
  return gc::Enter(a->facts().client, [&]() -> Result<void> {
    if (digest == nullptr) return gc::CheckArgument(false, "digest is NULL");
    const auto wait = gc::Wait::ForMs(GPUSHM_DEFAULT_TIMEOUT_MS);
    const auto made = gc::DigestOfContent(a, wait);
    if (!made) {
      return std::unexpected(
          made.error().WithContext(Concat("make the digest of \"", a->facts().name, "\"")));
    }
    gc::CopyDigest(*made, digest);
    return {};
  });
}

gpushm_status gpushm_file_digest(const char* path, uint32_t format,
                                 char digest[GPUSHM_DIGEST_BYTES]) {
  return gc::Enter(nullptr, [&]() -> Result<void> {
    if (path == nullptr || digest == nullptr || format > GPUSHM_FORMAT_TENSORS) {
      return gc::CheckArgument(false, "path or digest is NULL, or format is no gpushm_format");
    }
    gc::TransferOptions options;
    options.job.way = gpushm::FileWay::kCached;  // Reads without O_DIRECT.
    options.format = gc::Format{format};
    const auto source = gc::LoadSource::Open({.path = path}, options);
    if (!source) return std::unexpected(source.error());
    const auto made = gc::DigestOf(*source);
    if (!made) return std::unexpected(made.error());
    gc::CopyDigest(*made, digest);
    return {};
  });
}

gpushm_status gpushm_attachment_set_content(gpushm_attachment* attachment, uint64_t content_bytes) {
  gc::Attachment* const a = gc::FromHandle(attachment);
  if (a == nullptr) return gc::RememberWhyNot(gc::HandleKind::kAttachment, attachment);
  return gc::Enter(a->facts().client, [&]() -> Result<void> {
    const auto wait = gc::Wait::ForMs(GPUSHM_DEFAULT_TIMEOUT_MS);
    auto done = gc::SetContent(a, content_bytes, wait);
    if (done) return done;
    return std::unexpected(
        done.error().WithContext(Concat("set the content of \"", a->facts().name, "\"")));
  });
}

gpushm_status gpushm_offer(gpushm_client* client, const char* name, uint64_t address,
                           uint64_t size_bytes, const gpushm_offer_options* options,
                           gpushm_offer_result* result) {
  return gc::EnterClient(client, [&](gc::Client& c) -> Result<void> {
    if (name == nullptr) return gc::CheckArgument(false, "name is NULL");
    if (result != nullptr) {
      if (auto valid = gc::CheckStructSize(result->struct_size, "result"); !valid) return valid;
    }
    const auto given = gc::ReadOptions(options, "offer_options");
    if (!given) return std::unexpected(given.error());
    const auto making = gc::ToMakeOptions(*given);
    if (!making) return std::unexpected(making.error());
    if (auto valid = gc::CheckReservedValue("offer_options.gpu", given->gpu); !valid) return valid;
    if (given->allow_copy > 1 || given->reserved != 0) {
      return gpushm::Fail(gpushm::Code::kInvalidArgument,
                          Concat("offer_options: allow_copy is ", given->allow_copy,
                                 " and reserved is ", given->reserved),
                          "set allow_copy to 0 or 1, and reserved to 0");
    }
    const auto wait = gc::Wait::From(given->timeout_ms, GPUSHM_DEFAULT_TIMEOUT_MS);
    if (!wait) return std::unexpected(wait.error());
    const std::string_view text(name, strnlen(name, gpushm::limits::kNameBytes + 2));
    const gc::OfferOptions offering{.make = *making,
                                    .allow_copy = given->allow_copy != 0,
                                    .stream = static_cast<CUstream>(given->stream)};
    const auto offered = gc::Offer(&c, text, address, size_bytes, offering, *wait);
    if (!offered) {
      return std::unexpected(offered.error().WithContext(Concat("offer \"", text, "\"")));
    }
    if (result != nullptr) {
      gpushm_offer_result filled{};
      filled.transport = offered->transport;
      filled.copied = offered->copied ? 1 : 0;
      filled.copied_bytes = offered->copied_bytes;
      filled.copy_ns = offered->copy_ns;
      filled.generation = offered->generation;
      filled.mapped_bytes = offered->mapped_bytes;
      filled.allocations = offered->allocations;
      gc::WriteInfo(filled, result, result->struct_size);
    }
    return {};
  });
}

gpushm_status gpushm_offer_state(gpushm_client* client, const char* name, uint64_t generation,
                                 gpushm_offer_info* info) {
  return gc::EnterClient(client, [&](gc::Client& c) -> Result<void> {
    const auto text = gc::ReadName(name);
    if (!text) return std::unexpected(text.error());
    if (auto valid = gc::CheckArgument(generation != 0, "generation is 0"); !valid) return valid;
    return gc::FillInfo(info, "info", [&](gpushm_offer_info* filled) -> Result<void> {
      const auto use =
          gc::UseOfOffer(&c, *text, generation, gc::Wait::ForMs(GPUSHM_DEFAULT_TIMEOUT_MS));
      if (!use) return std::unexpected(use.error());
      filled->published = use->published ? 1 : 0;
      filled->users = use->users;
      filled->unused = filled->published == 0 && filled->users == 0 ? 1 : 0;
      return {};
    });
  });
}

gpushm_status gpushm_delete(gpushm_client* client, const char* name,
                            const gpushm_delete_options* options) {
  return gc::EnterClient(client, [&](gc::Client& c) -> Result<void> {
    if (name == nullptr) return gc::CheckArgument(false, "name is NULL");
    const auto given = gc::ReadOptions(options, "delete_options");
    if (!given) return std::unexpected(given.error());
    const auto wait = gc::Wait::From(given->timeout_ms, GPUSHM_DEFAULT_TIMEOUT_MS);
    if (!wait) return std::unexpected(wait.error());
    const std::string_view text(name, strnlen(name, gpushm::limits::kNameBytes + 2));
    auto done = gc::Delete(&c, text, *wait);
    if (done) return done;
    return std::unexpected(done.error().WithContext(Concat("delete \"", text, "\"")));
  });
}

gpushm_status gpushm_load(gpushm_client* client, const char* name, const char* path,
                          const gpushm_transfer_options* options, gpushm_transfer_result* result) {
  return gc::EnterClient(
      client, [&](gc::Client& c) { return gc::Transfer(false, c, name, path, options, result); });
}

gpushm_status gpushm_save(gpushm_client* client, const char* name, const char* path,
                          const gpushm_transfer_options* options, gpushm_transfer_result* result) {
  return gc::EnterClient(
      client, [&](gc::Client& c) { return gc::Transfer(true, c, name, path, options, result); });
}

gpushm_status gpushm_attachment_load(gpushm_attachment* attachment, const char* path,
                                     const gpushm_transfer_options* options,
                                     gpushm_transfer_result* result) {
  return gc::TransferAttached(false, attachment, path, options, result);
}

gpushm_status gpushm_attachment_save(gpushm_attachment* attachment, const char* path,
                                     const gpushm_transfer_options* options,
                                     gpushm_transfer_result* result) {
  return gc::TransferAttached(true, attachment, path, options, result);
}

}  // extern "C"
