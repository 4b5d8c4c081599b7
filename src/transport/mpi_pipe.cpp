#include "transport/mpi_pipe.h"

#include <csignal>

namespace tutti::transport {
namespace {

/// A signal handler reads it: memory that each thread has from its start.
__attribute__((tls_model("initial-exec"))) thread_local volatile bool in_mpi = false;

void on_broken_pipe(int signal) {
  if (in_mpi) return;
  // It comes once more when this one is over.
  (void)std::signal(signal, SIG_DFL);
  (void)std::raise(signal);
}

}  // namespace

void MpiPipe::protect() {
  struct sigaction now = {};
  if (sigaction(SIGPIPE, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0 || now.sa_handler != SIG_DFL) return;
  struct sigaction wanted = {};
  wanted.sa_handler = on_broken_pipe;
  wanted.sa_flags = SA_RESTART | SA_ONSTACK;
  (void)sigaction(SIGPIPE, &wanted, nullptr);
}

MpiPipe::MpiPipe() { in_mpi = true; }
MpiPipe::~MpiPipe() { in_mpi = false; }

}  // namespace tutti::transport
