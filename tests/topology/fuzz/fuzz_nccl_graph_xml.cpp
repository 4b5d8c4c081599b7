#include "properties.h"

#include "topology/nccl_graph_xml.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::check(tutti::topology::read_nccl_graph_xml(fuzz::text_of(data, size)));
  return 0;
}
