// What the two passes over NCCL's XML share: the first makes nodes (nccl_xml.cpp), the second joins GPUs (nccl_links.cpp).
#pragma once

#include "topology/bandwidths.h"
#include "topology/graph.h"
#include "topology/xml_document.h"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tutti::topology {

/// A <gpu> or <apu> and the node it became.
struct GpuElement {
  pugi::xml_node element;
  int node = kNone;
  int end = kNone;   ///< the node that its links end at: itself, or the device that it is in with others
  int numa = kNone;  ///< the node of the <cpu> it is in
  int host = 0;
  std::string bus_id;
};

/// What is said of many elements is one warning: the first place, and how many more.
class RepeatedWarnings {
 public:
  void add(const std::string& sentence, const std::string& place) {
    auto& [first, count] = found_[sentence];
    if (++count == 1) first = place;
  }
  void move_to(GraphBuilder& builder);

 private:
  std::map<std::string, std::pair<std::string, int>> found_;  ///< by sentence: first place, count
};

/// "0000:07:00.0" from any of NCCL's ways to write it; lower case, as it is, if it is no PCI address.
std::string canonical_bus_id(std::string_view text);

/// The attribute as a whole number; nothing if it is missing or no number.
std::optional<int> number_of(const pugi::xml_node& element, const char* attribute);

/// The element's own figure, gbps="370.8". Nothing where there is none, or none that can be, which is a warning.
std::optional<Bandwidth> own_bandwidth(const XmlDocument& xml, const pugi::xml_node& element,
                                       RepeatedWarnings& warnings, const char* attribute = "gbps");

/// The node that a link's target stands for, by bus id and host.
using GpusByBus = std::map<std::pair<std::string, int>, int>;

/// Adds the links of all GPUs.
Status add_gpu_links(const XmlDocument& xml, const std::vector<GpuElement>& gpus, const GpusByBus& gpus_by_bus,
                     GraphBuilder& builder, RepeatedWarnings& warnings);

}  // namespace tutti::topology
