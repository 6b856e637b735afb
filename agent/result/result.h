// SPDX-License-Identifier: MIT
//
// A value, or why there is none. C++20 has no std::expected; these are the few lines of it that we use.
//
// "Denied" is never an Error: it is an answer. An Error says that no answer could be given.
#pragma once

#include <cassert>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace allowd {

struct Error {
  enum class Code {
    bad_request,  // the caller's input is wrong; the same call fails again
    retry_later,  // the other side is not there now
    system,       // the operating system refused
  };
  Code code = Code::system;
  std::string message;

  // Says what was being done when it failed: "redis: connect: refused".
  [[nodiscard]] Error within(std::string_view context) && {
    message.insert(0, std::string(context) + ": ");
    return std::move(*this);
  }
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : content_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : content_(std::in_place_index<1>, std::move(error)) {}

  [[nodiscard]] explicit operator bool() const { return content_.index() == 0; }
  [[nodiscard]] T& operator*() { return value(); }
  [[nodiscard]] const T& operator*() const { return const_cast<Result*>(this)->value(); }
  [[nodiscard]] T* operator->() { return &value(); }
  [[nodiscard]] Error& error() {
    assert(!*this);
    return *std::get_if<1>(&content_);
  }
  [[nodiscard]] const Error& error() const { return const_cast<Result*>(this)->error(); }

 private:
  T& value() {
    assert(*this);
    return *std::get_if<0>(&content_);
  }
  std::variant<T, Error> content_;
};

// For calls that have nothing to return but may fail.
using Failure = std::optional<Error>;

}  // namespace allowd
