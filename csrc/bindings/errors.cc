#include "csrc/bindings/errors.h"

#include <pybind11/stl.h>

#include <vector>

#include "csrc/bindings/bindings.h"

namespace py = pybind11;

namespace pyvlm::bindings {
namespace {

std::vector<std::string> ErrorCodes() {
  std::vector<std::string> names;
  for (ErrorCode code : kAllErrorCodes) names.emplace_back(ErrorCodeName(code));
  return names;
}

}  // namespace

void BindErrors(py::module_& module) {
  py::register_local_exception_translator(TranslateError);
  module.def("error_codes", ErrorCodes, "Codes that native code can raise.");
}

}  // namespace pyvlm::bindings
