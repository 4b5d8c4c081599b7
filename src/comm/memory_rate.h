// What memory gives: measured for the certificate of a communicator, where the machine's description has no figure.
#pragma once

namespace tutti::comm {

/// GB/s, bytes read plus bytes written, by one thread for each processor that this thread may use (16 at most), each with buffers that
/// the caches do not hold. Some tens of milliseconds the first time; what was measured is remembered by the process. 0: no
/// memory or threads for that.
double memory_gbps();

}  // namespace tutti::comm
