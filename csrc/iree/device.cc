#include "csrc/iree/device.h"

#include "csrc/iree/cpu_count.h"
#include "csrc/iree/drivers.h"
#include "csrc/iree/kernel_provider.h"
#include "csrc/iree/status.h"

namespace pyvlm {
namespace {

constexpr ErrorCode kUnavailable = ErrorCode::kDeviceUnavailable;

DeviceOptions Checked(DeviceOptions options) {
  auto reject = [](const char* field, const std::string& reason) {
    throw Error(ErrorCode::kInvalidParameter, std::string(field) + " " + reason, field);
  };
  if (options.num_threads < 0 || options.num_threads > IREE_TASK_EXECUTOR_MAX_WORKER_COUNT) {
    reject("num_threads", "must be 0 to " + std::to_string(IREE_TASK_EXECUTOR_MAX_WORKER_COUNT) +
                              ", not " + std::to_string(options.num_threads));
  }
  if (options.worker_spin_us < 0) reject("worker_spin_us", "must not be negative");
  if (options.worker_stack_bytes < (128 << 10)) {
    reject("worker_stack_bytes", "must be at least 131072");
  }
  if (options.max_idle_bytes < 0) reject("max_idle_bytes", "must not be negative");
  return options;
}

int ThreadCount(const DeviceOptions& options) {
  if (options.driver != "local-task") return 0;
  if (options.num_threads > 0) return options.num_threads;
  return std::min(AvailableCores(), IREE_TASK_EXECUTOR_MAX_WORKER_COUNT);
}

}  // namespace

Device::Device(DeviceOptions options)
    : options_(Checked(std::move(options))),
      num_threads_(ThreadCount(options_)),
      memory_(static_cast<size_t>(options_.max_idle_bytes)) {
  Check(Iree().vm_instance_create(IREE_VM_TYPE_CAPACITY_DEFAULT, HostAllocator(), instance_.Out()),
        kUnavailable, "creating the VM");
  Check(Iree().hal_module_register_all_types(instance_.get()), kUnavailable,
        "registering the VM types");
  device_ =
      options_.driver == "local-task" ? CreateLocalTask() : CreateDriverDevice(options_.driver);
}

Ref<iree_task_executor_t> Device::CreateExecutor() {
  iree_task_topology_t topology;
  Iree().task_topology_initialize_from_group_count(static_cast<size_t>(num_threads_), &topology);
  iree_task_executor_options_t options;
  Iree().task_executor_options_initialize(&options);
  options.worker_spin_ns = options_.worker_spin_us * 1000;
  options.worker_stack_size = static_cast<size_t>(options_.worker_stack_bytes);
  Ref<iree_task_executor_t> executor;
  iree_status_t status =
      Iree().task_executor_create(options, &topology, HostAllocator(), executor.Out());
  Iree().task_topology_deinitialize(&topology);
  Check(status, kUnavailable, "starting " + std::to_string(num_threads_) + " workers");
  return executor;
}

Ref<iree_hal_executable_loader_t> Device::CreateLoader() {
  Ref<iree_hal_executable_plugin_manager_t> plugins;
  Check(Iree().hal_executable_plugin_manager_create(1, HostAllocator(), plugins.Out()),
        kUnavailable, "creating the plugin manager");
  Check(Iree().hal_executable_plugin_manager_register_provider(plugins.get(), KernelProvider()),
        kUnavailable, "registering the native kernels");
  Ref<iree_hal_executable_loader_t> loader;
  Check(Iree().hal_embedded_elf_loader_create(plugins.get(), HostAllocator(), loader.Out()),
        kUnavailable, "creating the executable loader");
  return loader;
}

Ref<iree_hal_device_t> Device::CreateLocalTask() {
  Ref<iree_task_executor_t> executor = CreateExecutor();
  Ref<iree_hal_executable_loader_t> loader = CreateLoader();
  Ref<iree_hal_allocator_t> allocator;
  // The same allocator for headers and data makes one block of each buffer.
  Check(Iree().hal_allocator_create_heap(StringView("local"), memory_.allocator(),
                                         memory_.allocator(), allocator.Out()),
        kUnavailable, "creating the device allocator");
  iree_hal_task_device_params_t params;
  Iree().hal_task_device_params_initialize(&params);
  iree_task_executor_t* executors[] = {executor.get()};
  iree_hal_executable_loader_t* loaders[] = {loader.get()};
  Ref<iree_hal_device_t> device;
  Check(Iree().hal_task_device_create(StringView("local-task"), &params, 1, executors, 1, loaders,
                                      allocator.get(), HostAllocator(), device.Out()),
        kUnavailable, "creating the local-task device");
  return device;
}

}  // namespace pyvlm
