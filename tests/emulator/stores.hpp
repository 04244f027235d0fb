// Bulk stores and barriers of groups of warps for the emulator: a store reads shared memory late, group by group as committed.
#pragma once
#include "emulator.hpp"

#include <deque>
#include <memory>

namespace emulator {

struct StoreGroup {
    std::vector<std::function<void()>> copies;
    bool done = false;
};
inline std::map<Thread*, StoreGroup> open_groups;
inline std::map<Thread*, std::deque<std::shared_ptr<StoreGroup>>> committed;
inline std::pair<char*, char*> writable;

}  // namespace emulator

inline void bulk_store(void* to, const void* from, u32 bytes) {
    if ((uintptr_t(to) | uintptr_t(from) | bytes) % 16 || !bytes) emulator::fail("a bulk store is not in units of 16 bytes");
    if ((char*)to < emulator::writable.first || (char*)to + bytes > emulator::writable.second)
        emulator::fail("a bulk store writes outside its operand");
    emulator::check_shared(from, bytes);
    emulator::open_groups[emulator::current].copies.push_back([=] { memcpy(to, from, bytes); });
}
inline void bulk_store_fence() {}
inline void bulk_store_commit() {
    auto group = std::make_shared<emulator::StoreGroup>(std::move(emulator::open_groups[emulator::current]));
    emulator::open_groups[emulator::current] = {};
    emulator::committed[emulator::current].push_back(group);
    emulator::in_flight.push_back([group] {
        for (auto& copy : group->copies) copy();
        group->done = true;
    });
}
template <int PENDING>
void bulk_store_wait_read() {
    auto& groups = emulator::committed[emulator::current];
    while (groups.size() > PENDING) {
        while (!groups.front()->done) emulator::yield();
        groups.pop_front();
    }
}
template <int PENDING>
void bulk_store_wait() {
    bulk_store_wait_read<PENDING>();
}
