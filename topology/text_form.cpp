#include "topology/text_form.h"

#include "topology/text_words.h"

#include <fmt/format.h>

#include <iterator>

namespace tutti::topology {

namespace {

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("_.:+/-").find(c) != std::string_view::npos;
}

/// As it is if the parser reads it so, quoted if not.
std::string word(std::string_view text) {
  bool plain = !text.empty();
  for (const char c : text) plain = plain && is_plain(c);
  if (plain) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      fmt::format_to(std::back_inserter(quoted), "\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

void write_node(std::string& out, const Graph& graph, const Node& node) {
  const auto put = [&](std::string_view key, std::string_view value) {
    fmt::format_to(std::back_inserter(out), " {}={}", key, value);
  };
  const auto put_number = [&](std::string_view key, auto value, auto unknown) {
    if (value != unknown) fmt::format_to(std::back_inserter(out), " {}={}", key, value);
  };
  fmt::format_to(std::back_inserter(out), "{} {}", name_of(node.kind), word(node.name));
  put_number("host", node.host, 0);
  if (node.parent != kNone) put("in", word(graph.node(node.parent).name));
  const Facts& facts = node.facts;
  if (!facts.bus_id.empty()) put("bus", word(facts.bus_id));
  if (!facts.model.empty()) put("model", word(facts.model));
  put_number("numa", facts.numa, kNone);
  put_number("rank", facts.rank, kNone);
  put_number("device", facts.device, kNone);
  put_number("sm", facts.sm, 0);
  if (!facts.gcn.empty()) put("gcn", word(facts.gcn));
  put_number("cores", facts.cores, 0);
  if (facts.memory > 0) put("memory", gigabytes_text(facts.memory));
  put_number("bytes", facts.bytes, std::uint64_t{0});
  put_number("ports", facts.ports, 0);
  out += '\n';
}

bool is_back_of(const Link& link, const Link& other) {
  return link.from == other.to && link.to == other.from && link.kind == other.kind && link.count == other.count &&
         link.bandwidth == other.bandwidth && link.latency_ns == other.latency_ns;
}

void write_link(std::string& out, const Graph& graph, const Link& link, std::string_view arrow) {
  fmt::format_to(std::back_inserter(out), "link {} {} {} {} {}", word(graph.node(link.from).name), arrow,
                 word(graph.node(link.to).name), name_of(link.kind), gigabytes_text(link.bandwidth));
  if (link.count != 1) fmt::format_to(std::back_inserter(out), " count={}", link.count);
  if (link.latency_ns != 0) fmt::format_to(std::back_inserter(out), " latency_ns={}", link.latency_ns);
  out += '\n';
}

}  // namespace

std::string to_text(const Graph& graph) {
  std::string out(kTextFormHeader);
  out += '\n';
  for (const std::string& host : graph.hosts()) fmt::format_to(std::back_inserter(out), "host {}\n", word(host));
  for (const Node& node : graph.nodes()) write_node(out, graph, node);
  const std::vector<Link>& links = graph.links();
  for (std::size_t i = 0; i < links.size(); ++i) {
    const bool cable = i + 1 < links.size() && is_back_of(links[i], links[i + 1]);
    write_link(out, graph, links[i], cable ? "<->" : "->");
    if (cable) ++i;
  }
  for (const std::string& warning : graph.warnings())
    fmt::format_to(std::back_inserter(out), "warning {}\n", word(warning));
  return out;
}

}  // namespace tutti::topology
