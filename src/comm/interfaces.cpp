#include "comm/interfaces.h"

#include "base/log.h"

#include <fmt/format.h>

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <iterator>
#include <memory>

namespace tutti::comm {
namespace {

/// Networks within a host: their addresses are the same on every host.
constexpr std::string_view kInnerNetworks[] = {"docker", "virbr"};

struct Rule {
  bool exclude = false;
  bool exact = false;
  std::vector<std::string_view> names;

  explicit Rule(std::string_view text) {
    const auto takes = [&text](char mark) {
      const bool there = text.starts_with(mark);
      if (there) text.remove_prefix(1);
      return there;
    };
    exclude = takes('^');
    exact = takes('=');
    while (!text.empty()) {
      const std::size_t end = std::min(text.find(','), text.size());
      if (end != 0) names.push_back(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
  }

  bool admits(std::string_view name) const {
    const bool listed = std::ranges::any_of(names, [&](std::string_view listed_name) {
      return exact ? name == listed_name : name.starts_with(listed_name);
    });
    return listed != exclude;
  }
};

bool is_inner(const Interface& interface) {
  return interface.loopback || std::ranges::any_of(kInnerNetworks, [&](std::string_view prefix) {
           return interface.name.starts_with(prefix);
         });
}

bool is_link_local(const IpAddress& address) {
  return address.v6 && address.bytes[0] == 0xfe && (address.bytes[1] & 0xc0) == 0x80;
}

std::string settings(std::string_view rule, std::string_view family) {
  std::string text;
  if (!rule.empty()) text = fmt::format("NCCL_SOCKET_IFNAME={}", rule);
  if (!family.empty()) {
    text += fmt::format("{}NCCL_SOCKET_FAMILY={}", text.empty() ? "" : " with ",
                        family == "af_inet6" ? "AF_INET6" : "AF_INET");
  }
  return text;
}

}  // namespace

Result<std::vector<Interface>> list_interfaces() {
  std::vector<Interface> found;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) {
    Error why = system_error(
        "the network interfaces are not told (getifaddrs needs a socket of AF_NETLINK; where too many files are open, "
        "raise the limit, ulimit -n)");
    log_warn("{}", why.message);
    return why;
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> all(first, freeifaddrs);
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if ((entry->ifa_flags & IFF_UP) == 0) continue;
    const auto address = from_kernel(entry->ifa_addr);
    if (!address || is_link_local(*address)) continue;
    const auto has = [&](unsigned flag) { return (entry->ifa_flags & flag) != 0; };
    found.push_back({entry->ifa_name, *address, has(IFF_LOOPBACK), has(IFF_RUNNING)});
  }
  return found;
}

Result<std::vector<Interface>> choose_interfaces(const std::vector<Interface>& all, std::string_view rule,
                                                 std::string_view family) {
  std::vector<Interface> there;
  std::ranges::copy_if(all, std::back_inserter(there),
                       [&](const Interface& i) { return family.empty() || i.address.v6 == (family == "af_inet6"); });
  std::vector<Interface> chosen;
  const Rule parsed(rule);
  const auto by_rule = [&](const Interface& i) { return rule.empty() ? !is_inner(i) : parsed.admits(i.name); };
  std::ranges::copy_if(there, std::back_inserter(chosen), by_rule);
  if (chosen.empty() && rule.empty()) chosen = there;
  if (chosen.empty() && !(rule.empty() && family.empty())) {
    return error(Code::kInvalidUsage, fmt::format("{} leaves no network interface that is up and has an address; "
                                                  "there are: {}",
                                                  settings(rule, family), describe(all)));
  }
  std::stable_partition(chosen.begin(), chosen.end(), [](const Interface& i) { return !i.address.v6; });
  // On another host that is the host itself, where somebody else may listen; and an id has room for few.
  std::stable_partition(chosen.begin(), chosen.end(), [](const Interface& i) { return !i.loopback; });
  return chosen;
}

std::string describe(const std::vector<Interface>& interfaces) {
  std::string text;
  for (const Interface& i : interfaces) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", i.name, i.address.text());
  }
  return text.empty() ? "none" : text;
}

}  // namespace tutti::comm
