// tutti_fold of one rank of several processes: the kernel's own code, on fibers.
#include "blocks.h"
#include "world.h"

#include "cuda/fold_kernel.h"

namespace fake_driver {
namespace {

using namespace tutti::cuda;

template <class Type>
Work grid_of(const FoldLaunch* launch, unsigned blocks) {
  auto grid = std::make_shared<FakeGrid>(blocks, sizeof(FoldShared), [launch](FakeThread& thread, void* shared) {
    FoldKernel<FakeThread, Type>(thread, *launch, *static_cast<FoldShared*>(shared)).run();
  });
  return [grid] { return grid->advance(); };
}

}  // namespace

Work fold_alone(tutti::DataType type, const FoldLaunch* launch, unsigned blocks) {
  using tutti::DataType;
  switch (type) {
#define TUTTI_DATA_TYPE(enumerator, name) \
  case DataType::enumerator:              \
    return grid_of<TypeOf<DataType::enumerator>::Type>(launch, blocks);
#include "cuda/data_types.def"
#undef TUTTI_DATA_TYPE
  }
  return {};
}

}  // namespace fake_driver
