// SPDX-License-Identifier: MIT
#include "agent/tls/wire_bio.h"

#include <algorithm>
#include <cstring>

namespace allowd::tls {
namespace {

int write(BIO* bio, const char* bytes, std::size_t count, std::size_t* written) {
  const Wire& wire = *static_cast<Wire*>(BIO_get_data(bio));
  if (wire.out != nullptr) wire.out->write(bytes, count);
  *written = count;
  return 1;
}

int read(BIO* bio, char* bytes, std::size_t count, std::size_t* taken) {
  Wire& wire = *static_cast<Wire*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  *taken = std::min(count, wire.in.size());
  if (*taken == 0) {
    BIO_set_retry_read(bio);  // more will come; the end of the stream is the socket's to tell
    return 0;
  }
  std::memcpy(bytes, wire.in.data(), *taken);
  wire.in = wire.in.subspan(*taken);
  return 1;
}

long control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

BIO_METHOD* make_method() {
  BIO_METHOD* method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "allowd wire");
  if (method == nullptr) return nullptr;
  BIO_meth_set_write_ex(method, write);
  BIO_meth_set_read_ex(method, read);
  BIO_meth_set_ctrl(method, control);
  return method;
}

}  // namespace

BIO* make_wire_bio(Wire& wire) {
  static BIO_METHOD* const method = make_method();  // as long as the program: BIOs point to it
  BIO* bio = method != nullptr ? BIO_new(method) : nullptr;
  if (bio == nullptr) return nullptr;
  BIO_set_data(bio, &wire);
  BIO_set_init(bio, 1);
  return bio;
}

}  // namespace allowd::tls
