#include "topology/smi_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <utility>

namespace tutti::topology {

namespace {

constexpr std::array<std::pair<std::string_view, SmiPath>, 8> kWords = {{{"X", SmiPath::kSelf},
                                                                         {"PIX", SmiPath::kPix},
                                                                         {"PXB", SmiPath::kPxb},
                                                                         {"PHB", SmiPath::kPhb},
                                                                         {"NODE", SmiPath::kNode},
                                                                         {"SYS", SmiPath::kSys},
                                                                         {"SOC", SmiPath::kSys},
                                                                         {"?", SmiPath::kUnknown}}};
constexpr int kNvLinksMax = 1000;

std::optional<int> number_of(std::string_view digits) {
  int number = 0;
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (digits.empty() || failure != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

std::optional<SmiCell> cell_of(std::string_view word) {
  for (const auto& [text, path] : kWords) {
    if (word == text) return SmiCell{path, 0};
  }
  if (!word.starts_with("NV")) return std::nullopt;
  const auto links = number_of(word.substr(2));
  if (!links || *links < 1 || *links > kNvLinksMax) return std::nullopt;
  return SmiCell{SmiPath::kNvLink, *links};
}

/// The other matrix that nvidia-smi prints, of peer-to-peer capabilities.
bool is_capability(std::string_view word) {
  constexpr std::array<std::string_view, 6> kCapabilities = {"OK", "CNS", "GNS", "TNS", "NS", "U"};
  return std::ranges::find(kCapabilities, word) != kCapabilities.end();
}

bool is_gpu_label(std::string_view word) { return word.starts_with("GPU") && number_of(word.substr(3)).has_value(); }

/// Headers of the columns behind the devices: "CPU Affinity", "NUMA Affinity", "GPU NUMA ID".
bool ends_header(std::string_view word) {
  constexpr std::array<std::string_view, 5> kOthers = {"CPU", "NUMA", "GPU", "Affinity", "ID"};
  return std::ranges::find(kOthers, word) != kOthers.end();
}

using Words = std::vector<std::string_view>;

Words words_of(std::string_view line) {
  constexpr std::string_view kBlank = " \t\r\f\v";
  Words words;
  while (true) {
    const std::size_t start = line.find_first_not_of(kBlank);
    if (start == std::string_view::npos) return words;
    line.remove_prefix(start);
    const std::size_t stop = std::min(line.find_first_of(kBlank), line.size());
    words.push_back(line.substr(0, stop));
    line.remove_prefix(stop);
  }
}

/// Without terminal codes: ESC [ parameters letter, and a lone ESC.
std::string without_codes(std::string_view text) {
  std::string kept;
  kept.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\x1b') {
      kept += text[i];
      continue;
    }
    if (i + 1 >= text.size() || text[i + 1] != '[') continue;
    i += 2;
    while (i < text.size() && (text[i] < '@' || text[i] > '~')) ++i;
  }
  return kept;
}

std::string shown(std::string_view word) {
  constexpr std::size_t kShown = 24;
  std::string text(word.substr(0, kShown));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) > '~') c = '?';
  }
  return text;
}

Error refuse(int line, std::string_view reason) {
  return error(Code::kInvalidArgument, fmt::format("nvidia-smi topo -m, line {}: {}", line, reason));
}

struct Row {
  std::string label;
  int line = 0;
  std::vector<SmiCell> cells;
  std::vector<std::string> others;  ///< what follows the cells: CPU affinity, NUMA affinity
};

class Reader {
 public:
  Result<SmiTable> read(std::string_view content) {
    const std::string text = without_codes(content);
    for (std::string_view rest = text; !rest.empty();) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      ++line_;
      TUTTI_TRY(take(words_of(rest.substr(0, end))));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    if (rows_.empty()) return refuse(line_, "there is no row like \"GPU0  X  NV12\" in it");
    TUTTI_TRY(name_columns());
    fill();
    return std::move(table_);
  }

 private:
  Status take(const Words& words) {
    if (words.empty()) return {};
    if (words.size() > kSmiDevicesMax + 16)
      return refuse(line_, fmt::format("{} columns, more than {}", words.size(), kSmiDevicesMax));
    if (words[0] == "NIC" && words.size() > 1 && words[1] == "Legend:") in_nic_legend_ = true;
    if (words.size() > 1 && words[1] == "=") return {};
    if (words[0] == "GPU" && words.size() > 2 && words[1].ends_with(':')) return take_gpu_name(words);
    if (in_nic_legend_ && words.size() == 2 && words[0].ends_with(':')) {
      legend_.try_emplace(std::string(words[0].substr(0, words[0].size() - 1)), words[1]);
      return {};
    }
    if (words.size() > 1 && is_gpu_label(words[0]) && is_p2p(words))
      return refuse(line_,
                    fmt::format("\"{}\" belongs to the matrix of nvidia-smi topo -p2p: it says which pairs may talk, "
                                "not how they are linked; use topo -m",
                                words[1] == "X" && words.size() > 2 ? words[2] : words[1]));
    if (is_gpu_label(words[0]) && (words.size() == 1 || !looks_like_cell(words[1]))) return take_header(words);
    if (words.size() > 1 && looks_like_cell(words[1]) && !looks_like_cell(words[0])) return take_row(words);
    return continue_line(words);
  }
  static bool is_p2p(const Words& words) {
    return is_capability(words[1]) || (words[1] == "X" && words.size() > 2 && is_capability(words[2]));
  }
  static bool looks_like_cell(std::string_view word) { return cell_of(word).has_value(); }

  /// "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-...)", as nvidia-smi -L prints it.
  Status take_gpu_name(const Words& words) {
    std::string name;
    for (std::size_t i = 2; i < words.size() && !words[i].starts_with('('); ++i)
      name += fmt::format("{}{}", name.empty() ? "" : " ", shown(words[i]));
    legend_.try_emplace(fmt::format("GPU{}", words[1].substr(0, words[1].size() - 1)), name);
    return {};
  }
  Status take_header(const Words& words) {
    if (!rows_.empty() || !columns_.empty()) {
      warn(fmt::format("line {}: a second header: what follows it is left out", line_));
      done_ = true;
    }
    if (!done_) add_columns(words);
    return {};
  }
  void add_columns(const Words& words) {
    for (const std::string_view word : words) {
      if (ends_header(word)) return;
      columns_.emplace_back(word.substr(0, 64));
    }
  }
  Status take_row(const Words& words) {
    if (done_) return {};
    if (rows_.size() >= kSmiDevicesMax) return refuse(line_, fmt::format("more than {} rows", kSmiDevicesMax));
    const bool known = std::ranges::find(rows_, words[0], &Row::label) != rows_.end();
    if (known) {
      warn(fmt::format("line {}: a second row of {} is left out", line_, shown(words[0])));
      return {};
    }
    Row& row = rows_.emplace_back();
    row.label = std::string(words[0].substr(0, 64));
    row.line = line_;
    add_cells(row, words, 1);
    return {};
  }
  void add_cells(Row& row, const Words& words, std::size_t from) {
    for (std::size_t i = from; i < words.size(); ++i) {
      const auto cell = cell_of(words[i]);
      const bool is_cell = row.others.empty() && cell.has_value();
      if (is_cell) row.cells.push_back(*cell);
      if (is_cell) continue;
      const bool is_word = !words[i].empty() && std::isupper(static_cast<unsigned char>(words[i][0])) != 0;
      if (row.others.empty() && is_word && words[i] != "N/A") {
        warn(fmt::format("line {}, {}: \"{}\" is no path that is known", line_, row.label, shown(words[i])));
        row.cells.push_back({});
        continue;
      }
      row.others.emplace_back(words[i]);
    }
  }
  /// The rest of a line that a terminal wrapped; anything else is a remark of someone's.
  Status continue_line(const Words& words) {
    if (done_) return {};
    if (!rows_.empty() && looks_like_cell(words[0]) && rows_.back().cells.size() < columns_.size()) {
      add_cells(rows_.back(), words, 0);
    } else if (rows_.empty() && !columns_.empty() && (words[0].starts_with("NIC") || words[0].starts_with("mlx"))) {
      add_columns(words);
    }
    return {};
  }

  /// Columns that the header does not name: a row's own by its X, the others by what is in them.
  Status name_columns() {
    std::size_t count = columns_.size();
    for (const Row& row : rows_) count = std::max(count, row.cells.size());
    if (count > kSmiDevicesMax)
      return refuse(rows_[0].line, fmt::format("{} columns, more than {}", count, kSmiDevicesMax));
    if (columns_.empty())
      warn(fmt::format("line {}: there is no header: columns are named after the rows", rows_[0].line));
    const std::size_t named = columns_.size();
    if (named > 0 && named < count) warn(fmt::format("the header names {} columns, rows have up to {}", named, count));
    columns_.resize(count);
    for (const Row& row : rows_) {
      for (std::size_t c = named; c < row.cells.size(); ++c) {
        if (row.cells[c].path == SmiPath::kSelf && columns_[c].empty() && !is_named(row.label)) columns_[c] = row.label;
      }
    }
    int gpus = 0;
    int nics = 0;
    for (std::size_t c = 0; c < count; ++c) {
      const auto is_nvlink = [&](const Row& row) {
        return c < row.cells.size() && row.cells[c].path == SmiPath::kNvLink;
      };
      const bool gpu = columns_[c].empty() ? std::ranges::any_of(rows_, is_nvlink) : is_gpu_label(columns_[c]);
      if (columns_[c].empty()) columns_[c] = gpu ? fmt::format("GPU{}", gpus) : fmt::format("NIC{}", nics);
      ++(gpu ? gpus : nics);
    }
    return check_columns();
  }
  bool is_named(const std::string& label) const { return std::ranges::find(columns_, label) != columns_.end(); }
  Status check_columns() {
    std::map<std::string_view, int> seen;
    for (const std::string& column : columns_) {
      if (++seen[column] > 1) return refuse(rows_[0].line, fmt::format("there are two columns {}", shown(column)));
    }
    if (std::ranges::none_of(columns_, is_gpu_label)) return refuse(rows_[0].line, "no column is a GPU");
    return {};
  }

  void fill() {
    const std::size_t count = columns_.size();
    table_.cells.resize(count * count);
    for (const std::string& column : columns_) {
      SmiDevice& device = table_.devices.emplace_back();
      device.label = column;
      device.is_gpu = is_gpu_label(column);
      if (const auto found = legend_.find(column); found != legend_.end()) device.name = found->second;
    }
    for (Row& row : rows_) {
      const auto found = std::ranges::find(columns_, row.label);
      if (found == columns_.end()) {
        warn(fmt::format("line {}: {} has no column: its row is left out", row.line, shown(row.label)));
        continue;
      }
      fill_row(static_cast<std::size_t>(found - columns_.begin()), row);
    }
    std::string missing;
    for (const SmiDevice& device : table_.devices) {
      if (device.line == 0) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", shown(device.label));
    }
    if (!missing.empty()) warn("no row of: " + missing);
    for (std::string& sentence : warnings_) table_.warnings.push_back(std::move(sentence));
  }
  void fill_row(std::size_t index, Row& row) {
    SmiDevice& device = table_.devices[index];
    device.line = row.line;
    if (!row.others.empty()) device.cpus = row.others[0];
    if (row.others.size() > 1) device.numa = row.others[1];
    if (row.cells.size() < columns_.size())
      warn(fmt::format("line {}: {} has {} cells for {} columns", row.line, row.label, row.cells.size(),
                       columns_.size()));
    std::ranges::copy(row.cells, table_.cells.begin() + static_cast<std::ptrdiff_t>(index * columns_.size()));
    for (std::size_t c = 0; c < row.cells.size(); ++c) {
      if ((row.cells[c].path == SmiPath::kSelf) == (c == index)) continue;
      warn(fmt::format("line {}: {} has \"{}\" below {}", row.line, row.label, text_of(row.cells[c]), columns_[c]));
      table_.cells[index * columns_.size() + c] = {};
    }
    table_.cells[index * columns_.size() + index] = {SmiPath::kSelf, 0};
  }

  void warn(std::string sentence) {
    constexpr std::size_t kWarningsMax = 100;
    if (warnings_.size() < kWarningsMax) warnings_.push_back(std::move(sentence));
  }

  int line_ = 0;
  bool in_nic_legend_ = false;
  bool done_ = false;
  std::vector<std::string> columns_;
  std::vector<Row> rows_;
  std::map<std::string, std::string, std::less<>> legend_;
  std::vector<std::string> warnings_;
  SmiTable table_;
};

}  // namespace

std::string text_of(const SmiCell& cell) {
  if (cell.path == SmiPath::kNvLink) return fmt::format("NV{}", cell.nvlinks);
  for (const auto& [text, path] : kWords) {
    if (path == cell.path) return std::string(text);
  }
  return "?";
}

Result<SmiTable> read_smi_table(std::string_view content) {
  if (content.size() > kSmiBytesMax)
    return refuse(1, fmt::format("{} bytes, more than {}", content.size(), kSmiBytesMax));
  if (content.find('\0') != std::string_view::npos) return refuse(1, "the file is binary (it has zero bytes)");
  return Reader().read(content);
}

}  // namespace tutti::topology
