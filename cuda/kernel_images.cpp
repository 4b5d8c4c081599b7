#include "cuda/kernel_images.h"

// kernel_binaries.S has these.
extern "C" {
#define TUTTI_DATA_TYPE(enumerator, name) \
  [[gnu::visibility("hidden")]] extern const unsigned char tutti_image_##name##_begin[], tutti_image_##name##_end[];
#include "cuda/data_types.def"
#undef TUTTI_DATA_TYPE
}

namespace tutti::cuda {

std::span<const KernelImage> kernel_images() {
  static const KernelImage kImages[] = {
#define TUTTI_DATA_TYPE(enumerator, name) {DataType::enumerator, tutti_image_##name##_begin, tutti_image_##name##_end},
#include "cuda/data_types.def"
#undef TUTTI_DATA_TYPE
  };
  static_assert(sizeof kImages / sizeof kImages[0] == kDataTypes);
  return kImages;
}

}  // namespace tutti::cuda
