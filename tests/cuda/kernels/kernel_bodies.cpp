#include "kernel_bodies.h"

#include "cuda/fold_kernel.h"
#include "cuda/lanes_kernel.h"
#include "cuda/lines_kernel.h"

namespace tutti::cuda {
namespace {

using sim::BlockThread;
using Body = sim::BlockMachine::Body;

/// make.operator()<Type>() of the data type. Mutants are compiled for one type only.
template <class Make>
Body for_type(DataType dtype, const Make& make) {
  switch (dtype) {
#ifdef TUTTI_ONE_TYPE
    default: return make.template operator()<TypeOf<DataType::kFloat32>::Type>();
#else
#define TUTTI_DATA_TYPE(enumerator, name) \
  case DataType::enumerator:              \
    return make.template operator()<TypeOf<DataType::enumerator>::Type>();
#include "cuda/data_types.def"
#undef TUTTI_DATA_TYPE
#endif
  }
  return {};
}

}  // namespace

Body fold_body(DataType dtype, const FoldLaunch& launch) {
  return for_type(dtype, [&]<class Type>() -> Body {
    return [launch](BlockThread& thread, void* shared) {
      FoldKernel<BlockThread, Type>(thread, launch, *static_cast<FoldShared*>(shared)).run();
    };
  });
}
Body lines_body(DataType dtype, const LinesLaunch& launch) {
  return for_type(dtype, [&]<class Type>() -> Body {
    return [launch](BlockThread& thread, void*) { LinesKernel<BlockThread, Type>(thread, launch).run(); };
  });
}
Body lanes_body(DataType dtype, const LanesLaunch& launch) {
  return for_type(dtype, [&]<class Type>() -> Body {
    return [launch](BlockThread& thread, void* shared) {
      LanesKernel<BlockThread, Type>(thread, launch, *static_cast<LanesShared*>(shared)).run();
    };
  });
}
std::size_t fold_shared_bytes() { return sizeof(FoldShared); }
std::size_t lanes_shared_bytes() { return sizeof(LanesShared); }

}  // namespace tutti::cuda
