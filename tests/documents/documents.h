// The parts of the documentation that are generated from the code's tables. A document in docs/ is
// written by hand, except for the lines between `<!-- table NAME -->` and `<!-- end -->`, which
// `./run docs` writes.
#pragma once

#include <functional>
#include <map>
#include <string>

namespace gpushm::documents {

// Functions by the name that a document uses; each makes one table in Markdown.
const std::map<std::string, std::function<std::string()>>& Tables();

// docs/reference/annotations.schema.json: JSON Schema of a pod's metadata.annotations.
std::string AnnotationsSchema();

}  // namespace gpushm::documents
