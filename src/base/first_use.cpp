#include "base/first_use.h"

#include <pthread.h>

#include <mutex>

namespace tutti {
namespace {

constinit std::mutex mutex;

// When the library is loaded: a thread that came to it while a process is being forked would come too late.
[[maybe_unused]] const int registered =
    pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, [] { mutex.unlock(); });

}  // namespace

FirstUse::FirstUse() { mutex.lock(); }
FirstUse::~FirstUse() { mutex.unlock(); }

}  // namespace tutti
