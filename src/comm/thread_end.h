// What a thread's end destroys.
#pragma once

#include <pthread.h>

namespace tutti::comm {

/// For what a thread_local pointer points to. A thread_local with a destructor would be gone at exit() too, before exit handlers and the
/// destructors of static objects, which make calls as well. A key's destructor is called at the end of a thread only, and again, if another
/// key's has made such an object since.
class ThreadEnd {
 public:
  explicit ThreadEnd(void (*destroy)(void*)) : made_(pthread_key_create(&key_, destroy) == 0) {}

  /// `destroy` is called at this thread's end. Without a key what it would destroy stays.
  void await() const {
    if (made_) pthread_setspecific(key_, this);
  }

 private:
  pthread_key_t key_{};
  bool made_;
};

}  // namespace tutti::comm
