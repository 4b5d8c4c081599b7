// The functions of the fake driver, by name: what cuGetProcAddress hands out.
#pragma once

#include "world.h"

namespace fake_driver {

struct Entry {
  const char* name;
  void* function;
};
std::vector<Entry> device_entries();
std::vector<Entry> memory_entries();
std::vector<Entry> mapped_entries();
std::vector<Entry> stream_entries();
std::vector<Entry> graph_entries();
std::vector<Entry> word_entries();

}  // namespace fake_driver

/// Opens a function's body: under the lock, counted, and failing here if it is its turn.
#define FAKE_CALL(name)                               \
  const fake_driver::Inside inside;                   \
  fake_driver::Lock lock(fake_driver::world().mutex); \
  CUresult failure = CUDA_SUCCESS;                    \
  if (fake_driver::fails(name, failure)) return failure

/// The same for what ends something: it does so whatever it returns, as drivers report earlier errors from anywhere.
#define FAKE_END(name)                                \
  const fake_driver::Inside inside;                   \
  fake_driver::Lock lock(fake_driver::world().mutex); \
  CUresult failure = CUDA_SUCCESS;                    \
  (void)fake_driver::fails(name, failure)

#define FAKE_SAFE() \
  if (const CUresult forbidden = fake_driver::forbidden_by_capture(); forbidden != CUDA_SUCCESS) return forbidden
