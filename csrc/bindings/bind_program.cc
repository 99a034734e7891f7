#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "csrc/bindings/arrays.h"
#include "csrc/bindings/bindings.h"
#include "csrc/bindings/errors.h"
#include "csrc/bindings/integer.h"
#include "csrc/iree/program.h"

namespace py = pybind11;

namespace pyvlm::bindings {
namespace {

FloatType ParseFloatType(const std::string& name) {
  if (name == "f16") return FloatType::kF16;
  if (name == "f32") return FloatType::kF32;
  throw Error(ErrorCode::kInvalidParameter, "kv_dtype must be f16 or f32, not " + name, "kv_dtype");
}

EntryPoint MakeEntryPoint(std::string function, Integer size, Integer context) {
  return {.function = std::move(function),
          .size = Narrow<int64_t>(size, "size"),
          .context = Narrow<int64_t>(context, "context")};
}

VisionSpec MakeVision(Integer num_patches, Integer grid, Integer patch_dim, Integer hidden_size,
                      Integer rows_per_tile, Integer num_block_groups) {
  return {.num_patches = Narrow<int64_t>(num_patches, "num_patches"),
          .grid = Narrow<int64_t>(grid, "grid"),
          .patch_dim = Narrow<int64_t>(patch_dim, "patch_dim"),
          .hidden_size = Narrow<int64_t>(hidden_size, "hidden_size"),
          .rows_per_tile = Narrow<int64_t>(rows_per_tile, "rows_per_tile"),
          .num_block_groups = Narrow<int64_t>(num_block_groups, "num_block_groups")};
}

ModelSpec MakeSpec(Integer hidden_size, Integer vocab_size, Integer num_layers, Integer num_heads,
                   Integer num_kv_heads, Integer head_dim, Integer num_slots, Integer capacity,
                   std::vector<EntryPoint> prefill, std::vector<EntryPoint> decode,
                   const std::string& kv_dtype, bool all_logits, std::optional<VisionSpec> vision) {
  ModelSpec spec;
  spec.hidden_size = Narrow<int64_t>(hidden_size, "hidden_size");
  spec.vocab_size = Narrow<int64_t>(vocab_size, "vocab_size");
  spec.num_layers = Narrow<int64_t>(num_layers, "num_layers");
  spec.num_heads = Narrow<int64_t>(num_heads, "num_heads");
  spec.num_kv_heads = Narrow<int64_t>(num_kv_heads, "num_kv_heads");
  spec.head_dim = Narrow<int64_t>(head_dim, "head_dim");
  spec.kv_type = ParseFloatType(kv_dtype);
  spec.num_slots = Narrow<int64_t>(num_slots, "num_slots");
  spec.capacity = Narrow<int64_t>(capacity, "capacity");
  spec.prefill = std::move(prefill);
  spec.decode = std::move(decode);
  spec.all_logits = all_logits;
  spec.vision = vision;
  return spec;
}

Value ToValue(const Device& device, const py::handle& argument, bool copy) {
  if (py::isinstance<py::array>(argument)) {
    return Value::Tensor(ToTensor(device, py::reinterpret_borrow<py::array>(argument), copy));
  }
  if (const std::optional<Integer> number = ToInteger(argument)) {
    return Value::Integer(Narrow<int64_t>(*number, "args"));
  }
  throw Error(ErrorCode::kInvalidParameter,
              "arguments are arrays or integers, not " +
                  std::string(py::str(py::type::handle_of(argument).attr("__name__"))));
}

py::list Invoke(const std::shared_ptr<Program>& program, const std::string& function,
                const py::sequence& arguments, bool copy) {
  if (!program) throw py::type_error("invoke() of no Program");
  program->RequireOwnProcess();  // before its device is given memory to hold
  std::vector<Value> values;
  for (const py::handle& argument : arguments) {
    values.push_back(ToValue(*program->device(), argument, copy));
  }
  std::vector<Value> results;
  {
    py::gil_scoped_release release;
    results = program->Invoke(program->Find(function), values);
  }
  py::list list;
  for (const Value& result : results) {
    if (result.view) {
      list.append(ToArray(program, result.view));
    } else {
      list.append(result.integer);
    }
  }
  return list;
}

// The system would read a shorter path.
void CheckPath(const std::string& path, const char* name) {
  if (path.find('\0') == std::string::npos) return;
  throw Error(ErrorCode::kInvalidParameter, std::string(name) + " holds a zero byte", name);
}

std::shared_ptr<Program> MakeProgram(std::shared_ptr<Device> device, const std::string& module_path,
                                     const std::string& archive_path,
                                     std::optional<ModelSpec> spec) {
  if (!device) throw Error(ErrorCode::kInvalidParameter, "a program needs a device", "device");
  CheckPath(module_path, "vmfb_path");
  CheckPath(archive_path, "archive_path");
  py::gil_scoped_release release;
  return MakeSharedUnlessForked<Program>(std::move(device), module_path, archive_path,
                                         std::move(spec));
}

void BindSpecs(py::module_& module) {
  py::class_<EntryPoint>(module, "EntryPoint")
      .def(py::init(&MakeEntryPoint), py::arg("function"), py::arg("size"), py::arg("context"))
      .def_readonly("function", &EntryPoint::function)
      .def_readonly("size", &EntryPoint::size)
      .def_readonly("context", &EntryPoint::context);
  py::class_<VisionSpec>(module, "VisionSpec")
      .def(py::init(&MakeVision), py::kw_only(), py::arg("num_patches"), py::arg("grid"),
           py::arg("patch_dim"), py::arg("hidden_size"), py::arg("rows_per_tile"),
           py::arg("num_block_groups"))
      .def_readonly("num_patches", &VisionSpec::num_patches)
      .def_readonly("grid", &VisionSpec::grid)
      .def_readonly("patch_dim", &VisionSpec::patch_dim)
      .def_readonly("hidden_size", &VisionSpec::hidden_size)
      .def_readonly("rows_per_tile", &VisionSpec::rows_per_tile)
      .def_readonly("num_block_groups", &VisionSpec::num_block_groups);
  py::class_<ModelSpec>(module, "ModelSpec")
      .def(py::init(&MakeSpec), py::kw_only(), py::arg("hidden_size"), py::arg("vocab_size"),
           py::arg("num_layers"), py::arg("num_heads"), py::arg("num_kv_heads"),
           py::arg("head_dim"), py::arg("num_slots"), py::arg("capacity"), py::arg("prefill"),
           py::arg("decode"), py::arg("kv_dtype") = "f16", py::arg("all_logits") = false,
           py::arg("vision") = py::none())
      .def_readonly("hidden_size", &ModelSpec::hidden_size)
      .def_readonly("vocab_size", &ModelSpec::vocab_size)
      .def_readonly("num_layers", &ModelSpec::num_layers)
      .def_readonly("num_heads", &ModelSpec::num_heads)
      .def_readonly("num_kv_heads", &ModelSpec::num_kv_heads)
      .def_readonly("head_dim", &ModelSpec::head_dim)
      .def_readonly("num_slots", &ModelSpec::num_slots)
      .def_readonly("capacity", &ModelSpec::capacity)
      .def_readonly("prefill", &ModelSpec::prefill)
      .def_readonly("decode", &ModelSpec::decode)
      .def_readonly("all_logits", &ModelSpec::all_logits)
      .def_readonly("vision", &ModelSpec::vision)
      .def_property_readonly("kv_dtype", [](const ModelSpec& spec) {
        return spec.kv_type == FloatType::kF16 ? "f16" : "f32";
      });
}

}  // namespace

void BindProgram(py::module_& module) {
  BindSpecs(module);
  py::class_<Program, std::shared_ptr<Program>>(module, "Program")
      .def(py::init(&MakeProgram), py::arg("device"), py::arg("vmfb_path"),
           py::arg("archive_path") = "", py::arg("spec") = py::none())
      .def_property_readonly("device", ByReference(&Program::device))
      .def_property_readonly("spec", ByReference(&Program::spec))
      .def_property_readonly("functions", ByReference(&Program::FunctionNames))
      .def("invoke", &Invoke, py::arg("function"), py::arg("args"), py::kw_only(),
           py::arg("copy") = true);
}

}  // namespace pyvlm::bindings
