#pragma once

#include <pybind11/pybind11.h>

#include <exception>
#include <new>
#include <string>

#include "csrc/base/error.h"

// How failures leave native code, in every extension module: Error as pyvlm.errors.PyvlmError,
// arguments of a wrong type as TypeError. Called by the module once its classes are bound.
namespace pyvlm::bindings {

inline void SetPythonError(const Error& error) {
  pybind11::object exception = pybind11::module_::import("pyvlm.errors")
                                   .attr("from_native")(std::string(ErrorCodeName(error.code())),
                                                        error.what(), error.param());
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
}

inline void TranslateError(std::exception_ptr exception) {
  if (!exception) return;
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    SetPythonError(error);
  } catch (const std::bad_alloc&) {
    SetPythonError(Error(ErrorCode::kOutOfMemory, "out of memory"));
  } catch (const pybind11::cast_error& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
  }
}

// An object made by `Class.__new__(Class)` alone, as copy.copy does it, has no value. pybind11
// would give it memory that no constructor has seen when it is first used; this makes the use a
// TypeError.
inline void RefuseUninitialised(const pybind11::module_& module) {
  for (const auto& entry : module.attr("__dict__").cast<pybind11::dict>()) {
    if (!pybind11::isinstance<pybind11::type>(entry.second)) continue;
    auto* type = reinterpret_cast<PyTypeObject*>(entry.second.ptr());
    auto* info = pybind11::detail::get_type_info(type);
    if (info == nullptr) continue;
    info->operator_new = [](std::size_t) -> void* {
      throw pybind11::type_error("the object was made without __init__");
    };
  }
}

// A member function as one of a reference, so that None is no `self`: pybind11 itself would make it
// one of a pointer.
template <typename Class, typename Result, typename... Args>
auto ByReference(Result (Class::*member)(Args...)) {
  return [member](Class& self, Args... args) -> Result {
    return (self.*member)(std::forward<Args>(args)...);
  };
}
template <typename Class, typename Result, typename... Args>
auto ByReference(Result (Class::*member)(Args...) const) {
  return [member](const Class& self, Args... args) -> Result {
    return (self.*member)(std::forward<Args>(args)...);
  };
}

}  // namespace pyvlm::bindings
