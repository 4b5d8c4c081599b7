#include "topology/synthetic.h"

#include "topology/text_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace tutti::topology {

namespace {

constexpr int kHostsMax = 1 << 14;
constexpr int kPerHostMax = 1024;
constexpr Bandwidth kCpuDefault = 40 * kGigabyte;
constexpr Bandwidth kPciDefault = 24 * kGigabyte;

/// What the words said; 0 where they did not.
struct Machine {
  int hosts = 0;
  std::vector<int> gpus;  ///< of each host, or of all if it is one number
  int sm = 0;
  int switches = 0;
  bool pod = false;
  Bandwidth nvlink = 0;
  Bandwidth mesh = 0, ring = 0, line = 0;
  std::optional<LinkKind> kind;
  int nics = 0;
  Bandwidth nic = 0;
  int numas = 0;
  Bandwidth cpu = 0;
  int cores = 0;
  Bandwidth memory = 0;
  Bandwidth pci = 0;
  int bridges = 0;
  Bandwidth bridge = 0;

  int gpus_of(int host) const {
    if (gpus.empty()) return 0;
    return gpus[gpus.size() == 1 ? 0 : static_cast<std::size_t>(host)];
  }
  bool joins_gpus() const { return mesh > 0 || ring > 0 || line > 0 || switches > 0 || pod; }
  bool has_pci() const {
    return nics > 0 || numas > 0 || cores > 0 || memory > 0 || pci > 0 || bridges > 0 || !joins_gpus();
  }
};

constexpr std::string_view kGbps = "GB/s above 0, with up to six decimals";

bool read_count(std::string_view value, int& into, int max = kPerHostMax) {
  const auto number = number_from<int>(value, 1, max);
  if (number) into = *number;
  return number.has_value();
}

bool read_bandwidth(std::string_view value, Bandwidth& into) {
  const auto bandwidth = gigabytes_from(value);
  if (bandwidth) into = *bandwidth;
  return bandwidth.has_value();
}

/// "8x50"
bool read_several(std::string_view value, int& count, Bandwidth& bandwidth) {
  const std::size_t times = value.find('x');
  return times != std::string_view::npos && read_count(value.substr(0, times), count) &&
         read_bandwidth(value.substr(times + 1), bandwidth);
}

/// "8" or "7+8"
bool read_gpus(std::string_view value, std::vector<int>& gpus) {
  for (;;) {
    const std::size_t plus = value.find('+');
    int count = 0;
    if (!read_count(value.substr(0, plus), count) || gpus.size() >= static_cast<std::size_t>(kHostsMax)) return false;
    gpus.push_back(count);
    if (plus == std::string_view::npos) return true;
    value.remove_prefix(plus + 1);
  }
}

bool read_kind(std::string_view value, std::optional<LinkKind>& kind) {
  if (value == "nvlink") kind = LinkKind::kNvLink;
  if (value == "xgmi") kind = LinkKind::kXgmi;
  return kind.has_value();
}

struct Key {
  std::string_view name;
  std::string_view expected;  ///< of its value
  bool (*read)(std::string_view value, Machine& machine);
};

using View = std::string_view;
constexpr std::array<Key, 16> kKeys = {{
    {"host", "a number from 1 to 16384", [](View v, Machine& m) { return read_count(v, m.hosts, kHostsMax); }},
    {"gpu", "a number from 1 to 1024, or one for each host: 7+8",
     [](View v, Machine& m) { return read_gpus(v, m.gpus); }},
    {"sm", "a compute capability, 90", [](View v, Machine& m) { return read_count(v, m.sm); }},
    {"switch", "a number from 1 to 1024, or pod",
     [](View v, Machine& m) {
       m.pod = v == "pod";
       return m.pod || read_count(v, m.switches);
     }},
    {"nvlink", kGbps, [](View v, Machine& m) { return read_bandwidth(v, m.nvlink); }},
    {"mesh", kGbps, [](View v, Machine& m) { return read_bandwidth(v, m.mesh); }},
    {"ring", kGbps, [](View v, Machine& m) { return read_bandwidth(v, m.ring); }},
    {"line", kGbps, [](View v, Machine& m) { return read_bandwidth(v, m.line); }},
    {"kind", "nvlink or xgmi", [](View v, Machine& m) { return read_kind(v, m.kind); }},
    {"nic", "NUMBERxGB/s: 8x50", [](View v, Machine& m) { return read_several(v, m.nics, m.nic); }},
    {"numa", "a number from 1 to 1024", [](View v, Machine& m) { return read_count(v, m.numas); }},
    {"cpu", kGbps, [](View v, Machine& m) { return read_bandwidth(v, m.cpu); }},
    {"cores", "a number from 1 to 1024", [](View v, Machine& m) { return read_count(v, m.cores); }},
    {"memory", kGbps, [](View v, Machine& m) { return read_bandwidth(v, m.memory); }},
    {"pci", kGbps, [](View v, Machine& m) { return read_bandwidth(v, m.pci); }},
    {"bridge", "a number from 1 to 1024, or NUMBERxGB/s: 2x48",
     [](View v, Machine& m) {
       return v.find('x') == View::npos ? read_count(v, m.bridges) : read_several(v, m.bridges, m.bridge);
     }},
}};

struct SyntheticWord {
  std::string_view text;
  int number = 0;  ///< from 1
};

std::vector<SyntheticWord> split(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r\n";
  std::vector<SyntheticWord> words;
  for (std::size_t at = line.find_first_not_of(kBlanks); at != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(kBlanks, at), line.size());
    words.push_back({line.substr(at, end - at), static_cast<int>(words.size()) + 1});
    at = line.find_first_not_of(kBlanks, end);
  }
  return words;
}

Error wrong(const std::string& what) { return error(Code::kInvalidArgument, "synthetic machine: " + what); }

Result<Machine> read_words(std::string_view line) {
  Machine machine;
  std::set<std::string_view> seen;
  for (const SyntheticWord& word : split(line)) {
    constexpr std::size_t kShown = 80;
    const std::string place = fmt::format("word {}, \"{}\": ", word.number, word.text.substr(0, kShown));
    const std::size_t colon = word.text.find(':');
    if (colon == std::string_view::npos) return wrong(place + "expected KEY:VALUE, as gpu:8");
    const std::string_view name = word.text.substr(0, colon);
    const auto* key = std::ranges::find(kKeys, name, &Key::name);
    if (key == kKeys.end() || name.empty()) {
      std::string names;
      for (const Key& known : kKeys) names += (names.empty() ? "" : ", ") + std::string(known.name);
      return wrong(place + fmt::format("no such key; expected one of {}", names));
    }
    if (!seen.insert(name).second) return wrong(place + "a second time; each key stands once");
    if (!key->read(word.text.substr(colon + 1), machine))
      return wrong(place + fmt::format("expected {}", key->expected));
  }
  if (seen.empty()) return wrong("there is no word; expected, for example, gpu:8 switch:1 nvlink:450");
  return machine;
}

/// What no single word has wrong; completes what follows from other words.
Status check(Machine& machine) {
  const bool has_switch = machine.switches > 0 || machine.pod;
  if (machine.gpus.size() > 1) {
    if (machine.hosts > 0 && machine.hosts != static_cast<int>(machine.gpus.size()))
      return wrong(fmt::format("host:{} and gpu: with {} numbers; expected one for each host", machine.hosts,
                               machine.gpus.size()));
    machine.hosts = static_cast<int>(machine.gpus.size());
  }
  machine.hosts = std::max(machine.hosts, 1);
  if (machine.gpus.empty() && machine.numas == 0 && machine.cores == 0)
    return wrong("nothing computes; expected gpu:NUMBER, or numa:NUMBER and cores:NUMBER");
  if (machine.gpus.empty() && machine.joins_gpus()) return wrong("switch, mesh, ring or line without gpu:NUMBER");
  if (machine.nvlink > 0 && !has_switch)
    return wrong("nvlink without switch:1; between GPUs write mesh:GB/s (each pair), ring:GB/s or line:GB/s");
  if (has_switch && machine.nvlink == 0) return wrong("switch without nvlink:GB/s, from each GPU to its switches");
  if (machine.kind && machine.mesh == 0 && machine.ring == 0 && machine.line == 0)
    return wrong("kind without mesh, ring or line, whose links it is about");
  if (machine.hosts > 1 && machine.nics == 0 && !machine.pod)
    return wrong(fmt::format("host:{} without nic:NUMBERxGB/s: nothing joins the hosts", machine.hosts));
  return {};
}

class SyntheticBuilder {
 public:
  explicit SyntheticBuilder(const Machine& machine) : machine_(machine) {}
  Result<Graph> build();

 private:
  void add_host(int host);
  void add_numas(int host);
  void add_pci(int host);
  void join_gpus(int host);
  void add_nics(int host);
  int below(int index, int count) const;

  const Machine& machine_;
  GraphBuilder builder_;
  int rank_ = 0;
  int network_ = kNone;
  int pod_ = kNone;
  // Of the host that is being built.
  std::vector<int> numas_;
  std::vector<int> bridges_;
  std::vector<int> gpus_;
};

Result<Graph> SyntheticBuilder::build() {
  // Before anything is built: the sums are beyond the limits in lines that a person could not have meant.
  std::int64_t nodes = 0;
  std::int64_t links = 0;
  for (int host = 0; host < machine_.hosts; ++host) {
    const std::int64_t gpus = machine_.gpus_of(host);
    nodes += gpus + machine_.nics + machine_.numas + machine_.bridges + machine_.switches;
    links += (machine_.mesh > 0 ? gpus * gpus : 0) + gpus * (machine_.switches + 6) +
             std::int64_t{machine_.numas} * machine_.numas;
  }
  if (nodes > kNodesMax || links > kLinksMax)
    return wrong(fmt::format("about {} nodes and {} links; at most {} and {}", nodes, links, kNodesMax, kLinksMax));
  for (int host = 0; host < machine_.hosts; ++host) add_host(host);
  return std::move(builder_).finish();
}

void SyntheticBuilder::add_host(int host) {
  builder_.add_host(fmt::format("host{}", host));
  numas_.clear();
  bridges_.clear();
  gpus_.clear();
  if (machine_.has_pci()) add_numas(host);
  for (int gpu = 0; gpu < machine_.gpus_of(host); ++gpu) {
    Facts facts{.rank = rank_++, .device = gpu, .sm = machine_.sm};
    const int parent = machine_.has_pci() ? below(gpu, machine_.gpus_of(host)) : kNone;
    gpus_.push_back(builder_.add_node(NodeKind::kGpu, host, parent, "", std::move(facts)));
  }
  if (machine_.has_pci()) add_pci(host);
  join_gpus(host);
  add_nics(host);
}

/// The bridge, or without any the NUMA node, that device `index` of `count` is dealt to.
int SyntheticBuilder::below(int index, int count) const {
  const std::vector<int>& homes = bridges_.empty() ? numas_ : bridges_;
  return homes[static_cast<std::size_t>(index) * homes.size() / static_cast<std::size_t>(count)];
}

void SyntheticBuilder::add_numas(int host) {
  const int count = std::max(machine_.numas, 1);
  for (int numa = 0; numa < count; ++numa) {
    Facts facts{.numa = numa, .cores = machine_.cores, .memory = machine_.memory};
    numas_.push_back(builder_.add_node(NodeKind::kNuma, host, kNone, "", std::move(facts)));
    for (int other = 0; other < numa; ++other)
      builder_.connect(numas_[static_cast<std::size_t>(other)], numas_.back(), LinkKind::kCpu,
                       machine_.cpu > 0 ? machine_.cpu : kCpuDefault);
  }
  for (int bridge = 0; bridge < machine_.bridges; ++bridge) {
    const int numa =
        numas_[static_cast<std::size_t>(bridge) * numas_.size() / static_cast<std::size_t>(machine_.bridges)];
    bridges_.push_back(builder_.add_node(NodeKind::kPci, host, numa, ""));
  }
}

void SyntheticBuilder::add_pci(int host) {
  const int gpus = std::max(machine_.gpus_of(host), 1);
  const Bandwidth share = (machine_.nics * machine_.nic + gpus - 1) / gpus;
  const Bandwidth pci = machine_.pci > 0 ? machine_.pci : std::clamp(share, kPciDefault, kBandwidthMax);
  constexpr int kLanes = 16;
  for (const int bridge : bridges_) {
    builder_.connect(builder_.so_far().node(bridge).parent, bridge, LinkKind::kPci,
                     machine_.bridge > 0 ? machine_.bridge : pci, kLanes);
  }
  for (const int gpu : gpus_) builder_.connect(builder_.so_far().node(gpu).parent, gpu, LinkKind::kPci, pci, kLanes);
}

void SyntheticBuilder::join_gpus(int host) {
  const LinkKind kind = machine_.kind.value_or(LinkKind::kNvLink);
  for (std::size_t i = 0; i < gpus_.size(); ++i) {
    for (std::size_t j = i + 1; machine_.mesh > 0 && j < gpus_.size(); ++j)
      builder_.connect(gpus_[i], gpus_[j], kind, machine_.mesh);
    if (i == 0) continue;
    if (machine_.ring > 0) builder_.connect(gpus_[i - 1], gpus_[i], kind, machine_.ring);
    if (machine_.line > 0) builder_.connect(gpus_[i - 1], gpus_[i], kind, machine_.line);
  }
  if (machine_.ring > 0 && gpus_.size() > 2) builder_.connect(gpus_.back(), gpus_.front(), kind, machine_.ring);
  if (machine_.pod) {
    if (pod_ == kNone) pod_ = builder_.add_node(NodeKind::kSwitch, 0, kNone, "");
    for (const int gpu : gpus_) builder_.connect(gpu, pod_, LinkKind::kNvLink, machine_.nvlink);
  }
  for (int plane = 0; plane < machine_.switches; ++plane) {
    const int nvswitch = builder_.add_node(NodeKind::kSwitch, host, kNone, "");
    // The first takes what does not divide.
    const Bandwidth even = machine_.nvlink / machine_.switches;
    const Bandwidth bandwidth = plane == 0 ? machine_.nvlink - even * (machine_.switches - 1) : even;
    for (const int gpu : gpus_) builder_.connect(gpu, nvswitch, LinkKind::kNvLink, bandwidth);
  }
}

void SyntheticBuilder::add_nics(int host) {
  for (int i = 0; i < machine_.nics; ++i) {
    const int parent = below(i, machine_.nics);
    const int nic = builder_.add_node(NodeKind::kNic, host, parent, "", {.device = i, .ports = 1});
    builder_.connect(parent, nic, LinkKind::kPci, machine_.nic);
    if (network_ == kNone) network_ = builder_.add_node(NodeKind::kNetwork, 0, kNone, "");
    builder_.connect(nic, network_, LinkKind::kNetwork, machine_.nic);
  }
}

}  // namespace

Result<Graph> parse_synthetic(std::string_view line) {
  constexpr std::size_t kBytesMax = 1 << 16;
  if (line.size() > kBytesMax)
    return wrong(fmt::format("the line has {} characters; at most {} are read", line.size(), kBytesMax));
  TUTTI_TRY_ASSIGN(Machine machine, read_words(line));
  TUTTI_TRY(check(machine));
  return SyntheticBuilder(machine).build();
}

}  // namespace tutti::topology
