// pyvlm._core: the seam between Python and the native engine. pyvlm/_core.pyi specifies it.
#include "csrc/bindings/bindings.h"
#include "csrc/bindings/errors.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "Native core of pyvlm: devices, programs and the engine.";
  pyvlm::bindings::BindErrors(module);
  pyvlm::bindings::BindDevice(module);
  pyvlm::bindings::BindProgram(module);
  pyvlm::bindings::BindPrepared(module);
  pyvlm::bindings::BindEngine(module);
  pyvlm::bindings::RefuseUninitialised(module);
}
