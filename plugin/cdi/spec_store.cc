#include "plugin/cdi/spec_store.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "platform/base/read_whole.h"

namespace gpushm::plugin::cdi {
namespace {

constexpr std::string_view kPrefix = "gpushm.io-";
// Nothing in a spec is secret, and loaders that run as other users (podman) report files that they
// cannot read.
constexpr mode_t kSpecMode = 0644;
constexpr mode_t kFolderMode = 0755;

struct Found {
  std::string file_name;
  int64_t written_ns = 0;
  binding::Binding binding;
};

int64_t WrittenNs(const std::string& path) {
  struct stat info{};
  if (lstat(path.c_str(), &info) != 0) return 0;
  return info.st_mtim.tv_sec * int64_t{1'000'000'000} + info.st_mtim.tv_nsec;
}

// Moves specs that share an ID with a newer one to `contents->damaged`, and the others to its
// bindings.
void KeepLatest(std::vector<Found> all, SpecStore::Contents* contents) {
  std::sort(all.begin(), all.end(), [](const Found& a, const Found& b) {
    return std::tie(b.written_ns, a.file_name) < std::tie(a.written_ns, b.file_name);
  });
  // Keyed by ID; the two resources have different IDs.
  std::map<std::string, const Found*> holders;
  for (Found& found : all) {
    const Found* other = nullptr;
    for (const std::string& id : found.binding.ids) {
      const auto held = holders.find(id);
      if (held != holders.end()) other = held->second;
    }
    if (other != nullptr) {
      contents->damaged.push_back(
          {found.file_name, Status(Code::kCorrupt,
                                   Concat(found.file_name, " has device IDs that the newer ",
                                          other->file_name, " also has"),
                                   "remove the file; its binding was superseded")});
      continue;
    }
    for (const std::string& id : found.binding.ids) holders[id] = &found;
    contents->bindings.push_back(found.binding);
  }
  std::sort(contents->bindings.begin(), contents->bindings.end(),
            [](const binding::Binding& a, const binding::Binding& b) {
              return std::tie(a.resource, a.name()) < std::tie(b.resource, b.name());
            });
}

Result<void> MakeFolder(Files& files, const std::string& folder) {
  const auto made = files.MakeFolder(folder);
  if (!made) return made.error().code() == Code::kAlreadyExists ? Result<void>{} : made;
  const UniqueFd opened(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened) return FailSystem(errno, Concat("open ", folder));
  return files.SetMode(opened.get(), kFolderMode);
}

}  // namespace

Result<SpecStore> SpecStore::Open(std::string folder, Files& files) {
  if (auto made = MakeFolder(files, folder); !made) return std::unexpected(made.error());
  if (auto swept = SweepTemporaries(files, folder, kPrefix); !swept) {
    return std::unexpected(swept.error());
  }
  return SpecStore(std::move(folder), &files);
}

Result<bool> SpecStore::WriteShared(const Edits& edits) {
  return WriteText(kSharedFileName, SharedSpecText(edits));
}

Result<bool> SpecStore::Write(const binding::Binding& binding, const Edits& edits) {
  const Result<std::string> text = SpecText(binding, edits);
  if (!text) return std::unexpected(text.error());  // Without IDs the binding has no name either.
  return WriteText(SpecFileName(binding.resource, binding.name()), text);
}

Result<bool> SpecStore::WriteClaim(const binding::Binding& binding, const ClaimEdits& edits) {
  const Result<std::string> text = ClaimSpecText(binding, edits);
  if (!text) return std::unexpected(text.error());
  return WriteText(ClaimSpecFileName(binding.name()), text);
}

Result<bool> SpecStore::WriteText(const std::string& file_name, const Result<std::string>& text) {
  if (!text) return std::unexpected(text.error());
  const std::string path = PathOf(file_name);
  const Result<std::string> old = ReadWhole(path, kMaxSpecBytes);
  if (old && *old == *text) return false;
  auto replaced = ReplaceFile(*files_, path, *text, kSpecMode, Durability::kProcess);
  if (!replaced) return std::unexpected(replaced.error());
  return true;
}

Result<void> SpecStore::Remove(binding::Resource resource, const std::string& name) {
  return RemoveFile(name, SpecFileName(resource, name));
}

Result<void> SpecStore::RemoveClaim(const std::string& uid) {
  return RemoveFile(uid, ClaimSpecFileName(uid));
}

Result<void> SpecStore::RemoveFile(const std::string& name, const std::string& file_name) {
  if (name.find('/') != std::string::npos) {
    return Fail(Code::kInvalidArgument,
                Concat("invalid binding name \"", name, "\": must not contain '/'"));
  }
  auto gone = files_->Unlink(PathOf(file_name));
  if (!gone && gone.error().code() == Code::kNotFound) return {};
  return gone;
}

Result<SpecStore::Contents> SpecStore::ReadAll() const {
  const auto names = ListFolder(folder_);
  if (!names) return std::unexpected(names.error());
  Contents contents;
  std::vector<Found> all;
  for (const std::string& name : *names) {
    if (!IsSpecFileName(name)) continue;
    const int64_t written_ns = WrittenNs(PathOf(name));
    const Result<std::string> text = ReadWhole(PathOf(name), kMaxSpecBytes);
    if (!text && text.error().code() == Code::kNotFound) continue;  // Removed in the meantime.
    Result<binding::Binding> binding =
        text ? ParseSpec(name, *text) : std::unexpected(text.error());
    if (binding) {
      all.push_back({name, written_ns, std::move(*binding)});
    } else {
      contents.damaged.push_back({name, binding.error()});
    }
  }
  KeepLatest(std::move(all), &contents);
  return contents;
}

Result<void> SpecStore::RemoveDamaged(const Damaged& damaged) {
  if (!IsSpecFileName(damaged.file_name)) {
    return Fail(Code::kInvalidArgument,
                Concat("\"", damaged.file_name, "\" is not a spec file of gpushm"));
  }
  auto gone = files_->Unlink(PathOf(damaged.file_name));
  if (!gone && gone.error().code() == Code::kNotFound) return {};
  return gone;
}

}  // namespace gpushm::plugin::cdi
