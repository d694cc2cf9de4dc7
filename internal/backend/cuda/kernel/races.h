// A race detector for the emulation (-DRACES, part of emulate.cc). The compiler calls a hook before every load and
// store of a kernel (-fsanitize=thread, without its run time); two accesses of different threads to the same bytes, one
// of them a store, that nothing orders are a race, whether or not the values came out right.
//
// Order is what CUDA's memory model promises, and no more: every thread has a vector clock (what of every other thread
// happened before its next access), which it gives away where it releases (barriers, syncwarp, arrivals, atomics at gpu
// scope) and widens where it acquires. Shuffles, votes, products of a warp and ldmatrix order nothing. A second clock
// holds what is also ordered for the asynchronous proxy: fence.proxy.async copies the first into it, and bulk copies
// and warpgroup products look at this one when they meet plain stores.
//
// Clocks never go back, also not from block to block and launch to launch, so shadow memory is never cleared: what is
// older than the block's first clock belongs to another block, what is older than the launch's to another launch.
#include <dlfcn.h>

namespace {
// Clocks: of the wait for kernels before, of barriers in shared memory, of threads.
const int kBars = 64, kFirst = 1 + kBars, kWide = kFirst + kThreads;
const u32 kNever = 0xffffffff;  // the clock of an access that is still under way
enum { atomic = 1, async = 2 }; // kinds of accesses

struct Order { u32 seen[kWide], fenced[kWide]; };
struct Access {
  u32 clock, pc;
  u16 who; // its clock's number
  u8 mask; // bytes of the word
  u8 kind;
};
struct Word { Access write; u32 read; }; // of shared memory; `read`: no read is later
struct Read { u32 clock, pc, mask; };    // by one thread
struct Far { Access write, reads[2]; };  // of global memory: the last write, the last reads by two threads
struct Mbar { // a barrier in shared memory: the clock of its phase, who made it and when
  u32 addr, clock;
  int who;
  u32 made;
  Order now, done;
};
struct Release { const void* at; u32 base; Order order; };        // of a block, by an atomic on global memory
struct Acquire { const void* at; u32 clock; int who, releases; }; // by a thread of this block

Order clocks[kThreads], named[kBarriers];
Mbar bars[kBars];
Release releases[4096];
Acquire acquires[64];
int nbars, nreleases, nacquires, width, reports;
bool fences; // any so far in this block
u32 top = 1, block_base, launch_base;
u32 low[kThreads]; // no clock of a thread that it has seen is lower
Word* words;
Read* reads;
u8* far;
const size_t kFarBytes = range / 4 * sizeof(Far);
struct Pending { // shared memory that a thread's warpgroup products read
  u32 *words, *groups;
  int n, cap, group;
  bool on;
} products[kThreads];

// Launches that overlap. What is older than `began` was complete when this launch began; what is older than `waited`,
// and the launch before (from `before` on), is when it has waited (griddepcontrol.wait).
struct { u32 began, waited, before; bool early, launches, waits, waits_first; } chain;
// Whether a thread of this block lets the next launch begin, and whether one does without having waited.
bool block_launches, block_early;

u32& clock_of(int t) { return clocks[t].seen[kFirst + t]; }
void tick(int t) { if (++clock_of(t) > top) top = clock_of(t); }
void widen(u32* a, const u32* b) { for (int i = 0; i < width; i++) a[i] = a[i] > b[i] ? a[i] : b[i]; }
void widen(Order& a, const Order& b) {
  widen(a.seen, b.seen);
  if (fences) widen(a.fenced, b.fenced);
}
void release(int t, Order& to) { widen(to, clocks[t]); tick(t); }
void acquire(int t, const Order& from) {
  widen(clocks[t], from);
  u32 l = kNever;
  for (int i = kFirst; i < width; i++) l = clocks[t].seen[i] < l ? clocks[t].seen[i] : l;
  low[t] = l;
}
u32 place(const void* pc) { // in the library
  static Dl_info self;
  if (!self.dli_fbase) dladdr((void*)emu_launch, &self);
  return (u32)((const u8*)pc - (const u8*)self.dli_fbase) - 1;
}

__attribute__((format(printf, 3, 4))) void report(u32 a, u32 b, const char* format, ...) {
  static u32 known[64][2];
  for (int i = 0; i < reports; i++)
    if (known[i][0] == a && known[i][1] == b) return;
  if (reports == 64) return;
  known[reports][0] = a;
  known[reports][1] = b;
  int n = strlen(error);
  if (!reports++) n = snprintf(error, sizeof error, "kernel %s, %d threads:", kernel, emu_at.threads);
  if (n > (int)sizeof error - 256) return;
  n += snprintf(error + n, sizeof error - n, "\nblock %d,%d,%d: ", emu_at.block[0], emu_at.block[1], emu_at.block[2]);
  va_list v;
  va_start(v, format);
  vsnprintf(error + n, sizeof error - n, format, v);
  va_end(v);
}
const char* name_of(int kind, bool write) {
  return kind == (atomic | async) ? "completes" : kind == atomic ? "changes" : kind == async
      ? write ? "asynchronously writes" : "asynchronously reads" : write ? "writes" : "reads";
}
const char* someone(int who, char* text) {
  sprintf(text, who >= kFirst ? "thread %d" : "a copy for barrier %d", who >= kFirst ? who - kFirst : who - 1);
  return text;
}

// Whether an access of this block happened before one of this kind by thread t.
bool ordered(const Access& a, int t, int kind) {
  if (a.kind & kind & atomic) return true;
  return a.clock <= (kind & async && !(a.kind & async) ? clocks[t].fenced : clocks[t].seen)[a.who];
}

void touch_shared(u32 off, int bytes, bool write, int kind, int who, u32 clock, u32 pc) {
  int t = emu_at.tid, n = emu_at.threads;
  const u32* seen = clocks[t].seen;
  char name[32];
  for (u32 i = off / 4; i <= (off + bytes - 1) / 4; i++) {
    u32 from = i * 4 < off ? off - i * 4 : 0, to = off + bytes - i * 4 < 4 ? off + bytes - i * 4 : 4;
    u8 mask = (u8)((1 << to) - (1 << from));
    Word& w = words[i];
    if (w.write.mask & mask && w.write.clock >= block_base && !ordered(w.write, t, kind))
      report(pc, w.write.pc, "thread %d %s shared byte %u at @%x, which %s %s at @%x%s", t, name_of(kind, write),
             i * 4, pc, someone(w.write.who, name),
             w.write.kind & async || w.write.clock == kNever ? "copies to" : "wrote", w.write.pc,
             kind & async && w.write.clock <= seen[w.write.who] ? " (without a fence for the asynchronous proxy)" : "");
    Read* r = reads + (size_t)i * n;
    if (!write) {
      r += t;
      bool same = r->clock == clock;
      *r = {clock, pc, same ? r->mask | mask : mask};
      if (clock > w.read) w.read = clock;
      continue;
    }
    if (w.read > low[t])
      for (int u = 0; u < n; u++)
        if (r[u].clock > seen[kFirst + u] && r[u].clock >= block_base && r[u].mask & mask)
          report(pc, r[u].pc, "thread %d %s shared byte %u at @%x, which thread %d %s at @%x", t,
                 name_of(kind, true), i * 4, pc, u, r[u].clock == kNever ? "still reads" : "read", r[u].pc);
    w.write = {clock, pc, (u16)who, mask, (u8)kind};
  }
}

// Whether an access of another block of this launch happened before one of thread t, by atomics.
bool acquired(const Access& a, int t) {
  for (int i = 0; i < nacquires; i++)
    if (clocks[t].seen[acquires[i].who] >= acquires[i].clock)
      for (int j = 0; j < acquires[i].releases; j++)
        if (releases[j].at == acquires[i].at && a.clock >= releases[j].base &&
            a.clock <= releases[j].order.seen[a.who]) return true;
  return false;
}
bool ordered_far(const Access& a, int t, int kind) {
  if (a.clock >= block_base) return ordered(a, t, kind);
  if (a.clock >= launch_base) return a.kind & kind & atomic || acquired(a, t);
  bool waited = clocks[t].seen[0] >= block_base;
  return a.clock < (waited ? chain.waited : chain.began) || (waited && a.clock >= chain.before);
}
void touch_global(const u8* p, int bytes, bool write, int kind, u32 pc) {
  int t = emu_at.tid;
  u16 who = (u16)(kFirst + t);
  char name[32];
  const u8* end = p + bytes;
  for (const u8* at = (const u8*)((u64)p & ~3ull); at < end; at += 4) {
    u32 from = at < p ? p - at : 0, to = end - at < 4 ? end - at : 4;
    u8 mask = (u8)((1 << to) - (1 << from));
    Far& f = *(Far*)(far + (size_t)(at - base) / 4 * sizeof(Far));
    auto check = [&](const Access& a, bool wrote) {
      if (!(a.mask & mask) || ordered_far(a, t, kind)) return;
      report(pc, a.pc, "thread %d %s %p at @%x, which %s of %s %s at @%x", t, name_of(kind, write), (void*)at, pc,
             someone(a.who, name), a.clock >= block_base ? "this block" : a.clock >= launch_base ? "another block"
             : "a launch that may still run", wrote ? "wrote" : "read", a.pc);
    };
    check(f.write, true);
    Access now = {clock_of(t), pc, who, mask, (u8)kind};
    if (write) {
      for (const Access& r : f.reads) check(r, false);
      f.write = now;
    } else {
      if (f.reads[0].who != who || f.reads[0].clock < block_base) f.reads[1] = f.reads[0];
      else if (f.reads[0].clock == now.clock) now.mask |= f.reads[0].mask;
      f.reads[0] = now;
    }
  }
}
inline void touch(const void* p, int bytes, bool write, int kind, const void* caller) {
  u64 off = (u64)p - (u64)emu_at.shared, at = (u64)p - (u64)base;
  int t = emu_at.tid;
  if (off < (u64)emu_at.bytes) {
    Pending& g = products[t];
    if (!g.on || write) return touch_shared((u32)off, bytes, write, kind, kFirst + t, clock_of(t), place(caller));
    touch_shared((u32)off, bytes, false, async, kFirst + t, kNever, place(caller));
    if (g.n == g.cap) {
      g.cap = g.cap ? 2 * g.cap : 1024;
      g.words = (u32*)realloc(g.words, g.cap * 4);
      g.groups = (u32*)realloc(g.groups, g.cap * 4);
    }
    g.words[g.n] = (u32)off / 4;
    g.groups[g.n++] = (u32)g.group;
  } else if (at < range) touch_global((const u8*)p, bytes, write, kind, place(caller));
}

void race_barrier_arrive(int id) { release(emu_at.tid, named[id]); }
void race_barrier_leave(int id, int t) { acquire(t, named[id]); }
void race_barrier_empty(int id) { memset(&named[id], 0, sizeof named[id]); }
void race_atomic(u32* p, bool gpu, const void* caller) {
  int t = emu_at.tid;
  touch(p, 4, true, atomic, caller);
  if (!gpu) return;
  if (nreleases == 4096 || nacquires == 64) emu_fail("more atomics than the race detector keeps");
  // Acquires what was released before it, then releases: the order of one atomic instruction.
  int n = nreleases;
  releases[nreleases].at = p;
  releases[nreleases].base = block_base;
  releases[nreleases++].order = clocks[t];
  tick(t);
  acquires[nacquires++] = {p, clock_of(t), kFirst + t, n};
}
void race_copy(u32 off, int bytes, const void* src, int from, const void* caller) {
  touch(src, from, false, 0, caller);
  touch_shared(off, bytes, true, 0, kFirst + emu_at.tid, kNever, place(caller));
}
void race_copied(u32 off, int bytes, int t) {
  for (u32 i = off / 4; i < (off + bytes) / 4; i++)
    if (words[i].write.clock == kNever && words[i].write.who == kFirst + t) words[i].write.clock = clock_of(t);
}
Mbar& bar_at(u32 addr) {
  for (int i = 0; i < nbars; i++)
    if (bars[i].addr == addr) return bars[i];
  emu_fail("no barrier was made at %u", addr);
}
void race_bar_init(u32 addr, const void* caller) {
  touch(emu_shared(addr, 8), 8, true, 0, caller);
  int i = 0;
  while (i < nbars && bars[i].addr != addr) i++;
  if (i == kBars) emu_fail("more than %d barriers", kBars);
  if (i == nbars) nbars++;
  memset(&bars[i], 0, sizeof bars[i]);
  bars[i].addr = addr;
  bars[i].clock = ++top; // beyond what anybody has seen of it
  bars[i].who = kFirst + emu_at.tid;
  bars[i].made = clock_of(emu_at.tid);
}
void race_bar_arrive(u32 addr, const void* caller) {
  touch(emu_shared(addr, 8), 8, true, atomic, caller);
  release(emu_at.tid, bar_at(addr).now);
}
void race_bar_phase(u32 addr) {
  Mbar& b = bar_at(addr);
  b.now.seen[1 + (&b - bars)] = b.clock++;
  if (b.clock > top) top = b.clock;
  b.done = b.now;
}
void race_bar_waited(u32 addr, const void* caller) {
  touch(emu_shared(addr, 8), 8, true, atomic, caller);
  acquire(emu_at.tid, bar_at(addr).done);
}
void race_bulk(u32 off, const void* src, u32 bytes, u32 bar, const void* caller) {
  Mbar& b = bar_at(bar);
  int t = emu_at.tid;
  if (clocks[t].fenced[b.who] < b.made)
    report(place(caller), 1,
           "thread %d copies at @%x for a barrier that was made without a fence for the asynchronous proxy", t,
           place(caller));
  touch(src, (int)bytes, false, async, caller);
  touch_shared(off, (int)bytes, true, async, 1 + (int)(&b - bars), b.clock, place(caller));
}
void race_under_way(u32 bar) { report(1, bar, "it ended before a copy for the barrier at %u", bar); }
void race_wgmma_wait(int t, int left) {
  Pending& g = products[t];
  int n = 0;
  for (int i = 0; i < g.n; i++) {
    if ((int)g.groups[i] >= g.group - left) {
      g.words[n] = g.words[i];
      g.groups[n++] = g.groups[i];
      continue;
    }
    Read& r = reads[(size_t)g.words[i] * emu_at.threads + t];
    if (r.clock == kNever) r.clock = clock_of(t);
  }
  g.n = n;
}

void race_forget() { // what a launch that failed left
  madvise(words, kSharedMost / 4 * sizeof(Word), MADV_DONTNEED);
  madvise(reads, (size_t)kSharedMost / 4 * kThreads * sizeof(Read), MADV_DONTNEED);
}
void race_launch(bool early) {
  if (!words) {
    words = (Word*)map(kSharedMost / 4 * sizeof(Word), PROT_READ | PROT_WRITE);
    reads = (Read*)map((size_t)kSharedMost / 4 * kThreads * sizeof(Read), PROT_READ | PROT_WRITE);
    far = map(kFarBytes, PROT_READ | PROT_WRITE);
  }
  // What an early launch may rely on depends on the launch before it: that began after `began`, and if it lets this one
  // begin before it has waited, nothing more is known. When it has ended, so have those it waited for.
  auto was = chain;
  u32 now = top + 1;
  chain = {};
  chain.early = early;
  chain.before = launch_base;
  chain.began = !early || !was.launches ? now : was.waits_first ? launch_base : was.began;
  chain.waited = !early || !was.early || (was.waits && was.waited == launch_base) ? now : was.began;
  launch_base = now;
  reports = nreleases = 0;
  error[0] = 0;
}
void race_block() {
  int n = emu_at.threads;
  width = kFirst + n;
  block_base = top + 1;
  top++;
  nbars = nacquires = 0;
  fences = block_launches = block_early = false;
  for (int t = 0; t < n; t++) {
    for (int i = 0; i < width; i++) clocks[t].seen[i] = block_base - 1;
    memset(clocks[t].fenced, 0, width * 4);
    clock_of(t) = block_base;
    low[t] = block_base - 1;
    products[t].n = products[t].group = 0;
    products[t].on = false;
  }
  memset(named, 0, sizeof named);
  if (block_base > 0xf0000000) emu_fail("the race detector's clocks are used up");
}
void race_ended() { // what nobody waited for is over with the block
  for (int t = 0; t < emu_at.threads; t++) race_wgmma_wait(t, -1);
  // The next launch begins when all blocks let it, so what one of them waited for before has ended.
  chain.launches |= block_launches;
  chain.waits_first |= block_launches && !block_early;
}
void race_release(const u8* p, size_t bytes) { // its addresses are not used again
  u64 from = ((u64)far + (u64)(p - base) / 4 * sizeof(Far) + kPage - 1) & -(u64)kPage;
  u64 to = ((u64)far + (u64)(p + bytes - base) / 4 * sizeof(Far)) & -(u64)kPage;
  if (far && to > from) madvise((void*)from, to - from, MADV_DONTNEED);
}
// A copy or a fill between launches: all of the one is before all of the other.
void race_host(const void* a, const void* b) {
  if ((u64)a - (u64)base < range || (u64)b - (u64)base < range) chain = {};
}
} // namespace

void emu_warp_order(EmuSlot*) {
  static Order o;
  memset(&o, 0, sizeof o);
  int first = emu_at.tid & ~31;
  for (int t = first; t < first + 32; t++) release(t, o);
  for (int t = first; t < first + 32; t++) acquire(t, o);
}
void emu_fence_async() {
  int t = emu_at.tid;
  fences = true;
  memcpy(clocks[t].fenced, clocks[t].seen, width * 4);
  tick(t);
}
void emu_wgmma(bool on) { products[emu_at.tid].on = on; }
void emu_wgmma_commit() { products[emu_at.tid].group++; }
void emu_wgmma_wait(int left) { race_wgmma_wait(emu_at.tid, left); }
void emu_pdl_launch() {
  block_launches = true;
  if (clocks[emu_at.tid].seen[0] < block_base) block_early = true;
}
void emu_pdl_wait() { // what the kernels before wrote is there for both proxies
  clocks[emu_at.tid].seen[0] = clocks[emu_at.tid].fenced[0] = block_base;
  chain.waits = true;
}

#define HOOKS(n) \
  extern "C" void __tsan_read##n(void* p) { touch(p, n, false, 0, CALLER); } \
  extern "C" void __tsan_write##n(void* p) { touch(p, n, true, 0, CALLER); } \
  extern "C" void __tsan_unaligned_read##n(void* p) { touch(p, n, false, 0, CALLER); } \
  extern "C" void __tsan_unaligned_write##n(void* p) { touch(p, n, true, 0, CALLER); }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
extern "C" void __tsan_init() {}
extern "C" void __tsan_atomic64_store(u64* p, u64 v, int) {
  touch(p, 8, true, atomic, CALLER);
  *p = v;
}
extern "C" void* __tsan_memcpy(void* d, const void* s, size_t n) {
  touch(s, (int)n, false, 0, CALLER);
  touch(d, (int)n, true, 0, CALLER);
  return memcpy(d, s, n);
}
extern "C" void* __tsan_memmove(void* d, const void* s, size_t n) {
  touch(s, (int)n, false, 0, CALLER);
  touch(d, (int)n, true, 0, CALLER);
  return memmove(d, s, n);
}
extern "C" void* __tsan_memset(void* d, int v, size_t n) {
  touch(d, (int)n, true, 0, CALLER);
  return memset(d, v, n);
}
