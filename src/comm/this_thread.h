// What every call asks of its thread.
#pragma once

namespace tutti::comm {

struct Groups;

struct ThisThread {
  int group_depth = 0;       ///< of ncclGroupStart
  Groups* groups = nullptr;  ///< once there is one (group.cpp)
};

/// At a fixed distance from the thread's pointer, so that no function is called to find it. Libraries that are opened later have little room
/// there: nothing large belongs here.
extern constinit thread_local ThisThread this_thread [[gnu::tls_model("initial-exec")]];

/// Differs between threads that live at the same time.
inline const void* thread_mark() { return &this_thread; }

}  // namespace tutti::comm
