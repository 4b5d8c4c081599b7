// TUTTI_DEVICE_CALL: marks functions that the GPU compiler must make for the device too. Nothing for other compilers.
#pragma once

#ifdef __CUDACC__
#define TUTTI_DEVICE_CALL __host__ __device__
#else
#define TUTTI_DEVICE_CALL
#endif
