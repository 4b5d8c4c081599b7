// The mail of a rank: what it takes, and what strangers send.
#include "comm/device_mail.h"
#include "comm/unix_socket.h"

#include <catch2/catch.hpp>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

namespace tutti::comm {
namespace {

/// Pieces of 1, 2, 3 ... bytes, which tell themselves apart by that.
cuda::SharedPieces pieces_of(std::size_t count) {
  cuda::SharedPieces pieces;
  pieces.begin = 4096;
  for (std::size_t i = 1; i <= count; ++i) {
    Descriptor made(memfd_create("piece", MFD_CLOEXEC));
    REQUIRE(ftruncate(made.get(), static_cast<off_t>(i)) == 0);
    pieces.bytes.push_back(i);
    pieces.descriptors.push_back(std::move(made));
  }
  return pieces;
}

void check_pieces(const Result<cuda::SharedPieces>& taken, std::size_t count) {
  REQUIRE(taken.ok());
  CHECK(taken.value().begin == 4096);
  REQUIRE(taken.value().bytes.size() == count);
  REQUIRE(taken.value().descriptors.size() == count);
  for (std::size_t i = 0; i < count; ++i) {
    struct stat facts = {};
    REQUIRE(fstat(taken.value().descriptors[i].get(), &facts) == 0);
    CHECK(facts.st_size == static_cast<off_t>(i + 1));
    CHECK(taken.value().bytes[i] == i + 1);
  }
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

}  // namespace

TEST_CASE("mail: each window's pieces arrive, in any order, once", "[mail]") {
  const std::size_t before = open_descriptors();
  {
    DeviceCard card;
    auto opened = DeviceMail::open(card);
    REQUIRE(opened.ok());
    DeviceMail& mail = *opened.value();
    for (std::uint64_t number : {1, 2}) {
      for (int from : {1, 5}) {
        const std::size_t count = number == 1 ? static_cast<std::size_t>(from) : DeviceMail::kPiecesMax;
        REQUIRE(DeviceMail::send(card, {MailOf::kWindow, from, number}, pieces_of(count)).ok());
      }
    }
    check_pieces(mail.take({MailOf::kWindow, 5, 2}), DeviceMail::kPiecesMax);
    check_pieces(mail.take({MailOf::kWindow, 1, 1}), 1);
    check_pieces(mail.take({MailOf::kWindow, 5, 1}), 5);
    CHECK_FALSE(mail.take({MailOf::kWindow, 5, 1}).ok());
    CHECK_FALSE(mail.take({MailOf::kWindow, 2, 1}).ok());
    // One of window 2 is left. Nobody wants it. What ranks have exported is counted by itself.
    REQUIRE(DeviceMail::send(card, {MailOf::kExport, 1, 2}, pieces_of(3)).ok());
    mail.sift(MailOf::kWindow, [](const MailKey& key) { return key.number != 2; });
    CHECK_FALSE(mail.take({MailOf::kWindow, 1, 2}).ok());
    check_pieces(mail.take({MailOf::kExport, 1, 2}), 3);
    CHECK(open_descriptors() == before + 1);
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("mail: what could not be opened for want of descriptors can be taken again", "[mail]") {
  DeviceCard card;
  auto opened = DeviceMail::open(card);
  REQUIRE(opened.ok());
  DeviceMail& mail = *opened.value();
  REQUIRE(DeviceMail::send(card, {MailOf::kExport, 1, 1}, pieces_of(5)).ok());
  mail.sift(MailOf::kExport, [](const MailKey&) { return true; });
  const std::size_t before = open_descriptors();
  rlimit usual = {};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &usual) == 0);
  const int next = dup(0);
  close(next);
  const rlimit few = {static_cast<rlim_t>(next) + 2, usual.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  const auto refused = mail.take({MailOf::kExport, 1, 1});
  REQUIRE(setrlimit(RLIMIT_NOFILE, &usual) == 0);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().message.find("raise ulimit -n") != std::string::npos);
  CHECK(open_descriptors() == before);
  check_pieces(mail.take({MailOf::kExport, 1, 1}), 5);
  CHECK_FALSE(mail.take({MailOf::kExport, 1, 1}).ok());
}

TEST_CASE("mail: what strangers send costs nobody anything", "[mail]") {
  DeviceCard card;
  auto opened = DeviceMail::open(card);
  REQUIRE(opened.ok());
  DeviceMail& mail = *opened.value();
  DeviceCard forged = card;
  forged.mail_token[1] ^= 1;
  REQUIRE(DeviceMail::send(forged, {MailOf::kWindow, 1, 1}, pieces_of(3)).ok());
  std::vector<PrivateDescriptor> callers;
  for (int i = 0; i < 100; ++i) {
    callers.push_back(connect_unix(card.mail));
    REQUIRE(callers.back());
    if (i % 3 == 0) continue;  // says nothing
    const std::string text(i % 3 == 1 ? 7 : 9000, 'x');
    REQUIRE(send(callers.back().get(), text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()));
  }
  const std::size_t before = open_descriptors();
  CHECK_FALSE(mail.take({MailOf::kWindow, 1, 1}).ok());
  REQUIRE(DeviceMail::send(card, {MailOf::kWindow, 1, 1}, pieces_of(2)).ok());
  check_pieces(mail.take({MailOf::kWindow, 1, 1}), 2);
  CHECK(open_descriptors() <= before + 64);
  DeviceCard closed = card;
  std::strcpy(closed.mail, "unix:@tutti-nobody-listens-here");
  const Status refused = DeviceMail::send(closed, {MailOf::kWindow, 1, 2}, pieces_of(1));
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().message.find("tutti-nobody-listens-here") != std::string::npos);
}

}  // namespace tutti::comm
