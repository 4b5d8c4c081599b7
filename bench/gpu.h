// GPUs as a program sees them that has its own memory and streams there: through the driver, which is opened at run time, so that
// tutti-perf needs no CUDA to be built and starts without one.
#pragma once

#include "base/result.h"

#include <array>
#include <cstddef>
#include <string>

namespace tutti::bench {

class Gpu {
 public:
  /// This process's driver, opened on first use. kUnhandledCuda: there is none, it is too old, or it finds no GPU. Not before a fork
  /// whose child uses it.
  static Result<const Gpu*> open();
  /// The same answer from a child process, so that this one may still fork.
  static Result<int> count_apart();

  int count() const { return count_; }
  /// Makes the GPU the calling thread's.
  Status use(int gpu) const;
  std::string name(int gpu) const;
  /// Where a GPU is: the same for all processes of a host, whichever GPUs each of them sees.
  struct Seat {
    std::array<char, 128> host{};
    std::array<char, 64> bus_id{};
    bool operator==(const Seat&) const = default;
  };
  Seat seat(int gpu) const;

  Result<void*> allocate(std::size_t bytes) const;
  void free(void* memory) const;
  /// Between host and GPU memory; waits for it.
  Status copy(void* to, const void* from, std::size_t bytes) const;

  Result<void*> make_stream() const;
  void destroy_stream(void* stream) const;
  Status wait(void* stream) const;

  Status begin_capture(void* stream) const;
  /// What was captured, ready to launch.
  Result<void*> end_capture(void* stream) const;
  Status launch(void* graph, void* stream) const;
  void destroy_graph(void* graph) const;

 private:
  using Outcome = int;  ///< a CUresult; 0 is success
  using Address = unsigned long long;

  Gpu() = default;
  Status load();
  static Status status(Outcome outcome, const char* function);

  int count_ = 0;
  Outcome (*init_)(unsigned) = nullptr;
  Outcome (*device_count_)(int*) = nullptr;
  Outcome (*device_name_)(char*, int, int) = nullptr;
  Outcome (*device_bus_id_)(char*, int, int) = nullptr;
  Outcome (*retain_)(void**, int) = nullptr;
  Outcome (*set_current_)(void*) = nullptr;
  Outcome (*allocate_)(Address*, std::size_t) = nullptr;
  Outcome (*free_)(Address) = nullptr;
  Outcome (*copy_)(Address, Address, std::size_t, void*) = nullptr;
  Outcome (*stream_create_)(void**, unsigned) = nullptr;
  Outcome (*stream_destroy_)(void*) = nullptr;
  Outcome (*stream_wait_)(void*) = nullptr;
  Outcome (*begin_capture_)(void*, int) = nullptr;
  Outcome (*end_capture_)(void*, void**) = nullptr;
  Outcome (*instantiate_)(void**, void*, unsigned long long) = nullptr;
  Outcome (*launch_)(void*, void*) = nullptr;
  Outcome (*graph_destroy_)(void*) = nullptr;
  Outcome (*executable_destroy_)(void*) = nullptr;
};

}  // namespace tutti::bench
