#pragma once

#include <pybind11/numpy.h>

#include <memory>
#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/iree/program.h"

// NumPy arrays to tensors and back. The GIL is held in all of it.
namespace pyvlm::bindings {

inline iree_hal_element_type_t ElementTypeFor(const pybind11::dtype& dtype) {
  // Of another byte order: none of those below.
  const char kind = dtype.byteorder() == '>' ? '\0' : dtype.kind();
  const auto size = dtype.itemsize();
  if (kind == 'f' && size == 2) return IREE_HAL_ELEMENT_TYPE_FLOAT_16;
  if (kind == 'f' && size == 4) return IREE_HAL_ELEMENT_TYPE_FLOAT_32;
  if (kind == 'f' && size == 8) return IREE_HAL_ELEMENT_TYPE_FLOAT_64;
  if (kind == 'i' && size == 1) return IREE_HAL_ELEMENT_TYPE_INT_8;
  if (kind == 'i' && size == 2) return IREE_HAL_ELEMENT_TYPE_INT_16;
  if (kind == 'i' && size == 4) return IREE_HAL_ELEMENT_TYPE_INT_32;
  if (kind == 'i' && size == 8) return IREE_HAL_ELEMENT_TYPE_INT_64;
  if (kind == 'u' && size == 1) return IREE_HAL_ELEMENT_TYPE_UINT_8;
  throw Error(ErrorCode::kInvalidParameter,
              "arrays of dtype " + std::string(pybind11::str(dtype)) + " are not supported");
}

inline pybind11::dtype DtypeFor(iree_hal_element_type_t type) {
  const uint32_t numerical = type >> 24;
  std::string name(1, (numerical & 0x20) != 0 ? 'f' : numerical == 0x12 ? 'u' : 'i');
  name += std::to_string(ElementBytes(type));
  return pybind11::dtype(name);
}

// Keeps a Python object from any thread; the last owner takes the GIL to let go of it.
inline std::shared_ptr<const void> Keep(pybind11::object object) {
  return {object.release().ptr(), [](const void* pointer) {
            pybind11::gil_scoped_acquire gil;
            Py_DECREF(static_cast<PyObject*>(const_cast<void*>(pointer)));
          }};
}

// A C-contiguous array as a tensor. With `copy` the tensor is new memory; without, it is the
// array's own (aligned to kBufferAlignment), which a consuming argument then writes into.
inline BufferView ToTensor(const Device& device, const pybind11::array& array, bool copy) {
  if ((array.flags() & pybind11::array::c_style) == 0) {
    throw Error(ErrorCode::kInvalidParameter, "arrays must be C-contiguous");
  }
  iree_hal_element_type_t type = ElementTypeFor(array.dtype());
  std::vector<int64_t> shape(array.shape(), array.shape() + array.ndim());
  Buffer buffer;
  if (copy) {
    buffer = Allocate(device, array.nbytes());
    Write(device, buffer, array.data(), array.nbytes());
  } else {
    // Nothing at run time tells consumed arguments from others.
    if (!array.writeable()) {
      throw Error(ErrorCode::kInvalidParameter,
                  "a read-only array cannot be passed without a copy: the call may write into it");
    }
    buffer = Import(device, array.data(), array.nbytes(), Keep(array));
  }
  return MakeView(buffer, type, shape);
}

// A tensor as an array over the device's memory where the host can map it, else over a copy.
// The array keeps memory and program alive.
inline pybind11::array ToArray(std::shared_ptr<Program> program, const BufferView& view) {
  struct Owner {
    std::shared_ptr<Program> program;  // goes last
    HostView memory;
  };
  auto owner =
      std::make_unique<Owner>(Owner{program, HostView(*program->device(), BufferOf(view))});
  const void* data = owner->memory.data();
  pybind11::capsule base(owner.get(), [](void* pointer) { delete static_cast<Owner*>(pointer); });
  owner.release();
  return pybind11::array(DtypeFor(ElementTypeOf(view)), ShapeOf(view), data, base);
}

}  // namespace pyvlm::bindings
