// A machine from a file or a text of any known form, told apart by what is in it:
//   Tutti's own text      text_form.h        begins with "tutti-topology"
//   NCCL topology XML     nccl_xml.h         <system>, or an excerpt of it
//   NCCL graph XML        nccl_graph_xml.h   <graphs>
//   hwloc XML             hwloc_xml.h        <topology>
//   nvidia-smi topo -m    smi_matrix.h       a line that begins with GPU0
//   a synthetic machine   synthetic.h        "host:4 switch:1 gpu:8 nvlink:450 nic:8x50"
#pragma once

#include "topology/graph.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tutti::topology {

/// XML has a lower limit of its own.
inline constexpr std::size_t kSourceBytesMax = std::size_t{64} << 20;

struct ReadOptions {
  double nvlink_gbps = 0;  ///< of each NVLink, for SourceForm::kSmiMatrix, which gives none; 0: by a table of GPUs
};

enum class SourceForm : std::uint8_t { kUnknown, kText, kNcclXml, kNcclGraphXml, kHwlocXml, kSmiMatrix, kSynthetic };
SourceForm form_of(std::string_view content);

/// What the form's reader returns. kInvalidArgument if the content has none of the forms; the message says what it looks
/// like, and which forms there are; or if the form has no use for an option that is given.
Result<Graph> read_text(std::string_view content, const ReadOptions& options = {});

/// The same of a file, with its path before the message. kSystem if it cannot be read; kInvalidArgument if it is larger than
/// kSourceBytesMax.
Result<Graph> read_file(const std::string& path, const ReadOptions& options = {});

}  // namespace tutti::topology
