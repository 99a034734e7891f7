#include "csrc/iree/program.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <tuple>

#include "csrc/iree/entry_points.h"
#include "csrc/iree/kernel_provider.h"
#include "csrc/iree/status.h"

namespace pyvlm {
namespace {

constexpr ErrorCode kMismatch = ErrorCode::kProgramMismatch;

void UnmapArchive(void* user_data, iree_io_file_handle_primitive_t) {
  delete static_cast<MappedFile*>(user_data);
}

// The handle owns the mapping from here on; buffers made of it keep the handle alive.
Ref<iree_io_file_handle_t> WrapFile(std::unique_ptr<MappedFile> file) {
  iree_byte_span_t span = {const_cast<uint8_t*>(file->data()), file->size()};
  Ref<iree_io_file_handle_t> handle;
  Check(Iree().io_file_handle_wrap_host_allocation(IREE_IO_FILE_ACCESS_READ, span,
                                                   {UnmapArchive, file.get()}, HostAllocator(),
                                                   handle.Out()),
        kMismatch, "mapping the parameter archive");
  file.release();
  return handle;
}

// "0rIr_rr" -> {"rIr", "rr"}; a 'v' stands for nothing.
std::pair<std::string, std::string> SplitSignature(std::string_view convention) {
  if (!convention.empty() && convention[0] == '0') convention.remove_prefix(1);
  size_t split = convention.find('_');
  std::string arguments(convention.substr(0, split));
  std::string results;
  if (split != std::string_view::npos) results = convention.substr(split + 1);
  std::erase(arguments, 'v');
  std::erase(results, 'v');
  return {arguments, results};
}

[[noreturn]] void ThrowArgument(const Function& function, size_t index, const std::string& reason) {
  throw Error(ErrorCode::kInvalidParameter,
              "argument " + std::to_string(index) + " of " + function.name + " " + reason);
}

void PushInteger(iree_vm_list_t* list, const Function& function, size_t index, int64_t integer) {
  iree_vm_value_t value{};
  switch (function.arguments[index]) {
    case 'I':
      value.type = IREE_VM_VALUE_TYPE_I64;
      value.i64 = integer;
      break;
    case 'i':
      if (integer < std::numeric_limits<int32_t>::min() ||
          integer > std::numeric_limits<int32_t>::max()) {
        ThrowArgument(function, index, "does not fit in 32 bits");
      }
      value.type = IREE_VM_VALUE_TYPE_I32;
      value.i32 = static_cast<int32_t>(integer);
      break;
    default:
      ThrowArgument(function, index, "is not an integer");
  }
  Check(Iree().vm_list_push_value(list, &value), ErrorCode::kEngineFailed, "passing an argument");
}

Ref<iree_vm_list_t> MakeList(size_t capacity) {
  Ref<iree_vm_list_t> list;
  Check(Iree().vm_list_create(iree_vm_type_def_t{}, capacity, HostAllocator(), list.Out()),
        ErrorCode::kEngineFailed, "creating an argument list");
  return list;
}

Ref<iree_vm_list_t> PackArguments(const Function& function, const std::vector<Value>& arguments) {
  if (arguments.size() != function.arguments.size()) {
    throw Error(ErrorCode::kInvalidParameter,
                function.name + " takes " + std::to_string(function.arguments.size()) +
                    " arguments, not " + std::to_string(arguments.size()));
  }
  Ref<iree_vm_list_t> list = MakeList(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].view) {
      PushInteger(list.get(), function, i, arguments[i].integer);
      continue;
    }
    if (function.arguments[i] != 'r') ThrowArgument(function, i, "is not a tensor");
    iree_vm_ref_t ref = Iree().hal_buffer_view_retain_ref(arguments[i].view.get());
    Check(Iree().vm_list_push_ref_move(list.get(), &ref), ErrorCode::kEngineFailed,
          "passing an argument");
  }
  return list;
}

Value UnpackResult(iree_vm_list_t* list, const Function& function, size_t index) {
  if (function.results[index] == 'r') {
    auto view = BufferView::Steal(Iree().vm_list_get_buffer_view_retain(list, index));
    if (view) return Value::Tensor(std::move(view));
    throw Error(ErrorCode::kEngineFailed,
                "result " + std::to_string(index) + " of " + function.name + " is not a tensor");
  }
  iree_vm_value_t value{};
  Check(Iree().vm_list_get_value(list, index, &value), ErrorCode::kEngineFailed,
        "reading a result");
  return Value::Integer(value.type == IREE_VM_VALUE_TYPE_I32 ? value.i32 : value.i64);
}

}  // namespace

Program::Program(std::shared_ptr<Device> device, const std::string& module_path,
                 const std::string& archive_path, std::optional<ModelSpec> spec)
    : device_(std::move(device)), spec_(std::move(spec)), module_file_(module_path) {
  device_->RequireOwnProcess();
  if (spec_) Validate(*spec_);
  CreateContext(module_path, archive_path);
  IndexFunctions();
  if (!spec_) return;
  for (const Signature& expected : RequiredFunctions(*spec_)) {
    const Function& function = Find(expected.name);
    if (function.arguments == expected.arguments && function.results == expected.results) continue;
    throw Error(kMismatch, expected.name + " of " + module_path + " has the signature " +
                               function.arguments + " -> " + function.results +
                               ", the manifest implies " + expected.arguments + " -> " +
                               expected.results);
  }
}

Ref<iree_vm_module_t> Program::LoadParameters(const std::string& archive_path) {
  Ref<iree_io_file_handle_t> file = WrapFile(std::make_unique<MappedFile>(archive_path));
  Ref<iree_io_parameter_index_t> index;
  Check(Iree().io_parameter_index_create(HostAllocator(), index.Out()), kMismatch,
        "creating the parameter index");
  Check(Iree().io_parse_irpa_index(file.get(), index.get(), HostAllocator()), kMismatch,
        "reading " + archive_path);
  Ref<iree_io_parameter_provider_t> provider;
  Check(Iree().io_parameter_index_provider_create(
            StringView("model"), index.get(),
            IREE_IO_PARAMETER_INDEX_PROVIDER_DEFAULT_MAX_CONCURRENT_OPERATIONS, HostAllocator(),
            provider.Out()),
        kMismatch, "providing the parameters");
  iree_io_parameter_provider_t* providers[] = {provider.get()};
  Ref<iree_vm_module_t> module;
  Check(Iree().io_parameters_module_create(device_->instance(), 1, providers, HostAllocator(),
                                           module.Out()),
        kMismatch, "providing the parameters");
  return module;
}

void Program::CreateContext(const std::string& module_path, const std::string& archive_path) {
  iree_hal_device_t* devices[] = {device_->hal()};
  Ref<iree_vm_module_t> hal;
  Check(Iree().hal_module_create(device_->instance(), Iree().hal_module_device_policy_default(), 1,
                                 devices, IREE_HAL_MODULE_FLAG_NONE,
                                 Iree().hal_module_debug_sink_null(), HostAllocator(), hal.Out()),
        kMismatch, "creating the HAL module");
  Ref<iree_vm_module_t> parameters;
  if (!archive_path.empty()) parameters = LoadParameters(archive_path);
  Check(Iree().vm_bytecode_module_create(device_->instance(),
                                         {module_file_.data(), module_file_.size()},
                                         {nullptr, nullptr}, HostAllocator(), module_.Out()),
        kMismatch, "loading " + module_path);
  std::vector<iree_vm_module_t*> modules = {hal.get()};
  if (parameters) modules.push_back(parameters.get());
  modules.push_back(module_.get());
  const int64_t kernels_before = NumKernelsResolved();
  Check(Iree().vm_context_create_with_modules(device_->instance(), IREE_VM_CONTEXT_FLAG_NONE,
                                              modules.size(), modules.data(), HostAllocator(),
                                              context_.Out()),
        kMismatch, "initialising " + module_path);
  has_native_kernels_ = NumKernelsResolved() > kernels_before;
}

void Program::IndexFunctions() {
  size_t count = Iree().vm_module_signature(module_.get()).export_function_count;
  for (size_t ordinal = 0; ordinal < count; ++ordinal) {
    Function function;
    Check(Iree().vm_module_lookup_function_by_ordinal(
              module_.get(), IREE_VM_FUNCTION_LINKAGE_EXPORT, ordinal, &function.handle),
          kMismatch, "listing the functions");
    iree_string_view_t name = Iree().vm_function_name(&function.handle);
    function.name.assign(name.data, name.size);
    iree_string_view_t convention =
        Iree().vm_function_signature(&function.handle).calling_convention;
    std::tie(function.arguments, function.results) =
        SplitSignature({convention.data, convention.size});
    functions_.emplace(function.name, std::move(function));
  }
}

const ModelSpec& Program::spec() const {
  if (!spec_) throw Error(kMismatch, "the program was loaded without a model spec");
  return *spec_;
}

const Function& Program::Find(std::string_view name) const {
  auto found = functions_.find(std::string(name));
  if (found == functions_.end()) {
    throw Error(kMismatch, "the program has no function " + std::string(name));
  }
  return found->second;
}

std::vector<std::string> Program::FunctionNames() const {
  std::vector<std::string> names;
  for (const auto& [name, function] : functions_) {
    if (!name.starts_with("__")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<Value> Program::Invoke(const Function& function, const std::vector<Value>& arguments) {
  RequireOwnProcess();
  Ref<iree_vm_list_t> inputs = PackArguments(function, arguments);
  Ref<iree_vm_list_t> outputs = MakeList(function.results.size());
  {
    std::lock_guard lock(mutex_);
    Check(Iree().vm_invoke(context_.get(), function.handle, IREE_VM_INVOCATION_FLAG_NONE, nullptr,
                           inputs.get(), outputs.get(), HostAllocator()),
          ErrorCode::kEngineFailed, "running " + function.name);
  }
  std::vector<Value> results;
  results.reserve(function.results.size());
  for (size_t i = 0; i < function.results.size(); ++i) {
    results.push_back(UnpackResult(outputs.get(), function, i));
  }
  return results;
}

}  // namespace pyvlm
