#include "properties.h"

#include "topology/synthetic.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::check(tutti::topology::parse_synthetic(fuzz::text_of(data, size)));
  return 0;
}
