#include "contract/tensors/model.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "contract/tensors/encode.h"
#include "contract/tensors/json.h"
#include "contract/tensors/shards.h"
#include "platform/base/clock.h"

namespace gpushm::tensors {
namespace {

constexpr std::string_view kFileSuffix = ".safetensors";
constexpr std::string_view kIndexInfix = ".safetensors.index.";
// How tools name what they are writing.
constexpr std::array<std::string_view, 9> kUnfinished = {".aria2",    ".crdownload", ".download",
                                                         ".filepart", ".incomplete", ".part",
                                                         ".partial",  ".temp",       ".tmp"};
// Such a file, and one with a hole, is being written if it changed in the last minute. An older one
// is a rest.
constexpr int64_t kUnfinishedNs = 60'000'000'000;
// As many missing shards are named.
constexpr size_t kNamedShards = 5;
constexpr std::string_view kPointer = "version https://git-lfs.github.com/spec/";
constexpr uint64_t kMaxPointerBytes = 1024;  // By Git LFS's specification.

constexpr std::string_view kNameOne = "name the file or the index";

bool IsFileName(std::string_view name) { return name.ends_with(kFileSuffix); }

// *.safetensors.index.json, or with a variant before .json, as transformers writes it.
bool IsIndexName(std::string_view name) {
  const size_t at = name.rfind(kIndexInfix);
  if (at == std::string_view::npos) return false;
  const std::string_view rest = name.substr(at + kIndexInfix.size());
  return rest == "json" || (rest.size() > 5 && rest.ends_with(".json") && !rest.contains('/'));
}

// Also rsync's hidden names (.NAME.safetensors.Xy12Zq), and those of gpushm's own saves.
bool IsUnfinishedName(std::string_view name) {
  const size_t at = name.find(kFileSuffix);
  if (at == std::string_view::npos || IsFileName(name)) return false;
  return name.starts_with('.') || name.substr(at).contains(".gpushm-") ||
         std::ranges::any_of(kUnfinished, [&](auto end) { return name.ends_with(end); });
}

// The name of one of several files: PREFIX-00002-of-00003SUFFIX.
struct Numbered {
  std::string_view prefix;
  std::string_view number_text;
  std::string_view of_text;
  std::string_view suffix;
  uint32_t number = 0;
  uint32_t of = 0;
};

std::optional<Numbered> ParseNumbered(std::string_view name) {
  constexpr std::string_view kOf = "-of-";
  constexpr std::string_view kDigits = "0123456789";
  const size_t of_at = name.rfind(kOf);
  if (of_at == std::string_view::npos) return std::nullopt;
  const std::string_view before = name.substr(0, of_at);
  const std::string_view after = name.substr(of_at + kOf.size());
  const size_t dash = before.find_last_not_of(kDigits);
  const size_t end = after.find_first_not_of(kDigits);
  if (dash == std::string_view::npos || before[dash] != '-' || end == std::string_view::npos ||
      after[end] != '.') {
    return std::nullopt;
  }
  Numbered parsed{.prefix = before.substr(0, dash),
                  .number_text = before.substr(dash + 1),
                  .of_text = after.substr(0, end),
                  .suffix = after.substr(end)};
  const auto parse = [](std::string_view text, uint32_t* value) {
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
    return error == std::errc() && stop == text.data() + text.size();
  };
  if (!parse(parsed.number_text, &parsed.number) || !parse(parsed.of_text, &parsed.of) ||
      parsed.of == 0) {
    return std::nullopt;
  }
  return parsed;
}

// The folder of a path, with its slash; empty for the current one.
std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }
std::string_view BaseOf(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// Leaves out what begins with `prefix`, unless nothing else is there.
void DropBeside(std::string_view prefix, std::vector<std::string>* names) {
  const auto is_beside = [&](const std::string& name) { return name.starts_with(prefix); };
  if (!std::ranges::all_of(*names, is_beside)) std::erase_if(*names, is_beside);
}

std::unexpected<Status> FailSeveral(std::string_view folder, std::string_view one,
                                    std::string_view other) {
  return Fail(Code::kInvalidArgument,
              Concat("folder ", folder, " has more than one model: ", one, " and ", other),
              std::string(kNameOne));
}

// All files of a set, if each number is there once.
Result<void> CheckNumbers(const std::vector<std::string>& names, std::string_view folder) {
  const Numbered first = *ParseNumbered(names.front());
  std::set<uint32_t> there;
  for (const std::string& name : names) {
    if (!there.insert(ParseNumbered(name)->number).second) {
      return FailSeveral(folder, names.front(), name);
    }
  }
  // Some tools count from 0.
  const uint32_t lowest = there.contains(0) ? 0 : 1;
  const uint32_t highest = lowest + first.of - 1;
  if (*there.rbegin() > highest) {
    return Fail(Code::kInvalidArgument,
                Concat("folder ", folder, " has shard ", *there.rbegin(), " of ", first.of),
                "fetch the model again, in one version");
  }
  const size_t missing = first.of - there.size();
  if (missing == 0) return {};
  std::string numbers;
  size_t named = 0;
  for (uint32_t number = lowest; named < std::min(missing, kNamedShards); ++number) {
    if (there.contains(number)) continue;
    numbers += Concat(named++ == 0 ? "" : ", ", number);
  }
  if (missing > named) numbers += Concat(" and ", missing - named, " more");
  return Fail(Code::kNotFound,
              Concat("folder ", folder, " has ", there.size(), " of the ", first.of, " shards ",
                     first.prefix, "-*-of-", first.of_text, first.suffix, "; missing: ", numbers),
              "wait until all of them are there, or fetch them again");
}

struct Opened {
  UniqueFd fd;
  uint64_t size_bytes = 0;
  bool is_folder = false;
  FileStamp stamp;
};

Result<Opened> OpenAt(const std::string& path, const OpenPath& open) {
  Result<UniqueFd> fd = open(path);
  if (!fd) return std::unexpected(fd.error());
  const auto info = StatBeforeReading(fd->get(), path);
  if (!info) return std::unexpected(info.error());
  const bool is_folder = S_ISDIR(info->st_mode);
  if (!is_folder && !S_ISREG(info->st_mode)) {
    return Fail(Code::kInvalidArgument, Concat(path, " is neither a file nor a folder"),
                "name a safetensors file, an index of shards, or a folder with either");
  }
  return Opened{std::move(*fd), static_cast<uint64_t>(info->st_size), is_folder,
                FileStamp::Of(*info)};
}

struct Listing {
  std::vector<std::string> names;  // Of tensors and indexes, sorted.
  std::string unfinished;          // A file that is being written; empty: none.
};

Result<Listing> List(UniqueFd folder, const std::string& path) {
  DIR* const stream = fdopendir(folder.get());
  if (stream == nullptr) return FailSystem(errno, Concat("list ", path));
  (void)folder.Release();  // The stream closes it.
  Listing listing;
  errno = 0;
  while (const dirent* const entry = readdir(stream)) {
    const std::string_view name(entry->d_name);
    struct stat info{};
    if (!name.starts_with('.') && (IsFileName(name) || IsIndexName(name))) {
      if (entry->d_type != DT_DIR) listing.names.emplace_back(name);
    } else if (IsUnfinishedName(name) && fstatat(dirfd(stream), entry->d_name, &info, 0) == 0 &&
               UnixNs() - FileStamp::Of(info).modified_ns < kUnfinishedNs) {
      listing.unfinished = name;
    }
    errno = 0;
  }
  const int error = errno;
  closedir(stream);
  if (error != 0) return FailSystem(error, Concat("list ", path));
  std::ranges::sort(listing.names);
  return listing;
}

// The files of a model with their headers, as far as they are known so far.
struct Files {
  std::vector<ModelFile> files;
  std::vector<SafetensorsFile> headers;
  FilesRead read;

  Result<void> Add(std::string path, Opened opened, const Shard* listed) {
    if (opened.is_folder) {
      return Fail(Code::kInvalidArgument, Concat(path, " is a folder, not a safetensors file"));
    }
    if (auto real = RefusePointer(opened.fd.get(), opened.size_bytes, path); !real) return real;
    if (auto all = CheckWritten(opened.fd.get(), opened.stamp, path); !all) return all;
    Result<SafetensorsFile> header = ReadSafetensors(opened.fd.get(), opened.size_bytes, path);
    if (!header) return std::unexpected(header.error());
    if (listed != nullptr) {
      if (auto kept = KeepListed(*listed, &*header); !kept) return kept;
    }
    headers.push_back(std::move(*header));
    read.files.push_back({path, opened.stamp});
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
    if (auto real = RefusePointer(index.fd.get(), index.size_bytes, path); !real) return real;
    const auto shards = ReadShardIndex(index.fd.get(), index.size_bytes, path);
    if (!shards) return std::unexpected(shards.error());
    read.files.push_back({path, index.stamp});
    for (const Shard& shard : *shards) {
      if (auto added = Open(FolderOf(path) + shard.file, open, &shard); !added) {
        return std::unexpected(added.error().WithContext(Concat("shard of ", path)));
      }
    }
    return {};
  }
  Result<void> AddFolder(const std::string& folder, Opened opened, const OpenPath& open) {
    auto listing = List(std::move(opened.fd), folder);
    if (!listing) return std::unexpected(listing.error());
    auto choice = ChooseModel(listing->names, folder);
    // An index and the names of a set say how many files there are; nothing else does.
    const bool announced =
        choice && (!choice->index.empty() || ParseNumbered(choice->files.front()));
    const bool counted = !choice && choice.error().code() == Code::kNotFound &&
                         !listing->names.empty();  // The numbers of missing shards say more.
    if (!listing->unfinished.empty() && !announced && !counted) {
      return Fail(Code::kBusy,
                  Concat("folder ", folder, ": ", listing->unfinished, " is being written"),
                  Concat("wait until it has its name, or ", kNameOne));
    }
    if (!choice) return std::unexpected(choice.error());
    read.folder = folder;
    read.chosen = std::move(*choice);
    const std::string prefix = folder + (folder.ends_with('/') ? "" : "/");
    if (!read.chosen.index.empty()) {
      const std::string path = prefix + read.chosen.index;
      const Result<Opened> index = OpenAt(path, open);
      if (!index) return std::unexpected(index.error());
      return AddIndex(path, *index, open);
    }
    for (const std::string& name : read.chosen.files) {
      if (auto added = Open(prefix + name, open, nullptr); !added) return added;
    }
    return {};
  }
};

Result<void> RefuseShard(const std::string& path) {
  const auto shard = ParseNumbered(BaseOf(path));
  if (!shard || shard->of == 1) return {};
  const std::string folder = FolderOf(path);
  return Fail(Code::kInvalidArgument,
              Concat(path, " is shard ", shard->number, " of ", shard->of, ", not a whole model"),
              Concat("name its folder, ", folder.empty() ? "./" : folder, ", or its index"));
}

}  // namespace

bool IsModelName(std::string_view path) {
  return IsFileName(path) || IsIndexName(path) || path.ends_with('/');
}

Result<Choice> ChooseModel(const std::vector<std::string>& names, std::string_view folder) {
  std::vector<std::string> left = names;
  DropBeside("adapter_model", &left);
  DropBeside("consolidated", &left);
  const auto is_index = [](const std::string& name) { return IsIndexName(name); };
  if (const auto index = std::ranges::find_if(left, is_index); index != left.end()) {
    const auto other = std::find_if(index + 1, left.end(), is_index);
    if (other != left.end()) return FailSeveral(folder, *index, *other);
    return Choice{.index = *index, .files = {}};
  }
  if (left.empty()) {
    return Fail(Code::kNotFound, Concat("folder ", folder, " has no file *.safetensors"),
                "name the folder that has the model's safetensors files");
  }
  const auto set_of = [](const std::string& name) {
    const auto shard = ParseNumbered(name);
    return shard ? std::optional(std::tuple(shard->prefix, shard->of, shard->suffix))
                 : std::nullopt;
  };
  const auto set = set_of(left.front());
  for (const std::string& name : left) {
    if (name != left.front() && (!set || set_of(name) != set)) {
      return FailSeveral(folder, left.front(), name);
    }
  }
  if (set) {
    if (auto all = CheckNumbers(left, folder); !all) return std::unexpected(all.error());
  }
  return Choice{.index = {}, .files = std::move(left)};
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
    added = RefuseShard(path);
    if (added) added = found.Add(path, std::move(*opened), nullptr);
  }
  if (!added) return std::unexpected(added.error());
  Result<LoadPlan> plan = PlanLoad(std::move(found.headers));
  if (!plan) return std::unexpected(plan.error());
  if (plan->buffer_bytes == 0) {
    return Fail(Code::kInvalidArgument, Concat(path, " has no tensor with any bytes"));
  }
  auto table = EncodeTable(plan->tensors, plan->metadata, plan->buffer_bytes);
  if (!table) return std::unexpected(table.error().WithContext(path));
  uint64_t file_bytes = 0;
  for (const ModelFile& file : found.files) file_bytes += file.size_bytes;
  for (const Segment& segment : plan->segments) {
    found.files[segment.file].segments.push_back(segment);
  }
  return Model{.files = std::move(found.files),
               .file_bytes = file_bytes,
               .buffer_bytes = plan->buffer_bytes,
               .table = std::move(*table),
               .tensors = static_cast<uint32_t>(plan->tensors.size()),
               .read = std::move(found.read)};
}

Result<void> CheckUnchanged(const FilesRead& read, const OpenPath& open) {
  const auto changed = [](const std::string& path, std::string_view how) {
    return Fail(Code::kBusy, Concat(path, " ", how, " while it was loaded"),
                "load it when nobody writes it; write elsewhere, then rename");
  };
  for (const FilesRead::File& file : read.files) {
    const Result<UniqueFd> fd = open(file.path);
    struct stat info{};
    if (!fd || fstat(fd->get(), &info) != 0) return changed(file.path, "went away");
    if (FileStamp::Of(info) != file.stamp) return changed(file.path, "changed");
  }
  if (read.folder.empty()) return {};
  Result<UniqueFd> folder = open(read.folder);
  if (!folder) return changed(read.folder, "went away");
  const auto listing = List(std::move(*folder), read.folder);
  const auto chosen = listing ? ChooseModel(listing->names, read.folder) : Result<Choice>();
  if (!chosen || *chosen != read.chosen) {
    return changed(Concat("the model in folder ", read.folder), "changed");
  }
  return {};
}

Result<void> CheckWritten(int fd, const FileStamp& stamp, std::string_view path) {
  if (UnixNs() - stamp.modified_ns >= kUnfinishedNs) return {};
  const off_t hole = lseek(fd, 0, SEEK_HOLE);
  if (hole < 0 || hole >= stamp.size_bytes) return {};  // Some file systems do not know.
  return Fail(Code::kBusy, Concat(path, " is being written: nothing is at byte ", hole, " yet"),
              "wait until all of it is there; after a minute without change it is taken as it is");
}

Result<void> RefusePointer(int fd, uint64_t size_bytes, std::string_view path) {
  if (size_bytes < kPointer.size() || size_bytes > kMaxPointerBytes) return {};
  const auto begin = ReadText(fd, 0, kPointer.size());
  if (!begin || *begin != kPointer) return {};  // Its reader will say why it cannot be read.
  return Fail(Code::kInvalidArgument, Concat(path, " is a Git LFS pointer, not the file itself"),
              "fetch the file: git lfs pull");
}

}  // namespace gpushm::tensors
