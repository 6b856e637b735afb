// SPDX-License-Identifier: MIT
//
// Bytes on their way out: grows at the back, leaves whole. Keeps its memory for the next turn unless it
// became unusually large. msgpack-c's packer writes straight into it.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string_view>
#include <utility>

namespace allowd::protocol {

class ByteBuffer {
 public:
  ByteBuffer() = default;
  ByteBuffer(ByteBuffer&& other) noexcept
      : data_(std::move(other.data_)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  ByteBuffer& operator=(ByteBuffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    capacity_ = std::exchange(other.capacity_, 0);
    return *this;
  }

  // The signature that msgpack::packer expects of a stream.
  void write(const char* bytes, std::size_t count) {
    if (count == 0) return;  // `bytes` may be null then
    if (capacity_ - size_ < count) grow(count);
    std::memcpy(data_.get() + size_, bytes, count);
    size_ += count;
  }
  void append(std::string_view bytes) { write(bytes.data(), bytes.size()); }

  // Room for `count` more bytes at the returned place; `commit` says how many were used.
  [[nodiscard]] char* reserve(std::size_t count) {
    if (capacity_ - size_ < count) grow(count);
    return data_.get() + size_;
  }
  void commit(std::size_t count) { size_ += count; }

  [[nodiscard]] const char* data() const { return data_.get(); }
  [[nodiscard]] char* data() { return data_.get(); }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] std::string_view view() const { return {data_.get(), size_}; }

  void drop_front(std::size_t count) {
    size_ -= count;
    if (size_ > 0) std::memmove(data_.get(), data_.get() + count, size_);
  }
  // Forgets the bytes; gives memory above `keep` bytes back.
  void clear(std::size_t keep = 64 * 1024) {
    size_ = 0;
    if (capacity_ <= keep) return;
    data_.reset();
    capacity_ = 0;
  }

 private:
  struct Free {
    void operator()(char* bytes) const { std::free(bytes); }
  };

  void grow(std::size_t more) {
    std::size_t capacity = capacity_ == 0 ? 512 : capacity_ * 2;
    while (capacity - size_ < more) capacity *= 2;
    auto* bytes = static_cast<char*>(std::realloc(data_.get(), capacity));
    if (bytes == nullptr) throw std::bad_alloc();
    static_cast<void>(data_.release());
    data_.reset(bytes);
    capacity_ = capacity;
  }

  std::unique_ptr<char, Free> data_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace allowd::protocol
