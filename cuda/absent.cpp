// The same functions where the library is built without CUDA's headers: there is no device.
#include "cuda/access.h"
#include "cuda/context.h"
#include "cuda/device.h"
#include "cuda/mapped_memory.h"
#include "cuda/pointers.h"
#include "cuda/stream_words.h"

namespace tutti::cuda {
namespace {

Error absent() {
  return error(Code::kInvalidUsage, "this library was built without CUDA and works on host memory only");
}

}  // namespace

ContextScope::ContextScope(void* context, ContextUse) : context_(context) {}
ContextScope::~ContextScope() = default;
Status find_devices() { return absent(); }
bool devices_are_known() { return false; }
Result<int> device_count() { return absent(); }
Result<int> current_device() { return absent(); }
Result<std::shared_ptr<Device>> Device::open(int) { return absent(); }
Device::~Device() = default;
Status Device::launch(KernelKind, DataType, std::uint32_t, const void*, StreamHandle) const { return absent(); }
Status Device::launch_copy(const CopyLaunch&, std::uint32_t, StreamHandle) const { return absent(); }
Status Device::launch_nothing(StreamHandle) const { return absent(); }
Result<bool> Device::can_reach(const Device&) const { return absent(); }
Result<bool> Device::reach(const Device&) const { return absent(); }
Status make_current(const Device&) { return absent(); }
Result<std::uint64_t> stream_id(const Device&, StreamHandle) { return absent(); }
Result<bool> follows_default_stream(const Device&, StreamHandle) { return absent(); }
Result<void*> copy_aside(const Device&, const void*, std::size_t, StreamHandle) { return absent(); }
Status free_aside(const Device&, void*, StreamHandle) { return absent(); }
DeviceMemory::~DeviceMemory() = default;
Result<DeviceMemory> DeviceMemory::allocate(std::shared_ptr<Device>, std::size_t) { return absent(); }
Status DeviceMemory::write(std::size_t, const void*, std::size_t) const { return absent(); }
Status DeviceMemory::read(std::size_t, void*, std::size_t) const { return absent(); }
PinnedMemory::~PinnedMemory() = default;
Result<PinnedMemory> PinnedMemory::allocate(std::shared_ptr<Device>, std::size_t) { return absent(); }
SharedWords::~SharedWords() = default;
Result<SharedWords> SharedWords::of(std::shared_ptr<Device>, void*, std::size_t) { return absent(); }
Status give_words(const Device&, std::span<const StreamWord>, StreamHandle) { return absent(); }
Event::~Event() = default;
Result<Event> Event::create(std::shared_ptr<Device>) { return absent(); }
Status Event::record(StreamHandle) const { return absent(); }
Status Event::hold(const Device&, StreamHandle) const { return absent(); }
Status Event::record_by_launches(StreamHandle) const { return absent(); }
Status Event::hold_launches(const Device&, StreamHandle) const { return absent(); }
Result<bool> Event::is_complete() const { return absent(); }
OwnStream::~OwnStream() = default;
Result<OwnStream> OwnStream::create(std::shared_ptr<Device>) { return absent(); }
Result<Capture> capture_of(const Device&, StreamHandle) { return absent(); }
Status keep_for_graph(const Capture&, std::shared_ptr<void>) { return absent(); }
void release_graph_memory(const std::function<bool(int)>&) {}

Result<PointerFacts> pointer_facts(const void*) { return PointerFacts{}; }
Result<bool> lies_on(const void*, int) { return false; }
Result<std::uint64_t> physical_id(const void*) { return absent(); }
Result<AddressRange> address_range(const Device&, const void*) { return absent(); }
Status allow_access(const Device&, const void*, std::size_t, std::span<const int>) { return absent(); }
Status allow_asides(const Device&, std::span<const int>) { return absent(); }
Result<void*> allocate_for_user(std::size_t) { return absent(); }
bool is_for_user(const void*) { return false; }
std::optional<AddressRange> user_range(const void*) { return std::nullopt; }
Result<UserMemory> UserMemory::take(const void*) { return absent(); }
UserMemory& UserMemory::operator=(UserMemory&&) noexcept { return *this; }
void UserMemory::give_back() {}
int UserMemory::device() const { return 0; }
Status UserMemory::free() { return absent(); }
Result<Sharing> sharing_of(const void*) { return absent(); }
Result<MemoryHandle> export_memory(const void*, Sharing, void*) { return absent(); }
Result<ImportedMemory> ImportedMemory::open(const MemoryHandle&, void*) { return absent(); }
ImportedMemory::~ImportedMemory() = default;
std::size_t SharedPieces::total() const { return 0; }
Result<SharedPieces> export_pieces(const Device&, const void*, std::size_t, Sharing, std::size_t) { return absent(); }
Result<ImportedPieces> ImportedPieces::open(const Device&, const SharedPieces&) { return absent(); }
ImportedPieces::~ImportedPieces() = default;

Result<RegisteredMemory> RegisteredMemory::add(std::shared_ptr<Device>, void*, std::size_t) { return absent(); }
RegisteredMemory::~RegisteredMemory() = default;
Status copy_on_stream(const Device&, void*, const void*, std::size_t, StreamHandle) { return absent(); }
Status copy_by_engine(const Device&, void*, const void*, std::size_t, StreamHandle) { return absent(); }
Status write_word(const Device&, std::uint32_t*, std::uint32_t, StreamHandle) { return absent(); }
Result<bool> can_flush(const Device&) { return absent(); }
Status wait_for_word(const Device&, const std::uint32_t*, std::uint32_t, StreamHandle, bool) { return absent(); }
Status call_host(const Device&, void (*)(void*), void*, StreamHandle) { return absent(); }

}  // namespace tutti::cuda
