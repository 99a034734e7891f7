#pragma once

namespace pyvlm {

// Physical cores that this process may use: the processors of its affinity mask, one for each core,
// not more than its cgroup's CPU quota. At least 1.
int AvailableCores();

}  // namespace pyvlm
