#pragma once

#include <string>
#include <vector>

#include "csrc/iree/ref.h"

namespace pyvlm {

// Names of the drivers that the loaded library can create devices with, "local-task" first.
std::vector<std::string> DriverNames();

// The default device of a driver other than local-task. Throws Error(device_unavailable): the
// library lacks the driver (the message lists those it has), or the driver finds no device.
Ref<iree_hal_device_t> CreateDriverDevice(const std::string& driver);

}  // namespace pyvlm
