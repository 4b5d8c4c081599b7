// Finds the MPI of this process, and the plug-in that fits it. libtutti.so itself neither links nor loads an MPI, unless a
// program asks for one.
#pragma once

#include "base/result.h"
#include "transport/mpi_service.h"

#include <string>

namespace tutti::comm {

/// For the MPI library that the application has loaded. kSystem: there is none, or no plug-in for it; the message says which.
Result<const transport::MpiService*> mpi_service();

/// For programs that leave MPI to the library (launch_mpi.cpp): that of the MPI that is loaded or, if none is, "openmpi" or "mpich". The
/// plug-in brings its MPI along. kInvalidUsage: neither; kSystem: there is no plug-in for it.
Result<const transport::MpiService*> load_mpi_service(const std::string& launchers_kind);

}  // namespace tutti::comm
