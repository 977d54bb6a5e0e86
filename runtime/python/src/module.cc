// The extension module gpushm._native.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "client.h"

NB_MODULE(_native, module) {
  using namespace gpushm::python;
  using namespace nanobind::literals;
  // Objects may live until the interpreter has gone, in global variables and cycles.
  nb::set_leak_warnings(false);
  module.doc() = "The C interface of gpushm for Python. Import gpushm instead.";
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const DriverError& error) {
      try {
        Raise(GPUSHM_DRIVER, error.what(), "see what the GPU's driver reports, with nvidia-smi");
      } catch (nb::python_error& raised) {
        raised.restore();
      }
    }
  });
  module.def("load_library", &Load, "file"_a,
             "Uses this libgpushm. Returns why it cannot be used; empty if it is in use now.");
  module.def("library_file", &LoadedFile, "The file of the libgpushm in use.");
  module.def(
      "library_version", [] { return Api().version_(); },
      "Version of the libgpushm in use: major * 10000 + minor * 100 + patch.");
  module.def("collect", &Collect,
             "Gives back what arrays gave up, if the GPU has finished with it.");
  module.def("live_resources", &LiveResources,
             "Number of clients, attachments and the like that are not given back yet.");
  module.def(
      "driver_version", [] { return Released([] { return DriverVersion(); }); },
      "Version of the CUDA driver: 1000 * major + 10 * minor.");
  module.def(
      "devices",
      [] {
        nb::list names;
        const int count = Released([] { return DeviceCount(); });
        for (int i = 0; i < count; ++i) names.append(DeviceName(i));
        return names;
      },
      nb::sig("def devices() -> list[str]"), "Names of the GPUs that this process sees.");
  BindArray(module);
  BindClient(module);
}
