// A library with NVML's names, for nvml_facts_test.cpp: two GPUs at 0000:02:00.0 and 0000:03:00.0 (numbers 0 and 1), each
// with four NVLinks to the other, six to an NVSwitch, one to a GPU that is not there, and one that is down. The test sets the
// two variables below before the library is loaded by what it tests.
#include <cstdio>
#include <cstring>

struct FakePci {
  char old_bus_id[16];
  unsigned domain, bus, device, device_and_vendor, subsystem;
  char bus_id[32];
};

#define VISIBLE extern "C" __attribute__((visibility("default")))

extern "C" {
__attribute__((visibility("default"))) int fake_nvml_init_status = 0;         // what nvmlInit_v2 returns
__attribute__((visibility("default"))) int fake_nvml_knows_remote_types = 1;  // older drivers do not
__attribute__((visibility("default"))) int fake_nvml_is_up = 0;               // nvmlInit_v2 calls without nvmlShutdown
}

namespace {
int handles[2];
int index_of(void* device) { return static_cast<int>(static_cast<int*>(device) - handles); }
void fill(FakePci* pci, unsigned bus) {
  std::memset(pci, 0, sizeof *pci);
  pci->bus = bus;
  std::snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:00.0", 0U, bus);
}
}  // namespace

VISIBLE int nvmlInit_v2() {
  if (fake_nvml_init_status == 0) ++fake_nvml_is_up;
  return fake_nvml_init_status;
}
VISIBLE int nvmlShutdown() {
  --fake_nvml_is_up;
  return 0;
}
VISIBLE const char* nvmlErrorString(int status) { return status == 9 ? "Driver Not Loaded" : "Unknown Error"; }
VISIBLE int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 3;  // the third cannot be asked
  return 0;
}
VISIBLE int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (index > 1) return 15;
  *device = &handles[index];
  return 0;
}
VISIBLE int nvmlDeviceGetPciInfo_v3(void* device, FakePci* pci) {
  fill(pci, index_of(device) == 0 ? 2 : 3);
  return 0;
}
VISIBLE int nvmlDeviceGetName(void*, char* name, unsigned length) {
  std::snprintf(name, length, "NVIDIA H100 80GB HBM3");
  return 0;
}
VISIBLE int nvmlDeviceGetCudaComputeCapability(void*, int* major, int* minor) {
  *major = 9;
  *minor = 0;
  return 0;
}
VISIBLE int nvmlDeviceGetNvLinkState(void*, unsigned link, unsigned* is_up) {
  if (link >= 12) return 2;
  *is_up = link == 11 ? 0 : 1;
  return 0;
}
VISIBLE int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* device, unsigned link, FakePci* pci) {
  if (link < 4) fill(pci, index_of(device) == 0 ? 3 : 2);
  if (link >= 4 && link < 10) fill(pci, 0x20 + link);  // six switches
  if (link == 10) fill(pci, 0x77);
  return 0;
}
VISIBLE int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned link, unsigned* type) {
  if (fake_nvml_knows_remote_types == 0) return 3;
  *type = link >= 4 && link < 10 ? 2 : 0;
  return 0;
}
