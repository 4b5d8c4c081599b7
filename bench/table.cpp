#include "table.h"

#include <fmt/format.h>

#include <cstdio>

namespace tutti::bench {
namespace {

std::string time_text(double us) {
  return us >= 10000 ? fmt::format("{:8.0f}", us) : us >= 100 ? fmt::format("{:8.1f}", us) : fmt::format("{:8.2f}", us);
}

std::string measurement_text(const std::optional<Measurement>& m, bool percentiles, bool rival) {
  if (!m)
    return fmt::format("{:>8} {:>7} {:>7} {:>7}", "-", "-", "-", "N/A") +
           (percentiles ? fmt::format(" {:>8} {:>8}", "-", "-") : "") +
           (rival ? fmt::format(" {:>8} {:>6}", "-", "-") : "");
  std::string text = fmt::format("{} {:7.2f} {:7.2f} {:>7}", time_text(m->time_us), m->algbw_gbps, m->busbw_gbps,
                                 m->wrong ? fmt::format("{}", *m->wrong) : "N/A");
  if (percentiles) text += fmt::format(" {} {}", time_text(m->p50_us), time_text(m->p99_us));
  if (m->rival) text += fmt::format(" {} {:6.2f}", time_text(m->rival->time_us), m->rival->ratio);
  return text;
}

/// What makes times differ from those of calls made one after another by the caller's thread.
std::string ways_of_calling(const Options& options) {
  std::string text;
  if (options.stream) text += ", on a stream";
  if (options.graph > 0) text += fmt::format(", graphs of {} calls", options.graph);
  if (options.aggregate > 1) text += fmt::format(", groups of {} calls", options.aggregate);
  if (options.blocking) text += ", each waited for";
  if (options.cpu_time) text += ", time in the calls alone";
  return text;
}

std::string iterations_text(const Options& options) {
  const std::string timed =
      options.iterations ? fmt::format("{} iterations", *options.iterations)
                         : fmt::format("{} to {} iterations, fewer of long calls,", kIterationsLeast, kIterationsMost);
  return options.warmup ? fmt::format("{} after {} to warm up", timed, *options.warmup)
                        : timed + " after a tenth as many to warm up";
}

}  // namespace

void Table::print(const std::string& text) const { std::fputs(text.c_str(), out_); }

void Table::head(const Options& options, const std::string& collective, const std::string& device) const {
  print(fmt::format("# {}: {} rank{}, {}, {} buffers{}{}{}; {}, {}\n", collective, ranks_, ranks_ == 1 ? "" : "s", how_,
                    options.memory == Buffer::Kind::kShared ? "shared" : "private",
                    options.registered ? " (registered)" : "", options.on_gpu ? " on " + device : "",
                    ways_of_calling(options), iterations_text(options),
                    options.check > 0 ? "results checked bit for bit" : "results not checked"));
  std::string more_names = percentiles_ ? fmt::format(" {:>8} {:>8}", "p50", "p99") : "";
  std::string more_units = percentiles_ ? fmt::format(" {:>8} {:>8}", "(us)", "(us)") : "";
  if (!options.against.empty()) {
    print(fmt::format("# against {}, by turns; ratio: its time over this library's\n", options.against));
    more_names += fmt::format(" {:>8} {:>6}", "against", "ratio");
    more_units += fmt::format(" {:>8} {:>6}", "(us)", "");
  }
  const std::string names = fmt::format("{:>8} {:>7} {:>7} {:>7}", "time", "algbw", "busbw", "#wrong") + more_names;
  const std::string units = fmt::format("{:>8} {:>7} {:>7} {:>7}", "(us)", "(GB/s)", "(GB/s)", "") + more_units;
  print(fmt::format("#\n# {:48}  {:^{}}   {:^{}}\n", "", "out-of-place", names.size(), "in-place", names.size()));
  print(fmt::format("# {:>12} {:>13} {:>8} {:>7} {:>5}  {}   {}\n", "size", "count", "type", "redop", "root", names,
                    names));
  print(fmt::format("# {:>12} {:>13} {:>8} {:>7} {:>5}  {}   {}\n", "(B)", "(elements)", "", "", "", units, units));
  std::fflush(out_);
}

void Table::row(const Row& row) const {
  const bool rival = row.out_of_place && row.out_of_place->rival;
  print(fmt::format("  {:>12} {:>13} {:>8} {:>7} {:>5}  {}   {}\n", row.bytes, row.count, row.type, row.reduction,
                    row.root, measurement_text(row.out_of_place, percentiles_, rival),
                    measurement_text(row.in_place, percentiles_, rival)));
  const auto& m = row.out_of_place;
  if (m && m->wire_bytes && row.wire_bound_bytes > 0) {
    print(fmt::format("#   by {}: {} bytes per rank, {:.3f} of the bound {:.0f}\n",
                      row.transport == "mpi" ? "MPI" : "TCP", *m->wire_bytes,
                      static_cast<double>(*m->wire_bytes) / row.wire_bound_bytes, row.wire_bound_bytes));
  }
  std::fflush(out_);
}

bool Table::foot(const std::vector<Row>& rows) const {
  std::int64_t wrong = 0;
  double bandwidth = 0;
  int measurements = 0;
  bool checked = false;
  for (const Row& row : rows) {
    for (const std::optional<Measurement>& m : {row.out_of_place, row.in_place}) {
      if (!m) continue;
      bandwidth += m->busbw_gbps;
      ++measurements;
      wrong += m->wrong.value_or(0) + (m->rival ? m->rival->wrong.value_or(0) : 0);
      checked |= m->wrong.has_value();
    }
  }
  print(fmt::format("# Out of bounds values : {} {}\n", wrong,
                    wrong > 0 ? "FAILED"
                    : checked ? "OK"
                              : "(not checked)"));
  print(fmt::format("# Avg bus bandwidth    : {:g} \n", measurements > 0 ? bandwidth / measurements : 0.0));
  std::fflush(out_);
  return wrong == 0;
}

}  // namespace tutti::bench
