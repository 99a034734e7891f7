#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "csrc/base/process_mark.h"
#include "csrc/engine/model_spec.h"
#include "csrc/iree/buffers.h"
#include "csrc/iree/device.h"
#include "csrc/iree/mapped_file.h"
#include "csrc/iree/ref.h"

namespace pyvlm {

// An exported function of a Program. Valid as long as the Program.
struct Function {
  std::string name;
  iree_vm_function_t handle{};
  std::string arguments;  // one letter an argument: 'r' a tensor, 'I' i64 (index), 'i' i32, 'f' f32
  std::string results;    // the same for the results
};

// What a call takes and gives: a tensor or an integer.
struct Value {
  static Value Tensor(BufferView view) { return {std::move(view), 0}; }
  static Value Integer(int64_t integer) { return {{}, integer}; }

  BufferView view;  // null for an integer
  int64_t integer = 0;
};

// A compiled module with its weights, loaded on a device. Any thread; calls are made one at a time.
//
// The module file and the parameter archive are mapped, not read. On a device that shares the
// host's memory the weights are used in the mapping itself, so files on disk must be replaced by
// renaming, never by writing into them.
class Program {
 public:
  // Loads `module_path` and, unless the path is empty, the parameters of `archive_path` (scope
  // "model"). With a `spec` the functions that it implies are looked up and their signatures
  // checked. Throws Error(program_mismatch) if a file is unreadable, no module of this runtime, or
  // no archive; if a parameter or a native kernel is missing; if a function is missing or takes
  // other arguments than the spec implies. Throws engine_dead if the device is of a parent process.
  Program(std::shared_ptr<Device> device, const std::string& module_path,
          const std::string& archive_path, std::optional<ModelSpec> spec);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Throws engine_dead in a child of the process that loaded the program. What uses the program's
  // device on its own asks first.
  void RequireOwnProcess() const { mark_.Require("the program"); }

  const std::shared_ptr<Device>& device() const { return device_; }
  // The shape that the program was checked against. Throws program_mismatch if loaded without one.
  const ModelSpec& spec() const;

  // True if the program calls native kernels. Such programs read what they are given through
  // kernels alone, so inputs may have any alignment (Import).
  bool has_native_kernels() const { return has_native_kernels_; }

  // The exported function `name`; throws Error(program_mismatch) if the module has none.
  const Function& Find(std::string_view name) const;
  std::vector<std::string> FunctionNames() const;  // sorted

  // Runs `function` to its end. A tensor given to an argument with the attribute
  // iree.abi.consume may be overwritten, and the result may be that very buffer.
  // Throws invalid_parameter if number or kind of arguments do not fit, engine_failed if it fails,
  // engine_dead in a child of the process that loaded the program.
  std::vector<Value> Invoke(const Function& function, const std::vector<Value>& arguments);

 private:
  Ref<iree_vm_module_t> LoadParameters(const std::string& archive_path);
  void CreateContext(const std::string& module_path, const std::string& archive_path);
  void IndexFunctions();

  const ProcessMark mark_;
  // Destroyed in reverse: the context goes before the module, that before its file.
  std::shared_ptr<Device> device_;
  std::optional<ModelSpec> spec_;
  MappedFile module_file_;
  Ref<iree_vm_module_t> module_;
  Ref<iree_vm_context_t> context_;
  std::unordered_map<std::string, Function> functions_;
  bool has_native_kernels_ = false;
  std::mutex mutex_;  // guards context_: one invocation at a time
};

}  // namespace pyvlm
