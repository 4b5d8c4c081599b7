#include "base/standard_output.h"
#include "plot/canvas.h"
#include "plot/svg.h"
#include "plot/timeline.h"

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <stdlib.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <limits>
#include <regex>
#include <set>
#include <string>

using namespace tutti::plot;

namespace {

std::vector<std::string> labels_of(const Ticks& ticks) {
  std::vector<std::string> labels;
  for (const Tick& tick : ticks.ticks) labels.push_back(tick.label);
  return labels;
}

std::size_t occurrences(const std::string& text, const std::string& what) {
  std::size_t count = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

/// Texts that are not rotated, with where they are.
std::vector<std::pair<std::string, Box>> texts_of(const std::string& document) {
  const std::regex element(
      "<text x=\"([^\"]*)\" y=\"([^\"]*)\" text-anchor=\"(\\w+)\" font-size=\"([^\"]*)\" fill=\"[^\"]*\"( "
      "font-weight=\"600\")?>"
      "([^<]*)<");
  std::vector<std::pair<std::string, Box>> texts;
  for (std::sregex_iterator at(document.begin(), document.end(), element), end; at != end; ++at) {
    const std::smatch& found = *at;
    const Anchor anchor = found[3] == "end" ? Anchor::kEnd : found[3] == "middle" ? Anchor::kMiddle : Anchor::kStart;
    const TextStyle style{std::stod(found[4]), kInk, anchor, found[5].matched};
    texts.emplace_back(found[6], Canvas::extent(std::stod(found[1]), std::stod(found[2]), found[6].str(), style));
  }
  return texts;
}

/// No words leave the picture or lie on others.
void check_texts(const std::string& document) {
  std::smatch size;
  REQUIRE(std::regex_search(document, size, std::regex("viewBox=\"0 0 ([0-9.]+) ([0-9.]+)\"")));
  const auto texts = texts_of(document);
  CHECK(texts.size() > 3);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto& [words, box] = texts[i];
    INFO(words);
    CHECK(box.left >= 0);
    CHECK(box.right() <= std::stod(size[1]));
    CHECK(box.bottom() <= std::stod(size[2]));
    for (std::size_t k = 0; k < i; ++k) {
      INFO("on " << texts[k].first);
      CHECK_FALSE(texts[k].second.overlaps(box));
    }
  }
}

Chart chart_of(std::vector<Point> points) {
  Chart chart;
  chart.title = "title";
  chart.series = {{"line", std::move(points), true, false}};
  return chart;
}

}  // namespace

TEST_CASE("linear ticks are 1, 2 or 5 times a power of ten and hold the data") {
  CHECK(labels_of(ticks_for(0, 7.5, Scale::kLinear, Labels::kPlain)) ==
        std::vector<std::string>{"0", "2", "4", "6", "8"});
  CHECK(labels_of(ticks_for(-1, 1, Scale::kLinear, Labels::kPlain)) ==
        std::vector<std::string>{"-1", "-0.5", "0", "0.5", "1"});
  for (double low : {-3e7, 0.0, 1e-9, 17.0}) {
    for (double span : {0.0, 1e-6, 3.0, 1e12}) {
      const Ticks ticks = ticks_for(low, low + span, Scale::kLinear, Labels::kPlain);
      INFO("from " << low << " over " << span);
      const double slack = 1e-9 * span;  // a tick that misses the data by less than this is no reason for another one
      CHECK(ticks.low <= low + slack);
      CHECK(ticks.high >= low + span - slack);
      CHECK(ticks.ticks.size() >= 2);
      CHECK(ticks.ticks.size() <= 12);
    }
  }
}

TEST_CASE("a short range far from zero has ticks that can be told apart") {
  CHECK(labels_of(ticks_for(100000, 100050, Scale::kLinear, Labels::kPlain)) ==
        std::vector<std::string>{"100k", "100.01k", "100.02k", "100.03k", "100.04k", "100.05k"});
  const Ticks last_digit = ticks_for(3, std::nextafter(3, 4), Scale::kLinear, Labels::kPlain);
  CHECK(last_digit.ticks.size() <= 12);
  CHECK(last_digit.low < 3);
  CHECK(last_digit.high > 3);
}

TEST_CASE("nothing but zero is drawn from zero upwards") {
  CHECK(labels_of(ticks_for(0, 0, Scale::kLinear, Labels::kPlain)) ==
        std::vector<std::string>{"0", "0.2", "0.4", "0.6", "0.8", "1"});
}

TEST_CASE("next to zero and far from it there are ticks, too") {
  for (const double high : {5e-324, 1e-310, 3e-308, 1e-300, 1e300}) {
    for (const double low : {-high, 0.0, high / 2, high}) {
      const Ticks ticks = ticks_for(low, high, Scale::kLinear, Labels::kPlain);
      INFO("from " << low << " to " << high);
      CHECK(std::isfinite(ticks.low));
      CHECK(std::isfinite(ticks.high));
      CHECK(ticks.low < ticks.high);
      CHECK(ticks.high >= high - 1e-9 * high);
      CHECK(ticks.ticks.size() >= 2);
      CHECK(ticks.ticks.size() <= 12);
    }
  }
}

TEST_CASE("charts of the smallest and the largest numbers are charts") {
  constexpr double kLeast = std::numeric_limits<double>::denorm_min();
  constexpr double kMost = std::numeric_limits<double>::max();
  for (const Scale scale : {Scale::kLinear, Scale::kLog2, Scale::kLog10}) {
    Chart chart = chart_of({{1, kLeast}, {2, 1}, {3, kMost}, {kLeast, 2}, {kMost, 3}, {1, -kMost}});
    chart.x.scale = chart.y.scale = scale;
    const std::string document = svg({&chart, 1});
    CHECK(document.find("nan") == std::string::npos);
    CHECK(document.find("inf") == std::string::npos);
    check_texts(document);
  }
}

TEST_CASE("byte sizes are powers of two with binary units") {
  CHECK(labels_of(ticks_for(8, 4096, Scale::kLog2, Labels::kBytes)) ==
        std::vector<std::string>{"8", "16", "32", "64", "128", "256", "512", "1K", "2K", "4K"});
  CHECK(labels_of(ticks_for(8, 1 << 28, Scale::kLog2, Labels::kBytes)) ==
        std::vector<std::string>{"16", "256", "4K", "64K", "1M", "16M", "256M"});
}

TEST_CASE("decades on a logarithmic axis") {
  CHECK(labels_of(ticks_for(3, 27000, Scale::kLog10, Labels::kPlain)) ==
        std::vector<std::string>{"10", "100", "1000", "10k"});
  CHECK(labels_of(ticks_for(3, 9.5, Scale::kLog10, Labels::kPlain)) == std::vector<std::string>{"2", "5", "10"});
}

TEST_CASE("text is escaped and the bytes are the same every time") {
  Chart chart = chart_of({{1, 2}, {3, 4}});
  chart.title = "a < b & \"c\" > d\x01";
  const std::string text = svg({&chart, 1});
  CHECK(text.find("a &lt; b &amp; &quot;c&quot; &gt; d </text>") != std::string::npos);
  CHECK(text == svg({&chart, 1}));
}

TEST_CASE("text of any bytes is fit for XML") {
  CHECK(escaped("caf\xc3\xa9 \xe6\x97\xa5 \xf0\x9f\x98\x80") == "caf\xc3\xa9 \xe6\x97\xa5 \xf0\x9f\x98\x80");
  const std::string bad = "\xef\xbf\xbd";
  CHECK(escaped("\xff") == bad);
  CHECK(escaped("a\xc3") == "a" + bad);       // cut off
  CHECK(escaped("\xc0\xaf") == bad + bad);    // longer than it need be
  CHECK(escaped("\xed\xa0\x80") == bad);      // a surrogate
  CHECK(escaped("\xef\xbf\xbe") == bad);      // no character
  CHECK(escaped("\xf4\x90\x80\x80") == bad);  // beyond the last
}

TEST_CASE("words are cut and broken to a width") {
  CHECK(fitted("short", 12, 100) == "short");
  const std::string cut = fitted("a name that is far too long", 12, 80);
  CHECK(text_width(cut, 12) <= 80);
  CHECK(cut.ends_with("\xe2\x80\xa6"));
  CHECK(fitted("\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5", 10, 20) == "\xe2\x80\xa6");
  const std::vector<std::string> lines = wrapped("one two three four fiveisverylongindeed", 10, 70);
  CHECK(lines.size() > 2);
  for (const std::string& line : lines) CHECK(text_width(line, 10) <= 70);
  CHECK(wrapped("", 10, 70).empty());
}

TEST_CASE("a canvas knows where words are") {
  Canvas canvas;
  const TextStyle style{10, "#000000", Anchor::kStart, false};
  CHECK(canvas.is_free(Canvas::extent(0, 10, "words", style)));
  canvas.text(0, 10, "words", style);
  CHECK_FALSE(canvas.is_free(Canvas::extent(5, 12, "words", style)));
  CHECK(canvas.is_free(Canvas::extent(0, 30, "words", style)));
}

TEST_CASE("points that cannot be drawn break the line") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Chart chart = chart_of({{1, 1}, {2, 2}, {3, nan}, {4, 4}, {5, 5}});
  const std::string text = svg({&chart, 1});
  CHECK(occurrences(text, "<circle") == 4);
  const std::size_t path = text.find("<path d=\"");
  REQUIRE(path != std::string::npos);
  CHECK(occurrences(text.substr(path, text.find('"', path + 9) - path), "M") == 2);
  CHECK(text.find("nan") == std::string::npos);

  chart.y.scale = Scale::kLog10;
  chart.series[0].points = {{1, 0}, {2, -1}, {3, 10}};
  CHECK(occurrences(svg({&chart, 1}), "<circle") == 1);
}

TEST_CASE("a point that no line reaches is a dot") {
  Chart chart = chart_of({{1, 1}});
  chart.series[0].markers = false;
  CHECK(occurrences(svg({&chart, 1}), "<circle") == 1);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  chart.series[0].points = {{1, 1}, {2, nan}, {3, 3}, {4, 4}, {5, nan}, {6, 6}};
  CHECK(occurrences(svg({&chart, 1}), "<circle") == 2);
}

TEST_CASE("many series have names in rows, each with a look of its own") {
  Chart chart = chart_of({});
  chart.title = std::string(200, 'T');
  chart.subtitle =
      "nine collectives and what is to be said about them and their ranks and their buffers and the machine, the "
      "processors that they have and how long each was run";
  chart.series.clear();
  for (int n = 0; n < 18; ++n)
    chart.series.push_back(
        {fmt::format("collective {} out of place", n), {{1, n + 1.0}, {2, n + 2.0}}, true, n % 2 == 1});
  chart.series[5].name = std::string(300, 'n');
  const Chart panels[] = {chart, chart};
  const std::string text = svg(panels);
  check_texts(text);
  CHECK(occurrences(text, ">collective 17 out of place<") == 2);
  // Colour, dash and dot of each series, from its path and its first dot.
  const std::regex series(
      "<path [^>]*(stroke=\"[^\"]*\")[^>]*?( stroke-dasharray[^>]*)?/>\n<(circle|rect) [^>]*(fill=\"[^\"]*\")");
  std::set<std::string> looks;
  const std::string first = text.substr(0, text.find("collective 0"));
  for (std::sregex_iterator at(first.begin(), first.end(), series), end; at != end; ++at)
    looks.insert((*at)[1].str() + (*at)[2].str() + (*at)[3].str() + (*at)[4].str());
  CHECK(looks.size() == 18);
}

TEST_CASE("a timeline has room for names, and shows bars that run at once") {
  Timeline timeline;
  timeline.title = std::string(300, 'T');
  timeline.subtitle = std::string(300, 's');
  timeline.axis = "time, us";
  timeline.end = 10;
  for (int lane = 0; lane < 8; ++lane) timeline.legend.push_back(fmt::format("lanes {}, {} ..", lane, lane + 8));
  timeline.panels = {{"rows", {{"host12.nvswitch3 -> host12.gpu5", {}}, {std::string(300, 'n'), {}}}}};
  check_texts(svg(timeline));
  CHECK(svg(timeline).find(">host12.nvswitch3 -&gt; host12.gpu5<") != std::string::npos);
  timeline.panels = {{"rows", {{"rank", {{0, 5, 0, 1, ""}, {0, 5, 1, 1, ""}, {0, 5, 2, 1, ""}}, 3}}}};
  const std::string text = svg(timeline);
  std::set<std::string> tops;
  const std::regex bar("<rect x=\"150.00\" y=\"([^\"]*)\" width=\"[^\"]*\" height=\"4\" fill=\"#[0-9a-f]*\"");
  for (std::sregex_iterator at(text.begin(), text.end(), bar), end; at != end; ++at) tops.insert((*at)[1]);
  CHECK(tops.size() == 3);
}

TEST_CASE("a chart without data says so") {
  Chart chart = chart_of({});
  CHECK(svg({&chart, 1}).find(">no data<") != std::string::npos);
}

TEST_CASE("a file that cannot be written is an error that names it") {
  Chart chart = chart_of({{1, 1}});
  const tutti::Status status = write_svg("/nonexistent/a.svg", {&chart, 1});
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().message.find("/nonexistent/a.svg") != std::string::npos);
}

TEST_CASE("a file that finds no room is not left cut; what is no file stays") {
  std::string folder = (std::filesystem::temp_directory_path() / "tutti-plot-XXXXXX").string();
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  const std::string path = folder + "/a.svg";
  const std::string link = folder + "/link";
  std::filesystem::create_symlink(path, link);
  // As on a full disk.
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit limit{100, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  const std::string whole = tutti::why_unwritten(path, std::string(100, 'a'));
  const bool is_there = std::filesystem::exists(path);
  const std::string cut = tutti::why_unwritten(link, std::string(101, 'a'));
  const bool is_left = std::filesystem::exists(path);
  const std::string full = tutti::why_unwritten("/dev/full", "a");
  setrlimit(RLIMIT_FSIZE, &before);
  (void)std::signal(SIGXFSZ, handler);
  CHECK((whole.empty() && is_there));
  CHECK((cut == "File too large" && !is_left && std::filesystem::is_symlink(link)));
  CHECK((full == "No space left on device" && std::filesystem::exists("/dev/full")));
  std::filesystem::remove_all(folder);
}
