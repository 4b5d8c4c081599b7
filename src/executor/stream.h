// Host streams and events: in order, asynchronous; the cudaStream_t of a communicator on host memory.
#pragma once

#include "base/result.h"

#include <functional>
#include <memory>

namespace tutti::executor {

/// One worker thread that runs what is enqueued, in order. Handles are checked: a stale or foreign one is an error.
using StreamHandle = void*;
using EventHandle = void*;

Result<StreamHandle> stream_create();
/// Waits until what was enqueued before has run.
Status stream_synchronize(StreamHandle stream);
/// True when everything enqueued so far has run.
Result<bool> stream_query(StreamHandle stream);
/// Finishes what is enqueued, then ends the thread; the handle is invalid afterwards.
Status stream_destroy(StreamHandle stream);
bool stream_valid(StreamHandle stream);
/// Runs `work` on the stream's thread after everything enqueued before.
Status stream_enqueue(StreamHandle stream, std::function<void()> work);

Result<EventHandle> event_create();
/// The event completes when the stream reaches this point. Recording again moves it.
Status event_record(EventHandle event, StreamHandle stream);
/// Later work of the stream waits for the event's last record (no record: no wait).
Status stream_wait_event(StreamHandle stream, EventHandle event);
Status event_synchronize(EventHandle event);
Result<bool> event_query(EventHandle event);
Status event_destroy(EventHandle event);

}  // namespace tutti::executor
