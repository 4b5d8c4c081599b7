// parse_text: lines first, then the graph, as a line may name a node that comes later.
#include "topology/text_form.h"
#include "topology/text_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <climits>
#include <unordered_map>
#include <utility>

namespace tutti::topology {

namespace {

constexpr std::array kNodeKinds = {NodeKind::kPackage, NodeKind::kNuma,   NodeKind::kCache, NodeKind::kPci,
                                   NodeKind::kGpu,     NodeKind::kSwitch, NodeKind::kNic,   NodeKind::kNetwork};
constexpr std::array kLinkKinds = {LinkKind::kPci, LinkKind::kNvLink, LinkKind::kXgmi,   LinkKind::kC2c,
                                   LinkKind::kCpu, LinkKind::kMemory, LinkKind::kNetwork};

template <class Kinds>
auto kind_from(const Kinds& kinds, std::string_view name) -> std::optional<typename Kinds::value_type> {
  const auto found = std::ranges::find(kinds, name, [](auto kind) { return name_of(kind); });
  if (found == kinds.end()) return {};
  return *found;
}

template <class Kinds>
std::string names_of(const Kinds& kinds) {
  std::string names;
  for (const auto kind : kinds) names += (names.empty() ? "" : ", ") + std::string(name_of(kind));
  return names;
}

struct NodeLine {
  int line = 0;
  Node node;  ///< but for the parent
  std::string parent;
};

struct LinkLine {
  int line = 0;
  bool cable = false;
  std::string from;
  std::string to;
  Link link;  ///< but for the ends
};

Error wrong(int line, const std::string& what) {
  return error(Code::kInvalidArgument, fmt::format("line {}: {}", line, what));
}

class Parser {
 public:
  Status read(std::string_view text);
  Result<Graph> build() &&;

 private:
  Status read_line(std::string_view line);
  Status read_header(const std::vector<Word>& words);
  Status read_node(NodeKind kind, const std::vector<Word>& words);
  Status read_fact(NodeLine& node, std::string_view key, const std::string& value);
  Status read_link(const std::vector<Word>& words);
  Status read_link_option(Link& link, const Word& word);
  Result<int> index_of(const std::string& name, int line) const;
  Error wrong_here(const std::string& what) const { return wrong(line_, what); }

  int line_ = 0;
  bool has_header_ = false;
  std::vector<std::string> hosts_;
  std::vector<NodeLine> nodes_;
  std::vector<LinkLine> links_;
  std::vector<std::string> warnings_;
  std::unordered_map<std::string, int> indices_;  ///< of nodes, by name
};

Status Parser::read(std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    ++line_;
    TUTTI_TRY(read_line(text.substr(0, end)));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  if (!has_header_) return wrong(1, fmt::format("there is nothing; expected \"{}\"", kTextFormHeader));
  return {};
}

Status Parser::read_line(std::string_view line) {
  auto split = words_of(line);
  if (!split.ok()) return wrong_here(split.error().message);
  const std::vector<Word>& words = split.value();
  if (words.empty()) return {};
  if (!has_header_) return read_header(words);
  const std::string& first = words[0].text;
  if (const auto kind = kind_from(kNodeKinds, first)) return read_node(*kind, words);
  if (first == "link") return read_link(words);
  if (first != "host" && first != "warning") {
    return wrong_here(fmt::format("\"{}\" is no kind of line; expected host, link, warning or a kind of node ({})",
                                  first, names_of(kNodeKinds)));
  }
  if (words.size() != 2)
    return wrong_here(fmt::format("{} is followed by {}; expected one word (quote it if it has spaces)", first,
                                  words.size() == 1 ? "nothing" : fmt::format("{} words", words.size() - 1)));
  (first == "host" ? hosts_ : warnings_).push_back(words[1].text);
  return {};
}

Status Parser::read_header(const std::vector<Word>& words) {
  if (words[0].text != "tutti-topology")
    return wrong_here(fmt::format("\"{}\" where \"{}\" was expected", words[0].text, kTextFormHeader));
  if (words.size() < 2 || words[1].text != "1")
    return wrong_here(fmt::format("version {} of the text form; this library reads version 1",
                                  words.size() < 2 ? "nothing" : words[1].text));
  if (words.size() > 2)
    return wrong_here(fmt::format("\"{}\" after \"{}\"; expected the end of the line", words[2].text, kTextFormHeader));
  has_header_ = true;
  return {};
}

Status Parser::read_node(NodeKind kind, const std::vector<Word>& words) {
  if (nodes_.size() >= static_cast<std::size_t>(kNodesMax))
    return wrong_here(fmt::format("more than {} nodes", kNodesMax));
  if (words.size() < 2 || words[1].text.empty() || words[1].equals != std::string::npos)
    return wrong_here(fmt::format("{} is followed by {}; expected the node's name", words[0].text,
                                  words.size() < 2 ? "nothing" : '"' + words[1].text + '"'));
  NodeLine node{.line = line_, .node = {.kind = kind, .name = words[1].text}, .parent = {}};
  for (std::size_t i = 2; i < words.size(); ++i) {
    const Word& word = words[i];
    if (word.equals == std::string::npos)
      return wrong_here(fmt::format("\"{}\" after {}; expected key=value", word.text, node.node.name));
    TUTTI_TRY(read_fact(node, std::string_view(word.text).substr(0, word.equals), word.text.substr(word.equals + 1)));
  }
  const auto [there, is_new] = indices_.try_emplace(node.node.name, static_cast<int>(nodes_.size()));
  if (!is_new)
    return wrong_here(fmt::format("a second node {}; the first is in line {}", node.node.name,
                                  nodes_[static_cast<std::size_t>(there->second)].line));
  nodes_.push_back(std::move(node));
  return {};
}

Status Parser::read_fact(NodeLine& line, std::string_view key, const std::string& value) {
  Facts& facts = line.node.facts;
  const auto refuse = [&](std::string_view expected) {
    return wrong_here(fmt::format("{}={} of {}; expected {}", key, value, line.node.name, expected));
  };
  const std::array<std::pair<std::string_view, std::string*>, 4> texts = {
      {{"in", &line.parent}, {"bus", &facts.bus_id}, {"model", &facts.model}, {"gcn", &facts.gcn}}};
  for (const auto& [name, target] : texts) {
    if (key != name) continue;
    if (value.empty()) return refuse("a text");
    *target = value;
    return {};
  }
  const std::array<std::pair<std::string_view, int*>, 7> numbers = {{{"host", &line.node.host},
                                                                     {"numa", &facts.numa},
                                                                     {"rank", &facts.rank},
                                                                     {"device", &facts.device},
                                                                     {"sm", &facts.sm},
                                                                     {"cores", &facts.cores},
                                                                     {"ports", &facts.ports}}};
  for (const auto& [name, target] : numbers) {
    if (key != name) continue;
    const auto number = number_from<int>(value, INT_MIN);
    if (!number) return refuse("a whole number");
    *target = *number;
    return {};
  }
  if (key == "bytes") {
    const auto bytes = number_from<std::uint64_t>(value, 0);
    if (!bytes) return refuse("a number of bytes");
    facts.bytes = *bytes;
    return {};
  }
  if (key != "memory")
    return refuse("in, host, bus, model, numa, rank, device, sm, gcn, cores, memory, bytes or ports");
  const auto memory = gigabytes_from(value);
  if (!memory) return refuse("GB/s with up to six decimals, above 0 and up to 1000000");
  facts.memory = *memory;
  return {};
}

Status Parser::read_link(const std::vector<Word>& words) {
  if (words.size() < 6)
    return wrong_here(
        fmt::format("link with {} words after it; expected: link NODE <-> NODE KIND GB/s (or ->)", words.size() - 1));
  if (links_.size() >= static_cast<std::size_t>(kLinksMax))
    return wrong_here(fmt::format("more than {} links", kLinksMax));
  LinkLine line{.line = line_, .from = words[1].text, .to = words[3].text, .link = {}};
  line.cable = words[2].text == "<->";
  if (!line.cable && words[2].text != "->")
    return wrong_here(fmt::format("\"{}\" between two nodes; expected <-> (both directions) or ->", words[2].text));
  if (line.from == line.to) return wrong_here(fmt::format("a link of {} to itself", line.from));
  const auto kind = kind_from(kLinkKinds, words[4].text);
  if (!kind)
    return wrong_here(
        fmt::format("\"{}\" is no kind of link; expected one of {}", words[4].text, names_of(kLinkKinds)));
  line.link.kind = *kind;
  const auto bandwidth = gigabytes_from(words[5].text);
  if (!bandwidth)
    return wrong_here(fmt::format("bandwidth \"{}\"; expected GB/s with up to six decimals, above 0 and up to 1000000",
                                  words[5].text));
  line.link.bandwidth = *bandwidth;
  for (std::size_t i = 6; i < words.size(); ++i) TUTTI_TRY(read_link_option(line.link, words[i]));
  links_.push_back(std::move(line));
  return {};
}

Status Parser::read_link_option(Link& link, const Word& word) {
  const std::string_view text = word.text;
  if (text.starts_with("count=")) {
    if (const auto count = number_from<int>(text.substr(6), 1)) {
      link.count = *count;
      return {};
    }
  }
  if (text.starts_with("latency_ns=")) {
    if (const auto latency = number_from<int>(text.substr(11), 0)) {
      link.latency_ns = *latency;
      return {};
    }
  }
  return wrong_here(fmt::format("\"{}\" after the bandwidth; expected count=N (from 1) or latency_ns=N", text));
}

Result<int> Parser::index_of(const std::string& name, int line) const {
  const auto found = indices_.find(name);
  if (found == indices_.end()) return wrong(line, fmt::format("there is no node \"{}\"", name));
  return found->second;
}

Result<Graph> Parser::build() && {
  GraphBuilder builder;
  if (hosts_.empty()) hosts_.emplace_back("host");
  for (std::string& host : hosts_) builder.add_host(std::move(host));
  for (NodeLine& line : nodes_) {
    Node& node = line.node;
    if (node.host < 0 || node.host >= static_cast<int>(builder.so_far().hosts().size()))
      return wrong(line.line, fmt::format("host={} of {}; hosts are numbered from 0, and there are {}", node.host,
                                          node.name, builder.so_far().hosts().size()));
    int parent = kNone;
    if (!line.parent.empty()) {
      TUTTI_TRY_ASSIGN(parent, index_of(line.parent, line.line));
    }
    builder.add_node(node.kind, node.host, parent, std::move(node.name), std::move(node.facts));
  }
  for (const LinkLine& line : links_) {
    TUTTI_TRY_ASSIGN(const int from, index_of(line.from, line.line));
    TUTTI_TRY_ASSIGN(const int to, index_of(line.to, line.line));
    const Link& link = line.link;
    if (line.cable) {
      builder.connect(from, to, link.kind, link.bandwidth, link.count, link.latency_ns);
    } else {
      builder.add_link(from, to, link.kind, link.bandwidth, link.count, link.latency_ns);
    }
  }
  for (std::string& warning : warnings_) builder.warn(std::move(warning));
  return std::move(builder).finish();
}

}  // namespace

Result<Graph> parse_text(std::string_view text) {
  Parser parser;
  TUTTI_TRY(parser.read(text));
  return std::move(parser).build();
}

}  // namespace tutti::topology
