// Capture into graphs, and their launches.
#include "calls.h"

namespace fake_driver {
namespace {

using GraphPointer = std::shared_ptr<Graph>;

CUresult stream_begin_capture(CUstream stream, CUstreamCaptureMode mode) {
  FAKE_CALL("cuStreamBeginCapture");
  Queue* const queue = queue_of(stream);
  World& w = world();
  if (!queue || queue == &w.legacy || queue->capture != 0) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  queue->capture = w.next_capture++;
  queue->lane = 0;
  Capture& capture = w.captures[queue->capture];
  capture.mode = mode;
  capture.thread = std::this_thread::get_id();
  capture.graph = std::make_shared<Graph>();
  capture.graph->lanes.emplace_back();
  capture.joined.push_back(0);
  capture.origin = queue;
  return CUDA_SUCCESS;
}

CUresult stream_end_capture(CUstream stream, CUgraph* graph) {
  FAKE_CALL("cuStreamEndCapture");
  Queue* const queue = queue_of(stream);
  World& w = world();
  *graph = nullptr;
  if (!queue || queue->capture == 0) return CUDA_ERROR_ILLEGAL_STATE;
  const std::uint64_t id = queue->capture;
  const Capture capture = w.captures.at(id);
  if (capture.origin != queue) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  w.captures.erase(id);
  for (Queue* other : w.queues) {
    if (other->capture == id) other->capture = 0;
  }
  if (capture.invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  for (std::size_t lane = 1; lane < capture.joined.size(); ++lane) {
    if (capture.joined[lane] != capture.graph->lanes[lane].size()) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  }
  *graph = reinterpret_cast<CUgraph>(new GraphPointer(capture.graph));
  return CUDA_SUCCESS;
}

CUresult stream_capture_info(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                             const CUgraphNode**, std::size_t*) {
  FAKE_CALL("cuStreamGetCaptureInfo");
  Queue* const queue = queue_of(stream);
  if (!queue) return CUDA_ERROR_INVALID_HANDLE;
  if (queue == &world().legacy && is_legacy_barred(false)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (queue->capture == 0) return CUDA_SUCCESS;
  Capture& capture = world().captures.at(queue->capture);
  *status = capture.invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  *id = queue->capture;
  *graph = reinterpret_cast<CUgraph>(&capture.graph);
  return CUDA_SUCCESS;
}

CUresult exchange_capture_mode(CUstreamCaptureMode* mode) {
  FAKE_CALL("cuThreadExchangeStreamCaptureMode");
  std::swap(*mode, capture_mode());
  return CUDA_SUCCESS;
}

CUresult graph_instantiate(CUgraphExec* executable, CUgraph graph, unsigned long long) {
  FAKE_CALL("cuGraphInstantiateWithFlags");
  *executable = reinterpret_cast<CUgraphExec>(new GraphPointer(*reinterpret_cast<GraphPointer*>(graph)));
  return CUDA_SUCCESS;
}
CUresult graph_destroy(CUgraph graph) {
  FAKE_END("cuGraphDestroy");
  delete reinterpret_cast<GraphPointer*>(graph);
  return failure;
}
CUresult graph_exec_destroy(CUgraphExec executable) {
  FAKE_END("cuGraphExecDestroy");
  delete reinterpret_cast<GraphPointer*>(executable);
  return failure;
}

/// Each stream of the capture goes on by itself.
struct Replay {
  GraphPointer graph;
  std::shared_ptr<GraphRun> run = std::make_shared<GraphRun>();
  std::vector<std::size_t> next;
  std::vector<Work> current;

  explicit Replay(GraphPointer g) : graph(std::move(g)), next(graph->lanes.size()), current(graph->lanes.size()) {
    for (const ExternalEvent& wait : graph->waits) {
      if (wait.event->last) run->marks[wait.mark] = wait.event->last;
      if (!wait.event->last) run->mark(wait.mark)->reached = true;
    }
    for (const ExternalEvent& record : graph->records) record.event->last = run->mark(record.mark);
  }
  bool advance() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t lane = graph->lanes.size(); lane-- > 0;) {
        if (next[lane] == graph->lanes[lane].size()) continue;
        if (!current[lane]) current[lane] = graph->lanes[lane][next[lane]](run);
        if (!current[lane]()) continue;
        current[lane] = nullptr;
        ++next[lane];
        moved = true;
      }
    }
    for (std::size_t lane = 0; lane < graph->lanes.size(); ++lane) {
      if (next[lane] != graph->lanes[lane].size()) return false;
    }
    return true;
  }
};

CUresult graph_launch(CUgraphExec executable, CUstream stream) {
  FAKE_CALL("cuGraphLaunch");
  Queue* const queue = queue_of(stream);
  if (!queue) return CUDA_ERROR_INVALID_HANDLE;
  const GraphPointer graph = *reinterpret_cast<GraphPointer*>(executable);
  // Its kernels' modules were unloaded.
  if (graph->has_kernels && world().counts.modules == 0) return CUDA_ERROR_INVALID_HANDLE;
  return give(*queue, [graph](const std::shared_ptr<GraphRun>&) -> Work {
    return [replay = std::make_shared<Replay>(graph)] { return replay->advance(); };
  });
}

CUresult user_object_create(CUuserObject* object, void* data, CUhostFn destroy, unsigned references, unsigned) {
  FAKE_CALL("cuUserObjectCreate");
  ++world().counts.user_objects;
  *object = reinterpret_cast<CUuserObject>(new UserObject{data, destroy, references});
  return CUDA_SUCCESS;
}
CUresult user_object_release(CUuserObject object, unsigned count) {
  FAKE_END("cuUserObjectRelease");
  auto* const held = reinterpret_cast<UserObject*>(object);
  held->references -= count;
  if (held->references != 0) return failure;
  call_back(held->destroy, held->data);
  delete held;
  --world().counts.user_objects;
  return failure;
}
CUresult graph_retain_object(CUgraph graph, CUuserObject object, unsigned, unsigned) {
  FAKE_CALL("cuGraphRetainUserObject");
  (*reinterpret_cast<GraphPointer*>(graph))->objects.push_back(reinterpret_cast<UserObject*>(object));
  return CUDA_SUCCESS;
}

template <class Function>
void* entry(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

std::vector<Entry> graph_entries() {
  return {{"cuStreamBeginCapture", entry(stream_begin_capture)},
          {"cuStreamEndCapture", entry(stream_end_capture)},
          {"cuStreamGetCaptureInfo", entry(stream_capture_info)},
          {"cuThreadExchangeStreamCaptureMode", entry(exchange_capture_mode)},
          {"cuGraphInstantiateWithFlags", entry(graph_instantiate)},
          {"cuGraphLaunch", entry(graph_launch)},
          {"cuGraphDestroy", entry(graph_destroy)},
          {"cuGraphExecDestroy", entry(graph_exec_destroy)},
          {"cuUserObjectCreate", entry(user_object_create)},
          {"cuUserObjectRelease", entry(user_object_release)},
          {"cuGraphRetainUserObject", entry(graph_retain_object)}};
}

}  // namespace fake_driver
