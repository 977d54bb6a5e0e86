#include "call.h"

#include <string>

namespace gpushm::python {
namespace {

[[noreturn]] void Throw(gpushm_status status, const char* what, const char* remedy) {
  const nb::object error = nb::module_::import_("gpushm.errors")
                               .attr("from_status")(static_cast<int>(status), what, remedy);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

}  // namespace

void RaiseLast(gpushm_status status) {
  const gpushm_error* const error = Api().last_error_();
  Throw(status, error->what, error->remedy);
}

void Raise(gpushm_status status, const std::string& what, const std::string& remedy) {
  Throw(status, what.c_str(), remedy.c_str());
}

}  // namespace gpushm::python
