#include "comm/unique_id.h"

#include "base/config.h"
#include "base/log.h"
#include "base/random.h"
#include "comm/bootstrap_root.h"
#include "comm/interfaces.h"
#include "comm/named_root.h"
#include "comm/nics.h"
#include "comm/quiet_thread.h"
#include "comm/tcp_socket.h"
#include "comm/unix_socket.h"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <memory>

namespace tutti::comm {
namespace {

Status start_root(std::vector<PrivateDescriptor> listeners, const UniqueId& id,
                  std::shared_ptr<const std::atomic<bool>> unwanted = nullptr) {
  Secret secret;
  std::memcpy(secret.data(), id.secret, secret.size());
  auto root = std::make_shared<BootstrapRoot>(std::move(listeners), secret, root_variables().heartbeat_timeout_s,
                                              std::move(unwanted), id.named != 0);
  TUTTI_TRY_ASSIGN(std::thread thread, start_quiet_thread("tutti-root", [root = std::move(root)] {
                     try {
                       root->run();
                     } catch (const std::exception&) {
                       // For want of memory: the ranks see that their connections end.
                     }
                   }));
  thread.detach();
  return {};
}

/// For ranks of other hosts. Where there is no network the id serves this host alone, unless the user has named an interface.
Status listen_for_others(UniqueId& id, std::vector<PrivateDescriptor>& listeners) {
  const RootVariables variables = root_variables();
  const auto all = list_interfaces();
  TUTTI_TRY_ASSIGN(const auto chosen, choose_interfaces(all.ok() ? all.value() : std::vector<Interface>(),
                                                        variables.socket_interfaces, variables.socket_family));
  auto listener = listen_tcp();
  if (chosen.empty() || !listener.ok()) {
    log_info("bootstrap: no other host can reach this one: {}",
             chosen.empty() ? "no network interface is up" : listener.error().message);
    return {};
  }
  id.port = listener.value().port;
  const auto add = [&id](const Interface& interface) { return add_candidate(id, interface.address); };
  if (!std::ranges::all_of(chosen, add)) {
    id.candidate_bytes = 0;  // there is room for the best ones
    std::ranges::for_each(in_order(chosen, look_at_nics(config().hwloc_root, chosen)).interfaces, add);
  }
  listeners.push_back(std::move(listener.value().socket));
  return {};
}

}  // namespace

bool add_candidate(UniqueId& id, const IpAddress& address) {
  WireWriter writer;
  write_address(writer, address);
  const Bytes bytes = writer.take();
  if (id.candidate_bytes + bytes.size() > sizeof(id.candidates)) return false;
  std::ranges::copy(bytes, id.candidates + id.candidate_bytes);
  id.candidate_bytes += static_cast<std::uint8_t>(bytes.size());
  return true;
}

std::vector<IpAddress> candidates_of(const UniqueId& id) {
  std::vector<IpAddress> found;
  if (id.port == 0) return found;
  WireReader reader({id.candidates, std::min<std::size_t>(id.candidate_bytes, sizeof(id.candidates))});
  while (!reader.complete()) {
    const auto address = read_address(reader);
    if (!address) break;
    found.push_back(*address);
  }
  return found;
}

std::string describe(const UniqueId& id) {
  std::string text(id.address, strnlen(id.address, sizeof(id.address)));
  for (const IpAddress& address : candidates_of(id)) {
    text += fmt::format("{}{}", text.empty() ? "" : " or ", address.text(id.port));
  }
  return text;
}

Result<UniqueId> make_programs_id() { return root_variables().comm_id.empty() ? make_unique_id() : named_id(); }

Status UnstartedRoot::start(std::shared_ptr<const std::atomic<bool>> unwanted) && {
  return start_root(std::move(listeners), id, std::move(unwanted));
}

Result<UnstartedRoot> prepare_root() {
  UnstartedRoot root;
  UniqueId& id = root.id;
  id.magic = kUniqueIdMagic;
  id.version = kProtocolVersion;
  std::uint64_t name = 0;
  TUTTI_TRY(fill_random(id.secret, sizeof(id.secret)));
  TUTTI_TRY(fill_random(&name, sizeof(name)));
  const std::string address = fmt::format("{}tutti-{}-{:016x}", kUnixPrefix, getpid(), name);
  std::memcpy(id.address, address.c_str(), std::min(address.size() + 1, sizeof(id.address) - 1));
  TUTTI_TRY_ASSIGN(root.listeners.emplace_back(), listen_unix(address));
  TUTTI_TRY(listen_for_others(id, root.listeners));
  return root;
}

Result<UniqueId> make_unique_id() {
  TUTTI_TRY_ASSIGN(UnstartedRoot root, prepare_root());
  TUTTI_TRY(std::move(root).start());
  return root.id;
}

Result<std::shared_ptr<std::atomic<bool>>> start_named_root(const UniqueId& id, const Patience& patience) {
  std::vector<PrivateDescriptor> listeners;
  TUTTI_TRY_ASSIGN(listeners.emplace_back(), listen_named(id, patience));
  auto unwanted = std::make_shared<std::atomic<bool>>(false);
  TUTTI_TRY(start_root(std::move(listeners), id, unwanted));
  return unwanted;
}

}  // namespace tutti::comm
