// The text corpus: what is read, in which order, and what is held out.
#include "trainer/text.h"
#include "tests/temporary_folder.h"
#include "trainer/dataset.h"

#include <catch2/catch.hpp>

#include <unistd.h>

#include <algorithm>
#include <string>

using namespace tutti::trainer;
using Catch::Contains;

namespace {

std::vector<std::uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace

TEST_CASE("a directory is read sorted, each file once, links followed but not twice") {
  const TemporaryFolder folder;
  namespace fs = std::filesystem;
  folder.write("tree/b", "B");
  folder.write("tree/a", "A");
  folder.write("tree/sub/c", "C");
  folder.write("outside", "O");
  fs::create_symlink("a", folder / "tree/a-again");
  fs::create_symlink("..", folder / "tree/sub/up");  // a circle
  fs::create_symlink("../outside", folder / "tree/z");
  fs::create_symlink("nowhere", folder / "tree/dangling");
  fs::create_hard_link(folder / "tree/a", folder / "tree/sub/another-name");

  const auto text = read_text({(folder / "tree").string()});
  REQUIRE(text);
  CHECK(std::string(text->bytes.begin(), text->bytes.end()) == "ABCO");
  CHECK(text->file_count == 4);

  const auto twice = read_text({(folder / "tree/b").string(), (folder / "tree").string()});
  REQUIRE(twice);
  CHECK(std::string(twice->bytes.begin(), twice->bytes.end()) == "BACO");
}

TEST_CASE("missing and empty text is refused by name") {
  const TemporaryFolder folder;
  const auto missing = (folder / "missing").string();
  const auto nothing = read_text({missing});
  REQUIRE_FALSE(nothing);
  CHECK_THAT(nothing.failure().message, Contains(missing));
  const auto empty_path = folder.write("empty", "");
  const auto empty = read_text({empty_path});
  REQUIRE_FALSE(empty);
  CHECK_THAT(empty.failure().message, Contains(empty_path) && Contains("0 bytes"));
  const auto device = read_text({"/dev/zero"});
  REQUIRE_FALSE(device);
  CHECK_THAT(device.failure().message, Contains("/dev/zero"));
  // What a shell's <(command) stands for: a link to what has no name.
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const auto unnamed = read_text({"/dev/fd/" + std::to_string(ends[0])});
  close(ends[0]);
  close(ends[1]);
  REQUIRE_FALSE(unnamed);
  CHECK_THAT(unnamed.failure().message, Contains("neither a file nor a directory"));
  const auto brief = TextDataset::split({bytes("0123456789"), 1}, 10, 0.1);
  REQUIRE_FALSE(brief);
  CHECK_THAT(brief.failure().message, Contains("10 bytes") && Contains("11"));
}

TEST_CASE("every byte behind the first context is a label once, in training or held out by whole blocks") {
  constexpr std::size_t kBlock = TextDataset::kBlockBytes;
  Text text;
  for (std::size_t i = 0; i < 20 * kBlock + 100; ++i) text.bytes.push_back(static_cast<std::uint8_t>(i * 7 + i / 256));
  const auto set = TextDataset::split(text, 5, 0.1);
  REQUIRE(set);
  SampleIds all = set->training();
  all.insert(all.end(), set->held_out().begin(), set->held_out().end());
  std::sort(all.begin(), all.end());
  REQUIRE(all.size() == text.bytes.size() - 5);
  for (std::size_t i = 0; i < all.size(); ++i) REQUIRE(all[i] == i + 5);
  REQUIRE(set->held_out().size() == 2 * kBlock);
  CHECK(set->held_out().front() == 9 * kBlock);
  CHECK(set->held_out().back() == 20 * kBlock - 1);

  Batch batch;
  const std::uint32_t last = all.back();
  set->gather(SampleIds{5, last}, batch);
  CHECK(batch.labels == std::vector<std::uint8_t>{text.bytes[5], text.bytes[last]});
  CHECK(std::equal(batch.bytes.begin(), batch.bytes.begin() + 5, text.bytes.begin()));
  CHECK(std::equal(batch.bytes.begin() + 5, batch.bytes.end(), text.bytes.end() - 6));
}

TEST_CASE("entropy of single bytes") {
  CHECK(unigram_bits(bytes("aaaa")) == 0.0);
  CHECK(unigram_bits(bytes("abab")) == Approx(1.0));
  CHECK(unigram_bits(bytes("aabc")) == Approx(1.5));
}
