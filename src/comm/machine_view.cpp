#include "comm/machine_view.h"

#include "base/config.h"
#include "base/descriptor.h"
#include "base/log.h"
#include "base/regular_file.h"
#include "comm/machine_library.h"
#include "comm/memory_rate.h"
#include "comm/own_seat.h"
#include "executor/backoff.h"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <set>
#include <string_view>
#include <utility>

namespace tutti::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// For a rank that makes the graph: discovery takes tens of milliseconds, drivers may take seconds.
constexpr double kMergeSecondsMax = 60;

/// This machine, looked at once per process. No lock: a process may fork at any time; who comes second in a race looks again.
Result<std::string> discovered(const planner::MachineService& service) {
  static std::atomic<const std::string*> known{nullptr};
  if (const std::string* text = known.load(std::memory_order_acquire)) return *text;
  TUTTI_TRY_ASSIGN(std::string text, service.discover(config().hwloc_root));
  const auto* mine = new std::string(text);
  const std::string* nobody = nullptr;
  if (!known.compare_exchange_strong(nobody, mine)) delete mine;
  return text;
}

/// The file or, as in NCCL, the machine itself where the file cannot be read.
Result<std::string> from_file(const planner::MachineService& service) {
  const std::string& path = config().topology_file;
  struct stat facts {};
  const bool special = stat(path.c_str(), &facts) == 0 && !S_ISREG(facts.st_mode) && !S_ISDIR(facts.st_mode);
  // Nobody is to wait for who writes into it.
  auto text = special ? error(Code::kSystem, path + ": not a regular file") : service.read_file(path);
  if (text.ok()) {
    log_info(LogSubject::kGraph, "NCCL_TOPO_FILE={}: the machine is as this file says", path);
    return text;
  }
  if (text.error().code != Code::kSystem)
    return error(Code::kInvalidUsage, fmt::format("NCCL_TOPO_FILE: {}", text.error().message));
  log_warn("NCCL_TOPO_FILE: {}: the machine is looked at instead", text.error().message);
  return discovered(service);
}

Status write_file(const std::string& path, std::string_view text) {
  const Descriptor file(open_for_writing(path, O_TRUNC));
  if (!file) return system_error(path);
  while (!text.empty()) {
    const ssize_t written = write(file.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return system_error(path);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

template <class Print>
void for_each_line(std::string_view text, const Print& print) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    print(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

bool names_trees() {
  const auto names = [](const char* row) { return config().algorithm.find(row) != std::string::npos; };
  return names("packed_trees") || names("packed_pairs");
}

bool wants_machine() {
  const bool limits = config().p2p_level != GpuDistance::kSystem && config().p2p_level != GpuDistance::kSame;
  return log_enabled(LogSubject::kGraph) || names_trees() || limits || !config().topology_file.empty() ||
         !config().topology_dump_file.empty();
}

/// Why a rank that was to look has told nothing; empty if it was not to.
std::string_view problem_of(LookOutcome outcome) {
  switch (outcome) {
    case LookOutcome::kTooLarge: return "its description is too long to be told";
    case LookOutcome::kNoPlugIn: return "libtutti-topology.so cannot be used there";
    case LookOutcome::kFailed: return "it could not look";
    case LookOutcome::kNone:
    case LookOutcome::kSeen: break;
  }
  return "";
}

}  // namespace

std::string describe(const planner::Seat& seat) {
  std::string text = seat.numa == planner::kUnknownSeat ? "" : fmt::format("NUMA node {}, ", seat.numa);
  text += seat.processors.empty() ? "processors not known" : "processors " + planner::to_list(seat.processors);
  if (seat.quota_percent > 0)
    text += fmt::format(", a quota of {}.{:02} processors", seat.quota_percent / 100, seat.quota_percent % 100);
  return text;
}

std::vector<std::vector<int>> ranks_by_kernel(const std::vector<std::string>& hosts,
                                              const std::vector<std::uint64_t>& kernels) {
  std::vector<std::vector<int>> found;
  std::map<std::pair<std::uint64_t, std::string>, std::size_t> places;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    const std::uint64_t kernel = kernels[rank];
    const auto [place, added] = places.try_emplace({kernel, kernel == 0 ? hosts[rank] : std::string()}, found.size());
    if (added) found.emplace_back();
    found[place->second].push_back(static_cast<int>(rank));
  }
  return found;
}

MachineView::MachineView(Args args) : args_(std::move(args)) {}

void MachineView::sit() {
  args_.board.sit(args_.rank, own_seat(config().hwloc_root),
                  {outlook(config().hwloc_root), wants_machine(), !config().topology_file.empty(), args_.port,
                   kernel_id(config().hwloc_root)});
}

int MachineView::leader_of(int rank) const {
  const auto found = std::ranges::find(args_.hosts, args_.hosts[static_cast<std::size_t>(rank)]);
  return static_cast<int>(found - args_.hosts.begin());
}

/// Who sees what nobody of a lower rank on its host sees.
bool MachineView::looks(int rank) const {
  const int leader = leader_of(rank);
  if (leader == rank) return true;
  // The file describes the host, whatever its ranks see.
  if (args_.board.manners(leader).has_file) return false;
  for (int other = leader; other < rank; ++other)
    if (leader_of(other) == leader && args_.board.manners(other).outlook == args_.board.manners(rank).outlook)
      return false;
  return true;
}

/// What this rank has seen, where the others find it.
Status MachineView::keep(const std::string& seen) {
  if (args_.one_host) return args_.board.put_look(args_.rank, seen);
  int place = 0;
  int places = 0;
  for (int rank = 0; rank < static_cast<int>(args_.hosts.size()); ++rank) {
    if (!looks(rank)) continue;
    if (rank < args_.rank) ++place;
    ++places;
  }
  return args_.board.put_look(args_.rank, seen, place, places);
}

Status MachineView::look() {
  if (!seats_.empty()) return {};
  const int ranks = static_cast<int>(args_.hosts.size());
  bool alike = true;
  for (int rank = 0; rank < ranks; ++rank) {
    seats_.push_back(args_.board.seat(rank));
    const Manners manners = args_.board.manners(rank);
    wanted_ |= manners.wants_machine;
    alike = alike && manners.outlook == args_.board.manners(0).outlook;
  }
  if (args_.one_host) groups_ = planner::groups_of(seats_);
  const bool needed =
      wanted_ || !alike || wants_trees() || groups_.level != planner::SeatLevel::kNone || !args_.one_host;
  if (!needed || !looks(args_.rank)) return {};
  const bool leads_host = leader_of(args_.rank) == args_.rank;
  const auto service = machine_service();
  if (!service.ok()) {
    args_.board.put_outcome(args_.rank, LookOutcome::kNoPlugIn);
    static std::atomic<bool> told{false};
    if (leads_host && !config().topology_file.empty())
      log_warn("NCCL_TOPO_FILE is not read: {}", service.error().message);
    if (!told.exchange(true)) log_info(LogSubject::kGraph, "{}", service.error().message);
    return {};
  }
  auto seen =
      leads_host && !config().topology_file.empty() ? from_file(*service.value()) : discovered(*service.value());
  if (!seen.ok() && seen.error().code != Code::kSystem) return std::move(seen).error();
  if (!seen.ok()) {
    args_.board.put_outcome(args_.rank, LookOutcome::kFailed);
    log_warn("rank {} cannot look at its machine: {}", args_.rank, seen.error().message);
    return {};
  }
  // A rank that is alone has no board for it.
  if (ranks == 1) {
    graph_ = std::move(seen).value();
  } else if (const Status kept = keep(seen.value()); !kept.ok()) {
    log_warn("rank {}: {}", args_.rank, kept.error().message);
  }
  if (leads() && args_.one_host && log_enabled(LogSubject::kGraph)) static_cast<void>(memory_gbps());
  return {};
}

/// What each rank says of itself, but for what it sees.
std::vector<planner::RankLook> MachineView::told_looks() const {
  std::vector<planner::RankLook> looks;
  for (std::size_t rank = 0; rank < args_.hosts.size(); ++rank) {
    planner::RankLook& look = looks.emplace_back();
    look.rank = static_cast<int>(rank);
    look.host = args_.hosts[rank];
    look.numa = seats_[rank].numa;
    look.seat = describe(seats_[rank]);
    if (args_.gpu) look.gpu = args_.gpu(look.rank);
    if (args_.one_host) continue;
    const Port port = args_.board.manners(look.rank).port;
    look.has_port = true;
    look.interface = port.interface;
    look.megabits = port.megabits;
    look.loopback = port.loopback;
  }
  return looks;
}

Result<std::string> MachineView::merge() const {
  TUTTI_TRY_ASSIGN(const planner::MachineService* const service, machine_service());
  std::vector<planner::RankLook> looks = told_looks();
  bool any = false;
  for (planner::RankLook& look : looks) {
    auto seen = looks.size() == 1 ? Result<std::string>(graph_) : args_.board.look(look.rank);
    if (seen.ok()) {
      look.graph = std::move(seen).value();
    } else {
      look.problem = seen.error().message;
    }
    if (look.graph.empty() && look.problem.empty()) look.problem = problem_of(args_.board.outcome(look.rank));
    any = any || !look.graph.empty();
  }
  // Over hosts what only this rank sees must not be in the graph: the others would have another one.
  if (!any && args_.one_host) {
    TUTTI_TRY_ASSIGN(looks[static_cast<std::size_t>(args_.rank)].graph, discovered(*service));
  }
  return service->merge(looks);
}

Result<std::string> MachineView::wait_for_graph() const {
  const auto start = Clock::now();
  executor::Backoff backoff(true);
  while (args_.board.merging() == MachineBoard::Merging::kUnderWay) {
    if (args_.given_up()) return error(Code::kRemote, "the communicator failed while a rank looked at the machine");
    if (std::chrono::duration<double>(Clock::now() - start).count() > kMergeSecondsMax)
      return error(Code::kRemote, fmt::format("the rank that looks at the machine has taken {} s", kMergeSecondsMax));
    backoff.wait();
  }
  return args_.board.merging() == MachineBoard::Merging::kDone ? args_.board.merged()
                                                               : Result<std::string>(std::string());
}

Result<std::string> MachineView::graph() {
  const std::lock_guard lock(mutex_);
  const bool alone = args_.hosts.size() == 1;
  if (!graph_.empty() && !alone) return graph_;
  if (alone) return merge();
  if (!args_.one_host) {
    TUTTI_TRY_ASSIGN(graph_, merge());
    return graph_;
  }
  TUTTI_TRY_ASSIGN(std::string there, wait_for_graph());
  if (there.empty()) {
    const bool mine = args_.board.claim();
    auto made = merge();
    if (mine && made.ok()) args_.board.publish(made.value());
    if (mine && !made.ok()) args_.board.give_up();
    TUTTI_TRY_ASSIGN(there, std::move(made));
  }
  graph_ = there;
  return there;
}

std::vector<int> MachineView::numas() const {
  std::set<int> numbers;
  for (const planner::Seat& seat : seats_) {
    if (seat.numa == planner::kUnknownSeat) return {};  // it may be on any of them
    numbers.insert(seat.numa);
  }
  return {numbers.begin(), numbers.end()};
}

Result<planner::HostLinks> MachineView::links() {
  TUTTI_TRY_ASSIGN(const std::string text, graph());
  TUTTI_TRY_ASSIGN(const planner::MachineService* const service, machine_service());
  auto links = service->host_links(text, numas());
  // A file may describe another machine than the seats are of.
  return links.ok() ? std::move(links) : service->host_links(text, {});
}

Result<planner::BetweenHosts> MachineView::between_hosts(Collective collective) {
  TUTTI_TRY_ASSIGN(const std::string text, graph());
  TUTTI_TRY_ASSIGN(const planner::MachineService* const service, machine_service());
  const std::lock_guard lock(mutex_);
  const auto known = between_hosts_.find(collective);
  if (known != between_hosts_.end()) return known->second;
  TUTTI_TRY_ASSIGN(planner::BetweenHosts found, service->between_hosts(text, told_looks(), collective));
  return between_hosts_.emplace(collective, std::move(found)).first->second;
}

std::vector<std::vector<int>> MachineView::ranks_by_host() const {
  return ranks_by_kernel(args_.hosts, std::vector<std::uint64_t>(args_.hosts.size(), 0));
}

std::vector<planner::Seat> MachineView::seats_of(const std::vector<int>& ranks) const {
  std::vector<planner::Seat> seats;
  for (const int rank : ranks) seats.push_back(seats_[static_cast<std::size_t>(rank)]);
  return seats;
}

double MachineView::crowding() const {
  double most = 0;
  std::vector<std::uint64_t> kernels;
  for (int rank = 0; rank < static_cast<int>(args_.hosts.size()); ++rank)
    kernels.push_back(args_.board.manners(rank).kernel);
  for (const std::vector<int>& ranks : ranks_by_kernel(args_.hosts, kernels)) {
    const double crowding = planner::crowding_of(seats_of(ranks));
    if (crowding == 0) return 0;
    most = std::max(most, crowding);
  }
  return most;
}

double MachineView::own_crowding() const {
  for (const std::vector<int>& ranks : ranks_by_host())
    if (std::ranges::binary_search(ranks, args_.rank)) return planner::crowding_of(seats_of(ranks));
  return 0;
}

CacheRoom MachineView::own_cache_room() const {
  for (const std::vector<int>& ranks : ranks_by_host()) {
    if (!std::ranges::binary_search(ranks, args_.rank)) continue;
    std::set<int> processors;
    for (const planner::Seat& seat : seats_of(ranks)) processors.insert(seat.processors.begin(), seat.processors.end());
    const std::size_t told = last_caches_bytes(config().hwloc_root, {processors.begin(), processors.end()});
    return cache_room(told, processors.size(), ranks.size());
  }
  return {};
}

std::vector<std::string> MachineView::advice() const {
  std::vector<std::string> all;
  for (const std::vector<int>& ranks : ranks_by_host()) {
    const std::string& host = args_.hosts[static_cast<std::size_t>(ranks.front())];
    for (std::string& advice : planner::pinning_advice(seats_of(ranks), ranks))
      all.push_back(args_.one_host ? std::move(advice) : fmt::format("{}: {}", host.substr(0, host.find(' ')), advice));
  }
  return all;
}

MachineView::MemoryRate MachineView::memory_rate() {
  if (const auto known = links(); known.ok() && known.value().memory_gbps > 0)
    return {known.value().memory_gbps, false};
  if (args_.board.memory_gbps() == 0) args_.board.keep_memory_gbps(memory_gbps());
  return {args_.board.memory_gbps(), true};
}

double MachineView::between_groups_gbps() const {
  // Graphs have no links between caches.
  const bool by_node = groups_.level == planner::SeatLevel::kPackage || groups_.level == planner::SeatLevel::kNuma;
  if (!by_node) return 0;
  const auto service = machine_service();
  if (!service.ok()) return 0;
  const auto own = args_.board.look(args_.rank);
  if (!own.ok() || own.value().empty()) return 0;
  const auto links = service.value()->host_links(own.value(), numas());
  return links.ok() ? links.value().link_gbps : 0;
}

/// Where the ranks are: GPUs, if each has one of its own.
planner::RankPlaces MachineView::places() const {
  planner::RankPlaces places;
  for (const planner::Seat& seat : seats_) places.numas.push_back(seat.numa);
  std::set<std::string> apart;
  for (std::size_t rank = 0; rank < seats_.size() && args_.gpu; ++rank) {
    places.gpus.push_back(args_.gpu(static_cast<int>(rank)));
    if (!places.gpus.back().empty()) apart.insert(places.gpus.back());
  }
  if (apart.size() != seats_.size()) places.gpus.clear();
  return places;
}

bool MachineView::wants_trees() const {
  if (!args_.one_host || seats_.size() < 2) return false;
  const bool with_gpus = args_.gpu && !args_.gpu(args_.rank).empty();
  if (with_gpus) return seats_.size() > 2 && !places().gpus.empty();
  std::set<int> nodes;
  for (const planner::Seat& seat : seats_) nodes.insert(seat.numa);
  const bool apart = nodes.size() == seats_.size() && !nodes.contains(planner::kUnknownSeat);
  return apart || args_.board.manners(0).has_file || (leads() && names_trees());
}

bool MachineView::gpus_apart() const {
  if (!wants_trees() || places().gpus.empty()) return false;
  const auto service = machine_service();
  const auto own = args_.board.look(args_.rank);
  if (!service.ok() || !own.ok() || own.value().empty()) return false;
  const auto apart = service.value()->gpus_apart(own.value(), places());
  if (!apart.ok())
    log_info(LogSubject::kGraph, "the links of the ranks' GPUs are not known: {}", apart.error().message);
  return apart.ok() && apart.value();
}

std::vector<int> MachineView::gpu_ring() const {
  if (!wants_trees() || places().gpus.empty()) return {};
  if (!gpus_apart() && config().algorithm.find("ring") == std::string::npos) return {};
  const auto service = machine_service();
  const auto own = args_.board.look(args_.rank);
  if (!service.ok() || !own.ok() || own.value().empty()) return {};
  const auto ring = service.value()->gpu_ring(own.value(), places());
  return ring.ok() ? ring.value() : std::vector<int>();
}

Result<std::vector<GpuDistance>> MachineView::gpu_distances() const {
  planner::RankPlaces apart;
  std::vector<std::size_t> gpu_of;  // by rank
  for (std::size_t rank = 0; rank < seats_.size(); ++rank) {
    const std::string bus = args_.gpu(static_cast<int>(rank));
    const auto found = std::ranges::find(apart.gpus, bus);
    gpu_of.push_back(static_cast<std::size_t>(found - apart.gpus.begin()));
    if (found == apart.gpus.end()) apart.gpus.push_back(bus);
  }
  apart.numas.resize(apart.gpus.size(), planner::kUnknownSeat);
  TUTTI_TRY_ASSIGN(const planner::MachineService* const service, machine_service());
  TUTTI_TRY_ASSIGN(const std::string own, args_.board.look(args_.rank));
  if (own.empty()) {
    return error(Code::kSystem, std::string(problem_of(args_.board.outcome(args_.rank))));
  }
  TUTTI_TRY_ASSIGN(const std::vector<GpuDistance> between, service->gpu_distances(own, apart));
  std::vector<GpuDistance> all;
  for (const std::size_t a : gpu_of) {
    for (const std::size_t b : gpu_of) all.push_back(between[a * apart.gpus.size() + b]);
  }
  return all;
}

void MachineView::plan_trees(int lanes_most) {
  const bool all_alike = !places().gpus.empty() && !gpus_apart();
  if (!wants_trees() || (all_alike && !names_trees())) return;
  const auto service = machine_service();
  const auto own = args_.board.look(args_.rank);
  if (!service.ok() || !own.ok() || own.value().empty()) return;
  const auto planned = service.value()->trees(own.value(), places(), lanes_most);
  const Status kept = planned.ok() ? args_.board.put_trees(planned.value()) : Status(planned.error());
  if (!kept.ok()) log_info(LogSubject::kGraph, "no trees are planned for the machine: {}", kept.error().message);
}

std::string MachineView::trees() const {
  if (!args_.one_host || seats_.size() < 2) return {};
  const auto told = args_.board.trees();
  return told.ok() ? told.value() : std::string();
}

void MachineView::dump() {
  const std::string& path = config().topology_dump_file;
  if (path.empty() || config().topology_dump_rank != args_.rank) return;
  const auto written = [&]() -> Status {
    TUTTI_TRY_ASSIGN(const std::string text, graph());
    TUTTI_TRY_ASSIGN(const planner::MachineService* const service, machine_service());
    TUTTI_TRY_ASSIGN(const planner::NcclXml xml, service->nccl_xml(text));
    TUTTI_TRY(write_file(path, xml.text));
    for (const std::string& lost : xml.lost)
      log_warn("NCCL_TOPO_DUMP_FILE={}: NCCL's form does not hold all of this machine: {}", path, lost);
    return {};
  }();
  if (written.ok()) {
    log_info(LogSubject::kGraph, "NCCL_TOPO_DUMP_FILE={}: the machine is written", path);
  } else {
    log_warn("NCCL_TOPO_DUMP_FILE={}: not written: {}", path, written.error().message);
  }
}

void MachineView::report() {
  dump();
  log_info(LogSubject::kGraph, "rank {} sits on {}", args_.rank,
           describe(seats_[static_cast<std::size_t>(args_.rank)]));
  if (!leads() || !log_enabled(LogSubject::kGraph)) return;
  for (const std::string& advice : advice()) log_info(LogSubject::kGraph, "advice: {}", advice);
  if (groups_.level != planner::SeatLevel::kNone)
    log_info(LogSubject::kGraph, "ranks are in {} groups, by {}", groups_.count, planner::name_of(groups_.level));
  const auto text = graph();
  const auto service = machine_service();
  if (!text.ok() || !service.ok()) return;
  const auto summary = service.value()->summary(text.value());
  if (summary.ok())
    for_each_line(summary.value(), [](std::string_view line) { log_info(LogSubject::kGraph, "{}", line); });
}

}  // namespace tutti::comm
