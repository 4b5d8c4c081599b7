// Messages of users' memory, host memory or GPU memory where the MPI takes that: one MPI request each, on the plug-in's communicator.
#pragma once

#include "transport/mpi_link.h"
#include "transport/mpi_service.h"

#include <memory>
#include <string>

namespace tutti::transport {

/// What the process's MPI says. With a pass (MpiCalls), once MPI is initialised.
MpiState::Cuda ask_for_cuda();

/// As MpiNetwork::message() has it. A failure to post is what look() says later.
std::unique_ptr<MpiMessage> post_message(std::shared_ptr<const MpiOwned> comm, int peer, MpiDirection direction,
                                         void* data, std::size_t bytes, MpiUse use);

/// "MPI_Isend: MPI_ERR_RANK: invalid rank"
std::string text_of_error(const char* call, int result);

}  // namespace tutti::transport
