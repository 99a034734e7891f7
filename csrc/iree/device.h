#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "csrc/base/process_mark.h"
#include "csrc/iree/block_pool.h"
#include "csrc/iree/ref.h"

namespace pyvlm {

struct DeviceOptions {
  std::string driver = "local-task";
  // The rest is for local-task alone.
  int num_threads = 0;  // 0 = one per available physical core; 1 runs dispatches one by one
  // How long an idle worker spins before it sleeps. A step is a chain of dispatches a few
  // microseconds apart: less than it takes to wake a sleeping worker.
  int64_t worker_spin_us = 50;
  // Some compiled dispatches need more than the runtime's default of 128 KiB.
  int64_t worker_stack_bytes = int64_t{1} << 20;
  // Freed memory of transient buffers that is kept for the next call.
  int64_t max_idle_bytes = int64_t{512} << 20;
};

// A device with its workers and memory, and the VM instance that programs for it live in.
// Any thread. Destroyed after everything that was created from it: hold it by shared_ptr.
class Device {
 public:
  // Throws Error: device_unavailable (message lists the drivers present), invalid_parameter,
  // runtime_missing before LoadIree.
  explicit Device(DeviceOptions options);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Throws engine_dead in a child of the process that made the device: its workers are not there.
  void RequireOwnProcess() const { mark_.Require("the device"); }

  const std::string& driver() const { return options_.driver; }
  // Workers of local-task; 0 for other drivers.
  int num_threads() const { return num_threads_; }
  const BlockPool& memory() const { return memory_; }

  iree_vm_instance_t* instance() const { return instance_.get(); }
  iree_hal_device_t* hal() const { return device_.get(); }
  iree_hal_allocator_t* allocator() const { return Iree().hal_device_allocator(device_.get()); }

 private:
  Ref<iree_task_executor_t> CreateExecutor();
  Ref<iree_hal_executable_loader_t> CreateLoader();
  Ref<iree_hal_device_t> CreateLocalTask();

  const ProcessMark mark_;
  DeviceOptions options_;
  int num_threads_ = 0;
  // Destroyed in reverse: the memory goes last.
  BlockPool memory_;
  Ref<iree_vm_instance_t> instance_;
  Ref<iree_hal_device_t> device_;
};

}  // namespace pyvlm
