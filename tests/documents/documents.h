// What documentation is made of the code's tables. A page of docs/ is written by hand but for the
// lines between `<!-- table NAME -->` and `<!-- end -->`, which `./run docs` writes.
#pragma once

#include <functional>
#include <map>
#include <string>

namespace gpushm::documents {

// By the name that a page gives: each makes one table, in Markdown.
const std::map<std::string, std::function<std::string()>>& Tables();

// docs/reference/annotations.schema.json: JSON Schema of a pod's metadata.annotations.
std::string AnnotationsSchema();

}  // namespace gpushm::documents
