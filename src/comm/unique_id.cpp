#include "comm/unique_id.h"

#include "base/random.h"
#include "comm/bootstrap_root.h"
#include "comm/quiet_thread.h"
#include "comm/unix_socket.h"

#include <fmt/format.h>

#include <unistd.h>

#include <cstring>
#include <memory>

namespace tutti::comm {
namespace {

Status start_root(std::shared_ptr<BootstrapRoot> root) {
  TUTTI_TRY_ASSIGN(std::thread thread, start_quiet_thread("tutti-root", [root = std::move(root)] { root->run(); }));
  thread.detach();
  return {};
}

}  // namespace

Result<UniqueId> make_unique_id() {
  UniqueId id;
  id.magic = kUniqueIdMagic;
  id.version = kProtocolVersion;
  std::uint64_t name[2] = {};
  TUTTI_TRY(fill_random(id.secret, sizeof(id.secret)));
  TUTTI_TRY(fill_random(name, sizeof(name)));
  const std::string address = fmt::format("{}tutti-{}-{:016x}{:016x}", kUnixPrefix, getpid(), name[0], name[1]);
  std::memcpy(id.address, address.c_str(), address.size() + 1);
  TUTTI_TRY_ASSIGN(PrivateDescriptor listener, listen_unix(address));
  Secret secret;
  std::memcpy(secret.data(), id.secret, secret.size());
  TUTTI_TRY(start_root(std::make_shared<BootstrapRoot>(std::move(listener), secret)));
  return id;
}

}  // namespace tutti::comm
