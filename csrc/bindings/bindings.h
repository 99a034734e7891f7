#pragma once

#include <pybind11/pybind11.h>

// The parts of pyvlm._core, one function a file, called by module.cc in this order.
namespace pyvlm::bindings {

void BindErrors(pybind11::module_& module);
void BindDevice(pybind11::module_& module);
void BindProgram(pybind11::module_& module);
void BindPrepared(pybind11::module_& module);
void BindEngine(pybind11::module_& module);

}  // namespace pyvlm::bindings
