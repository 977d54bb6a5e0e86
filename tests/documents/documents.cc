// Writes the tables of the code into the documents of a folder, and annotations.schema.json into
// the folder of the document that has the table of annotations. usage: gpushm-documents FOLDER
#include "tests/documents/documents.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <string_view>

#include "platform/base/status.h"

namespace gpushm::documents {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBegin = "<!-- table ";
constexpr std::string_view kBeginEnd = " -->\n";
constexpr std::string_view kEnd = "<!-- end -->\n";

Result<void> Write(const fs::path& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file) return {};
  return Fail(Code::kSystem, Concat("cannot write ", path.string()), "");
}

// The document with its tables as they are now; `written` gets their names.
Result<std::string> WithTables(const fs::path& path, std::set<std::string>& written) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  for (size_t at = 0; (at = text.find(kBegin, at)) != std::string::npos;) {
    const size_t name_at = at + kBegin.size();
    const size_t name_end = text.find(kBeginEnd, name_at);
    const size_t end = text.find(kEnd, name_at);
    if (name_end == std::string::npos || end == std::string::npos || name_end > end) {
      return Fail(Code::kInvalidArgument, Concat(path.string(), ": a table has no end"),
                  "write <!-- table NAME -->, and <!-- end --> after it");
    }
    const std::string name = text.substr(name_at, name_end - name_at);
    const auto table = Tables().find(name);
    if (table == Tables().end()) {
      return Fail(Code::kInvalidArgument, Concat(path.string(), ": unknown table \"", name, "\""),
                  "tests/documents/tables.cc has the names");
    }
    const size_t body = name_end + kBeginEnd.size();
    text.replace(body, end - body, table->second());
    written.insert(name);
    at = body;
  }
  return text;
}

Result<void> WriteAll(const fs::path& folder) {
  std::set<std::string> written;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".md") continue;
    std::set<std::string> here;
    const Result<std::string> text = WithTables(entry.path(), here);
    if (!text) return std::unexpected(text.error());
    if (here.empty()) continue;
    if (const auto done = Write(entry.path(), *text); !done) return done;
    if (here.contains("annotations")) {
      const fs::path schema = entry.path().parent_path() / "annotations.schema.json";
      if (const auto done = Write(schema, AnnotationsSchema()); !done) return done;
    }
    written.merge(here);
  }
  for (const auto& [name, table] : Tables()) {
    if (written.contains(name)) continue;
    return Fail(Code::kNotFound, Concat("no document has the table \"", name, "\""),
                Concat("write <!-- table ", name, " --> and <!-- end --> where it belongs"));
  }
  return {};
}

}  // namespace
}  // namespace gpushm::documents

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: gpushm-documents FOLDER\n");
    return 2;
  }
  const auto written = gpushm::documents::WriteAll(argv[1]);
  if (written) return 0;
  std::fprintf(stderr, "gpushm-documents: %s\n", written.error().ToString().c_str());
  return 1;
}
