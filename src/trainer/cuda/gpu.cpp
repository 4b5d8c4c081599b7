#include "trainer/cuda/gpu.h"

#include "trainer/cuda/image.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tutti::trainer {
namespace {

using cuda::driver;

CUdeviceptr address(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

}  // namespace

Result<int> Gpu::count() {
  TUTTI_TRY_ASSIGN(const cuda::Driver* const d, cuda::find_driver());
  int count = 0;
  TUTTI_TRY(d->device_count(&count));
  return count;
}

Result<std::unique_ptr<Gpu>> Gpu::open(int number) {
  std::unique_ptr<Gpu> gpu(new Gpu);
  TUTTI_TRY(gpu->start(number));
  return gpu;
}

Status Gpu::start(int number) {
  TUTTI_TRY_ASSIGN(const int gpus, count());
  const cuda::Driver& d = driver();
  TUTTI_TRY(d.driver_version(&driver_version_));
  TUTTI_TRY(d.device_get(&device_, number % gpus));
  std::array<char, 128> name{};
  TUTTI_TRY(d.device_name(name.data(), static_cast<int>(name.size()) - 1, device_));
  name_ = name.data();
  TUTTI_TRY(d.primary_retain(&context_, device_));
  TUTTI_TRY(d.context_push(context_));
  is_current_ = true;
  TUTTI_TRY(load_kernels());
  // No other stream waits for these, or is waited for by them.
  TUTTI_TRY(d.stream_create(&computing_, CU_STREAM_NON_BLOCKING));
  TUTTI_TRY(d.stream_create(&collectives_, CU_STREAM_NON_BLOCKING));
  TUTTI_TRY(d.event_create(&ready_, CU_EVENT_DISABLE_TIMING));
  TUTTI_TRY(d.event_create(&computed_, CU_EVENT_DEFAULT));
  return d.event_create(&sent_, CU_EVENT_DEFAULT);
}

std::string Gpu::label() const { return fmt::format("GPU {} ({})", device_, name_); }

Status Gpu::load_kernels() {
  if (Status loaded = driver().module_load(&module_, tutti_trainer_image); !loaded.ok()) {
    return error(Code::kUnhandledCuda,
                 fmt::format("tutti-train's kernels cannot be loaded on {}: {}", label(), loaded.error().message));
  }
#define TUTTI_TRAINER_KERNEL(Kernel, name) \
  TUTTI_TRY(driver().module_function(&functions_[k##Kernel], module_, "tutti_train_" #name));
#include "trainer/cuda/kernels.def"
#undef TUTTI_TRAINER_KERNEL
  return {};
}

Gpu::~Gpu() {
  if (!context_) return;
  const cuda::Driver& d = driver();
  // Streams first: what they still have to do uses the rest.
  for (CUstream stream : {computing_, collectives_}) {
    if (!stream) continue;
    (void)d.stream_synchronize(stream);
    (void)d.stream_destroy(stream);
  }
  for (CUevent event : {ready_, computed_, sent_}) {
    if (event) (void)d.event_destroy(event);
  }
  if (staging_) (void)d.host_free(staging_);
  if (module_) (void)d.module_unload(module_);
  CUcontext popped = nullptr;
  if (is_current_) (void)d.context_pop(&popped);
  (void)d.primary_release(device_);
}

Result<std::shared_ptr<void>> Gpu::allocate(std::size_t bytes) {
  CUdeviceptr memory = 0;
  if (const Status made = driver().mem_alloc(&memory, std::max<std::size_t>(bytes, 1)); !made.ok()) {
    return error(Code::kUnhandledCuda, fmt::format("{} bytes of memory: {}", bytes, made.error().message));
  }
  std::shared_ptr<void> held(reinterpret_cast<void*>(memory), [](void* p) { (void)driver().mem_free(address(p)); });
  TUTTI_TRY(clear(held.get(), bytes));
  return held;
}

Status Gpu::clear(void* memory, std::size_t bytes) {
  if (bytes == 0) return {};
  return driver().set_bytes_async(address(memory), 0, bytes, computing_);
}

Status Gpu::upload(void* to, const void* from, std::size_t bytes) {
  for (std::size_t done = 0; done != bytes;) {
    TUTTI_TRY_ASSIGN(const std::span<std::byte> staged, staging(bytes - done));
    std::memcpy(staged.data(), static_cast<const std::byte*>(from) + done, staged.size());
    TUTTI_TRY(driver().copy_async(address(to) + done, address(staged.data()), staged.size(), computing_));
    done += staged.size();
  }
  return {};
}

Status Gpu::download(void* to, const void* from, std::size_t bytes) {
  for (std::size_t done = 0; done != bytes;) {
    TUTTI_TRY_ASSIGN(const std::span<std::byte> staged, staging(bytes - done));
    TUTTI_TRY(driver().copy_async(address(staged.data()), address(from) + done, staged.size(), computing_));
    waiting_.push_back({static_cast<std::byte*>(to) + done, staged});
    done += staged.size();
  }
  return {};
}

Result<std::span<std::byte>> Gpu::staging(std::size_t bytes) {
  constexpr std::size_t kAlignment = 64;
  static_assert(kStagingBytes % kAlignment == 0);
  if (staging_ == nullptr) {
    void* memory = nullptr;
    if (const Status made = driver().host_alloc(&memory, kStagingBytes, 0); !made.ok()) {
      return error(Code::kUnhandledCuda,
                   fmt::format("{} bytes of pinned memory: {}", kStagingBytes, made.error().message));
    }
    staging_ = static_cast<std::byte*>(memory);
  }
  if (staging_used_ == kStagingBytes) TUTTI_TRY(wait());  // nobody uses it then
  const std::size_t given = std::min(bytes, kStagingBytes - staging_used_);
  std::byte* const place = staging_ + staging_used_;
  staging_used_ += (given + kAlignment - 1) / kAlignment * kAlignment;
  return std::span(place, given);
}

Status Gpu::launch(Index index, const void* kernel, std::size_t blocks) {
  CUlaunchConfig shape{};
  shape.gridDimX = static_cast<unsigned>(blocks);
  shape.gridDimY = shape.gridDimZ = 1;
  shape.blockDimX = kernels::kKernelThreads;
  shape.blockDimY = shape.blockDimZ = 1;
  shape.hStream = computing_;
  void* parameters[] = {const_cast<void*>(kernel)};
  return driver().launch(&shape, functions_[index], parameters, nullptr);
}

Status Gpu::before_collectives() {
  TUTTI_TRY(driver().event_record(ready_, computing_, CU_EVENT_RECORD_DEFAULT));
  return driver().stream_wait_event(collectives_, ready_, 0);
}

Status Gpu::after_collectives() {
  TUTTI_TRY(driver().event_record(computed_, computing_, CU_EVENT_RECORD_DEFAULT));
  TUTTI_TRY(driver().event_record(sent_, collectives_, CU_EVENT_RECORD_DEFAULT));
  is_joined_ = true;
  return driver().stream_wait_event(computing_, sent_, 0);
}

Status Gpu::wait() {
  TUTTI_TRY(driver().stream_synchronize(computing_));
  for (const Waiting& one : waiting_) std::memcpy(one.to, one.staged.data(), one.staged.size());
  waiting_.clear();
  staging_used_ = 0;
  if (!std::exchange(is_joined_, false)) return {};
  float ms = 0;
  TUTTI_TRY(driver().event_elapsed_ms(&ms, computed_, sent_));
  stood_still_ms_ += std::max(0.0f, ms);
  return {};
}

}  // namespace tutti::trainer
