#pragma once

#include <utility>

#include "csrc/iree/library.h"

namespace pyvlm {

// How to count references to a T: specialised below for each IREE type, and by tests.
template <typename T>
struct RefTraits;

// Owns one reference to a reference-counted C object, or none. Like any smart pointer, one Ref is
// used by one thread at a time, while the object may be shared by several Refs on any threads.
template <typename T>
class Ref {
 public:
  Ref() = default;

  // Takes over the reference that the caller owns.
  static Ref Steal(T* object) {
    Ref ref;
    ref.object_ = object;
    return ref;
  }

  // Adds a reference of its own to an object that the caller only borrows.
  static Ref Borrow(T* object) {
    if (object != nullptr) RefTraits<T>::Retain(object);
    return Steal(object);
  }

  Ref(const Ref& other) : Ref(Borrow(other.object_)) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  // By value: serves copy, move and self assignment alike; the old reference goes last.
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Reset(); }

  void Reset() {
    if (T* object = std::exchange(object_, nullptr)) RefTraits<T>::Release(object);
  }

  // For a function that gives its result, with a reference, through a pointer: drops what is held.
  T** Out() {
    Reset();
    return &object_;
  }

  // Hands the reference to the caller.
  T* Release() { return std::exchange(object_, nullptr); }

  T* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  T* object_ = nullptr;
};

#define PYVLM_REF_TRAITS(name)                                                      \
  template <>                                                                       \
  struct RefTraits<iree_##name##_t> {                                               \
    static void Retain(iree_##name##_t* object) { Iree().name##_retain(object); }   \
    static void Release(iree_##name##_t* object) { Iree().name##_release(object); } \
  };
PYVLM_REF_TRAITS(vm_instance)
PYVLM_REF_TRAITS(vm_module)
PYVLM_REF_TRAITS(vm_context)
PYVLM_REF_TRAITS(vm_list)
PYVLM_REF_TRAITS(hal_allocator)
PYVLM_REF_TRAITS(hal_buffer)
PYVLM_REF_TRAITS(hal_buffer_view)
PYVLM_REF_TRAITS(hal_device)
PYVLM_REF_TRAITS(hal_driver)
PYVLM_REF_TRAITS(hal_executable_loader)
PYVLM_REF_TRAITS(hal_executable_plugin_manager)
PYVLM_REF_TRAITS(io_file_handle)
PYVLM_REF_TRAITS(io_parameter_index)
PYVLM_REF_TRAITS(io_parameter_provider)
PYVLM_REF_TRAITS(task_executor)
#undef PYVLM_REF_TRAITS

}  // namespace pyvlm
