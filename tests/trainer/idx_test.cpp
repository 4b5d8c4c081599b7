// IDX files: good ones, and every way in which one can be wrong.
#include "trainer/idx.h"
#include "tests/temporary_folder.h"
#include "trainer/dataset.h"

#include <zlib.h>
#include <catch2/catch.hpp>

#include <algorithm>

using namespace tutti::trainer;
using Bytes = std::vector<std::uint8_t>;

namespace {

Bytes header(std::vector<std::uint32_t> words) {
  Bytes bytes;
  for (const auto word : words) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<std::uint8_t>(word >> shift));
  }
  return bytes;
}

Bytes with_values(Bytes bytes, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) bytes.push_back(static_cast<std::uint8_t>(i * 37 + 5));
  return bytes;
}

Bytes gzip(const Bytes& bytes) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  Bytes out(bytes.size() + 100);
  stream.next_in = const_cast<Bytef*>(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

/// The message of the failure that must come, which must name the file.
std::string failure(const std::string& path, int dimensions) {
  const auto array = read_idx(path, dimensions);
  REQUIRE_FALSE(array);
  INFO(array.failure().message);
  CHECK(array.failure().message.find(path) == 0);
  return array.failure().message;
}

using Catch::Contains;

}  // namespace

TEST_CASE("images and labels are read, plain and compressed") {
  const TemporaryFolder folder;
  const Bytes file = with_values(header({0x803, 2, 3, 4}), 24);
  for (const auto& path : {folder.write("plain", file), folder.write("packed.gz", gzip(file))}) {
    const auto images = read_idx(path, 3);
    REQUIRE(images);
    CHECK(images->dimensions == std::vector<std::size_t>{2, 3, 4});
    CHECK(images->bytes_per_item() == 12);
    REQUIRE(images->values.size() == 24);
    for (std::size_t i = 0; i < 24; ++i) CHECK(images->values[i] == static_cast<std::uint8_t>(i * 37 + 5));
  }
  const auto labels = read_idx(folder.write("labels", with_values(header({0x801, 5}), 5)), 1);
  REQUIRE(labels);
  CHECK(labels->count() == 5);
}

TEST_CASE("files that are not what they should be are refused with the reason") {
  const TemporaryFolder folder;
  const Bytes good = with_values(header({0x803, 2, 3, 4}), 24);
  CHECK_THAT(failure((folder / "nothing").string(), 3), Contains("No such file"));
  CHECK_THAT(failure((folder / ".").string(), 3), Contains("not a regular file"));
  CHECK_THAT(failure(folder.write("empty", Bytes{}), 3), Contains("too short"));
  CHECK_THAT(failure(folder.write("stub", {0, 0, 8}), 3), Contains("too short"));
  CHECK_THAT(failure(folder.write("labels", with_values(header({0x801, 5}), 5)), 3), Contains("0x00000801"));
  CHECK_THAT(failure(folder.write("images", good), 1), Contains("0x00000803"));
  CHECK_THAT(failure(folder.write("floats", with_values(header({0xd03, 2, 3, 4}), 96)), 3), Contains("0x00000d03"));
  CHECK_THAT(failure(folder.write("head", Bytes(good.begin(), good.begin() + 10)), 3), Contains("inside the header"));
  CHECK_THAT(failure(folder.write("short", Bytes(good.begin(), good.end() - 1)), 3), Contains("holds 23 bytes"));
  CHECK_THAT(failure(folder.write("none", header({0x803, 0, 28, 28})), 3), Contains("dimension 0 is 0"));
  CHECK_THAT(failure(folder.write("flat", header({0x803, 5, 28, 0})), 3), Contains("dimension 2 is 0"));
  Bytes longer = good;
  longer.push_back(1);
  CHECK_THAT(failure(folder.write("longer", longer), 3), Contains("more than the 24 bytes"));
}

TEST_CASE("a header that promises more than memory holds costs no memory") {
  const TemporaryFolder folder;
  CHECK_THAT(failure(folder.write("huge", header({0x803, 0xffffffff, 0xffffffff, 0xffffffff})), 3),
             Contains("promises more"));
  // 4 GiB are allowed, but not there: read in pieces, so found out after the first.
  CHECK_THAT(failure(folder.write("large", with_values(header({0x801, 0xffffffff}), 9)), 1), Contains("holds 9 bytes"));
}

TEST_CASE("a compressed file that is cut or damaged is refused") {
  const TemporaryFolder folder;
  Bytes values = header({0x801, 5000});
  std::uint32_t noise = 1;
  for (int i = 0; i < 5000; ++i)
    values.push_back(static_cast<std::uint8_t>((noise = noise * 1664525u + 1013904223u) >> 24));
  const Bytes packed = gzip(values);
  REQUIRE(read_idx(folder.write("good.gz", packed), 1));
  // Every length but the whole one; in the last 8 bytes only the check sum is missing.
  for (std::size_t size = 3; size < packed.size(); size += size < 40 || size + 20 > packed.size() ? 1 : 97) {
    INFO("cut to " << size << " of " << packed.size());
    failure(folder.write("cut.gz", Bytes(packed.begin(), packed.begin() + static_cast<std::ptrdiff_t>(size))), 1);
  }
  Bytes damaged = packed;
  damaged[damaged.size() / 2] ^= 0x10;
  failure(folder.write("damaged.gz", damaged), 1);
}

TEST_CASE("images and labels must belong together") {
  const TemporaryFolder folder;
  const auto images = folder.write("images", with_values(header({0x803, 10, 2, 2}), 40));
  const auto labels = folder.write("labels", with_values(header({0x801, 9}), 9));
  const auto set = ImageDataset::load(images, labels, 0.2, 1);
  REQUIRE_FALSE(set);
  CHECK_THAT(set.failure().message,
             Contains("10 images") && Contains("9 labels") && Contains(images) && Contains(labels));
}

TEST_CASE("held-out images and training images are all images, none twice") {
  const TemporaryFolder folder;
  const auto images = folder.write("images", with_values(header({0x803, 10, 2, 2}), 40));
  Bytes classes = header({0x801, 10});
  for (int i = 0; i < 10; ++i) classes.push_back(static_cast<std::uint8_t>(i % 3));
  const auto set = ImageDataset::load(images, folder.write("labels", classes), 0.25, 7);
  REQUIRE(set);
  CHECK(set->class_count() == 3);
  CHECK(set->held_out().size() == 2);
  SampleIds all = set->training();
  all.insert(all.end(), set->held_out().begin(), set->held_out().end());
  std::sort(all.begin(), all.end());
  CHECK(all == SampleIds{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});

  Batch batch;
  set->gather(SampleIds{7, 2}, batch);
  REQUIRE(batch.samples == 2);
  CHECK(batch.labels == Bytes{1, 2});
  CHECK(batch.features.data()[0] == static_cast<float>(static_cast<std::uint8_t>(28 * 37 + 5)) / 255.0f);
  CHECK(batch.features.data()[7] == static_cast<float>(static_cast<std::uint8_t>(11 * 37 + 5)) / 255.0f);
}
