#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "csrc/base/error.h"

namespace pyvlm::bindings {

// A Python integer of any size, so that one out of range raises invalid_parameter with its name
// and not a TypeError about overloads.
struct Integer {
  bool is_negative = false;
  std::uint64_t magnitude = 0;
  bool is_huge = false;  // beyond 64 bits; the magnitude is that of the largest number

  std::string Text() const {
    const std::string sign = is_negative ? "-" : "";
    return is_huge ? "a number beyond 64 bits" : sign + std::to_string(magnitude);
  }
};

// Throws kInvalidParameter unless `number` fits.
template <typename Int>
Int Narrow(const Integer& number, const char* name) {
  using Limits = std::numeric_limits<Int>;
  const auto max = static_cast<std::uint64_t>(Limits::max());
  const std::uint64_t max_magnitude = !number.is_negative ? max : Limits::is_signed ? max + 1 : 0;
  if (number.is_huge || number.magnitude > max_magnitude) {
    throw Error(ErrorCode::kInvalidParameter,
                std::string(name) + " must be " + std::to_string(Limits::min()) + " to " +
                    std::to_string(Limits::max()) + ", not " + number.Text(),
                name);
  }
  return static_cast<Int>(number.is_negative ? 0 - number.magnitude : number.magnitude);
}

template <typename Int>
std::optional<Int> Narrow(const std::optional<Integer>& number, const char* name) {
  if (!number) return std::nullopt;
  return Narrow<Int>(*number, name);
}

// None if `object` is no integer and cannot be used as one.
inline std::optional<Integer> ToInteger(pybind11::handle object) {
  if (!PyIndex_Check(object.ptr())) return std::nullopt;
  const auto index = pybind11::reinterpret_steal<pybind11::object>(PyNumber_Index(object.ptr()));
  if (!index) throw pybind11::error_already_set();
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  const auto bits = static_cast<std::uint64_t>(value);
  if (overflow == 0) return Integer{value < 0, value < 0 ? 0 - bits : bits, false};
  const Integer huge{overflow < 0, std::numeric_limits<std::uint64_t>::max(), true};
  if (overflow < 0) return huge;
  const unsigned long long large = PyLong_AsUnsignedLongLong(index.ptr());
  if (!PyErr_Occurred()) return Integer{false, large, false};
  PyErr_Clear();
  return huge;
}

}  // namespace pyvlm::bindings

template <>
struct pybind11::detail::type_caster<pyvlm::bindings::Integer> {
  PYBIND11_TYPE_CASTER(pyvlm::bindings::Integer, const_name("typing.SupportsIndex"));

  bool load(handle source, bool) {
    const auto number = pyvlm::bindings::ToInteger(source);
    if (number) value = *number;
    return number.has_value();
  }
};
