#include "csrc/iree/cpu_count.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <string>

namespace pyvlm {
namespace {

// The processors that share a core with `processor`, e.g. "0,32"; a name of the core.
std::string CoreOf(int processor) {
  std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(processor) +
                     "/topology/thread_siblings_list");
  std::string siblings;
  if (!std::getline(file, siblings)) return std::to_string(processor);
  return siblings;
}

int AffinityCores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) != 0) return 1;
  std::set<std::string> cores;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &mask)) cores.insert(CoreOf(processor));
  }
  return static_cast<int>(cores.size());
}

// Cores' worth of time of cgroup v2, rounded up; 0 if unlimited or unknown.
int QuotaCores() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 0;
  return static_cast<int>(std::ceil(std::atof(quota.c_str()) / period));
}

}  // namespace

int AvailableCores() {
  int cores = std::max(AffinityCores(), 1);
  int quota = QuotaCores();
  return quota > 0 ? std::min(cores, quota) : cores;
}

}  // namespace pyvlm
