// Kernels that wait for others: the library's own code, on fibers.
#include "blocks.h"
#include "world.h"

#include "cuda/fold_kernel.h"
#include "cuda/lanes_kernel.h"
#include "cuda/lines_kernel.h"

namespace fake_driver {
namespace {

using namespace tutti::cuda;

/// make.operator()<Type>() of the data type.
template <class Make>
Work for_type(tutti::DataType type, const Make& make) {
  using tutti::DataType;
  switch (type) {
#define TUTTI_DATA_TYPE(enumerator, name) \
  case DataType::enumerator:              \
    return make.template operator()<TypeOf<DataType::enumerator>::Type>();
#include "cuda/data_types.def"
#undef TUTTI_DATA_TYPE
  }
  return {};
}

Work grid_of(unsigned blocks, std::size_t shared_bytes, FakeGrid::Body body) {
  auto grid = std::make_shared<FakeGrid>(blocks, shared_bytes, std::move(body));
  return [grid] { return grid->advance(); };
}

}  // namespace

Work fold_alone(tutti::DataType type, const FoldLaunch* launch, unsigned blocks) {
  return for_type(type, [&]<class Type>() {
    return grid_of(blocks, sizeof(FoldShared), [launch](FakeThread& thread, void* shared) {
      FoldKernel<FakeThread, Type>(thread, *launch, *static_cast<FoldShared*>(shared)).run();
    });
  });
}

Work lines(tutti::DataType type, const LinesLaunch* launch, unsigned blocks) {
  // A wrong grid leaves the outputs as they were, which tests see.
  if (blocks != launch->launch_ranks * launch->blocks_per_rank) return [] { return true; };
  return for_type(type, [&]<class Type>() {
    return grid_of(blocks, 0,
                   [launch](FakeThread& thread, void*) { LinesKernel<FakeThread, Type>(thread, *launch).run(); });
  });
}

Work lanes(tutti::DataType type, const LanesLaunch* launch, unsigned blocks) {
  if (blocks != launch->launch_ranks * launch->blocks_per_rank) return [] { return true; };
  return for_type(type, [&]<class Type>() {
    return grid_of(blocks, sizeof(LanesShared), [launch](FakeThread& thread, void* shared) {
      LanesKernel<FakeThread, Type>(thread, *launch, *static_cast<LanesShared*>(shared)).run();
    });
  });
}

}  // namespace fake_driver
