// SPDX-License-Identifier: MIT
#include "protocol/byte_buffer.h"

#include <string>
#include <utility>

#include "tests/support/printing.h"

namespace allowd::protocol {
namespace {

TEST_CASE("byte buffer: what is appended in pieces comes out whole") {
  ByteBuffer buffer;
  CHECK(buffer.empty());
  CHECK(buffer.view().empty());
  std::string expected;
  for (int i = 0; i < 3000; ++i) {
    const std::string piece(static_cast<std::size_t>(i % 7), static_cast<char>('a' + i % 26));
    buffer.append(piece);
    expected += piece;
  }
  CHECK(buffer.view() == expected);
  CHECK(buffer.size() == expected.size());
}

TEST_CASE("byte buffer: one large piece is taken at once") {
  ByteBuffer buffer;
  buffer.append("x");
  const std::string large(3'000'000, 'y');
  buffer.append(large);
  CHECK(buffer.view() == "x" + large);
}

TEST_CASE("byte buffer: of the room that was reserved only what is committed counts") {
  ByteBuffer buffer;
  buffer.append("head");
  char* room = buffer.reserve(1000);
  room[0] = 'a';
  room[1] = 'b';
  buffer.commit(2);
  CHECK(buffer.view() == "headab");
}

TEST_CASE("byte buffer: bytes leave at the front and the rest keeps its order") {
  ByteBuffer buffer;
  buffer.append("abcdef");
  buffer.drop_front(0);
  CHECK(buffer.view() == "abcdef");
  buffer.drop_front(4);
  CHECK(buffer.view() == "ef");
  buffer.append("gh");
  CHECK(buffer.view() == "efgh");
  buffer.drop_front(4);
  CHECK(buffer.empty());
}

TEST_CASE("byte buffer: moving leaves an empty buffer that can be used again") {
  ByteBuffer first;
  first.append("abc");
  ByteBuffer second(std::move(first));
  CHECK(second.view() == "abc");
  ByteBuffer third = std::exchange(second, {});
  CHECK(third.view() == "abc");
  CHECK(second.empty());
  second.append("again");
  CHECK(second.view() == "again");
  third = std::move(second);
  CHECK(third.view() == "again");
  CHECK(second.empty());
  second.append("once more");
  CHECK(second.view() == "once more");
}

TEST_CASE("byte buffer: clearing keeps little memory and gives much back") {
  ByteBuffer buffer;
  buffer.append(std::string(100, 'x'));
  const char* kept = buffer.data();
  buffer.clear();
  CHECK(buffer.empty());
  buffer.append("y");
  CHECK(buffer.data() == kept);

  buffer.append(std::string(200'000, 'x'));
  buffer.clear();
  CHECK(buffer.empty());
  CHECK(buffer.data() == nullptr);
  buffer.append("z");
  CHECK(buffer.view() == "z");
}

}  // namespace
}  // namespace allowd::protocol
