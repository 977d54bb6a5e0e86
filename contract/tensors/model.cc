#include "contract/tensors/model.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "contract/tensors/encode.h"
#include "contract/tensors/shards.h"

namespace gpushm::tensors {
namespace {

constexpr std::string_view kFileSuffix = ".safetensors";
constexpr std::string_view kIndexSuffix = ".safetensors.index.json";
constexpr std::string_view kIndexName = "model.safetensors.index.json";

struct Opened {
  UniqueFd fd;
  uint64_t size_bytes = 0;
  bool is_folder = false;
};

Result<Opened> OpenAt(const std::string& path, const OpenPath& open) {
  Result<UniqueFd> fd = open(path);
  if (!fd) return std::unexpected(fd.error());
  struct stat info{};
  if (fstat(fd->get(), &info) != 0) return FailSystem(errno, Concat("stat ", path));
  const bool is_folder = S_ISDIR(info.st_mode);
  if (!is_folder && !S_ISREG(info.st_mode)) {
    return Fail(Code::kInvalidArgument, Concat(path, " is neither a file nor a folder"),
                "name a safetensors file, an index of shards, or a folder with either");
  }
  return Opened{std::move(*fd), static_cast<uint64_t>(info.st_size), is_folder};
}

// The folder of a path, with its slash; empty for the current one.
std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

Result<std::vector<std::string>> NamesIn(UniqueFd folder, const std::string& path) {
  DIR* const stream = fdopendir(folder.get());
  if (stream == nullptr) return FailSystem(errno, Concat("list ", path));
  (void)folder.Release();  // The stream closes it.
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* const entry = readdir(stream)) {
    const std::string_view name(entry->d_name);
    if (name.ends_with(kFileSuffix) || name == kIndexName) names.emplace_back(name);
    errno = 0;
  }
  const int error = errno;
  closedir(stream);
  if (error != 0) return FailSystem(error, Concat("list ", path));
  std::ranges::sort(names);
  return names;
}

// The files of a model with their headers, as far as they are known so far.
struct Files {
  std::vector<ModelFile> files;
  std::vector<SafetensorsFile> headers;

  Result<void> Add(std::string path, Opened opened, const Shard* listed) {
    if (opened.is_folder) {
      return Fail(Code::kInvalidArgument, Concat(path, " is a folder, not a safetensors file"));
    }
    Result<SafetensorsFile> header = ReadSafetensors(opened.fd.get(), opened.size_bytes, path);
    if (!header) return std::unexpected(header.error());
    if (listed != nullptr) {
      if (auto kept = KeepListed(*listed, &*header); !kept) return kept;
    }
    headers.push_back(std::move(*header));
    files.push_back({.fd = std::move(opened.fd),
                     .path = std::move(path),
                     .size_bytes = opened.size_bytes,
                     .segments = {}});
    return {};
  }
  Result<void> Open(const std::string& path, const OpenPath& open, const Shard* listed) {
    Result<Opened> opened = OpenAt(path, open);
    if (!opened) return std::unexpected(opened.error());
    return Add(path, std::move(*opened), listed);
  }
  Result<void> AddIndex(const std::string& path, const Opened& index, const OpenPath& open) {
    const auto shards = ReadShardIndex(index.fd.get(), index.size_bytes, path);
    if (!shards) return std::unexpected(shards.error());
    for (const Shard& shard : *shards) {
      if (auto added = Open(FolderOf(path) + shard.file, open, &shard); !added) {
        return std::unexpected(added.error().WithContext(Concat("shard of ", path)));
      }
    }
    return {};
  }
  Result<void> AddFolder(const std::string& folder, Opened opened, const OpenPath& open) {
    const auto names = NamesIn(std::move(opened.fd), folder);
    if (!names) return std::unexpected(names.error());
    const std::string prefix = folder.ends_with('/') ? folder : folder + '/';
    if (std::ranges::find(*names, kIndexName) != names->end()) {
      const std::string path = prefix + std::string(kIndexName);
      const Result<Opened> index = OpenAt(path, open);
      if (!index) return std::unexpected(index.error());
      return AddIndex(path, *index, open);
    }
    for (const std::string& name : *names) {
      if (auto added = Open(prefix + name, open, nullptr); !added) return added;
    }
    if (!files.empty()) return {};
    return Fail(Code::kNotFound, Concat("folder ", folder, " has no file *.safetensors"),
                "name the folder that has the model's safetensors files");
  }
};

}  // namespace

bool IsModelName(std::string_view path) {
  return path.ends_with(kFileSuffix) || path.ends_with(kIndexSuffix) || path.ends_with('/');
}

Result<Model> OpenModel(const std::string& path, const OpenPath& open) {
  Result<Opened> opened = OpenAt(path, open);
  if (!opened) return std::unexpected(opened.error());
  Files found;
  Result<void> added;
  if (opened->is_folder) {
    added = found.AddFolder(path, std::move(*opened), open);
  } else if (path.ends_with(".json")) {
    added = found.AddIndex(path, *opened, open);
  } else {
    added = found.Add(path, std::move(*opened), nullptr);
  }
  if (!added) return std::unexpected(added.error());
  Result<LoadPlan> plan = PlanLoad(std::move(found.headers));
  if (!plan) return std::unexpected(plan.error());
  if (plan->buffer_bytes == 0) {
    return Fail(Code::kInvalidArgument, Concat(path, " has no tensor with any bytes"));
  }
  auto table = EncodeTable(plan->tensors, plan->metadata, plan->buffer_bytes);
  if (!table) return std::unexpected(table.error().WithContext(path));
  for (const Segment& segment : plan->segments) {
    found.files[segment.file].segments.push_back(segment);
  }
  return Model{.files = std::move(found.files),
               .buffer_bytes = plan->buffer_bytes,
               .table = std::move(*table),
               .tensors = static_cast<uint32_t>(plan->tensors.size())};
}

}  // namespace gpushm::tensors
