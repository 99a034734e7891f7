// Every pyvlm::Error leaves native code as pyvlm.errors.PyvlmError; here and nowhere else.
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/bindings/bindings.h"

namespace py = pybind11;

namespace pyvlm::bindings {
namespace {

void SetPythonError(const Error& error) {
  py::object exception = py::module_::import("pyvlm.errors")
                             .attr("from_native")(std::string(ErrorCodeName(error.code())),
                                                  error.what(), error.param());
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
}

void Translate(std::exception_ptr exception) {
  if (!exception) return;
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    SetPythonError(error);
  } catch (const std::bad_alloc&) {
    SetPythonError(Error(ErrorCode::kOutOfMemory, "out of memory"));
  }
}

std::vector<std::string> ErrorCodes() {
  std::vector<std::string> names;
  for (ErrorCode code : kAllErrorCodes) names.emplace_back(ErrorCodeName(code));
  return names;
}

}  // namespace

void BindErrors(py::module_& module) {
  py::register_local_exception_translator(Translate);
  module.def("error_codes", ErrorCodes, "Codes that native code can raise.");
}

}  // namespace pyvlm::bindings
