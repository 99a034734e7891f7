#include "csrc/iree/drivers.h"

#include "csrc/iree/status.h"

namespace pyvlm {
namespace {

constexpr const char* kLocalTask = "local-task";

[[noreturn]] void ThrowUnknown(const std::string& driver) {
  std::string present;
  for (const std::string& name : DriverNames()) present += (present.empty() ? "" : ", ") + name;
  throw Error(ErrorCode::kDeviceUnavailable,
              "the IREE library has no driver '" + driver + "'; it has: " + present, "device");
}

}  // namespace

#if defined(PYVLM_IREE_INSTALLED)

namespace {

iree_hal_driver_registry_t* Registry() {
  static iree_hal_driver_registry_t* registry = [] {
    iree_hal_driver_registry_t* drivers = iree_hal_driver_registry_default();
    Check(iree_hal_register_all_available_drivers(drivers), ErrorCode::kDeviceUnavailable,
          "registering the drivers");
    return drivers;
  }();
  return registry;
}

}  // namespace

std::vector<std::string> DriverNames() {
  iree_host_size_t count = 0;
  iree_hal_driver_info_t* infos = nullptr;
  Check(iree_hal_driver_registry_enumerate(Registry(), HostAllocator(), &count, &infos),
        ErrorCode::kDeviceUnavailable, "listing the drivers");
  std::vector<std::string> names = {kLocalTask};
  for (iree_host_size_t i = 0; i < count; ++i) {
    std::string name(infos[i].driver_name.data, infos[i].driver_name.size);
    if (name != kLocalTask) names.push_back(std::move(name));
  }
  iree_allocator_free(HostAllocator(), infos);
  return names;
}

Ref<iree_hal_device_t> CreateDriverDevice(const std::string& driver) {
  bool known = false;
  for (const std::string& name : DriverNames()) known = known || name == driver;
  if (!known) ThrowUnknown(driver);
  Ref<iree_hal_device_t> device;
  Check(iree_hal_create_device(Registry(), StringView(driver), HostAllocator(), device.Out()),
        ErrorCode::kDeviceUnavailable, "creating a device of driver " + driver);
  return device;
}

#else

std::vector<std::string> DriverNames() {
  std::vector<std::string> names = {kLocalTask};
  if (Iree().hal_hip_driver_create != nullptr) names.push_back("hip");
  return names;
}

Ref<iree_hal_device_t> CreateDriverDevice(const std::string& driver) {
  const Symbols& iree = Iree();
  if (driver != "hip" || iree.hal_hip_driver_create == nullptr) ThrowUnknown(driver);
  iree_hal_hip_device_params_t params;
  iree.hal_hip_device_params_initialize(&params);
  iree_hal_hip_driver_options_t options;
  iree.hal_hip_driver_options_initialize(&options);
  Ref<iree_hal_driver_t> hip;
  Check(
      iree.hal_hip_driver_create(StringView(driver), &options, &params, HostAllocator(), hip.Out()),
      ErrorCode::kDeviceUnavailable, "creating the driver hip");
  Ref<iree_hal_device_t> device;
  Check(iree.hal_driver_create_default_device(hip.get(), HostAllocator(), device.Out()),
        ErrorCode::kDeviceUnavailable, "creating a device of driver hip");
  return device;
}

#endif

}  // namespace pyvlm
