#include "api/config_struct.h"

#include "base/config.h"
#include "base/log.h"

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstring>
#include <string>

namespace tutti::api {
namespace {

constexpr unsigned kNcclMagic = 0xcafebeef;

/// One integer field of ncclConfig_t. trafficClass is none of them: any number is a class, or -1 none, as in NCCL.
struct Field {
  int ncclConfig_t::*member;
  const char* name;
  unsigned since;  ///< version code of the first NCCL that has it
  int least;
  int most;
};

constexpr Field kFields[] = {
    {&ncclConfig_t::blocking, "blocking", 21400, 0, 1},
    {&ncclConfig_t::cgaClusterSize, "cgaClusterSize", 21700, 0, 8},
    {&ncclConfig_t::minCTAs, "minCTAs", 21700, 1, INT_MAX},
    {&ncclConfig_t::maxCTAs, "maxCTAs", 21700, 1, INT_MAX},
    {&ncclConfig_t::splitShare, "splitShare", 21800, 0, 1},
    {&ncclConfig_t::collnetEnable, "collnetEnable", 22700, 0, 1},
    {&ncclConfig_t::CTAPolicy, "CTAPolicy", 22700, 0, NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO},
    {&ncclConfig_t::shrinkShare, "shrinkShare", 22700, 0, 1},
    {&ncclConfig_t::nvlsCTAs, "nvlsCTAs", 22700, 1, INT_MAX},
    {&ncclConfig_t::nChannelsPerNetPeer, "nChannelsPerNetPeer", 22800, 1, INT_MAX},
    {&ncclConfig_t::nvlinkCentricSched, "nvlinkCentricSched", 22800, 0, 1},
};
constexpr unsigned kNetNameSince = 21700;
constexpr unsigned kCommNameSince = 22700;

Error not_initialized(const char* what, std::size_t size, unsigned magic, const char* initializer) {
  return error(Code::kInvalidArgument,
               fmt::format("config is not initialised (size {}, magic {:#x}): declare it as {} config = {};", size,
                           magic, what, initializer));
}

/// Copies what the user's struct has of T; the rest keeps `copy`'s values. False if its head is not there or not ours.
template <class T>
bool copy_known(const T* from, std::size_t head_bytes, unsigned magic, T& copy) {
  std::size_t size = 0;
  std::memcpy(&size, &from->size, sizeof(size));
  copy.size = size;
  // Not even the magic may be there in a struct that claims to be shorter.
  copy.magic = 0;
  if (size < head_bytes) return false;
  std::memcpy(&copy.magic, &from->magic, sizeof(copy.magic));
  if (copy.magic != magic) return false;
  std::memcpy(&copy, from, std::min(size, sizeof(T)));
  return true;
}

Status check_field(const char* name, int value, int least, int most) {
  if (value == NCCL_CONFIG_UNDEF_INT || (value >= least && value <= most)) return {};
  const std::string accepted =
      most == INT_MAX ? fmt::format("at least {}", least) : fmt::format("{} to {}", least, most);
  return error(Code::kInvalidArgument,
               fmt::format("config.{} is {}; pass {}, or leave it as the initialiser sets it", name, value, accepted));
}

void set_blocking(comm::Options& options, int value) {
  if (value != NCCL_CONFIG_UNDEF_INT && !config().blocking_set) options.blocking = value == 1;
}

}  // namespace

comm::Options default_options() {
  comm::Options options;
  options.blocking = config().blocking_set ? config().blocking : true;
  options.reproducible = config().reproducible;
  options.wide_wire = config().wide_wire;
  return options;
}

Result<comm::Options> read_config(const ncclConfig_t* config) {
  comm::Options options = default_options();
  if (!config) return options;
  ncclConfig_t copy = NCCL_CONFIG_INITIALIZER;
  if (!copy_known(config, offsetof(ncclConfig_t, blocking), kNcclMagic, copy))
    return not_initialized("ncclConfig_t", copy.size, copy.magic, "NCCL_CONFIG_INITIALIZER");
  for (const Field& field : kFields) {
    if (field.since > copy.version) copy.*field.member = NCCL_CONFIG_UNDEF_INT;
    TUTTI_TRY(check_field(field.name, copy.*field.member, field.least, field.most));
  }
  const bool both_set = copy.minCTAs != NCCL_CONFIG_UNDEF_INT && copy.maxCTAs != NCCL_CONFIG_UNDEF_INT;
  if (both_set && copy.minCTAs > copy.maxCTAs)
    return error(Code::kInvalidArgument,
                 fmt::format("config.minCTAs is {}, more than maxCTAs {}", copy.minCTAs, copy.maxCTAs));
  set_blocking(options, copy.blocking);
  if (copy.version >= kCommNameSince && copy.commName) options.name = copy.commName;
  if (copy.version >= kNetNameSince && copy.netName)
    log_info("config.netName \"{}\" has no effect: TUTTI_NET chooses the network", copy.netName);
  return options;
}

Result<comm::Options> read_config(const tuttiConfig_t* config) {
  comm::Options options = default_options();
  if (!config) return options;
  tuttiConfig_t copy = TUTTI_CONFIG_INITIALIZER;
  if (!copy_known(config, offsetof(tuttiConfig_t, blocking), TUTTI_CONFIG_MAGIC, copy))
    return not_initialized("tuttiConfig_t", copy.size, copy.magic, "TUTTI_CONFIG_INITIALIZER");
  TUTTI_TRY(check_field("blocking", copy.blocking, 0, 1));
  TUTTI_TRY(check_field("reproducible", copy.reproducible, 0, 1));
  TUTTI_TRY(check_field("wideWire", copy.wideWire, 0, 1));
  set_blocking(options, copy.blocking);
  if (copy.reproducible != NCCL_CONFIG_UNDEF_INT) options.reproducible = copy.reproducible == 1;
  if (copy.wideWire != NCCL_CONFIG_UNDEF_INT) options.wide_wire = copy.wideWire == 1;
  if (copy.name) options.name = copy.name;
  return options;
}

}  // namespace tutti::api
