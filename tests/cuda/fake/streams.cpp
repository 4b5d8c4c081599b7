// Streams, events, copies and launches.
#include "calls.h"
#include "turns.h"

#include <atomic>
#include <cstring>
#include <utility>

namespace fake_driver {
namespace {

void nap() {
  if (world().naps) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

Event* event_of(CUevent event) { return reinterpret_cast<Event*>(event); }

CUresult stream_create(CUstream* stream, unsigned flags) {
  FAKE_CALL("cuStreamCreate");
  FAKE_SAFE();
  auto& handles = world().free_handles;
  auto* const queue = handles.empty() ? new Queue : new (handles.back()) Queue;
  if (!handles.empty()) handles.pop_back();
  queue->blocking = (flags & CU_STREAM_NON_BLOCKING) == 0;
  queue->device = current_device();
  world().queues.insert(queue);
  ++world().counts.streams;
  *stream = reinterpret_cast<CUstream>(queue);
  return CUDA_SUCCESS;
}
CUresult stream_flags(CUstream stream, unsigned* flags) {
  FAKE_CALL("cuStreamGetFlags");
  Queue* const queue = queue_of(stream);
  if (!queue) return CUDA_ERROR_INVALID_HANDLE;
  // As the driver does (580, on an H100), which says nowhere why.
  if (queue->capture != 0) {
    world().captures.at(queue->capture).invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  *flags = queue->blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
  return CUDA_SUCCESS;
}
/// Nobody may say of a stream that is captured whether this spoils it.
CUresult stream_id(CUstream stream, unsigned long long* id) {
  FAKE_CALL("cuStreamGetId");
  const Queue* const queue = queue_of(stream);
  if (!queue) return CUDA_ERROR_INVALID_HANDLE;
  if (queue->capture != 0) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  *id = queue->id;
  return CUDA_SUCCESS;
}
CUresult stream_destroy(CUstream stream) {
  FAKE_END("cuStreamDestroy");
  FAKE_SAFE();
  Queue* const queue = queue_of(stream);
  if (!queue) return CUDA_ERROR_INVALID_HANDLE;
  --world().counts.streams;
  if (world().quick_ends && !queue->work.empty()) {
    world().queues.insert(new Queue(std::move(*queue)));
    world().queues.erase(queue);
    queue->~Queue();
    world().free_handles.push_back(queue);
    return failure;
  }
  work_until(lock, [&] { return queue->work.empty(); });
  world().queues.erase(queue);
  delete queue;
  return failure;
}
CUresult stream_synchronize(CUstream stream) {
  FAKE_CALL("cuStreamSynchronize");
  FAKE_SAFE();
  Queue* const queue = queue_of(stream);
  if (!queue) return CUDA_ERROR_INVALID_HANDLE;
  if (queue->capture != 0) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const std::uint64_t target = queue->given;
  work_until(lock, [&] { return queue->done >= target; });
  return CUDA_SUCCESS;
}
CUresult stream_query(CUstream stream) {
  FAKE_CALL("cuStreamQuery");
  Queue* const queue = queue_of(stream);
  if (!queue) return CUDA_ERROR_INVALID_HANDLE;
  if (queue->capture != 0) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  (void)work_some();
  return queue->work.empty() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult event_create(CUevent* event, unsigned) {
  FAKE_CALL("cuEventCreate");
  ++world().counts.events;
  *event = reinterpret_cast<CUevent>(new Event{.device = current_device(), .last = nullptr});
  return CUDA_SUCCESS;
}
CUresult event_destroy(CUevent event) {
  FAKE_END("cuEventDestroy");
  --world().counts.events;
  delete event_of(event);
  return failure;
}
/// A node that works on the mark of a launch.
CUresult give_marked(Queue& queue, const Mark* captured, bool reaches) {
  return give(queue, [captured, reaches](const std::shared_ptr<GraphRun>& run) -> Work {
    return [mark = run->mark(captured), reaches] { return mark->reached = mark->reached || reaches; };
  });
}
/// In a capture: each launch of the graph records the event, or waits for what was recorded when it was launched.
CUresult give_external(CUevent event, Queue& queue, bool records) {
  if (queue.capture == 0) return CUDA_ERROR_INVALID_VALUE;
  (void)note({.what = Given::What::kOutside});
  Graph& graph = *world().captures.at(queue.capture).graph;
  graph.marks.push_back(std::make_shared<Mark>());
  const Mark* const mark = graph.marks.back().get();
  (records ? graph.records : graph.waits).push_back({event_of(event), mark});
  return give_marked(queue, mark, records);
}

CUresult record(CUevent event, CUstream stream, unsigned flags) {
  Queue* const queue = queue_of(stream);
  if (!queue) return CUDA_ERROR_INVALID_HANDLE;
  if (event_of(event)->device != device_of(*queue)) return CUDA_ERROR_INVALID_HANDLE;
  if (flags == CU_EVENT_RECORD_EXTERNAL) return give_external(event, *queue, true);
  if (flags != CU_EVENT_RECORD_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
  auto mark = std::make_shared<Mark>();
  mark->noted = note({.what = Given::What::kRecord, .stream = stream});
  if (queue->capture != 0) {
    Graph& graph = *world().captures.at(queue->capture).graph;
    mark->capture = queue->capture;
    mark->lane = queue->lane;
    mark->position = graph.lanes[queue->lane].size();
    graph.marks.push_back(mark);
    event_of(event)->last = mark;
    return give_marked(*queue, mark.get(), true);
  }
  const auto before = std::exchange(event_of(event)->last, mark);
  const CUresult given = give(*queue, [mark](const std::shared_ptr<GraphRun>&) -> Work {
    return [mark] {
      mark->when = std::chrono::steady_clock::now();
      return mark->reached = true;
    };
  });
  if (given != CUDA_SUCCESS) event_of(event)->last = before;
  return given;
}
CUresult event_record(CUevent event, CUstream stream) {
  nap();
  FAKE_CALL("cuEventRecord");
  return record(event, stream, CU_EVENT_RECORD_DEFAULT);
}
CUresult event_record_with_flags(CUevent event, CUstream stream, unsigned flags) {
  nap();
  FAKE_CALL("cuEventRecordWithFlags");
  return record(event, stream, flags);
}
/// To ask for one, or wait, spoils the capture.
bool is_captured(const std::shared_ptr<Mark>& mark) {
  if (!mark || mark->capture == 0) return false;
  const auto capture = world().captures.find(mark->capture);
  if (capture != world().captures.end()) capture->second.invalid = true;
  return true;
}
CUresult event_query(CUevent event) {
  FAKE_CALL("cuEventQuery");
  const auto& last = event_of(event)->last;
  if (is_captured(last)) return CUDA_ERROR_CAPTURED_EVENT;
  (void)work_some();
  return !last || last->reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult event_elapsed(float* milliseconds, CUevent from, CUevent to) {
  FAKE_CALL("cuEventElapsedTime");
  const auto begin = event_of(from)->last;
  const auto end = event_of(to)->last;
  if (!begin || !end) return CUDA_ERROR_INVALID_HANDLE;
  if (!begin->reached || !end->reached) return CUDA_ERROR_NOT_READY;
  *milliseconds = std::chrono::duration<float, std::milli>(end->when - begin->when).count();
  return CUDA_SUCCESS;
}
CUresult event_synchronize(CUevent event) {
  FAKE_CALL("cuEventSynchronize");
  const auto last = event_of(event)->last;
  if (is_captured(last)) return CUDA_ERROR_CAPTURED_EVENT;
  work_until(lock, [&] { return !last || last->reached; });
  return CUDA_SUCCESS;
}

/// A wait on a captured event draws the stream into its capture.
CUresult join_capture(Queue& queue, const Mark& mark) {
  const auto found = world().captures.find(mark.capture);
  if (found == world().captures.end()) return CUDA_ERROR_CAPTURED_EVENT;
  Capture& capture = found->second;
  if (queue.capture == 0) {
    queue.capture = mark.capture;
    queue.lane = capture.graph->lanes.size();
    capture.graph->lanes.emplace_back();
    capture.joined.push_back(0);
  }
  std::size_t& joined = capture.joined[mark.lane];
  joined = std::max(joined, mark.position + 1);  // the record itself is a node
  return CUDA_SUCCESS;
}
CUresult stream_wait_event(CUstream stream, CUevent event, unsigned flags) {
  FAKE_CALL("cuStreamWaitEvent");
  Queue* const queue = queue_of(stream);
  if (!queue) return CUDA_ERROR_INVALID_HANDLE;
  if (flags == CU_EVENT_WAIT_EXTERNAL) return give_external(event, *queue, false);
  if (flags != CU_EVENT_WAIT_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
  const auto mark = event_of(event)->last;
  if (!mark) return CUDA_SUCCESS;
  (void)note({.what = Given::What::kWait, .stream = stream, .record = mark->noted});
  if (queue->capture != 0 && mark->capture == 0) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  if (queue->capture != 0 && mark->capture != queue->capture) return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  if (mark->capture != 0) {
    if (const CUresult joined = join_capture(*queue, *mark); joined != CUDA_SUCCESS) return joined;
    return give_marked(*queue, mark.get(), false);
  }
  return give(*queue, [mark](const std::shared_ptr<GraphRun>&) -> Work { return [mark] { return mark->reached; }; });
}

/// One end of a copy.
struct CopyEnd {
  bool is_pinned = false;
  bool is_host = true;   ///< pinned, or nothing that CUDA knows
  bool is_whole = true;  ///< it does not go beyond the allocation; of pieces nobody looks

  CopyEnd(CUdeviceptr at, std::size_t bytes) {
    std::uintptr_t begin = 0;
    const Allocation* const found = find_allocation(at, &begin);
    if (!found) return;
    is_pinned = found->kind == Allocation::Kind::kHost || found->kind == Allocation::Kind::kRegistered;
    is_host = is_pinned;
    is_whole = found->kind == Allocation::Kind::kMapped || at + bytes <= begin + found->bytes;
  }
};

/// From host memory to host memory it returns when the stream has made the copy.
CUresult give_copy(Lock& lock, CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  Queue* const queue = queue_of(stream);
  if (!queue) return CUDA_ERROR_INVALID_HANDLE;
  const CopyEnd target(to, bytes);
  const CopyEnd source(from, bytes);
  if (!target.is_whole || !source.is_whole) return CUDA_ERROR_INVALID_VALUE;
  const auto what = target.is_pinned ? Given::What::kCopyToHost : Given::What::kCopy;
  (void)note({.what = what, .stream = stream, .bytes = bytes});
  if (target.is_pinned || source.is_pinned) world().staged.bytes += bytes;
  const CUresult given = give(*queue, [to, from, bytes](const std::shared_ptr<GraphRun>&) -> Work {
    return [to, from, bytes] {
      std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
      return true;
    };
  });
  if (given != CUDA_SUCCESS || queue->capture != 0 || !target.is_host || !source.is_host) return given;
  const std::uint64_t end = queue->given;
  work_until(lock, [&] { return queue->done >= end; });
  return CUDA_SUCCESS;
}
CUresult copy_async(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  FAKE_CALL("cuMemcpyAsync");
  return give_copy(lock, to, from, bytes, stream);
}
#if CUDA_VERSION >= 13000
/// With attributes for all of them.
CUresult copy_batch_async(CUdeviceptr* to, CUdeviceptr* from, std::size_t* bytes, std::size_t count,
                          CUmemcpyAttributes* attributes, std::size_t* first, std::size_t attribute_count,
                          CUstream stream) {
  FAKE_CALL("cuMemcpyBatchAsync");
  const bool is_simple = attribute_count == 1 && first[0] == 0 && stream != nullptr &&
                         attributes->srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  if (!is_simple) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i) {
    if (const CUresult given = give_copy(lock, to[i], from[i], bytes[i], stream); given != CUDA_SUCCESS) return given;
  }
  return CUDA_SUCCESS;
}
#endif
/// Rows that lie one behind the other.
CUresult copy_rows_async(const CUDA_MEMCPY2D* rows, CUstream stream) {
  FAKE_CALL("cuMemcpy2DAsync");
  const std::size_t width = rows->WidthInBytes;
  const bool is_unified = rows->srcMemoryType == CU_MEMORYTYPE_UNIFIED && rows->dstMemoryType == CU_MEMORYTYPE_UNIFIED;
  if (!is_unified || width == 0 || rows->srcPitch != width || rows->dstPitch != width) return CUDA_ERROR_INVALID_VALUE;
  ++world().staged.rows;
  return give_copy(lock, rows->dstDevice, rows->srcDevice, width * rows->Height, stream);
}
CUresult set_bytes_async(CUdeviceptr to, unsigned char value, std::size_t bytes, CUstream stream) {
  FAKE_CALL("cuMemsetD8Async");
  Queue* const queue = queue_of(stream);
  if (!queue) return CUDA_ERROR_INVALID_HANDLE;
  return give(*queue, [to, value, bytes](const std::shared_ptr<GraphRun>&) -> Work {
    return [to, value, bytes] {
      std::memset(reinterpret_cast<void*>(to), value, bytes);
      return true;
    };
  });
}
/// The address is known at once, and stays in graphs.
CUresult mem_alloc_async(CUdeviceptr* address, std::size_t bytes, CUstream stream) {
  FAKE_CALL("cuMemAllocAsync");
  if (!queue_of(stream)) return CUDA_ERROR_INVALID_HANDLE;
  std::uintptr_t made = 0;
  const CUresult result = make_allocation(&made, bytes, Allocation::Kind::kPool);
  *address = made;
  return result;
}
CUresult mem_free_async(CUdeviceptr address, CUstream stream) {
  FAKE_END("cuMemFreeAsync");
  Queue* const queue = queue_of(stream);
  if (!queue) return CUDA_ERROR_INVALID_HANDLE;
  if (queue->capture != 0) {
    // Freed with the graph.
    auto* const held = new UserObject{
        reinterpret_cast<void*>(address),
        [](void* memory) { (void)free_allocation(reinterpret_cast<std::uintptr_t>(memory), Allocation::Kind::kPool); },
        1};
    ++world().counts.user_objects;
    world().captures.at(queue->capture).graph->objects.push_back(held);
    return failure;
  }
  const CUresult given = give(*queue, [address](const std::shared_ptr<GraphRun>&) -> Work {
    return [address] { return free_allocation(address, Allocation::Kind::kPool) == CUDA_SUCCESS; };
  });
  return given == CUDA_SUCCESS ? failure : given;
}

CUresult launch(const CUlaunchConfig* shape, CUfunction function, void** parameters, void**) {
  nap();
  FAKE_CALL("cuLaunchKernelEx");
  Queue* const queue = queue_of(shape->hStream);
  if (!queue) return CUDA_ERROR_INVALID_HANDLE;
  const auto* const launched = reinterpret_cast<const Function*>(function);
  const auto* const kernel = launched->kernel;
  const auto module = launched->module.lock();
  if (module->device != device_of(*queue)) return CUDA_ERROR_INVALID_HANDLE;
  if (shape->gridDimX == 0) return CUDA_ERROR_INVALID_VALUE;
  auto argument =
      std::make_shared<std::vector<std::max_align_t>>(kernel->argument_bytes / sizeof(std::max_align_t) + 1);
  if (kernel->argument_bytes != 0) std::memcpy(argument->data(), parameters[0], kernel->argument_bytes);
  for (const void* touched : kernel->touches(argument->data())) {
    const Allocation* const memory = find_allocation(reinterpret_cast<std::uintptr_t>(touched));
    if (memory && !may_use(current_device(), *memory)) return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  if (world().counts.modules == 0) return CUDA_ERROR_INVALID_HANDLE;
  if (queue->capture != 0) world().captures.at(queue->capture).graph->has_kernels = true;
  ++world().launches;
  (void)note({.what = Given::What::kKernel, .stream = shape->hStream, .kernel = kernel->name});
  const std::weak_ptr<Module> loaded = module;
  return give(*queue, [kernel, argument, blocks = shape->gridDimX, loaded](const std::shared_ptr<GraphRun>&) -> Work {
    auto running = std::make_shared<Work>();
    const auto held = loaded.lock();
    if (!held) end_over_unloaded_kernels();
    return [kernel, argument, blocks, running, held] {
      if (!*running) {
        if (!take_turn()) return false;
        *running = kernel->body(argument->data(), blocks);
      }
      if (!(*running)()) return false;
      end_turn();
      return true;
    };
  });
}

/// Words at addresses that the driver knows, one after the other.
CUresult batch(CUstream stream, unsigned count, CUstreamBatchMemOpParams* all, unsigned) {
  FAKE_CALL("cuStreamBatchMemOp");
  Queue* const queue = queue_of(stream);
  if (!queue) return CUDA_ERROR_INVALID_HANDLE;
  if (count == 0 || count > 256) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUstreamBatchMemOpParams> operations(all, all + count);
  for (const auto& one : operations) {
    const bool waits = one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32;
    if (!waits && one.operation != CU_STREAM_MEM_OP_WRITE_VALUE_32) return CUDA_ERROR_NOT_SUPPORTED;
    if (waits && one.waitValue.flags != CU_STREAM_WAIT_VALUE_AND) return CUDA_ERROR_NOT_SUPPORTED;
    if (!find_allocation(waits ? one.waitValue.address : one.writeValue.address)) return CUDA_ERROR_INVALID_VALUE;
  }
  return give(*queue, [operations](const std::shared_ptr<GraphRun>&) -> Work {
    return [operations, next = std::size_t{0}]() mutable {
      for (; next < operations.size(); ++next) {
        const auto& one = operations[next];
        const bool waits = one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32;
        std::atomic_ref word(*reinterpret_cast<std::uint32_t*>(waits ? one.waitValue.address : one.writeValue.address));
        if (!waits) {
          word.store(one.writeValue.value, std::memory_order_release);
        } else if ((word.load(std::memory_order_acquire) & one.waitValue.value) == 0) {
          return false;
        }
      }
      return true;
    };
  });
}

template <class Function>
void* entry(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

std::vector<Entry> stream_entries() {
  std::vector<Entry> entries = {{"cuStreamCreate", entry(stream_create)},
                                {"cuStreamGetFlags", entry(stream_flags)},
                                {"cuStreamGetId", entry(stream_id)},
                                {"cuStreamDestroy", entry(stream_destroy)},
                                {"cuStreamSynchronize", entry(stream_synchronize)},
                                {"cuStreamQuery", entry(stream_query)},
                                {"cuStreamWaitEvent", entry(stream_wait_event)},
                                {"cuEventCreate", entry(event_create)},
                                {"cuEventDestroy", entry(event_destroy)},
                                {"cuEventRecord", entry(event_record)},
                                {"cuEventRecordWithFlags", entry(event_record_with_flags)},
                                {"cuEventQuery", entry(event_query)},
                                {"cuEventSynchronize", entry(event_synchronize)},
                                {"cuEventElapsedTime", entry(event_elapsed)},
                                {"cuStreamBatchMemOp", entry(batch)},
                                {"cuMemcpyAsync", entry(copy_async)},
                                {"cuMemcpy2DAsync", entry(copy_rows_async)},
                                {"cuMemsetD8Async", entry(set_bytes_async)},
                                {"cuMemAllocAsync", entry(mem_alloc_async)},
                                {"cuMemFreeAsync", entry(mem_free_async)},
                                {"cuLaunchKernelEx", entry(launch)}};
#if CUDA_VERSION >= 13000
  entries.push_back({"cuMemcpyBatchAsync", entry(copy_batch_async)});
#endif
  return entries;
}

}  // namespace fake_driver
