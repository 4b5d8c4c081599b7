#include "comm/device_teams.h"

#include "base/log.h"
#include "comm/call.h"
#include "comm/carriers.h"
#include "comm/comm.h"
#include "comm/device_rank.h"
#include "comm/group_jobs.h"
#include "comm/quiet_thread.h"
#include "comm/split_exchange.h"
#include "comm/team_plan.h"
#include "executor/backoff.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <utility>

namespace tutti::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLook = std::chrono::milliseconds(2);
/// How long a team's failure waits for what the communicator itself finds: who has died, whose calls differ.
constexpr auto kOwnReasonTime = std::chrono::seconds(1);

/// From what all ranks know alike. A forced algorithm is one of the host's.
std::optional<TeamLayout> layout_for(Communicator& communicator) {
  const Membership& members = communicator.members();
  const planner::Rules& rules = members.plans.rules();
  if (!communicator.device() || !members.bridge || members.control.settings().p2p_disable != 0) return std::nullopt;
  if (rules.reproducible || !rules.text.empty()) return std::nullopt;
  auto layout = TeamLayout::of(hosts_of(members.peers), communicator.rank());
  if (layout && layout->longest > cuda::kRanksMax) return std::nullopt;
  return layout;
}

/// A team's ranks count from 0.
Error in_own_numbers(const Error& failure, const char* team, const std::vector<int>& ranks) {
  if (failure.message.find("rank") == std::string::npos) return failure;
  return error(failure.code, fmt::format("{} (ranks are counted among those {} here: {} of the communicator)",
                                         failure.message, team, fmt::join(ranks, ", ")));
}

struct TeamIds {
  UniqueId inside;
  UniqueId across;
};

}  // namespace

DeviceTeams::DeviceTeams(Communicator& communicator, TeamLayout layout)
    : comm_(communicator),
      layout_(std::move(layout)),
      inside_{"on its host", layout_.inside, nullptr},
      across_{"between hosts", layout_.across, nullptr} {}

DeviceTeams::~DeviceTeams() { stop(); }

Result<std::unique_ptr<DeviceTeams>> DeviceTeams::make(Communicator& communicator, const Communicator* parent) {
  std::unique_ptr<DeviceTeams> none;
  auto layout = layout_for(communicator);
  if (!layout) return none;
  std::unique_ptr<DeviceTeams> made(new DeviceTeams(communicator, std::move(*layout)));
  TUTTI_TRY(made->make_teams(parent));
  TUTTI_TRY_ASSIGN(const bool all, made->agree());
  if (all) {
    TUTTI_TRY(made->start());
    return made;
  }
  log_info("GPU data goes through host memory: some host's GPUs do not all reach each other's memory");
  made->leave();
  return none;
}

/// The leaders' ids go round once for both.
Status DeviceTeams::make_teams(const Communicator* parent) {
  TeamIds own;
  std::optional<OwnId> leads_inside;
  std::optional<OwnId> leads_across;
  Status status;
  const auto lead = [&](const Team& team, UniqueId& id, std::optional<OwnId>& leads) {
    if (!status.ok() || team.ranks.empty() || team.ranks.front() != comm_.rank()) return;
    auto made = make_unique_id();
    if (!made.ok()) {
      status = made.error();
      return;
    }
    id = made.value();
    leads.emplace(id);
  };
  lead(inside_, own.inside, leads_inside);
  lead(across_, own.across, leads_across);
  std::vector<TeamIds> ids(static_cast<std::size_t>(comm_.ranks()));
  const Status exchanged = exchange(comm_, comm_, &own, sizeof own, ids.data());
  if (status.ok()) status = exchanged;
  if (status.ok()) status = make_team(inside_, ids[static_cast<std::size_t>(inside_.ranks.front())].inside, parent);
  if (status.ok() && !across_.ranks.empty())
    status = make_team(across_, ids[static_cast<std::size_t>(across_.ranks.front())].across, parent);
  // Otherwise ranks that never joined would keep the bootstraps waiting for them.
  if (status.ok() && leads_inside) leads_inside->begin();
  if (status.ok() && leads_across) leads_across->begin();
  return status;
}

Status DeviceTeams::make_team(Team& team, const UniqueId& id, const Communicator* parent) {
  if (id.magic == 0) {
    return error(Code::kRemote,
                 fmt::format("rank {} could not start the bootstrap of the ranks {}", team.ranks.front(), team.name));
  }
  Options options = child_options(comm_, nullptr);
  options.is_team = true;
  options.name += fmt::format("{}{}, ranks {}", options.name.empty() ? "" : " ", team.name, fmt::join(team.ranks, " "));
  team.communicator = std::make_shared<Communicator>(std::move(options));
  Communicator& made = *team.communicator;
  const auto own = std::ranges::find(team.ranks, comm_.rank());
  made.set_place(static_cast<int>(team.ranks.size()), static_cast<int>(own - team.ranks.begin()));
  made.set_outlook([this, parent]() -> std::optional<Error> {
    if (comm_.is_cancelled()) return comm_.why_stopped();
    if (comm_.failed()) return comm_.failure();
    if (parent && parent->failed()) return parent->failure();
    return std::nullopt;
  });
  if (comm_.members().plans.rules().network_measured) made.inherit_network(comm_.members().plans.rules().network);
  Status status = made.initialise({id});
  made.set_outlook(nullptr);
  if (status.ok() || comm_.is_cancelled()) return status;
  if (has_own_reason(status.error())) return comm_.failure();
  return in_own_numbers(status.error(), team.name, team.ranks);
}

/// Whether the kernels of all ranks reach all memory of their hosts'.
Result<bool> DeviceTeams::agree() const {
  const std::uint8_t own = inside().device()->reaches_all_by_kernels() ? 1 : 0;
  std::vector<std::uint8_t> all(static_cast<std::size_t>(comm_.ranks()));
  TUTTI_TRY(exchange(comm_, comm_, &own, sizeof own, all.data()));
  return std::ranges::all_of(all, [](std::uint8_t one) { return one != 0; });
}

bool DeviceTeams::takes(const CallArgs& args) const {
  if (!TeamPlan::knows(args, layout_, comm_.members().control.settings().staging_bytes)) return false;
  const CallShape shape = shape_of(args, comm_.ranks(), comm_.rank());
  const bool by_blocks = args.collective == Collective::kAllGather || args.collective == Collective::kReduceScatter;
  const std::size_t blocks = by_blocks ? static_cast<std::size_t>(comm_.ranks()) : 1;
  if (blocks * args.count * size_of(args.type) < kLeastBytes) return false;
  const planner::PlanCache& plans = comm_.members().plans;
  if (planner::uses_wide_wire(plans.rules(), args.collective, args.type, args.op)) return false;
  return plans.schedule_for(shape.request) == nullptr;
}

Status DeviceTeams::start() {
  TUTTI_TRY_ASSIGN(thread_, start_quiet_thread("tutti-teams", [this] { run(); }));
  return {};
}

void DeviceTeams::stop() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void DeviceTeams::run() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kLook, [this] { return ends_; })) {
    lock.unlock();
    bool over = false;
    try {
      over = look();
    } catch (const std::exception&) {
      // No memory to pass it on: the next look finds it again.
    }
    lock.lock();
    if (over) return;
  }
}

bool DeviceTeams::look() {
  if (comm_.has_failure()) {
    tell_teams(comm_.failure());
    return true;
  }
  for (const From from : {From::kInside, From::kAcross}) {
    Communicator* const team = from == From::kInside ? &inside() : across();
    const Code code = team ? team->async_state() : Code::kSuccess;
    if (code == Code::kSuccess) continue;
    (void)settle(error(code, team->async_message()), from);
    return true;
  }
  return false;
}

/// Whether `failure` follows from something of which the communicator's own reason says more.
bool DeviceTeams::has_own_reason(const Error& failure) const {
  if (failure.code != Code::kRemote && failure.code != Code::kInvalidUsage) return false;
  executor::Backoff backoff(true);
  const auto start = Clock::now();
  while (!comm_.failed() && Clock::now() - start < kOwnReasonTime) backoff.wait();
  return comm_.failed();
}

Error DeviceTeams::settle(const Error& failure, From from) {
  if (!comm_.failed() && !has_own_reason(failure)) {
    const Team& team = from == From::kAcross ? across_ : inside_;
    const FailureRecord& record = team.communicator->members().control.failure();
    const bool names = from != From::kCall && team.communicator->failed() && record.rank >= 0 &&
                       record.rank < static_cast<int>(team.ranks.size());
    const Error own = from == From::kCall ? failure : in_own_numbers(failure, team.name, team.ranks);
    comm_.fail(own.code, names ? team.ranks[static_cast<std::size_t>(record.rank)] : comm_.rank(), own.message);
  }
  const Error reason = comm_.failure();
  tell_teams(reason);
  return reason;
}

void DeviceTeams::tell_teams(const Error& failure) const {
  for (Communicator* const one : {&inside(), across()}) {
    if (one && !one->failed()) one->fail(failure.code, one->rank(), failure.message);
  }
}

bool DeviceTeams::is_idle() const { return inside().is_idle() && (!across() || across()->is_idle()); }

bool DeviceTeams::end_calls(const std::string& why) {
  const bool inside_over = inside().end_calls(why);
  return (!across() || across()->end_calls(why)) && inside_over;
}

/// What fails is passed on until all calls are over, and not afterwards: the thread must not come upon a communicator that has left.
void DeviceTeams::leave() {
  inside().device()->finish();
  executor::Backoff backoff(true);
  while (!is_idle()) backoff.wait();
  stop();
  inside().leave();
  if (across()) across()->leave();
}

void DeviceTeams::close() {
  inside().device()->close();
  if (across()) across()->device()->close();
}

}  // namespace tutti::comm
