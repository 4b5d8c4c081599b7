#include "topology/bandwidths.h"

#include <catch2/catch.hpp>

#include <algorithm>

using namespace tutti::topology;

TEST_CASE("NVLinks count by compute capability, xGMI by architecture") {
  const std::pair<int, double> by_sm[] = {{60, 18},    {61, 18},    {70, 20},    {75, 20},   {80, 20},
                                          {86, 12},    {87, 20},    {89, 20},    {90, 20.6}, {100, 40.1},
                                          {103, 40.1}, {107, 40.1}, {120, 40.1}, {0, 20}};
  for (const auto& [sm, gbps] : by_sm) {
    CAPTURE(sm);
    CHECK(nvlink_bandwidth(sm) == from_gbps(gbps));
  }
  const std::pair<const char*, double> by_gcn[] = {{"906", 24},    {"908", 24},    {"910", 36},
                                                   {"gfx90a", 36}, {"940", 48},    {"gfx942", 48},
                                                   {"gfx950", 48}, {"gfx908", 24}, {"", 24}};
  for (const auto& [gcn, gbps] : by_gcn) {
    CAPTURE(gcn);
    CHECK(xgmi_bandwidth(gcn) == from_gbps(gbps));
  }
}

TEST_CASE("PCI counts by lanes and the speed that sysfs writes") {
  CHECK(pci_bandwidth(16, "8 GT/s") == 12 * kGigabyte);
  CHECK(pci_bandwidth(16, "16.0 GT/s PCIe") == 24 * kGigabyte);
  CHECK(pci_bandwidth(8, "32 GT/s PCIe/s") == 24 * kGigabyte);
  CHECK(pci_bandwidth(2, "64.0 GT/s PCIe") == 12 * kGigabyte);
  CHECK(pci_bandwidth(1, "2.5 GT/s PCIe") == from_gbps(0.1875));
  CHECK(pci_bandwidth(4, "5.0 GT/s") == from_gbps(1.5));
  CHECK(pci_bandwidth(0, "32 GT/s") == 48 * kGigabyte);
  for (const char* unknown : {"", "fast", "15.75", "12 GT/s", "16"}) {
    CAPTURE(unknown);
    CHECK_FALSE(knows_pci_speed(unknown));
    CHECK(pci_bandwidth(16, unknown) == 12 * kGigabyte);
  }
}

TEST_CASE("links between processors count by vendor, family and model") {
  const auto gbps_of = [](const Processor& processor) { return gbps(cpu_bandwidth(processor)); };
  CHECK(gbps_of({"x86_64", "GenuineIntel", 6, 207}) == 40);
  CHECK(gbps_of({"x86_64", "GenuineIntel", 6, 143}) == 22);
  CHECK(gbps_of({"x86_64", "GenuineIntel", 6, 106}) == 10);
  CHECK(gbps_of({"x86_64", "GenuineIntel", 6, 85}) == 10);
  CHECK(gbps_of({"x86_64", "GenuineIntel", 6, 79}) == 6);
  CHECK(gbps_of({"x86_64", "AuthenticAMD", 25, 17}) == 16);
  CHECK(gbps_of({"arm64", "", kNone, kNone}) == 6);
  CHECK(gbps_of({"ppc64", "", kNone, kNone}) == 32);
  CHECK(gbps_of({"x86_64", "CentaurHauls", 7, 0x5B}) == 9);
  CHECK(gbps_of({"x86_64", "CentaurHauls", 7, 0x3B}) == 6);
  CHECK(gbps_of({}) == 5000);
}

TEST_CASE("a processor's model text says what its links count with") {
  for (const Processor& processor :
       {Processor{"x86_64", "GenuineIntel", 6, 207}, Processor{"x86_64", "AuthenticAMD", 23, 49},
        Processor{"arm64", "", kNone, kNone}, Processor{"ppc64", "", kNone, kNone}, Processor{},
        Processor{"x86_64", "GenuineIntel", kNone, kNone}}) {
    const Processor again = processor_from(to_text(processor));
    CAPTURE(to_text(processor));
    CHECK(cpu_bandwidth(again) == cpu_bandwidth(processor));
    CHECK(again.arch == processor.arch);
    CHECK(again.vendor == processor.vendor);
    CHECK(again.model == processor.model);
  }
}

TEST_CASE("a PCI speed may have a blank before it, and one before its unit") {
  for (const char* speed : {"16 GT/s", " 16 GT/s", "16.0 GT/s PCIe", "16GT/s"})
    CHECK(pci_bandwidth(16, speed) == pci_bandwidth(16, "16 GT/s"));
  CHECK(knows_pci_speed(" 16 GT/s"));
}

TEST_CASE("the table for people holds every figure with its source") {
  const auto table = bandwidth_table();
  const auto has = [&](std::string_view words, Bandwidth bandwidth) {
    return std::ranges::any_of(table, [&](const BandwidthRow& row) {
      return row.item.find(words) != std::string::npos && row.bandwidth == bandwidth && !row.source.empty();
    });
  };
  CHECK(has("sm 90", nvlink_bandwidth(90)));
  CHECK(has("sm 86", nvlink_bandwidth(86)));
  CHECK(has("gfx90a", xgmi_bandwidth("gfx90a")));
  CHECK(has("32 GT/s", pci_bandwidth(16, "32 GT/s")));
  CHECK(has("0x8F", cpu_bandwidth({"x86_64", "GenuineIntel", 6, 143})));
  CHECK(has("AMD", 16 * kGigabyte));
  CHECK(c2c_bandwidth(8, 50000) == 400 * kGigabyte);
}
