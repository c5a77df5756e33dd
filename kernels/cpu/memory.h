// Anonymous memory: zeroed, resident only when touched, on huge pages if it is large and the system has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <sys/mman.h>
#include <utility>
#include <vector>

namespace appl {

constexpr int divided(int a, int b) { return (a + b - 1) / b; }  // rounded up
constexpr size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

constexpr size_t kHugePage = size_t{2} << 20;

class Memory {
 public:
  Memory() = default;

  explicit Memory(size_t bytes) : bytes_(round_up(bytes, 4096)) {
    if (bytes_ == 0) return;
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) {
      data_ = nullptr;
      bytes_ = 0;
      throw std::bad_alloc();
    }
    if (bytes_ >= 4 * kHugePage) madvise(data_, bytes_, MADV_HUGEPAGE);  // refusal costs speed only
  }

  Memory(Memory&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Memory() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }

  size_t bytes() const { return bytes_; }

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Places many weights in few large mappings, so that small weights are on huge pages too: otherwise the address translations
// of a pass over a model's weights cost more than the reading. Everything is freed at once.
class Store {
 public:
  uint8_t* allocate(size_t bytes) {
    bytes = round_up(bytes, kAlignment);
    if (bytes > free_) {
      const size_t size = bytes > kChunk ? bytes : kChunk;
      chunks_.emplace_back(size + kHugePage);
      const size_t address = round_up(reinterpret_cast<size_t>(chunks_.back().as<uint8_t>()), kHugePage);
      next_ = reinterpret_cast<uint8_t*>(address);
      free_ = size;
    }
    uint8_t* result = next_;
    next_ += bytes;
    free_ -= bytes;
    return result;
  }

 private:
  static constexpr size_t kAlignment = 64, kChunk = size_t{64} << 20;
  std::vector<Memory> chunks_;
  uint8_t* next_ = nullptr;
  size_t free_ = 0;
};

}  // namespace appl
