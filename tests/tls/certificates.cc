// SPDX-License-Identifier: MIT
#include "tests/tls/certificates.h"

#include <doctest/doctest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <fstream>

namespace allowd::testing {
namespace {

std::string drain(BIO* bio) {
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(bio, &bytes);
  std::string text(bytes, static_cast<std::size_t>(size));
  BIO_free(bio);
  return text;
}

void extend(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context{};
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str());
  REQUIRE(extension != nullptr);
  REQUIRE(X509_add_ext(certificate, extension, -1) == 1);
  X509_EXTENSION_free(extension);
}

Certificate begin(const std::string& name, const Wanted& wanted) {
  static long serial = 0;
  Certificate made{{X509_new(), X509_free}, {EVP_EC_gen("P-256"), EVP_PKEY_free}};
  REQUIRE(made.key);
  X509* x509 = made.x509.get();
  REQUIRE(X509_set_version(x509, X509_VERSION_3) == 1);
  ASN1_INTEGER_set(X509_get_serialNumber(x509), ++serial);
  X509_gmtime_adj(X509_getm_notBefore(x509), wanted.seconds_from);
  X509_gmtime_adj(X509_getm_notAfter(x509), wanted.seconds_to);
  REQUIRE(X509_set_pubkey(x509, made.key.get()) == 1);
  const auto* bytes = reinterpret_cast<const unsigned char*>(name.c_str());
  REQUIRE(X509_NAME_add_entry_by_txt(X509_get_subject_name(x509), "CN", MBSTRING_UTF8, bytes, -1, -1, 0) ==
          1);
  return made;
}

void sign(const Certificate& made, const Certificate& authority) {
  REQUIRE(X509_set_issuer_name(made.x509.get(), X509_get_subject_name(authority.x509.get())) == 1);
  REQUIRE(X509_sign(made.x509.get(), authority.key.get(), EVP_sha256()) > 0);
}

}  // namespace

std::string Certificate::pem() const {
  BIO* bio = BIO_new(BIO_s_mem());
  REQUIRE(PEM_write_bio_X509(bio, x509.get()) == 1);
  return drain(bio);
}

std::string Certificate::key_pem(const std::string& passphrase) const {
  BIO* bio = BIO_new(BIO_s_mem());
  const EVP_CIPHER* cipher = passphrase.empty() ? nullptr : EVP_aes_128_cbc();
  REQUIRE(PEM_write_bio_PKCS8PrivateKey(bio, key.get(), cipher, passphrase.data(),
                                        static_cast<int>(passphrase.size()), nullptr, nullptr) == 1);
  return drain(bio);
}

Certificate make_authority(const std::string& name) {
  Certificate made = begin(name, {});
  extend(made.x509.get(), made.x509.get(), NID_basic_constraints, "critical,CA:TRUE");
  sign(made, made);
  return made;
}

Certificate make_certificate(const Certificate& authority, const Wanted& wanted) {
  Certificate made = begin("a server or client", wanted);
  if (!wanted.names.empty())
    extend(made.x509.get(), authority.x509.get(), NID_subject_alt_name, wanted.names);
  sign(made, authority);
  return made;
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  REQUIRE(file.good());
}

}  // namespace allowd::testing
