#include <pybind11/stl.h>

#include <memory>
#include <string>

#include "csrc/base/process_mark.h"
#include "csrc/bindings/bindings.h"
#include "csrc/bindings/errors.h"
#include "csrc/bindings/integer.h"
#include "csrc/iree/cpu_count.h"
#include "csrc/iree/device.h"
#include "csrc/iree/drivers.h"
#include "csrc/kernels/registry.h"

namespace py = pybind11;

namespace pyvlm::bindings {
namespace {

// Finds and loads the runtime library at the first use; pyvlm._runtime_library raises
// runtime_missing if a package is absent or has another version.
void EnsureLibrary() {
  if (!IreeLibraryPath().empty()) return;
  auto path = py::module_::import("pyvlm._runtime_library").attr("find")().cast<std::string>();
  LoadIree(path);
}

std::shared_ptr<Device> MakeDevice(const std::string& driver, Integer num_threads,
                                   Integer worker_spin_us) {
  EnsureLibrary();
  DeviceOptions options;
  options.driver = driver;
  options.num_threads = Narrow<int>(num_threads, "num_threads");
  options.worker_spin_us = Narrow<int64_t>(worker_spin_us, "worker_spin_us");
  py::gil_scoped_release release;
  return MakeSharedUnlessForked<Device>(options);
}

py::dict LibraryInfo() {
  EnsureLibrary();
  py::dict info;
  info["path"] = IreeLibraryPath();
  info["version"] = kIreeVersion;
  info["drivers"] = DriverNames();
  info["kernels"] = kernels::BestIsa() == kernels::Isa::avx2 ? "avx2" : "scalar";
  info["cores"] = AvailableCores();
  return info;
}

}  // namespace

void BindDevice(py::module_& module) {
  py::class_<Device, std::shared_ptr<Device>>(module, "Device")
      .def(py::init(&MakeDevice), py::arg("driver") = "local-task", py::arg("num_threads") = 0,
           py::kw_only(), py::arg("worker_spin_us") = DeviceOptions{}.worker_spin_us)
      .def_property_readonly("driver", ByReference(&Device::driver))
      .def_property_readonly("num_threads", ByReference(&Device::num_threads))
      .def_property_readonly("used_bytes",
                             [](const Device& device) { return device.memory().used_bytes(); })
      .def_property_readonly("peak_bytes",
                             [](const Device& device) { return device.memory().peak_bytes(); });
  module.def("library_info", LibraryInfo,
             "Path and version of the loaded runtime, its drivers, the kernels' instruction set.");
}

}  // namespace pyvlm::bindings
