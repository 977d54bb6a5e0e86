// Writes the documents that are made from tables of the code into a folder: docs/annotations.md and
// its schema, metrics.md, plugin-config.md, xids.md. usage: gpushm-documents FOLDER
#include <cstdio>
#include <fstream>
#include <string>
#include <utility>

#include "plugin/config/plugin_config.h"
#include "plugin/inventory/xids.h"
#include "plugin/metrics/catalogue.h"
#include "sidecar/config/keys.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: gpushm-documents FOLDER\n");
    return 2;
  }
  for (const auto& [name, text] :
       {std::pair{"annotations.md", gpushm::config::AnnotationsMarkdown()},
        std::pair{"annotations.schema.json", gpushm::config::AnnotationsSchema()},
        std::pair{"metrics.md", gpushm::plugin::MetricsMarkdown()},
        std::pair{"plugin-config.md", gpushm::plugin::PluginConfigMarkdown()},
        std::pair{"xids.md", gpushm::plugin::XidsMarkdown()}}) {
    const std::string path = std::string(argv[1]) + "/" + name;
    std::ofstream file(path);
    file << text;
    file.close();
    if (file) continue;
    std::fprintf(stderr, "gpushm-documents: cannot write %s\n", path.c_str());
    return 1;
  }
  return 0;
}
