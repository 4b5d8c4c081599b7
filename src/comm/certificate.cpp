#include "comm/certificate.h"

#include "base/log.h"
#include "comm/call.h"
#include "comm/chosen.h"
#include "comm/host_bounds.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

namespace tutti::comm {
namespace {

/// Blocks that a call reads and writes, at all ranks, out of place.
struct Blocks {
  std::uint64_t read = 0;
  std::uint64_t written = 0;
};
Blocks blocks_of(const schedule::Request& request) {
  Blocks blocks;
  for (int rank = 0; rank < request.ranks; ++rank) {
    blocks.read += schedule::input_blocks(request, rank);
    blocks.written += schedule::output_blocks(request, rank);
  }
  return blocks;
}

/// 0 where the system does not tell.
std::uint64_t last_cache_bytes() {
  const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return bytes > 0 ? static_cast<std::uint64_t>(bytes) : 0;
}

std::string_view origin_of(const Bound& bound) {
  return bound.measured ? "measured here" : "by the machine's description";
}

Status check_ready(Communicator& communicator) {
  if (!communicator.is_initialised()) return error(Code::kInvalidUsage, "the communicator is not initialised");
  return {};
}

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (unit + 1 < std::size(kUnits) && bytes % 1024 == 0 && bytes != 0) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{} {}", bytes, kUnits[unit]);
}

Bound bound_of(Communicator& communicator, const CallArgs& args) {
  const CallShape shape = shape_of(args, communicator.ranks(), communicator.rank());
  const std::uint64_t block_bytes = shape.count * size_of(args.type);
  MachineView& machine = communicator.machine();
  if (communicator.spans_hosts()) {
    // Without the plug-in nothing is known.
    const auto between = machine.between_hosts(args.collective);
    return bound_over_hosts(shape.request, block_bytes, between.ok() ? between.value() : planner::BetweenHosts{},
                            machine.ranks_by_host());
  }
  const Blocks blocks = blocks_of(shape.request);
  Bound bound;
  bound.bytes = (blocks.read + blocks.written) * block_bytes;
  const MachineView::MemoryRate memory = machine.memory_rate();
  bound.memory_gbps = memory.gbps;
  bound.measured = memory.measured;
  if (memory.gbps > 0) bound.memory_us = static_cast<double>(bound.bytes) / (memory.gbps * 1e3);
  if (args.collective != Collective::kAllReduce) return bound;
  if (const auto links = machine.links(); links.ok() && links.value().all_reduce_gbps > 0) {
    bound.links_gbps = links.value().all_reduce_gbps;
    bound.links =
        fmt::format("links between NUMA nodes: {} allow {:.1f} GB/s", links.value().binding, bound.links_gbps);
    bound.links_us = static_cast<double>(block_bytes) / (bound.links_gbps * 1e3);
  }
  return bound;
}

std::string describe(const Bound& bound) {
  if (bound.us() == 0) {
    return bound.over_hosts
               ? "  bound      not known: the machines' descriptions limit neither the hosts' links nor their memory\n"
               : "  bound      not known: the machine's description has no bandwidth of its memory, and none "
                 "was measured\n";
  }
  const std::string memory = fmt::format(
      "{:>10.1f} us  memory{}: {} read and written, each byte once, at {:.1f} GB/s ({})\n", bound.memory_us,
      bound.over_hosts ? " of " + bound.memory_host : "", bytes_text(bound.bytes), bound.memory_gbps, origin_of(bound));
  const std::string links = fmt::format("{:>10.1f} us  {}\n", bound.links_us, bound.links);
  if (bound.links_us == 0) return "  bound    " + memory;
  if (bound.memory_us == 0) return "  bound    " + links;
  return bound.links_us > bound.memory_us ? "  bound    " + links + "           " + memory
                                          : "  bound    " + memory + "           " + links;
}

Result<std::string> certificate(Communicator& communicator, const CallArgs& args) {
  TUTTI_TRY(check_ready(communicator));
  std::string text = fmt::format("certificate of {} of {} {} ({}) on {} ranks\n", name_of(args.collective), args.count,
                                 name_of(args.type), bytes_text(args.count * size_of(args.type)), communicator.ranks());
  if (args.count == 0) return text + "  nothing to move: there is no bound\n";
  TUTTI_TRY_ASSIGN(const Chosen chosen, chosen_for(communicator, args));
  const Bound bound = bound_of(communicator, args);
  auto out = std::back_inserter(text);
  text += describe(bound);
  fmt::format_to(out, "  expected {:>10.1f} us  {}", chosen.expected_us, chosen.what);
  if (bound.us() > chosen.expected_us) {
    // Prices are measured on what caches hold, and over hosts on the network as it is, not as it is described.
    text += bound.over_hosts
                ? ": sooner than the bound, which is the least that it takes if the hosts' links are as described\n"
            : bound.bytes <= last_cache_bytes()
                ? ": sooner than the bound, as caches hold what such a call touches\n"
                : ": by prices of data in caches, which do not hold so much: the bound is the least that it takes\n";
  } else if (bound.us() > 0) {
    fmt::format_to(out, ": {:.1f}% of the bound\n", 100 * bound.us() / chosen.expected_us);
  } else {
    text += "\n";
  }
  fmt::format_to(out, "  chosen for {}\n", chosen.why);
  for (const std::string& advice : communicator.machine().advice()) fmt::format_to(out, "  advice: {}\n", advice);
  return text;
}

Result<std::string> topology(Communicator& communicator) {
  TUTTI_TRY(check_ready(communicator));
  return communicator.machine().graph();
}

namespace {

/// Calls visit(bytes, chosen) for each size from which on something else runs.
template <class Visit>
Status for_each_change(Communicator& communicator, CallArgs args, const Visit& visit) {
  constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 30;
  Chosen last;
  for (std::uint64_t count = 1; count * size_of(args.type) <= kBytesMax; count *= 2) {
    args.count = count;
    TUTTI_TRY_ASSIGN(Chosen chosen, chosen_for(communicator, args));
    if (chosen.what != last.what || chosen.why != last.why) visit(count * size_of(args.type), chosen);
    last = std::move(chosen);
  }
  return {};
}

}  // namespace

Result<std::string> plan_by_size(Communicator& communicator, const CallArgs& args) {
  TUTTI_TRY(check_ready(communicator));
  std::string text =
      fmt::format("plan of {} of {} on {} ranks, out of place\n  {:>10}  {:<26} {:>12}  {}\n", name_of(args.collective),
                  name_of(args.type), communicator.ranks(), "from", "runs", "expected us", "chosen for");
  TUTTI_TRY(for_each_change(communicator, args, [&](std::uint64_t bytes, const Chosen& chosen) {
    fmt::format_to(std::back_inserter(text), "  {:>10}  {:<26} {:>12.1f}  {}\n", bytes_text(bytes), chosen.what,
                   chosen.expected_us, chosen.why);
  }));
  return text;
}

void report_plans(Communicator& communicator) {
  if (communicator.ranks() == 1) return;
  CallArgs args;
  args.type = DataType::kFloat32;
  if (log_enabled(LogSubject::kGraph)) {
    constexpr std::uint64_t kLarge = std::uint64_t{1} << 30;
    args.count = kLarge / size_of(args.type);
    const Bound bound = bound_of(communicator, args);
    if (bound.memory_us > 0) {
      log_info(LogSubject::kGraph,
               "all_reduce of large buffers: at most {:.1f} GB/s each, as memory gives {:.1f} GB/s ({})",
               static_cast<double>(kLarge) / bound.memory_us * 1e-3, bound.memory_gbps, origin_of(bound));
    }
    if (bound.links_us > 0) {
      log_info(LogSubject::kGraph, "all_reduce of large buffers: at most {:.1f} GB/s each: {}", bound.links_gbps,
               bound.links);
    }
  }
  if (!log_enabled(LogSubject::kTuning)) return;
  std::string line;
  const Status told = for_each_change(communicator, args, [&](std::uint64_t bytes, const Chosen& chosen) {
    line += fmt::format("{}{} from {}", line.empty() ? "" : ", ", chosen.what, bytes_text(bytes));
  });
  if (told.ok()) log_info(LogSubject::kTuning, "all_reduce of float32, out of place: {}", line);
}

}  // namespace tutti::comm
