#include "properties.h"

#include "topology/source.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::check(tutti::topology::read_text(fuzz::text_of(data, size)));
  return 0;
}
