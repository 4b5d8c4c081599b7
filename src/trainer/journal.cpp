#include "trainer/journal.h"

#include "base/standard_output.h"
#include "plot/svg.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <numbers>
#include <string>
#include <system_error>
#include <utility>

namespace tutti::trainer {
namespace {

constexpr std::int64_t kLinesDefault = 40;

/// Steps averaged into one point of the smooth curve, so that it has about 50 points.
std::size_t smoothing(std::size_t records) { return std::max<std::size_t>(1, records / 50); }

std::string loss_curve(const std::vector<StepRecord>& records, bool bits) {
  const double unit = bits ? std::numbers::ln2 : 1.0;
  plot::Series each{.name = "each step"}, smooth{.name = fmt::format("mean of {} steps", smoothing(records.size()))};
  const std::size_t window = smoothing(records.size());
  double sum = 0;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const double loss = records[i].loss / unit;
    each.points.push_back({static_cast<double>(records[i].step), loss});
    sum += loss;
    if ((i + 1) % window != 0) continue;
    smooth.points.push_back({static_cast<double>(records[i].step) - static_cast<double>(window - 1) / 2.0,
                             sum / static_cast<double>(window)});
    sum = 0;
  }
  plot::Chart chart;
  chart.title = "Training loss";
  chart.x.title = "step";
  chart.y.title = bits ? "bits per byte" : "cross entropy (nats)";
  chart.y.from_zero = true;
  chart.series = {each};
  if (window > 1) chart.series.push_back(smooth);  // of one step it is the same line
  return plot::svg(std::array{chart});
}

Failure write_failure(const std::string& path, const std::string& why) {
  return Failure{fmt::format("{}: cannot write: {}", path, why)};
}

}  // namespace

Problem Journal::check_paths(const Options& options) {
  for (const auto& path : {options.log, options.plot}) {
    if (path.empty()) continue;
    if (const std::string why = why_unwritable(path); !why.empty()) return write_failure(path, why);
  }
  return {};
}

Outcome<Journal> Journal::open(const Options& options, std::int64_t steps) {
  Journal journal;
  journal.model_ = options.model;
  journal.steps_ = steps;
  journal.report_every_ = options.report_every > 0 ? options.report_every : (steps + kLinesDefault - 1) / kLinesDefault;
  journal.log_path_ = options.log;
  journal.plot_path_ = options.plot;
  if (!options.log.empty()) {
    journal.log_.reset(std::fopen(options.log.c_str(), "w"));
    if (!journal.log_) return write_failure(options.log, std::strerror(errno));
    std::setbuf(journal.log_.get(), nullptr);
  }
  return journal;
}

/// A run that is killed leaves whole lines, and so does one whose disk is full; a reader can follow.
Problem Journal::write_log(std::string line) {
  if (!log_) return {};
  line += '\n';
  if (std::fwrite(line.data(), 1, line.size(), log_.get()) == line.size()) {
    log_bytes_ += line.size();
    return {};
  }
  auto failure = write_failure(log_path_, std::strerror(errno));
  std::error_code none;
  std::filesystem::resize_file(log_path_, log_bytes_, none);
  return failure;
}

Problem Journal::step(const StepRecord& record) {
  if (!plot_path_.empty()) records_.push_back(record);
  since_report_.loss += record.loss;
  since_report_.accuracy += record.accuracy;
  since_report_.samples += record.samples;
  since_report_.step_ms += record.step_ms;
  since_report_.comm_ms += record.comm_ms;
  nlohmann::ordered_json line = {
      {"step", record.step},       {"loss", record.loss},
      {"lr", record.lr},           {"samples_per_s", static_cast<double>(record.samples) / record.step_ms * 1e3},
      {"step_ms", record.step_ms}, {"comm_ms", record.comm_ms}};
  if (record.param_hash) line["param_hash"] = fmt::format("{:016x}", *record.param_hash);
  if (auto problem = write_log(line.dump())) return problem;
  if (record.step == 1 || record.step % report_every_ == 0 || record.step == steps_) return print_progress(record.step);
  return {};
}

Problem Journal::print_progress(std::int64_t step) {
  const StepRecord sum = std::exchange(since_report_, {.step = step});
  const std::int64_t count = step - sum.step;
  const double loss = sum.loss / static_cast<double>(count);
  std::string quality = model_ == ModelKind::kLm
                            ? fmt::format("{:6.3f} bits/byte", loss / std::numbers::ln2)
                            : fmt::format("accuracy {:5.1f}%", 100.0 * sum.accuracy / static_cast<double>(count));
  say("step {:>6}/{}  loss {:7.4f}  {}  {:>8.0f} samples/s  communication {:4.1f}%\n", step, steps_, loss, quality,
      static_cast<double>(sum.samples) / sum.step_ms * 1e3, 100.0 * sum.comm_ms / sum.step_ms);
  if (std::fflush(stdout) == 0) return {};
  if (errno != EPIPE) return write_failure("standard output", std::strerror(errno));
  reader_has_gone_ = true;
  return {};
}

Problem Journal::finish(const HeldOut& held_out) {
  if (held_out.samples > 0) {
    nlohmann::ordered_json line = {{"held_out_accuracy", held_out.accuracy}, {"held_out_loss", held_out.loss}};
    if (model_ == ModelKind::kLm) line["held_out_bits_per_byte"] = held_out.loss / std::numbers::ln2;
    if (auto problem = write_log(line.dump())) return problem;
  }
  if (plot_path_.empty()) return {};
  const std::string why = why_unwritten(plot_path_, loss_curve(records_, model_ == ModelKind::kLm));
  return why.empty() ? Problem() : write_failure(plot_path_, why);
}

}  // namespace tutti::trainer
