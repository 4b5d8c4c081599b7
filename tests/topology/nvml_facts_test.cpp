#include "topology/nvml_facts.h"

#include <catch2/catch.hpp>

#include <dlfcn.h>

using namespace tutti::topology;
using Catch::Contains;

namespace {

/// Holds the library, so that its variables keep their values while read_nvml() loads and unloads it.
class FakeNvml {
 public:
  FakeNvml() : handle_(dlopen(TUTTI_FAKE_NVML, RTLD_NOW | RTLD_LOCAL)) { REQUIRE(handle_ != nullptr); }
  FakeNvml(const FakeNvml&) = delete;
  FakeNvml& operator=(const FakeNvml&) = delete;
  ~FakeNvml() { dlclose(handle_); }
  int& variable(const char* name) { return *static_cast<int*>(dlsym(handle_, name)); }

 private:
  void* handle_;
};

const GpuPeer* peer_of(const GpuFacts& gpu, GpuPeer::Kind kind) {
  for (const GpuPeer& peer : gpu.peers) {
    if (peer.kind == kind) return &peer;
  }
  return nullptr;
}

}  // namespace

TEST_CASE("NVML tells GPUs, what they are and what their NVLinks lead to") {
  FakeNvml fake;
  fake.variable("fake_nvml_init_status") = 0;
  fake.variable("fake_nvml_knows_remote_types") = 1;
  const NvmlFacts facts = read_nvml(TUTTI_FAKE_NVML);
  REQUIRE(facts.gpus.size() == 2);
  CHECK_THAT(facts.problem, Contains("GPU 2 of 3"));
  const GpuFacts& gpu = facts.gpus[1];
  CHECK(gpu.bus_id == "0000:03:00.0");
  CHECK(gpu.name == "NVIDIA H100 80GB HBM3");
  CHECK(gpu.device == 1);
  CHECK(gpu.sm == 90);
  CHECK(gpu.peers.size() == 2);  // the link that is down and the GPU that is not there do not count
  REQUIRE(peer_of(gpu, GpuPeer::Kind::kGpu) != nullptr);
  CHECK(peer_of(gpu, GpuPeer::Kind::kGpu)->bus_id == "0000:02:00.0");
  CHECK(peer_of(gpu, GpuPeer::Kind::kGpu)->nvlinks == 4);
  REQUIRE(peer_of(gpu, GpuPeer::Kind::kSwitch) != nullptr);
  CHECK(peer_of(gpu, GpuPeer::Kind::kSwitch)->nvlinks == 6);
  CHECK(fake.variable("fake_nvml_is_up") == 0);
}

TEST_CASE("a driver that does not tell the type of a link's other end: what is no GPU here is a switch") {
  FakeNvml fake;
  fake.variable("fake_nvml_init_status") = 0;
  fake.variable("fake_nvml_knows_remote_types") = 0;
  const NvmlFacts facts = read_nvml(TUTTI_FAKE_NVML);
  REQUIRE(facts.gpus.size() == 2);
  CHECK(peer_of(facts.gpus[0], GpuPeer::Kind::kGpu)->nvlinks == 4);
  CHECK(peer_of(facts.gpus[0], GpuPeer::Kind::kSwitch)->nvlinks == 7);
}

TEST_CASE("a missing or failing NVML is a normal machine") {
  const NvmlFacts missing = read_nvml("libtutti-has-no-such-library.so.1");
  CHECK(missing.gpus.empty());
  CHECK_THAT(missing.problem, Contains("libtutti-has-no-such-library.so.1"));
  const NvmlFacts other = read_nvml("libm.so.6");
  CHECK(other.gpus.empty());
  CHECK_THAT(other.problem, Contains("nvmlInit_v2"));
  FakeNvml fake;
  fake.variable("fake_nvml_init_status") = 9;
  const NvmlFacts failing = read_nvml(TUTTI_FAKE_NVML);
  CHECK(failing.gpus.empty());
  CHECK_THAT(failing.problem, Contains("Driver Not Loaded"));
  CHECK(fake.variable("fake_nvml_is_up") == 0);
}
