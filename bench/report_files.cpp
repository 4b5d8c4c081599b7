#include "report_files.h"

#include "base/standard_output.h"
#include "plot/svg.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdio>
#include <map>

namespace tutti::bench {
namespace {

/// Nanoseconds are enough.
double rounded(double value) { return std::round(value * 1000) / 1000; }

nlohmann::ordered_json object_of(const Row& row, const Measurement& m, bool in_place) {
  nlohmann::ordered_json object;
  object["collective"] = row.collective;
  object["dtype"] = row.type;
  object["redop"] = row.reduction;
  object["root"] = row.root;
  object["ranks"] = row.ranks;
  object["bytes"] = row.bytes;
  object["in_place"] = in_place;
  object["iterations"] = row.iterations;
  object["time_us"] = rounded(m.time_us);
  object["p50_us"] = rounded(m.p50_us);
  object["p99_us"] = rounded(m.p99_us);
  object["algbw_gbps"] = m.algbw_gbps;
  object["busbw_gbps"] = m.busbw_gbps;
  object["device"] = row.device;
  object["transport"] = row.transport;
  object["wire_bytes"] = m.wire_bytes.value_or(0);
  object["wrong"] = m.wrong ? nlohmann::ordered_json(*m.wrong) : nlohmann::ordered_json(nullptr);
  if (m.rival) {
    object["against_time_us"] = rounded(m.rival->time_us);
    object["against_ratio"] = rounded(m.rival->ratio);
    object["against_wrong"] =
        m.rival->wrong ? nlohmann::ordered_json(*m.rival->wrong) : nlohmann::ordered_json(nullptr);
  }
  return object;
}

/// What the rows differ in besides the size: only that needs to be in the legend.
std::string legend(const Row& row, const std::vector<Row>& rows, bool in_place) {
  const auto varies = [&](auto member) {
    for (const Row& other : rows)
      if (other.*member != rows.front().*member) return true;
    return false;
  };
  std::string text;
  if (varies(&Row::collective)) text += row.collective + ' ';
  if (varies(&Row::type)) text += row.type + ' ';
  if (varies(&Row::reduction) && row.reduction != "none") text += row.reduction + ' ';
  if (varies(&Row::root) && row.root >= 0) text += fmt::format("root {} ", row.root);
  return text + (in_place ? "in place" : "out of place");
}

}  // namespace

Status write_json(const std::string& path, const std::vector<Row>& rows) {
  std::string text = "[";
  for (const Row& row : rows) {
    for (const bool in_place : {false, true}) {
      const std::optional<Measurement>& m = in_place ? row.in_place : row.out_of_place;
      if (m) text += (text.size() > 1 ? ",\n " : "\n ") + object_of(row, *m, in_place).dump();
    }
  }
  text += "\n]\n";
  if (path == "-") {
    (void)std::fputs(text.c_str(), stdout);  // what cannot be written is told at the end
    return {};
  }
  const std::string why = why_unwritten(path, text);
  return why.empty() ? Status() : error(Code::kSystem, fmt::format("write {}: {}", path, why));
}

Status write_plot(const std::string& path, const std::vector<Row>& rows, const std::string& subtitle) {
  plot::Chart bandwidth, time;
  bandwidth.subtitle = time.subtitle = subtitle;
  bandwidth.title = "Bus bandwidth";
  time.title = "Time per call";
  bandwidth.x = time.x = plot::Axis{"size (bytes)", plot::Scale::kLog2, plot::Labels::kBytes, false};
  bandwidth.y = plot::Axis{"GB/s", plot::Scale::kLinear, plot::Labels::kPlain, true};
  time.y = plot::Axis{"\xC2\xB5s", plot::Scale::kLog10, plot::Labels::kPlain, false};
  std::map<std::string, std::size_t> places;  // a legend's text to its series
  for (const Row& row : rows) {
    for (const bool in_place : {false, true}) {
      const std::optional<Measurement>& m = in_place ? row.in_place : row.out_of_place;
      if (!m) continue;
      const std::string name = legend(row, rows, in_place);
      const auto [place, is_new] = places.try_emplace(name, bandwidth.series.size());
      if (is_new) {
        bandwidth.series.push_back({name, {}, true, in_place});
        time.series.push_back({name, {}, true, in_place});
      }
      const auto size = static_cast<double>(row.bytes);
      bandwidth.series[place->second].points.push_back({size, m->busbw_gbps});
      time.series[place->second].points.push_back({size, m->time_us});
    }
  }
  const plot::Chart panels[] = {bandwidth, time};
  return plot::write_svg(path, panels);
}

}  // namespace tutti::bench
