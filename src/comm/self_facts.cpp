// What a process says of itself in the bootstrap.
#include "base/config.h"
#include "base/descriptor.h"
#include "base/random.h"
#include "comm/bootstrap.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace tutti::comm {
namespace {

/// The lower bits hold the process id (Linux allows 22 bits), so that a forked child sees that the token it inherited
/// is its parent's. One atomic word: nothing that a fork could catch half done.
constexpr int kPidBits = 22;
constexpr std::uint64_t kPidMask = (std::uint64_t{1} << kPidBits) - 1;
std::atomic<std::uint64_t> token_of_process{0};

std::uint64_t process_token() {
  const std::uint64_t pid = static_cast<std::uint64_t>(getpid()) & kPidMask;
  std::uint64_t token = token_of_process.load();
  while (token == 0 || (token & kPidMask) != pid) {
    std::uint64_t random = 0;
    // Without randomness the address of a variable (random too, as a rule) has to do.
    if (!fill_random(&random, sizeof(random)).ok()) random = reinterpret_cast<std::uintptr_t>(&random) << 20;
    const std::uint64_t made = (random << kPidBits) | pid;
    if (token_of_process.compare_exchange_strong(token, made)) token = made;
  }
  return token;
}

std::string read_boot_id() {
  const Descriptor file(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  char text[64];
  ssize_t got = -1;
  do {
    got = file ? read(file.get(), text, sizeof(text)) : -1;
  } while (got < 0 && errno == EINTR);
  std::string id(text, got > 0 ? static_cast<std::size_t>(got) : 0);
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id;
}

/// "pid:[4026531836]"; empty where the system does not tell. A child may be in another one than its parent.
std::string process_namespace() {
  char name[32];
  const ssize_t length = readlink("/proc/self/ns/pid", name, sizeof(name));
  return std::string(name, length > 0 ? static_cast<std::size_t>(length) : 0);
}

/// Ranks of one host watch each other, and reach each other's memory, by process ids: those of another namespace name other processes.
std::string host_identity() {
  if (!config().host_id.empty()) return config().host_id;
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) name[0] = '\0';
  static const std::string boot_id = read_boot_id();  // one for all communicators of the process
  return std::string(name).substr(0, 200) + " " + boot_id + " " + process_namespace();
}

}  // namespace

Peer self_facts(int rank) {
  Peer peer;
  peer.rank = rank;
  peer.pid = getpid();
  peer.process_token = process_token();
  peer.host = host_identity();
  peer.probe_address = reinterpret_cast<std::uintptr_t>(&token_of_process);
  peer.probe_value = peer.process_token;
  return peer;
}

}  // namespace tutti::comm
