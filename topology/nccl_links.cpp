// <nvlink>, <xgmi> and <c2c>: the links of GPUs.
#include "topology/nccl_elements.h"
#include "topology/text_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace tutti::topology {

namespace {

/// More NVLinks or lanes than any GPU has by far: then the number is damaged.
constexpr int kCountMax = 4096;

constexpr std::string_view kOneSided = "the link is listed from this side only, so it counts in this direction only";

class GpuLinks {
 public:
  GpuLinks(const XmlDocument& xml, const GpusByBus& gpus_by_bus, GraphBuilder& builder, RepeatedWarnings& warnings)
      : xml_(xml), gpus_by_bus_(gpus_by_bus), builder_(builder), warnings_(warnings) {}

  Status add(const GpuElement& gpu);
  void warn_of_sides();

 private:
  struct Cable {
    LinkKind kind = LinkKind::kNvLink;
    Bandwidth bandwidth = 0;
    int count = 1;
  };

  Status add_cable(const GpuElement& gpu, const pugi::xml_node& element, LinkKind kind);
  Status add_c2c(const GpuElement& gpu, const pugi::xml_node& element);
  void to_gpu(const GpuElement& gpu, const pugi::xml_node& element, const Cable& cable);
  void to_switch(const GpuElement& gpu, const pugi::xml_node& element, const Cable& cable);
  void to_cpu(const GpuElement& gpu, const pugi::xml_node& element, const Cable& cable);
  int find_gpu(int host, const std::string& bus_id) const;
  Result<int> count_of(const pugi::xml_node& element);

  const XmlDocument& xml_;
  const GpusByBus& gpus_by_bus_;
  GraphBuilder& builder_;
  RepeatedWarnings& warnings_;
  std::map<std::string, int> switches_;
  struct Side {
    std::string place;
    Bandwidth bandwidth = 0;  ///< of all its links
  };
  std::map<std::pair<int, int>, Side> sides_;  ///< of the links from GPU to GPU
};

Status GpuLinks::add(const GpuElement& gpu) {
  for (const pugi::xml_node& child : gpu.element.children()) {
    const std::string_view name = child.name();
    if (name == "nvlink") {
      TUTTI_TRY(add_cable(gpu, child, LinkKind::kNvLink));
    } else if (name == "xgmi") {
      TUTTI_TRY(add_cable(gpu, child, LinkKind::kXgmi));
    } else if (name == "c2c") {
      TUTTI_TRY(add_c2c(gpu, child));
    } else if (child.type() == pugi::node_element && name != "pcilink") {
      warnings_.add(fmt::format("<{}> in <{}> is not known and left out", name, gpu.element.name()),
                    xml_.place_of(child));
    }
  }
  return {};
}

Result<int> GpuLinks::count_of(const pugi::xml_node& element) {
  const std::string_view text = element.attribute("count").value();
  if (text.empty()) {
    warnings_.add("there is no count; taken as 1", xml_.place_of(element));
    return 1;
  }
  const auto count = number_of(element, "count");
  if (!count || *count < 0 || *count > kCountMax)
    return error(Code::kInvalidArgument, fmt::format("{}: count=\"{}\"; expected 0 to {}", xml_.place_of(element),
                                                     text.substr(0, 32), kCountMax));
  return *count;
}

Status GpuLinks::add_cable(const GpuElement& gpu, const pugi::xml_node& element, LinkKind kind) {
  TUTTI_TRY_ASSIGN(const int count, count_of(element));
  const Facts& facts = builder_.facts(gpu.node);
  const Bandwidth one = kind == LinkKind::kXgmi ? xgmi_bandwidth(facts.gcn) : nvlink_bandwidth(facts.sm);
  if (kind == LinkKind::kNvLink && facts.sm == 0)
    warnings_.add("the GPU has no sm; its NVLinks count as 20 GB/s each", xml_.place_of(gpu.element));
  const Cable cable = {kind, own_bandwidth(xml_, element, warnings_).value_or(one * count), count};
  if (count == 0) {
    warnings_.add("count=\"0\": no link", xml_.place_of(element));
    return {};
  }
  const std::string_view target_class = element.attribute("tclass").value();
  if (target_class.starts_with("0x068001")) {
    to_cpu(gpu, element, cable);
  } else if (target_class.empty() || target_class.starts_with("0x03") || target_class.starts_with("0x12")) {
    to_gpu(gpu, element, cable);
  } else {
    to_switch(gpu, element, cable);
  }
  return {};
}

int GpuLinks::find_gpu(int host, const std::string& bus_id) const {
  const auto here = gpus_by_bus_.find({bus_id, host});
  if (here != gpus_by_bus_.end()) return here->second;
  const auto anywhere = gpus_by_bus_.lower_bound({bus_id, 0});
  return anywhere == gpus_by_bus_.end() || anywhere->first.first != bus_id ? kNone : anywhere->second;
}

void GpuLinks::to_gpu(const GpuElement& gpu, const pugi::xml_node& element, const Cable& cable) {
  const std::string target = canonical_bus_id(element.attribute("target").value());
  if (target == gpu.bus_id) {
    warnings_.add("the link goes to the GPU that it comes from and is left out", xml_.place_of(element));
    return;
  }
  const int other = find_gpu(gpu.host, target);
  if (other == kNone) {
    warnings_.add("the target is no GPU of this file; the link is left out", xml_.place_of(element));
    return;
  }
  builder_.add_link(gpu.end, other, cable.kind, cable.bandwidth, cable.count);
  Side& side = sides_.try_emplace({gpu.end, other}, Side{xml_.place_of(element)}).first->second;
  side.bandwidth += cable.bandwidth;
}

/// One switch for the whole file, as in NCCL; but Tutti writes which one where a graph has several.
void GpuLinks::to_switch(const GpuElement& gpu, const pugi::xml_node& element, const Cable& cable) {
  const auto [found, is_new] = switches_.try_emplace(element.attribute("switch").value(), kNone);
  if (is_new) found->second = builder_.add_node(NodeKind::kSwitch, found->first.empty() ? 0 : gpu.host, kNone, "");
  builder_.connect(gpu.end, found->second, cable.kind, cable.bandwidth, cable.count);
}

void GpuLinks::to_cpu(const GpuElement& gpu, const pugi::xml_node& element, const Cable& cable) {
  if (gpu.numa == kNone) {
    warnings_.add("the GPU is in no <cpu>; the link is left out", xml_.place_of(element));
    return;
  }
  builder_.connect(gpu.end, gpu.numa, cable.kind, cable.bandwidth, cable.count);
}

Status GpuLinks::add_c2c(const GpuElement& gpu, const pugi::xml_node& element) {
  TUTTI_TRY_ASSIGN(const int count, count_of(element));
  const auto megabytes = number_of(element, "bw");
  if (!megabytes || *megabytes <= 0 || count == 0) {
    warnings_.add("there is no count or no bw above 0; the link is left out", xml_.place_of(element));
    return {};
  }
  const Bandwidth bandwidth = c2c_bandwidth(count, *megabytes);
  if (bandwidth > kBandwidthMax)
    return error(Code::kInvalidArgument,
                 fmt::format("{}: bw=\"{}\"; expected MB/s of one link", xml_.place_of(element), *megabytes));
  to_cpu(gpu, element, {LinkKind::kC2c, bandwidth, count});
  return {};
}

void GpuLinks::warn_of_sides() {
  for (const auto& [ends, side] : sides_) {
    const auto back = sides_.find({ends.second, ends.first});
    if (back == sides_.end()) {
      warnings_.add(std::string(kOneSided), side.place);
    } else if (ends.first < ends.second && side.bandwidth != back->second.bandwidth) {
      warnings_.add(fmt::format("{} GB/s, but {} GB/s from the other side; each counts in its own direction",
                                gigabytes_text(side.bandwidth), gigabytes_text(back->second.bandwidth)),
                    side.place);
    }
  }
}

/// Digits of one part of a bus id, as NCCL and sysfs write them: hex, and at most seven.
std::optional<unsigned> hex_from(std::string_view text) {
  unsigned number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  if (failure != std::errc{} || end != text.data() + text.size()) return {};
  return number;
}

}  // namespace

void RepeatedWarnings::move_to(GraphBuilder& builder) {
  for (const auto& [sentence, found] : found_) {
    const auto& [place, count] = found;
    builder.warn(count == 1 ? fmt::format("{}: {}", place, sentence)
                            : fmt::format("{}: {} (and {} more)", place, sentence, count - 1));
  }
  found_.clear();
}

std::string canonical_bus_id(std::string_view text) {
  constexpr std::size_t kLongest = 64;
  std::string lower(text.substr(0, kLongest));
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::string_view view = lower;
  const std::size_t dot = view.rfind('.');
  const std::size_t second = view.rfind(':');
  const std::size_t first = second == std::string_view::npos || second == 0 ? second : view.rfind(':', second - 1);
  if (dot == std::string_view::npos || second == std::string_view::npos || dot < second) return lower;
  const bool has_domain = first != std::string_view::npos && first < second;
  const std::size_t bus_begin = has_domain ? first + 1 : 0;
  const auto domain = has_domain ? hex_from(view.substr(0, first)) : 0U;
  const auto bus = hex_from(view.substr(bus_begin, second - bus_begin));
  const auto device = hex_from(view.substr(second + 1, dot - second - 1));
  const auto function = hex_from(view.substr(dot + 1));
  if (!domain || !bus || !device || !function) return lower;
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", *domain, *bus, *device, *function);
}

std::optional<int> number_of(const pugi::xml_node& element, const char* attribute) {
  return number_from<int>(element.attribute(attribute).value(), std::numeric_limits<int>::min());
}

std::optional<Bandwidth> own_bandwidth(const XmlDocument& xml, const pugi::xml_node& element,
                                       RepeatedWarnings& warnings, const char* attribute) {
  constexpr std::size_t kShown = 32;
  const std::string_view text = element.attribute(attribute).value();
  const auto bandwidth = gigabytes_from(text);
  if (!bandwidth && !text.empty())
    warnings.add(fmt::format("{} \"{}\" is no number of GB/s and is left out", attribute, text.substr(0, kShown)),
                 xml.place_of(element));
  return bandwidth;
}

Status add_gpu_links(const XmlDocument& xml, const std::vector<GpuElement>& gpus, const GpusByBus& gpus_by_bus,
                     GraphBuilder& builder, RepeatedWarnings& warnings) {
  GpuLinks links(xml, gpus_by_bus, builder, warnings);
  for (const GpuElement& gpu : gpus) TUTTI_TRY(links.add(gpu));
  links.warn_of_sides();
  return {};
}

}  // namespace tutti::topology
