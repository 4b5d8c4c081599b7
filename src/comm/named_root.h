// NCCL_COMM_ID: a root at an address that the user has named, with TUTTI_SECRET as the key.
#pragma once

#include "base/result.h"
#include "comm/private_descriptor.h"
#include "comm/unique_id.h"

#include <cstdint>
#include <string>

namespace tutti::comm {

struct NamedRoot {
  std::string place;              ///< "10.0.0.1:4711", "[fd00::1]:4711", "box-7:4711"
  std::string from;               ///< the variable that says so, for messages
  std::string label;              ///< goes into the key with TUTTI_SECRET
  std::uint16_t port_offset = 0;  ///< to be added to the port
};
/// The same in every process that is told the same. kInvalidUsage: no address and port, a port behind the last one, or a name that
/// is none of a host.
Result<UniqueId> make_named_id(const NamedRoot& root);

/// The id that NCCL_COMM_ID and TUTTI_SECRET make.
Result<UniqueId> named_id();

/// Listens at the id's port, at all addresses of this host. Tries again while the port is taken.
Result<PrivateDescriptor> listen_named(const UniqueId& id, const Patience& patience);

}  // namespace tutti::comm
