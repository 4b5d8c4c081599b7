#include "topology/nvml_facts.h"

#include "topology/hwloc_tree.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

namespace tutti::topology {

namespace {

// NVML's binary interface, as far as it is used here (NVIDIA, "NVML API Reference"). Functions return 0 for success.
struct NvmlDevice;
struct NvmlPci {
  std::array<char, 16> old_bus_id;
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned device_and_vendor;
  unsigned subsystem;
  std::array<char, 32> bus_id;  ///< "00000000:07:00.0"
};
static_assert(sizeof(NvmlPci) == 68);
constexpr unsigned kLinksMax = 36;  ///< more than any GPU has (18 on Hopper and Blackwell)
constexpr int kSuccess = 0;
enum RemoteType : unsigned { kRemoteGpu = 0, kRemoteCpu = 1, kRemoteSwitch = 2, kRemoteUnknown = 255 };

/// The functions; all but the first group may be missing in an old driver.
class Nvml {
 public:
  explicit Nvml(const std::string& library) : handle_(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) {
      const char* why = dlerror();
      problem_ = why != nullptr ? why : library + " cannot be loaded";
      return;
    }
    find("nvmlInit_v2", init_);
    find("nvmlShutdown", shutdown_);
    find("nvmlDeviceGetCount_v2", count_);
    find("nvmlDeviceGetHandleByIndex_v2", device_);
    find("nvmlDeviceGetPciInfo_v3", pci_);
    find("nvmlErrorString", error_string_, true);
    find("nvmlDeviceGetName", name_, true);
    find("nvmlDeviceGetCudaComputeCapability", capability_, true);
    find("nvmlDeviceGetNvLinkState", link_state_, true);
    find("nvmlDeviceGetNvLinkRemotePciInfo_v2", link_pci_, true);
    find("nvmlDeviceGetNvLinkRemoteDeviceType", link_type_, true);
    if (!problem_.empty()) return;
    const int status = init_();
    is_up_ = status == kSuccess;
    if (!is_up_) problem_ = fmt::format("nvmlInit: {}", text_of_status(status));
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml() {
    if (is_up_) static_cast<void>(shutdown_());
    if (handle_ != nullptr) dlclose(handle_);
  }

  const std::string& problem() const { return problem_; }

  NvmlFacts read() {
    NvmlFacts facts;
    unsigned count = 0;
    if (const int status = count_(&count); status != kSuccess) {
      facts.problem = fmt::format("nvmlDeviceGetCount: {}", text_of_status(status));
      return facts;
    }
    constexpr unsigned kDevicesMax = 1024;
    for (unsigned i = 0; i < std::min(count, kDevicesMax); ++i) {
      NvmlDevice* device = nullptr;
      NvmlPci pci{};
      int status = device_(i, &device);
      if (status == kSuccess) status = pci_(device, &pci);
      if (status == kSuccess) {
        facts.gpus.push_back(read_gpu(device, pci, static_cast<int>(i)));
      } else {
        facts.problem = fmt::format("GPU {} of {}: {}", i, count, text_of_status(status));
      }
    }
    drop_unknown_peers(facts.gpus);
    return facts;
  }

 private:
  template <class Function>
  void find(const char* name, Function& function, bool may_be_missing = false) {
    function = reinterpret_cast<Function>(dlsym(handle_, name));
    if (function == nullptr && !may_be_missing && problem_.empty()) problem_ = fmt::format("it has no {}", name);
  }
  std::string text_of_status(int status) const {
    const char* text = error_string_ != nullptr ? error_string_(status) : nullptr;
    return text != nullptr ? text : fmt::format("error {}", status);
  }
  static std::string text_of_pci(const NvmlPci& pci) { return text_of(PciAddress{pci.domain, pci.bus, pci.device, 0}); }

  GpuFacts read_gpu(NvmlDevice* device, const NvmlPci& pci, int number) const {
    GpuFacts gpu;
    gpu.bus_id = text_of_pci(pci);
    gpu.device = number;
    std::array<char, 128> name{};
    if (name_ != nullptr && name_(device, name.data(), name.size() - 1) == kSuccess) gpu.name = name.data();
    int major = 0;
    int minor = 0;
    if (capability_ != nullptr && capability_(device, &major, &minor) == kSuccess) gpu.sm = major * 10 + minor;
    for (unsigned link = 0; link < kLinksMax; ++link) {
      unsigned is_up = 0;
      if (link_state_ == nullptr || link_state_(device, link, &is_up) != kSuccess || is_up == 0) continue;
      if (const auto peer = read_peer(device, link)) count(gpu, *peer);
    }
    return gpu;
  }
  std::optional<GpuPeer> read_peer(NvmlDevice* device, unsigned link) const {
    GpuPeer peer;
    unsigned type = kRemoteUnknown;
    if (link_type_ != nullptr && link_type_(device, link, &type) != kSuccess) type = kRemoteUnknown;
    NvmlPci pci{};
    const bool has_pci = link_pci_ != nullptr && link_pci_(device, link, &pci) == kSuccess;
    if (has_pci) peer.bus_id = text_of_pci(pci);
    if (!has_pci && type != kRemoteSwitch) return std::nullopt;
    if (type == kRemoteSwitch) peer.kind = GpuPeer::Kind::kSwitch;
    if (type == kRemoteCpu) peer.kind = GpuPeer::Kind::kCpu;
    is_type_known_ = is_type_known_ || type != kRemoteUnknown;
    return peer;
  }
  /// One more link to `peer`, which has none of its own yet.
  static void count(GpuFacts& gpu, GpuPeer peer) {
    if (peer.kind != GpuPeer::Kind::kGpu) peer.bus_id.clear();
    const auto known = std::ranges::find_if(
        gpu.peers, [&](const GpuPeer& p) { return p.kind == peer.kind && p.bus_id == peer.bus_id; });
    GpuPeer& counted = known == gpu.peers.end() ? gpu.peers.emplace_back(std::move(peer)) : *known;
    ++counted.nvlinks;
  }
  /// Drivers that do not tell the type of the other end: what is no GPU of this machine is a switch. (The type tells a
  /// GPU that this container does not see from a switch.)
  void drop_unknown_peers(std::vector<GpuFacts>& gpus) const {
    std::set<std::string> known;
    for (const GpuFacts& gpu : gpus) known.insert(gpu.bus_id);
    for (GpuFacts& gpu : gpus) {
      std::vector<GpuPeer> peers;
      std::swap(peers, gpu.peers);
      for (GpuPeer& peer : peers) {
        const bool is_foreign = peer.kind == GpuPeer::Kind::kGpu && known.count(peer.bus_id) == 0;
        if (is_foreign && is_type_known_) continue;
        if (is_foreign) peer.kind = GpuPeer::Kind::kSwitch;
        const int nvlinks = std::exchange(peer.nvlinks, 0);
        for (int i = 0; i < nvlinks; ++i) count(gpu, peer);
      }
    }
  }

  void* handle_;
  bool is_up_ = false;
  mutable bool is_type_known_ = false;
  std::string problem_;
  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  int (*count_)(unsigned*) = nullptr;
  int (*device_)(unsigned, NvmlDevice**) = nullptr;
  int (*pci_)(NvmlDevice*, NvmlPci*) = nullptr;
  const char* (*error_string_)(int) = nullptr;
  int (*name_)(NvmlDevice*, char*, unsigned) = nullptr;
  int (*capability_)(NvmlDevice*, int*, int*) = nullptr;
  int (*link_state_)(NvmlDevice*, unsigned, unsigned*) = nullptr;
  int (*link_pci_)(NvmlDevice*, unsigned, NvmlPci*) = nullptr;
  int (*link_type_)(NvmlDevice*, unsigned, unsigned*) = nullptr;
};

}  // namespace

NvmlFacts read_nvml(const std::string& library) {
  Nvml nvml(library);
  if (!nvml.problem().empty()) return {.gpus = {}, .problem = nvml.problem()};
  return nvml.read();
}

}  // namespace tutti::topology
